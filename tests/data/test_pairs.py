"""Sentence pairs: every half once, with the right labels, and rows as full as without pairs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.data.stored_tokens import drawn_segments, epoch_of, segments_of, store_of
from tests.tokenizer.families import bare_characters
from unmask.core.errors import DataError
from unmask.core.hashing import GOLDEN, mix
from unmask.data.packing import PackedRows
from unmask.data.pairs import RIGHT, WRONG, PairKind, make_pairs
from unmask.data.rows import Cursor, RowBatch, RowStream
from unmask.data.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

KINDS: list[PairKind] = ["next_sentence", "sentence_order"]


class PairSegment(NamedTuple):
    """A segment of a row."""

    label: int
    ids: list[int]
    types: list[int]
    positions: list[int]

    @property
    def halves(self) -> tuple[list[int], list[int]]:
        """The texts between the special tokens."""
        second = self.types.index(1)
        return self.ids[1 : second - 1], self.ids[second:-1]


def pair_segments(batches: list[RowBatch]) -> Iterator[PairSegment]:
    for rows in (batch.rows for batch in batches):
        (classes,) = rows.classes.values()
        assert (rows.token_type_ids[rows.segment_ids < 0] == 0).all()
        assert (classes[(rows.position_ids > 0) | (rows.segment_ids < 0)] == -1).all()
    for rows, r, places in drawn_segments(batches):
        (classes,) = rows.classes.values()
        columns = (rows.input_ids, rows.token_type_ids, rows.position_ids)
        yield PairSegment(int(classes[r, places[0]]), *(column[r, places].tolist() for column in columns))  # type: ignore[index]


def texts_of(store: TokenStore) -> list[list[int]]:
    return [store.gather(np.array([i])).input_ids.tolist() for i in range(len(store))]


@pytest.fixture(scope="module")
def held(store: TokenStore) -> dict[tuple[int, ...], set[int]]:
    """For every run of tokens of a document, the documents that hold it."""
    documents: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for text, document in zip(texts_of(store), store.column("document").tolist(), strict=True):
        for begin in range(len(text)):
            for end in range(begin + 1, min(len(text), begin + 61) + 1):
                documents[tuple(text[begin:end])].add(document)
    return documents


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [64, 21])
def test_an_epoch_holds_every_token_once(store: TokenStore, tokenizer: Tokenizer, kind: PairKind, length: int) -> None:
    batches = epoch_of(RowStream(store, tokenizer, length=length, seed=7, pairs=kind))
    tokens: Counter[int] = Counter()
    for segment in pair_segments(batches):
        assert segment.ids[0] == tokenizer.special.cls
        assert segment.ids[-1] == tokenizer.special.sep
        assert segment.positions == list(range(len(segment.ids)))
        tokens.update(segment.ids[1:-1])
    del tokens[tokenizer.special.sep]  # type: ignore[arg-type]
    assert tokens == Counter(token for text in texts_of(store) for token in text)
    assert sum(batch.num_tokens for batch in batches) == store.num_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_true(
    store: TokenStore, tokenizer: Tokenizer, held: dict[tuple[int, ...], set[int]], kind: PairKind
) -> None:
    """By the text alone: A followed by B stands in a document, or B followed by A, or no document holds both."""
    seen: Counter[int] = Counter()
    stream = RowStream(store, tokenizer, length=64, seed=7, pairs=kind)
    for segment in pair_segments(epoch_of(stream)):
        if segment.label < 0:
            assert len(segment.ids) == 3
            continue
        seen[segment.label] += 1
        a, b = segment.halves
        together, turned = held[*a, *b], held[*b, *a]
        if segment.label == RIGHT:
            assert together
        elif kind == "sentence_order":
            assert turned
            assert not together
        else:
            assert not together & turned
            assert not held[tuple(a)] & held[tuple(b)] or min(len(a), len(b)) < 12, "of two documents"
    total = seen.total()
    assert total > 350
    assert abs(seen[WRONG] - total / 2) < 4 * math.sqrt(total / 4)


def test_lengths_do_not_tell_the_label(store: TokenStore, tokenizer: Tokenizer) -> None:
    """The mean length of both halves, and of their difference, is the same for right and wrong pairs."""
    lengths: dict[int, list[tuple[int, int]]] = {RIGHT: [], WRONG: []}
    for epoch in range(4):
        stream = RowStream(store, tokenizer, length=64, seed=7, pairs="next_sentence")
        for segment in pair_segments(epoch_of(stream, epoch)):
            if segment.label >= 0:
                lengths[segment.label].append(tuple(map(len, segment.halves)))  # type: ignore[arg-type]
    right, wrong = (np.array(lengths[label], dtype=float) for label in (RIGHT, WRONG))
    for measure in (lambda x: x[:, 0], lambda x: x[:, 1], lambda x: abs(x[:, 0] - x[:, 1])):
        a, b = measure(right), measure(wrong)
        assert abs(a.mean() - b.mean()) < 4 * math.sqrt(a.var() / len(a) + b.var() / len(b))


def words(folder: Path, lengths: list[int], starts: list[str], documents: list[int]) -> TokenStore:
    """Documents of known tokens, whose words begin where said."""
    ids = [100 + 10 * piece + np.arange(length) for piece, length in enumerate(lengths)]
    return store_of(folder, ids, starts=[np.array(list(map(int, line))) for line in starts], documents=documents)


def test_a_tiny_case_by_hand(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Only one cut is possible in each document, so the pairs are known but for their labels."""
    store = words(tmp_path, [5, 5, 1], ["10010", "10010", "1"], [0, 1, 2])
    for seed in range(40):  # until both of the first two are wrong
        stream = RowStream(store, tokenizer, length=20, seed=seed, pairs="next_sentence")
        rows = stream.batch(Cursor(), 1).rows
        if (rows.classes["next_sentence"] == WRONG).any():
            break
    ids = rows.input_ids[0].tolist()
    c, s, p = (getattr(tokenizer.special, name) for name in ("cls", "sep", "pad"))
    one = [c, 100, 101, 102, s, 113, 114, s]
    other = [c, 110, 111, 112, s, 103, 104, s]
    assert ids in ([*one, *other, c, 120, s, p], [*other, *one, c, 120, s, p])
    assert rows.token_type_ids[0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1] * 2 + [0] * 4
    assert rows.segment_ids[0].tolist() == [0] * 8 + [1] * 8 + [2] * 3 + [-1]
    assert rows.position_ids[0].tolist() == [*range(8), *range(8), 0, 1, 2, 0]
    assert rows.word_starts[0].tolist() == [x == "1" for x in "01000100" * 2 + "0100"]
    assert rows.classes["next_sentence"][0].tolist() == ([1] + [-1] * 7) * 2 + [-1] * 4
    keys = rows.segment_keys[0].tolist()
    assert len(set(keys[0:4])) == len(set(keys[4:8])) == 1, "the second half's key begins at the [SEP] before it"
    assert len({keys[0], keys[4], keys[8], keys[12]}) == 4
    of_piece = mix(mix(store.column("document") * np.int64(GOLDEN)) + store.column("offset"))
    first = 0 if ids[1] == 100 else 8
    assert keys[first] == int(mix(of_piece[:1] ^ 0)[0])
    assert keys[first + 12] == int(mix(of_piece[:1] ^ 3)[0])


