"""An endless stream of batches of pairs, drawn from documents and packed into rows without padding between them.

    a part of a document   [ ......... first ......... second ............... ]
    a batch                [CLS] first of 7 [SEP] [CLS] second of 3 [SEP] [CLS] second of 7 [SEP] [PAD] ...

Each part of a document gives one pair an epoch, in an order of its own. What is drawn is a function of (seed, epoch,
part): the place in the stream is a small cursor, and nothing else need be known to go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.embedding.settings import EmbedderSettings
from unmask.embedding.token_texts import Ints, TokenTexts, content_hashes
from unmask.hashing import GOLDEN, mix, mix_ints, permutation
from unmask.rows.packing import PackedRows, pack_pieces
from unmask.rows.packing_loops import Placed, RowColumns, fill, places_in_rows
from unmask.rows.rows import Rows
from unmask.rows.stream import WHOLE, Cursor, RowBatch, Share
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.training.contrast import DOCUMENT, FIRST, PAIR, SECOND, SIDE, TEXT, WRONG

KINDS = ("crops", "titles", "neighbours")
LEAST_ROW = 128  # positions
_ORDER, _DRAW = 17, 18  # set these draws apart from others of the same seed
_NEXT = 6  # numbers that are drawn for each pair


@dataclass(frozen=True)
class PairParts:
    """Parts of documents that pairs are drawn from; I of them.

    Attributes:
        begin, end: [I], int64: their tokens, without a title.
        title_begin, title_end: [I], int64: of the document's title; the same where there is none.
        key: [I], int64: what document they are of.
        can: [I, 3], bool: which kinds of pairs they have, as `KINDS` names them.
        borders: Where one paragraph ends and another begins that are long enough for a pair, as is what of the part
            stands on either side; part by part.
        first_border, num_borders: [I], int64: which of them are in each part.
    """

    begin: Ints
    end: Ints
    title_begin: Ints
    title_end: Ints
    key: Ints
    can: NDArray[np.bool_]
    borders: Ints
    first_border: Ints
    num_borders: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def chosen(self, which: NDArray[np.bool_] | Ints) -> PairParts:
        """Some of them."""
        columns = ("begin", "end", "title_begin", "title_end", "key", "can", "first_border", "num_borders")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    @classmethod
    def of(cls, texts: TokenTexts, settings: EmbedderSettings, *, held: bool) -> PairParts:
        """The parts of the documents of one side; some may have no pair."""
        documents = np.flatnonzero(texts.held == held)  # of each its parts follow each other
        begins, ends = texts.begins[documents], texts.ends[documents]
        sizes = ends - begins
        count: Ints = np.maximum(1, np.round(sizes / settings.part_tokens)).astype(np.int64)
        owner = np.repeat(np.arange(len(documents)), count)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        begin: Ints = begins[owner] + np.floor_divide(number * sizes[owner], count[owner], dtype=np.int64)
        end: Ints = begins[owner] + np.floor_divide((number + 1) * sizes[owner], count[owner], dtype=np.int64)
        title_end = begins[owner]
        title_begin = texts.paragraph[texts.document[documents]][owner]
        shortest = settings.shortest
        borders = _borders(texts, shortest)
        first, after = np.searchsorted(borders, begin + shortest), np.searchsorted(borders, end - shortest, "right")
        num_borders = np.maximum(after - first, 0)
        room = end - begin
        both = settings.first_lengths[0] + settings.second_lengths[0]
        weights = np.array([settings.kinds.crops, settings.kinds.titles, settings.kinds.neighbours]) > 0
        can = np.stack([room >= both, (title_end > title_begin) & (room >= shortest), num_borders > 0], 1)
        return cls(
            begin, end, title_begin, title_end, texts.cluster[documents][owner], can & weights, borders, first,
            num_borders,
        )  # fmt: skip


def _borders(texts: TokenTexts, shortest: int) -> Ints:
    """Where a paragraph begins that is long enough, behind one that is, in the same document; no titles."""
    lengths = np.diff(texts.paragraph)
    long = lengths >= shortest
    long[texts.document[:-1][texts.titled == 1]] = False
    found = np.concatenate([[False], long[1:] & long[:-1]])
    found[texts.document[:-1]] = False
    return texts.paragraph[:-1][found]


class Spans(NamedTuple):
    """Stretches of tokens: where each begins and how long it is, [P] each."""

    begin: Ints
    length: Ints


@dataclass(frozen=True)
class DrawnPairs:
    """Some pairs.

    Attributes:
        first, second: Their texts.
        document: [P], int64: what each is of.
        wrong: Texts that are wrong answers, [W]; none, mostly.
        wrong_pair: [W], int64: the numbers of the pairs that they are for.
        wrong_document: [W], int64: what each is of.
    """

    first: Spans
    second: Spans
    document: Ints
    wrong: Spans
    wrong_pair: Ints
    wrong_document: Ints


@dataclass(frozen=True)
class GivenPairs:
    """Pairs that a user gave, whose texts stand among the tokens; G of them.

    Attributes:
        first, second: Their texts.
        wrong: A wrong answer for each; of length 0 where none was given.
        key: [G], int64: what the second text is of: the document that it is a near-duplicate of, or itself.
        wrong_key: [G], int64: what the wrong answer is of.
    """

    first: Spans
    second: Spans
    wrong: Spans
    key: Ints
    wrong_key: Ints

    def __len__(self) -> int:
        return len(self.key)

    def chosen(self, which: NDArray[np.bool_] | Ints) -> GivenPairs:
        """Some of them."""
        first, second, wrong = (Spans(*(c[which] for c in spans)) for spans in (self.first, self.second, self.wrong))
        return GivenPairs(first, second, wrong, self.key[which], self.wrong_key[which])


class Tokens(NamedTuple):
    """What spans are of: [T] token ids, and 1 where a word begins."""

    ids: NDArray[np.int32]
    word_starts: NDArray[np.uint8]


class PairDrawer:
    """Draws a pair of each part.

    Args:
        tokens: Of all texts.
        parts: That pairs are drawn from; each has one of some kind.
        settings: Lengths and kinds.
    """

    def __init__(self, tokens: Tokens, parts: PairParts, settings: EmbedderSettings) -> None:
        self.tokens, self.parts, self.settings = tokens, parts, settings
        self._words = np.flatnonzero(tokens.word_starts)

    def draw(self, chosen: Ints, key: int, *, kind: int | None = None) -> DrawnPairs:
        """Pairs of some parts.

        Args:
            chosen: [P]: which parts.
            key: What is drawn is a function of it and the part.
            kind: Of `KINDS`, which all of them have; None: drawn by the weights.
        """
        parts = self.parts.chosen(chosen)
        counters = (chosen * np.int64(GOLDEN)) ^ np.int64(key)
        at_random = [_uniform(mix(counters + n)) for n in range(_NEXT)]
        kinds = self._kinds(parts, at_random[0]) if kind is None else np.full(len(chosen), kind)
        first, second = self._crops(parts, at_random[1:5])
        for number, draw in ((1, self._titles), (2, self._neighbours)):
            if (mine := kinds == number).any():
                one, other = draw(parts.chosen(mine), at_random[5][mine], at_random[4][mine])
                for into, found in ((first, one), (second, other)):
                    into.begin[mine], into.length[mine] = found
        nothing = np.zeros(0, dtype=np.int64)
        return DrawnPairs(first, second, parts.key, Spans(nothing, nothing), nothing, nothing)

    def _kinds(self, parts: PairParts, at_random: NDArray[np.float64]) -> Ints:
        kinds = self.settings.kinds
        weights = parts.can * np.array([kinds.crops, kinds.titles, kinds.neighbours])
        ends = np.cumsum(weights, axis=1)
        return np.asarray((at_random[:, None] * ends[:, -1:] >= ends).sum(1).clip(max=2))

    def _crops(self, parts: PairParts, at_random: list[NDArray[np.float64]]) -> tuple[Spans, Spans]:
        room = parts.end - parts.begin
        one = _lengths(at_random[0], self.settings.first_lengths, room)
        other = _lengths(at_random[1], self.settings.second_lengths, room)
        if self.settings.overlap:
            begins = [
                parts.begin + (at_random[2 + n] * (room - length + 1)).astype(np.int64)
                for n, length in enumerate((one, other))
            ]
        else:  # beside each other, in either order, with what is left of the room before, between and behind
            one, other = _fitting(one, other, room)
            left = room - one - other
            before, between = (at_random[2] * (left + 1)).astype(np.int64), at_random[3]
            swapped = between >= 0.5
            gap = ((2 * between % 1.0) * (left - before + 1)).astype(np.int64)
            begins = [
                parts.begin + before + np.where(swapped, other + gap, 0),
                parts.begin + before + np.where(swapped, 0, one + gap),
            ]
        return self._at_words(begins[0], one, parts), self._at_words(begins[1], other, parts)

    def _titles(
        self, parts: PairParts, at_random: NDArray[np.float64], place: NDArray[np.float64]
    ) -> tuple[Spans, Spans]:
        room = parts.end - parts.begin
        length = _lengths(at_random, self.settings.second_lengths, room)
        begin = parts.begin + (place * (room - length + 1)).astype(np.int64)
        title = np.minimum(parts.title_end - parts.title_begin, self.settings.longest)
        return Spans(parts.title_begin, title), self._at_words(begin, length, parts)

    def _neighbours(
        self, parts: PairParts, at_random: NDArray[np.float64], place: NDArray[np.float64]
    ) -> tuple[Spans, Spans]:
        number = parts.first_border + (at_random * parts.num_borders).astype(np.int64)
        border = parts.borders[number]
        longest = self.settings.longest
        begin = np.maximum(parts.begin, border - longest)
        end = np.minimum(parts.end, border + longest)
        return self._at_words(begin, border - begin, parts), self._at_words(border, end - border, parts)

    def _at_words(self, begin: Ints, length: Ints, parts: PairParts) -> Spans:
        """The same stretches without the parts of words at their ends, where something is left then."""
        words, starts = self._words, self.tokens.word_starts
        end = begin + length
        if not len(words):
            return Spans(begin, length)
        first = words[np.searchsorted(words, begin).clip(max=len(words) - 1)]
        behind = words[(np.searchsorted(words, end, side="right") - 1).clip(min=0)]
        whole_end = (end >= parts.end) | (starts[end.clip(max=len(starts) - 1)] == 1)
        new_begin = np.where((first >= begin) & (first < end), first, begin)
        new_end = np.where(whole_end | (behind <= new_begin), end, behind)
        return Spans(new_begin, new_end - new_begin)


def _uniform(bits: Ints) -> NDArray[np.float64]:
    """Numbers in [0, 1) of hashes."""
    return (bits.view(np.uint64) >> np.uint64(11)).astype(np.float64) / 2**53


def _lengths(at_random: NDArray[np.float64], between: tuple[int, int], room: Ints) -> Ints:
    """Lengths of which every order of magnitude is equally likely, no longer than there is room."""
    least, most = between
    drawn = np.exp(math.log(least) + at_random * (math.log(most + 1) - math.log(least)))
    return np.minimum(np.floor(drawn).astype(np.int64).clip(least, most), room)


def _fitting(one: Ints, other: Ints, room: Ints) -> tuple[Ints, Ints]:
    """Two lengths that fit beside each other: both shorter in the same proportion, where they did not."""
    share = np.minimum(1.0, room / (one + other))
    return np.maximum(1, (one * share).astype(np.int64)), np.maximum(1, (other * share).astype(np.int64))


class PairStream:
    """Batches of pairs of documents, of given pairs, or of both.

    Args:
        tokens: Of all texts.
        parts: Of documents; each has a pair of some kind.
        given: Pairs that a user gave.
        tokenizer: For special tokens, and for which tokens may be masked.
        settings: Batch, lengths, kinds, seed.
        most_positions: Of the model.
    """

    def __init__(
        self,
        tokens: Tokens,
        parts: PairParts,
        given: GivenPairs,
        tokenizer: Tokenizer,
        settings: EmbedderSettings,
        *,
        most_positions: int,
    ) -> None:
        self.tokens, self.parts, self.given, self.tokenizer, self.settings = tokens, parts, given, tokenizer, settings
        self.drawer = PairDrawer(tokens, parts, settings)
        self.size = len(parts) + len(given)
        self.batches = max(1, math.ceil(self.size / settings.batch_size))
        overhead = len(tokenizer.special.around)
        self.row_length = min(most_positions, max(LEAST_ROW, -(-(self._longest() + overhead) // 32) * 32))
        self.negatives: MinedNegatives | None = None

    @property
    def version(self) -> int:
        """1 as soon as hard negatives come with the pairs."""
        return int(self.negatives is not None)

    @property
    def pairs_a_step(self) -> int:
        """Pairs of a batch; some have one less."""
        return -(-self.size // self.batches)

    def pairs_before(self, cursor: Cursor) -> int:
        """How many there are in all batches before a place."""
        return cursor.epoch * self.size + cursor.window * self.size // self.batches

    def _longest(self) -> int:
        """Tokens of the longest text that there can be."""
        given = [spans.length.max(initial=0) for spans in (self.given.first, self.given.second, self.given.wrong)]
        return int(max(self.settings.longest, *given))

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a place, and the place behind it. Its rows are as many as its pairs need.

        Batches of an epoch have about equally many pairs: a step on a few would move the weights as far as one on many.
        """
        order = permutation(self.size, _ORDER, self.settings.seed, cursor.epoch)
        begin, end = (n * self.size // self.batches for n in (cursor.window, cursor.window + 1))
        chosen = order[begin:end]
        rows, num_tokens = self.rows(self._drawn(chosen, cursor.epoch))
        is_last = cursor.window + 1 == self.batches
        after = Cursor(cursor.epoch + 1) if is_last else Cursor(cursor.epoch, cursor.window + 1)
        own = share.part(rows.shape[0])
        return RowBatch(rows.part(own.start, own.stop), cursor.epoch, num_tokens, after)

    def _drawn(self, chosen: Ints, epoch: int) -> DrawnPairs:
        key = mix_ints(_DRAW, self.settings.seed, epoch)
        of_parts = chosen[chosen < len(self.parts)]
        drawn = self.drawer.draw(of_parts, key)
        if self.negatives is not None:
            drawn = self.negatives.added(drawn, of_parts, self.drawer, key)
        given = self.given.chosen(chosen[chosen >= len(self.parts)] - len(self.parts))
        return drawn if not len(given) else with_given(drawn, given)

    def rows(self, drawn: DrawnPairs) -> tuple[Rows, int]:
        """Pairs in rows, and how many tokens of text they have."""
        num_pairs, num_wrong = len(drawn.document), len(drawn.wrong_pair)
        begin, length = (
            np.concatenate(columns) for columns in zip(drawn.first, drawn.second, drawn.wrong, strict=True)
        )
        pair = np.concatenate([np.arange(num_pairs), np.arange(num_pairs), drawn.wrong_pair])
        side = np.repeat([FIRST, SECOND, WRONG], [num_pairs, num_pairs, num_wrong])
        document = np.concatenate([drawn.document, drawn.document, drawn.wrong_document])
        columns = {PAIR: pair, SIDE: side, DOCUMENT: document, TEXT: content_hashes(self.tokens.ids, begin, length)}
        return self._filled(begin, length, columns), int(length.sum())

    def _filled(self, begin: Ints, length: Ints, columns: dict[str, Ints]) -> Rows:
        special, row_length = self.tokenizer.special, self.row_length
        packed = pack_pieces(length, row_length=row_length, overhead=len(special.around))
        placed = self._placed(packed, begin, columns)
        size = len(packed) * row_length
        into = RowColumns.of_padding(size, special.pad, with_types=False)
        ids, starts = self.tokens
        cls, sep = (-1 if id_ is None else id_ for id_ in (special.cls, special.sep))
        first = fill(placed, ids, starts, self.tokenizer.ordinary, cls, sep, False, into)
        if self.settings.masked != "both":
            sides = np.repeat(columns[SIDE][packed.piece], packed.length)
            at = np.repeat(placed.at, packed.length) + np.arange(len(sides))
            at -= np.repeat(np.cumsum(packed.length) - packed.length, packed.length)
            hidden_in_first = self.settings.masked == "first"
            into.maskable[at[(sides == FIRST) != hidden_in_first]] = False
        classes = {}
        for name, values in columns.items():
            classes[name] = np.full(size, -1, dtype=np.int64)
            classes[name][first] = values[packed.piece]

        def in_rows(column: NDArray[Any]) -> Tensor:
            return torch.from_numpy(column.reshape(-1, row_length))

        return Rows(
            in_rows(into.input_ids),
            in_rows(into.segment_ids),
            in_rows(into.position_ids),
            in_rows(into.word_starts),
            in_rows(into.maskable),
            in_rows(into.segment_keys),
            classes={name: in_rows(values) for name, values in classes.items()},
        )

    def _placed(self, packed: PackedRows, begin: Ints, columns: dict[str, Ints]) -> Placed:
        special = self.tokenizer.special
        segment = np.arange(len(packed.piece))
        before = np.repeat(packed.begins[:-1], np.diff(packed.begins))
        # Masks are a function of the content and of which text of which pair it is.
        key = mix(columns[TEXT] ^ mix(columns[DOCUMENT] + columns[SIDE]))
        return Placed(
            at=places_in_rows(
                packed.begins, packed.length, packed.half, self.row_length, special.cls is not None,
                special.sep is not None,
            ),
            source=begin[packed.piece],
            length=packed.length,
            half=packed.half,
            number=segment - before,
            key=key[packed.piece],
        )  # fmt: skip


def with_given(drawn: DrawnPairs, given: GivenPairs) -> DrawnPairs:
    """Pairs of documents, and given ones behind them."""
    has_wrong = np.flatnonzero(given.wrong.length > 0)

    def both(one: Spans, other: Spans) -> Spans:
        return Spans(*(np.concatenate(columns) for columns in zip(one, other, strict=True)))

    return DrawnPairs(
        both(drawn.first, given.first),
        both(drawn.second, given.second),
        np.concatenate([drawn.document, given.key]),
        both(drawn.wrong, Spans(given.wrong.begin[has_wrong], given.wrong.length[has_wrong])),
        np.concatenate([drawn.wrong_pair, len(drawn.document) + has_wrong]),
        np.concatenate([drawn.wrong_document, given.wrong_key[has_wrong]]),
    )


@dataclass(frozen=True)
class MinedNegatives:
    """For each part other parts that look like it and are not; I parts, K of each.

    Attributes:
        parts: [I, K], int64: numbers of parts; -1 where there are fewer.
    """

    parts: Ints

    def added(self, drawn: DrawnPairs, chosen: Ints, drawer: PairDrawer, key: int) -> DrawnPairs:
        """The pairs with a wrong answer for each whose part has one: a crop of one of the parts that look like it.

        Args:
            drawn: Pairs of parts.
            chosen: [P]: the parts.
            drawer: Draws the crops.
            key: What is drawn is a function of it and the part.
        """
        found = self.parts[chosen]
        count = (found >= 0).sum(1)
        has = np.flatnonzero(count)
        number = (_uniform(mix((chosen[has] * np.int64(GOLDEN)) ^ np.int64(key + _NEXT))) * count[has]).astype(np.int64)
        part = found[has, number]
        crops = drawer.draw(part, mix_ints(key, _NEXT), kind=0).second
        return replace(drawn, wrong=crops, wrong_pair=has, wrong_document=drawer.parts.key[part])
