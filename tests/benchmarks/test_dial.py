"""benchmarks/dial.py: what is measured, and the law that is fitted to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dial
import pytest

import unmask
from unmask.commands.sizing import LAW, Law

RESULTS = Path(__file__).parents[2] / "docs/measured/dial.jsonl"


def entry(parameters: int, tokens: int, loss: float) -> dict[str, object]:
    text = {"text": "novels", "unigram_entropy": 6.5, "neighbours": 0.65, "train_tokens": 10_000_000}
    return {**text, "width": 128, "block_parameters": parameters, "tokens": tokens, "loss": loss}


def test_cells_are_written_short() -> None:
    usual, *others = dial.cells("novels", "2x128:400,800 4x256:300@1024/0.007", seed=3)
    assert (usual.steps, usual.batch_tokens, usual.learning_rate, usual.seed) == (400, 4096, 0.0141, 3)
    assert [(cell.layers, cell.width, cell.steps) for cell in others] == [(2, 128, 800), (4, 256, 300)]
    assert (others[1].batch_tokens, others[1].learning_rate) == (1024, 0.007)
    with pytest.raises(SystemExit, match="2x128"):
        list(dial.cells("novels", "2x128", seed=0))


def test_a_law_is_found_again() -> None:
    law = Law(size=0.05, size_power=LAW.size_power, tokens=0.5, tokens_power=0.2, repeats=4.0)
    entries = [
        entry(parameters, tokens, dial.TextFigures(6.5, 0.65, 1.0, 10_000_000).loss(parameters, tokens, law))
        for parameters in (300_000, 2_000_000, 8_000_000)
        for tokens in (400_000, 1_600_000, 6_400_000, 60_000_000)
    ]
    assert tuple(dial.fit(entries)) == pytest.approx(tuple(law), rel=1e-3)


def test_of_several_rates_and_batches_the_best_counts() -> None:
    runs = [entry(279_000, tokens, loss) for tokens, loss in ((400_000, 5.0), (403_000, 4.8), (900_000, 4.6))]
    assert [best["loss"] for best in dial.best_of(runs)] == [4.8, 4.6]


def test_the_law_in_use_is_that_of_the_measurements() -> None:
    measured = [run for run in dial.best_of(dial.read_lines(RESULTS)) if run["text"] in dial.FITTED]
    assert len(measured) > 5
    assert tuple(dial.fit(measured)) == pytest.approx(tuple(LAW), rel=0.01)


@pytest.mark.usefixtures("cells_here")
def test_a_cell_is_trained(run: unmask.Run, run_script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "dial.jsonl"
    monkeypatch.setattr(dial.torch, "set_num_threads", lambda number: None)  # of this process
    words = ("measure", run.folder / "data", "text", "--cells", "2x128:3@256", "--results", results)
    run_script(dial, *words)
    monkeypatch.setattr(dial, "train", lambda *_: pytest.fail("the cell is there"))
    run_script(dial, *words)
    (reached,) = map(json.loads, results.read_text().splitlines())
    assert (reached["text"], reached["steps"], reached["width"]) == ("text", 3, 128)
    assert 0 < reached["loss"] < 2 * reached["unigram_entropy"]
    assert reached["tokens"] > 3 * 200


def test_a_choice_is_compared_with_the_sizes_beside_it() -> None:
    runs = [
        {"text": text, "minutes": 1.0, "size": size, "loss": loss, "is_chosen": is_chosen}
        for text, size, loss, is_chosen in (
            ("a", "2x128", 4.0, True),
            ("b", "2x128", 4.0, True),
            ("b", "3x192", 3.2, False),
            ("a", "3x192", 4.4, False),
        )
    ]
    _, _, first, second = dial.choice_table(runs)
    assert first == "| a | 1 | 2x128 | 2x128 4.000, 3x192 4.400 | 0.0% |"
    assert second.endswith("| 25.0% |")
