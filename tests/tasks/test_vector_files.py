"""Files of vectors that cannot be written, or ids that cannot: one line says so, and no half of a file is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from unmask.commands.embed import VectorFile, check_out
from unmask.core.errors import CorpusError, RunError

FULL = Path("/dev/full")
KINDS = (".npy", ".parquet")


def vectors(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)


def write(out: Path, meanwhile: Callable[[], object]) -> None:
    with VectorFile(out, 8) as file:
        file.add([1, 2], vectors(2))
        meanwhile()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2**63], "the id 9223372036854775808 does not fit into 64 bits; give ids as texts"),
        ([-(2**63) - 1, 1], "the id -9223372036854775809 does not fit into 64 bits"),
        (["a", "b\ud800"], r"the id 'b\\ud800' holds U\+D800, which is no character; take it out"),
    ],
)
def test_ids_that_cannot_be_stored(tmp_path: Path, ids: list[str | int], message: str) -> None:
    with pytest.raises(CorpusError, match=message), VectorFile(tmp_path / "v.parquet", 8) as file:
        file.add(ids, vectors(2))
    assert list(tmp_path.iterdir()) == []
    with VectorFile(tmp_path / "v.npy", 8) as file:  # which keeps none
        file.add(ids, vectors(2))
    assert np.array_equal(np.load(tmp_path / "v.npy"), vectors(2))


def test_the_largest_ids_are_stored(tmp_path: Path) -> None:
    ids = [2**63 - 1, -(2**63)]
    with VectorFile(tmp_path / "v.parquet", 8) as file:
        file.add(ids, vectors(2))
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.column("id").to_pylist() == ids
    assert np.array_equal(np.array(table.column("embedding").to_pylist(), dtype=np.float32), vectors(2))


@pytest.mark.skipif(not FULL.exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 100_000])
def test_a_full_disk(tmp_path: Path, kind: str, rows: int) -> None:
    """Noticed at the end where little is written, and in the middle else."""
    out = tmp_path / f"v{kind}"
    (tmp_path / f"v{kind}.partial").symlink_to(FULL)
    with (
        pytest.raises(RunError, match=rf"v\{kind}: vectors cannot be written there \(No space left on device\); mend"),
        VectorFile(out, 8) as file,
    ):
        file.add(list(range(rows)), vectors(rows))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_opened_or_replaced(tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"v{kind}"
    taken = tmp_path / f"v{kind}.partial"
    taken.mkdir()
    with pytest.raises(RunError, match=r"vectors cannot be written there \(.+\); mend that"), VectorFile(out, 8):
        pytest.fail("it was opened")
    taken.rmdir()
    with pytest.raises(RunError, match="vectors cannot be written there"):
        write(out, out.mkdir)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_another_error_is_not_hidden_by_that_of_closing(tmp_path: Path) -> None:
    if FULL.exists():
        (tmp_path / "v.npy.partial").symlink_to(FULL)
    with pytest.raises(KeyError, match="mine"):
        write(tmp_path / "v.npy", lambda: {}["mine"])
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nobody_may_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **options: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", refuse)
        with pytest.raises(RunError, match=r"v\.npy: vectors cannot be written there \(Permission denied\)"):
            check_out(tmp_path / "v.npy", overwrite=False)
