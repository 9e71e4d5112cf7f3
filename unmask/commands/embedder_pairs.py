"""Pairs that an embedding model is trained and evaluated on, from documents and from the user's own table.

    a part of a document   [ ......... first ......... second ............... ]
    a batch                [CLS] first of 7 [SEP] [CLS] second of 3 [SEP] [CLS] second of 7 [SEP] [PAD] ...

Each part of a document gives one pair per epoch; the order changes with the epoch. A pair is a function of (seed,
epoch, part), so a small cursor is all that is needed to resume. Pairs are packed into rows without padding between
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.embedder_texts import NO_TEXTS, Ints, TokenTexts, content_hashes, text_key, tokenized
from unmask.core.errors import CorpusError
from unmask.core.hashing import GOLDEN, mix, mix_ints, permutation
from unmask.data.packing import pack_pieces
from unmask.data.rows import WHOLE, Cursor, RowBatch, Rows, Share, fill_rows
from unmask.tokenizer.tokenizer import EncodedText, Tokenizer
from unmask.train.contrast import DOCUMENT, FIRST, PAIR, SECOND, SIDE, TEXT, WRONG

# Kinds of pairs from documents: two spans of the same part; the title and a span; the texts before and after a border
# of two paragraphs, each of them one paragraph or more, or a part of one. `_WEIGHTS`: how often each is drawn if a part
# has several.
#
# Source: crops: Izacard et al. 2022 (Contriever), section 3; titles: Reimers and Gurevych's sets of title and body, as
# in Wang et al. 2022 (E5), section 3; neighbours: Neelakantan et al. 2022 (cpt-text), section 3.
KINDS = ("crops", "titles", "neighbours")
CROPS, TITLES, NEIGHBOURS = range(3)
_WEIGHTS = (1.0, 1.0, 0.5)
MOST_HELD = 512  # pairs of a kind
_LEAST_ROW = 128  # positions
_ORDER, _DRAW, _HELD, _GIVEN = 17, 18, 19, 20  # make these draws independent of others with the same seed
_NEXT = 6  # random numbers per pair

# ----------------------------------------
# Pairs as spans of tokens, and how they are drawn from documents.


@dataclass(frozen=True)
class TokenPairs:
    """P pairs as spans of tokens, by side: [3, P], int64, in the order `FIRST`, `SECOND`, `WRONG`."""

    begin: Ints  # first token of each text
    length: Ints  # 0: there is no wrong answer
    document: Ints  # key of each text's document, the same for near-duplicates

    def __len__(self) -> int:
        return self.begin.shape[1]

    def chosen(self, which: NDArray[np.bool_] | Ints) -> TokenPairs:
        return TokenPairs(self.begin[:, which], self.length[:, which], self.document[:, which])

    def and_then(self, other: TokenPairs) -> TokenPairs:
        columns = zip(vars(self).values(), vars(other).values(), strict=True)
        return TokenPairs(*(np.concatenate(both, axis=1) for both in columns))


def begins_of_pairs(pairs: TokenPairs) -> Ints:
    """Index of each pair's first entry, then the number of entries. A pair with several wrong answers has an entry for
    each of them, one after another."""
    same = (pairs.begin[:, 1:] == pairs.begin[:, :-1]) & (pairs.length[:, 1:] == pairs.length[:, :-1])
    again = same[FIRST] & same[SECOND] & (pairs.begin[WRONG, 1:] != pairs.begin[WRONG, :-1])
    return np.flatnonzero(np.concatenate([[True], ~again, [True]])[-len(pairs) - 1 :])


NO_PAIRS = TokenPairs(*[np.zeros((3, 0), dtype=np.int64)] * 3)


@dataclass(frozen=True)
class PairParts:
    """I parts of documents that pairs are drawn from."""

    begin: Ints  # [I]: range of their tokens, without a title
    end: Ints
    title_begin: Ints  # [I]: range of the document's title; empty without one
    title_end: Ints
    key: Ints  # [I]: key of their document, the same for near-duplicates
    can: NDArray[np.bool_]  # [I, 3]: whether they allow each of `KINDS`
    first_border: Ints  # [I]: range of `borders` in each part
    num_borders: Ints
    # First tokens of paragraphs that are long enough for a pair, as is the paragraph before; ascending. Those in the
    # range of a part leave enough of it on either side.
    borders: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def chosen(self, which: NDArray[np.bool_] | Ints) -> PairParts:
        columns = {name: values[which] for name, values in vars(self).items() if name != "borders"}
        return replace(self, **columns)


def pair_parts(texts: TokenTexts, settings: EmbedderSettings, *, held: bool) -> PairParts:
    """Parts of the held-out or of the other documents that allow a pair of any kind."""
    documents = np.flatnonzero(texts.held == held)  # the parts of each are adjacent
    begins, sizes = texts.begins[documents], (texts.ends - texts.begins)[documents]
    count: Ints = np.maximum(1, np.round(sizes / settings.part_tokens)).astype(np.int64)
    owner = np.repeat(np.arange(len(documents)), count)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    begin: Ints = begins[owner] + np.floor_divide(number * sizes[owner], count[owner], dtype=np.int64)
    end: Ints = begins[owner] + np.floor_divide((number + 1) * sizes[owner], count[owner], dtype=np.int64)
    title_begin, title_end = texts.paragraph[texts.document[documents]][owner], begins[owner]

    # Borders: a long enough paragraph begins after another one in the same document; titles do not count.
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
        """Draws a pair from each of these parts [P], without wrong answers: a function of the key and the part.

        All parts must allow `kind`; None draws a kind for each part, by the weights.
        """
        parts, settings, words = self.parts.chosen(chosen), self.settings, self._words
        counters = (chosen * np.int64(GOLDEN)) ^ np.int64(key)
        uniform = [_uniform(mix(counters + n)) for n in range(_NEXT)]
        if kind is None:
            ends = np.cumsum(parts.can * np.array(_WEIGHTS), axis=1)
            kinds = np.asarray((uniform[0][:, None] * ends[:, -1:] >= ends).sum(1).clip(max=2))
        else:
            kinds = np.full(len(chosen), kind)
        titles, neighbours = np.flatnonzero(kinds == TITLES), np.flatnonzero(kinds == NEIGHBOURS)

        # Begins and ends of two crops of each part: [2, P].
        room = parts.end - parts.begin
        between = settings.first_lengths, settings.second_lengths
        length = np.stack([_lengths(uniform[1 + side], between[side], room) for side in (FIRST, SECOND)])
        begin = parts.begin + (np.stack(uniform[3:5]) * (room - length + 1)).astype(np.int64)
        end = begin + length

        # A title, and a crop of what follows it.
        length = _lengths(uniform[5][titles], settings.second_lengths, room[titles])
        shift = (uniform[4][titles] * (room[titles] - length + 1)).astype(np.int64)
        begin[SECOND, titles] = parts.begin[titles] + shift
        end[SECOND, titles] = begin[SECOND, titles] + length

        # The texts on either side of a border of paragraphs.
        number = (uniform[5] * parts.num_borders).astype(np.int64)
        border = parts.borders[(parts.first_border + number)[neighbours]]
        begin[FIRST, neighbours] = np.maximum(parts.begin[neighbours], border - settings.longest)
        end[FIRST, neighbours] = begin[SECOND, neighbours] = border
        end[SECOND, neighbours] = np.minimum(parts.end[neighbours], border + settings.longest)

        # Partial words at both ends are cut off, if anything is left then.
        if len(words):
            first = words[np.searchsorted(words, begin).clip(max=len(words) - 1)]
            behind = words[(np.searchsorted(words, end, side="right") - 1).clip(min=0)]
            is_whole = (end >= parts.end) | (self.word_starts[end.clip(max=len(self.word_starts) - 1)] == 1)
            begin = np.where((first >= begin) & (first < end), first, begin)
            end = np.where(is_whole | (behind <= begin), end, behind)
        begin[FIRST, titles] = parts.title_begin[titles]
        end[FIRST, titles] = np.minimum(parts.title_end, parts.title_begin + settings.longest)[titles]
        none = np.zeros((1, len(chosen)), dtype=np.int64)
        length = np.concatenate([end - begin, none])
        return TokenPairs(np.concatenate([begin, none]), length, np.tile(parts.key, (3, 1)))


def _uniform(bits: Ints) -> NDArray[np.float64]:
    """Hashes as numbers in [0, 1)."""
    return (bits.view(np.uint64) >> np.uint64(11)).astype(np.float64) / 2**53


def _lengths(uniform: NDArray[np.float64], between: tuple[int, int], room: Ints) -> Ints:
    least, most = between
    drawn = np.exp(math.log(least) + uniform * (math.log(most + 1) - math.log(least)))
    return np.minimum(np.floor(drawn).astype(np.int64).clip(least, most), room)


class PairStream:
    """An endless stream of batches of pairs: some drawn from documents, some the user's own."""

    def __init__(self, drawer: PairDrawer, own: TokenPairs, tokenizer: Tokenizer, *, max_positions: int) -> None:
        self.drawer, self.own, self.tokenizer, self.settings = drawer, own, tokenizer, drawer.settings
        self.begins = begins_of_pairs(own)
        self.size = len(drawer.parts) + len(self.begins) - 1
        # Keeps the order of one epoch.
        self._order = lru_cache(maxsize=1)(partial(permutation, self.size, _ORDER, self.settings.seed))
        self.batches = max(1, math.ceil(self.size / self.settings.batch_size))
        self.pairs_a_step = -(-self.size // self.batches)  # some batches have one less
        longest = max(self.settings.longest, int(own.length.max(initial=0))) + len(tokenizer.special.around)
        self.row_length = min(max_positions, max(_LEAST_ROW, -(-longest // 32) * 32))

    def pairs_before(self, cursor: Cursor) -> int:
        return cursor.epoch * self.size + cursor.window * self.size // self.batches

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None, *, share: Share = WHOLE) -> RowBatch:
        """The batch at a cursor, with the cursor after it. It has as many rows as its pairs need.

        Batches of an epoch have about equally many pairs: a step on a few would move the weights as far as one on many.
        """
        seed, epoch, num_parts = self.settings.seed, cursor.epoch, len(self.drawer.parts)
        begin, end = (n * self.size // self.batches for n in (cursor.window, cursor.window + 1))
        chosen = self._order(epoch)[begin:end]
        drawn = self.drawer.draw(chosen[chosen < num_parts], mix_ints(_DRAW, seed, epoch))
        # Wrong answers of a pair take turns, epoch by epoch.
        of_own = chosen[chosen >= num_parts] - num_parts
        begins, ends = self.begins[of_own], self.begins[of_own + 1]
        own = self.own.chosen(begins + epoch % (ends - begins))
        rows, num_tokens = self.rows(drawn.and_then(own))
        is_last = cursor.window + 1 == self.batches
        after = Cursor(epoch + 1) if is_last else Cursor(epoch, cursor.window + 1)
        part = share.part(rows.shape[0])
        return RowBatch(rows.part(part.start, part.stop), epoch, num_tokens, after)

    def rows(self, pairs: TokenPairs) -> tuple[Rows, int]:
        """Packs pairs into rows; also returns their number of text tokens."""
        ids, row_length = self.drawer.ids, self.row_length
        side, pair = np.nonzero(pairs.length)
        begin, length, document = (column[side, pair] for column in (pairs.begin, pairs.length, pairs.document))
        columns = {PAIR: pair, SIDE: side, DOCUMENT: document, TEXT: content_hashes(ids, begin, length)}
        packed = pack_pieces(length, row_length=row_length, overhead=len(self.tokenizer.special.around))
        # Masks are a function of the text's content, its document and its side.
        key = mix(columns[TEXT] ^ mix(document + side))
        rows, at, first = fill_rows(
            packed,
            row_length,
            self.tokenizer,
            source=begin[packed.piece],
            key=key[packed.piece],
            text=(ids, self.drawer.word_starts),
        )
        # First texts are not masked: vectors come from the masked text, and a short query would lose too much.
        sides = np.repeat(side[packed.piece], packed.length)
        places = np.repeat(at - np.cumsum(packed.length) + packed.length, packed.length) + np.arange(len(sides))
        rows.maskable.view(-1)[torch.from_numpy(places[sides == FIRST])] = False
        classes = {}
        for name, values in columns.items():
            column = np.full(rows.input_ids.numel(), -1, dtype=np.int64)
            column[first] = values[packed.piece]
            classes[name] = torch.from_numpy(column).view(rows.shape)
        return replace(rows, classes=classes), int(length.sum())


# ----------------------------------------
# Pairs to train on, and held-out ones.


@dataclass(frozen=True)
class PairData:
    stream: PairStream
    held: dict[str, TokenPairs]  # by kind; empty if there are too few
    facts: dict[str, int]  # for the summary: documents, tokens, pairs by kind, what was left out


def _document_facts(
    texts: TokenTexts, parts: PairParts, settings: EmbedderSettings, note: Callable[[str], None]
) -> dict[str, int]:
    train = texts.held == 0
    tokens = int((texts.ends - texts.paragraph[texts.document[:-1]])[train].sum())
    too_short = int(train.sum()) - len(np.unique(np.searchsorted(texts.begins, parts.begin, side="right")))
    facts = {"documents": int(train.sum()), "held_out_documents": int((~train).sum()), "tokens": tokens,
             "too_short": too_short, "parts": len(parts)}  # fmt: skip
    facts |= {kind: int(parts.can[:, number].sum()) for number, kind in enumerate(KINDS)}
    note(f"{facts['documents']:,} documents to train on, {facts['held_out_documents']:,} held out")
    kinds = zip(KINDS, ("two crops", "a title and a crop", "neighbouring paragraphs"), strict=True)
    counts = ", ".join(f"{words} {facts[kind]:,}" for kind, words in kinds if facts[kind])
    note(f"pairs can be drawn from {len(parts):,} parts of documents: {counts or 'none'}")
    if too_short:
        note(f"left out: {too_short:,} documents too short for a pair of crops of at least {settings.least_tokens}")
    if facts["crops"] and settings.longest > settings.part_tokens:
        note(
            f"crops of up to {settings.longest} tokens are cut to parts of about {settings.part_tokens}; for longer "
            f"crops, set embedder.part_tokens={2 * settings.longest}"
        )
    return facts


def _own_pairs(
    pairs: tuple[list[str], list[str]],
    keys: Ints,
    tokenizer: Tokenizer,
    settings: EmbedderSettings,
    note: Callable[[str], None],
    *,
    place: int,
) -> tuple[EncodedText, TokenPairs]:
    """Tokenizes the texts of the user's own pairs, each once; returns them and the pairs, whose tokens are counted from
    `place`. A pair with several wrong answers has an entry for each. `keys`: of right answers, then of wrong ones."""
    queries, answers = pairs
    number_of = {text: number for number, text in enumerate(dict.fromkeys([*queries, *answers]))}
    numbers = np.array([number_of[text] for text in (*queries, *answers)]).reshape(3, -1)
    encoded, lengths = tokenized(list(number_of), tokenizer)
    if cut := int((lengths > settings.longest).sum()):
        note(f"pairs: {cut:,} of {len(lengths):,} texts are cut to {settings.longest} tokens")
    key, wrong_key = np.split(keys, 2)
    begins = place + np.cumsum(lengths) - lengths
    own = TokenPairs(begins[numbers], np.minimum(lengths, settings.longest)[numbers], np.stack([key, key, wrong_key]))
    own = own.chosen((own.length[FIRST] > 0) & (own.length[SECOND] > 0))
    note(f"pairs: {len(begins_of_pairs(own)) - 1:,}, with {int((own.length[WRONG] > 0).sum()):,} wrong answers")
    return encoded, own


def _split(
    own: TokenPairs, texts: TokenTexts, settings: EmbedderSettings, note: Callable[[str], None]
) -> tuple[TokenPairs, TokenPairs]:
    """Splits pairs into those to train on and held-out ones: by the document that the second text nearly duplicates,
    else by the text's hash. Pairs to train on lose wrong answers that are held-out documents.
    """
    key = own.document[SECOND]
    held = _uniform(mix(key + _GIVEN)) < settings.holdout
    if not len(texts):
        held &= min(held.sum(), (~held).sum()) > 1
        return own.chosen(~held), own.chosen(held)
    held_keys = np.setdiff1d(texts.cluster[texts.held == 1], texts.cluster[texts.held == 0])
    held = np.isin(key, held_keys) | (held & ~np.isin(key, texts.cluster))
    is_lost = ~held & np.isin(own.document[WRONG], held_keys) & (own.length[WRONG] > 0)
    if lost := int(is_lost.sum()):
        note(f"pairs: left out: {lost:,} wrong answers that are held-out documents")
    length = own.length.copy()
    length[WRONG, is_lost] = 0
    own = replace(own, length=length)
    return own.chosen(~held), own.chosen(held) if held.sum() > 1 else NO_PAIRS


def pair_data(
    texts: TokenTexts | None,
    pairs: tuple[list[str], list[str]] | None,
    tokenizer: Tokenizer,
    settings: EmbedderSettings,
    *,
    max_positions: int,
    note: Callable[[str], None],
) -> PairData:
    """Collects the pairs of documents and the user's own; one of the two may be None."""
    documents = texts or NO_TEXTS
    ids, word_starts = documents.ids, documents.word_starts
    parts, held_parts = (pair_parts(documents, settings, held=held) for held in (False, True))
    if len(np.unique(held_parts.key)) < 2:  # too few to measure on; they stay held out, for evaluating searches
        held_parts = pair_parts(NO_TEXTS, settings, held=True)

    facts = {} if texts is None else _document_facts(texts, parts, settings, note)
    if pairs is None and len(np.unique(parts.key)) < 2:
        longest = int((documents.ends - documents.begins).max(initial=0))
        raise CorpusError(
            "there is only one document to train on (near-duplicates count as one), and nothing to contrast it with; "
            "give more documents, or make lines or blocks documents (corpus.documents=line)"
            if len(parts)
            else f"no document is long enough for a pair: the longest has {longest} tokens, but two crops need "
            f"{settings.least_tokens}; give longer documents (corpus.documents=block or file), shorter crops "
            "('embedder.first_lengths=[4,64]' and second_lengths), or pairs of your own",
            options=("set", "pairs"),
        )

    # The user's own pairs: their tokens follow those of documents; long texts are truncated.
    own = held_own = NO_PAIRS
    if pairs is not None:
        cluster_of = dict(zip(documents.text.tolist(), documents.cluster.tolist(), strict=True))
        keys = [cluster_of.get(key, key) for key in map(text_key, pairs[1])]
        encoded, all_pairs = _own_pairs(pairs, np.array(keys), tokenizer, settings, note, place=len(ids))
        ids = np.concatenate([ids, encoded.input_ids])
        word_starts = np.concatenate([word_starts, encoded.word_starts.view(np.uint8)])
        own, held_own = _split(all_pairs, documents, settings, note)
        held_own = held_own.chosen(begins_of_pairs(held_own)[:-1])
        facts["given_pairs"] = len(begins_of_pairs(own)) - 1
        if not len(parts) and len(np.unique(own.document[SECOND])) < 2:
            raise CorpusError("all pairs have the same text, so there is nothing to contrast it with; give more pairs")
        if not len(parts) and len(np.unique(content_hashes(ids, own.begin[FIRST], own.length[FIRST]))) < 2:
            raise CorpusError("all pairs have the same query, so all texts are right answers; give more pairs")

    # Held-out pairs by kind: a function of the data and the seed.
    held: dict[str, TokenPairs] = {}
    drawer, held_key = PairDrawer(ids, word_starts, held_parts, settings), mix_ints(_HELD, settings.seed)
    order = permutation(len(held_parts), held_key) if len(held_parts) else np.zeros(0, dtype=np.int64)
    for number, kind in enumerate(KINDS):
        chosen = order[held_parts.can[order, number]]
        if number == TITLES:  # one for each document
            _, firsts = np.unique(held_parts.key[chosen], return_index=True)
            chosen = chosen[np.sort(firsts)]
        if len(np.unique(held_parts.key[chosen := chosen[:MOST_HELD]])) > 1:
            held[kind] = drawer.draw(chosen, held_key, kind=number)
    if len(held_own):
        held["given"] = held_own.chosen(np.arange(len(held_own))[:MOST_HELD])
    if held:
        note(f"held-out pairs: {', '.join(f'{len(drawn):,} {kind}' for kind, drawn in held.items())}")
    else:
        note("too few pairs are held out to measure on, so nothing is measured")
    drawer = PairDrawer(ids, word_starts, parts, settings)
    return PairData(PairStream(drawer, own, tokenizer, max_positions=max_positions), held, facts)
