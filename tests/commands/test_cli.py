from __future__ import annotations

import importlib
import inspect
import io
import json
import operator
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main, call
from unmask.commands import cli
from unmask.commands.cli import COMMANDS, read_declaration
from unmask.core.interruption import Interrupted
from unmask.core.results import Result
from unmask.masking.settings import STRATEGIES


def test_help_names_every_command(main: Main) -> None:
    out, _ = call("--help")
    for command in (
        "pretrain", "prepare", "lexicon", "masks", "audit", "fill", "embed", "evaluate", "score", "compare",
        "finetune", "predict", "export", "verify", "evaluate-search", "search index", "search query",
    ):  # fmt: skip
        assert command.split()[0] in out
        code, shown, _ = main(*command.split(), "--help")
        assert (code, "Example: unmask" in shown) == (0, True), command


def test_the_version() -> None:
    assert call("--version")[0] == f"unmask {unmask.__version__}\n"


def test_tune(main: Main, corpus_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    small = ("--set", "model.num_layers=1", "--set", "model.hidden_size=32", "--set", "training.batch_tokens=512")
    asked = ("compare", "tiny", "--tune", "--data", corpus_file, "--out", tmp_path / "out", "--steps", 2, *small)
    rates = ("--search", "training.learning_rate=0.001..0.01")
    code, shown, _ = main(*asked, *rates, "--trials", 2)
    assert code == 0
    assert f"--recipe {tmp_path / 'out' / 'best.toml'}" in shown
    result = json.loads(main(*asked, *rates, "--trials", 2, "--json")[1])
    assert [trial["state"] for trial in result["trials"]] == ["COMPLETE"] * 2
    assert result["verdict"] in shown
    for wrong, option in (
        ((*asked, "--search", "learning_rate"), "--search"),
        ((*asked, "--seeds", 2), "--seeds"),
        (("compare", "tiny", "mini", *asked[2:]), "--tune"),
        (("compare", "tiny", "mini", *asked[3:], *rates), "--search"),
        ((*asked, "--task", "tag"), "--train"),
        ((*asked, "--test", "x.csv"), "--train"),
        ((*asked, "--primary", "loss"), "--primary"),
    ):
        code, _, err = main(*wrong)
        assert (code, option in err) == (2, True), err


def test_masks_of_every_strategy(main: Main, run: unmask.Run) -> None:
    text = "The philosopher remembers the embroidery in Constantinople."
    code, out, err = main("masks", text, "--rate", 0.5, "--tokenizer", run.folder / "model", "--json")
    assert code == 0
    shown = json.loads(out)["strategies"]
    names = [s["name"] for s in shown]
    assert {"random", "whole_word", "span", "pmi", "frequency", "mixture"} <= set(names)
    assert not {"adaptive", "contextual", "semantic"} & set(names)
    assert set(json.loads(out)["left_out"]) == STRATEGIES.keys() - set(names), "what a text alone does not tell"
    assert err == ""
    for strategy in shown:
        tokens, targets = strategy["tokens"], strategy["targets"]
        assert len(tokens) == len(strategy["input_tokens"])
        assert targets
        assert tokens[0] == "[CLS]"
        for place, (before, after) in enumerate(zip(tokens, strategy["input_tokens"], strict=True)):
            assert before == after or place in targets
    assert main("masks", text, "--rate", 0.5, "--tokenizer", run.folder / "model", "--json")[1] == out
    _, other, _ = main("masks", text, "--seed", 1, "--rate", 0.5, "--tokenizer", run.folder / "model")
    assert all(name in other for name in names)
    assert "adaptive  not shown: " in other


def test_masks_without_a_tokenizer(main: Main) -> None:
    code, out, err = main("masks", "To be, or not to be", "--strategy", "span", "--json")
    assert code == 0
    assert [s["name"] for s in json.loads(out)["strategies"]] == ["span"]
    assert "trained on Tiny Shakespeare" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lexicon", "nowhere", "--out", "x"), "unmask: nowhere: there is no manifest.json; make the folder with"),
        (("lexicon", "nowhere", "--out", "x", "--max-words", "9"), "lexicon: max_words = 9: input should be less"),
        (("lexicon", "nowhere", "--out", "x", "--size", "0"), "lexicon: size = 0: input should be greater"),
        (("masks", "text", "--lexicon", "nowhere"), "unmask: nowhere: there is no such lexicon"),
        (("pretrain", "none.txt", "--out", "x"), "unmask: none.txt: no such file"),
        (("pretrain", "--out", "x", "--recipe", "tinny"), "unmask: unknown recipe 'tinny'; did you mean 'tiny'?"),
        (("pretrain", "--out", "x", "--set", "model.num_layer=3"), "did you mean 'num_layers'?"),
        (("pretrain", "--out", "x", "--steps", "0"), "training.steps = 0: input should be greater than or equal to 1"),
        (
            ("pretrain", "--out", "x", "--strategy", "spam"),
            "'spam' is not one of 'random'",
        ),
        (("prepare", "none.txt", "--out", "x"), "unmask: none.txt: no such file"),
        (("masks", " "), "unmask: the text is empty"),
        (("masks", "text", "--rate", "2"), "masking: rate"),
        (("masks", "text", "--tokenizer", "nowhere"), "unmask: nowhere: there is no tokenizer.json"),
        (("fill", "nowhere", "[MASK]"), "unmask: nowhere: no such folder"),
        (("pretrain",), "unmask: Missing option '--out'; see unmask pretrain --help"),
        (("pretrain", "--out", "x", "--stepz", "3"), "No such option: --stepz"),
        (("pretrain", "--out", "x", "--steps", "many"), "Invalid value for '--steps'"),
        (("spam",), "No such command 'spam'"),
    ],
)
def test_mistakes_end_with_one_clear_line_and_code_2(
    main: Main,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = main(*arguments)
    assert code == 2
    assert out == ""
    *notes, line = err.splitlines()
    assert line.startswith("unmask: ")
    assert message in line
    assert notes == [] or "a tokenizer of" in notes[0], "one line, of usage mistakes too"
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


def test_without_arguments(main: Main) -> None:
    code, out, err = main()
    assert (code, err) == (0, "")
    assert "finetune" in out


def _ctrl_c(*arguments: object, **options: object) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Tests in the background of a shell are begun with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _stopped_training(*arguments: object, **options: object) -> None:
    raise Interrupted(signal.SIGTERM, "stopped and saved at step 3; go on with --out somewhere --resume")


@pytest.mark.parametrize(
    ("place", "stop", "command", "code", "said"),
    [
        ("commands.embed.embed_file", _ctrl_c, "embed MODEL TEXT --out OUT/a.npy",
         130, "stopped; nothing was written"),
        ("commands.lexicon.make_lexicon", _ctrl_c, "lexicon DATA --out OUT/a", 130, "stopped; nothing was written"),
        ("commands.finetune.find_model", _ctrl_c,
         "finetune MODEL --task classify --train TEXT --validation TEXT --out OUT/a",
         130, "stopped; the same command with --resume goes on from what was saved last"),
        ("commands.many_runs.pretrain", _stopped_training, "compare tiny mini --data DATA --steps 1 --out OUT/a",
         143, "stopped; the same command goes on from what was saved last"),
        ("commands.tune.begin", _ctrl_c, "compare tiny --tune --data DATA --steps 1 --out OUT/a",
         130, "stopped; the same command goes on from what was saved last"),
        ("commands.evaluate.as_scorable", _ctrl_c, "evaluate MODEL TEXT", 130, "stopped; nothing was written"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("interruptible")
def test_what_is_said_when_stopped(
    main: Main,
    place: str,
    stop: Callable[..., None],
    command: str,
    code: int,
    said: str,
    run: unmask.Run,
    data_folder: Path,
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _, name = f"unmask.{place}".rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, stop)
    paths = {"MODEL": run.folder / "model", "TEXT": corpus_file, "DATA": data_folder}
    arguments = [str(paths.get(word, word)).replace("OUT/", f"{tmp_path}/") for word in command.split()]
    found, out, err = main(*arguments)
    assert (found, out, err.splitlines()[-1]) == (code, "", f"unmask: {said}")


def test_one_held_out_document(main: Main, tmp_path: Path) -> None:
    """It has no standard error: `null`, which is JSON, where NaN is not."""
    train, held_out = tmp_path / "train.txt", tmp_path / "held_out.txt"
    train.write_text("the cat sat on the mat\n" * 40)
    held_out.write_text("a dog sat on the log and saw the cat\n")
    small = ("--set", "model.num_layers=1", "--set", "model.hidden_size=32", "--set", "model.num_heads=2")
    kept = f'corpus.validation=["{held_out}"]'
    asked = ("pretrain", train, "--set", kept, "--out", tmp_path / "run", "--steps", 2, *small, "--json")
    code, out, _ = main(*asked)
    assert code == 0
    summary = json.loads(out)
    assert summary["validation_documents"] == 1
    assert summary["validation_loss_stderr"] is summary["validation_loss_interval"] is None
    assert "no standard error and no interval" in summary["validation_warning"]
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    for text in (repr(unmask.Run(tmp_path / "run", summary)), card, (tmp_path / "run" / "report.html").read_text()):
        assert summary["validation_warning"][1:] in text
    assert "0.000" not in card
    evaluations = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["documents"] == 1 for line in evaluations if line["kind"] == "evaluation")


def test_quiet_and_verbose(main: Main, corpus_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(corpus_file.read_bytes())
    (tmp_path / "texts" / "b.pdf").write_text("x")
    arguments = ("prepare", tmp_path / "texts", "--vocab-size", 200, "--workers", 1, "--out")
    code, out, err = main(*arguments, tmp_path / "plain")
    assert (code, "a document is a block" in err) == (0, True)
    caplog.clear()
    code, again, err = main(*arguments, tmp_path / "quiet", "-q")
    assert (code, err) == (0, "")
    assert again.replace("/quiet\n", "/plain\n") == out, "the result is the same"
    assert "passed over: 1 (.pdf)" in caplog.text, "warnings stay"
    code, _, err = main(*arguments, tmp_path / "told", "--verbose")
    assert (code, " INFO corpus: a document is a block" in err) == (0, True)
    code, _, err = main(*arguments, tmp_path / "both", "-q", "-v")
    assert (code, "--quiet and --verbose exclude each other" in err) == (2, True)


def test_texts_from_standard_input(main: Main, run: unmask.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    text = "The [MASK] loves the king."
    pipe(f"{text}\r\n".encode())
    assert main("fill", run.folder / "model", "-")[:2] == main("fill", run.folder / "model", text)[:2]
    pipe(f"{text}\n".encode())
    tokenizer = ("--tokenizer", run.folder / "model", "--strategy", "random")
    assert main("masks", "-", *tokenizer)[:2] == main("masks", text, *tokenizer)[:2]
    for content, message in ((b" \n", "standard input is empty"), (b"a\xff", "standard input is not UTF-8 (byte 1)")):
        pipe(content)
        code, _, err = main("masks", "-")
        assert (code, message in err) == (2, True)


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


def test_every_option_of_every_function_is_declared_once() -> None:
    """What is parsed from the sources is what the functions have, and every option has a help text."""
    for name, command in COMMANDS.items():
        module, _, path = command.function.partition(":")
        function = operator.attrgetter(path)(importlib.import_module(f"unmask.{module}"))
        declaration = read_declaration(command.function)
        names = [*(each.name for each in declaration.parameters), *declaration.channels]
        assert sorted(names) == sorted(inspect.signature(function).parameters), name
        assert all(each.help for each in declaration.parameters), name


def test_ray_may_stand_alone(monkeypatch: pytest.MonkeyPatch, main: Main, corpus_file: Path) -> None:
    seen: list[object] = []
    monkeypatch.setattr(cli, "_call", lambda function, options, goes_on: seen.append(options.get("ray")) or Result({}))
    for arguments in (("--ray",), ("--ray", "--workers", 2), ("--ray", "host:1")):
        assert main("prepare", corpus_file, "--out", "x", *arguments)[0] == 0
    assert seen == ["auto", "auto", "host:1"]


def test_a_mistake_is_reported_before_torch_is_loaded() -> None:
    for arguments in (("none.txt",), ("--strategy", "spam"), ("--stepz", "1")):
        program = (
            "import sys, unmask.commands.cli as cli\n"
            f"sys.argv = ['unmask', 'pretrain', '--out', 'x', *{arguments!r}]\n"
            "try:\n    cli.main()\nfinally:\n    print('torch' in sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "False\n"), done.stderr
