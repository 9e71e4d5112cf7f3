"""Progress: on a terminal a bar, elsewhere a line now and then."""

from __future__ import annotations

import io
import itertools
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import unmask
from tests.command_line import Main
from unmask.commands.cli import progress_bars as progress
from unmask.commands.cli.progress_bars import ConsoleBar, ConsoleReporter
from unmask.commands.cli.show import note, show
from unmask.commands.reporting import PredictedToken
from unmask.commands.score import score as score_pairs
from unmask.core.results import Progress, Readable, Sheet, Shown, Styled
from unmask.train.loop import StepReport
from unmask.train.step import Figures


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which ten seconds go by whenever it is looked at."""
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], seconds: None) -> None:
    with ConsoleBar("reading") as bar:  # looked at: 0 and 10, when this task begins
        bar.notify(Progress("hidden tokens", 0, 400))  # 20 (a new task), 30, 40 (a line: 40 s since 0)
        bar.notify(Progress("hidden tokens", 100, 400))  # 50, 60 (a line)
        bar.notify(Progress("hidden tokens", 410, 400))  # 70, 80 (a line)
        bar.notify(Progress("other tokens", 0, 0))  # 90 (a new task), 100, 110 (a line)
    assert capsys.readouterr().err.splitlines() == [
        "hidden tokens 0%: 0 of 400 tokens, 0 tokens/s",
        "hidden tokens 25%: 100 of 400 tokens, 3 tokens/s, 1:30 left",
        "hidden tokens 100%: 410 of 400 tokens, 8 tokens/s",
        "other tokens 0%: 0 of 0 tokens, 0 tokens/s",
    ]


def test_what_is_counted_in_bytes_and_characters(capsys: pytest.CaptureFixture[str], seconds: None) -> None:
    with ConsoleBar("reading") as bar:
        bar.notify(Progress("tokenizing", 5_000_000, 20_000_000, "bytes"))  # ten seconds after its begin
        bar.notify(Progress("embedding", 5_000_000, None, "characters"))
        bar.notify(Progress("counting", 0, None))
    assert capsys.readouterr().err.splitlines() == [
        "tokenizing 25%: 5.0 MB, 0.5 MB/s, 30 s left",
        "embedding: 5.0 M characters, 0.5 M characters/s",
        "counting: 0 tokens, 0 tokens/s",
    ]


def step(number: int, seconds: float, progress: float, loss: float) -> StepReport:
    """A step of 1,000 tokens."""
    return StepReport(
        step=number,
        progress=progress,
        epoch=0,
        figures=Figures(number, {"masked": 100}, torch.tensor([loss, 1.0], dtype=torch.float64)),
        predicted_tokens=100,
        tokens=1_000,
        learning_rate=0.01,
        length=64,
        micro_batches=1,
        seconds=seconds,
    )


def test_runs_in_turn_have_a_loss_a_speed_and_a_time_each(capsys: pytest.CaptureFixture[str], seconds: None) -> None:
    with ConsoleReporter() as reporter:
        for loss in (6.0, 3.0):
            reporter.begin()
            for number in range(1, 4):
                reporter.step(step(number, number * 2.0, number / 4, loss))
            reporter.notify(Progress("tokens at 15%", 100, 400))
    first, second = (run for run in capsys.readouterr().err.split("tokens at 15%")[:2])
    assert "step 3, loss 6.000, 500 tokens/s, " in first
    assert "step 3, loss 3.000, 500 tokens/s, " in second
    times = [[line.rsplit(", ", 1)[1] for line in run.splitlines() if "step" in line] for run in (first, second)]
    assert times[0] == times[1]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")  # on a dumb one no bar is drawn
    monkeypatch.setattr(progress, "stderr_console", lambda: Console(file=screen, force_terminal=True, width=120))
    with ConsoleBar("reading") as bar:
        bar.notify(Progress("hidden tokens", 100, 400))
        [task] = bar.progress.tasks
        assert (task.description, task.completed, task.total) == ("hidden tokens", 0.25, 1.0)
    assert "100 of 400 tokens" in screen.getvalue()


def test_a_finished_run_of_an_earlier_version(
    run: unmask.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], main: Main
) -> None:
    """Its summary has no intervals, and nothing that came later: what it has is shown."""
    shutil.copytree(run.folder, tmp_path / "run")
    file = tmp_path / "run" / "summary.json"
    later = ("validation_loss_interval", "bits_per_token_byte_interval", "validation_warning", "objectives", "domains")
    old = {key: value for key, value in json.loads(file.read_text()).items() if key not in later}
    assert len(old) < len(run.summary)
    old["bits_per_byte"] = old.pop("bits_per_token_byte")
    file.write_text(json.dumps(old))
    code, out, errors = main("pretrain", "--out", tmp_path / "run", "--resume")
    assert code == 0
    assert f"held-out loss  {old['validation_loss']:.3f} nats per predicted token" in out
    assert f"bits per byte  {old['bits_per_byte']:.3f} of hidden tokens" in out
    assert "±" not in out + errors


def test_score_tells_its_progress(main: Main, run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "order.jsonl"
    pair = {"sentence_good": "The cat sees the dog at sea.", "sentence_bad": "The cat the dog sees sea at."}
    file.write_text(json.dumps(pair) + "\n")
    total = sum(len(tokens.input_ids) for tokens in run.model.tokenizer.encode_corpus(list(pair.values())))
    told: list[Any] = []
    expected = score_pairs(run.model, file, notify=told.append)
    assert told == [Progress("each token hidden in turn", total, total, "tokens")]
    assert expected == score_pairs(run.model, file)

    shown: list[Any] = []
    monkeypatch.setattr(ConsoleBar, "notify", lambda _, progress: shown.append(progress))
    code, out, _ = main("score", run.folder / "model", file, "--json")
    assert (code, shown) == (0, told)
    assert json.loads(out) == expected.to_dict()


def test_texts_do_nothing_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files and words of a text may hold sequences that a terminal obeys, or markup of rich's."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    bad = "\x1b]0;title\x07\x9b2J[/red][bold]"
    with ConsoleBar(bad) as bar:
        bar.note(bad)
        bar.show(0.5, bad)
        bar.progress.refresh()
    with ConsoleReporter() as reporter:
        reporter.predictions(1, [[PredictedToken(bad), PredictedToken(bad, predicted=bad)]])
    show(Shouting(bad), as_json=False)
    note(bad)
    logging.getLogger("unmask").warning("%s", bad)
    found = screen.getvalue()
    assert found.count("\\x1b]0;title\\x07\\x9b2J[/red][bold]") >= 9
    assert "\x1b]" not in found
    assert "\x9b" not in found


class Shouting(Readable):
    """Shows a text in every form."""

    def __init__(self, text: str) -> None:
        self.text = text

    def shown(self) -> Iterator[Shown]:
        yield self.text
        yield Sheet((self.text,), [(Styled(self.text, "red"),)], title=self.text)
        yield Styled(self.text, "dim")
