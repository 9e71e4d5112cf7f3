from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.core import hashing
from unmask.core.hashing import mix, permutation

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
