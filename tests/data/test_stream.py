from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict
from itertools import islice

import numpy as np
import pytest
import torch

from tests.data.fake_store import FakeStore
from tests.data.segments import drawn_segments, epoch_of
from unmask.core.errors import DataError
from unmask.core.hashing import mix
from unmask.data import packing as order_module
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture(params=[64, 20])
def stream(request: pytest.FixtureRequest, store: TokenStore, tokenizer: Tokenizer) -> RowStream:
    return RowStream(store, tokenizer, length=request.param, seed=7)


def test_an_epoch_holds_every_token_once(stream: RowStream, store: TokenStore, tokenizer: Tokenizer) -> None:
    """Every segment is a document, or pieces of one that join without gap or overlap."""
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    batches = epoch_of(stream)
    segments: Counter[tuple[int, ...]] = Counter()
    for rows, r, places in drawn_segments(batches):
        first, *ids, last = rows.input_ids[r, places].tolist()
        assert (first, last) == (cls, sep)
        segments[tuple(ids)] += 1
    assert sum(batch.num_tokens for batch in batches) == store.num_tokens
    tokens = Counter(token for segment, times in segments.items() for token in segment * times)
    texts = [store.gather(np.array([i])).input_ids.tolist() for i in range(len(store))]
    assert tokens == Counter(token for text in texts for token in text)
    short = Counter(tuple(text) for text in texts if len(text) <= stream.length - 2)
    assert len(short) > 5 or stream.length == 20
    assert all(segments[text] >= times for text, times in short.items()), "a document that fits a row is never cut"


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
            assert rows.position_ids[r, places].tolist() == list(range(len(places)))
            assert len(set(rows.segment_keys[r, places].tolist())) == 1


@pytest.mark.parametrize("changes", [False, True])
def test_a_window_made_ahead_and_a_new_stream_give_the_same(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    """Behind an epoch's end too, and where the rows' length changes."""
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


# Of the rows since they were first packed by loops over objects: a resumed run gets the rows that it had.
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
    pairs: str | None, lengths: tuple[int, ...], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, of texts of 0 to 90 tokens; see `DIGESTS`."""
    monkeypatch.setattr(order_module, "WINDOW_TOKENS", 4000)
    bits = mix(np.arange(40_000, dtype=np.int64))
    sizes = np.concatenate([bits[:300] % 91, [700, 0, 1]])
    ends = np.cumsum(sizes)
    ids = np.split(5 + bits[: ends[-1]] % 50, ends[:-1])
    starts = np.split((bits[: ends[-1]] >> 20) % 3 == 0, ends[:-1])
    store = FakeStore(ids, starts=starts, documents=(np.arange(len(sizes)) // 2).tolist())
    stream = RowStream(store, tokenizer, length=lengths[0], seed=5, pairs=pairs)  # type: ignore[arg-type]
    digest, cursor, number = hashlib.sha256(), Cursor(), 0
    while cursor.epoch < 2:
        batch = stream.batch(cursor, 7, lengths[number // 3 % len(lengths)])
        rows = batch.rows
        columns = [rows.input_ids, rows.segment_ids, rows.position_ids, rows.word_starts, rows.segment_keys]
        for column in [*columns, *rows.classes.values()]:
            digest.update(column.to(torch.int64).numpy().tobytes())
        assert batch.documents is not None
        digest.update(batch.documents.tobytes())
        cursor, number = batch.cursor, number + 1
    assert digest.hexdigest()[:16] == DIGESTS[pairs, lengths]


def test_rows_without_room(store: TokenStore, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="no room for text"):
        RowStream(store, tokenizer, length=2, seed=0)


def test_the_length_changes_within_a_window_and_nothing_is_lost(store: TokenStore, tokenizer: Tokenizer) -> None:
    """Rows of 16, then 24, then 64 positions in one epoch: every token of the text once, whatever was cut before."""
    stream = RowStream(store, tokenizer, length=64, seed=3)
    cursor, tokens, number = Cursor(), Counter[int](), 0
    while cursor.epoch == 0:
        length = 16 if number < 4 else 24 if number < 9 else 64
        batch = stream.batch(cursor, 6, length)
        assert batch.rows.shape[1] == length
        again = RowStream(store, tokenizer, length=64, seed=3).batch(cursor, 6, length)
        assert torch.equal(again.rows.input_ids, batch.rows.input_ids), "a place gives the same rows to a new stream"
        assert again.cursor == batch.cursor == Cursor.from_plain(json.loads(json.dumps(asdict(batch.cursor))))
        tokens.update(batch.rows.input_ids[batch.rows.segment_ids >= 0].tolist())
        cursor, number = batch.cursor, number + 1
    assert number > 12
    for special in tokenizer.special.around:
        del tokens[special]
    assert tokens == Counter(store.gather(np.arange(len(store))).input_ids.tolist())
    assert cursor.lengths == ((0, 64),), "the next window begins with the length of the last"
