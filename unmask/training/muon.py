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

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


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
    """Moves all singular values near 1 (0.7 to 1.2 after five iterations), keeping the singular vectors.

    Args:
        matrices: [n, rows, columns] with rows <= columns.
        iterations: Newton-Schulz steps.
        dtype: Of the products.

    Source: Jordan et al. 2024, quintic coefficients.
    """
    a, b, c = _COEFFICIENTS
    x = (matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)).to(dtype)
    for _ in range(iterations):
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
        iterations: Newton-Schulz steps.
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
