"""The table of strategies: its intervals by hand, and one of its cells."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import strategies as script


def entry(strategy: str, seed: int, loss: float, sst2: float = 0.8, **others: Any) -> dict[str, Any]:
    figures = {"loss": loss, "sst2": sst2, "wnut17": 0.0, "ud_english_ewt": 0.9}
    plan = {
        "steps": 300, "refresh_steps": 50, "megabytes": 6.0, "vocab_size": 8192, "overrides": [],
        "tuning": {"sst2": {"epochs": 2, "batch_size": 32, "learning_rate": 5e-4, "sentences": 3000}},
    }  # fmt: skip
    here = {"date": "2026-01-02", "processor": "A processor", "cores": 2, "versions": {"torch": "2.0"}}
    line = {"corpus": "novels", "strategy": strategy, "seed": seed, "figures": figures, "plan": plan}
    return {**line, "tokens": 1_228_000, **here, **others}


def three_seeds(*differences: float) -> list[dict[str, Any]]:
    """`span` differs from `random` by this much; `random` itself varies much more than the differences do."""
    seeds = enumerate(zip((5.0, 6.0, 4.0), differences, strict=True))
    return [line for n, (loss, d) in seeds for line in (entry("span", n, loss + d), entry("random", n, loss))]


def test_differences_are_paired_and_corrected_for_twelve() -> None:
    def quantile(probability: float) -> float:
        """Student's t with two degrees of freedom has a quantile in closed form."""
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))

    values = script.by_corpus(three_seeds(0.1, 0.2, 0.3))["novels"]
    mean, half, is_shown = script.difference(values, "span", "loss")
    expected = quantile(1 - 0.05 / 24) * 0.1 / math.sqrt(3)  # the differences' deviation is 0.1
    assert mean == pytest.approx(0.2)
    assert half == pytest.approx(expected, rel=1e-4)
    assert not is_shown, "0.2 is less than half the interval"
    # 0.45 ± 0.248 leaves 0 out as the only comparison, and does not as one of twelve
    values = script.by_corpus(three_seeds(0.35, 0.45, 0.55))["novels"]
    assert quantile(0.975) * 0.1 / math.sqrt(3) < 0.45
    assert not script.difference(values, "span", "loss")[2]
    one = script.by_corpus([entry("random", 0, 5.0), entry("span", 0, 5.5), entry("span", 1, 9.0)])["novels"]
    assert script.difference(one, "span", "loss") == (0.5, None, False), "only seeds of both are compared"
    assert script.difference(one, "pmi", "loss") is None


def test_a_killed_process_fails_its_own_cell_alone(tmp_path: Path) -> None:
    cells = {"killed": "__import__('os')._exit(9)", "next": "{'loss': 1.0}"}
    assert script.run_cells(eval, cells, tmp_path / "lines.jsonl", jobs=1, figures_of=dict) == 1
    assert (tmp_path / "lines.jsonl").read_text() == '{"loss": 1.0}\n'


@pytest.mark.usefixtures("cells_here")
def test_cells(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny files of all tasks; one cell fails."""
    monkeypatch.setattr(script, "version", lambda package: f"of {package}")
    texts = {"sst2": "a fine film\t1\na bad film\t0\n" * 8, "wnut17": "Ann\tB-person\nsings\tO\n\n" * 8}
    texts["ud_english_ewt"] = "1\tAnn\t_\tPROPN\t_\t_\t_\t_\t_\t_\n2\tsings\t_\tVERB\t_\t_\t_\t_\t_\t_\n\n" * 8
    for name, text in texts.items():
        (tmp_path / "tasks" / name).mkdir(parents=True)
        for file in script.TASKS[name].files:
            content = gzip.compress(text.encode()) if file.endswith(".gz") else text.encode()
            (tmp_path / "tasks" / name / file).write_bytes(content)
    small = ("model.num_layers=1", "model.hidden_size=64", "model.num_heads=1", "training.batch_tokens=256")
    files, out, results = script.task_files(tmp_path / "tasks", tmp_path), tmp_path / "cell", tmp_path / "lines.jsonl"
    overrides = ("masking.refresh_steps=1", *small)
    work = script.Work("novels", "adaptive", 1, 2, overrides, str(data_folder), "", files, str(out))
    works = {"lost": work._replace(seed=2, data=str(tmp_path / "nowhere")), "found": work}
    assert script.run_cells(script.measure, works, results, jobs=1, figures_of=lambda line: line["figures"]) == 1
    (measured,) = map(json.loads, results.read_text().splitlines())
    assert (measured["strategy"], measured["seed"]) == ("adaptive", 1)
    assert list(measured["figures"]) == ["loss", "sst2", "wnut17", "ud_english_ewt"]
    assert 0.0 < measured["figures"]["loss"] < 2 * math.log(200)
    assert measured["tokens"] > 0
    assert not out.exists()
