"""The processes that train one model together, in torch's words.

`torchrun` starts them, or SLURM, or whatever made a process group of torch's before (Ray Train, a notebook's launcher).
Each takes its share of the rows of every step; gradients are summed by DistributedDataParallel, and every process
computes the same update:

    rank 0   rows 0..3 ──▶ gradient ─┐            ┌─▶ update
    rank 1   rows 4..7 ──▶ gradient ─┴─ all-reduce ┴─▶ update

A few numbers a step (counts of targets, the clock, signals) go by gloo from host to host, so that no device is waited
for. Where a process fails, the others end as well and `torchrun` starts all of them anew: a resume is exact.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import re
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from unmask.core.errors import EndedElsewhereError, RunError, UnmaskError, says_out_of_memory
from unmask.core.interruption import waiting
from unmask.data.rows import Share

log = logging.getLogger(__name__)
Value = TypeVar("Value")
TIMEOUT = timedelta(minutes=10)  # that a process may take between two messages of a step; it may compile meanwhile
PATIENCE = timedelta(days=7)  # while rank 0 prepares data, evaluates or writes
_LOGGED_EVERY = 900.0  # seconds of waiting
_SLICE = timedelta(seconds=0.2)  # in which signals are looked at while waiting


class GroupError(UnmaskError):
    """Another process has ended or does not answer, or torch failed amid a step of several processes."""


class Group:
    """The processes, as one of them sees the others. Every method is called by all, in the same order."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self.share = Share(rank, world_size)  # the same, as what a process takes of a batch
        self.is_main = rank == 0  # which writes and shows what all have done
        self._hosts = None if world_size == 1 else dist.new_group(backend="gloo", timeout=PATIENCE)

    def all_gather(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of every process, by rank; as many of each."""
        if self._hosts is None:
            return [list(values)]
        own = torch.tensor(list(values), dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        self._wait(lambda: dist.all_gather(gathered, own, group=self._hosts, async_op=True), TIMEOUT)
        return [each.tolist() for each in gathered]

    def broadcast_object(self, value: Value) -> Value:
        """Rank 0's value, which JSON must be able to hold. The others wait for it as long as it takes."""
        if self._hosts is None:
            return value
        content = json.dumps(value).encode() if self.is_main else b""
        size = torch.tensor([len(content)])
        self._wait(lambda: dist.broadcast(size, 0, group=self._hosts, async_op=True), PATIENCE)
        held = torch.frombuffer(bytearray(content or bytes(int(size))), dtype=torch.uint8)
        self._wait(lambda: dist.broadcast(held, 0, group=self._hosts, async_op=True), TIMEOUT)
        received: Value = json.loads(bytes(held.tolist()))
        return received

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """A tensor's sum over all processes, where it is."""
        if self._hosts is None:
            return tensor
        total = tensor.clone()
        self._wait(lambda: dist.all_reduce(total, async_op=True), TIMEOUT, on_host=not total.is_cuda)
        return total

    def all_gather_rows(self, rows_EK: Tensor) -> Tensor:
        """Rows [E, ...] of every process, one rank's behind another's; their numbers may differ."""
        if self._hosts is None:
            return rows_EK
        sizes = [int(size) for (size,) in self.all_gather([len(rows_EK)])]
        dtype = torch.uint8 if rows_EK.dtype == torch.bool else rows_EK.dtype
        padded = rows_EK.new_zeros((max(sizes), *rows_EK.shape[1:]), dtype=dtype)
        padded[: len(rows_EK)] = rows_EK
        gathered = [torch.empty_like(padded) for _ in sizes]
        self._wait(lambda: dist.all_gather(gathered, padded, async_op=True), TIMEOUT, on_host=not padded.is_cuda)
        return torch.cat([each[:size] for each, size in zip(gathered, sizes, strict=True)]).to(rows_EK.dtype)

    def _wait(self, start: Callable[[], Any], timeout: timedelta, *, on_host: bool = True) -> None:
        """Waits in slices, since Python handles no SIGTERM while it waits within torch. A GPU waits by itself."""
        with self.answered():
            work = start()
            begin = logged = time.monotonic()
            deadline = begin + timeout.total_seconds()
            while on_host and not work.is_completed() and (now := time.monotonic()) < deadline:
                if now - logged > _LOGGED_EVERY:
                    logged = now
                    log.warning("process %d has waited %.0f minutes for process 0", self.rank, (now - begin) / 60)
                with suppress(RuntimeError):  # of the slice, in which it may end after all; its own error comes below
                    work.wait(_SLICE)
            if on_host and not work.is_completed():
                raise RuntimeError(f"no answer within {timeout.total_seconds():.0f} seconds")
            work.wait()

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Turns errors of torch's backends into `GroupError`. A RuntimeError of the model itself is taken for one, too:
        both are of the same class."""
        try:
            with waiting():
                yield
        except RuntimeError as error:
            of_backend = type(error) is RuntimeError or isinstance(error, dist.DistError)
            if self.world_size == 1 or not of_backend or says_out_of_memory(error):
                raise
            raise GroupError(
                f"process {self.rank} of {self.world_size} (counted from 0) stops: {_first_sentence(error)}; if "
                "another process has ended, its own message says why. Continue with --resume"
            ) from error


ALONE = Group()
_joined: tuple[Any, Group] | None = None  # torch's group, and ours


def join_group() -> Group:
    """The group that this process was started in: torch's where there is one, that of `torchrun`, or of SLURM's `srun`.

    One of several processes on a machine takes the GPU of its number there. Other versions are refused.
    """
    global _joined  # noqa: PLW0603  (groups of torch's are made once in a process)
    if not dist.is_initialized():
        environment = dict(os.environ)
        # `srun` may have started several tasks without torchrun; else each would train a model into the same folder.
        num_tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))  # set by srun alone, not within a batch script
        if "RANK" not in environment and num_tasks > 1:
            if not {"MASTER_ADDR", "MASTER_PORT"} <= set(environment):
                raise GroupError(
                    f"srun started {num_tasks} tasks without an address to meet at; start torchrun once per machine, "
                    "or set MASTER_ADDR to the first one and MASTER_PORT to a free port (docs/how-to/scaling.md)"
                )
            names = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}
            environment |= {name: environment[key] for name, key in names.items()}
        if int(environment.get("WORLD_SIZE", "1")) == 1 or "RANK" not in environment:
            if (num_tasks := int(environment.get("SLURM_NTASKS", "1"))) > 1:  # a batch script, or `srun` of one task
                log.warning("this is one of %d SLURM tasks, but it trains alone; start all with `srun`", num_tasks)
            return ALONE
        if torch.cuda.is_available() and (num_gpus := torch.cuda.device_count()) > 1:  # else all take what they see
            if (number := int(environment.get("LOCAL_RANK", "0"))) >= num_gpus:
                raise GroupError(f"process {number} of this machine has no GPU; there are {num_gpus}: start no more")
            torch.cuda.set_device(number)
        try:
            store: Store
            store, rank, size = next(rendezvous("env://", int(environment["RANK"]), int(environment["WORLD_SIZE"])))
            if "TORCHELASTIC_RUN_ID" in environment:
                store = PrefixStore(agreed_name(store, rank, size), store)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
            atexit.register(leave_group)
        except (RuntimeError, ValueError) as error:
            raise GroupError(f"the other processes cannot be reached ({_first_sentence(error)})") from error
    if dist.get_world_size() == 1:
        return ALONE
    if _joined is None or _joined[0] is not dist.group.WORLD:
        _joined = dist.group.WORLD, Group(dist.get_rank(), dist.get_world_size())
        versions = {"version of unmask": sys.modules["unmask"].__version__, "version of torch": torch.__version__}
        check_same(_joined[1], versions)
    return _joined[1]


def leave_group() -> None:
    """Ends gloo's threads, once nothing holds their groups: one that frees a tensor while Python ends aborts it."""
    global _joined  # noqa: PLW0603
    if _joined is not None:
        _joined[1]._hosts = None
        _joined = None
    dist.destroy_process_group()


OF_RUN = "recipe, or other data,"  # what a training's fingerprint is of


def check_same(group: Group, facts: Mapping[str, str]) -> None:
    """Compares what all processes must have alike, by name, and names what another process has otherwise."""
    digests = [int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) for text in facts.values()]  # exact in float64
    first, *others = group.all_gather(digests)
    for rank, theirs in enumerate(others, start=1):
        for name, one, other in zip(facts, first, theirs, strict=True):
            if one != other:
                if not group.is_main:
                    raise EndedElsewhereError("see rank 0 for the cause")
                raise RunError(f"process {rank} has another {name} than process 0; start all with the same")