def test_cuts_where_hardly_any_is_possible(tmp_path: Path) -> None:
    """If no word begins in the middle half, the text is cut at the nearest word; without words, in its middle."""
    starts = ["11000000", "10000001", "10000000", "10", "1", "110"]
    store = words(tmp_path, [8, 8, 8, 2, 1, 3], starts, [0, 1, 2, 3, 4, 5])
    pieces = np.arange(6)
    zeros = np.zeros_like(pieces)
    one_row = PackedRows(np.array([0, 6]), pieces, zeros, store.column("lengths"), zeros, zeros - 1)
    for key in range(6):
        (row,) = segments_of(make_pairs("sentence_order", one_row, store.gather(pieces), key=key))
        assert [min(parts)[2] for parts, _ in row] == [1, 7, 4, 1, 1, 1]
        assert [len(parts) for parts, _ in row] == [2, 2, 2, 2, 1, 2]
        assert row[4][1] == -1


def test_texts_that_make_no_pairs(store: TokenStore, tokenizer: Tokenizer, tmp_path: Path) -> None:
    one = words(tmp_path, [9, 9], ["1" * 9] * 2, [4, 4])
    with pytest.raises(DataError, match="sentence_order"):
        RowStream(one, tokenizer, length=32, seed=0, pairs="next_sentence")
    RowStream(one, tokenizer, length=32, seed=0, pairs="sentence_order")
    for kind in KINDS:
        with pytest.raises(DataError, match=kind):
            RowStream(store, bare_characters(), length=32, seed=0, pairs=kind)
    with pytest.raises(DataError, match="rows of 3 positions"):
        RowStream(store, tokenizer, length=3, seed=0, pairs="sentence_order")
