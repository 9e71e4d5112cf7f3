"""The processes that train one model together, and what they say to each other.

One process is the case that the code is read as; `torchrun` makes several of them, or whatever made a process group of
torch's before (Ray Train, a notebook's launcher). Each takes its share of the rows of every step:

    process 0   rows 0..3 ──▶ gradient ─┐                              ┌─▶ new weights
    process 1   rows 4..7 ──▶ gradient ─┴─ added, and applied by owners ─┴─▶ new weights

Words, a few numbers a step, go by gloo from host to host, also where gradients go from GPU to GPU: nobody waits for a
device to be told something. What is decided (too little memory, a signal, the clock) is decided from such words, so
that all decide alike and nobody waits for who has left.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from unmask.core.errors import EndedElsewhereError, UnmaskError
from unmask.data.rows import WHOLE, Share

# ----------------------------------------
# Where the processes of `torchrun` find each other, also when it has started them anew.
#
# torchrun keeps one store of keys over all its starts, in which the processes of a new start would find the addresses
# of
# those that are gone. So every start agrees on a name, under which its keys stand:
#
#     first   start = name                      name/1/heard = word
#     second            start? name/1 = word                        name/1/heard is its own word: that name holds
#
# How often torchrun says that it has started them is no such name: it may count differently on different machines.

PATIENCE_SECONDS = 1800.0  # as long as torch waits for a key
_EVERY_SECONDS = 0.05


def store_of_this_start() -> tuple[Store, int, int]:
    """The store of keys, this process's rank and the number of processes.

    Raises:
        RuntimeError, ValueError: As torch calls it when the others are not found.
    """
    store, rank, size = next(rendezvous("env://"))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        store = PrefixStore(agreed_name(store, rank, size), store)
    return store, rank, size


def agreed_name(store: Store, rank: int, size: int) -> str:
    """A name that all processes have, and no process of an earlier start had.

    Raises:
        RuntimeError: Another process does not come within the time that the store waits for a key.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("unmask/start", own)
        for other in range(1, size):
            key = f"unmask/{own}/{other}"
            store.set(f"{key}/heard", store.get(key).decode())
        return own
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE_SECONDS:
        start = store.get("unmask/start").decode()  # that of an earlier start, until the first process has come
        key = f"unmask/{start}/{rank}"
        store.set(key, own)
        if store.check([f"{key}/heard"]) and store.get(f"{key}/heard").decode() == own:
            return start
        time.sleep(_EVERY_SECONDS)
    raise RuntimeError("the first process does not answer")


Value = TypeVar("Value")

ANSWER = timedelta(seconds=50)  # that another process may take between two words of a step
GATHERING = timedelta(minutes=5)  # that it may be at work, or compile a loop, before it gives its part of the weights
PATIENCE = timedelta(days=7)  # while the first one prepares data; whoever dies is noticed at once nevertheless


class GroupError(UnmaskError):
    """Another process has ended, or does not answer."""


