"""What commands show: bars, lines, tables; and streams that are closed, full, or a pipe without a reader."""

from __future__ import annotations

import io
import itertools
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import PATIENCE, Main
from unmask.commands import terminal
from unmask.commands.terminal import ConsoleReporter, show
from unmask.core.results import Progress, Readable, Sheet, Shown, Styled


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which ten seconds go by whenever it is looked at."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], seconds: None) -> None:
    with ConsoleReporter() as bar:
        bar.notify(Progress("hidden tokens", 0, 400))
        bar.notify(Progress("hidden tokens", 100, 400))
        bar.notify(Progress("hidden tokens", 410, 400))
        bar.notify(Progress("tokenizing", 5_000_000, 20_000_000, "bytes"))
        bar.notify(Progress("embedding", 5_000_000, None, "characters"))
    assert capsys.readouterr().err.splitlines() == [
        "hidden tokens 0%: 0 of 400 tokens, 0 tokens/s",
        "hidden tokens 25%: 100 of 400 tokens, 3 tokens/s, 1:30 left",
        "hidden tokens 100%: 410 of 400 tokens, 8 tokens/s",
        "tokenizing 25%: 5.0 MB, 0.5 MB/s, 30 s left",
        "embedding: 5.0 M characters, 0.5 M characters/s",
    ]


def test_texts_do_nothing_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files and words of a text may hold sequences that a terminal obeys, or markup of rich's."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    terminal.prepare_streams()
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


# What a shell is given; exit code and beginning of stderr of a command that prints, and of one with a mistake.
UNKNOWN = "unmask: No such command 'nosuch'"
STREAMS = {">/dev/full": (2, "unmask: standard output is full", 2, UNKNOWN), "2>&-": (0, "", 2, "")}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("streams", STREAMS)
def test_streams_that_cannot_be_used(streams: str) -> None:
    code, text, code_of_mistake, text_of_mistake = STREAMS[streams]
    for argument, expected, begin in (("--help", code, text), ("nosuch", code_of_mistake, text_of_mistake)):
        command = f"{sys.executable} -m unmask {argument} {streams}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == expected, (streams, done.stderr)
        assert done.stderr.startswith(begin)
        assert done.stderr.count("\n") == bool(begin), done.stderr


def test_standard_input_that_is_closed(main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for command in (
        ("masks", "-"),
        ("prepare", "-", "--out", tmp_path / "a"),
        ("pretrain", "-", "--out", tmp_path / "b"),
    ):
        code, _, err = main(*command)
        assert (code, "standard input, but that is closed" in err) == (2, True)
