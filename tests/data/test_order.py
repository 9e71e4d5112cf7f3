"""The order of an epoch of large splits, in blocks of shards that are mapped and checked when they are read."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unmask.core.errors import DataError
from unmask.data import data_folder as folder_module
from unmask.data import packing as order_module
from unmask.data import store as store_module
from unmask.data.data_folder import load_manifest
from unmask.data.packing import EpochOrder
from unmask.data.rows import Cursor, RowBatch, RowStream
from unmask.data.store import ShardCounts, ShardFile, ShardWriter, TokenBatch, TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

COUNTS = ShardCounts(np.array([7, 0, 40, 5, 3, 12, 1, 9]), np.array([700, 0, 400, 900, 3000, 120, 100, 2000]))
STORE: Any = SimpleNamespace(counts=COUNTS)


def windows(order: EpochOrder, epoch: int) -> list[list[int]]:
    return [order.pieces(epoch, window).tolist() for window in range(order.num_windows(epoch))]


def test_an_epoch_of_blocks_has_every_piece_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("MIXED_PIECES", 1), ("WINDOW_TOKENS", 300), ("BLOCK_PIECES", 30), ("BLOCK_TOKENS", 1500)):
        monkeypatch.setattr(order_module, name, number)
    order = EpochOrder(STORE, seed=3, shuffle=True)
    epochs = [windows(order, epoch) for epoch in range(3)]
    for epoch in epochs:
        assert all(epoch), "no window is empty"
        assert sorted(chain(*epoch)) == list(range(77))
    assert epochs[0] != epochs[1] != epochs[2]
    assert list(chain(*windows(EpochOrder(STORE, seed=3, shuffle=False), 0))) == list(range(77))
    assert windows(EpochOrder(STORE, seed=4, shuffle=True), 0) != epochs[0]
    again = EpochOrder(STORE, seed=3, shuffle=True)
    assert again.pieces(1, 4).tolist() == epochs[1][4], "a window is made without those before it"
    assert again.num_windows(1) == len(epochs[1])
    shard_of = np.repeat(np.arange(8), COUNTS.pieces)
    assert any(len(set(shard_of[window])) > 1 for window in epochs[0]), "windows of a block mix its shards"
    first = [*epochs[0][0], *epochs[0][1]]
    assert first != sorted(first)


def test_a_stream_of_blocks_has_every_token_once(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "MIXED_PIECES", 1)
    monkeypatch.setattr(order_module, "WINDOW_TOKENS", 500)
    stream = RowStream(store, tokenizer, length=64, seed=0, ahead=True)
    tokens = [0, 0]
    for batch in takewhile(lambda batch: batch.epoch < 2, stream.batches(Cursor(), 7)):
        tokens[batch.epoch] += batch.num_tokens
    assert tokens == [store.num_tokens] * 2


def write_shards(root: Path, number: int, *, vocab_size: int = 1000) -> list[ShardFile]:
    """Shards of a few record batches, each piece with other numbers than all others."""
    files, piece = [], 0
    for shard in range(number):
        writer = ShardWriter(root, f"train/{shard:05d}.arrow", vocab_size=vocab_size)
        for batch in range(1 + shard % 3):
            lengths = np.arange(1, 4 + batch)
            numbers = np.arange(piece, piece := piece + len(lengths))
            ids = np.repeat(numbers, lengths).astype(np.int32)
            writer.write(TokenBatch(ids, ids % 2 == 0, lengths, numbers, numbers * 7, numbers * 11))
        file = writer.save()
        assert file is not None
        files.append(file)
    return files


@pytest.mark.parametrize("most", [1, 2, 100])
def test_any_pieces_of_many_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(store_module, "MOST_OPEN", most)
    files = write_shards(tmp_path, 9)
    store = TokenStore([tmp_path / file.name for file in files], files)
    plain = TokenStore([tmp_path / file.name for file in files])
    lengths = store.column("lengths")
    assert len(store) == len(plain) == sum(file.pieces for file in files) == len(lengths)
    assert store.num_tokens == plain.num_tokens == lengths.sum()
    for numbers in ([0], range(len(store))[::-1], [3, 40, 17, 18], [60, 61]):
        rows, pieces = store.gather(np.array(numbers)), np.sort(numbers)
        assert np.array_equal([rows.piece, rows.document, rows.draw, rows.offset // 7], [pieces] * 4)
        assert np.array_equal(rows.lengths, lengths[pieces])
        assert np.array_equal(rows.input_ids, np.repeat(pieces, lengths[pieces]))
        assert np.array_equal(rows.word_starts, rows.input_ids % 2 == 0)


@pytest.mark.parametrize("ahead", [False, True])
def test_large_data_is_checked_when_it_is_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, data_folder: Path, ahead: bool
) -> None:
    """Also where a thread reads it: the window that has something of a damaged shard is an error, not one before."""
    files = write_shards(tmp_path, 12, vocab_size=tokenizer.vocab_size)
    for name, number in (("MIXED_PIECES", 1), ("BLOCK_TOKENS", 20), ("WINDOW_TOKENS", 10)):
        monkeypatch.setattr(order_module, name, number)
    monkeypatch.setattr(folder_module, "CHECKED_AT_ONCE", 0)
    manifest = load_manifest(data_folder)
    split = replace(manifest.train, files=tuple(files), tokens=sum(file.tokens for file in files))
    stream = RowStream(folder_module.open_split(tmp_path, manifest, split), tokenizer, length=16, seed=0, ahead=ahead)
    last = stream.store._before.searchsorted(stream._order.pieces(0, stream._order.num_windows(0) - 1)[0], "right")
    path = tmp_path / files[int(last) - 1].name
    path.write_bytes(path.read_bytes()[:-8] + b"otherend")
    batches: list[RowBatch] = []
    with pytest.raises(DataError, match=rf"{path}: .*checksum"):
        batches.extend(takewhile(lambda batch: batch.epoch == 0, stream.batches(Cursor(), 1)))
    assert 0 < sum(batch.num_tokens for batch in batches) < split.tokens