def on_rank_zero(group: Group, work: Callable[[], Value]) -> Value:
    """What rank 0 finds or does alone, for all; JSON must be able to hold it. If it fails, it says why, and all end."""
    outcome: tuple[bool, Any] = (False, None)
    try:
        if group.is_main:
            outcome = (True, work())
    finally:
        went_well, value = group.broadcast_object(outcome)
    if not went_well:
        raise EndedElsewhereError("see rank 0 for the cause")
    return outcome[1] if group.is_main else value


def on_every_rank(group: Group, work: Callable[[], Value]) -> Value:
    """Does the same in all processes. Where one fails, all end; where rank 0 fails, too, it alone says why."""
    error: UnmaskError | None = None
    try:
        value = work()
    except UnmaskError as raised:
        error = raised
    failed = [bool(failure) for (failure,) in group.all_gather([float(error is not None)])]
    if error is not None and (group.is_main or not failed[0]):
        raise error
    if any(failed):
        raise EndedElsewhereError("see another process for the cause") from error
    return value


def rank_zero_first(group: Group, work: Callable[[], Value]) -> Value:
    """Has rank 0 do something that writes, and then each of the others, which finds it done."""
    done: list[Value] = []
    on_rank_zero(group, lambda: done.append(work()))
    return done[0] if group.is_main else work()


