"""Sentence pairs from packed fragments: every fragment is cut in two, and half of the pairs are made wrong.

    next sentence   [CLS] A1 [SEP] B1 [SEP]    right (0): the text continues
                    [CLS] A2 [SEP] B7 [SEP]    wrong (1): the second half of another document, whose first half
                    [CLS] A7 [SEP] B2 [SEP]               gets that of this one
    sentence order  [CLS] A1 [SEP] B1 [SEP]    right (0)
                    [CLS] B2 [SEP] A2 [SEP]    wrong (1): the halves are swapped

Fragments are packed first. Two that exchange their second halves are cut so that these are equally long. So rows stay
full, every half is used exactly once, and lengths do not reveal which pairs are wrong.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.compiled import compiled, inlined
from unmask.core.errors import DataError
from unmask.core.hashing import IS_WRONG, TAIL, mix
from unmask.data.packing import PackedRows
from unmask.data.store import GatheredPieces, TokenStore

# ----------------------------------------
# Compiled loops that decide where fragments are cut into sentence pairs, and which of them exchange halves.
#
# A cut is named by its tail, the length of the second half. Arrays: F = fragments, N = tokens of a window's text.

_LOOK_BACK = 32  # candidates to compare a fragment with, so that windows of one document are not slower
_NONE = -1

Ints = NDArray[np.int64]


class Fragments(NamedTuple):
    source: Ints  # [F]: positions of their first tokens
    length: Ints  # [F]
    document: Ints  # [F]
    draw: Ints  # [F]: a random number for each, in [0, 2**32)
    only: Ints  # [F]: the only place to cut it; -1: any word start in its middle half
    starts: NDArray[np.uint8]  # [N]: whether words begin


@compiled
def only_cuts(source: Ints, length: Ints, starts: NDArray[np.uint8]) -> Ints:
    """[F]: the only place to cut fragments with no word start in their middle half (the nearest start, or the middle);
    else -1."""
    only = np.full(len(length), _NONE, dtype=np.int64)
    for f in range(len(length)):
        size = length[f]
        nearest, is_free = _NONE, False
        for place in range(1, size):
            if starts[source[f] + place]:
                if -(-size // 4) <= place <= 3 * size // 4:
                    is_free = True
                    break
                if nearest == _NONE or abs(2 * place - size) < abs(2 * nearest - size):
                    nearest = place
        if not is_free:
            only[f] = size // 2 if nearest == _NONE else nearest
    return only


@inlined
def _allows(fragments: Fragments, f: int, tail: int) -> bool:
    """Whether a fragment may have a second half of length `tail`."""
    size = fragments.length[f]
    place = size - tail
    if fragments.only[f] != _NONE:
        return place == fragments.only[f]
    return -(-size // 4) <= place <= 3 * size // 4 and fragments.starts[fragments.source[f] + place] != 0


@compiled
def _common_tail(fragments: Fragments, one: int, other: int, number: int) -> int:
    """The `number`th length that the second halves of both fragments may have; 0 if there are fewer."""
    for tail in range(1, min(fragments.length[one], fragments.length[other])):
        if _allows(fragments, one, tail) and (one == other or _allows(fragments, other, tail)):
            if number == 0:
                return tail
            number -= 1
    return 0


@compiled
def _draw_tail(fragments: Fragments, one: int, other: int) -> int:
    """Draws one of these lengths, by the random number of the first fragment."""
    count = 0
    for tail in range(1, min(fragments.length[one], fragments.length[other])):
        count += _allows(fragments, one, tail) and (one == other or _allows(fragments, other, tail))
    return _common_tail(fragments, one, other, fragments.draw[one] * count >> TAIL.size)


@compiled
def tails_and_partners(fragments: Fragments, wrong: Ints) -> tuple[Ints, Ints]:
    """[F] each: the tails (0 for a fragment of one token), and the partners with which fragments exchange second
    halves, -1 without one. Partners are from different documents, about equally long, with a common tail length.
    `wrong` has the fragments that look for a partner, the shortest first."""
    tail = np.zeros(len(fragments.length), dtype=np.int64)
    partner = np.full(len(fragments.length), _NONE, dtype=np.int64)
    waiting = np.empty(len(wrong), dtype=np.int64)
    size = 0
    for index in wrong:
        match = _NONE
        for place in range(size - 1, max(size - 1 - _LOOK_BACK, -1), -1):
            other = waiting[place]
            if fragments.document[other] != fragments.document[index] and _common_tail(fragments, other, index, 0):
                match = place
                break
        if match == _NONE:
            waiting[size] = index
            size += 1
            continue
        other = waiting[match]
        waiting[match : size - 1] = waiting[match + 1 : size].copy()
        size -= 1
        partner[other], partner[index] = index, other
        tail[other] = tail[index] = _draw_tail(fragments, other, index)
    for f in range(len(tail)):
        if partner[f] == _NONE and fragments.length[f] > 1:
            tail[f] = _draw_tail(fragments, f, f)
    return tail, partner


PairKind = Literal["next_sentence", "sentence_order"]
RIGHT, WRONG = 0, 1  # as in transformers' BertForPreTraining
PAIR_OVERHEAD = 3  # [CLS] A [SEP] B [SEP]
PAIRS = 5  # sets these hashes apart from others of the same seed


def check_pairs(kind: PairKind, store: TokenStore) -> None:
    """Raises a DataError if wrong halves would need a second document."""
    if kind == "next_sentence" and len(np.unique(store.gather(np.array([0, len(store) - 1])).document)) == 1:
        raise DataError(
            "next_sentence needs a second document for its wrong pairs, but the text is one document; use "
            "sentence_order, or split the text into documents (corpus.documents)"
        )


def make_pairs(kind: PairKind, rows: PackedRows, texts: GatheredPieces, *, key: int) -> PackedRows:
    """Makes a pair of every fragment in some rows. Rows keep their lengths.

    The second half begins at a word start in the middle half of the fragment or, if there is none, at the word start
    nearest to the middle. A fragment of one token stays alone, without a label. A pair is wrong with probability 1/2;
    those without another document to exchange with (about one in a window) stay right.

    `rows` are all packed fragments of a window. `key`, a hash of seed and epoch, and the fragment determine cut and
    label; partners depend on all fragments.

    Source: Devlin et al. 2018 (BERT), section 3.1, task 2; Lan et al. 2020 (ALBERT), section 3.1. There, A and B are
    runs of sentences and wrong halves are drawn with replacement; here no text is lost or seen twice.
    """
    number = texts.number(rows.piece)
    bits = mix(mix(texts.key[number] ^ rows.start) + np.int64(key))
    source = texts.begin[number] + rows.start
    fragments = Fragments(
        source=source,
        length=rows.length,
        document=texts.document[number],
        draw=TAIL.of(bits),
        only=only_cuts(source, rows.length, texts.word_starts),
        starts=texts.word_starts,
    )
    is_wrong = (rows.length > 1) & (IS_WRONG.of(bits) == 1)
    looking = np.flatnonzero(is_wrong & (kind == "next_sentence"))
    tail, partner = tails_and_partners(fragments, looking[np.lexsort((bits[looking], rows.length[looking]))])
    if kind == "next_sentence":
        is_wrong = partner >= 0
    # Cuts the fragments in two, with exchanged or swapped halves; a tail of 0 leaves one whole.
    other = np.where(partner >= 0, partner, np.arange(len(tail)))
    heads = np.stack([rows.piece, rows.start, rows.length - tail])
    tails = np.stack([rows.piece[other], (rows.start + rows.length - tail)[other], tail[other]])
    swapped = is_wrong & (kind == "sentence_order")
    first, second = np.where(swapped, tails, heads), np.where(swapped, heads, tails)
    is_pair = tail > 0
    begin = np.cumsum(1 + is_pair) - 1 - is_pair
    size = len(tail) + int(is_pair.sum())
    columns = np.empty((3, size), dtype=np.int64)
    columns[:, begin] = first
    columns[:, begin[is_pair] + 1] = second[:, is_pair]
    half, label = np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    half[begin[is_pair] + 1] = 1
    label[begin[is_pair]] = np.where(is_wrong[is_pair], WRONG, RIGHT)
    return PackedRows(np.concatenate([begin, [size]])[rows.begins], columns[0], columns[1], columns[2], half, label)
