"""What a process sends while a model trains, counted as torch is told to send it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train.group_runs import SMALL
from unmask.commands import pretrain as pretraining
from unmask.commands.training_run import Watch
from unmask.data.rows import Share
from unmask.train import distributed as gradients
from unmask.train import distributed as group_module
from unmask.train import loop
from unmask.train.distributed import Processes
from unmask.train.step import StepResult, training_step

# Which argument is what a process sends: its own part of what is added up, or, where it is gathered, all of it.
SENT_BY = {
    torch.ops.c10d.reduce_: 0,
    torch.ops.c10d.broadcast_: 0,
    torch.ops.c10d.allreduce_: 0,
    torch.ops.c10d.allgather_: 1,
    torch.ops.c10d._allgather_base_: 0,
    torch.ops.c10d._reduce_scatter_base_: 1,
    torch.ops.c10d.alltoall_base_: 1,
}
LAST = 4  # step, which is not made; the one before is counted


class _Messages(TorchDispatchMode):
    """Counts calls and bytes of what goes between processes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            sent = args[SENT_BY[func.overloadpacket]]
            self.calls[str(func.overloadpacket)] += 1
            self.sent[str(func.overloadpacket)] += sum(t.nbytes for t in (sent if isinstance(sent, list) else [sent]))
        return func(*args, **(kwargs or {}))


class _First(Processes):
    """The first of many processes, the others of which are not there: what goes around is its own."""

    def __init__(self) -> None:
        self.share = Share(dist.get_rank(), dist.get_world_size())
        self._words = self._patient = self.of_weights = dist.group.WORLD


def counted(
    folder: Path, *, data: str, settings: list[str], bucket_bytes: int, processes: list[int]
) -> dict[str, dict[str, Any]]:
    """Pretrains for some steps with each way of sharing, and counts what this process sends in one of them.

    Args:
        folder: Of the runs.
        data: Prepared shards.
        settings: Of the runs.
        bucket_bytes: In which gradients travel.
        processes: This process takes itself for the first of so many, one number after the other; empty: there are
            several.

    Returns:
        By `SHARDING-PROCESSES`: `calls`: how often each operation of torch's was called; `sent`: their bytes; `config`:
        of the model; `parts`: of the step.
    """
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "BUCKET_BYTES", bucket_bytes)
        for number in processes or [dist.get_world_size()]:
            if processes:
                dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
                patch.setattr(group_module, "_joined", _First())
                patch.setattr(Watch, "evaluate", lambda *given, **named: False)  # of rows that others have
            for sharding in ("owners", "full"):
                name = f"{sharding}-{number}"
                found[name] = _counted(folder / name, data, [*SMALL, *settings, f"training.sharding={sharding}"])
            if processes:
                dist.destroy_process_group()
    return found


def _counted(out: Path, data: str, settings: list[str]) -> dict[str, Any]:
    messages = _Messages()
    parts, models, found = [], [], []

    def noting(model: Any, *given: Any, step: int, **named: Any) -> StepResult:
        found.append((messages.calls.copy(), messages.sent.copy()))
        models.append(model)
        if step == LAST:
            raise ValueError("that is enough")
        result = training_step(model, *given, step=step, **named)
        parts.append(result.micro_batches)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "training_step", noting)
        with messages, pytest.raises(ValueError, match="that is enough"):
            pretraining.pretrain([data], out=out, settings=settings, steps=20)
    calls, sent = (dict(after - before) for before, after in zip(*found[-2:], strict=True))
    config = models[0].config.model_dump(mode="json")
    return {"calls": calls, "sent": sent, "config": config, "parts": parts[-1]}
