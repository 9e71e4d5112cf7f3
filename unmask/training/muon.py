"""Muon: momentum whose matrices are orthogonalised before they are applied.

torch has a Muon too. This one differs in what makes it cheap and right for small encoders: matrices of one shape are
orthogonalised together in batched products, and fused projections (queries, keys and values in one weight) are taken
apart first, since each of them is a matrix of its own. On CPUs so many go at once as the caches hold, and what stands
between gradients, products and weights are two loops instead of a dozen passes over memory.

Shape suffixes: N = matrices, R = rows, C = columns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.compiled import arrays, serves, use_threads_of_torch
from unmask.training import momentum_loops

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
                    momentum_loops.apply(kept, rate, *arrays(update.flatten(0, 1), matrix.weight))
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
        sums_NS = torch.empty(num, momentum_loops.STRETCHES)
        begin = 0
        for matrix in batch:
            own = slice(begin, begin := begin + matrix.num_fused)
            gradient_NRC = matrix.parts(_gradient(matrix))
            running_NRC = matrix.parts(self._running[matrix.name])
            given = arrays(gradient_NRC, running_NRC, sums_NS[own], direction_NRC[own])
            momentum_loops.unit_directions(self.momentum, _ROOM, _EPS, *given)
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
