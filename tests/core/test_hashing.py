from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.core import hashing
from unmask.core.hashing import GOLDEN, BitField, mix, permutation

INT64 = st.integers(-(2**63), 2**63 - 1)


def reference(value: int) -> int:
    """SplitMix64's finaliser in unbounded integers."""
    x = value % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    x ^= x >> 31
    return x - 2**64 if x >= 2**63 else x


@given(st.lists(INT64, min_size=1, max_size=20))
def test_numpy_torch_and_the_definition_agree(values: list[int]) -> None:
    expected = [reference(v) for v in values]
    assert mix(np.array(values, dtype=np.int64)).tolist() == expected
    assert mix(torch.tensor(values, dtype=torch.int64)).tolist() == expected


def test_known_values() -> None:
    # The first outputs of SplitMix64 from state 0 are mix(k * golden ratio).
    counters = torch.arange(1, 4) * GOLDEN
    assert [v % 2**64 for v in mix(counters).tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.integers(0, 300), st.integers(0, 5))
def test_a_permutation_is_one(size: int, key: int) -> None:
    order = permutation(size, key)
    assert sorted(order.tolist()) == list(range(size))
    assert order.tolist() == permutation(size, key).tolist()
    if size > 20:
        assert order.tolist() != permutation(size, key + 1).tolist()


@pytest.mark.parametrize("names", ["ORDER CROSSING", "SHOWN RANDOM_TOKEN", "IS_WRONG TAIL"])
def test_fields_that_are_drawn_from_one_hash_do_not_overlap(names: str) -> None:
    fields = [getattr(hashing, name) for name in names.split()]
    places = [place for field in fields for place in range(field.first, field.first + field.size)]
    assert len(set(places)) == len(places)
    assert 0 <= min(places) <= max(places) < 64


@given(INT64, st.integers(0, 63), st.integers(1, 63))
def test_a_field_is_the_same_number_of_any_kind_of_integer(value: int, first: int, size: int) -> None:
    field = BitField(first, min(size, 64 - first))
    expected = (value % 2**64 >> first) % 2**field.size
    assert field.of(value) == expected
    assert field.of(np.array([value], dtype=np.int64)).tolist() == [expected]
    assert field.of(torch.tensor([value])).tolist() == [expected]


def test_orders_are_what_they_were() -> None:
    assert permutation(12, 1, 2, 3).tolist() == [8, 5, 1, 3, 4, 6, 9, 7, 0, 11, 2, 10]
