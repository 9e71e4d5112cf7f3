"""What is written for speed equals the plain operation."""

from __future__ import annotations

import torch

from unmask.core.hashing import mix, mix_ints
from unmask.masking.draw import pick, take


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


def test_lines_equal_the_plain_operations() -> None:
    a, b = numbers(1000), numbers(1000, 1)
    condition, order = a > b, torch.argsort(b)
    assert torch.equal(pick(condition, a, b), torch.where(condition, a, b))
    assert torch.equal(pick(condition, 7, b), torch.where(condition, 7, b))
    assert torch.equal(pick(condition, a, -100), torch.where(condition, a, -100))
    assert torch.equal(take(a, order), a[order])
    assert torch.equal(take(a.view(100, 10), order[order < 100]), a.view(100, 10)[order[order < 100]])


def test_mixing_numbers_and_mixing_arrays_agree() -> None:
    values = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567]
    golden = -7046029254386353131
    for value in values:
        inner = mix(torch.tensor([value]) + golden)
        assert mix_ints(value) == int(mix(torch.tensor([golden]) ^ inner)), value
