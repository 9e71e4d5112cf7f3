"""The processes that train one model together, in torch's words.

`torchrun` starts them, or SLURM, or another launcher that has made torch's process group (Ray Train, a notebook's).
Each takes its share of the rows of every step. DistributedDataParallel sums gradients, and every process computes the
same update:

    rank 0   rows 0..3 ──▶ gradient ─┐            ┌─▶ update
    rank 1   rows 4..7 ──▶ gradient ─┴─ all-reduce ┴─▶ update

A few numbers a step (counts of targets, the clock, signals) go by gloo from host to host, so that nothing waits for a
device. If a process fails, the others end as well, and `torchrun` restarts all of them: a resume is exact.
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
from unmask.core.launcher import launched
from unmask.core.results import Reporter, SilentReporter, usual_reporter
from unmask.data.rows import Share

log = logging.getLogger(__name__)
Value = TypeVar("Value")
TIMEOUT = timedelta(minutes=10)  # longest time between two messages of a step; a process may compile meanwhile
PATIENCE = timedelta(days=7)  # longest wait while rank 0 prepares data, evaluates or writes
_SLICE = timedelta(seconds=0.2)  # a wait is interrupted this often to handle signals


class GroupError(UnmaskError):
    """Another process has ended or does not answer, or torch failed in a step of several processes."""


class Group:
    """The process group, as one process sees it. All processes must call the same methods in the same order."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self.share = Share(rank, world_size)  # this process's share of a batch
        self.is_main = rank == 0  # rank 0 writes files and shows progress for all
        self._hosts = None if world_size == 1 else dist.new_group(backend="gloo", timeout=PATIENCE)

    def all_gather(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of every process, by rank; all must give the same count."""
        if self._hosts is None:
            return [list(values)]
        own = torch.tensor(list(values), dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        self._wait(lambda: dist.all_gather(gathered, own, group=self._hosts, async_op=True), TIMEOUT)
        return [each.tolist() for each in gathered]

    def broadcast_object(self, value: Value) -> Value:
        """Rank 0's value, which must be JSON-serialisable. The others wait for it up to `PATIENCE`."""
        if self._hosts is None:
            return value
        content = json.dumps(value).encode() if self.is_main else b""
        size = torch.tensor([len(content)])
        self._wait(lambda: dist.broadcast(size, 0, group=self._hosts, async_op=True), PATIENCE)
        buffer = torch.frombuffer(bytearray(content or bytes(int(size))), dtype=torch.uint8)
        self._wait(lambda: dist.broadcast(buffer, 0, group=self._hosts, async_op=True), TIMEOUT)
        return json.loads(bytes(buffer.tolist()))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """A tensor's sum over all processes, on its device."""
        if self._hosts is None:
            return tensor
        total = tensor.clone()
        self._wait(lambda: dist.all_reduce(total, async_op=True), TIMEOUT, on_host=not total.is_cuda)
        return total

    def all_gather_rows(self, rows_EK: Tensor) -> Tensor:
        """Rows [E, ...] of every process, in the order of ranks; their numbers may differ."""
        if self._hosts is None:
            return rows_EK
        sizes = [int(size) for (size,) in self.all_gather([len(rows_EK)])]
        dtype = torch.uint8 if rows_EK.dtype == torch.bool else rows_EK.dtype
        padded = rows_EK.new_zeros((max(sizes), *rows_EK.shape[1:]), dtype=dtype)
        padded[: len(rows_EK)] = rows_EK
        gathered = [torch.empty_like(padded) for _ in sizes]
        on_host = not padded.is_cuda
        group = self._hosts if on_host else None  # the default group may be of NCCL only, as under Ray Train
        self._wait(lambda: dist.all_gather(gathered, padded, group=group, async_op=True), TIMEOUT, on_host=on_host)
        return torch.cat([each[:size] for each, size in zip(gathered, sizes, strict=True)]).to(rows_EK.dtype)

    def _wait(self, start: Callable[[], Any], timeout: timedelta, *, on_host: bool = True) -> None:
        """Waits in slices, since Python handles no SIGTERM while it waits within torch. A GPU waits on its own."""
        with self.answered():
            work = start()
            deadline = time.monotonic() + timeout.total_seconds()
            while on_host and not work.is_completed() and time.monotonic() < deadline:
                with suppress(RuntimeError):  # the slice's timeout; an error of the work itself is raised below
                    work.wait(_SLICE)
            if on_host and not work.is_completed():
                raise RuntimeError(f"no answer within {timeout.total_seconds():.0f} seconds")
            work.wait()

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Turns errors of torch's backends into `GroupError`. A plain RuntimeError of the model is turned, too, since
        backends raise the same class."""
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
    """The group that this process was started in: torch's process group if there is one, else that of `torchrun` or of
    SLURM's `srun`. Each process of a machine takes the GPU of its local rank. All must have the same versions of unmask
    and torch.
    """
    global _joined  # noqa: PLW0603  (torch makes its groups once in a process)
    if not dist.is_initialized():
        environment, place = os.environ, launched()
        if not place:
            if (num_tasks := int(environment.get("SLURM_NTASKS", "1"))) > 1:  # a batch script, or `srun` of one task
                log.warning("this is one of %d SLURM tasks, but it trains alone; start all with `srun`", num_tasks)
            return ALONE
        # Tasks of `srun`: alone, each would train a model into the same folder.
        if "RANK" not in environment and not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            raise GroupError(
                f"srun started {place['WORLD_SIZE']} tasks without an address to meet at; start torchrun once per "
                "machine, or set MASTER_ADDR to the first one and MASTER_PORT to a free port (docs/how-to/scaling.md)"
            )
        if torch.cuda.is_available() and (num_gpus := torch.cuda.device_count()) > 1:  # else take the only visible one
            if (number := int(place.get("LOCAL_RANK", "0"))) >= num_gpus:
                raise GroupError(f"process {number} of this machine has no GPU; there are {num_gpus}: start no more")
            torch.cuda.set_device(number)
        try:
            store: Store
            store, rank, size = next(rendezvous("env://", int(place["RANK"]), int(place["WORLD_SIZE"])))
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


def join_with(reporter: Reporter | None) -> tuple[Group, Reporter]:
    """Joins the group; also returns the reporter, or the usual one, on rank 0, and a silent one on the others."""
    group = join_group()
    return group, (reporter or usual_reporter()) if group.is_main else SilentReporter()


def leave_group() -> None:
    """Ends gloo's threads by releasing their groups: a thread that frees a tensor while Python exits would abort it."""
    global _joined  # noqa: PLW0603
    if _joined is not None:
        _joined[1]._hosts = None
        _joined = None
    dist.destroy_process_group()


OF_RUN = "recipe, or other data,"  # what a training's fingerprint covers, as named in errors


def check_same(group: Group, facts: Mapping[str, str]) -> None:
    """Checks that all processes have the same facts, and names the first that differs in an error."""
    digests = [int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) for text in facts.values()]  # exact in float64
    first, *others = group.all_gather(digests)
    for rank, theirs in enumerate(others, start=1):
        for name, one, other in zip(facts, first, theirs, strict=True):
            if one != other:
                if not group.is_main:
                    raise EndedElsewhereError("see rank 0 for the cause")
                raise RunError(f"process {rank} has another {name} than process 0; start all with the same")


