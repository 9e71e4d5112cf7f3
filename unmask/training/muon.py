"""Muon: momentum whose matrices are orthogonalised before they are applied.

torch has a Muon too. This one differs in what makes it cheap and right for small encoders: matrices of one shape are
orthogonalised together in batched products, and fused projections (queries, keys and values in one weight) are taken
apart first, since each of them is a matrix of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# For each number of iterations its polynomials a x + b x^3 + c x^5, in their order: each is the nearest to 1, in the
# largest difference, on the interval that those before it make of [0.01, 1], [0.003, 1] or [0.001, 1].
POLYNOMIALS = {
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


def orthogonalise(matrices: Tensor, iterations: int, dtype: torch.dtype) -> Tensor:
    """Moves singular values near 1, keeping the singular vectors.

    Matrices are divided by their norm first. Then three iterations bring singular values from 0.01 on to 0.73 to 1.27,
    four those from 0.003 on to 0.80 to 1.20, five those from 0.001 on to 0.88 to 1.12.

    Args:
        matrices: [n, rows, columns] with rows <= columns.
        iterations: A key of `POLYNOMIALS`.
        dtype: Of the products.

    Source: Amsel et al. 2025 (The Polar Express), section 3: a polynomial of its own for each step, each the best for
    what is left to do. Jordan et al. 2024 takes the same one five times and comes to 0.7 to 1.2; three of these come as
    near, with three fifths of the products. The coefficients are ours, for the intervals that fit so few steps.
    """
    x = (matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)).to(dtype)
    for a, b, c in POLYNOMIALS[iterations]:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class _Shape:
    """All matrices of one shape (or its transpose), with their momentum in one tensor [n, rows, columns]."""

    def __init__(self, matrices: list[Matrix], shape: tuple[int, int]) -> None:
        self.matrices = matrices
        count = sum(matrix.num_fused for matrix in matrices)
        self.momentum = torch.zeros(count, *shape, device=matrices[0].weight.device)

    def gradients(self) -> Tensor:
        return torch.cat([_lying(matrix, _gradient(matrix)) for matrix in self.matrices])

    def split(self, stacked: Tensor) -> list[Tensor]:
        """The parts of a stacked tensor, shaped like the weights."""
        parts = stacked.split([matrix.num_fused for matrix in self.matrices])
        return [_standing(matrix, part) for matrix, part in zip(self.matrices, parts, strict=True)]


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
        groups: dict[tuple[int, int], list[Matrix]] = defaultdict(list)
        for matrix in matrices:
            groups[_lying(matrix, matrix.weight).shape[1:]].append(matrix)  # type: ignore[index]
        self.shapes = [_Shape(group, shape) for shape, group in sorted(groups.items())]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Applies the gradients.

        The update is scaled by 0.2 x sqrt(longer side), so that its root mean square is that of AdamW's.
        """
        for shape in self.shapes:
            gradient = shape.gradients()
            shape.momentum.lerp_(gradient, 1.0 - self.momentum)
            direction = gradient.lerp_(shape.momentum, self.momentum)
            update = orthogonalise(direction, self.iterations, self.dtype)
            scale = 0.2 * max(update.shape[1:]) ** 0.5
            weights = [matrix.weight for matrix in shape.matrices]
            torch._foreach_mul_(list[Tensor](weights), 1.0 - learning_rate * self.weight_decay)
            for weight, part in zip(weights, shape.split(update), strict=True):
                weight.add_(part, alpha=-learning_rate * scale)

    def state(self) -> dict[str, Tensor]:
        """Momentum by parameter name, in the shape of the weight."""
        return {
            matrix.name: part.contiguous()
            for shape in self.shapes
            for matrix, part in zip(shape.matrices, shape.split(shape.momentum), strict=True)
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state` gave."""
        for shape in self.shapes:
            shape.momentum.copy_(torch.cat([_lying(matrix, state[matrix.name]) for matrix in shape.matrices]))


def _gradient(matrix: Matrix) -> Tensor:
    gradient = matrix.weight.grad
    assert gradient is not None, f"{matrix.name} has no gradient"
    return gradient


def _lying(matrix: Matrix, tensor: Tensor) -> Tensor:
    """[num_fused, rows, columns] with rows <= columns: taken apart, and transposed where it stands."""
    parts = tensor.unflatten(0, (matrix.num_fused, -1))
    return parts.mT if parts.shape[1] > parts.shape[2] else parts


def _standing(matrix: Matrix, parts: Tensor) -> Tensor:
    """The inverse of `_lying`."""
    rows = matrix.weight.shape[0] // matrix.num_fused
    return (parts if parts.shape[1] == rows else parts.mT).reshape(matrix.weight.shape)
