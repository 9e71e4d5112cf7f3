"""The bar of `evaluate` and `score`: on a terminal a bar, elsewhere a line now and then."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import unmask
from unmask.cli import progress, score, token_bar
from unmask.cli.token_bar import TokenBar
from unmask.inference.score import score as score_pairs


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which ten seconds go by whenever it is looked at."""
    clock = itertools.count(0.0, 10.0)
    for module in (progress, token_bar):
        monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], seconds: None) -> None:
    with TokenBar("reading") as bar:  # looked at: 0 and 10, when this task begins
        bar.notify("hidden tokens", 0, 400)  # 20 (a new task), 30, 40 (a line: 40 s since 0)
        bar.notify("hidden tokens", 100, 400)  # 50, 60 (a line)
        bar.notify("hidden tokens", 410, 400)  # 70, 80 (a line)
        bar.notify("other tokens", 0, 0)  # 90 (a new task), 100, 110 (a line)
    assert capsys.readouterr().err.splitlines() == [
        "hidden tokens 0%: 0 of 400 tokens, 0 tokens/s",
        "hidden tokens 25%: 100 of 400 tokens, 3 tokens/s, 1:30 left",
        "hidden tokens 100%: 410 of 400 tokens, 8 tokens/s",
        "other tokens 0%: 0 of 0 tokens, 0 tokens/s",
    ]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "console", lambda: Console(file=screen, force_terminal=True, width=120))
    with TokenBar("reading") as bar:
        bar.notify("hidden tokens", 100, 400)
        [task] = bar.progress.tasks
        assert (task.description, task.completed, task.total) == ("hidden tokens", 0.25, 1.0)
    assert "100 of 400 tokens" in screen.getvalue()


def test_score_tells_its_progress(run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "order.jsonl"
    pair = {"sentence_good": "The cat sees the dog at sea.", "sentence_bad": "The cat the dog sees sea at."}
    file.write_text(json.dumps(pair) + "\n")
    total = sum(len(tokens.input_ids) for tokens in run.model.tokenizer.encode_corpus(list(pair.values())))
    told: list[Any] = []
    expected = score_pairs(run.model, file, notify=lambda *done: told.append(done))
    assert told == [("each token hidden in turn", total, total)]
    assert expected == score_pairs(run.model, file)

    shown: list[Any] = []
    monkeypatch.setattr(TokenBar, "notify", lambda _, *done: shown.append(done))
    found = score.run_score(str(run.folder / "model"), file, form="plain", pairs_per_paradigm=None)
    assert shown == told
    assert found == expected
