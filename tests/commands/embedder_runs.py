"""What the processes of a group do in tests of embedders, and what they tell of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import Tensor

import unmask
from tests.train.group_runs import digest_of
from unmask.core.errors import UnmaskError
from unmask.core.interruption import Interrupted
from unmask.train import trainer as loop
from unmask.train.callbacks import StepReport
from unmask.train.distributed import join_group
from unmask.train.step import Figures, TrainState, training_step


def embedded(folder: Path, *, base: str, corpus: str, runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Makes some embedders.

    Args:
        folder: A run's folder is `folder/NAME`; weights of each process go to `folder/NAME-NUMBER.safetensors`.
        base: The model that they begin with.
        corpus: Their text.
        runs: Arguments of each, by name; at the step `stop_at` the second process gets SIGTERM.

    Returns:
        Of each run: `rows`: a digest of each, of each step; `losses`, `mlm`, `micro_batches` of the steps; `pairs`:
        predicted in each; `weights`: their digest; `evaluations`; `summary`; `ended`: the type and the text of the
        error that it ended with.
    """
    found = {}
    for name, arguments in runs.items():
        found[name] = _run(folder / name, model=base, corpus=[corpus], **arguments)
    return found


def _run(out: Path, *, stop_at: int | None = None, **asked: Any) -> dict[str, Any]:
    rows_of: dict[int, list[str]] = {}
    reports: list[StepReport] = []
    states: list[Any] = []
    group = join_group()

    class Reports(unmask.Callback):
        def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
            reports.append(report)
            states[:] = [trainer.state]

    def noted_step(state: TrainState, settings: Any, rows: Any, masked: Any, **named: Any) -> Figures:
        step = state.step + 1
        rows_of[step] = [
            digest_of(ids, labels)
            for ids, labels, segments in zip(masked.input_ids, masked.labels, rows.segment_ids, strict=True)
            if (segments >= 0).any()
        ]
        if step == stop_at and group.share.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(state, settings, rows, masked, **named)

    ended = summary = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "training_step", noted_step)
        try:
            summary = unmask.embedder(
                asked.pop("model"), asked.pop("corpus"), out=out, callbacks=[Reports()], **asked
            ).summary
        except (Interrupted, UnmaskError, ValueError) as error:
            ended = (type(error).__name__, str(error))
    weights: dict[str, Tensor] = {}
    if states:
        weights = {name: p.detach().clone() for name, p in states[0].model.named_parameters()}
        save_file(weights, out.parent / f"{out.name}-{group.share.rank}.safetensors")
    return {
        "rows": list(rows_of.values()),
        "losses": [report.loss for report in reports],
        "mlm": [report.objectives["masked_tokens"].loss for report in reports if report.objectives],
        "micro_batches": [report.micro_batches for report in reports],
        "pairs": [report.predicted_tokens for report in reports],
        "weights": digest_of(*weights.values()),
        "evaluations": states[0].history if states else [],
        "summary": summary,
        "ended": ended,
    }


def told_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
