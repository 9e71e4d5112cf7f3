"""Sentence pairs out of packed fragments: every fragment is cut in two, and half of the pairs are made wrong.

    next sentence   [CLS] A1 [SEP] B1 [SEP]    right (0): the text goes on
                    [CLS] A2 [SEP] B7 [SEP]    wrong (1): the second half of another document, whose first half
                    [CLS] A7 [SEP] B2 [SEP]               gets that of this one
    sentence order  [CLS] A1 [SEP] B1 [SEP]    right (0)
                    [CLS] B2 [SEP] A2 [SEP]    wrong (1): the halves change places

Fragments are packed first. Two that exchange their second halves are cut so that these are equally long: so rows stay
as full as they were, every half is used exactly once, and no length tells which pairs are wrong.
"""

from __future__ import annotations

from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.hashing import IS_WRONG, TAIL, mix
from unmask.rows.packing import Fragment, Segment
from unmask.shards.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

PairKind = Literal["next_sentence", "sentence_order"]
RIGHT, WRONG = 0, 1  # as transformers' BertForPreTraining counts them
PAIR_OVERHEAD = 3  # [CLS] A [SEP] B [SEP]
PAIRS = 5  # sets these hashes apart from others of the same seed
_LOOK_BACK = 32  # candidates that a fragment is compared with, so that windows of one document take no longer


class _Cuttable(NamedTuple):
    """A fragment and how long its second half may be: bit n of `tails` is set where n tokens are allowed."""

    fragment: Fragment
    document: int
    tails: int
    bits: int


def check_pairs(kind: PairKind, store: TokenStore, tokenizer: Tokenizer) -> None:
    """Checks that pairs can be made.

    Raises:
        DataError: The tokenizer lacks `[CLS]` or `[SEP]`, or there is no second document to take a wrong half from.
    """
    if tokenizer.special.cls is None or tokenizer.special.sep is None:
        raise DataError(
            f"pairs for {kind} stand as [CLS] A [SEP] B [SEP], but the tokenizer has no [CLS] or no [SEP]; take "
            "another tokenizer, or remove objectives.pairs"
        )
    if kind == "next_sentence" and (store.document == store.document[0]).all():
        raise DataError(
            "next_sentence takes the second half of a wrong pair from another document, but the text is one document; "
            "take sentence_order, or read the text as more documents (corpus.documents)"
        )


def make_pairs(
    kind: PairKind,
    rows: list[list[Fragment]],
    store: TokenStore,
    *,
    key: int,
    key_of_piece: NDArray[np.int64],
) -> list[list[Segment]]:
    """Makes a pair of every fragment of some rows. The rows keep their lengths.

    A half begins where a word does, somewhere in the middle half of the fragment; where no word begins there, at the
    word nearest to the middle. A fragment of one token stays alone, without a label. A pair is wrong with probability
    1/2; those that find no other document to exchange with (about one in a window) stay right.

    Args:
        kind: What a wrong pair is.
        rows: Of packed fragments, all of a window.
        store: Their tokens.
        key: A hash of seed and epoch; cuts and labels are functions of it and the fragment, whom a fragment exchanges
            with also of the others.
        key_of_piece: [num_pieces], int64: a hash of each piece.

    Source: Devlin et al. 2018 (BERT), section 3.1, task 2; Lan et al. 2020 (ALBERT), section 3.1. There, A and B are
    runs of sentences and wrong halves are drawn with replacement; here nothing of the text is lost or seen twice.
    """
    fragments = [fragment for row in rows for fragment in row]
    bits = [int(value) for value in _bits(fragments, key, key_of_piece)]
    cuttable = {
        index: _Cuttable(fragment, int(store.document[fragment.piece]), _tails(fragment, store), bits[index])
        for index, fragment in enumerate(fragments)
        if fragment.length > 1
    }
    wrong = [index for index, item in cuttable.items() if IS_WRONG.of(item.bits)]
    segments: dict[int, Segment] = {}
    if kind == "next_sentence":
        for one, other in _exchanges(wrong, cuttable):
            tail = _draw(cuttable[one].tails & cuttable[other].tails, cuttable[one].bits)
            (first, second), (other_first, other_second) = (_cut(fragments[i], tail) for i in (one, other))
            segments[one] = Segment((first, other_second), WRONG)
            segments[other] = Segment((other_first, second), WRONG)
    for index in cuttable.keys() - segments.keys():
        item = cuttable[index]
        first, second = _cut(item.fragment, _draw(item.tails, item.bits))
        turned = kind == "sentence_order" and bool(IS_WRONG.of(item.bits))
        segments[index] = Segment((second, first), WRONG) if turned else Segment((first, second), RIGHT)
    numbered = enumerate(fragments)
    return [
        [segments.get(index) or Segment((fragment,)) for index, fragment in islice(numbered, len(row))] for row in rows
    ]


def _bits(fragments: list[Fragment], key: int, key_of_piece: NDArray[np.int64]) -> NDArray[np.int64]:
    """64 random bits a fragment."""
    places = np.array([(fragment.piece, fragment.start) for fragment in fragments], dtype=np.int64).reshape(-1, 2)
    return mix(mix(key_of_piece[places[:, 0]] ^ places[:, 1]) + np.int64(key))


def _tails(fragment: Fragment, store: TokenStore) -> int:
    """The lengths that the second half may have."""
    piece, start, length = fragment
    begins = store.read(piece, start, length)[1].astype(bool)
    begins[0] = False
    middle = begins.copy()
    middle[: -(-length // 4)] = middle[3 * length // 4 + 1 :] = False
    if not middle.any():
        words = np.flatnonzero(begins)
        nearest = words[np.abs(2 * words - length).argmin()] if len(words) else length // 2
        return 1 << (length - int(nearest))
    return int.from_bytes(np.packbits(middle[::-1], bitorder="little").tobytes(), "little") << 1


def _draw(tails: int, bits: int) -> int:
    """One of the lengths."""
    lengths = [length for length, bit in enumerate(bin(tails)[:1:-1]) if bit == "1"]
    return lengths[TAIL.of(bits) * len(lengths) >> TAIL.size]


def _cut(fragment: Fragment, tail: int) -> tuple[Fragment, Fragment]:
    head = fragment.length - tail
    return Fragment(fragment.piece, fragment.start, head), Fragment(fragment.piece, fragment.start + head, tail)


def _exchanges(wrong: list[int], cuttable: dict[int, _Cuttable]) -> list[tuple[int, int]]:
    """Who exchanges with whom: fragments of two documents, about equally long, that may have equally long tails."""
    pairs: list[tuple[int, int]] = []
    waiting: list[int] = []
    for index in sorted(wrong, key=lambda i: (cuttable[i].fragment.length, cuttable[i].bits)):
        item = cuttable[index]
        for place in range(len(waiting) - 1, max(len(waiting) - 1 - _LOOK_BACK, -1), -1):
            other = cuttable[waiting[place]]
            if other.document != item.document and other.tails & item.tails:
                pairs.append((waiting.pop(place), index))
                break
        else:
            waiting.append(index)
    return pairs
