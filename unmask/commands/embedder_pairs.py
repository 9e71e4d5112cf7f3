"""What an embedding model is trained and measured on: pairs of documents, and pairs of the user's own.

    a part of a document   [ ......... first ......... second ............... ]
    a batch                [CLS] first of 7 [SEP] [CLS] second of 3 [SEP] [CLS] second of 7 [SEP] [PAD] ...

Each part of a document gives one pair an epoch, in an order of its own. What is drawn is a function of (seed, epoch,
part): the place in the stream is a small cursor, and nothing else is needed to go on. Pairs are packed into rows
without padding between them. The user's own stand in a table:

    query, text                two texts that belong together
    query, text, negative      and one that does not belong to the query
    query, text, label         1: they belong together; 0: they do not, and the text is a wrong answer where the query
                               has a right one in another row; or a score from 0 to 1, of which 0.5 and more are 1
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.commands.embedder_settings import EmbedderSettings, PairColumns
from unmask.commands.embedder_texts import NO_TEXTS, Ints, TokenTexts, answer_keys, content_hashes
from unmask.core.errors import CorpusError, shown
from unmask.core.hashing import GOLDEN, mix, mix_ints, permutation
from unmask.data.packing import pack_pieces
from unmask.data.reading import BadInput, Row, broken_character
from unmask.data.rows import WHOLE, Cursor, RowBatch, Rows, Share, fill_rows
from unmask.data.sources import find_sources
from unmask.data.tables import USUAL, Role, find_column, first_rows, rows_of
from unmask.tasks.files import check_size
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.contrast import DOCUMENT, FIRST, PAIR, SECOND, SIDE, TEXT, WRONG

KINDS = ("crops", "titles", "neighbours")
CROPS, TITLES, NEIGHBOURS = range(3)
RIGHT = 0.5  # from this score on
MOST_HELD = 512  # pairs of a kind
_ROLES: Mapping[str, Role] = {"query": "query", "text": "answer", "negative": "negative", "label": "match"}
_LEAST_ROW = 128  # positions
_ORDER, _DRAW, _HELD, _GIVEN = 17, 18, 19, 20  # set these draws apart from others of the same seed
_NEXT = 6  # numbers that are drawn for each pair


# ----------------------------------------
# Pairs of the user's own, as texts.


@dataclass(frozen=True)
class TextPairs:
    """Pairs as texts."""

    queries: list[str]
    texts: list[str]  # as many
    negatives: list[str]  # a wrong answer for each; empty where there is none
    columns: dict[str, str]  # by role
    left_out: dict[str, int]  # rows that were not used, by reason

    @property
    def answers(self) -> list[str]:
        """Right ones, and after them the wrong ones."""
        return [*self.texts, *self.negatives]


def read_pairs(path: Path, columns: PairColumns) -> TextPairs:
    """Reads a table of pairs; columns that are not named are found by usual names."""
    sources = find_sources([path], announce=False)
    if len(sources) != 1 or not sources[0].is_table:
        raise CorpusError(f"{path}: pairs are read from one table (CSV, TSV, JSONL or Parquet)")
    named = columns.model_dump(exclude_none=True)
    bad, known = BadInput(skip=False, way_out=None), list(named.values())
    column_of = _find_columns(path, first_rows(sources[0], bad, None, known), named)
    right: list[tuple[str, str, str]] = []
    wrong: dict[str, list[str]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    num_pairs = num_chars = 0
    for number, row in rows_of(sources[0], bad, None, known=known, only=list(column_of.values())):
        where, texts = f"{path}: row {number} has", dict.fromkeys(("query", "text", "negative"), "")
        for name in texts:
            column = column_of.get(name, "")
            value = row.get(column)
            if value is not None and not isinstance(value, str):
                raise CorpusError(f"{where} {shown(value)} in column {column!r}, which is no text")
            if broken := broken_character(value or ""):
                raise CorpusError(f"{where} {broken} in column {column!r}, which is no character; take it out")
            texts[name] = value if value and value.strip() else ""
        query, text, negative = texts.values()
        if not query or not text:
            left_out["rows without one of the texts"] += 1
            continue
        num_pairs, num_chars = num_pairs + 1, num_chars + len(query) + len(text) + len(negative)
        check_size(path, num_pairs, num_chars)
        if "label" in column_of and not _belongs(row.get(column_of["label"]), column_of["label"], where):
            wrong[query].append(text)
        else:
            right.append((query, text, negative))
    used = {query for query, _, _ in right}
    if lost := sum(len(texts) for query, texts in wrong.items() if query not in used):
        left_out["wrong pairs whose query has no right one"] = lost
    if not right:
        raise CorpusError(f"{path}: no row is a pair that belongs together; there must be two at the least")
    queries, answers, negatives = (list(each) for each in zip(*right, strict=True))
    for place, query in enumerate(queries):
        if not negatives[place] and wrong[query]:
            negatives[place] = wrong[query][place % len(wrong[query])]
    return TextPairs(queries, answers, negatives, column_of, dict(left_out))


def _find_columns(path: Path, rows: Sequence[Row], named: Mapping[str, str]) -> dict[str, str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    column_of: dict[str, str] = dict(named)
    for name, role in _ROLES.items():
        column = find_column(rows, role, named.get(name), where=path, taken=tuple(column_of.values()))
        if column is not None:
            column_of[name] = column
    if names[:2] == ["0", "1"] and not named:  # a table without a header
        column_of = dict(zip(("query", "text", "negative"), names, strict=False))
    if lacking := next((name for name in ("query", "text") if name not in column_of), None):
        usual = ", ".join(USUAL[_ROLES[lacking]][:4])
        raise CorpusError(
            f"{path}: no column is called like that of the {lacking} ({usual}, ...); columns are {', '.join(names)}; "
            f"name it with --set embedder.columns.{lacking}=NAME"
        )
    return column_of


def _belongs(value: Any, column: str, where: str) -> bool:
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
            f"{where} {shown(value)} in column {column!r}; a label is 1 for texts that belong together and 0 for "
            "others, or a score from 0 to 1. Change it, or learn classes and grades of pairs with unmask finetune "
            "--task pairs or regress"
        )
    return score >= RIGHT


# ----------------------------------------
# Pairs as spans of tokens, and how they are drawn from documents.


@dataclass(frozen=True)
class TokenPairs:
    """P pairs as spans of tokens, by side: [3, P], int64, in the order `FIRST`, `SECOND`, `WRONG`."""

    begin: Ints  # first token of each text
    length: Ints  # 0: there is no wrong answer
    document: Ints  # what each text is of, the same for near-duplicates

    def __len__(self) -> int:
        return self.begin.shape[1]

    def chosen(self, which: NDArray[np.bool_] | Ints) -> TokenPairs:
        """Some of them."""
        return TokenPairs(self.begin[:, which], self.length[:, which], self.document[:, which])


NO_PAIRS = TokenPairs(*[np.zeros((3, 0), dtype=np.int64)] * 3)


@dataclass(frozen=True)
class PairParts:
    """Parts of documents that pairs are drawn from; I of them."""

    begin: Ints  # [I]: their tokens, without a title
    end: Ints
    title_begin: Ints  # [I]: of the document's title; the same where there is none
    title_end: Ints
    key: Ints  # [I]: the document they are of; near-duplicates have the same
    can: NDArray[np.bool_]  # [I, 3]: which kinds of pairs they have, as `KINDS` names them
    first_border: Ints  # [I]: which of the borders are in each part
    num_borders: Ints
    # Where one paragraph ends and another begins that are long enough for a pair, as is what of the part stands on
    # either side; part by part.
    borders: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def chosen(self, which: NDArray[np.bool_] | Ints) -> PairParts:
        """Some of them."""
        names = [entry.name for entry in fields(self) if entry.name != "borders"]
        return replace(self, **{name: getattr(self, name)[which] for name in names})


def pair_parts(texts: TokenTexts, settings: EmbedderSettings, *, held: bool) -> PairParts:
    """The parts of the documents of one side that have a pair of some kind."""
    documents = np.flatnonzero(texts.held == held)  # of each its parts follow each other
    begins, sizes = texts.begins[documents], (texts.ends - texts.begins)[documents]
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
    is_border = long.copy()
    is_border[1:] &= long[:-1]
    is_border[texts.document[:-1]] = False
    borders = texts.paragraph[:-1][is_border]
    first, after = np.searchsorted(borders, begin + shortest), np.searchsorted(borders, end - shortest, "right")
    num_borders = np.maximum(after - first, 0)

    room = end - begin
    both = settings.first_lengths[0] + settings.second_lengths[0]
    can = np.stack([room >= both, (title_end > title_begin) & (room >= shortest), num_borders > 0], 1)
    can &= np.array([settings.kinds.crops, settings.kinds.titles, settings.kinds.neighbours]) > 0
    key = texts.cluster[documents][owner]
    parts = PairParts(begin, end, title_begin, title_end, key, can, first, num_borders, borders)
    return parts.chosen(np.flatnonzero(can.any(1)))


class PairDrawer:
    """Draws pairs from parts of documents; `ids` and `word_starts` are those of all tokens, as in `TokenTexts`."""

    def __init__(
        self, ids: NDArray[np.int32], word_starts: NDArray[np.uint8], parts: PairParts, settings: EmbedderSettings
    ) -> None:
        self.ids, self.word_starts, self.parts, self.settings = ids, word_starts, parts, settings
        self._words = np.flatnonzero(word_starts)

    def draw(self, chosen: Ints, key: int, *, kind: int | None = None) -> TokenPairs:
        """Pairs of some parts [P], without wrong answers: a function of the key and the part.

        The kind is one that all of them have, or is drawn by the weights.
        """
        parts, settings = self.parts.chosen(chosen), self.settings
        counters = (chosen * np.int64(GOLDEN)) ^ np.int64(key)
        uniform = [_uniform(mix(counters + n)) for n in range(_NEXT)]
        if kind is None:
            weights = np.array([settings.kinds.crops, settings.kinds.titles, settings.kinds.neighbours])
            ends = np.cumsum(parts.can * weights, axis=1)
            kinds = np.asarray((uniform[0][:, None] * ends[:, -1:] >= ends).sum(1).clip(max=2))
        else:
            kinds = np.full(len(chosen), kind)
        titles, neighbours = np.flatnonzero(kinds == TITLES), np.flatnonzero(kinds == NEIGHBOURS)
        begin, end = self._crops(parts, uniform[1:5])
        # A title, and a crop of what follows it.
        room = (parts.end - parts.begin)[titles]
        length = _lengths(uniform[5][titles], settings.second_lengths, room)
        begin[SECOND, titles] = parts.begin[titles] + (uniform[4][titles] * (room - length + 1)).astype(np.int64)
        end[SECOND, titles] = begin[SECOND, titles] + length
        # What stands on either side of a border of paragraphs.
        number = (uniform[5] * parts.num_borders).astype(np.int64)
        border = parts.borders[(parts.first_border + number)[neighbours]]
        begin[FIRST, neighbours] = np.maximum(parts.begin[neighbours], border - settings.longest)
        end[FIRST, neighbours] = begin[SECOND, neighbours] = border
        end[SECOND, neighbours] = np.minimum(parts.end[neighbours], border + settings.longest)
        begin, end = self._at_words(begin, end, parts.end)
        begin[FIRST, titles] = parts.title_begin[titles]
        end[FIRST, titles] = np.minimum(parts.title_end, parts.title_begin + settings.longest)[titles]
        none = np.zeros((1, len(chosen)), dtype=np.int64)
        length = np.concatenate([end - begin, none])
        return TokenPairs(np.concatenate([begin, none]), length, np.tile(parts.key, (3, 1)))

    def _crops(self, parts: PairParts, uniform: Sequence[NDArray[np.float64]]) -> tuple[Ints, Ints]:
        """Where the two crops of each part begin and end: [2, P]."""
        room = parts.end - parts.begin
        between = self.settings.first_lengths, self.settings.second_lengths
        length = np.stack([_lengths(uniform[side], between[side], room) for side in (FIRST, SECOND)])
        if self.settings.overlap:
            begin = parts.begin + (np.stack(uniform[2:4]) * (room - length + 1)).astype(np.int64)
        else:  # beside each other, in either order, with what is left of the room before, between and behind
            share = np.minimum(1.0, room / length.sum(0))  # both shorter in the same proportion, where they do not fit
            length = np.maximum(1, (length * share).astype(np.int64))
            left = room - length.sum(0)
            before = (uniform[2] * (left + 1)).astype(np.int64)
            gap = ((2 * uniform[3] % 1.0) * (left - before + 1)).astype(np.int64)
            is_later = np.stack([uniform[3] >= 0.5, uniform[3] < 0.5])
            begin = parts.begin + before + np.where(is_later, length[::-1] + gap, 0)
        return begin, begin + length

    def _at_words(self, begin: Ints, end: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Spans without the parts of words at their ends, where something is left then; `last`: where parts end."""
        words, starts = self._words, self.word_starts
        if not len(words):
            return begin, end
        first = words[np.searchsorted(words, begin).clip(max=len(words) - 1)]
        behind = words[(np.searchsorted(words, end, side="right") - 1).clip(min=0)]
        is_whole = (end >= last) | (starts[end.clip(max=len(starts) - 1)] == 1)
        begin = np.where((first >= begin) & (first < end), first, begin)
        return begin, np.where(is_whole | (behind <= begin), end, behind)