# ----------------------------------------
# Gradients: DistributedDataParallel around the network. Losses are divided by the targets of all processes, so
# gradients are summed, not averaged.


class _Work(nn.ModuleList):
    """A module whose forward pass is any work with the model in it: DDP only sees calls of the module that it wraps."""

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def _sum(_, bucket):  # type: ignore[no-untyped-def]
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


Synced = Callable[[Callable[[], Tensor]], Tensor]
"""Runs the forward pass of a step's last part, whose backward pass then sums the gradients over all processes."""


def synced_over(model: nn.Module, group: Group) -> Synced:
    """Wraps a model. Other parts of a step are run without it, and add to the gradients of their process alone. They
    may be unequal in number and in what they reach: a process may have no row, or no target of some objective."""
    if group.world_size == 1:
        return lambda work: work()
    warnings.filterwarnings("ignore", "find_unused_parameters=True was specified", UserWarning)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)  # 2.11 has no other
    parallel = DistributedDataParallel(_Work([model]), broadcast_buffers=False, find_unused_parameters=True)
    parallel.register_comm_hook(None, _sum)
    return parallel


# ----------------------------------------
# Where the processes of `torchrun` find each other, also when it has started them anew.
#
# torchrun keeps one store of keys over all its starts, in which the processes of a new start would find the addresses
# of those that are gone. So every start agrees on a name, under which its keys stand:
#
#     rank 0   start = name                      name/1/heard = word
#     rank 1            start? name/1 = word                        name/1/heard is its own word: that name holds
#
# How often torchrun says that it has started them is no such name: it may count differently on different machines.

_MEETING_SECONDS = 1800.0  # as long as torch waits for a key
_EVERY_SECONDS = 0.05


def agreed_name(store: Store, rank: int, size: int) -> str:
    """A name that all processes have, and no process of an earlier start had."""
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("unmask/start", own)
        for other in range(1, size):
            key = f"unmask/{own}/{other}"
            store.set(f"{key}/heard", store.get(key).decode())
        return own
    begin = time.monotonic()
    while time.monotonic() - begin < _MEETING_SECONDS:
        start = store.get("unmask/start").decode()  # that of an earlier start, until rank 0 has come
        key = f"unmask/{start}/{rank}"
        store.set(key, own)
        if store.check([f"{key}/heard"]) and store.get(f"{key}/heard").decode() == own:
            return start
        time.sleep(_EVERY_SECONDS)
    raise RuntimeError("rank 0 does not answer")


def _first_sentence(error: Exception) -> str:
    """What a backend says, without the place in its source, and without what it adds."""
    line = str(error).splitlines()[0]
    return re.sub(r"^\[[^]]*\] *", "", line).split(". ")[0]
