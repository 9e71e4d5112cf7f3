"""What users name and write stands in tables as it is, also where it looks like rich's markup."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import unmask
from tests.command_line import Main
from unmask.commands.cli.show import drawn, show
from unmask.commands.compare import best_trials, by_pair, by_recipe
from unmask.commands.evaluate import Evaluation
from unmask.core.results import Sheet
from unmask.tasks.fill import Candidate, Filled

ODD = ("[i]", "[/b]", "[red]king", ":smile:", "\\[x]", "end\\")
ESTIMATE = {"mean": 1.0, "interval": None}
PAIR = {"first": "a", "second": "b", "better": None, **ESTIMATE}
DECIDING = {"exploratory": False, "confidence": 0.97}
FIGURES = {"loss": 1.0, "accuracy": 0.5, "predicted_tokens": 3}
TABLES: list[Callable[[str], Any]] = [
    lambda text: drawn(next(iter(Filled(((Candidate(text, 7, 0.5),),), ()).shown()))),
    lambda text: drawn(
        Evaluation({"breakdown": {"part_of_speech": {text: FIGURES}}, "by_rate": {"0.15": FIGURES}})._breakdown()
    ),
    lambda text: drawn(by_recipe({"loss": {"recipes": {text: ESTIMATE}}})),
    lambda text: drawn(by_recipe({text: {"recipes": {"a": ESTIMATE}}})),
    lambda text: drawn(by_pair({"loss": {**DECIDING, "differences": [{**PAIR, "first": text}]}})),
    lambda text: drawn(by_pair({text: {**DECIDING, "differences": [PAIR]}})),
    lambda text: drawn(best_trials([{"number": 1, "loss": 1.0, "parameters": {"rate": text}}])),
    lambda text: drawn(best_trials([{"number": 1, "loss": 1.0, "parameters": {text: "x"}}])),
]


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("make", TABLES)
def test_cells(make: Callable[[str], Any], text: str) -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(make(text))
    assert text in out.getvalue()


def rows_of(sheet: Sheet) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=120).print(drawn(sheet))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_a_recipe_without_a_figure() -> None:
    by_figure = {"loss": {"recipes": {"a": ESTIMATE, "b": ESTIMATE}}, "task_error": {"recipes": {"a": ESTIMATE}}}
    rows = rows_of(by_recipe(by_figure))
    assert rows == ["recipe loss (95 %, over seeds) task error (95 %, over seeds)", "a 1.000 1.000", "b 1.000 -"]


def test_differences_of_pairs() -> None:
    shown = {"first": "span", "second": "random", "mean": -1.0, "interval": (-1.5, -0.5), "better": "span"}
    by_figure = {
        "loss": {**DECIDING, "differences": [shown, PAIR]},
        "task_error": {**DECIDING, "confidence": 0.9925, "differences": [PAIR]},
    }
    assert rows_of(by_pair(by_figure)) == [
        "pair figure difference over seeds interval verdict",
        "span - random loss -1.000 (-1.500 to -0.500) at 97 % span is better",
        "a - b loss 1.000 at 97 % no difference shown",
        "a - b task error 1.000 at 99.25 % no difference shown",
    ]
    marked = {"differences": [PAIR], "exploratory": True, "confidence": 0.99}
    assert rows_of(by_pair({"loss": marked}))[1:] == ["a - b loss 1.000 at 99 % exploratory: no difference shown"]


@pytest.mark.parametrize("text", ODD)
def test_metrics_of_fine_tuning(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(unmask.FineTuned(tmp_path, {"seeds": [0], "metrics": {text: 0.5}, "model": "model"}), as_json=False)
    assert text in capsys.readouterr().out


def test_phenomena_that_look_like_markup(main: Main, run: unmask.Run, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    pair = {"sentence_good": "The cat sees the dog.", "sentence_bad": "The cat the dog sees."}
    file.write_text("".join(json.dumps(pair | {"linguistics_term": text}) + "\n" for text in ODD))
    code, out, err = main("score", run.folder / "model", file)
    assert code == 0, err
    for text in ODD:
        assert text in out
