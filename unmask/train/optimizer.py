"""Which parameter is trained by what: Muon for matrices and AdamW for the rest, or AdamW alone; and by which process.

Of several processes each owns some parameters whole. It alone has what the optimizer remembers of them, and does its
work on them; see `unmask.train.distributed`. Where weights are shared out as well, each has some rows of every
parameter and trains these, but for matrices of Muon's, which have owners; see `unmask.train.optimizer`.
"""

from __future__ import annotations

import copy
import math
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numba import prange
from torch import Tensor, nn

from unmask.core.compiled import arrays, parallel, serves, use_threads_of_torch
from unmask.core.errors import EndedElsewhereError, SettingsError
from unmask.model.encoder import MaskedLM
from unmask.model.layers import Linear
from unmask.model.loops import load, store
from unmask.train.distributed import ALONE, Exchange, GradientExchange, Group, GroupError, owners_of
from unmask.train.settings import MuonSettings, TrainingSettings

# ----------------------------------------
# What Muon does before and behind its products: each number is read and written once.
#
# Arrays: N = matrices, R = rows, C = columns.

STRETCHES = 16  # of a matrix, whose sums are added up in their order: the number of cores makes no difference


@parallel
def unit_directions(
    momentum: float, room: float, eps: float, gradient_NRC: Any, running_NRC: Any, sums_NS: Any, direction_NRC: Any
) -> None:
    """Advances the running gradients, and brings Nesterov's directions to length 1 / room.

    Args:
        momentum: Decay of the running gradient.
        room: Factor of the length that each is divided by.
        eps: Added to it.
        gradient_NRC: The gradients.
        running_NRC: The running ones, in place.
        sums_NS: float32, [N, STRETCHES]: becomes the squares of the directions, added up.
        direction_NRC: Becomes the directions, each matrix divided by its Frobenius norm times the room.
    """
    num, rows, columns = gradient_NRC.shape
    kept, fresh = np.float32(momentum), np.float32(1.0 - momentum)
    for place in prange(num * STRETCHES):
        n, stretch = place // STRETCHES, place % STRETCHES
        total = np.float32(0.0)
        for r in range(stretch * rows // STRETCHES, (stretch + 1) * rows // STRETCHES):
            gradient, running = gradient_NRC[n, r], running_NRC[n, r]
            for c in range(columns):
                running[c] += fresh * (gradient[c] - running[c])
                direction = gradient[c] + kept * (running[c] - gradient[c])
                total += direction * direction
        sums_NS[n, stretch] = total
    for place in prange(num * rows):
        n, r = place // rows, place % rows
        total = np.float32(0.0)
        for stretch in range(STRETCHES):
            total += sums_NS[n, stretch]
        factor = np.float32(1.0) / (np.float32(room) * np.sqrt(total) + np.float32(eps))
        gradient, running, direction_C = gradient_NRC[n, r], running_NRC[n, r], direction_NRC[n, r]
        for c in range(columns):
            store(direction_C, c, (gradient[c] + kept * (running[c] - gradient[c])) * factor)


@parallel
def apply(kept: float, rate: float, update_TC: Any, weight_TC: Any) -> None:
    """Weights become `kept` times themselves, less `rate` times the update; T = all rows in a line."""
    for t in prange(len(weight_TC)):
        weight, update = weight_TC[t], update_TC[t]
        for c in range(len(weight)):
            weight[c] = weight[c] * np.float32(kept) - np.float32(rate) * load(update[c])


# ----------------------------------------
# Muon: momentum whose matrices are orthogonalised before they are applied.
#
# torch has a Muon too. This one differs in what makes it cheap and right for small encoders: matrices of one shape are
# orthogonalised together in batched products, and fused projections (queries, keys and values in one weight) are taken
# apart first, since each of them is a matrix of its own. On CPUs so many go at once as the caches hold, and what stands
# between gradients, products and weights are two loops instead of a dozen passes over memory.
#
# Shape suffixes: N = matrices, R = rows, C = columns.

_EPS = 1e-7  # added to norms
_CACHED = 5_000_000  # bytes of the matrices that a CPU orthogonalises at once

_ROOM = 1.01  # what rounding may make singular values larger than the polynomials are made for

# For each number of iterations its polynomials a x + b x^3 + c x^5, in their order: each is the nearest to 1, in the
# largest difference, on the interval that those before it make of [0.01, 1], [0.003, 1] or [0.001, 1].
_NEAREST = {
    3: ((8.0934, -23.6205, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526)),
    4: (
        (8.3837, -24.7659, 18.3571),
        (4.0434, -3.0114, 0.5695),
        (3.5056, -2.6267, 0.5257),
        (2.4901, -1.8343, 0.4368),
    ),
    5: (
        (8.4703, -25.1081, 18.6293),
        (4.1828, -3.1087, 0.5806),
        (3.9619, -2.9541, 0.5630),
        (3.2866, -2.4647, 0.5074),
        (2.2737, -1.6447, 0.4162),
    ),
}


Polynomial = tuple[float, float, float]  # a, b and c


def _with_room(polynomials: tuple[Polynomial, ...]) -> tuple[Polynomial, ...]:
    """The same of numbers that are smaller by the room, but for the last.

    They rise steeply behind their intervals: in bf16 the largest singular value of a matrix of rank 1, which lies at
    the very end, came out as 1e11 of five of them. Source: as of `orthogonalise`, section 3.4.
    """
    smaller = tuple((a / _ROOM, b / _ROOM**3, c / _ROOM**5) for a, b, c in polynomials[:-1])
    return (*smaller, polynomials[-1])


POLYNOMIALS = {iterations: _with_room(nearest) for iterations, nearest in _NEAREST.items()}


@dataclass(frozen=True)
class Matrix:
    """A weight that Muon trains.

    Attributes:
        name: Of the parameter.
        weight: [num_fused x rows, columns].
        num_fused: Matrices stacked in its rows.
    """

    name: str
    weight: nn.Parameter
    num_fused: int

    def parts(self, tensor: Tensor) -> Tensor:
        """What has the shape of the weight, as the matrices that are stacked in it: [num_fused, R, C]."""
        return tensor.unflatten(0, (self.num_fused, -1))


def orthogonalise(matrices_NRC: Tensor, iterations: int) -> Tensor:
    """Moves singular values near 1, keeping the singular vectors.

    Three iterations bring singular values from 0.01 on to 0.72 to 1.27, four those from 0.003 on to 0.78 to 1.20, five
    those from 0.001 on to 0.86 to 1.12.

    Args:
        matrices_NRC: With singular values of 1 at the most, or 1.01 where they were rounded.
        iterations: A key of `POLYNOMIALS`.

    Source: Amsel et al. 2025 (The Polar Express), section 3: a polynomial of its own for each step, each the best for
    what is left to do. Jordan et al. 2024 takes the same one five times and comes to 0.7 to 1.2; three of these come as
    near, with three fifths of the products. The coefficients are ours, for the intervals that fit so few steps.
    """
    x = matrices_NRC
    stands = x.shape[1] > x.shape[2]  # the smaller of both sides is squared
    for a, b, c in POLYNOMIALS[iterations]:
        gram = x.mT @ x if stands else x @ x.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, x, factor, beta=a) if stands else torch.baddbmm(x, factor, x, beta=a)
    return x


