"""Classes of documents in rows: at the first token of every segment, of pieces and pairs too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_text
from tests.data.corpora import write_jsonl
from tests.data.fake_store import FakeStore
from tests.data.segments import drawn_segments, epoch_of
from unmask.core.errors import DataError
from unmask.data.prepare import prepare
from unmask.data.rows import Cursor, RowStream
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings


def store_of(lengths: list[int], labels: list[int], first: int) -> FakeStore:
    """Documents whose tokens are all the same and tell their number: document 7 is `first + 7`, again and again."""
    ids = [np.full(length, first + number) for number, length in enumerate(lengths)]
    starts = [np.ones(length, dtype=np.int64) for length in lengths]
    return FakeStore(ids, starts=starts, documents=range(len(lengths)), labels=labels)


def first_ordinary(tokenizer: Tokenizer) -> int:
    return int(np.flatnonzero(tokenizer.ordinary)[0])


def stream_of(
    store: FakeStore, tokenizer: Tokenizer, pairs: str | None = None, length: int = 16, **options: bool
) -> RowStream:
    return RowStream(store, tokenizer, length=length, seed=0, pairs=pairs, with_labels=True, **options)  # type: ignore[arg-type]


def labelled_segments(stream: RowStream) -> Iterator[tuple[list[int], int]]:
    """Ids and class of every segment of an epoch; a class stands nowhere but at the first place."""
    batches = epoch_of(stream)
    for rows in (batch.rows for batch in batches):
        first = (rows.position_ids == 0) & (rows.segment_ids >= 0)
        assert (rows.classes["label"][~first] == -1).all()
    for rows, r, places in drawn_segments(batches):
        yield rows.input_ids[r, places].tolist(), int(rows.classes["label"][r, places[0]])


def test_a_batch_by_hand(tokenizer: Tokenizer) -> None:
    """[CLS] a a a [SEP] [CLS] b b [SEP], and a document without a class in the row behind it."""
    a = first_ordinary(tokenizer)
    batch = stream_of(store_of([3, 2, 7], [4, 1, -1], a), tokenizer, length=9, shuffle=False).batch(Cursor(), 2)
    order = [row.tolist()[1] for row in batch.rows.input_ids]
    row = order.index(a)
    assert batch.rows.input_ids[row].tolist() == [2, a, a, a, 3, 2, a + 1, a + 1, 3]
    assert batch.rows.classes["label"][row].tolist() == [4, -1, -1, -1, -1, 1, -1, -1, -1]
    assert batch.rows.classes["label"][1 - row].tolist() == [-1] * 9


def test_every_segment_carries_the_class_of_its_document(tokenizer: Tokenizer) -> None:
    """A document of 60 tokens in rows of 16 too, in each of its pieces."""
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(1, 14, 38).tolist(), 60, 33]
    labels = rng.integers(-1, 3, 40).tolist()
    a = first_ordinary(tokenizer)
    segments = [
        (ids[1] - a, label) for ids, label in labelled_segments(stream_of(store_of(lengths, labels, a), tokenizer))
    ]
    assert set(segments) == set(enumerate(labels))
    assert segments.count((38, labels[38])) >= 5
    assert segments.count((39, labels[39])) >= 3


@pytest.mark.parametrize("kind", ["next_sentence", "sentence_order"])
def test_pairs_have_the_class_that_both_halves_have(tokenizer: Tokenizer, kind: str) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(-1, 2, 60).tolist()
    a = first_ordinary(tokenizer)
    stream = stream_of(store_of(rng.integers(2, 13, 60).tolist(), labels, a), tokenizer, kind)
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
    """The class is predicted from it. Only where there are labels: elsewhere every token may be masked."""
    lines = filter(None, make_text(150).split("\n"))
    path = write_jsonl(tmp_path / "a.jsonl", ({"text": line, "label": i % 2} for i, line in enumerate(lines)))
    settings = TokenizerSettings(kind="char", bare=True)
    prepare([path], tmp_path / "out", corpus=CorpusSettings(label="label"), tokenizer=settings)
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer")
    assert tokenizer.special.cls is None
    store = TokenStore(sorted((tmp_path / "out" / "train").iterdir()))
    with_labels, without = (
        RowStream(store, tokenizer, length=64, seed=0, with_labels=labelled).batch(Cursor(), 16).rows
        for labelled in (True, False)
    )
    assert torch.equal(with_labels.input_ids, without.input_ids)
    first = (with_labels.position_ids == 0) & (with_labels.segment_ids >= 0)
    assert torch.equal(with_labels.classes["label"] >= 0, first)
    assert torch.equal(with_labels.maskable, without.maskable & ~first)
    assert without.maskable[first].all()


def test_a_text_without_classes(store: TokenStore, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"without classes"):
        RowStream(store, tokenizer, length=16, seed=0, with_labels=True)
