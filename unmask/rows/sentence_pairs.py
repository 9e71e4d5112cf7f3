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

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.hashing import IS_WRONG, TAIL, mix
from unmask.rows.packing import PackedRows
from unmask.rows.pair_loops import Fragments, only_cuts, tails_and_partners
from unmask.shards.pieces import GatheredPieces
from unmask.shards.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

PairKind = Literal["next_sentence", "sentence_order"]
RIGHT, WRONG = 0, 1  # as transformers' BertForPreTraining counts them
PAIR_OVERHEAD = 3  # [CLS] A [SEP] B [SEP]
PAIRS = 5  # sets these hashes apart from others of the same seed


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
    if kind == "next_sentence" and store.is_one_document:
        raise DataError(
            "next_sentence takes the second half of a wrong pair from another document, but the text is one document; "
            "take sentence_order, or read the text as more documents (corpus.documents)"
        )


def make_pairs(
    kind: PairKind,
    rows: PackedRows,
    texts: GatheredPieces,
    *,
    key: int,
) -> PackedRows:
    """Makes a pair of every fragment of some rows. The rows keep their lengths.

    A half begins where a word does, somewhere in the middle half of the fragment; where no word begins there, at the
    word nearest to the middle. A fragment of one token stays alone, without a label. A pair is wrong with probability
    1/2; those that find no other document to exchange with (about one in a window) stay right.

    Args:
        kind: What a wrong pair is.
        rows: Of packed fragments, all of a window.
        texts: Their tokens.
        key: A hash of seed and epoch; cuts and labels are functions of it and the fragment, whom a fragment exchanges
            with also of the others.

    Source: Devlin et al. 2018 (BERT), section 3.1, task 2; Lan et al. 2020 (ALBERT), section 3.1. There, A and B are
    runs of sentences and wrong halves are drawn with replacement; here nothing of the text is lost or seen twice.
    """
    number = texts.number(rows.piece)
    bits = mix(mix(texts.key[number] ^ rows.start) + np.int64(key))
    source = texts.places(rows.piece, rows.start)
    fragments = Fragments(
        source=source,
        length=rows.length,
        document=texts.document[number],
        draw=TAIL.of(bits),
        only=only_cuts(source, rows.length, texts.word_starts),
        starts=texts.word_starts,
    )
    is_pair = rows.length > 1
    is_wrong = is_pair & (IS_WRONG.of(bits) == 1)
    looking = np.flatnonzero(is_wrong & (kind == "next_sentence"))
    tail, partner = tails_and_partners(fragments, looking[np.lexsort((bits[looking], rows.length[looking]))])
    if kind == "next_sentence":
        is_wrong = partner >= 0
    return _halves(rows, tail, partner, is_wrong, turned=kind == "sentence_order")


def _halves(
    rows: PackedRows, tail: NDArray[np.int64], partner: NDArray[np.int64], is_wrong: NDArray[np.bool_], *, turned: bool
) -> PackedRows:
    """The fragments cut in two, with exchanged or turned halves.

    Args:
        rows: The fragments.
        tail: [F]: tokens of each one's second half; 0 where it stays whole.
        partner: [F]: whose second half it gets; -1: its own.
        is_wrong: [F].
        turned: Whether the halves of wrong pairs change places, rather than being of two fragments.
    """
    whole = np.arange(len(tail))
    other = np.where(partner >= 0, partner, whole)
    heads = np.stack([rows.piece, rows.start, rows.length - tail])
    tails = np.stack([rows.piece[other], (rows.start + rows.length - tail)[other], tail[other]])
    change = is_wrong & turned
    first, second = np.where(change, tails, heads), np.where(change, heads, tails)
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
