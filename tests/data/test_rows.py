"""Rows: their packing, the order of an epoch, the stream that resumes anywhere, and classes of documents in them."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.stored_tokens import drawn_segments, epoch_of, segments_of, store_of
from tests.tokenizer.families import bare_characters
from unmask.core.errors import DataError
from unmask.core.files import file_sha256
from unmask.core.hashing import mix
from unmask.data import data_folder as folder_module
from unmask.data import packing as order_module
from unmask.data.data_folder import load_manifest, save_shard, token_rows
from unmask.data.packing import LEAST_CUT, EpochOrder, pack_pieces
from unmask.data.pairs import PairKind
from unmask.data.rows import Cursor, RowBatch, RowStream
from unmask.data.store import ShardCounts, ShardFile, TokenStore
from unmask.tokenizer.tokenizer import Tokenizer


def pack(lengths: list[int], row_length: int, overhead: int) -> list[list[tuple[int, ...]]]:
    packed = pack_pieces(np.array(lengths, dtype=np.int64), row_length=row_length, overhead=overhead)
    rows = [[part for parts, _ in row for part in parts] for row in segments_of(packed)]
    assert packed.pieces() == [[piece for piece, _, _ in row] for row in rows]
    return rows


@pytest.mark.parametrize(
    ("lengths", "row_length", "overhead", "rows"),
    [
        ([3, 5, 2, 4, 1], 6, 0, [[(1, 0, 5), (4, 0, 1)], [(3, 0, 4), (2, 0, 2)], [(0, 0, 3)]]),
        # Rows with room for 4 and for 3 are open when the piece of 3 comes: it goes into the one that it fills.
        ([6, 7, 3], 10, 0, [[(1, 0, 7), (2, 0, 3)], [(0, 0, 6)]]),
        # Special tokens take room.
        ([2, 2], 6, 2, [[(0, 0, 2)], [(1, 0, 2)]]),
        ([2, 2], 8, 2, [[(0, 0, 2), (1, 0, 2)]]),
        # 47 = a whole row of 20, and 27, of which 13 fill the room beside the short piece.
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


COUNTS = ShardCounts(np.array([7, 0, 40, 5, 3, 12, 1, 9]), np.array([700, 0, 400, 900, 3000, 120, 100, 2000]))
STORE: Any = SimpleNamespace(counts=COUNTS)


def windows(order: EpochOrder, epoch: int) -> list[list[int]]:
    return [order.pieces(epoch, window).tolist() for window in range(order.num_windows(epoch))]


def test_an_epoch_of_blocks_has_every_piece_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("MIXED_PIECES", 1), ("WINDOW_TOKENS", 300), ("BLOCK_PIECES", 30), ("BLOCK_TOKENS", 1500)):
        monkeypatch.setattr(order_module, name, number)
    order = EpochOrder(STORE, seed=3)
    epochs = [windows(order, epoch) for epoch in range(3)]
    for epoch in epochs:
        assert all(epoch), "no window is empty"
        assert sorted(chain(*epoch)) == list(range(77))
    assert epochs[0] != epochs[1] != epochs[2]
    assert windows(EpochOrder(STORE, seed=4), 0) != epochs[0]
    again = EpochOrder(STORE, seed=3)
    assert again.pieces(1, 4).tolist() == epochs[1][4], "a window is made without those before it"
    assert again.num_windows(1) == len(epochs[1])
    shard_of = np.repeat(np.arange(8), COUNTS.pieces)
    assert any(len(set(shard_of[window])) > 1 for window in epochs[0]), "windows of a block mix its shards"
    first = [*epochs[0][0], *epochs[0][1]]
    assert first != sorted(first)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # a thread may make the next block's windows while another makes those of this one
    try:
        with ThreadPoolExecutor(4) as threads:
            number = [*range(len(epochs[0]))] * 100
            assert list(threads.map(lambda n: order.pieces(0, n).tolist(), number)) == epochs[0] * 100
    finally:
        sys.setswitchinterval(interval)


def write_shards(root: Path, number: int, first_id: int = 0) -> list[ShardFile]:
    """Shards of a few record batches, each piece with other numbers than all others."""
    files, piece = [], 0
    for shard in range(number):
        batches = []
        for batch in range(1 + shard % 3):
            lengths = np.arange(1, 4 + batch)
            numbers = np.arange(piece, piece := piece + len(lengths))
            ids = np.repeat(numbers + first_id, lengths).astype(np.uint32 if first_id else np.uint16)
            columns = {"document": numbers, "offset": numbers * 7, "num_bytes": numbers * 11}
            batches.append(token_rows(ids, ids % 2 == 0, lengths, columns))
        file = save_shard(root, f"train/{shard:05d}.arrow", batches)
        assert file is not None
        assert file.sha256 == file_sha256(root / file.name)
        files.append(file)
    assert save_shard(root, "train/none.arrow", []) is None
    return files


@pytest.mark.parametrize("first_id", [0, 70_000])
def test_any_pieces_of_many_shards(tmp_path: Path, first_id: int) -> None:
    """Ids of 16 bits, and of more."""
    files = write_shards(tmp_path, 9, first_id)
    store = TokenStore([tmp_path / file.name for file in files], files)
    plain = TokenStore([tmp_path / file.name for file in files])
    lengths = store.column("lengths")
    assert len(store) == len(plain) == sum(file.pieces for file in files) == len(lengths)
    assert store.num_tokens == plain.num_tokens == lengths.sum()
    for numbers in ([0], range(len(store))[::-1], [3, 40, 17, 18], [60, 61]):
        rows, pieces = store.gather(np.array(numbers)), np.sort(numbers)
        assert np.array_equal([rows.piece, rows.document, rows.draw, rows.offset // 7], [pieces] * 4)
        assert np.array_equal(rows.lengths, lengths[pieces])
        assert np.array_equal(rows.input_ids, np.repeat(pieces + first_id, lengths[pieces]))
        assert np.array_equal(rows.word_starts, rows.input_ids % 2 == 0)


@pytest.mark.parametrize("ahead", [False, True])
def test_large_data_is_checked_when_it_is_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, data_folder: Path, ahead: bool
) -> None:
    """Also if a thread reads ahead: the window with data of a damaged shard is an error, but no earlier window."""
    files = write_shards(tmp_path, 12)
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


def test_the_drawing_of_rows_is_true(store: TokenStore, tokenizer: Tokenizer) -> None:
    stream = RowStream(store, tokenizer, length=32, seed=0)
    for batch in islice(stream.batches(Cursor(), 8), 5):
        rows = batch.rows
        for r in range(len(rows.input_ids)):
            ids, numbers = rows.input_ids[r], rows.segment_ids[r]
            begins = torch.cat([torch.tensor([True]), numbers[1:] != numbers[:-1]]) & (numbers >= 0)
            assert torch.equal(begins, rows.position_ids[r].eq(0) & (numbers >= 0))
            assert torch.equal(ids == tokenizer.special.cls, begins)
            assert (ids[numbers < 0] == tokenizer.special.pad).all()
            text = (numbers >= 0) & (ids != tokenizer.special.cls) & (ids != tokenizer.special.sep)
            assert torch.equal(rows.maskable[r], text & (ids != tokenizer.special.unk))
            assert not rows.word_starts[r][~text].any()
            first = torch.roll(begins, 1) & text
            assert rows.word_starts[r][first].all()
        for _, r, places in drawn_segments([batch]):
            assert rows.input_ids[r, places[-1]] == tokenizer.special.sep
            assert rows.position_ids[r, places].tolist() == list(range(len(places)))
            assert len(set(rows.segment_keys[r, places].tolist())) == 1


@pytest.mark.parametrize("changes", [False, True])
def test_a_window_made_ahead_and_a_new_stream_give_the_same(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    """Also after the end of an epoch, and when the row length changes."""
    monkeypatch.setattr(order_module, "WINDOW_TOKENS", 500)  # several windows an epoch
    in_time, ahead = (RowStream(store, tokenizer, length=24, seed=3, ahead=ahead) for ahead in (False, True))
    cursor, windows = Cursor(), set()
    while cursor.epoch < 2:
        length = 40 if changes and cursor.window % 3 == 1 else 24
        expected = in_time.batch(cursor, 5, length)
        others = [ahead] if cursor.row % 4 else [ahead, RowStream(store, tokenizer, length=24, seed=3)]
        for batch in (other.batch(cursor, 5, length) for other in others):
            assert torch.equal(expected.rows.input_ids, batch.rows.input_ids)
            assert torch.equal(expected.rows.segment_keys, batch.rows.segment_keys)
            assert (expected.cursor, expected.epoch, expected.num_tokens) == (
                batch.cursor,
                batch.epoch,
                batch.num_tokens,
            )
        windows.add((cursor.epoch, cursor.window))
        cursor = expected.cursor
    assert len(windows) > 10


def test_the_length_changes_within_a_window_and_nothing_is_lost(store: TokenStore, tokenizer: Tokenizer) -> None:
    """Rows of 16, then 24, then 64 positions in one epoch: every token of the text once, whatever was cut before."""
    stream = RowStream(store, tokenizer, length=64, seed=3)
    cursor, tokens, number, num_tokens = Cursor(), Counter[int](), 0, 0
    while cursor.epoch == 0:
        length = 16 if number < 4 else 24 if number < 9 else 64
        batch = stream.batch(cursor, 6, length)
        assert batch.rows.shape[1] == length
        assert batch.cursor == Cursor.from_plain(json.loads(json.dumps(asdict(batch.cursor))))
        tokens.update(batch.rows.input_ids[batch.rows.segment_ids >= 0].tolist())
        cursor, number, num_tokens = batch.cursor, number + 1, num_tokens + batch.num_tokens
    assert number > 12
    assert num_tokens == store.num_tokens
    for special in tokenizer.special.around:
        del tokens[special]
    assert tokens == Counter(store.gather(np.arange(len(store))).input_ids.tolist())
    assert cursor.lengths == ((0, 64),), "the next window begins with the length of the last"


def first_ordinary(tokenizer: Tokenizer) -> int:
    return int(np.flatnonzero(tokenizer.ordinary)[0])


def numbered_documents(folder: Path, tokenizer: Tokenizer, lengths: list[int], labels: list[int]) -> TokenStore:
    """Documents whose tokens all encode their number: document 7 repeats the first ordinary token + 7."""
    ids = [np.full(length, first_ordinary(tokenizer) + number) for number, length in enumerate(lengths)]
    starts = [np.ones(length, dtype=bool) for length in lengths]
    return store_of(folder, ids, starts=starts, documents=range(len(lengths)), labels=labels)


def labelled_segments(stream: RowStream) -> Iterator[tuple[list[int], int]]:
    """Ids and class of every segment of an epoch; only the first position has a class."""
    batches = epoch_of(stream)
    for rows in (batch.rows for batch in batches):
        first = (rows.position_ids == 0) & (rows.segment_ids >= 0)
        assert (rows.classes["label"][~first] == -1).all()
    for rows, r, places in drawn_segments(batches):
        yield rows.input_ids[r, places].tolist(), int(rows.classes["label"][r, places[0]])


def test_every_segment_carries_the_class_of_its_document(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A document of 60 tokens in rows of 16 too, in each of its pieces."""
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(1, 14, 38).tolist(), 60, 33]
    labels = rng.integers(-1, 3, 40).tolist()
    store, a = numbered_documents(tmp_path, tokenizer, lengths, labels), first_ordinary(tokenizer)
    stream = RowStream(store, tokenizer, length=16, seed=0, with_labels=True)
    segments = [(ids[1] - a, label) for ids, label in labelled_segments(stream)]
    assert set(segments) == set(enumerate(labels))
    assert segments.count((38, labels[38])) >= 5
    assert segments.count((39, labels[39])) >= 3


