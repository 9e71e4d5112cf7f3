"""Shards that are mapped when something of them is wanted, and checked then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unmask.core.errors import DataError
from unmask.data import data_folder as opening
from unmask.data import packing as order_module
from unmask.data import store as mapped
from unmask.data.data_folder import load_manifest
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import ShardFile, ShardWriter, TokenBatch, TokenStore
from unmask.tokenizer.tokenizer import Tokenizer


def write_shards(root: Path, number: int, *, vocab_size: int = 1000) -> list[ShardFile]:
    """Shards of a few record batches, each piece with other numbers than all others."""
    written, piece = [], 0
    for shard in range(number):
        writer = ShardWriter(root, f"train/{shard:05d}.arrow", vocab_size=vocab_size)
        for batch in range(1 + shard % 3):
            lengths = np.arange(1, 4 + batch)
            numbers = np.arange(piece, piece := piece + len(lengths))
            ids = np.repeat(numbers, lengths).astype(np.int32)
            writer.write(TokenBatch(ids, ids % 2 == 0, lengths, numbers, numbers * 7, numbers * 11))
        file = writer.save()
        assert file is not None
        written.append(file)
    return written


@pytest.mark.parametrize("most", [1, 2, 100])
def test_any_pieces_of_many_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(mapped, "MOST_OPEN", most)
    files = write_shards(tmp_path, 9)
    store = TokenStore([tmp_path / file.name for file in files], files)
    plain = TokenStore([tmp_path / file.name for file in files])
    assert len(store) == len(plain) == sum(file.pieces for file in files) == len(store.column("lengths"))
    assert store.num_tokens == plain.num_tokens == store.column("lengths").sum()
    for pieces in (np.array([0]), np.arange(len(store))[::-1], np.array([3, 40, 17, 18]), np.array([60, 61])):
        found = store.gather(pieces)
        assert found.piece.tolist() == sorted(pieces)
        assert found.document.tolist() == found.draw.tolist() == sorted(pieces)
        assert found.offset.tolist() == [7 * piece for piece in sorted(pieces)]
        assert found.lengths.tolist() == store.column("lengths")[np.sort(pieces)].tolist()
        assert found.input_ids.tolist() == [p for p in sorted(pieces) for _ in range(store.column("lengths")[p])]
        assert found.word_starts.tolist() == [int(p % 2 == 0) for p in found.input_ids.tolist()]
        assert len(store._open) <= most
    assert store.gather(np.array([40])).input_ids[:1].tolist() == [40]


@pytest.mark.parametrize("ahead", [False, True])
def test_large_data_is_checked_when_it_is_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, data_folder: Path, ahead: bool
) -> None:
    """Also where a thread reads it: the window that has something of a damaged shard is an error, not one before."""
    files = write_shards(tmp_path, 12, vocab_size=tokenizer.vocab_size)
    for name, number in (("MIXED_PIECES", 1), ("BLOCK_TOKENS", 20), ("WINDOW_TOKENS", 10)):
        monkeypatch.setattr(order_module, name, number)
    monkeypatch.setattr(opening, "CHECKED_AT_ONCE", 0)
    manifest = load_manifest(data_folder)
    split = replace(manifest.train, files=tuple(files), tokens=sum(file.tokens for file in files))
    stream = RowStream(opening.open_split(tmp_path, manifest, split), tokenizer, length=16, seed=0, ahead=ahead)
    last = stream.store._before.searchsorted(stream._order.pieces(0, stream._order.num_windows(0) - 1)[0], "right")
    path = tmp_path / files[int(last) - 1].name
    path.write_bytes(path.read_bytes()[:-8] + b"otherend")
    taken: list[int] = []

    def epoch() -> None:
        for batch in stream.batches(Cursor(), 1):
            taken.append(batch.num_tokens)
            if batch.cursor.epoch:
                return

    with pytest.raises(DataError, match=rf"{path}: its content does not fit the checksum; prepare the data again"):
        epoch()
    assert 0 < sum(taken) < split.tokens
