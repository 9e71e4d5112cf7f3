"""An endless stream of batches of pairs, drawn from documents and packed into rows without padding between them.

    a part of a document   [ ......... first ......... second ............... ]
    a batch                [CLS] first of 7 [SEP] [CLS] second of 3 [SEP] [CLS] second of 7 [SEP] [PAD] ...

Each part of a document gives one pair an epoch, in an order of its own. What is drawn is a function of (seed, epoch,
part): the place in the stream is a small cursor, and nothing else need be known to go on.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.commands.embedder_settings import EmbedderSettings, PairColumns
from unmask.commands.embedder_texts import Ints, TextKeys, TokenTexts, content_hashes
from unmask.core.errors import CorpusError, shown
from unmask.core.hashing import GOLDEN, mix, mix_ints, permutation
from unmask.data.groups import Clusters
from unmask.data.packing import PackedRows, Placed, RowColumns, fill, pack_pieces, places_in_rows
from unmask.data.reading import BadInput, broken_character
from unmask.data.rows import WHOLE, Cursor, RowBatch, Rows, Share
from unmask.data.sources import find_sources
from unmask.data.tables import USUAL, Role, find_column, first_rows, rows_of
from unmask.tasks.files import Gathered
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.contrast import DOCUMENT, FIRST, PAIR, SECOND, SIDE, TEXT, WRONG

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


# ----------------------------------------
# Pairs of a user's own: a file of queries and texts, perhaps with a wrong answer for each, or with labels.
#
# query, text                two texts that belong together
# query, text, negative      and one that does not belong to the query
# query, text, label         1: they belong together; 0: they do not, and the text is a wrong answer where the query
#                            has a right one in another row; or a score from 0 to 1, of which 0.5 and more are 1

RIGHT = 0.5  # from this score on


@dataclass(frozen=True)
class TextPairs:
    """Pairs as texts.

    Attributes:
        queries, texts: As many of each.
        negatives: For each a wrong answer, or None.
        columns: Where they stood.
        left_out: Rows that were not used, by reason.
    """

    queries: list[str]
    texts: list[str]
    negatives: list[str | None]
    columns: dict[str, str]
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def answers(self) -> list[str]:
        """Right ones, and after them the wrong ones, empty where there is none."""
        return [*self.texts, *(text or "" for text in self.negatives)]


def read_pairs(path: Path, columns: PairColumns) -> TextPairs:
    """Reads a file of pairs.

    Args:
        path: CSV, TSV, JSON, JSONL or Parquet.
        columns: That were named; others are found by their names.

    Raises:
        CorpusError: It is no table, a column is not there, a label is none, or no row is a pair.
    """
    sources = find_sources([path], announce=False)
    if len(sources) != 1 or not sources[0].is_table:
        raise CorpusError(f"{path}: pairs are read from one table (CSV, TSV, JSONL or Parquet)")
    asked = {name: column for name, column in vars(columns).items() if column is not None}
    known = list(asked.values())
    bad = BadInput(skip=False, way_out=None)
    found = _find_columns(path, first_rows(sources[0], bad, None, known), asked)
    gathered = Gathered(path)
    right: list[tuple[str, str, str | None]] = []
    wrong: dict[str, list[str]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    for number, row in rows_of(sources[0], bad, None, known=known, only=list(found.values())):
        values = {name: _text(path, number, row, column) for name, column in found.items() if name != "label"}
        query, text = values["query"], values["text"]
        if query is None or text is None:
            left_out["rows without one of the texts"] += 1
            continue
        gathered.add(len(query) + len(text) + len(values.get("negative") or ""))
        if "label" in found and not _belongs(path, number, row.get(found["label"]), found["label"]):
            wrong[query].append(text)
            continue
        right.append((query, text, values.get("negative")))
    used = {query for query, _, _ in right}
    if lost := sum(len(texts) for query, texts in wrong.items() if query not in used):
        left_out["wrong pairs whose query has no right one"] = lost
    if not right:
        raise CorpusError(f"{path}: no row is a pair that belongs together; there must be two at the least")
    queries, texts, negatives = (list(each) for each in zip(*right, strict=True))
    for place, query in enumerate(queries):
        if negatives[place] is None and wrong[query]:
            negatives[place] = wrong[query][place % len(wrong[query])]
    return TextPairs(queries, texts, negatives, found, dict(left_out))


_ROLES: Mapping[str, Role] = {"query": "query", "text": "answer", "negative": "negative", "label": "match"}


def _find_columns(path: Path, rows: Sequence[Mapping[str, Any]], asked: Mapping[str, str]) -> dict[str, str]:
    first = [dict(row) for row in rows]
    found = dict(asked)
    for name, role in _ROLES.items():
        column = find_column(first, role, asked.get(name), where=path, taken=tuple(found.values()))
        if column is not None:
            found[name] = column
    names = list(dict.fromkeys(name for row in rows for name in row))
    if names[:2] == ["0", "1"] and not asked:  # no names
        found = dict(zip(("query", "text", "negative"), names, strict=False))
    if lacking := next((name for name in ("query", "text") if name not in found), None):
        usual = ", ".join(USUAL[_ROLES[lacking]][:4])
        raise CorpusError(
            f"{path}: no column is called like that of the {lacking} ({usual}, ...); columns are {', '.join(names)}; "
            f"name it with --set embedder.columns.{lacking}=NAME"
        )
    return found


def _text(path: Path, number: int, row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str):
        raise CorpusError(f"{path}: row {number} has {shown(value)} in column {column!r}, which is no text")
    if broken := broken_character(value):
        raise CorpusError(f"{path}: row {number} has {broken} in column {column!r}, which is no character; take it out")
    return value


def _belongs(path: Path, number: int, value: Any, column: str) -> bool:
    """Whether a label says that two texts belong together."""
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= 1.0:
        raise CorpusError(
            f"{path}: row {number} has {shown(value)} in column {column!r}; a label is 1 for texts that belong "
            "together and 0 for others, or a score from 0 to 1. Change it, or learn classes and grades of pairs with "
            "unmask finetune --task pairs or regress"
        )
    return score >= RIGHT


def tokens_of_pairs(
    pairs: TextPairs,
    tokenizer: Tokenizer,
    tokens: Tokens,
    *,
    keys: Ints | None,
    longest: int,
    note: Callable[[str], None],
) -> tuple[Tokens, GivenPairs]:
    """Pairs as tokens, behind those that are there.

    Args:
        pairs: As they were read.
        tokenizer: Of the model.
        tokens: Of documents.
        keys: [2 G], int64: of all answers, as documents have them; None: there are no documents.
        longest: Tokens of a text at most; of longer ones the beginnings are used.
        note: Told what was cut.
    """
    texts = [*pairs.queries, *pairs.answers]
    encoded, lengths = tokenizer.encode_joined(texts)
    begins = len(tokens.ids) + np.cumsum(lengths) - lengths
    if cut := int((lengths > longest).sum()):
        note(f"pairs: {cut:,} of {len(texts):,} texts are longer than {longest} tokens; their ends are not seen")
    lengths = np.minimum(lengths, longest)
    first, second, wrong = (
        Spans(begin, length) for begin, length in zip(np.split(begins, 3), np.split(lengths, 3), strict=True)
    )
    joined = Tokens(
        np.concatenate([tokens.ids, encoded.input_ids]),
        np.concatenate([tokens.word_starts, encoded.word_starts.view(np.uint8)]),
    )
    key, wrong_key = np.split(TextKeys.of(pairs.answers, Clusters()).given if keys is None else keys, 2)
    given = GivenPairs(first, second, wrong, key, wrong_key)
    return joined, given.chosen((first.length > 0) & (second.length > 0))


# ----------------------------------------
# What an embedding model is trained and measured on, and what is said of it before.

MOST_HELD = 512  # pairs of a kind
_HELD, _GIVEN = 19, 20  # set these draws apart
_NOTHING = np.zeros(0, dtype=np.int64)
_NO_SPANS = Spans(_NOTHING, _NOTHING)
NO_PAIRS = GivenPairs(_NO_SPANS, _NO_SPANS, _NO_SPANS, _NOTHING, _NOTHING)


@dataclass(frozen=True)
class PairData:
    """Pairs to train on, and held-out ones.

    Attributes:
        tokens: Of all texts.
        parts: Of documents, each with a pair of some kind.
        given: Pairs that the user gave.
        held: Held-out pairs by their kind; empty where there are too few.
        facts: For the summary: documents, tokens, pairs by kind, what was left out.
    """

    tokens: Tokens
    parts: PairParts
    given: GivenPairs
    held: dict[str, DrawnPairs]
    facts: dict[str, int]


def pair_data(
    texts: TokenTexts | None,
    pairs: TextPairs | None,
    tokenizer: Tokenizer,
    settings: EmbedderSettings,
    *,
    note: Callable[[str], None],
) -> PairData:
    """Finds out which pairs there are, and says so.

    Args:
        texts: The documents; None: none were given.
        pairs: Of the user's own; None likewise.
        tokenizer: Of the model.
        settings: Kinds, lengths, how much is held out.
        note: Told what was found, in lines.

    Raises:
        CorpusError: There are not two documents to tell from each other, or all are too short.
    """
    tokens = Tokens(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.uint8))
    parts: PairParts | None = None
    held_parts: PairParts | None = None
    facts: dict[str, int] = {}
    if texts is not None:
        tokens = Tokens(texts.ids, texts.word_starts)
        held_parts = _usable(texts, settings, held=True)
        if len(np.unique(held_parts.key)) < 2:  # too few to measure on, but searches may ask for them
            held_parts = None
        parts = _usable(texts, settings, held=False)
        facts = _facts(texts, parts)
        for line in _describe(facts, settings):
            note(line)
        if pairs is None:
            _check(texts, parts, settings)
    given = held_given = NO_PAIRS
    if pairs is not None:
        keys = None if texts is None else texts.given
        tokens, all_given = tokens_of_pairs(pairs, tokenizer, tokens, keys=keys, longest=settings.longest, note=note)
        given, held_given, lost = _split(all_given, texts, settings)
        if lost:
            note(f"pairs: {lost:,} wrong answers are held-out documents, and are left out")
        facts["given_pairs"] = len(given)
        with_wrong = int((all_given.wrong.length > 0).sum())
        columns = ", ".join(f"{role} in {column!r}" for role, column in pairs.columns.items())
        note(f"pairs: {len(all_given):,}, {with_wrong:,} of them with a wrong answer; {columns}")
        for reason, number in pairs.left_out.items():
            note(f"pairs: left out: {number:,} {reason}")
        if len(np.unique(given.key)) < 2 and (parts is None or not len(parts)):
            raise CorpusError("all pairs have the same text, so there is nothing to tell it from; give more pairs")
        if (parts is None or not len(parts)) and len(np.unique(_hashes(tokens, given.first))) < 2:
            raise CorpusError("all pairs have the same query, so all texts are right answers; give more pairs")
    parts = _no_parts() if parts is None else parts
    held = dict(_held_pairs(tokens, held_parts, held_given, settings))
    if held:
        counts = ", ".join(f"{len(drawn.document):,} {kind}" for kind, drawn in held.items())
        note(f"held out: {counts}")
    else:
        note("too little is held out to measure on, so nothing is measured")
    return PairData(tokens, parts, given, held, facts)


def _usable(texts: TokenTexts, settings: EmbedderSettings, *, held: bool) -> PairParts:
    parts = PairParts.of(texts, settings, held=held)
    return parts.chosen(np.flatnonzero(parts.can.any(1)))


def _no_parts() -> PairParts:
    can = np.zeros((0, len(KINDS)), dtype=bool)
    return PairParts(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, can, _NOTHING, _NOTHING, _NOTHING)


def _facts(texts: TokenTexts, parts: PairParts) -> dict[str, int]:
    train = texts.held == 0
    return {
        "documents": int(train.sum()),
        "held_out_documents": int((~train).sum()),
        "tokens": int((texts.ends - texts.paragraph[texts.document[:-1]])[train].sum()),
        "too_short": int(train.sum()) - len(np.unique(np.searchsorted(texts.begins, parts.begin, side="right"))),
        "parts": len(parts),
        **{kind: int(parts.can[:, number].sum()) for number, kind in enumerate(KINDS)},
    }


def _describe(facts: dict[str, int], settings: EmbedderSettings) -> Iterator[str]:
    yield f"{facts['documents']:,} documents to train on, {facts['held_out_documents']:,} held out"
    kinds = {
        "crops": "two crops",
        "titles": "a title and a crop",
        "neighbours": "neighbouring paragraphs",
    }
    found = ", ".join(f"{words} {facts[kind]:,}" for kind, words in kinds.items() if facts[kind])
    yield f"{facts['parts']:,} parts of them have pairs: {found or 'none'}"
    if facts["too_short"]:
        yield (
            f"{facts['too_short']:,} documents are too short for a pair and are left out: crops have "
            f"{settings.first_lengths[0]} and {settings.second_lengths[0]} tokens at the least"
        )
    if facts["crops"] and settings.longest > settings.part_tokens:
        yield (
            f"crops of {settings.longest} tokens do not fit parts of about {settings.part_tokens}, and are cut to "
            f"them; for longer ones --set embedder.part_tokens={2 * settings.longest}"
        )


def _check(texts: TokenTexts, parts: PairParts, settings: EmbedderSettings) -> None:
    if not len(parts):
        longest = int((texts.ends - texts.begins).max(initial=0))
        raise CorpusError(
            f"no document has a pair of texts: the longest has {longest} tokens, but two crops of "
            f"{settings.first_lengths[0]} and {settings.second_lengths[0]} tokens are the least; give longer "
            "documents (--set corpus.documents=block or file), shorter crops (--set 'embedder.first_lengths=[4,64]' "
            "and second_lengths), or pairs of your own (--pairs)"
        )
    if len(np.unique(parts.key)) < 2:
        raise CorpusError(
            "there is one document to train on, and nothing to tell it from (near-duplicates are one); give more "
            "documents, or have lines or blocks be documents (--set corpus.documents=line)"
        )


def _hashes(tokens: Tokens, spans: Spans) -> Ints:
    return content_hashes(tokens.ids, spans.begin, spans.length)


def _split(
    given: GivenPairs, texts: TokenTexts | None, settings: EmbedderSettings
) -> tuple[GivenPairs, GivenPairs, int]:
    """Pairs to train on and held-out ones: by the document that the second text is a near-duplicate of, else by its
    hash. Of those to train on, wrong answers that are held-out documents are taken away; so many.
    """
    held = (mix(given.key + _GIVEN).view(np.uint64) >> np.uint64(11)) < settings.holdout * 2.0**53
    if texts is None:
        if held.sum() < 2 or (~held).sum() < 2:
            return given, NO_PAIRS, 0
        return given.chosen(~held), given.chosen(held), 0
    held_keys = texts.cluster[texts.held == 1]
    held = np.isin(given.key, held_keys) | (held & ~np.isin(given.key, texts.cluster))
    is_lost = ~held & np.isin(given.wrong_key, held_keys) & (given.wrong.length > 0)
    given = replace(given, wrong=Spans(given.wrong.begin, np.where(is_lost, 0, given.wrong.length)))
    return given.chosen(~held), given.chosen(held) if held.sum() > 1 else NO_PAIRS, int(is_lost.sum())


def _held_pairs(
    tokens: Tokens, parts: PairParts | None, given: GivenPairs, settings: EmbedderSettings
) -> Iterator[tuple[str, DrawnPairs]]:
    """The same pairs whenever they are asked for."""
    key = mix_ints(_HELD, settings.seed)
    if parts is not None and len(parts):
        drawer = PairDrawer(tokens, parts, settings)
        order = permutation(len(parts), key)
        for number, kind in enumerate(KINDS):
            chosen = order[parts.can[order, number]]
            if kind == "titles":  # one for each document
                _, firsts = np.unique(parts.key[chosen], return_index=True)
                chosen = chosen[np.sort(firsts)]
            if len(np.unique(parts.key[chosen := chosen[:MOST_HELD]])) > 1:
                yield kind, drawer.draw(chosen, key, kind=number)
    if len(given):
        none = PairDrawer(tokens, _no_parts(), settings).draw(_NOTHING, key)
        yield "given", with_given(none, given.chosen(np.arange(len(given))[:MOST_HELD]))
