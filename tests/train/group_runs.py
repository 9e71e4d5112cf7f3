"""Functions that processes of a group run in tests, and their results."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

import unmask
from unmask.commands import masking_tables
from unmask.commands import pretrain as pretraining
from unmask.commands.training_run import TrainingRun
from unmask.core import interruption
from unmask.core.errors import UnmaskError
from unmask.core.interruption import Interrupted
from unmask.masking.masker import MaskedRows, Masker
from unmask.model import fused, layers
from unmask.train import distributed, hardware, trainer
from unmask.train.callbacks import StepReport
from unmask.train.distributed import join_group
from unmask.train.step import Figures, TrainState, training_step

STEPS = 12
SMALL = (
    "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.sequence_length=32",
    "training.batch_tokens=256", "training.precision=float32", "evaluation.times=2",
)  # fmt: skip


def pretrained(
    folder: Path,
    *,
    data: str,
    runs: dict[str, dict[str, Any]],
    answer: float | None = None,
    stuck: float = interruption.STUCK_SECONDS,
) -> dict[str, dict[str, Any]]:
    """Pretrains models on prepared shards, by their names and arguments; returns each run's record, and how it `ended`.

    A run's folder is `folder/NAME`; weights of each process go to `folder/NAME-RANK.safetensors`. `trouble`, `[KIND,
    STEP]`, is met by the second process. From that step on, processes must answer within `answer` seconds; they end
    within `stuck` of a signal.
    """
    interruption.STUCK_SECONDS = stuck
    return {name: _run(folder / name, data, answer=answer, **arguments) for name, arguments in runs.items()}


def left(folder: Path) -> dict[str, list[int]]:
    """Threads of this process in a group, and after it has left it."""
    threads = []
    for act in (join_group, distributed.leave_group):
        act()
        names = [name.read_text() for name in Path("/proc/self/task").glob("*/comm")]
        threads.append(sum("gloo" in name for name in names))
    return {"threads": threads}


def gathered_on_hosts(folder: Path) -> list[int]:
    """Rows of each process's host, gathered by a group that torch has made for GPUs alone, as Ray Train does."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("cuda:gloo", init_method=f"file://{folder}/of-gpus", rank=rank, world_size=size)
    rows: list[int] = join_group().all_gather_rows(torch.full((rank + 1,), rank)).tolist()
    return rows


def _run(
    out: Path,
    data: str,
    *,
    settings: list[str],
    samples: bool = False,
    trouble: tuple[str, int] | None = None,
    answer: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    masks: list[list[str]] = []
    reports: list[StepReport] = []
    made: list[TrainingRun] = []
    group = join_group()
    kind, trouble_step = trouble or ("", 0)

    class Noting(Masker):
        def __call__(self, *given: Any, **named: Any) -> MaskedRows:
            masked = super().__call__(*given, **named)
            masks.append(_digests(masked))
            return masked

    class NotingRun(TrainingRun):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)
            masks.clear()  # that of the row that is masked before training
            if kind == "data" and group.rank == 1:
                self.fingerprint += "of other data"
            if kind == "clock":  # by how often it is read; the second one's runs thirty times as fast
                self.trainer.clock = itertools.count(step=0.6 if group.rank else 0.02).__next__

    class Reports(unmask.Callback):
        def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
            reports.append(report)

    def troubled(state: TrainState, *given: Any, **named: Any) -> Figures:
        step = state.step + 1
        if step == trouble_step and answer is not None:
            distributed.TIMEOUT = timedelta(seconds=answer)
        if step == trouble_step and group.rank == 1 and not met:
            met.append(step)
            _meet(kind, state.model)
        return training_step(state, *given, **named)

    met: list[int] = []
    ended = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_tables, "Masker", Noting)
        for constant in (layers, "NUM_FREQUENT"), (fused, "NUM_SAMPLED"):  # a small vocabulary can be sampled, too
            patch.setattr(*constant, 40)
        if samples:
            patch.setattr(hardware, "_LARGE_VOCABULARY", 0)
        patch.setattr(pretraining, "TrainingRun", NotingRun)
        patch.setattr(trainer, "training_step", troubled)
        try:
            budget = {"steps": STEPS} | more
            pretraining.pretrain([data], out=out, settings=(*SMALL, *settings), callbacks=[Reports()], **budget)
        except (Interrupted, UnmaskError, ValueError) as error:
            if not trouble or not made:
                raise
            ended = (type(error).__name__, str(error))
    weights = {name: parameter.detach().clone() for name, parameter in made[0].model.named_parameters()}
    save_file(weights, out.parent / f"{out.name}-{group.rank}.safetensors")
    metrics = out / "metrics.jsonl"
    has_lines = group.is_main and metrics.is_file()
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if has_lines else []
    return {
        "masks": masks,
        "losses": [report.loss for report in reports],
        "lengths": [report.length for report in reports],
        "rates": [report.learning_rate for report in reports],
        "micro_batches": [report.micro_batches for report in reports],
        "weights": digest_of(*weights.values()),
        "evaluations": [line for line in lines if line["kind"] == "evaluation"],
        "ended": ended,
    }


def _meet(kind: str, model: Any) -> None:
    """Trouble in one step of one process: a signal, a stop, an infinite gradient, or an error within the step."""
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    elif kind == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "infinite":

        def infinite(norm: nn.Module, given: Any, out: Tensor) -> None:
            handle.remove()
            out.register_hook(lambda gradient: gradient * math.inf)

        handle = model.encoder.norm.register_forward_hook(infinite)
    else:
        errors = {"memory": torch.OutOfMemoryError("CUDA out of memory"), "other": ValueError("something else")}

        def fails(norm: nn.Module, given: Any, out: Tensor) -> None:
            handle.remove()
            raise errors[kind]

        handle = model.encoder.norm.register_forward_hook(fails)


def _digests(masked: MaskedRows) -> list[str]:
    """Hashes of rows, without the empty rows of processes that have none."""
    rows = zip(masked.input_ids, masked.labels, masked.attention_mask, strict=True)
    return [digest_of(ids, labels) for ids, labels, attended in rows if attended.any()]


def digest_of(*tensors: Tensor) -> str:
    """A hash of the tensors' bytes."""
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()[:16]