class Muon:
    """The optimizer.

    Args:
        matrices: What it trains.
        momentum: Decay of the running gradient (Nesterov's form is used).
        iterations: Of the orthogonalising.
        weight_decay: Decoupled; multiplied by the learning rate.
        dtype: Of the products.
    """

    def __init__(
        self,
        matrices: list[Matrix],
        *,
        momentum: float,
        iterations: int,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        self.momentum = momentum
        self.iterations = iterations
        self.weight_decay = weight_decay
        self.dtype = dtype
        self.batches = _batches(matrices, dtype)
        self._running = {matrix.name: torch.zeros_like(matrix.weight) for matrix in matrices}

    @torch.no_grad()
    def step(self, learning_rate: float, *, diverged: Tensor | None = None) -> None:
        """Applies the gradients, which serve as working memory.

        The update is scaled by 0.2 x sqrt(longer side), so that its root mean square is that of AdamW's.

        Args:
            learning_rate: Of this step.
            diverged: As for `Optimizer.step`.
        """
        for batch in self.batches:
            on_cpu = serves(batch[0].weight)
            if on_cpu and diverged is not None and diverged.item():
                continue
            direction_NRC = self._looped_directions(batch) if on_cpu else self._directions(batch, diverged)
            update_NRC = orthogonalise(direction_NRC, self.iterations)
            kept = 1.0 - learning_rate * self.weight_decay
            rate = learning_rate * 0.2 * max(update_NRC.shape[1:]) ** 0.5
            updates = update_NRC.split([matrix.num_fused for matrix in batch])
            if not on_cpu:  # all at once: each operation on a GPU costs a launch
                weights: list[Tensor] = [matrix.weight for matrix in batch]
                if diverged is None:
                    torch._foreach_mul_(weights, kept)
                else:
                    torch._foreach_mul_(weights, torch.where(diverged > 0, 1.0, kept))
                    update_NRC.mul_(1.0 - diverged)
            for matrix, update in zip(batch, updates, strict=True):
                if on_cpu:
                    apply(kept, rate, *arrays(update.flatten(0, 1), matrix.weight))
                else:
                    matrix.weight.add_(update.flatten(0, 1), alpha=-rate)

    def _directions(self, batch: list[Matrix], diverged: Tensor | None) -> Tensor:
        """Advances the running gradients; the directions of all matrices, [N, R, C], a little shorter than 1."""
        gradients = [_gradient(matrix) for matrix in batch]
        running = [self._running[matrix.name] for matrix in batch]
        if diverged is not None:  # between a number and itself there is only this number
            gradients = [torch.where(diverged > 0, r, g) for r, g in zip(running, gradients, strict=True)]
        torch._foreach_lerp_(running, gradients, 1.0 - self.momentum)
        torch._foreach_lerp_(gradients, running, self.momentum)
        direction_NRC = torch.cat([m.parts(gradient) for m, gradient in zip(batch, gradients, strict=True)])
        norm_N11 = torch.linalg.matrix_norm(direction_NRC, keepdim=True)
        return (direction_NRC / (_ROOM * norm_N11 + _EPS)).to(self.dtype)

    def _looped_directions(self, batch: list[Matrix]) -> Tensor:
        """The same by compiled loops."""
        use_threads_of_torch()
        num = sum(matrix.num_fused for matrix in batch)
        _, rows, columns = batch[0].parts(batch[0].weight).shape
        direction_NRC = torch.empty(num, rows, columns, dtype=self.dtype)
        sums_NS = torch.empty(num, STRETCHES)
        begin = 0
        for matrix in batch:
            own = slice(begin, begin := begin + matrix.num_fused)
            gradient_NRC = matrix.parts(_gradient(matrix))
            running_NRC = matrix.parts(self._running[matrix.name])
            given = arrays(gradient_NRC, running_NRC, sums_NS[own], direction_NRC[own])
            unit_directions(self.momentum, _ROOM, _EPS, *given)
        return direction_NRC

    def state(self) -> dict[str, Tensor]:
        """Momentum by parameter name, in the shape of the weight."""
        return dict(self._running)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state` gave."""
        for name, running in self._running.items():
            running.copy_(state[name])


def _batches(matrices: list[Matrix], dtype: torch.dtype) -> list[list[Matrix]]:
    """Matrices of one shape together: on CPUs so many as their caches hold, elsewhere all."""
    shapes: dict[tuple[int, ...], list[Matrix]] = defaultdict(list)
    for matrix in matrices:
        shapes[matrix.parts(matrix.weight).shape[1:]].append(matrix)
    batches: list[list[Matrix]] = []
    for shape, alike in sorted(shapes.items()):
        on_cpu = alike[0].weight.device.type == "cpu"
        most = max(1, _CACHED // (math.prod(shape) * dtype.itemsize)) if on_cpu else sum(m.num_fused for m in alike)
        held = most
        for matrix in alike:
            if held + matrix.num_fused > most:
                batches.append([])
                held = 0
            batches[-1].append(matrix)
            held += matrix.num_fused
    return batches


def _gradient(matrix: Matrix) -> Tensor:
    gradient = matrix.weight.grad
    assert gradient is not None, f"{matrix.name} has no gradient"
    return gradient


# ----------------------------------------
# Weights, gradients and optimizer states shared out over processes by rows, for models that do not fit one device.
#
# Each process keeps its rows of every parameter. Whole weights are there while they are computed with, block by block,
# by torch's FSDP2, and gradients are added up as soon as a block's are made, straight into the rows of their owners:
#
#     forward    gather root, gather block 1, compute, free, gather block 2 ...
#     backward   gather block 2, compute, add up, free, gather block 1 ...     a part of a step
#     update     AdamW on rows; matrices of Muon go whole to their owners, and what they do to a weight comes back as
#     rows
#
# All processes gather and add up in one order, and as often: a process in which a step fails takes part in all that the
# others still do in this step, with zeros, since they cannot know of it while they wait. For that it has to know what
# comes, so a row of padding goes through the model before the first step, and what goes around with it is noted.
#
# Source: Rajbhandari et al. 2020 (ZeRO), section 5.3; Zhao et al. 2023 (PyTorch FSDP), sections 3 and 4.

Value = TypeVar("Value")
_REHEARSED = 8  # positions of the row that goes through the model before the first step


class _Root(nn.Module):
    """What holds all parameters that stand in no block while whatever uses the model is run."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        """What the work comes to, which computes with the model."""
        return work()


@dataclass(frozen=True)
class Passing:
    """Numbers that go around among all processes.

    Attributes:
        gathers: Whether what all have is put together; else it is added up and shared out.
        size: Of all processes' parts.
        dtype: Of the numbers.
    """

    gathers: bool
    size: int
    dtype: torch.dtype


class FullSharding:
    """Shares a model out, and does for it what `unmask.train.distributed.GradientExchange` does for a whole one.

    Args:
        model: Where it is to be trained, the same in all processes; its parameters become rows of themselves.
        owners: Whose each matrix of Muon's is, by name; the owner orthogonalises it.
        group: The processes.
        dtype: That the weights of blocks are gathered in, which must be what they are computed with; None: float32.

    Attributes:
        rows: This process's rows of every parameter, by name; they share memory with the model's.
        of_part: What goes around in every part of a step; None before the first.

    Raises:
        SettingsError: This version of torch cannot do it.
    """

    def __init__(
        self, model: MaskedLM, owners: Mapping[str, int], group: Group, *, dtype: torch.dtype | None = None
    ) -> None:
        self._model, self._group = model, group
        self._device = model.encoder.device
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self._empty = _without_numbers(model)
        self._root = _shared_out(model, group, dtype, _Gathers(self._pass), _Sums(self._pass))
        self.rows = {
            name: nn.Parameter(parameter.to_local(), requires_grad=False)  # type: ignore[attr-defined]
            for name, parameter in model.named_parameters()
        }
        # By owner, and with one owner by name: the order in which parts of matrices travel.
        self._of_owner = [
            [name for name in owners if owners[name] == number] for number in range(group.share.world_size)
        ]
        self._wholes: list[Matrix] = []
        self._passed: list[Passing] = []  # in the part of the step that is computed
        self.of_part: list[Passing] | None = None
        self._num_parts = self._num_run = 0

    def owned(self, matrices: Iterable[Matrix]) -> list[Matrix]:
        """Those of Muon's matrices that this process owns, each with room for what is done to the whole weight."""
        mine = set(self._of_owner[self._group.share.rank])
        self._wholes = [
            replace(m, weight=nn.Parameter(torch.zeros(self._shapes[m.name], device=self._device), requires_grad=False))
            for m in matrices
            if m.name in mine
        ]
        return self._wholes

    # A step

    def begin(self, num_parts: int) -> None:
        """A step begins, of as many parts in every process."""
        if self.of_part is None:
            self._rehearse()
        self._num_parts, self._num_run, self._passed = num_parts, 0, []

    def run(self, work: Callable[[], Value]) -> Value:
        """Does the forward pass of a part: what computes with the model must be called by it.

        Args:
            work: Returns tensors, alone or in tuples; the backward pass begins with those that have a gradient.
        """
        if self._passed:
            self._num_run, self.of_part, self._passed = self._num_run + 1, self._passed, []
        result: Value = self._root(work)
        return result

    def begin_last_part(self) -> None:
        """Nothing changes: gradients of every part are added up at once, since a whole gradient would not fit."""

    def finish(self, error: BaseException | None = None) -> None:
        """The parts are computed, or it failed. Then zeros go around as far as the others still expect something."""
        if error is None or isinstance(error, GroupError):
            return
        traceback.clear_frames(error.__traceback__)  # they hold what the step has computed, and memory may be short
        for parameter in self._model.parameters():
            parameter.grad = None  # also those of whole weights, which would be added to the next ones
        self._root.reset_iter_state()
        assert self.of_part is not None, "there was a rehearsal"
        left = (self._num_parts - self._num_run) * self.of_part
        for passing in left[len(self._passed) :]:
            whole_N = torch.zeros(passing.size, dtype=passing.dtype, device=self._device)
            own_P = whole_N.new_zeros(passing.size // self._group.share.world_size)
            _go_around(self._group, passing, whole_N, own_P)

    @property
    def has_gradient(self) -> list[bool]:
        """Nothing is to be said: every process has a part of every gradient."""
        return []

    def sum_gradients(self, has_gradient: Sequence[bool]) -> None:
        """Gives the rows their gradients, which are added up already."""
        for (name, rows), parameter in zip(self.rows.items(), self._model.parameters(), strict=True):
            assert parameter.grad is not None, f"{name} has no gradient"
            rows.grad = parameter.grad.to_local()  # type: ignore[attr-defined]

    def forget(self) -> None:
        """Forgets the gradients."""
        for tensor in chain(self._model.parameters(), self.rows.values()):
            tensor.grad = None

    def spread_weights(self) -> None:
        """Nothing is to be done: the next step gathers what it needs."""

    # Matrices of Muon

    @torch.no_grad()
    def gradients_to_owners(self) -> None:
        """Gives every whole matrix its gradient, and sets what is done to its weight to nothing."""
        own = {name: self.rows[name].grad for name in chain(*self._of_owner)}
        found = self._dealt(own, to_owners=True)
        for matrix in self._wholes:
            matrix.weight.zero_()
            matrix.weight.grad = torch.cat(found[matrix.name])

    @torch.no_grad()
    def updates_from_owners(self, kept: float | Tensor) -> None:
        """Makes the weights smaller, and adds what the owners of whole matrices have done to them.

        Args:
            kept: What the weights are multiplied by first.
        """
        wholes: dict[str, Tensor | None] = {matrix.name: matrix.weight.detach() for matrix in self._wholes}
        found = self._dealt(wholes, to_owners=False)
        for name, (update,) in found.items():
            self.rows[name].mul_(kept).add_(update)
        for matrix in self._wholes:
            matrix.weight.grad = None

    def _dealt(self, tensors: Mapping[str, Tensor | None], *, to_owners: bool) -> dict[str, list[Tensor]]:
        """Rows of all processes to the owner of the whole, in their order; or of the whole to their processes."""
        number = self._group.share.rank
        mine = [[(name, number) for name in names] for names in self._of_owner]
        theirs = [[(name, other) for name in self._of_owner[number]] for other in range(self._group.share.world_size)]
        given, taken = (mine, theirs) if to_owners else (theirs, mine)
        flat = []
        for name, whose in chain(*given):
            tensor = tensors[name]
            assert tensor is not None, f"{name} has no gradient"
            flat.append((tensor if to_owners else tensor[self._part(name, whose)]).flatten())
        sizes = [[sum(self._shape(*each).numel() for each in group) for group in groups] for groups in (given, taken)]
        sent = torch.cat(flat) if flat else torch.empty(0, device=self._device)
        received = self._group.deal(sent, *sizes)
        order = list(chain(*taken))
        found: dict[str, list[Tensor]] = {}
        for (name, whose), part in zip(order, received.split([self._shape(*e).numel() for e in order]), strict=True):
            found.setdefault(name, []).append(part.view(self._shape(name, whose)))
        return found

    def _part(self, name: str, number: int) -> slice:
        """Which rows of a parameter are a process's."""
        total = self._shapes[name][0]
        each = -(-total // self._group.share.world_size)
        return slice(min(number * each, total), min((number + 1) * each, total))

    def _shape(self, name: str, number: int) -> torch.Size:
        part = self._part(name, number)
        return torch.Size([part.stop - part.start, *self._shapes[name][1:]])

    # Whole tensors

    @torch.no_grad()
    def whole(self, name: str, rows: Tensor) -> Tensor:
        """What all processes have for the rows of a parameter, in its shape; all ask for it together."""
        share, shape = self._group.share, self._shapes[name]
        own = rows.new_zeros(-(-shape[0] // share.world_size), *shape[1:])
        own[: len(rows)] = rows
        whole_N = own.new_empty(share.world_size * own.numel())
        self._group.gather_into(whole_N, own.flatten())
        return whole_N[: shape.numel()].view(shape)

    def own_rows(self, name: str, whole: Tensor) -> Tensor:
        """This process's rows of a whole tensor in a parameter's shape."""
        return whole[self._part(name, self._group.share.rank)]

    def weights(self, device: torch.device | None = None, *, kept: bool = True) -> dict[str, Tensor]:
        """All weights, whole; all processes ask together.

        Args:
            device: Where they are wanted; None: where the model is.
            kept: Whether this process wants them; else it has helped others to them.
        """
        self._group.told([0.0], patient=True)  # what they did before may have taken unequally long
        found = {}
        for name, rows in self.rows.items():
            whole = self.whole(name, rows)
            if kept:
                found[name] = whole.to(device or whole.device)
        return found

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes back what `weights` gave, to any number of processes.

        Raises:
            RuntimeError: They are another model's, in names or shapes.
        """
        whole = copy.deepcopy(self._empty)
        whole.load_state_dict(dict(weights), assign=True)
        for name, weight in whole.named_parameters():
            self.rows[name].copy_(self.own_rows(name, weight))

    def whole_model(self) -> MaskedLM:
        """The model with all its weights, for whoever looks at it; all processes ask together."""
        whole = copy.deepcopy(self._empty)
        whole.load_state_dict(self.weights(), assign=True)
        whole.kept_weights = self._model.kept_weights
        whole.encoder.compute_dtype = self._model.encoder.compute_dtype
        return whole.train(self._model.training)

    def _rehearse(self) -> None:
        """Notes what goes around in a part, with a row of padding and without a loss."""
        ids_BS = torch.full((1, _REHEARSED), self._model.pad_id, device=self._device)
        with torch.enable_grad():
            self.run(lambda: self._model.encoder(ids_BS, dropout_seed=0).float().sum() * 0.0).backward()
        self.of_part = self._passed
        self.forget()

    def _pass(self, passing: Passing, whole_N: Tensor, own_P: Tensor) -> None:
        self._passed.append(passing)
        _go_around(self._group, passing, whole_N, own_P)


def _go_around(group: Group, passing: Passing, whole_N: Tensor, own_P: Tensor) -> None:
    if passing.gathers:
        group.gather_into(whole_N, own_P)
    else:
        group.scatter_sum(own_P, whole_N)


class _Gathers:
    """FSDP2's all-gather, noted."""

    def __init__(self, go: Callable[[Passing, Tensor, Tensor], None]) -> None:
        self._go = go

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room for numbers."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """Gathers."""
        self._go(Passing(True, output_tensor.numel(), output_tensor.dtype), output_tensor, input_tensor)


class _Sums(_Gathers):
    """FSDP2's reduce-scatter, noted."""

    def __call__(  # type: ignore[override]
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        """Adds up: the step divides losses by the targets of all processes, so no mean is asked for."""
        self._go(Passing(False, input_tensor.numel(), input_tensor.dtype), input_tensor, output_tensor)


def _shared_out(model: MaskedLM, group: Group, dtype: torch.dtype | None, gathers: _Gathers, sums: _Sums) -> Any:
    """The root around a model whose blocks, and what stands in none, have become FSDP2's."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise SettingsError(
            f"training.sharding = 'full' needs torch 2.13 or newer; this is {torch.__version__}. Take 'owners'"
        )
    # A block returns views, and nothing writes into them: without a filter each step would warn of what that would do.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    assert group.of_weights is not None, "several processes have a group"
    mesh = DeviceMesh.from_group(group.of_weights, model.encoder.device.type)
    # Blocks convert all their weights to the type of what goes through them, so it is the same to gather them in it,
    # and half as much; embeddings are looked up, and gradients added up, in float32.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.encoder.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root: Any = fully_shard(_Root(model), mesh=mesh)
    for part in (*model.encoder.blocks, root):
        part.set_custom_all_gather(gathers)
        part.set_custom_reduce_scatter(sums)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    root.set_reduce_scatter_unused_params(True)  # what is added up must be as long everywhere
    return root


def _without_numbers(model: MaskedLM) -> MaskedLM:
    """A copy whose weights have shapes only."""
    memo: dict[int, Any] = {id(weight): weight for weight in model.kept_weights.values()}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    return copy.deepcopy(model, memo)


Value_of_optimizer = TypeVar("Value_of_optimizer")
_ROLES = ("step", "exp_avg", "exp_avg_sq")
_OF_ADAMW = 16.0  # what it does with a number, in products of Muon's (which are fast): it reads and writes memory


class Optimizer:
    """All parameters of a model with what trains them.

    Args:
        model: To be trained.
        settings: Learning rates, decay, kind.
        dtype: Of Muon's products.
        factor_of: The share of the learning rate that a parameter of AdamW's takes, by its name; None: all of it.
        group: The processes that train the model, all of which make their optimizers alike.

    Attributes:
        sharding: Has the weights, where they are shared out, and the model's parameters are rows; None: they are whole.

    Raises:
        SettingsError: This version of torch cannot share weights out.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        *,
        dtype: torch.dtype,
        factor_of: Callable[[str], float] | None = None,
        group: Group = ALONE,
    ) -> None:
        choice = settings.optimizer
        self.group = group
        self.clip_norm = settings.clip_norm
        self._device = next(model.parameters()).device
        self._on_cuda_or_cpu = self._device.type in ("cuda", "cpu")
        self.learning_rate = self.rest_learning_rate = settings.learning_rate
        matrices = _matrices(model) if isinstance(choice, MuonSettings) else []
        of_muon = {matrix.name for matrix in matrices}
        owners = owners_of(parameter_costs(model, muon=bool(matrices)), group.share.world_size)
        self.owned = {name for name, owner in owners.items() if owner == group.share.rank}
        self._exchange: Exchange | None = None
        self.sharding: FullSharding | None = None
        if group.share.world_size > 1 and settings.sharding == "full":
            assert isinstance(model, MaskedLM), "no other model has the setting"
            of_matrices = {name: owner for name, owner in owners.items() if name in of_muon}
            gathered = None if self._device.type == "cpu" or dtype == torch.float32 else dtype
            self._exchange = self.sharding = FullSharding(model, of_matrices, group, dtype=gathered)
        elif group.share.world_size > 1:
            self._exchange = GradientExchange(dict(model.named_parameters()), owners, group)
        self._parameters = dict(model.named_parameters())
        # What this process trains: parameters that it owns, or its rows of all.
        self._trained = {name: p for name, p in self._parameters.items() if name in self.owned}
        matrices = [matrix for matrix in matrices if matrix.name in self.owned]
        if self.sharding is not None:
            self._trained, matrices = self.sharding.rows, self.sharding.owned(matrices)
        self._rest = {name: p for name, p in self._trained.items() if name not in of_muon}  # what AdamW trains
        self.muon: Muon | None = None
        if isinstance(choice, MuonSettings):
            self.muon = Muon(
                matrices,
                momentum=choice.momentum,
                iterations=choice.iterations,
                weight_decay=settings.weight_decay,
                dtype=dtype,
            )
            self.rest_learning_rate = choice.embedding_learning_rate or settings.learning_rate
        factors = {name: 1.0 if factor_of is None else factor_of(name) for name in self._rest}
        groups = [
            {
                "params": [p for name, p in self._rest.items() if factors[name] == factor and (p.ndim == 2) == decays],
                "weight_decay": settings.weight_decay if decays else 0.0,
                "factor": factor,
            }
            for factor in sorted(set(factors.values()) or {1.0}, reverse=True)
            for decays in (True, False)
        ]
        self.adamw = torch.optim.AdamW(
            groups, lr=self.rest_learning_rate, betas=choice.betas, eps=choice.eps, fused=True
        )

    @contextmanager
    def computing(
        self, kind_of: Callable[[Exception], int], *, num_parts: int = 1, patient: bool = False
    ) -> Iterator[None]:
        """While it is entered, this step's gradient is computed; whether that went well is decided by all processes.

        Args:
            kind_of: Tells failures apart, by numbers from 1.
            num_parts: In how many parts it is computed.
            patient: Whether the others may take long.

        Raises:
            FailedElsewhereError: It went well here, or failed less badly, but another process failed.
            GroupError: Another process has ended, or does not answer.
        """
        if self._exchange is None:
            yield
            return
        self._exchange.begin(num_parts)
        try:
            yield
        except GroupError:
            raise
        except Exception as error:
            failure = kind_of(error)
            if self._agreed(failure, error, patient=patient) == failure:
                raise
        else:
            self._agreed(0, patient=patient)
        if self._failed:
            raise FailedElsewhereError(self._failed)

    def _agreed(self, failure: int, error: Exception | None = None, *, patient: bool) -> int:
        """The worst failure of all processes'."""
        assert self._exchange is not None
        self._exchange.finish(error)
        told = self.group.told([failure, *map(float, self._exchange.has_gradient)], patient=patient)
        self._failed, *has_gradient = (int(max(each)) for each in zip(*told, strict=True))
        self._has_gradient = [bool(each) for each in has_gradient]
        return self._failed

    def parts_for(self, own: int, of_all: int) -> int:
        """In how many parts this process computes a step.

        Args:
            own: It has rows for so many.
            of_all: The most that any process has rows for.
        """
        return own if self.sharding is None else of_all  # weights are gathered as often by all

    def run(self, work: Callable[[], Value_of_optimizer]) -> Value_of_optimizer:
        """Does the forward pass of a part, whose weights may have to be gathered for it.

        Args:
            work: Computes with the model.
        """
        return work() if self._exchange is None else self._exchange.run(work)

    def begin_last_part(self) -> None:
        """The backward pass that follows is the last of this step, so that gradients may travel as they are ready."""
        if self._exchange is not None:
            self._exchange.begin_last_part()

    def clip(self) -> Tensor:
        """Scales the gradient down to the largest norm allowed, and returns the norm it had, where it is."""
        at_once = True if self._on_cuda_or_cpu else None  # elsewhere torch decides
        if self._exchange is not None:
            self._exchange.sum_gradients(self._has_gradient)
        parameters = [p for p in self._trained.values() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=at_once)
        if self._exchange is not None:
            norm = self.group.summed(norm.to(device=self._device, dtype=torch.float32).square()).sqrt()
        nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, norm, foreach=at_once)
        return norm

    def clear(self) -> None:
        """Forgets the gradient."""
        if self._exchange is not None:
            self._exchange.forget()
        for parameter in self._parameters.values():
            parameter.grad = None

    def step(self, scale: float, *, diverged: Tensor | None = None) -> None:
        """Applies the gradient and clears it.

        Args:
            scale: Factor of the peak learning rates.
            diverged: float32, where the weights are: 1 where the gradient is not finite, and nothing is to be changed,
                else 0. The host does not wait for it. None: the gradient is known to be finite.
        """
        if self.muon is not None:
            self._step_of_muon(self.muon, self.learning_rate * scale, diverged)
        for group in self.adamw.param_groups:
            group["lr"] = self.rest_learning_rate * scale * group["factor"]
        self.adamw.found_inf = diverged  # type: ignore[attr-defined]  # which torch's gradient scaler sets, too
        self.adamw.step()
        self.clear()
        self.spread_weights()

    def _step_of_muon(self, muon: Muon, rate: float, diverged: Tensor | None) -> None:
        if self.sharding is not None:
            self.sharding.gradients_to_owners()
        muon.step(rate, diverged=diverged)
        if self.sharding is not None:
            kept = 1.0 - rate * muon.weight_decay
            self.sharding.updates_from_owners(kept if diverged is None else torch.where(diverged > 0, 1.0, kept))

    def spread_weights(self) -> None:
        """Gives all processes the weights of those that own them."""
        if self._exchange is not None:
            self._exchange.spread_weights()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the optimizers remember of what this process owns, whole, by role and parameter name.

        It is empty before the first step. Of several processes all ask together.
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._rest.items():
            for role in _ROLES if parameter in self.adamw.state else ():
                value = self.adamw.state[parameter][role]
                if self.sharding is not None and role != "step":
                    value = self.sharding.whole(name, value).cpu()  # they are many, and not for the device
                if name in self.owned:
                    tensors[f"adamw.{role}.{name}"] = value
        if self.muon is not None:
            tensors |= {f"muon.momentum.{name}": value for name, value in self.muon.state().items()}
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `state` gave, to any number of processes: what another owns does not matter.

        Raises:
            KeyError: A tensor is missing.
        """
        if self.muon is not None:
            prefix = "muon.momentum."
            self.muon.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        for name, parameter in self._rest.items():
            found = {role: tensors[f"adamw.{role}.{name}"] for role in _ROLES}
            if self.sharding is not None:
                found = {r: t if r == "step" else self.sharding.own_rows(name, t) for r, t in found.items()}
            self.adamw.state[parameter] = {role: t.to(parameter.device).clone() for role, t in found.items()}


class FailedElsewhereError(EndedElsewhereError):
    """A step failed in another process.

    Attributes:
        failure: How, as the step's `kind_of` numbers it.
    """

    def __init__(self, failure: int) -> None:
        super().__init__("another process failed in this step, and says why")
        self.failure = failure


def parameter_costs(model: nn.Module, *, muon: bool = True) -> dict[str, float]:
    """What the optimizer does for each parameter, by name, roughly, in products of Muon's.

    Args:
        model: Whose parameters they are.
        muon: Whether Muon trains its matrices.
    """
    costs = {name: _OF_ADAMW * parameter.numel() for name, parameter in model.named_parameters()}
    for matrix in _matrices(model) if muon else []:
        _, rows, columns = matrix.parts(matrix.weight).shape
        costs[matrix.name] = float(matrix.num_fused * math.prod((rows, columns, min(rows, columns))))
    return costs


def _matrices(model: nn.Module) -> list[Matrix]:
    return [
        Matrix(f"{name}.weight", module.weight, module.num_fused)
        for name, module in model.named_modules()
        if isinstance(module, Linear)
    ]
