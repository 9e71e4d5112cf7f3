from __future__ import annotations

import numpy as np
import pytest

from unmask.train.runner import in_rows


@pytest.mark.parametrize(
    ("lengths", "longest", "shapes"),
    [
        ((3, 9, 8, 4, 1, 30, 9), 32, [(3, 32)]),
        ((3, 9, 8), 512, [(1, 24)]),  # few texts, a short row
        ((300, 100, 30, 200, 2, 128), 400, [(1, 304), (1, 200), (3, 128)]),  # texts of similar length are together
        ((40,) * 30, 128, [(8, 128), (2, 128)]),  # 1,024 positions a batch
        ((600, 600), 1024, [(1, 1024), (1, 1024)]),
    ],
)
def test_rows_lose_no_token(lengths: tuple[int, ...], longest: int, shapes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(5, 99, size=n).astype(np.int32) for n in lengths]
    seen, found = {}, []
    for batch in in_rows(sequences, pad_id=0, longest=longest, positions=1024):
        rows = batch.rows
        found.append(rows.shape)
        ids, segments = rows.input_ids.flatten(), rows.segment_ids.flatten()
        positions = rows.position_ids.flatten()
        assert ids[segments < 0].eq(0).all()
        assert int((segments >= 0).sum()) == batch.lengths.sum()
        for number, begin, length in zip(batch.numbers, batch.begins, batch.lengths, strict=True):
            place = slice(begin, begin + length)
            assert positions[place].tolist() == list(range(length))
            assert len(set(segments[place].tolist())) == 1
            seen[int(number)] = ids[place].tolist()
        for row in rows.segment_ids:
            real = row[row >= 0]
            assert len(real.unique_consecutive()) == len(real.unique())
    assert seen == {number: sequence.tolist() for number, sequence in enumerate(sequences)}
    assert found == shapes
