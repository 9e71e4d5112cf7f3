"""Filling masks: candidates for each one, and the likeliest fillings of all of them together.

Shape suffixes: A = ids that are allowed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, zip_longest
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import SettingsError, TokenizerError
from unmask.core.results import Readable, Sheet, Shown, legible
from unmask.data.reading import check_characters
from unmask.tokenizer.tokenizer import SpecialIds, Tokenizer
from unmask.tokenizer.words import Kind, edge_kinds, kind_of
from unmask.train.runner import Predictor, logits_at, run

# ----------------------------------------
# What filling gives, and the two spellings of a word where a vocabulary marks the space before it.
#
# In such vocabularies a word is spelled with this space, or without:
#
#                       The king of [MASK] sees     [MASK] sees, ([MASK] sees
#     byte-level BPE    ĠParis                      Paris
#     Unigram           ▁Paris                      Paris, but ▁Paris where a text begins
#
# Elsewhere (WordPiece, characters) there is one, which stands for both.

T = TypeVar("T")


@dataclass(frozen=True)
class WordSpellings(Generic[T]):
    """Something that words of both spellings have.

    Attributes:
        spaced: That of words which carry the space before them.
        bare: That of words which do not.
    """

    spaced: T
    bare: T

    def of(self, spaced: bool | np.bool_) -> T:
        """That of one of them."""
        return self.spaced if spaced else self.bare


def marks_spaces(tokenizer: Tokenizer) -> bool:
    """Whether tokens carry the space before a word, so that there are two spellings."""
    return tokenizer.word_starts.spelling.family in ("byte_level", "metaspace")


def begins_spaced(tokenizer: Tokenizer) -> bool:
    """Whether the first word of a text is spelled as if a space stood before it, where tokens mark spaces."""
    ids = map(int, np.flatnonzero(tokenizer.ordinary))
    words = (tokenizer.text(id_).strip() for id_ in ids if tokenizer.space_before(id_))
    if (word := next(filter(None, words), None)) is None:
        return False
    first = tokenizer.encode_corpus([word])[0].input_ids[:1].tolist()
    return any(tokenizer.space_before(id_) for id_ in first)


@dataclass(frozen=True)
class Candidate:
    """A token that may stand at a mask.

    Attributes:
        token, token_id: As the vocabulary has it.
        probability: At this mask.
        text: What it stands for, without the marks of its family.
    """

    token: str
    token_id: int
    probability: float
    text: str = ""


@dataclass(frozen=True)
class Word:
    """A word of one or several tokens that may stand at a mask.

    Attributes:
        text: The word.
        tokens, token_ids: Its pieces.
        probability: Of its pieces in turn, each given the ones before it (chain rule), with as many masks in place.
        score: The mean of the pieces' log-probabilities, by which words of unequal numbers of pieces are compared.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    probability: float
    score: float


@dataclass(frozen=True)
class Filling:
    """One choice for all masks of a text.

    Attributes:
        tokens: A token for each mask, in order; where words were asked for, a word.
        text: The text with them in place, and all else in it as it was given.
        probability: Of the choice, each mask filled in turn given those that were filled before it (chain rule).
    """

    tokens: tuple[str, ...]
    text: str
    probability: float