@pytest.mark.parametrize("kind", ["next_sentence", "sentence_order"])
def test_pairs_have_the_class_that_both_halves_have(tokenizer: Tokenizer, tmp_path: Path, kind: PairKind) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(-1, 2, 60).tolist()
    store = numbered_documents(tmp_path, tokenizer, rng.integers(2, 13, 60).tolist(), labels)
    a = first_ordinary(tokenizer)
    stream = RowStream(store, tokenizer, length=16, seed=0, pairs=kind, with_labels=True)
    assert set(stream.batch(Cursor(), 4).rows.classes) == {kind, "label"}
    mixed = alike = 0
    for ids, label in labelled_segments(stream):
        documents = {token - a for token in ids if token >= a}
        classes = {labels[document] for document in documents}
        assert label == (classes.pop() if len(classes) == 1 else -1)
        mixed += len(documents) == 2 and label == -1
        alike += len(documents) == 2 and label >= 0
    assert (mixed > 3 and alike > 1) if kind == "next_sentence" else mixed == alike == 0


def test_without_cls_the_first_token_of_the_text_is_never_masked(tmp_path: Path) -> None:
    """The class is predicted from it. Without labels, every token may be masked."""
    tokenizer = bare_characters()
    store = numbered_documents(tmp_path, tokenizer, [9, 40, 5, 12], [0, 1, 0, 1])
    with_labels, without = (
        RowStream(store, tokenizer, length=16, seed=0, with_labels=labelled).batch(Cursor(), 16).rows
        for labelled in (True, False)
    )
    assert torch.equal(with_labels.input_ids, without.input_ids)
    first = (with_labels.position_ids == 0) & (with_labels.segment_ids >= 0)
    assert torch.equal(with_labels.classes["label"] >= 0, first)
    assert torch.equal(with_labels.maskable, without.maskable & ~first)
    assert without.maskable[first].all()


