"""Kernels of CPUs and tensor operations of other devices give the same masks, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.masking.helpers import make_rows, tables_of
from unmask.masking import budget, collocations, flat, keys, replacement, scored, units
from unmask.masking.engine import MaskedRows, Masker
from unmask.masking.flat import FlatRows, FlatUnits, flatten, partition
from unmask.masking.settings import STRATEGIES, MaskingSettings
from unmask.masking.units import SpanUnits
from unmask.settings import validated
from unmask.tokens.tokenizer import Tokenizer

MODULES = (collocations, flat, keys, replacement, scored, units)
KINDS: list[dict[str, Any]] = [
    *({"strategy": name} for name in STRATEGIES),
    {"strategy": "span", "units": {"kind": "span", "p": 0.9, "max_words": 100}},
    {"strategy": "span", "units": {"kind": "span", "p": 0.01, "max_words": 1}},
    {"units": {"kind": "span", "lengths": "uniform", "max_words": 5, "of": "tokens"}},
    {"units": {"kind": "span", "lengths": [1, 0, 2]}, "weights": {"kind": "band", "low": 100, "high": 5000}},
    {"strategy": "whole_word", "least_one": True, "rate": 0.01},
    {"strategy": "whole_word", "rate": 0.99},
    {"strategy": "random", "rate": {"kind": "uniform", "low": 0.01, "high": 0.99}},
    {"strategy": "random", "prediction_rate": 0.05, "rate": 0.4},
    {"strategy": "span", "replacement": {"shares": [0.1, 0.8, 0.1], "random_from": "unigram", "per": "token"}},
    {"strategy": "whole_word", "replacement": {"shares": [0.1, 0.8, 0.1], "per": "unit"}},
]


@contextmanager
def tensor_operations() -> Iterator[None]:
    """What other devices do, on this one."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "serves", lambda tensor: False)
        yield


def mask(tokenizer: Tokenizer, kind: dict[str, Any], lengths: list[int], seed: int = 0) -> MaskedRows:
    settings = validated(MaskingSettings, kind, where="masking")
    masker = Masker(settings, tokenizer, tables=tables_of(tokenizer), seed=seed)
    return masker(make_rows(tokenizer, 7, lengths, seed=seed), epoch=seed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values()))[:40])
@pytest.mark.parametrize("lengths", [[200], [3, 5, 1, 1, 20, 0, 40], [0]], ids=str)
def test_masks_are_the_same(tokenizer: Tokenizer, kind: dict[str, Any], lengths: list[int]) -> None:
    fast = mask(tokenizer, kind, lengths)
    with tensor_operations():
        plain = mask(tokenizer, kind, lengths)
    assert torch.equal(fast.input_ids, plain.input_ids)
    assert torch.equal(fast.labels, plain.labels)
    assert sum(lengths) < 10 or (fast.labels >= 0).any()


@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=5),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**31),
)
def test_masks_of_any_rows_are_the_same(
    tokenizer: Tokenizer, lengths: list[int], kind: dict[str, Any], seed: int
) -> None:
    fast = mask(tokenizer, kind, lengths, seed)
    with tensor_operations():
        plain = mask(tokenizer, kind, lengths, seed)
    assert torch.equal(fast.input_ids, plain.input_ids)
    assert torch.equal(fast.labels, plain.labels)


@pytest.mark.parametrize("bits", [31, 2], ids=["distinct", "equal"])
@pytest.mark.parametrize("rate", [0.0, 0.003, 0.15, 0.5, 0.97, 1.0])
def test_units_are_taken_by_key_and_then_by_place(tokenizer: Tokenizer, bits: int, rate: float) -> None:
    """With few bits many keys are equal, and places decide."""
    rows = flatten(make_rows(tokenizer, 20, [150, 1, 17, 16, 60]), 1)
    keys_T = (rows.bits_T >> 9) & ((1 << bits) - 1)
    units = partition(rows, rows.word_starts_T)
    fast_T = budget.fill_tokens(rows, units, keys_T, rate)
    assert torch.equal(fast_T, by_sorting(rows, units, keys_T, rate))
    assert fast_T.sum() == pytest.approx(rate * rows.maskable_T.sum(), abs=60)


def by_sorting(rows: FlatRows, units: FlatUnits, keys_T: torch.Tensor, rate: float) -> torch.Tensor:
    """The plain way: all units sorted, then one after the other."""
    chosen_T = torch.zeros_like(rows.maskable_T)
    share = round(rate * 2**24)
    for begin in rows.segment_begin_T.unique().tolist():
        inside_T = (rows.segment_begin_T == begin) & (units.size_T > 0)
        places = inside_T.nonzero().flatten().tolist()
        room = sum(int(units.size_T[place]) for place in places) * share
        for place in sorted(places, key=lambda place: (int(keys_T[place]), place)):
            size = int(units.size_T[place])
            if room > (int(rows.bits_T[place]) & (2**24 - 1)) * size:
                chosen_T |= units.begin_T == place
            room -= size << 24
    return chosen_T & rows.maskable_T


def test_lengths_of_spans_are_those_of_the_thresholds() -> None:
    ends = SpanUnits().thresholds()
    shares = torch.diff(torch.tensor([0, *ends]).double()) / 2**32
    expected = torch.tensor([0.2 * 0.8**k for k in range(10)]).double()
    assert torch.allclose(shares, expected / expected.sum(), atol=1e-9)
