"""Filling masks: candidates for each one, and the likeliest fillings of all of them together.

Shape suffixes: A = ids that are allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from unmask.errors import SettingsError
from unmask.runner import Predictor
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.using.filled import Candidate, Filled, Filling, WordSpellings
from unmask.using.joint_filling import Beam, fill_by_beam, fill_by_confidence, fillings_of
from unmask.using.likeliest import Likeliest, likeliest
from unmask.using.masked_text import MaskedText, read_masked
from unmask.using.word_filling import LONGEST_WORD, GivenWords, WordSearch, fill_with_words, read_candidates

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
