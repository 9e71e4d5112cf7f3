from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.segments import segments_of
from unmask.data.packing import LEAST_CUT, pack_pieces


def pack(lengths: list[int], row_length: int, overhead: int) -> list[list[tuple[int, ...]]]:
    packed = pack_pieces(np.array(lengths, dtype=np.int64), row_length=row_length, overhead=overhead)
    rows = [[part for parts, _ in row for part in parts] for row in segments_of(packed)]
    assert packed.pieces() == [[piece for piece, _, _ in row] for row in rows]
    return rows


@pytest.mark.parametrize(
    ("lengths", "row_length", "overhead", "rows"),
    [
        ([3, 5, 2, 4, 1], 6, 0, [[(1, 0, 5), (4, 0, 1)], [(3, 0, 4), (2, 0, 2)], [(0, 0, 3)]]),
        # Rooms of 4 and of 3 are open when the piece of 3 comes: it goes where nothing is left.
        ([6, 7, 3], 10, 0, [[(1, 0, 7), (2, 0, 3)], [(0, 0, 6)]]),
        # Special tokens take room.
        ([2, 2], 6, 2, [[(0, 0, 2)], [(1, 0, 2)]]),
        ([2, 2], 8, 2, [[(0, 0, 2), (1, 0, 2)]]),
        # 47 = a whole row of 20, and 27 of which 13 close the room beside the short piece.
        ([7, 47], 20, 0, [[(1, 0, 20)], [(0, 0, 7), (1, 20, 13)], [(1, 33, 14)]]),
        ([40], 20, 0, [[(0, 0, 20)], [(0, 20, 20)]]),
        ([], 20, 0, []),
        ([0], 20, 0, []),
    ],
)
def test_by_hand(lengths: list[int], row_length: int, overhead: int, rows: list[list[tuple[int, ...]]]) -> None:
    assert pack(lengths, row_length, overhead) == rows


@given(
    st.lists(st.one_of(st.integers(0, 30), st.integers(0, 300)), max_size=60), st.integers(20, 60), st.integers(0, 3)
)
def test_every_token_is_in_one_row_and_rows_hold(lengths: list[int], row_length: int, overhead: int) -> None:
    rows = pack(lengths, row_length, overhead)
    covered = sorted((piece, start + k) for row in rows for piece, start, length in row for k in range(length))
    assert covered == [(piece, k) for piece, length in enumerate(lengths) for k in range(length)]
    assert all(sum(length + overhead for *_, length in row) <= row_length for row in rows)
    for row in rows:
        for piece, _, length in row:
            assert length > 0
            if lengths[piece] <= row_length - overhead:
                assert length == lengths[piece], "a piece that fits is never cut"
            else:
                assert length >= LEAST_CUT


def test_natural_lengths_fill_rows_over_98_percent() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.0, 1.2, 20_000).astype(np.int64) + 1, 1, 2000)
    rows = pack_pieces(lengths, row_length=128, overhead=2)
    assert (rows.length.sum() + 2 * len(rows.piece)) / (len(rows) * 128) > 0.98