def test_rows_that_cannot_be(store: TokenStore, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="no room for text"):
        RowStream(store, tokenizer, length=2, seed=0)
    with pytest.raises(DataError, match=r"without classes"):
        RowStream(store, tokenizer, length=16, seed=0, with_labels=True)


# Hashes of the rows of the first implementation, in plain loops: a resumed run must get the same rows as before.
DIGESTS = {
    (None, (20,)): "96381caaee987c25",
    (None, (64, 12, 33)): "701b9deac8618f42",
    ("next_sentence", (40,)): "076cc00255e47849",
    ("next_sentence", (64, 12, 33)): "ea31cf5a3b481101",
    ("sentence_order", (40,)): "34a2e31bd0f202a2",
    ("sentence_order", (64, 12, 33)): "67652a6858763b3e",
}


@pytest.mark.parametrize(("pairs", "lengths"), DIGESTS)
def test_rows_stay_what_they_are(
    pairs: PairKind | None,
    lengths: tuple[int, ...],
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit for bit, of texts of 0 to 90 tokens; see `DIGESTS`."""
    monkeypatch.setattr(order_module, "WINDOW_TOKENS", 4000)
    bits = mix(np.arange(40_000, dtype=np.int64))
    sizes = np.concatenate([bits[:300] % 91, [700, 0, 1]])
    ends = np.cumsum(sizes)
    ids = np.split(5 + bits[: ends[-1]] % 50, ends[:-1])
    starts = np.split((bits[: ends[-1]] >> 20) % 3 == 0, ends[:-1])
    store = store_of(tmp_path, ids, starts=starts, documents=(np.arange(len(sizes)) // 2).tolist())
    stream = RowStream(store, tokenizer, length=lengths[0], seed=5, pairs=pairs)
    digest, cursor, number = hashlib.sha256(), Cursor(), 0
    while cursor.epoch < 2:
        batch = stream.batch(cursor, 7, lengths[number // 3 % len(lengths)])
        rows = batch.rows
        columns = [rows.input_ids, rows.segment_ids, rows.position_ids, rows.word_starts, rows.segment_keys]
        for column in [*columns, *rows.classes.values()]:
            digest.update(column.to(torch.int64).numpy().tobytes())
        digest.update(batch.documents.tobytes())
        cursor, number = batch.cursor, number + 1
    assert digest.hexdigest()[:16] == DIGESTS[pairs, lengths]
