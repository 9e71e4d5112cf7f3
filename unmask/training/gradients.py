"""Gradients of several processes, added up for the owner of each parameter, who applies them and gives weights back.

Every parameter is owned by one process, which alone keeps the optimizer's memory of it and does the optimizer's work on
it. Gradients go there once a step, in buckets, each as soon as the last backward pass has made all that is in it:

    backward   layer 12   layer 11   layer 10 ...
    buckets         [ to owner 0 ][ to owner 1 ][ to owner 0 ] ...  ──▶ update ──▶ weights, the same way back

Buckets go in one order in every process, and always all of them: a process in which the step failed sends zeros for the
rest, since the others cannot know of it while they wait for its share.

Source: Rajbhandari et al. 2020 (ZeRO), section 5.1, whose optimizer states are split so; there parameters are cut to
equal sizes, here matrices stay whole, for Muon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from unmask.training.group import Group

Value = TypeVar("Value")
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

    def run(self, work: Callable[[], Value]) -> Value:
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

    def run(self, work: Callable[[], Value]) -> Value:
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
        number = self._group.share.number
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
        own = self._group.share.number
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