@dataclass(frozen=True, repr=False)
class Filled(Readable):
    """The result for a text.

    Attributes:
        masks: For each mask in order its candidates, the likeliest first, each mask looked at alone: what
            transformers' fill-mask pipeline gives. Where candidates were given, those of them that are one token.
        fillings: The likeliest choices for all masks together; empty where none were asked for.
        words: For each mask words of one or several tokens, the best first; None where single tokens were asked for, as
            by candidates that are one token each, spelled as at this text's masks.
    """

    masks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...]
    words: tuple[tuple[Word, ...], ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        found: dict[str, Any] = {
            "masks": [{"candidates": [_plain(candidate) for candidate in mask]} for mask in self.masks],
            "fillings": [asdict(filling) for filling in self.fillings],
        }
        return found if self.words is None else found | {"words": [[asdict(w) for w in words] for words in self.words]}

    def shown(self) -> Iterator[Shown]:
        """A line a rank, a column a mask; and the likeliest choices for all masks together."""
        places: Sequence[Sequence[tuple[str, float]]]
        if self.words is None:
            places = [[(legible(each.text or each.token), each.probability) for each in mask] for mask in self.masks]
        else:
            places = [[(legible(each.text), each.probability) for each in words] for words in self.words]
        several = len(places) > 1
        heads = (head for n in range(1, len(places) + 1) for head in (f"mask {n}" if several else "mask", ">"))
        columns = [[(text, f"{share:.1%}") for text, share in place] for place in places]
        lines = zip_longest(*columns, fillvalue=("", ""))  # masks may have unequal numbers of candidates
        yield Sheet(
            ("", *heads), [(f"{rank}", *(c for cells in line for c in cells)) for rank, line in enumerate(lines, 1)]
        )
        if several and self.fillings:
            yield "\ntogether:"
            yield from (f"{filling.probability:7.2%}  {filling.text}" for filling in self.fillings)


def _plain(candidate: Candidate) -> dict[str, Any]:
    return {"token": candidate.token, "token_id": candidate.token_id, "probability": candidate.probability}


# ----------------------------------------
# The likeliest tokens at places of texts of any length, for any number of texts at once.
#
# Texts longer than the model are seen through windows, each with the special tokens around it:
#
#     text, model of 7 positions        [CLS] a b c d e f g h [SEP]
#     cut                               [CLS] a b c d e [SEP] [CLS] f g h [SEP]
#     the window around d               [CLS] b c d e f [SEP]
#
# Shape suffixes: N = places of all texts, V = vocabulary, A = ids that are allowed, K = how many are asked for,
# T = all positions of a batch in a line, D = hidden size.

Ids = NDArray[np.int32]


def special_around(input_ids: Ids, special: SpecialIds) -> tuple[int, int]:
    """How many special tokens stand before and behind the text: 1 or 0 each."""
    if not len(input_ids):
        return 0, 0
    before = int(special.cls is not None and input_ids[0] == special.cls)
    behind = int(special.sep is not None and len(input_ids) > before and input_ids[-1] == special.sep)
    return before, behind


def cut(input_ids: Ids, longest: int, special: SpecialIds) -> list[Ids]:
    """All of a text in as few windows as can be, about equally long, that follow each other; the text itself where it
    fits.

    Args:
        input_ids: With special tokens.
        longest: Positions of the model.
        special: Of the tokenizer.
    """
    if len(input_ids) <= longest:
        return [input_ids]
    before, behind = special_around(input_ids, special)
    length = len(input_ids) - before - behind
    number = -(-length // (longest - before - behind))
    bounds = [before + length * n // number for n in range(number + 1)]
    return [_part(input_ids, begin, end, before, behind) for begin, end in pairwise(bounds)]


def cut_off(input_ids: Ids, longest: int, special: SpecialIds) -> Ids:
    """The beginning of a text, as much as the model takes; arguments as for `cut`."""
    return around(input_ids, 0, longest, special)[0]


def around(input_ids: Ids, place: int, longest: int, special: SpecialIds) -> tuple[Ids, int]:
    """As much of a text as the model takes, with a place as near the middle as the text's ends allow.

    Returns:
        The window, and the place in it.
    """
    if len(input_ids) <= longest:
        return input_ids, place
    before, behind = special_around(input_ids, special)
    room, end = longest - before - behind, len(input_ids) - behind
    begin = min(max(place - room // 2, before), end - room)
    return _part(input_ids, begin, begin + room, before, behind), place - begin + before


def _part(input_ids: Ids, begin: int, end: int, before: int, behind: int) -> Ids:
    return np.concatenate([input_ids[:before], input_ids[begin:end], input_ids[len(input_ids) - behind :]])


@dataclass(frozen=True)
class Query:
    """Places of a text that are asked about.

    Attributes:
        input_ids: The whole text with its special tokens, however long.
        places: Where in it; at least one.
        spaced: For each of them, whether words carry the space before them there; see `unmask.tasks.fill`.
    """

    input_ids: NDArray[np.int32]
    places: NDArray[np.int64]
    spaced: NDArray[np.bool_]

    def at(self, chosen: NDArray[np.int64], input_ids: NDArray[np.int32]) -> Query:
        """Some of the places, in a text that has become another but for its length."""
        return Query(input_ids, self.places[chosen], self.spaced[chosen])


@dataclass(frozen=True)
class Likeliest:
    """The likeliest tokens at some places, the likeliest first.

    Attributes:
        token_ids_NK: int64.
        log_probabilities_NK: float32, of all the vocabulary; -infinity where fewer tokens are allowed than elsewhere.
    """

    token_ids_NK: Tensor
    log_probabilities_NK: Tensor


@torch.inference_mode()
def likeliest(
    model: Predictor,
    tokenizer: Tokenizer,
    queries: Sequence[Query],
    *,
    top_k: int,
    allowed: WordSpellings[Tensor] | None = None,
) -> Likeliest:
    """What stands at each place of each query, in their order. A long text is seen through a window around each place.

    Args:
        model: In evaluation mode.
        tokenizer: Its tokenizer.
        queries: Any number.
        top_k: How many tokens a place; fewer where fewer are allowed.
        allowed: Ids [A], int64, of which they are chosen at places of either spelling; None: all. Probabilities are
            those among all.
    """
    spaced_N = np.array([spaced for query in queries for spaced in query.spaced], dtype=bool)
    most = tokenizer.vocab_size if allowed is None else max(len(allowed.spaced), len(allowed.bare))
    top_k = min(top_k, most)
    ids_NK = torch.zeros(len(spaced_N), top_k, dtype=torch.int64)
    values_NK = torch.full((len(spaced_N), top_k), -math.inf)
    for numbers, logits_NV in _logits(model, tokenizer, queries):
        log_norm_N = torch.logsumexp(logits_NV, -1, keepdim=True)
        if allowed is None:
            part_N = torch.from_numpy(numbers)
            top, ids = logits_NV[:, : tokenizer.vocab_size].topk(top_k)
            ids_NK[part_N], values_NK[part_N] = ids.cpu(), (top - log_norm_N).cpu()
            continue
        for spaced in np.unique(spaced_N[numbers]):
            allowed_A, rows = allowed.of(spaced), np.flatnonzero(spaced_N[numbers] == spaced)
            rows_N, part_N = torch.from_numpy(rows).to(logits_NV.device), torch.from_numpy(numbers[rows])
            kept = min(top_k, len(allowed_A))
            top, index = logits_NV[rows_N[:, None], allowed_A.to(logits_NV.device)].topk(kept)
            ids_NK[part_N, :kept] = allowed_A[index.cpu()]
            values_NK[part_N, :kept] = (top - log_norm_N[rows_N]).cpu()
    return Likeliest(ids_NK, values_NK)


@torch.inference_mode()
def log_probabilities(
    model: Predictor, tokenizer: Tokenizer, queries: Sequence[Query], wanted: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.float32]]:
    """How likely some tokens are at some places, among all tokens.

    Args:
        model, tokenizer: As for `likeliest`.
        queries: Any number, each with one place.
        wanted: For each of them the ids that are asked about, one or several.

    Returns:
        For each of them as many log-probabilities.
    """
    found: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(queries)
    for numbers, logits_NV in _logits(model, tokenizer, queries):
        log_norm_N = torch.logsumexp(logits_NV, -1)
        sizes = [len(wanted[number]) for number in numbers]
        rows = torch.from_numpy(np.repeat(np.arange(len(numbers)), sizes)).to(logits_NV.device)
        ids = torch.from_numpy(np.concatenate([wanted[number] for number in numbers])).to(logits_NV.device)
        values = (logits_NV[rows, ids] - log_norm_N[rows]).cpu().numpy()
        for number, part in zip(numbers, np.split(values, np.cumsum(sizes)[:-1]), strict=True):
            found[number] = part
    return found


def _logits(
    model: Predictor, tokenizer: Tokenizer, queries: Sequence[Query]
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Logits at all queries' places, some of them at a time: their numbers [some of N], and [some of N, V], float32."""
    sequences, owners, places = _sequences(model, tokenizer, queries)
    for rows, hidden_TD in run(model, sequences):
        numbers_N = np.concatenate([owners[number] for number in rows.numbers])
        done = 0
        for logits_NV in logits_at(model, hidden_TD, rows.places(places)):
            yield numbers_N[done : done + len(logits_NV)], logits_NV
            done += len(logits_NV)


def _sequences(
    model: Predictor, tokenizer: Tokenizer, queries: Sequence[Query]
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """What the model sees; which of all queries' places each answers, by number; and where they are."""
    longest = model.config.max_position_embeddings
    sequences, owners, places = [], [], []
    number = 0
    for query in queries:
        numbers = number + np.arange(len(query.places))
        number += len(query.places)
        if len(query.input_ids) <= longest:
            sequences.append(query.input_ids)
            owners.append(numbers)
            places.append(query.places)
            continue
        for owner, place in zip(numbers, query.places.tolist(), strict=True):
            window, inside = around(query.input_ids, place, longest, tokenizer.special)
            sequences.append(window)
            owners.append(np.array([owner]))
            places.append(np.array([inside]))
    return sequences, owners, places


# ----------------------------------------
# Texts with masks: where these stand, which spelling of a word fits there, and the text with words in their places.
#
# text      The king of [MASK] ([MASK]).
# tokens    The Ġking Ġof [MASK] Ġ( [MASK] ).      of a byte-level BPE, whose [MASK] takes the space before it along
# spaced                  yes       no             so words are ĠParis at the first and Paris at the second


class Put(NamedTuple):
    """What is put in the place of a mask.

    Attributes:
        utf8: Its text without marks, which may end within a character.
        carries_space: Whether the space before it is a part of it.
        begins_word: Whether it stands apart from a word at the mask before it, where no space is a part of any token.
    """

    utf8: bytes
    carries_space: bool = False
    begins_word: bool = False


@dataclass(frozen=True)
class MaskedText:
    """A text with one or several masks.

    Attributes:
        text: As it was given.
        query: Its tokens, and where the masks are among them.
        spans: The characters [begin, end) of each mask, without white space that its token takes along.
    """

    text: str
    query: Query
    spans: tuple[tuple[int, int], ...]

    def filled(self, words: Sequence[Put]) -> str:
        """The text with words in place of its masks. All else stays as it was given, letter for letter.

        Tokens alone do not tell that: unknown letters, case and spelled special tokens are not in them. A word brings
        its space along only where the text has none, and never to where the text begins. Vocabularies that mark the
        ends of words (`new</w>`) put none between words at neighbouring masks.
        """
        filled, done = bytearray(), 0
        for (begin, end), word in zip(self.spans, words, strict=True):
            before = self.text[done:begin]
            filled += before.encode()
            has_space = before[-1:].isspace() if before else filled[-1:].isspace()
            if filled and not has_space and (word.carries_space or (word.begins_word and not before)):
                filled += b" "
            filled += word.utf8
            done = end
        filled += self.text[done:].encode()
        return filled.decode(errors="replace")


def put_token(tokenizer: Tokenizer, token_id: int) -> Put:
    """A single token."""
    return _put(tokenizer, token_id, tokenizer.word_starts.spelling.text_bytes(tokenizer.token(token_id)))


def put_word(tokenizer: Tokenizer, word: Word) -> Put:
    """A word of one or several tokens."""
    return _put(tokenizer, word.token_ids[0], word.text.encode())


def _put(tokenizer: Tokenizer, first_id: int, utf8: bytes) -> Put:
    marked = tokenizer.space_before(first_id)
    if marks_spaces(tokenizer):
        return Put(utf8, carries_space=marked)
    kind = kind_of(tokenizer.text(first_id)[:1] or " ")
    return Put(utf8, begins_word=marked and kind in (Kind.LETTER, Kind.DIGIT))


def read_masked(tokenizer: Tokenizer, texts: Sequence[str]) -> list[MaskedText]:
    """Tokenizes texts and finds their masks.

    Args:
        tokenizer: Of the model.
        texts: Each with one or several `[MASK]` (as the tokenizer spells it).

    Raises:
        SettingsError: Something is no text, holds what is no character, or has no mask.
    """
    for text in texts:
        if not isinstance(text, str):
            raise SettingsError(f"fill takes a text or a list of texts, not {type(text).__name__}")
        check_characters(text, f"the text {text[:60]!r}")
    mask = tokenizer.token(tokenizer.special.mask)
    two_spellings = marks_spaces(tokenizer)
    first_spaced = two_spellings and begins_spaced(tokenizer)
    found = []
    for text, (input_ids, offsets) in zip(texts, tokenizer.place_prompts(texts), strict=True):
        places = np.flatnonzero(input_ids == tokenizer.special.mask)
        if len(places) == 0:
            raise SettingsError(f"there is no {mask} in the text {text!r}; put {mask} where a word is to be found")
        spans = tuple(_without_space(text, *offsets[place].tolist()) for place in places)
        spaced = np.ones(len(places), dtype=bool)
        if two_spellings:
            ends_before = [int(offsets[place - 1, 1]) if place else 0 for place in places.tolist()]
            spaced[:] = [
                _has_space(text[end:begin]) or (end == 0 and first_spaced)
                for end, (begin, _) in zip(ends_before, spans, strict=True)
            ]
        found.append(MaskedText(text, Query(input_ids, places, spaced), spans))
    return found


def _without_space(text: str, begin: int, end: int) -> tuple[int, int]:
    """A part of a text but for the white space at its ends."""
    part = text[begin:end]
    return end - len(part.lstrip()), begin + len(part.rstrip())


def _has_space(text: str) -> bool:
    return any(map(str.isspace, text))


# ----------------------------------------
# Filling all masks of a text together, each given what stands at those that were filled before it.
#
# Texts advance side by side, a mask each, so that a list of them is filled in as many passes as one text has masks.


@dataclass(frozen=True)
class Beam:
    """A text some of whose masks are filled, and the log-probability of what stands there."""

    input_ids: NDArray[np.int32]
    score: float

    def filled(self, place: int, token_id: int, log_probability: float) -> Beam:
        """The same with one more."""
        input_ids = self.input_ids.copy()
        input_ids[place] = token_id
        return Beam(input_ids, self.score + log_probability)


def fillings_of(
    tokenizer: Tokenizer, masked: Sequence[MaskedText], beams: Sequence[Sequence[Beam]]
) -> list[tuple[Filling, ...]]:
    """The beams of each text as users see them."""

    def filling(text: MaskedText, beam: Beam) -> Filling:
        ids = beam.input_ids[text.query.places].tolist()
        filled = text.filled([put_token(tokenizer, id_) for id_ in ids])
        return Filling(tuple(map(tokenizer.token, ids)), filled, math.exp(beam.score))

    return [tuple(filling(text, beam) for beam in some) for text, some in zip(masked, beams, strict=True)]


def fill_by_beam(
    model: Predictor,
    tokenizer: Tokenizer,
    queries: Sequence[Query],
    first: Likeliest,
    *,
    num_beams: int,
    allowed: WordSpellings[Tensor] | None,
) -> list[list[Beam]]:
    """Beam search from left to right: the best few fillings of each text, the likeliest first.

    Args:
        model, tokenizer: As for `likeliest`.
        queries: The texts with the places of their masks.
        first: The `num_beams` likeliest tokens at all of these places, with all masks in place.
        num_beams: Kept at each mask. With as many as the vocabulary has tokens, two masks are searched exactly.
        allowed: As for `likeliest`.
    """
    begins = np.cumsum([0, *(len(query.places) for query in queries)])
    kept = [
        _expanded([Beam(query.input_ids, 0.0)], first, int(begins[n]), int(query.places[0]), num_beams)
        for n, query in enumerate(queries)
    ]
    for turn in range(1, max((len(query.places) for query in queries), default=0)):
        active = [n for n, query in enumerate(queries) if len(query.places) > turn]
        asked = [queries[n].at(np.array([turn]), beam.input_ids) for n in active for beam in kept[n]]
        found = likeliest(model, tokenizer, asked, top_k=num_beams, allowed=allowed)
        row = 0
        for n in active:
            beams, place = kept[n], int(queries[n].places[turn])
            kept[n] = _expanded(beams, found, row, place, num_beams)
            row += len(beams)
    return kept


def _expanded(beams: Sequence[Beam], found: Likeliest, row: int, place: int, num_beams: int) -> list[Beam]:
    """The best continuations of some beams, whose tokens stand in the rows from `row` on."""
    ids = found.token_ids_NK[row : row + len(beams)].numpy()
    values = found.log_probabilities_NK[row : row + len(beams)].double().numpy()
    totals = values + np.array([beam.score for beam in beams])[:, None]
    best = np.argsort(-totals, axis=None, kind="stable")[:num_beams]
    best = best[~np.isneginf(totals.flat[best])]
    return [
        beams[beam].filled(place, int(ids[beam, rank]), float(values[beam, rank]))
        for beam, rank in zip(*np.unravel_index(best, totals.shape), strict=True)
    ]


def fill_by_confidence(
    model: Predictor,
    tokenizer: Tokenizer,
    queries: Sequence[Query],
    first: Likeliest,
    *,
    allowed: WordSpellings[Tensor] | None,
) -> list[list[Beam]]:
    """The mask of which the model is most certain is filled first, then the next given it: one filling a text.

    Arguments as for `fill_by_beam`.

    Source: Goldberg and Elhadad 2010 (easy-first parsing); Ghazvininejad et al. 2019 (Mask-Predict), section 3, with
    one mask a step.
    """
    beams = [Beam(query.input_ids, 0.0) for query in queries]
    left = [np.arange(len(query.places), dtype=np.int64) for query in queries]
    active, found = list(range(len(queries))), first
    while active:
        row = 0
        for n in active:
            values = found.log_probabilities_NK[row : row + len(left[n]), 0]
            surest = int(values.argmax())
            token = int(found.token_ids_NK[row + surest, 0])
            row += len(left[n])
            place = int(queries[n].places[left[n][surest]])
            beams[n] = beams[n].filled(place, token, float(values[surest]))
            left[n] = np.delete(left[n], surest)
        active = [n for n in active if len(left[n])]
        if active:
            asked = [queries[n].at(left[n], beams[n].input_ids) for n in active]
            found = likeliest(model, tokenizer, asked, top_k=1, allowed=allowed)
    return [[beam] for beam in beams]


# ----------------------------------------
# Words of several tokens at masks: at one, or at all of a text together.
#
# As many masks as a word has pieces are put in its place:
#
#     The [MASK] sleeps.    ->    The [MASK] [MASK] sleeps.    ->    mount ##ain       for words of two pieces
#
# Pieces are found from left to right. A word's probability shrinks with each piece, and nothing tells the model's
# opinion
# of how many there are; so words of unequal numbers of pieces are compared by the mean of the pieces' log-
# probabilities.
# That is a convention of ours, not a probability.
#
# Shape suffixes: A = ids, N = places, K = how many are asked for.


@dataclass(frozen=True)
class WordPieces:
    """Ids_of_word_filling by the place that they may have in a word; all int64.

    Which tokens a word of several begins with, and which go on with it, for any family of tokenizers:

        WordPiece                        king, mount      ##ain
        byte-level BPE                   Ġking, Ġmount    ain
            without a space before it    king, mount      ain
        characters                       any letter       any letter

    Attributes:
        whole_A: A word may begin with them.
        opening_A: Those among them behind which a word may go on.
        further_A: They go on with a word.
    """

    whole_A: Tensor
    opening_A: Tensor
    further_A: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordSpellings[WordPieces]:
        """Asks the tokenizer's word starts what they say behind a letter, and before one."""
        ids = np.flatnonzero(tokenizer.ordinary)
        letter = _letter(tokenizer, ids)
        if letter is None:
            whole = cls(torch.from_numpy(ids), torch.from_numpy(ids[:0]), torch.from_numpy(ids[:0]))
            return WordSpellings(whole, whole)
        goes_on = ~tokenizer.starts(np.stack([np.full_like(ids, letter), ids], axis=1))[:, 1]
        opens = np.ones_like(goes_on)
        if (further := _letter(tokenizer, ids[goes_on])) is not None:
            opens = ~tokenizer.starts(np.stack([ids, np.full_like(ids, further)], axis=1))[:, 1]

        def beginning(begins: NDArray[np.bool_]) -> WordPieces:
            return cls(*(torch.from_numpy(ids[chosen]) for chosen in (begins, begins & opens, goes_on)))

        spaced = beginning(np.ones_like(goes_on) if _spells_spaces(tokenizer) else ~goes_on)
        if not marks_spaces(tokenizer):
            return WordSpellings(spaced, spaced)
        return WordSpellings(spaced, beginning(np.array([not tokenizer.space_before(id_) for id_ in ids.tolist()])))


def _letter(tokenizer: Tokenizer, ids: NDArray[np.int64]) -> int | None:
    """The first of some ids whose text begins and ends with a letter, of any script that has words of several."""
    letters = (Kind.LETTER, Kind.LETTER)
    texts = ((id_, tokenizer.text(id_)) for id_ in ids.tolist())
    return next((id_ for id_, text in texts if text and edge_kinds(text) == letters), None)


def _spells_spaces(tokenizer: Tokenizer) -> bool:
    """Whether spaces are tokens of their own, so that nothing marks where a word begins."""
    return tokenizer.word_starts.spelling.family == "plain"


Ids_of_word_filling = NDArray[np.int32]
Pieces = tuple[int, ...]
LONGEST_WORD = 32  # pieces
BEGINNINGS = 1024  # of given words, looked at together
_SIGN = "("  # behind which a word carries no space


@dataclass(frozen=True)
class GivenWords:
    """Words that a mask is restricted to, in one of their spellings: their pieces, by the number of these."""

    by_length: dict[int, NDArray[np.int64]]

    @classmethod
    def of(cls, words: Sequence[Pieces]) -> GivenWords:
        """Takes each word once, in the order in which they are given."""
        found: dict[int, dict[Pieces, None]] = {}
        for pieces in words:
            found.setdefault(len(pieces), {})[pieces] = None
        return cls({length: np.array(list(some), dtype=np.int64) for length, some in sorted(found.items())})

    @property
    def longest(self) -> int:
        """Pieces of the longest word."""
        return max(self.by_length)

    @property
    def single_A(self) -> Tensor:
        """Those of one piece: ids, int64."""
        return torch.from_numpy(self.by_length.get(1, np.zeros((0, 1), dtype=np.int64))[:, 0])


def read_candidates(tokenizer: Tokenizer, candidates: Sequence[str]) -> WordSpellings[GivenWords]:
    """Tokenizes candidates as they stand in a text, behind a space and directly behind something else.

    Raises:
        SettingsError: There are none, one is empty or holds what is no character, or the vocabulary cannot spell it.
    """
    if isinstance(candidates, str):
        raise SettingsError("candidates are a list of words; put brackets around a single one")
    if not candidates:
        raise SettingsError("candidates: there are none; give a word at the least, or leave them out")
    for word in candidates:
        if not word.strip():
            raise SettingsError(f"candidates: {word!r} is no word")
        check_characters(word, f"candidates: {word!r}")
    spelled = _spelled(tokenizer, [word.strip() for word in candidates])
    for word, spaced, bare in zip(candidates, spelled.spaced, spelled.bare, strict=True):
        if tokenizer.special.unk in spaced or not spaced:
            raise SettingsError(f"candidates: the tokenizer has no tokens for {word!r}; leave it out")
        if (longest := max(len(spaced), len(bare))) > LONGEST_WORD:
            raise SettingsError(f"candidates: {word!r} is {longest} tokens; at most {LONGEST_WORD} can be filled in")
    return WordSpellings(GivenWords.of(spelled.spaced), GivenWords.of(spelled.bare))


def _spelled(tokenizer: Tokenizer, words: Sequence[str]) -> WordSpellings[list[Pieces]]:
    """The pieces of each word in both spellings; where the vocabulary has but one, it stands for both."""

    def pieces(texts: Sequence[str]) -> list[Pieces]:
        return [tuple(encoded.input_ids.tolist()) for encoded in tokenizer.encode_corpus(texts)]

    def is_spaced(word: Pieces) -> bool:
        return bool(word) and tokenizer.space_before(word[0])

    alone = pieces(words)
    if not marks_spaces(tokenizer):
        return WordSpellings(alone, alone)
    behind_space = pieces([f" {word}" for word in words])
    try:
        [sign], behind_sign = pieces([_SIGN]), pieces([_SIGN + word for word in words])
    except TokenizerError:  # it has no [UNK], and the vocabulary lacks the sign
        sign, behind_sign = (), [() for _ in words]
    spaced, bare = [], []
    for word, with_space, with_sign in zip(alone, behind_space, behind_sign, strict=True):
        spaced.append(with_space if is_spaced(with_space) else word)
        # Some tokenizers put a space before every text, so that a word by itself has one, too.
        without = word if not is_spaced(word) else with_sign[len(sign) :] if with_sign[: len(sign)] == sign else ()
        bare.append(without if without and tokenizer.special.unk not in without else spaced[-1])
    return WordSpellings(spaced, bare)


class WordSearch:
    """Finds words at masks of texts.

    Args:
        model, tokenizer: As for `likeliest`.
        max_pieces: Longest word, in tokens.
        given: The words that it may be, in both spellings; None: any.
        top_k: How many are kept.
    """

    def __init__(
        self,
        model: Predictor,
        tokenizer: Tokenizer,
        *,
        max_pieces: int,
        given: WordSpellings[GivenWords] | None,
        top_k: int,
    ) -> None:
        self.model, self.tokenizer, self.top_k, self.given = model, tokenizer, top_k, given
        self.max_pieces = max_pieces
        self._pieces = WordPieces.of(tokenizer)

    def words_at(self, input_ids: Ids_of_word_filling, place: int, *, spaced: bool) -> tuple[Word, ...]:
        """The best words at a mask, with all else in the text as it is.

        Args:
            input_ids: The text.
            place: Of the mask.
            spaced: Whether words carry the space before them there.
        """
        given = None if self.given is None else self.given.of(spaced).by_length
        lengths = list(range(1, self.max_pieces + 1)) if given is None else list(given)
        found = []
        for length in lengths:
            masks = np.full(length, self.tokenizer.special.mask, dtype=np.int32)
            opened = with_pieces(input_ids, place, masks)
            if given is None:
                pieces = self._any(opened, place, length, self._pieces.of(spaced))
            else:
                pieces = self._given(opened, place, given[length])
            found += [self._word(ids, score) for ids, score in pieces]
        return tuple(sorted(found, key=lambda word: -word.score)[: self.top_k])

    def _any(
        self, opened: Ids_of_word_filling, place: int, length: int, known: WordPieces
    ) -> list[tuple[Pieces, float]]:
        """Beam search for the pieces: a word begins at the first and at none of the others."""
        beams: list[tuple[Pieces, float]] = [((), 0.0)]
        for turn in range(length):
            first_A = known.whole_A if length == 1 else known.opening_A
            allowed_A = known.further_A if turn else first_A
            if not len(allowed_A):
                return []  # a vocabulary of whole words
            asked = [_query(_put_of_word_filling(opened, place, ids), place + turn) for ids, _ in beams]
            allowed = WordSpellings(allowed_A, allowed_A)
            found = likeliest(self.model, self.tokenizer, asked, top_k=self.top_k, allowed=allowed)
            rows = zip(beams, found.token_ids_NK.tolist(), found.log_probabilities_NK.tolist(), strict=True)
            grown = [
                ((*ids, token), score + value)
                for (ids, score), tokens, values in rows
                for token, value in zip(tokens, values, strict=True)
            ]
            beams = sorted(grown, key=lambda beam: -beam[1])[: self.top_k]
        return beams

    def _given(self, opened: Ids_of_word_filling, place: int, given: NDArray[np.int64]) -> list[tuple[Pieces, float]]:
        """The log-probability of each given word [words, pieces]; words of an equal beginning share a look at it."""
        words = [tuple(word) for word in given.tolist()]
        scores = np.zeros(len(words))
        for turn in range(given.shape[1]):
            going_on: dict[Pieces, list[int]] = {}  # numbers of the words behind each beginning
            for number, word in enumerate(words):
                going_on.setdefault(word[:turn], []).append(number)
            begins = list(going_on)
            for first in range(0, len(begins), BEGINNINGS):
                part = begins[first : first + BEGINNINGS]
                asked = [_query(_put_of_word_filling(opened, place, begin), place + turn) for begin in part]
                wanted = [np.array([words[number][turn] for number in going_on[begin]]) for begin in part]
                found = log_probabilities(self.model, self.tokenizer, asked, wanted)
                for begin, values in zip(part, found, strict=True):
                    scores[going_on[begin]] += values
        return list(zip(words, scores.tolist(), strict=True))

    def _word(self, ids: Pieces, score: float) -> Word:
        tokens = tuple(self.tokenizer.token(id_) for id_ in ids)
        text = self.tokenizer.decode(ids).strip()
        return Word(text, tokens, ids, math.exp(score), score / len(ids))


def with_pieces(input_ids: Ids_of_word_filling, place: int, pieces: Ids_of_word_filling) -> Ids_of_word_filling:
    """The text with some tokens in place of one."""
    return np.concatenate([input_ids[:place], pieces, input_ids[place + 1 :]])


def _query(input_ids: Ids_of_word_filling, place: int) -> Query:
    """What is asked about a single place, where the spelling is settled by the tokens that are allowed."""
    return Query(input_ids, np.array([place]), np.ones(1, dtype=bool))


def _put_of_word_filling(opened: Ids_of_word_filling, place: int, ids: Pieces) -> Ids_of_word_filling:
    """The text with the first of a word's masks filled."""
    filled = opened.copy()
    filled[place : place + len(ids)] = ids
    return filled


@dataclass(frozen=True)
class _Partly:
    """A text some of whose masks are filled.

    Attributes:
        input_ids: Longer than the text was, where words of several pieces stand in it.
        left: Masks that are not filled: number to place.
        words: Those that are: number to word.
    """

    input_ids: Ids_of_word_filling
    left: dict[int, int]
    words: dict[int, Word]

    @property
    def score(self) -> float:
        """Of its words together."""
        return sum(word.score for word in self.words.values())

    def filled(self, number: int, word: Word) -> _Partly:
        """The same with one more; the masks behind it move."""
        place, grown = self.left[number], len(word.token_ids) - 1
        input_ids = with_pieces(self.input_ids, place, np.array(word.token_ids, dtype=np.int32))
        left = {other: at + grown * (at > place) for other, at in self.left.items() if other != number}
        return _Partly(input_ids, left, {**self.words, number: word})


def fill_with_words(search: WordSearch, masked: MaskedText, *, by_confidence: bool) -> tuple[Filling, ...]:
    """Fills all masks of a text with words, each given those that were filled before it.

    Args:
        search: What words there are, and how many fillings are kept.
        masked: The text with its masks.
        by_confidence: The mask with the best word is filled first, which gives one filling; else all are filled from
            left to right, and the best few are kept.

    Returns:
        The fillings, ordered by the sum of their words' scores.
    """
    query = masked.query
    states = [_Partly(query.input_ids, dict(enumerate(query.places.tolist())), {})]
    for turn in range(len(query.places)):
        grown = []
        for state in states:
            numbers = list(state.left) if by_confidence else [turn]
            options = [
                (n, word)
                for n in numbers
                for word in search.words_at(state.input_ids, state.left[n], spaced=bool(query.spaced[n]))
            ]
            if by_confidence:
                options = [max(options, key=lambda option: option[1].score)]
            grown += [state.filled(number, word) for number, word in options]
        states = sorted(grown, key=lambda state: -state.score)[: search.top_k]
    return tuple(_filling(search, masked, state) for state in states)


def _filling(search: WordSearch, masked: MaskedText, state: _Partly) -> Filling:
    words = [state.words[number] for number in sorted(state.words)]
    probability = math.prod(word.probability for word in words)
    text = masked.filled([put_word(search.tokenizer, word) for word in words])
    return Filling(tuple(word.text for word in words), text, probability)


log = logging.getLogger("unmask")

Joint = Literal["beam", "confidence", "none"]
PART_TEXTS = 4096  # filled at once


@dataclass(frozen=True)
class FillSettings:
    """How masks are filled.

    Attributes:
        top_k: Candidates a mask, words a mask, beams and fillings.
        joint: How several masks are filled together: by a `beam` search from left to right; by `confidence`, the mask
            first of which the model is most certain (one filling); or not at all (`none`).
        candidates: The words that may stand at a mask, of one or several tokens; None: any. They are spelled as in
            text: with the space before them or without, where the tokenizer makes a difference.
        max_pieces: Longest word, in tokens, that is put at a mask. Above 1, words begin where a word begins.
    """

    top_k: int = 5
    joint: Joint = "beam"
    candidates: Sequence[str] | None = None
    max_pieces: int = 1

    def __post_init__(self) -> None:
        if self.joint not in get_args(Joint):
            raise SettingsError(f"joint is {' or '.join(map(repr, get_args(Joint)))}, not {self.joint!r}")
        if not 1 <= self.max_pieces <= LONGEST_WORD:
            raise SettingsError(f"max_pieces is a number from 1 to {LONGEST_WORD}, not {self.max_pieces}")
        if self.candidates is not None and self.max_pieces > 1:
            raise SettingsError("candidates have as many pieces as they have; leave max_pieces out")


def fill_texts(
    model: Predictor, tokenizer: Tokenizer, texts: Sequence[str], settings: FillSettings | None = None
) -> list[Filled]:
    """Predicts what stands at every mask of some texts.

    A text longer than the model is seen through a window around each mask, and the log says so.

    Args:
        model: In evaluation mode.
        tokenizer: Its tokenizer.
        texts: Each with one or several `[MASK]` (as the tokenizer spells it).
        settings: How.

    Raises:
        SettingsError: A text has no mask or holds what is no character, `top_k` is out of range, or a candidate cannot
            be spelled.
    """
    settings = settings or FillSettings()
    if not 1 <= settings.top_k <= tokenizer.vocab_size:
        raise SettingsError(
            f"top_k is a number from 1 to the vocabulary's {tokenizer.vocab_size}, not {settings.top_k}"
        )
    given = None if settings.candidates is None else read_candidates(tokenizer, settings.candidates)
    found: list[Filled] = []
    for begin in range(0, len(texts), PART_TEXTS):
        masked = read_masked(tokenizer, texts[begin : begin + PART_TEXTS])
        _tell_long(model, masked)
        found += _fill(model, tokenizer, masked, settings, given)
    return found


def _tell_long(model: Predictor, masked: Sequence[MaskedText]) -> None:
    longest = model.config.max_position_embeddings
    if longer := sum(len(each.query.input_ids) > longest for each in masked):
        log.warning(
            "texts longer than the model's %d tokens: %d; each mask is seen with the text around it", longest, longer
        )


def _fill(
    model: Predictor,
    tokenizer: Tokenizer,
    masked: Sequence[MaskedText],
    settings: FillSettings,
    given: WordSpellings[GivenWords] | None,
) -> list[Filled]:
    """Texts at whose masks a token stands are filled side by side, those with words of several one by one."""
    several = [_asks_for_several(each, settings, given) for each in masked]
    filled: dict[int, Filled] = {}
    for with_words in (False, True):
        numbers = [number for number, words in enumerate(several) if words == with_words]
        if numbers:
            fill = _fill_with_words if with_words else _fill_with_tokens
            some = [masked[number] for number in numbers]
            filled.update(zip(numbers, fill(model, tokenizer, some, settings, given), strict=True))
    return [filled[number] for number in range(len(masked))]


def _asks_for_several(masked: MaskedText, settings: FillSettings, given: WordSpellings[GivenWords] | None) -> bool:
    """Whether words of several tokens may stand at its masks."""
    if given is None:
        return settings.max_pieces > 1
    return any(given.of(spaced).longest > 1 for spaced in masked.query.spaced)


def _fill_with_tokens(
    model: Predictor,
    tokenizer: Tokenizer,
    masked: Sequence[MaskedText],
    settings: FillSettings,
    given: WordSpellings[GivenWords] | None,
) -> list[Filled]:
    allowed = _single(given)
    first = likeliest(model, tokenizer, [each.query for each in masked], top_k=settings.top_k, allowed=allowed)
    masks = _candidates(tokenizer, masked, first)
    fillings = _fillings(model, tokenizer, masked, first, settings, allowed)
    return [Filled(*each) for each in zip(masks, fillings, strict=True)]


def _fill_with_words(
    model: Predictor,
    tokenizer: Tokenizer,
    masked: Sequence[MaskedText],
    settings: FillSettings,
    given: WordSpellings[GivenWords] | None,
) -> list[Filled]:
    queries = [each.query for each in masked]
    first = likeliest(model, tokenizer, queries, top_k=settings.top_k, allowed=_single(given))
    search = WordSearch(model, tokenizer, max_pieces=settings.max_pieces, given=given, top_k=settings.top_k)
    filled = []
    for each, candidates in zip(masked, _candidates(tokenizer, masked, first), strict=True):
        at = zip(each.query.places.tolist(), each.query.spaced.tolist(), strict=True)
        words = tuple(search.words_at(each.query.input_ids, place, spaced=spaced) for place, spaced in at)
        together: tuple[Filling, ...] = ()
        if settings.joint != "none":
            together = fill_with_words(search, each, by_confidence=settings.joint == "confidence")
        filled.append(Filled(candidates, together, words))
    return filled


def _single(given: WordSpellings[GivenWords] | None) -> WordSpellings[Tensor] | None:
    """The ids of given words that are one token."""
    return None if given is None else WordSpellings(given.spaced.single_A, given.bare.single_A)


def _candidates(
    tokenizer: Tokenizer, masked: Sequence[MaskedText], first: Likeliest
) -> list[tuple[tuple[Candidate, ...], ...]]:
    """For each text and each of its masks the likeliest tokens."""
    values_NK = first.log_probabilities_NK
    columns = (first.token_ids_NK.tolist(), values_NK.exp().tolist(), (~values_NK.isneginf()).tolist())
    each = (
        tuple(
            Candidate(tokenizer.token(id_), id_, p, tokenizer.text(id_))
            for id_, p, there in zip(*row, strict=True)
            if there
        )
        for row in zip(*columns, strict=True)
    )
    return [tuple(next(each) for _ in text.query.places) for text in masked]


def _fillings(
    model: Predictor,
    tokenizer: Tokenizer,
    masked: Sequence[MaskedText],
    first: Likeliest,
    settings: FillSettings,
    allowed: WordSpellings[Tensor] | None,
) -> list[tuple[Filling, ...]]:
    """For each text the likeliest choices for all masks together."""
    beams: list[list[Beam]]
    if settings.joint == "none":
        return [()] * len(masked)
    queries = [each.query for each in masked]
    if settings.joint == "confidence":
        beams = fill_by_confidence(model, tokenizer, queries, first, allowed=allowed)
    else:
        beams = fill_by_beam(model, tokenizer, queries, first, num_beams=settings.top_k, allowed=allowed)
    return fillings_of(tokenizer, masked, beams)