def _uniform(bits: Ints) -> NDArray[np.float64]:
    """Numbers in [0, 1) of hashes."""
    return (bits.view(np.uint64) >> np.uint64(11)).astype(np.float64) / 2**53


def _lengths(uniform: NDArray[np.float64], between: tuple[int, int], room: Ints) -> Ints:
    """Lengths of which every order of magnitude is equally likely, no longer than there is room."""
    least, most = between
    drawn = np.exp(math.log(least) + uniform * (math.log(most + 1) - math.log(least)))
    return np.minimum(np.floor(drawn).astype(np.int64).clip(least, most), room)


class PairStream:
    """An endless stream of batches of pairs: those that a drawer draws from documents, and the user's own.

    Attributes:
        negatives: [I, K], int64: hard negatives, once they are mined: of each part other parts that look like it; -1
            where there are fewer. A crop of one of them comes with each pair as a wrong answer.
    """

    def __init__(self, drawer: PairDrawer, own: TokenPairs, tokenizer: Tokenizer, *, max_positions: int) -> None:
        self.drawer, self.own, self.tokenizer, self.settings = drawer, own, tokenizer, drawer.settings
        self.size = len(drawer.parts) + len(own)
        self.batches = max(1, math.ceil(self.size / self.settings.batch_size))
        self.pairs_a_step = -(-self.size // self.batches)  # some have one less
        longest = max(self.settings.longest, int(own.length.max(initial=0))) + len(tokenizer.special.around)
        self.row_length = min(max_positions, max(_LEAST_ROW, -(-longest // 32) * 32))
        self.negatives: Ints | None = None

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
        seed, epoch, parts = self.settings.seed, cursor.epoch, self.drawer.parts
        begin, end = (n * self.size // self.batches for n in (cursor.window, cursor.window + 1))
        chosen = permutation(self.size, _ORDER, seed, epoch)[begin:end]
        key = mix_ints(_DRAW, seed, epoch)
        of_parts = chosen[chosen < len(parts)]
        drawn = self.drawer.draw(of_parts, key)
        if self.negatives is not None:  # a crop of one of those of each part
            negatives = self.negatives[of_parts]
            count = (negatives >= 0).sum(1)
            has = np.flatnonzero(count)
            uniform = _uniform(mix((of_parts[has] * np.int64(GOLDEN)) ^ np.int64(key + _NEXT)))
            other = negatives[has, (uniform * count[has]).astype(np.int64)]
            crops = self.drawer.draw(other, mix_ints(key, _NEXT), kind=CROPS)
            drawn.begin[WRONG, has], drawn.length[WRONG, has] = crops.begin[SECOND], crops.length[SECOND]
            drawn.document[WRONG, has] = parts.key[other]
        own = self.own.chosen(chosen[chosen >= len(parts)] - len(parts))
        columns = zip(vars(drawn).values(), vars(own).values(), strict=True)
        rows, num_tokens = self.rows(TokenPairs(*(np.concatenate(both, axis=1) for both in columns)))
        is_last = cursor.window + 1 == self.batches
        after = Cursor(epoch + 1) if is_last else Cursor(epoch, cursor.window + 1)
        part = share.part(rows.shape[0])
        return RowBatch(rows.part(part.start, part.stop), epoch, num_tokens, after)

    def rows(self, pairs: TokenPairs) -> tuple[Rows, int]:
        """Pairs in rows, and how many tokens of text they have."""
        ids, row_length = self.drawer.ids, self.row_length
        side, pair = np.nonzero(pairs.length)
        begin, length, document = (column[side, pair] for column in (pairs.begin, pairs.length, pairs.document))
        columns = {PAIR: pair, SIDE: side, DOCUMENT: document, TEXT: content_hashes(ids, begin, length)}
        packed = pack_pieces(length, row_length=row_length, overhead=len(self.tokenizer.special.around))
        # Masks are a function of the content and of which text of which pair it is.
        key = mix(columns[TEXT] ^ mix(document + side))
        rows, at, first = fill_rows(
            packed,
            row_length,
            self.tokenizer,
            source=begin[packed.piece],
            key=key[packed.piece],
            text=(ids, self.drawer.word_starts),
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
        return replace(rows, classes=classes), int(length.sum())


# ----------------------------------------
# What there is to train on, and what is held out.


@dataclass(frozen=True)
class PairData:
    """Pairs to train on, and held-out ones."""

    stream: PairStream
    held: dict[str, TokenPairs]  # by kind; empty where there are too few
    facts: dict[str, int]  # for the summary: documents, tokens, pairs by kind, what was left out


def pair_data(
    texts: TokenTexts | None,
    pairs: TextPairs | None,
    tokenizer: Tokenizer,
    settings: EmbedderSettings,
    *,
    max_positions: int,
    note: Callable[[str], None],
) -> PairData:
    """Finds which pairs there are in documents and pairs of the user's own, one of which may be None."""
    documents = texts or NO_TEXTS
    ids, word_starts = documents.ids, documents.word_starts
    parts, held_parts = (pair_parts(documents, settings, held=held) for held in (False, True))
    if len(np.unique(held_parts.key)) < 2:  # too few to measure on, but searches may ask for them
        held_parts = pair_parts(NO_TEXTS, settings, held=True)
    facts: dict[str, int] = {}
    if texts is not None:
        facts = _document_facts(texts, parts, settings, note)
        if pairs is None and not len(parts):
            longest = int((texts.ends - texts.begins).max(initial=0))
            raise CorpusError(
                f"no document has a pair of texts: the longest has {longest} tokens, but two crops of "
                f"{settings.first_lengths[0]} and {settings.second_lengths[0]} tokens are the least; give longer "
                "documents (--set corpus.documents=block or file), shorter crops (--set 'embedder.first_lengths=[4,64]'"
                " and second_lengths), or pairs of your own",
                options=("pairs",),
            )
        if pairs is None and len(np.unique(parts.key)) < 2:
            raise CorpusError(
                "there is one document to train on, and nothing to contrast it with (near-duplicates are one); give "
                "more documents, or have lines or blocks be documents (--set corpus.documents=line)"
            )
    own = held_own = NO_PAIRS
    if pairs is not None:
        # Their tokens stand behind those of documents; of long texts the beginnings are used.
        user_texts = [*pairs.queries, *pairs.answers]
        encoded, lengths = tokenizer.encode_joined(user_texts)
        begins = len(ids) + np.cumsum(lengths) - lengths
        if cut := int((lengths > settings.longest).sum()):
            are_longer = f"are longer than {settings.longest} tokens; their ends are not seen"
            note(f"pairs: {cut:,} of {len(user_texts):,} texts {are_longer}")
        ids = np.concatenate([ids, encoded.input_ids])
        word_starts = np.concatenate([word_starts, encoded.word_starts.view(np.uint8)])
        key, wrong_key = np.split(answer_keys(pairs.answers) if texts is None else texts.answers, 2)
        every = TokenPairs(
            begins.reshape(3, -1),
            np.minimum(lengths, settings.longest).reshape(3, -1),
            np.stack([key, key, wrong_key]),
        )
        every = every.chosen((every.length[FIRST] > 0) & (every.length[SECOND] > 0))
        own, held_own = _split(every, documents, settings, note)
        facts["given_pairs"] = len(own)
        with_wrong = int((every.length[WRONG] > 0).sum())
        columns = ", ".join(f"{role} in {column!r}" for role, column in pairs.columns.items())
        note(f"pairs: {len(every):,}, {with_wrong:,} of them with a wrong answer; {columns}")
        for reason, number in pairs.left_out.items():
            note(f"pairs: left out: {number:,} {reason}")
        if not len(parts) and len(np.unique(own.document[SECOND])) < 2:
            raise CorpusError("all pairs have the same text, so there is nothing to contrast it with; give more pairs")
        if not len(parts) and len(np.unique(content_hashes(ids, own.begin[FIRST], own.length[FIRST]))) < 2:
            raise CorpusError("all pairs have the same query, so all texts are right answers; give more pairs")
    held = dict(_held_pairs(PairDrawer(ids, word_starts, held_parts, settings), held_own))
    if held:
        note(f"held out: {', '.join(f'{len(drawn):,} {kind}' for kind, drawn in held.items())}")
    else:
        note("too little is held out to measure on, so nothing is measured")
    drawer = PairDrawer(ids, word_starts, parts, settings)
    return PairData(PairStream(drawer, own, tokenizer, max_positions=max_positions), held, facts)


def _document_facts(
    texts: TokenTexts, parts: PairParts, settings: EmbedderSettings, note: Callable[[str], None]
) -> dict[str, int]:
    train = texts.held == 0
    num_documents, num_held = int(train.sum()), int((~train).sum())
    too_short = num_documents - len(np.unique(np.searchsorted(texts.begins, parts.begin, side="right")))
    pairs = {kind: int(parts.can[:, number].sum()) for number, kind in enumerate(KINDS)}
    note(f"{num_documents:,} documents to train on, {num_held:,} held out")
    kinds = zip(KINDS, ("two crops", "a title and a crop", "neighbouring paragraphs"), strict=True)
    counts = ", ".join(f"{words} {pairs[kind]:,}" for kind, words in kinds if pairs[kind])
    note(f"{len(parts):,} parts of them have pairs: {counts or 'none'}")
    if too_short:
        note(
            f"{too_short:,} documents are too short for a pair and are left out: crops have "
            f"{settings.first_lengths[0]} and {settings.second_lengths[0]} tokens at the least"
        )
    if pairs["crops"] and settings.longest > settings.part_tokens:
        note(
            f"crops of {settings.longest} tokens do not fit parts of about {settings.part_tokens}, and are cut to "
            f"them; for longer ones --set embedder.part_tokens={2 * settings.longest}"
        )
    tokens = int((texts.ends - texts.paragraph[texts.document[:-1]])[train].sum())
    counted = {"documents": num_documents, "held_out_documents": num_held, "tokens": tokens, "too_short": too_short}
    return {**counted, "parts": len(parts), **pairs}


def _split(
    own: TokenPairs, texts: TokenTexts, settings: EmbedderSettings, note: Callable[[str], None]
) -> tuple[TokenPairs, TokenPairs]:
    """Pairs to train on and held-out ones: by the document that the second text is a near-duplicate of, else by its
    hash. Of the former, wrong answers that are held-out documents are taken away.
    """
    key = own.document[SECOND]
    held = (mix(key + _GIVEN).view(np.uint64) >> np.uint64(11)) < settings.holdout * 2.0**53
    if not len(texts):
        held &= min(held.sum(), (~held).sum()) > 1
        return own.chosen(~held), own.chosen(held)
    held_keys = texts.cluster[texts.held == 1]
    held = np.isin(key, held_keys) | (held & ~np.isin(key, texts.cluster))
    is_lost = ~held & np.isin(own.document[WRONG], held_keys) & (own.length[WRONG] > 0)
    if lost := int(is_lost.sum()):
        note(f"pairs: {lost:,} wrong answers are held-out documents, and are left out")
    length = own.length.copy()
    length[WRONG, is_lost] = 0
    own = replace(own, length=length)
    return own.chosen(~held), own.chosen(held) if held.sum() > 1 else NO_PAIRS


def _held_pairs(drawer: PairDrawer, own: TokenPairs) -> Iterator[tuple[str, TokenPairs]]:
    """Held-out pairs by kind: a function of the data and the seed."""
    parts, key = drawer.parts, mix_ints(_HELD, drawer.settings.seed)
    order = permutation(len(parts), key) if len(parts) else np.zeros(0, dtype=np.int64)
    for number, kind in enumerate(KINDS):
        chosen = order[parts.can[order, number]]
        if number == TITLES:  # one for each document
            _, firsts = np.unique(parts.key[chosen], return_index=True)
            chosen = chosen[np.sort(firsts)]
        if len(np.unique(parts.key[chosen := chosen[:MOST_HELD]])) > 1:
            yield kind, drawer.draw(chosen, key, kind=number)
    if len(own):
        yield "given", own.chosen(np.arange(len(own))[:MOST_HELD])
