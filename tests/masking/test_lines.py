"""What is written for speed equals the plain operation."""

from __future__ import annotations

import pytest
import torch

from tests.masking.helpers import make_rows
from unmask.hashing import mix, mix_ints
from unmask.masking.budget import in_order_of_keys
from unmask.masking.flat import flatten
from unmask.masking.keys import KEY_BITS
from unmask.masking.lines import pick, put, take
from unmask.masking.tables import Tables
from unmask.masking.units import SpanUnits
from unmask.packing.rows import Rows
from unmask.tokens.tokenizer import Tokenizer


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
    expected = torch.empty_like(a)
    expected[order] = b
    assert torch.equal(put(order, b), expected)


@pytest.mark.parametrize("lengths", [[60], [3, 5, 1, 1, 20], [1], [0]])
def test_units_are_sorted_by_segment_key_and_place(tokenizer: Tokenizer, lengths: list[int]) -> None:
    flat = flatten(make_rows(tokenizer, 50, lengths), 1)
    for bits in (31, 2):  # with few bits, many keys are equal, and places decide
        keys_T = numbers(len(flat.bits_T)) & ((1 << bits) - 1)
        plain = torch.argsort((flat.segment_T << KEY_BITS) | keys_T, stable=True)
        assert torch.equal(in_order_of_keys(flat, keys_T), plain)


@pytest.mark.parametrize("width", [40_000, 0])
def test_rows_that_are_too_long_for_one_word_are_sorted_all_the_same(width: int) -> None:
    ids = torch.zeros(2, width, dtype=torch.int64)
    no = ids.bool()
    flat = flatten(Rows(ids, ids.int(), ids, no, ~no, ids), 1)
    keys_T = numbers(2 * width) & ((1 << KEY_BITS) - 1)
    order = in_order_of_keys(flat, keys_T)
    expected = [row * width + torch.argsort(keys_T[row * width :][:width], stable=True) for row in range(2)]
    assert torch.equal(order, torch.cat(expected))


@pytest.mark.parametrize("units", [SpanUnits(), SpanUnits(p=0.9, max_words=100), SpanUnits(p=0.01, max_words=1)])
def test_lengths_are_those_of_the_thresholds(units: SpanUnits) -> None:
    ends = torch.tensor(units.thresholds())
    edges = torch.cat([ends, ends - 1, ends + 1, torch.tensor([0, 2**32 - 1])]).clamp(0, 2**32 - 1)
    draw_T = torch.cat([numbers(20_000) & 0xFFFFFFFF, edges])
    expected = torch.searchsorted(ends, draw_T, right=True).clamp(max=len(ends) - 1) + 1
    assert torch.equal(units._lengths(draw_T, Tables(10)), expected)


def test_mixing_numbers_and_mixing_arrays_agree() -> None:
    values = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567]
    golden = -7046029254386353131
    for value in values:
        inner = mix(torch.tensor([value]) + golden)
        assert mix_ints(value) == int(mix(torch.tensor([golden]) ^ inner)), value
