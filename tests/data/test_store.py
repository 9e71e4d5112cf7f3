"""Shards come back as they were written, and damage of a data folder is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from unmask.commands.run_data import open_prepared
from unmask.core.errors import DataError
from unmask.core.files import file_sha256
from unmask.data.data_folder import Manifest, load_manifest, open_split
from unmask.data.store import ShardWriter, TokenBatch, TokenStore


def test_a_shard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    lengths = np.array([5, 1, 3])
    ids = np.arange(9, dtype=np.int32) + 70_000
    starts = np.array([True, False, False, True, False, True, True, False, True])
    columns = np.array([3, 3, 8]), np.array([0, 10, 0]), np.array([10, 2, 6])
    writer = ShardWriter(tmp_path, "train/00000.arrow", vocab_size=100_000)
    writer.write(TokenBatch(ids, starts, lengths, *columns))
    writer.write(TokenBatch(ids, starts, lengths, *columns).select(np.array([False, True, True])))
    file = writer.save()
    assert file is not None
    assert (file.pieces, file.tokens, file.sha256) == (5, 13, file_sha256(tmp_path / file.name))
    store = TokenStore([tmp_path / file.name])
    everything, some = store.gather(np.arange(5)), store.gather(np.array([4, 0, 3]))
    assert everything.input_ids.tolist() == [*range(70_000, 70_009), *range(70_005, 70_009)]
    assert everything.word_starts.tolist() == [1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1]
    assert some.input_ids.tolist() == [*range(70_000, 70_009)], "in the order of the pieces: 0, 3 and 4"
    assert some.word_starts.tolist() == [1, 0, 0, 1, 0, 1, 1, 0, 1]
    columns = [store.column(name).tolist() for name in ("document", "offset", "num_bytes")]
    assert columns == [[3, 3, 8, 3, 8], [0, 10, 0, 10, 0], [10, 2, 6, 2, 6]]
    assert ShardWriter(tmp_path, "train/00001.arrow", vocab_size=9).save() is None
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["00000.arrow"]


def test_damage_is_found(data_folder: Path, manifest: Manifest, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(data_folder, root)
    shard, file = root / manifest.train.files[0].name, root / "manifest.json"
    text, content = file.read_text(), bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        open_split(root, manifest, manifest.train)
    shard.unlink()
    with pytest.raises(DataError, match=shard.name):
        open_prepared(root)
    changed = text.replace(manifest.train.files[0].sha256, "0")
    for damaged in (text[:-200].encode(), b"\xff\xfe\x80", changed.encode()):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"manifest\.json"):
            load_manifest(root)
    with pytest.raises(DataError, match=r"manifest\.json; .*unmask prepare"):
        load_manifest(tmp_path)


def test_chunks_are_the_store_in_order(store: TokenStore) -> None:
    """Whole pieces, as many as fit, whatever the size; together they are everything."""
    whole = store.gather(np.arange(len(store)))
    for size in (1, 50, 999, 10**9):
        chunks = list(store.chunks(size))
        for name in ("lengths", "input_ids", "word_starts"):
            column = np.concatenate([getattr(chunk, name) for chunk in chunks])
            assert np.array_equal(column, getattr(whole, name))
        for chunk in chunks:
            assert len(chunk.input_ids) == len(chunk.word_starts) == chunk.lengths.sum()
            assert len(chunk.input_ids) <= size or len(chunk.lengths) == 1
    assert len(list(store.chunks(1))) == len(store)
