"""What the processes of a group do in tests, and what they tell of it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._dynamo.exc import InternalTorchDynamoError

from tests.model.on_gpu import tensor_operations
from unmask.commands import pretrain as pretraining
from unmask.commands import training_run
from unmask.commands.dry_run import forecast_run
from unmask.commands.recipe import load_recipe
from unmask.commands.training_run import TrainingRun
from unmask.core.errors import UnmaskError
from unmask.core.interruption import Interrupted
from unmask.masking.masker import MaskedRows, Masker
from unmask.model.fused import losses_of_part
from unmask.model.layers import run_block
from unmask.train import distributed as group_module
from unmask.train import loop
from unmask.train import optimizer as optimizers
from unmask.train.distributed import join_group
from unmask.train.loop import StepReport, train
from unmask.train.optimizer import FullSharding
from unmask.train.step import StepResult, training_step

SMALL = (
    "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.sequence_length=32",
    "training.batch_tokens=256", "training.precision=float32", "evaluation.times=2",
)  # fmt: skip


def pretrained(
    folder: Path, *, data: str, runs: dict[str, dict[str, Any]], answer: float | None = None
) -> dict[str, dict[str, Any]]:
    """Pretrains some models.

    Args:
        folder: A run's folder is `folder/NAME`; weights of each process go to `folder/NAME-NUMBER.safetensors`.
        data: Prepared shards.
        runs: Arguments of each, by name; `trouble`, `[KIND, STEP]`, is met by the second process there; `of` is the
            name of a run before, which this one goes on with. What is called `forecast` is not made: what is returned
            says what would be done.
        answer: Seconds within which processes must answer; None: as always.

    Returns:
        Of each run: `masks`: a digest a row, of each step; `losses`, `lengths`, `rates`, `micro_batches` of the steps;
        `weights`: their digest; `gathered`: types of the numbers that go around, where weights are shared out;
        `evaluations`; `ended`: the type and the text of the error that it ended with.
    """
    if answer is not None:
        group_module.ANSWER = group_module.GATHERING = timedelta(seconds=answer)
    return {
        name: _forecast(data, **arguments) if name.startswith("forecast") else _run(folder / name, data, **arguments)
        for name, arguments in runs.items()
    }


def _forecast(data: str, *, settings: list[str]) -> dict[str, Any]:
    recipe = load_recipe(options={"training.steps": 20}, overrides=(*SMALL, *settings))
    return forecast_run([data], recipe, join_group()).to_dict()


def _run(
    out: Path,
    data: str,
    *,
    of: str | None = None,
    settings: list[str],
    trouble: tuple[str, int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    out = out if of is None else out.parent / of
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
            if kind == "compiling":
                model = self.state.model
                model.encoder.compiled_block, model.head.compiled_losses = run_block, losses_of_part

    def noting(*given: Any, **named: Any) -> Iterator[StepReport]:
        fast = kind == "clock" and group.share.rank == 1
        for report in train(*given, **named, clock=lambda: time.monotonic() * (30 if fast else 1)):
            reports.append(report)
            yield report

    def troubled(*given: Any, step: int, **named: Any) -> StepResult:
        if step == trouble_step and group.share.rank == 1 and not met:
            met.append(step)
            _meet(kind, *given)
        return training_step(*given, step=step, **named)

    met: list[int] = []
    ended = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "Masker", Noting)
        patch.setattr(training_run, "train", noting)
        patch.setattr(pretraining, "TrainingRun", NotingRun)
        patch.setattr(loop, "training_step", troubled)
        if kind == "small":
            fits = 64 if group.share.rank == 1 else None
            patch.setattr(loop, "first_micro_tokens", lambda *given, **named: fits)
        if kind in ("compiling", "operations", "half"):
            tensor_operations(patch)
            patch.setattr("unmask.model.encoder.choose_attention", lambda *given, **named: "bias")
        if kind == "half":  # as on a GPU
            patch.setattr(
                optimizers, "FullSharding", lambda *given, **named: FullSharding(*given, dtype=torch.bfloat16)
            )
        try:
            pretraining.pretrain([data], out=out, settings=(*SMALL, *settings), **({"steps": 20} | more))
        except (Interrupted, UnmaskError, ValueError) as error:
            if not trouble or not made:
                raise
            ended = (type(error).__name__, str(error))
    state = made[0].state
    if ended is None:
        weights = {name: weight.clone() for name, weight in state.weights().items()}
    else:  # a process may be gone
        weights = {name: p.detach().clone() for name, p in state.model.named_parameters() if type(p) is nn.Parameter}
    save_file(weights, out.parent / f"{out.name}-{group.share.rank}.safetensors")
    sharding = state.optimizer.sharding
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] if group.is_first else []
    return {
        "masks": masks,
        "losses": [report.loss for report in reports],
        "lengths": [report.length for report in reports],
        "rates": [report.learning_rate for report in reports],
        "micro_batches": [report.micro_batches for report in reports],
        "weights": digest_of(*weights.values()),
        "gathered": sorted({str(each.dtype) for each in sharding.of_part or ()}) if sharding else [],
        "evaluations": [line for line in lines if line["kind"] == "evaluation"],
        "ended": ended,
    }


def _meet(kind: str, model: Any, optimizer: Any, *_: Any) -> None:
    """What happens in one step of one process; in the middle of a step, where its gradient is infinite or it fails."""
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "infinite":

        def infinite(norm: nn.Module, given: Any, out: Tensor) -> None:
            handle.remove()
            out.register_hook(lambda gradient: gradient * math.inf)

        handle = model.encoder.norm.register_forward_hook(infinite)
    elif kind in ("forward", "backward", "kill within", "hang within"):  # in a step's second part, within the model
        num_calls = count()

        def lacks_memory(*_: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        def fail(mlp: nn.Module, given: Any, out: Tensor) -> None:
            if next(num_calls) == 1:
                middle.remove()
                if kind.endswith(" within"):
                    _meet(kind.removesuffix(" within"), model, optimizer)
                elif kind == "forward":
                    lacks_memory()
                else:
                    out.register_hook(lacks_memory)

        middle = model.encoder.blocks[1].mlp.register_forward_hook(fail)
    else:
        errors = {
            "memory": torch.OutOfMemoryError("CUDA out of memory"),
            "compiling": InternalTorchDynamoError("no such kernel"),
            "other": ValueError("something else"),
        }
        begin = optimizer.begin_last_part

        def fails() -> None:
            optimizer.begin_last_part = begin
            raise errors[kind]

        optimizer.begin_last_part = fails


def _digests(masked: MaskedRows) -> list[str]:
    """Of each row, but for empty ones, which only stand in where a process has none."""
    rows = zip(masked.input_ids, masked.labels, masked.attention_mask, strict=True)
    return [digest_of(ids, labels) for ids, labels, attended in rows if attended.any()]


def digest_of(*tensors: Tensor) -> str:
    """Of their bytes."""
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()[:16]
