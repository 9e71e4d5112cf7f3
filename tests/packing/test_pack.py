from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unmask.packing.pack import pack_best_fit, split_pieces


def test_by_hand() -> None:
    assert pack_best_fit(np.array([3, 5, 2, 4, 1]), 6) == [[1, 4], [3, 2], [0]]


def test_the_tightest_room_is_taken() -> None:
    # Rooms of 4 and of 3 are open when the item of 3 comes: it goes where nothing is left.
    assert pack_best_fit(np.array([6, 7, 3]), 10) == [[1, 2], [0]]


def test_split_by_hand() -> None:
    piece, start, length = split_pieces(np.array([5, 2]), 3)
    assert (piece.tolist(), start.tolist(), length.tolist()) == ([0, 0, 1], [0, 3, 0], [3, 2, 2])


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 40))
def test_every_item_is_in_one_bin_and_bins_hold(lengths: list[int], capacity: int) -> None:
    bins = pack_best_fit(np.array(lengths, dtype=np.int64), capacity)
    assert sorted(item for items in bins for item in items) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in items) <= capacity for items in bins)
    half_empty = sum(2 * sum(lengths[i] for i in items) <= capacity for items in bins)
    assert half_empty <= 1, "two bins that are half empty would have been one"


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 20))
def test_fragments_cover_every_piece_once(lengths: list[int], max_length: int) -> None:
    piece, start, length = split_pieces(np.array(lengths, dtype=np.int64), max_length)
    covered = [(p, s + k) for p, s, n in zip(piece, start, length, strict=True) for k in range(n)]
    assert covered == [(p, k) for p, n in enumerate(lengths) for k in range(n)]
    assert (length <= max_length).all()
    assert (length > 0).all()


def test_natural_lengths_fill_rows_over_98_percent() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.0, 1.0, 20_000).astype(np.int64) + 3, 3, 128)
    bins = pack_best_fit(lengths, 128)
    assert lengths.sum() / (len(bins) * 128) > 0.98
