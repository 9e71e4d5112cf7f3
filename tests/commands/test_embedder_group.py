"""Embedders of several processes: the wrong answers of a step are those of all, so that they do what one does."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import unmask
from tests.commands.test_embedder import FAST, base, corpus
from tests.processes import in_processes
from tests.train.group_runs import digest_of
from tests.train.test_group import distance
from unmask.train import trainer as loop
from unmask.train.callbacks import StepReport
from unmask.train.distributed import join_group
from unmask.train.step import Figures, TrainState, training_step

__all__ = ["base", "corpus"]  # fixtures
STEPS = 20
PARTS = FAST | {
    "embedder.micro_batch_tokens": 64,
    "embedder.hard_negatives.after": 0.5,
    "embedder.dimensions": [16],
    "embedder.patience": 9,
    "embedder.learning_rate": 1e-3,
}
SPARSE = FAST | {f"embedder.sparse.{name}_weight": 1e-3 for name in ("first", "second")}
SPARSE |= {"embedder.temperature": 1.0, "embedder.micro_batch_tokens": 128}
RUNS = {
    "parts": PARTS,  # in rows one at a time, of which the processes have unequal numbers
    "large": FAST | {"embedder.batch_size": 32},
    "few rows": FAST | {"embedder.batch_size": 3},
    "sparse": SPARSE,
}
Runs = dict[str, dict[str, Any]]


def embedded(folder: Path, *, base: str, corpus: str) -> Runs:
    """Makes the embedders in one of the processes: what each step of a run had, and what the run came to."""
    return {name: embed_in(folder / name, base, corpus, settings) for name, settings in RUNS.items()}


def embed_in(out: Path, base: str, corpus: str, settings: dict[str, Any]) -> dict[str, Any]:
    rows_of: dict[int, list[str]] = {}
    reports: list[StepReport] = []
    states: list[TrainState] = []

    class Reports(unmask.Callback):
        def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
            reports.append(report)
            states[:] = [trainer.state]

    def noted_step(state: TrainState, settings: Any, rows: Any, masked: Any, **named: Any) -> Figures:
        rows_of[state.step + 1] = [
            digest_of(ids, labels)
            for ids, labels, segments in zip(masked.input_ids, masked.labels, rows.segment_ids, strict=True)
            if (segments >= 0).any()
        ]
        return training_step(state, settings, rows, masked, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "training_step", noted_step)
        made = unmask.embedder(base, [corpus], out=out, steps=STEPS, settings=settings, callbacks=[Reports()])
    weights = {name: p.detach().clone() for name, p in states[0].model.named_parameters()}
    save_file(weights, out.parent / f"{out.name}-{join_group().rank}.safetensors")
    return {
        "rows": list(rows_of.values()),
        "losses": [report.loss for report in reports],
        "mlm": [report.objectives["masked_tokens"].loss for report in reports if report.objectives],
        "micro_batches": [report.micro_batches for report in reports],
        "pairs": [report.predicted_tokens for report in reports],
        "weights": digest_of(*weights.values()),
        "evaluations": states[0].history,
        "summary": made.summary,
    }


@pytest.fixture(scope="module")
def processes(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs, list[Runs]]:
    """The folder of the runs, and what one process alone and each of two did."""
    folder, function = tmp_path_factory.mktemp("runs"), "tests.commands.test_embedder_group:embedded"
    options = {"base": str(base), "corpus": str(corpus)}
    (alone,) = in_processes(1, function, folder / "1", options)
    return folder, alone, in_processes(2, function, folder / "2", options)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one(processes: tuple[Path, Runs, list[Runs]], name: str) -> None:
    folder, (alone, *both) = processes[0], (each[name] for each in (processes[1], *processes[2]))
    assert [list(chain(*rows)) for rows in zip(*(each["rows"] for each in both), strict=True)] == alone["rows"]
    assert len(alone["losses"]) == STEPS
    assert alone["losses"][0] != pytest.approx(alone["losses"][-1], abs=1e-2)
    for number, each in enumerate(both):
        assert each["losses"] == pytest.approx(alone["losses"], abs=2e-6)
        assert each["mlm"] == pytest.approx(alone["mlm"], abs=2e-6)
        assert each["pairs"] == alone["pairs"]
        for key in ("weights", "evaluations", "summary"):
            assert each[key] == both[0][key]
        weights = folder / "1" / f"{name}-0.safetensors", folder / "2" / f"{name}-{number}.safetensors"
        assert distance(*weights) < 1e-3
    for line, expected in zip(both[0]["evaluations"], alone["evaluations"], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    if name == "parts":
        first, second = (each["micro_batches"] for each in both)
        assert max(first) > 1
        assert any(a != b for a, b in zip(first, second, strict=True))
        assert (folder / "2" / name / "negatives.safetensors").is_file()
    assert any(not rows for rows in both[0]["rows"]) == (name == "few rows")