class Group(Protocol):
    """The processes, as one of them sees the others. Whatever is called is called by all, in the same order.

    Attributes:
        share: This process's place, and how many there are.
        of_weights: Torch's group in which weights that are shared out go around; None: there is one process.
    """

    share: Share

    @property
    def of_weights(self) -> dist.ProcessGroup | None:
        """See above."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and shows what all have done."""

    def told(self, values: Sequence[float], *, patient: bool = False) -> list[list[float]]:
        """What every process says, in their order.

        Args:
            values: What this one says; as many numbers as the others.
            patient: Whether the others may take longer than usual to say theirs (they compile, say).

        Raises:
            GroupError: Another process has ended, or does not answer.
        """

    def of_first(self, value: Value) -> Value:
        """What the first process has: anything that JSON can say. The others wait for it, however long.

        Raises:
            GroupError: It has ended.
        """

    def summed(self, tensor: Tensor) -> Tensor:
        """A tensor's sum over all processes, where it is."""

    def joined(self, tensor_N: Tensor, *, patient: bool = False) -> Tensor:
        """Tensors of every process, of unequal lengths, one after the other."""

    def gather(self, every: Sequence[Tensor], own: Tensor) -> None:
        """Puts what every process has, as much each, into tensors of the same shape, in their order."""

    def reduce(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        """Begins to add a tensor up, into that of one process; what is returned waits for it."""

    def spread(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        """Begins to copy one process's tensor into that of all; what is returned waits for it."""

    def gather_into(self, whole_N: Tensor, own_P: Tensor) -> None:
        """Puts what every process has, as much each, into one tensor, in their order."""

    def scatter_sum(self, own_P: Tensor, whole_N: Tensor) -> None:
        """Adds a tensor up, and gives each process its part of the sum, as much each, in their order."""

    def deal(self, tensor_N: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Gives each process its part of a tensor, and has what they give, in their order.

        Args:
            tensor_N: The parts for all processes, one after the other.
            given: How much each is given.
            taken: How much each gives.
        """


class Alone:
    """One process."""

    share = WHOLE
    is_first = True
    of_weights: dist.ProcessGroup | None = None

    def told(self, values: Sequence[float], *, patient: bool = False) -> list[list[float]]:
        """What was given."""
        return [list(values)]

    def of_first(self, value: Value) -> Value:
        """What was given."""
        return value

    def summed(self, tensor: Tensor) -> Tensor:
        """What was given."""
        return tensor

    def joined(self, tensor_N: Tensor, *, patient: bool = False) -> Tensor:
        """What was given."""
        return tensor_N

    def gather(self, every: Sequence[Tensor], own: Tensor) -> None:
        """A copy."""
        every[0].copy_(own)

    def reduce(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        """Nothing is to be done."""
        return _done

    def spread(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        """Nothing is to be done."""
        return _done

    def gather_into(self, whole_N: Tensor, own_P: Tensor) -> None:
        """A copy."""
        whole_N.copy_(own_P)

    def scatter_sum(self, own_P: Tensor, whole_N: Tensor) -> None:
        """A copy."""
        own_P.copy_(whole_N)

    def deal(self, tensor_N: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """What was given."""
        return tensor_N


def _done() -> None:
    pass


ALONE = Alone()


class Processes:
    """Several processes of a group of torch's that has been initialised.

    Words have groups of their own, by gloo: one whose members must answer soon, and one with patience. So have weights
    that are shared out, with patience for what is computed between two of them.

    Attributes:
        share, of_weights: See `Group`.
    """

    def __init__(self) -> None:
        self.share = Share(dist.get_rank(), dist.get_world_size())
        self._words = dist.new_group(backend="gloo", timeout=ANSWER)
        self._patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.of_weights: dist.ProcessGroup | None = dist.new_group(timeout=GATHERING)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and shows what all have done."""
        return self.share.rank == 0

    def told(self, values: Sequence[float], *, patient: bool = False) -> list[list[float]]:
        """See `Group.told`."""
        own = torch.tensor(list(values), dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(self.share.world_size)]
        with self._answered():
            dist.all_gather(every, own, group=self._patient if patient else self._words)
        return [each.tolist() for each in every]

    def of_first(self, value: Value) -> Value:
        """See `Group.of_first`."""
        content = json.dumps(value).encode() if self.is_first else b""
        size = torch.tensor([len(content)])
        with self._answered():
            dist.broadcast(size, 0, group=self._patient)
            found = torch.zeros(int(size), dtype=torch.uint8)
            if self.is_first:
                found.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            dist.broadcast(found, 0, group=self._patient)
        result: Value = json.loads(bytes(found.tolist()))
        return result

    def summed(self, tensor: Tensor) -> Tensor:
        """See `Group.summed`."""
        total = tensor.clone()
        with self._answered():
            dist.all_reduce(total)
        return total

    def joined(self, tensor_N: Tensor, *, patient: bool = False) -> Tensor:
        """See `Group.joined`."""
        sizes = [int(size) for (size,) in self.told([len(tensor_N)], patient=patient)]
        longest = tensor_N.new_zeros(max(sizes), dtype=torch.uint8 if tensor_N.dtype == torch.bool else tensor_N.dtype)
        longest[: len(tensor_N)] = tensor_N
        every = [torch.empty_like(longest) for _ in sizes]
        self.gather(every, longest)
        return torch.cat([each[:size] for each, size in zip(every, sizes, strict=True)]).to(tensor_N.dtype)

    def gather(self, every: Sequence[Tensor], own: Tensor) -> None:
        """See `Group.gather`."""
        with self._answered():
            dist.all_gather(list(every), own)

    def reduce(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        """See `Group.reduce`."""
        return self._later(dist.reduce(tensor, owner, async_op=True))

    def spread(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        """See `Group.spread`."""
        return self._later(dist.broadcast(tensor, owner, async_op=True))

    def gather_into(self, whole_N: Tensor, own_P: Tensor) -> None:
        """See `Group.gather_into`."""
        with self._answered():
            dist.all_gather_single(whole_N, own_P, group=self.of_weights)

    def scatter_sum(self, own_P: Tensor, whole_N: Tensor) -> None:
        """See `Group.scatter_sum`."""
        with self._answered():
            dist.reduce_scatter_single(own_P, whole_N, group=self.of_weights)

    def deal(self, tensor_N: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """See `Group.deal`."""
        found_N = tensor_N.new_empty(sum(taken))
        with self._answered():
            dist.all_to_all_single(found_N, tensor_N, list(taken), list(given), group=self.of_weights)
        return found_N

    def _later(self, work: Any) -> Callable[[], object]:
        def wait() -> None:
            with self._answered():
                work.wait()

        return wait

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # as torch calls what its backends say
            reason = _first_sentence(error)
            raise GroupError(
                f"process {self.share.rank} of {self.share.world_size} (counted from 0) ends, since another has ended "
                f"or does not answer ({reason}); what that one said tells why. Go on with --resume"
            ) from error


def join_group() -> Group:
    """The group that this process was started in: torch's where there is one, or that of `torchrun`; else it is alone.

    A process that is one of several on a machine takes the GPU of its number there.

    Raises:
        GroupError: The other processes are not found.
    """
    if not dist.is_available():
        return ALONE
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return ALONE
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        try:
            store, rank, size = store_of_this_start()
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            atexit.register(dist.destroy_process_group)
        except (RuntimeError, ValueError) as error:
            reason = _first_sentence(error)
            raise GroupError(f"the other processes that torchrun speaks of are not found ({reason})") from error
    if dist.get_world_size() == 1:
        return ALONE
    global _joined  # noqa: PLW0603  (groups of torch's are made once in a process)
    if _joined is None:
        _joined = Processes()
    return _joined


_joined: Processes | None = None


def _first_sentence(error: Exception) -> str:
    """What a backend says, without the place in its source, and without what it adds."""
    line = str(error).splitlines()[0]
    return re.sub(r"^\[[^]]*\] *", "", line).split(". ")[0]


def by_first(group: Group, work: Callable[[], Value]) -> Value:
    """What the first process finds or does alone, for all of them.

    Args:
        group: The processes.
        work: Gives something that JSON can say.

    Raises:
        EndedElsewhereError: The first could not do it, and says why.
    """
    if not group.is_first:
        went_well, value = group.of_first((False, None))
        if not went_well:
            raise EndedElsewhereError("the first process says why")
        return value  # type: ignore[return-value]
    try:
        value = work()
    except BaseException:
        group.of_first((False, None))
        raise
    group.of_first((True, value))
    return value


def alike(group: Group, work: Callable[[], Value]) -> Value:
    """Does the same in all processes. Where the first fails, too, it alone says why.

    Raises:
        EndedElsewhereError: Another process could not do it, and says why.
    """
    try:
        value = work()
    except UnmaskError as error:
        first_failed, *_ = group.told([1.0], patient=True)
        if group.is_first or not first_failed[0]:
            raise
        raise EndedElsewhereError("the first process says why") from error
    if any(failed for (failed,) in group.told([0.0], patient=True)):
        raise EndedElsewhereError("another process says why")
    return value


def first_before_others(group: Group, work: Callable[[], Value]) -> Value:
    """Has the first process do something that writes, and then each of the others, who finds it done.

    Raises:
        EndedElsewhereError: The first could not do it, and says why.
    """
    done: list[Value] = []
    by_first(group, lambda: done.append(work()))
    return done[0] if group.is_first else work()


# ----------------------------------------
# Gradients of several processes, added up for the owner of each parameter, who applies them and gives weights back.
#
# Every parameter is owned by one process, which alone keeps the optimizer's memory of it and does the optimizer's work
# on
# it. Gradients go there once a step, in buckets, each as soon as the last backward pass has made all that is in it:
#
#     backward   layer 12   layer 11   layer 10 ...
#     buckets         [ to owner 0 ][ to owner 1 ][ to owner 0 ] ...  ──▶ update ──▶ weights, the same way back
#
# Buckets go in one order in every process, and always all of them: a process in which the step failed sends zeros for
# the
# rest, since the others cannot know of it while they wait for its share.
#
# Source: Rajbhandari et al. 2020 (ZeRO), section 5.1, whose optimizer states are split so; there parameters are cut to
# equal sizes, here matrices stay whole, for Muon.

Value_of_gradients = TypeVar("Value_of_gradients")
BUCKET_BYTES = 16 << 20  # enough that sending outweighs the call, and few enough that sending begins early


@dataclass(frozen=True)
class Bucket:
    """Parameters of one owner that travel together.

    Attributes:
        owner: Number of the process.
        parameters: By name.
        flat: float32, where the parameters are: room for all of them.
    """

    owner: int
    parameters: Mapping[str, nn.Parameter]
    flat: Tensor

    def views(self) -> dict[str, Tensor]:
        """The parameters' places in the room, in their shapes."""
        parts = self.flat.split([p.numel() for p in self.parameters.values()])
        return {name: part.view_as(p) for part, (name, p) in zip(parts, self.parameters.items(), strict=True)}


class Exchange(Protocol):
    """What goes between processes in a step: gradients, and weights."""

    def begin(self, num_parts: int) -> None:
        """A step begins, of so many parts."""

    def run(self, work: Callable[[], Value_of_gradients]) -> Value_of_gradients:
        """Does the forward pass of a part."""

    def begin_last_part(self) -> None:
        """The backward pass that follows is the last of this step."""

    def finish(self, error: BaseException | None = None) -> None:
        """The parts are computed, or there was an error; the other processes wait for nothing after it."""

    @property
    def has_gradient(self) -> list[bool]:
        """What this process says to the others about each parameter; after `finish`."""

    def sum_gradients(self, has_gradient: Sequence[bool]) -> None:
        """Gives what this process trains its gradients, and takes those of all else away."""

    def forget(self) -> None:
        """Begins anew: the step is made again, or is over."""

    def spread_weights(self) -> None:
        """Gives every process the weights of this step."""


def owners_of(costs: Mapping[str, float], size: int) -> dict[str, int]:
    """Whose each parameter is: the costliest first, each to whoever has least so far.

    Args:
        costs: What the optimizer does for each parameter, in any unit.
        size: How many processes there are.
    """
    loads = [0.0] * size
    owners: dict[str, int] = {}
    for name in sorted(costs, key=lambda each: (-costs[each], each)):
        owner = loads.index(min(loads))
        owners[name] = owner
        loads[owner] += costs[name]
    return owners


class GradientExchange:
    """Adds gradients up over the processes, and spreads the weights that come of them.

    Args:
        parameters: All of a model's, by name.
        owners: Whose each is.
        group: The processes.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], owners: Mapping[str, int], group: Group) -> None:
        self._group = group
        self._parameters = parameters
        self._buckets = _buckets(parameters, owners)
        self._views = {name: view for bucket in self._buckets for name, view in bucket.views().items()}
        self._bucket_of = {name: number for number, bucket in enumerate(self._buckets) for name in bucket.parameters}
        self._waits: list[Callable[[], object]] = []
        self._missing = [len(bucket.parameters) for bucket in self._buckets]
        self._has_gradient: dict[str, bool] = {}
        self._is_last_part = False
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(self._hook(name))

    def begin(self, num_parts: int) -> None:
        """See `Exchange.begin`; the processes' numbers of parts may differ."""

    def run(self, work: Callable[[], Value_of_gradients]) -> Value_of_gradients:
        """See `Exchange.run`: nothing travels in it."""
        return work()

    def begin_last_part(self) -> None:
        """The backward pass that follows is the last of this step: what it completes is sent at once."""
        self._is_last_part = True

    def finish(self, error: BaseException | None = None) -> None:
        """Sends what has not been sent: zeros for parameters that no backward pass has reached."""
        for name, parameter in self._parameters.items():
            if name not in self._has_gradient:
                self._take(name, parameter.grad)
        self._is_last_part = False

    @property
    def has_gradient(self) -> list[bool]:
        """Whether this process has a gradient, of each parameter; after `finish`."""
        return [self._has_gradient[name] for name in self._parameters]

    def sum_gradients(self, has_gradient: Sequence[bool]) -> None:
        """Waits for all gradients, and gives the parameters that this process owns theirs; the others have none.

        Args:
            has_gradient: Whether any process has one, of each parameter; where none has, there is none after it.
        """
        self._wait()
        number = self._group.share.rank
        for (name, parameter), is_there in zip(self._parameters.items(), has_gradient, strict=True):
            own = self._buckets[self._bucket_of[name]].owner == number
            parameter.grad = self._views[name] if own and is_there else None

    def forget(self) -> None:
        """Waits for what was sent, and begins anew: the step is made again, or is over."""
        if self._waits:
            self._wait()
        self._missing = [len(bucket.parameters) for bucket in self._buckets]
        self._has_gradient = {}

    @torch.no_grad()
    def spread_weights(self) -> None:
        """Gives every process the weights of their owners."""
        own = self._group.share.rank
        for bucket in self._buckets:
            if bucket.owner == own:
                for name, parameter in bucket.parameters.items():
                    self._views[name].copy_(parameter)
            self._waits.append(self._group.spread(bucket.flat, bucket.owner))
        self._wait()
        for bucket in self._buckets:
            if bucket.owner != own:
                for name, parameter in bucket.parameters.items():
                    parameter.copy_(self._views[name])

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def arrived(parameter: Tensor) -> None:
            if self._is_last_part:
                self._take(name, parameter.grad)

        return arrived

    @torch.no_grad()
    def _take(self, name: str, gradient: Tensor | None) -> None:
        """Puts a gradient into its bucket, and sends the buckets that are full, in their order."""
        if gradient is None:
            self._views[name].zero_()
        else:
            self._views[name].copy_(gradient)
        self._has_gradient[name] = gradient is not None
        self._missing[self._bucket_of[name]] -= 1
        while len(self._waits) < len(self._buckets) and not self._missing[len(self._waits)]:
            bucket = self._buckets[len(self._waits)]
            self._waits.append(self._group.reduce(bucket.flat, bucket.owner))

    def _wait(self) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            wait()


def _buckets(parameters: Mapping[str, nn.Parameter], owners: Mapping[str, int]) -> list[Bucket]:
    """The parameters, the last of the model first, as backward passes reach them, a bucket closed when it is large."""
    closed: list[tuple[int, list[str]]] = []
    filling: dict[int, list[str]] = {}
    room: dict[int, int] = {}
    for name in reversed(list(parameters)):
        owner, size = owners[name], 4 * parameters[name].numel()
        if filling.get(owner) and room[owner] < size:
            closed.append((owner, filling.pop(owner)))
        if owner not in filling:
            filling[owner], room[owner] = [], BUCKET_BYTES
        filling[owner].append(name)
        room[owner] -= size
    closed += filling.items()
    return [_bucket(owner, {name: parameters[name] for name in names}) for owner, names in closed]


def _bucket(owner: int, parameters: Mapping[str, nn.Parameter]) -> Bucket:
    device = next(iter(parameters.values())).device
    size = sum(parameter.numel() for parameter in parameters.values())
    return Bucket(owner, parameters, torch.empty(size, dtype=torch.float32, device=device))