def on_rank_zero(group: Group, work: Callable[[], Value]) -> Value:
    """Runs `work` on rank 0 alone, and returns its JSON-serialisable result on all ranks. If it fails, rank 0 raises
    the cause, and the others end."""
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
    """Runs `work` on all ranks. If any fails, all end; if rank 0 fails too, only rank 0 raises the cause."""
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
    """Runs `work`, which writes files, on rank 0, and then on the others, which find the files there."""
    done: list[Value] = []
    on_rank_zero(group, lambda: done.append(work()))
    return done[0] if group.is_main else work()


# ----------------------------------------
# Gradients: DistributedDataParallel around the network. Losses are divided by the targets of all processes, so
# gradients are summed, not averaged.


class _Work(nn.ModuleList):
    """A module whose forward pass runs any work with the model: DDP only sees calls of the module that it wraps."""

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def _sum(_, bucket):  # type: ignore[no-untyped-def]
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


Synced = Callable[[Callable[[], Tensor]], Tensor]
"""Runs the forward pass of a step's last part. Its backward pass then sums the gradients over all processes."""


def synced_over(model: nn.Module, group: Group) -> Synced:
    """Wraps a model for DDP. Other parts of a step run without the wrapper, and only add to their process's gradients.
    Processes may differ in the number of parts and in the parameters used: one may have no rows, or no targets of an
    objective."""
    if group.world_size == 1:
        return lambda work: work()
    warnings.filterwarnings("ignore", "find_unused_parameters=True was specified", UserWarning)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)  # torch 2.11 has no other way
    parallel = DistributedDataParallel(_Work([model]), broadcast_buffers=False, find_unused_parameters=True)
    parallel.register_comm_hook(None, _sum)
    return parallel


# ----------------------------------------
# How the processes of `torchrun` find each other, also after a restart.
#
# torchrun keeps one key store over all restarts, in which new processes would find the addresses of ended ones. So the
# processes of each start agree on a name, the prefix of their keys:
#
#     rank 0   start = name                      name/1/heard = word
#     rank 1            start? name/1 = word                        name/1/heard equals its own word: the name is valid
#
# torchrun's restart count cannot be the name: it may differ between machines.

_MEETING_SECONDS = 1800.0  # torch also waits this long for a key
_EVERY_SECONDS = 0.05


def agreed_name(store: Store, rank: int, size: int) -> str:
    """A name that all processes of this start share, and that no earlier start had."""
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("unmask/start", own)
        for other in range(1, size):
            key = f"unmask/{own}/{other}"
            store.set(f"{key}/heard", store.get(key).decode())
        return own
    begin = time.monotonic()
    while time.monotonic() - begin < _MEETING_SECONDS:
        start = store.get("unmask/start").decode()  # may be an earlier start's, until rank 0 has set it
        key = f"unmask/{start}/{rank}"
        store.set(key, own)
        if store.check([f"{key}/heard"]) and store.get(f"{key}/heard").decode() == own:
            return start
        time.sleep(_EVERY_SECONDS)
    raise RuntimeError("rank 0 does not answer")


def _first_sentence(error: Exception) -> str:
    """The first sentence of a backend's error, without the location in its source."""
    line = str(error).splitlines()[0]
    return re.sub(r"^\[[^]]*\] *", "", line).split(". ")[0]
