"""An endless stream of batches of pairs, drawn from documents and packed into rows without padding between them.

    a part of a document   [ ......... first ......... second ............... ]
    a batch                [CLS] first of 7 [SEP] [CLS] second of 3 [SEP] [CLS] second of 7 [SEP] [PAD] ...

Each part of a document gives one pair an epoch, in an order of its own. What is drawn is a function of (seed, epoch,
part): the place in the stream is a small cursor, and nothing else is needed to go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.embedder_texts import Ints, TokenTexts, content_hashes
from unmask.core.hashing import GOLDEN, mix, mix_ints, permutation
from unmask.data.packing import pack_pieces
from unmask.data.rows import WHOLE, Cursor, RowBatch, Rows, Share, fill_rows
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.contrast import DOCUMENT, FIRST, PAIR, SECOND, SIDE, TEXT, WRONG

KINDS = ("crops", "titles", "neighbours")
_LEAST_ROW = 128  # positions
_ORDER, _DRAW = 17, 18  # set these draws apart from others of the same seed
_NEXT = 6  # numbers that are drawn for each pair


class Tokens(NamedTuple):
    """What spans are of: [T] token ids, and 1 where a word begins."""

    ids: NDArray[np.int32]
    word_starts: NDArray[np.uint8]


class Spans(NamedTuple):
    """Spans of tokens: where each begins and how long it is, [P] each."""

    begin: Ints
    length: Ints

    def chosen(self, which: NDArray[np.bool_] | Ints) -> Spans:
        """Some of them."""
        return Spans(self.begin[which], self.length[which])

    def and_then(self, other: Spans) -> Spans:
        """These and others behind them."""
        return Spans(np.concatenate([self.begin, other.begin]), np.concatenate([self.length, other.length]))


def _nothing() -> Ints:
    return np.zeros(0, dtype=np.int64)


NO_SPANS = Spans(_nothing(), _nothing())


@dataclass(frozen=True)
class PairParts:
    """Parts of documents that pairs are drawn from; I of them.

    Attributes:
        begin, end: [I], int64: their tokens, without a title.
        title_begin, title_end: [I], int64: of the document's title; the same where there is none.
        key: [I], int64: the document they are of; near-duplicates have the same.
        can: [I, 3], bool: which kinds of pairs they have, as `KINDS` names them.
        borders: Where one paragraph ends and another begins that are long enough for a pair, as is what of the part
            stands on either side; part by part.
        first_border, num_borders: [I], int64: which of them are in each part.
    """

    begin: Ints = field(default_factory=_nothing)
    end: Ints = field(default_factory=_nothing)
    title_begin: Ints = field(default_factory=_nothing)
    title_end: Ints = field(default_factory=_nothing)
    key: Ints = field(default_factory=_nothing)
    can: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, len(KINDS)), dtype=np.bool_))
    borders: Ints = field(default_factory=_nothing)
    first_border: Ints = field(default_factory=_nothing)
    num_borders: Ints = field(default_factory=_nothing)

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
        title_begin, title_end = texts.paragraph[texts.document[documents]][owner], begins[owner]

        # Borders: where a paragraph begins that is long enough, behind one that is, in the same document; no titles.
        shortest = settings.shortest
        long = np.diff(texts.paragraph) >= shortest
        long[texts.document[:-1][texts.titled == 1]] = False
        is_border = np.concatenate([[False], long[1:] & long[:-1]])
        is_border[texts.document[:-1]] = False
        borders = texts.paragraph[:-1][is_border]
        first, after = np.searchsorted(borders, begin + shortest), np.searchsorted(borders, end - shortest, "right")
        num_borders = np.maximum(after - first, 0)

        room = end - begin
        both = settings.first_lengths[0] + settings.second_lengths[0]
        can = np.stack([room >= both, (title_end > title_begin) & (room >= shortest), num_borders > 0], 1)
        can &= np.array([settings.kinds.crops, settings.kinds.titles, settings.kinds.neighbours]) > 0
        key = texts.cluster[documents][owner]
        return cls(begin, end, title_begin, title_end, key, can, borders, first, num_borders)


@dataclass(frozen=True)
class DrawnPairs:
    """Some pairs.

    Attributes:
        first, second: Their texts.
        document: [P], int64: the document of each.
        wrong: Texts that are wrong answers, [W]; mostly none.
        wrong_pair: [W], int64: the numbers of the pairs that they are for.
        wrong_document: [W], int64: the document of each.
    """

    first: Spans
    second: Spans
    document: Ints
    wrong: Spans = NO_SPANS
    wrong_pair: Ints = field(default_factory=_nothing)
    wrong_document: Ints = field(default_factory=_nothing)


@dataclass(frozen=True)
class GivenPairs:
    """Pairs of the user's own, whose texts stand among the tokens; G of them.

    Attributes:
        first, second: Their texts.
        wrong: A wrong answer for each; of length 0 where there is none.
        key: [G], int64: what the second text is of: the document that it is a near-duplicate of, or itself.
        wrong_key: [G], int64: what the wrong answer is of.
    """

    first: Spans = NO_SPANS
    second: Spans = NO_SPANS
    wrong: Spans = NO_SPANS
    key: Ints = field(default_factory=_nothing)
    wrong_key: Ints = field(default_factory=_nothing)

    def __len__(self) -> int:
        return len(self.key)

    def chosen(self, which: NDArray[np.bool_] | Ints) -> GivenPairs:
        """Some of them."""
        first, second, wrong = (spans.chosen(which) for spans in (self.first, self.second, self.wrong))
        return GivenPairs(first, second, wrong, self.key[which], self.wrong_key[which])

    def behind(self, drawn: DrawnPairs) -> DrawnPairs:
        """These behind pairs of documents."""
        has_wrong = np.flatnonzero(self.wrong.length > 0)
        return DrawnPairs(
            drawn.first.and_then(self.first),
            drawn.second.and_then(self.second),
            np.concatenate([drawn.document, self.key]),
            drawn.wrong.and_then(self.wrong.chosen(has_wrong)),
            np.concatenate([drawn.wrong_pair, len(drawn.document) + has_wrong]),
            np.concatenate([drawn.wrong_document, self.wrong_key[has_wrong]]),
        )


class PairDrawer:
    """Draws pairs of parts, each of which has one of some kind."""

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
        uniform = [_uniform(mix(counters + n)) for n in range(_NEXT)]
        if kind is None:
            weights = self.settings.kinds
            ends = np.cumsum(parts.can * np.array([weights.crops, weights.titles, weights.neighbours]), axis=1)
            kinds = np.asarray((uniform[0][:, None] * ends[:, -1:] >= ends).sum(1).clip(max=2))
        else:
            kinds = np.full(len(chosen), kind)
        first, second = self._crops(parts, uniform[1:5])
        for number, draw in ((1, self._titles), (2, self._neighbours)):
            if (mine := kinds == number).any():
                one, other = draw(parts.chosen(mine), uniform[5][mine], uniform[4][mine])
                for into, spans in ((first, one), (second, other)):
                    into.begin[mine], into.length[mine] = spans
        return DrawnPairs(first, second, parts.key)

    def _crops(self, parts: PairParts, uniform: list[NDArray[np.float64]]) -> tuple[Spans, Spans]:
        room = parts.end - parts.begin
        one = _lengths(uniform[0], self.settings.first_lengths, room)
        other = _lengths(uniform[1], self.settings.second_lengths, room)
        if self.settings.overlap:
            begin = parts.begin + (uniform[2] * (room - one + 1)).astype(np.int64)
            other_begin = parts.begin + (uniform[3] * (room - other + 1)).astype(np.int64)
        else:  # beside each other, in either order, with what is left of the room before, between and behind
            share = np.minimum(1.0, room / (one + other))  # both shorter in the same proportion, where they do not fit
            one, other = (np.maximum(1, (length * share).astype(np.int64)) for length in (one, other))
            left = room - one - other
            before, between = (uniform[2] * (left + 1)).astype(np.int64), uniform[3]
            swapped = between >= 0.5
            gap = ((2 * between % 1.0) * (left - before + 1)).astype(np.int64)
            begin = parts.begin + before + np.where(swapped, other + gap, 0)
            other_begin = parts.begin + before + np.where(swapped, 0, one + gap)
        return self._at_words(begin, one, parts), self._at_words(other_begin, other, parts)

    def _titles(
        self, parts: PairParts, uniform: NDArray[np.float64], place: NDArray[np.float64]
    ) -> tuple[Spans, Spans]:
        room = parts.end - parts.begin
        length = _lengths(uniform, self.settings.second_lengths, room)
        begin = parts.begin + (place * (room - length + 1)).astype(np.int64)
        title = np.minimum(parts.title_end - parts.title_begin, self.settings.longest)
        return Spans(parts.title_begin, title), self._at_words(begin, length, parts)

    def _neighbours(
        self, parts: PairParts, uniform: NDArray[np.float64], place: NDArray[np.float64]
    ) -> tuple[Spans, Spans]:
        border = parts.borders[parts.first_border + (uniform * parts.num_borders).astype(np.int64)]
        begin = np.maximum(parts.begin, border - self.settings.longest)
        end = np.minimum(parts.end, border + self.settings.longest)
        return self._at_words(begin, border - begin, parts), self._at_words(border, end - border, parts)

    def _at_words(self, begin: Ints, length: Ints, parts: PairParts) -> Spans:
        """The same spans without the parts of words at their ends, where something is left then."""
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


def _lengths(uniform: NDArray[np.float64], between: tuple[int, int], room: Ints) -> Ints:
    """Lengths of which every order of magnitude is equally likely, no longer than there is room."""
    least, most = between
    drawn = np.exp(math.log(least) + uniform * (math.log(most + 1) - math.log(least)))
    return np.minimum(np.floor(drawn).astype(np.int64).clip(least, most), room)


@dataclass(frozen=True)
class MinedNegatives:
    """Hard negatives: [I, K], int64: of each part other parts that look like it; -1 where there are fewer."""

    parts: Ints


class PairStream:
    """Batches of pairs of documents, of given pairs, or of both.

    Args:
        tokens: Of all texts.
        parts: Of documents; each has a pair of some kind.
        given: Pairs of the user's own.
        tokenizer: For special tokens, and for which tokens may be masked.
        settings: Batch, lengths, kinds, seed.
        most_positions: Of the model.

    Attributes:
        negatives: Hard negatives, once they are found; a crop of one of them comes with each pair as a wrong answer.
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
        self.pairs_a_step = -(-self.size // self.batches)  # some have one less
        texts = (given.first, given.second, given.wrong)
        longest = max(settings.longest, *(int(spans.length.max(initial=0)) for spans in texts))
        positions = longest + len(tokenizer.special.around)
        self.row_length = min(most_positions, max(_LEAST_ROW, -(-positions // 32) * 32))
        self.negatives: MinedNegatives | None = None

    @property
    def version(self) -> int:
        """1 as soon as hard negatives come with the pairs."""
        return int(self.negatives is not None)

    def pairs_before(self, cursor: Cursor) -> int:
        """Pairs in all batches before a place."""
        return cursor.epoch * self.size + cursor.window * self.size // self.batches

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a place, and the place behind it. It has as many rows as its pairs need.

        Batches of an epoch have about equally many pairs: a step on a few would move the weights as far as one on many.
        """
        seed, epoch = self.settings.seed, cursor.epoch
        begin, end = (n * self.size // self.batches for n in (cursor.window, cursor.window + 1))
        chosen = permutation(self.size, _ORDER, seed, epoch)[begin:end]
        key = mix_ints(_DRAW, seed, epoch)
        of_parts = chosen[chosen < len(self.parts)]
        drawn = self.drawer.draw(of_parts, key)
        if self.negatives is not None:
            drawn = self._with_negatives(drawn, self.negatives.parts[of_parts], of_parts, key)
        given = self.given.chosen(chosen[chosen >= len(self.parts)] - len(self.parts))
        rows, num_tokens = self.rows(given.behind(drawn) if len(given) else drawn)
        is_last = cursor.window + 1 == self.batches
        after = Cursor(epoch + 1) if is_last else Cursor(epoch, cursor.window + 1)
        own = share.part(rows.shape[0])
        return RowBatch(rows.part(own.start, own.stop), epoch, num_tokens, after)

    def _with_negatives(self, drawn: DrawnPairs, negatives: Ints, chosen: Ints, key: int) -> DrawnPairs:
        """The pairs with a crop of one of the hard negatives, for each part that has any."""
        count = (negatives >= 0).sum(1)
        has = np.flatnonzero(count)
        number = (_uniform(mix((chosen[has] * np.int64(GOLDEN)) ^ np.int64(key + _NEXT))) * count[has]).astype(np.int64)
        part = negatives[has, number]
        crops = self.drawer.draw(part, mix_ints(key, _NEXT), kind=0).second
        return replace(drawn, wrong=crops, wrong_pair=has, wrong_document=self.parts.key[part])

    def rows(self, drawn: DrawnPairs) -> tuple[Rows, int]:
        """Pairs in rows, and how many tokens of text they have."""
        num_pairs, num_wrong = len(drawn.document), len(drawn.wrong_pair)
        begin, length = drawn.first.and_then(drawn.second).and_then(drawn.wrong)
        pair = np.concatenate([np.arange(num_pairs), np.arange(num_pairs), drawn.wrong_pair])
        side = np.repeat([FIRST, SECOND, WRONG], [num_pairs, num_pairs, num_wrong])
        document = np.concatenate([drawn.document, drawn.document, drawn.wrong_document])
        columns = {PAIR: pair, SIDE: side, DOCUMENT: document, TEXT: content_hashes(self.tokens.ids, begin, length)}

        row_length = self.row_length
        packed = pack_pieces(length, row_length=row_length, overhead=len(self.tokenizer.special.around))
        # Masks are a function of the content and of which text of which pair it is.
        key = mix(columns[TEXT] ^ mix(document + side))
        rows, at, first = fill_rows(
            packed,
            row_length,
            self.tokenizer,
            source=begin[packed.piece],
            key=key[packed.piece],
            text=(self.tokens.ids, self.tokens.word_starts),
        )
        if self.settings.masked != "both":
            sides = np.repeat(side[packed.piece], packed.length)
            places = np.repeat(at - np.cumsum(packed.length) + packed.length, packed.length) + np.arange(len(sides))
            unmasked = places[(sides == FIRST) == (self.settings.masked == "second")]
            rows.maskable.view(-1)[torch.from_numpy(unmasked)] = False
        classes = {}
        for name, values in columns.items():
            column = np.full(rows.input_ids.numel(), -1, dtype=np.int64)
            column[first] = values[packed.piece]
            classes[name] = torch.from_numpy(column).view(rows.shape)
        rows = replace(rows, classes=classes)
        return rows, int(length.sum())
