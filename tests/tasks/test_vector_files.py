"""Files of vectors that cannot be written, or ids that cannot: one line says so, and no half of a file is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from unmask.commands.embed import vector_file
from unmask.core.errors import CorpusError


def vectors(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2**63], "the id 9223372036854775808 does not fit into 64 bits; give ids as texts"),
        ([-(2**63) - 1, 1], "the id -9223372036854775809 does not fit into 64 bits"),
        (["a", "b\ud800"], r"the id 'b\\ud800' holds U\+D800, which is no character; take it out"),
    ],
)
def test_ids_that_cannot_be_stored(tmp_path: Path, ids: list[str | int], message: str) -> None:
    with pytest.raises(CorpusError, match=message), vector_file(tmp_path / "v.parquet", 8) as add:
        add(ids, vectors(2))
    assert list(tmp_path.iterdir()) == []
    with vector_file(tmp_path / "v.npy", 8) as add:  # which keeps none
        add(ids, vectors(2))
    assert np.array_equal(np.load(tmp_path / "v.npy"), vectors(2))


def test_the_largest_ids_are_stored(tmp_path: Path) -> None:
    ids = [2**63 - 1, -(2**63)]
    with vector_file(tmp_path / "v.parquet", 8) as add:
        add(ids, vectors(2))
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.column("id").to_pylist() == ids
    assert np.array_equal(np.array(table.column("embedding").to_pylist(), dtype=np.float32), vectors(2))
