"""What commands show: bars, lines, colours; and streams that are closed, full, or a pipe without a reader."""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import unmask
from tests.command_line import PATIENCE, Main
from unmask.commands import cli, recipe_files
from unmask.commands.cli import ConsoleReporter, show
from unmask.core import results
from unmask.core.results import Progress, Readable, Sheet, Shown, Styled


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by ten seconds each time it is read."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(results.time, "monotonic", lambda: next(clock))


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], seconds: None) -> None:
    with ConsoleReporter() as bar:
        bar.notify(Progress("hidden tokens", 0, 400))
        bar.notify(Progress("hidden tokens", 100, 400))
        bar.notify(Progress("hidden tokens", 410, 400))
        bar.notify(Progress("tokenizing", 5_000_000, 20_000_000, "bytes"))
        bar.notify(Progress("tokenizing", 9_000_000, 20_000_000, "bytes"))
        bar.notify(Progress("embedding", 5_000, None, "bytes"))
        bar.notify(Progress("embedding", 9_000, None, "bytes"))
        bar.notify(Progress("searching", 0, 4, "texts"))
        bar.notify(Progress("searching", 3, 4, "texts"))
    assert capsys.readouterr().err.splitlines() == [
        "hidden tokens 0%: 0 of 400 tokens",
        "hidden tokens 25%: 100 of 400 tokens, 5 tokens/s, 1:00 left",
        "hidden tokens 100%: 410 of 400 tokens, 10 tokens/s",
        "tokenizing 25%: 5.0 MB",
        "tokenizing 45%: 9.0 MB, 200 kB/s, 55 s left",
        "embedding: 5 kB",
        "embedding: 9 kB, 200 bytes/s",
        "searching 0%: 0 of 4 texts",
        "searching 75%: 3 of 4 texts, 0.1 texts/s, 7 s left",
    ]


def test_files_and_pipes_are_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", io.TextIOWrapper(io.BytesIO(), "cp1252"))
    cli.prepare_streams()
    assert (sys.stdout.encoding, sys.stderr.encoding) == ("utf-8", "utf-8")


def test_texts_do_nothing_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """File names and words of a text may hold escape sequences for terminals, or rich's markup."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    cli.prepare_streams()
    bad = "\x1b]0;title\x07\x9b2J[/red][bold]"
    with ConsoleReporter() as reporter:
        reporter.note(bad)
        reporter.notify(Progress(bad, share=0.5, facts=bad))
        reporter.bar.refresh()
        reporter.note((bad, Styled(bad, "bold red")))
    show(Shouting(bad), as_json=False)
    logging.getLogger("unmask").warning("%s", bad)
    text = screen.getvalue()
    assert text.count("\\x1b]0;title\\x07\\x9b2J[/red][bold]") >= 8
    assert "\x1b]" not in text
    assert "\x9b" not in text


class Shouting(Readable):
    """Shows a text in every form."""

    def __init__(self, text: str) -> None:
        self.text = text

    def shown(self) -> Iterator[Shown]:
        yield self.text
        yield Sheet((self.text,), [(Styled(self.text, "red"),)], title=self.text)
        yield Styled(self.text, "dim")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--help >/dev/full", 2, "unmask: no space left: standard output"),
        ("recipes --json >/dev/full", 2, "unmask: no space left: standard output"),
        ("nosuch >/dev/full", 2, "unmask: No such command 'nosuch'"),
        ("recipes --json | true", 1, ""),
        ("--help 2>&-", 0, ""),
    ],
)
def test_streams_that_cannot_be_used(words: str, code: int, text: str) -> None:
    command = ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m unmask {words}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(text)
    assert done.stderr.count("\n") == bool(text), done.stderr


@pytest.mark.parametrize("command", ["masks - --seed 1", "prepare - --out {out}", "pretrain - --out {out}"])
def test_standard_input_that_is_closed(
    command: str, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = main(*command.format(out=tmp_path / "out").split())
    assert (code, "standard input, but that is closed" in err) == (2, True)


def test_arguments_are_paths_even_if_no_file_has_that_name(main: Main, tmp_path: Path) -> None:
    """Names with spaces, which are texts in Python. The model, which is looked for next, is missing, too."""
    model, mails = tmp_path / "model", tmp_path / "My mails"
    mails.mkdir()
    (mails / "a.eml").write_text("The cat sleeps.")
    found = {"Your mails": "Your mails: no such file", "My mails/*.txt": "no file", "My mails/*.eml": str(model)}
    for name, text in found.items():
        code, _, err = main("embedder", model, tmp_path / name, "--out", tmp_path / "out")
        assert (code, text in err) == (2, True), err


def test_quiet_and_verbose(main: Main, corpus_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(corpus_file.read_bytes())
    (tmp_path / "texts" / "b.pdf").write_text("x")
    command = ("prepare", tmp_path / "texts", "--vocab-size", 200, "--workers", 1, "--overwrite", "--out")
    code, plain, err = main(*command, tmp_path / "data")
    assert (code, "a document is a block" in err) == (0, True)
    caplog.clear()
    code, quiet, err = main(*command, tmp_path / "data", "-q")
    assert (code, quiet, err) == (0, plain, ""), "the result is the same"
    assert "skipped: 1 (.pdf)" in caplog.text, "warnings stay"
    code, _, err = main(*command, tmp_path / "data", "--verbose")
    assert (code, " INFO corpus: a document is a block" in err) == (0, True)


def test_what_libraries_print_is_no_result(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = recipe_files.recipes

    def printing() -> object:
        print("a tracker begins")
        return recipes()

    monkeypatch.setattr(recipe_files, "recipes", printing)
    _, out, err = main("recipes", "--json")
    assert json.loads(out)
    assert "a tracker begins" in err


@pytest.mark.parametrize(
    "variables", [{"RANK": "1", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}]
)
def test_only_trainings_of_a_group_leave_the_output_to_rank_0(
    variables: dict[str, str], main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands work alone in each process, so each has a result of its own."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cli, "_call", lambda *_, **__: Shouting("a result"))
    commands = ["pretrain --out run", "pretrain --out run --dry-run", "evaluate model text.txt", "recipes"]
    assert ["a result" in main(*command.split())[1] for command in commands] == [False, False, True, True]


def test_conventions_of_terminals(main: Main, run: unmask.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("masks", "The king sees.", "--tokenizer", run.folder / "model", "--strategy", "random", "--rate", 0.9)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")  # a dumb one has no colours
    colours = re.compile(r"\x1b\[[\d;]*3[0-7]")
    assert colours.search(main(*arguments)[1])
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours.search(main(*arguments)[1])
    for name, value in (("_UNMASK_COMPLETE", "complete_bash"), ("COMP_WORDS", "unmask fi"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert main()[1].split() == ["fill", "finetune"]
