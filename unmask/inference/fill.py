"""Filling masks: candidates for each one, and the likeliest fillings of all of them together.

Shape suffixes: A = ids that are allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from torch import Tensor

from unmask.corpus.reading import check_characters
from unmask.errors import SettingsError
from unmask.inference.filled import Candidate, Filled, Filling
from unmask.inference.jointly import Beam, fill_by_beam, fill_by_confidence, fillings_of
from unmask.inference.predict import Likeliest, Query, likeliest
from unmask.inference.words import LONGEST_WORD, GivenWords, WordSearch, read_candidates
from unmask.inference.words_jointly import fill_with_words
from unmask.model.encoder import MaskedLM
from unmask.tokens.tokenizer import Tokenizer

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
        candidates: The words that may stand at a mask, of one or several tokens; None: any.
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


def fill_masks(model: MaskedLM, tokenizer: Tokenizer, text: str, *, top_k: int = 5) -> Filled:
    """As `fill_texts`, for one text."""
    return fill_texts(model, tokenizer, [text], FillSettings(top_k=top_k))[0]


def fill_texts(
    model: MaskedLM, tokenizer: Tokenizer, texts: Sequence[str], settings: FillSettings | None = None
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
        queries = _queries(model, tokenizer, texts[begin : begin + PART_TEXTS])
        found += _fill(model, tokenizer, queries, settings, given)
    return found


def _queries(model: MaskedLM, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Query]:
    mask_id = tokenizer.special.mask
    mask = tokenizer.token(mask_id)
    for text in texts:
        if not isinstance(text, str):
            raise SettingsError(f"fill takes a text or a list of texts, not {type(text).__name__}")
        check_characters(text, f"the text {text[:60]!r}")
    longest, longer = model.config.max_position_embeddings, 0
    queries = []
    for text, input_ids in zip(texts, tokenizer.encode_prompts(texts), strict=True):
        places = np.flatnonzero(input_ids == mask_id)
        if len(places) == 0:
            raise SettingsError(f"there is no {mask} in the text {text!r}; put {mask} where a word is to be found")
        longer += len(input_ids) > longest
        queries.append(Query(input_ids, places))
    if longer:
        log.warning(
            "texts longer than the model's %d tokens: %d; each mask is seen with the text around it", longest, longer
        )
    return queries


def _fill(
    model: MaskedLM, tokenizer: Tokenizer, queries: Sequence[Query], settings: FillSettings, given: GivenWords | None
) -> list[Filled]:
    allowed_A = None if given is None else given.single_A
    first = likeliest(model, tokenizer, queries, top_k=settings.top_k, allowed_A=allowed_A)
    masks = _candidates(tokenizer, queries, first)
    if settings.max_pieces == 1 and (given is None or list(given.by_length) == [1]):
        fillings = _fillings(model, tokenizer, queries, first, settings, allowed_A)
        return [Filled(*each) for each in zip(masks, fillings, strict=True)]
    search = WordSearch(model, tokenizer, max_pieces=settings.max_pieces, given=given, top_k=settings.top_k)
    filled = []
    for query, candidates in zip(queries, masks, strict=True):
        words = tuple(search.words_at(query.input_ids, place) for place in query.places.tolist())
        together: tuple[Filling, ...] = ()
        if settings.joint != "none":
            together = fill_with_words(search, query, by_confidence=settings.joint == "confidence")
        filled.append(Filled(candidates, together, words))
    return filled


def _candidates(
    tokenizer: Tokenizer, queries: Sequence[Query], first: Likeliest
) -> list[tuple[tuple[Candidate, ...], ...]]:
    """For each text and each of its masks the likeliest tokens."""
    rows = zip(first.token_ids_NK.tolist(), first.log_probabilities_NK.exp().tolist(), strict=True)
    each = (tuple(Candidate(tokenizer.token(i), i, p) for i, p in zip(*row, strict=True)) for row in rows)
    return [tuple(next(each) for _ in query.places) for query in queries]


def _fillings(
    model: MaskedLM,
    tokenizer: Tokenizer,
    queries: Sequence[Query],
    first: Likeliest,
    settings: FillSettings,
    allowed_A: Tensor | None,
) -> list[tuple[Filling, ...]]:
    """For each text the likeliest choices for all masks together."""
    beams: list[list[Beam]]
    if settings.joint == "none":
        return [()] * len(queries)
    if settings.joint == "confidence":
        beams = fill_by_confidence(model, tokenizer, queries, first, allowed_A=allowed_A)
    else:
        beams = fill_by_beam(model, tokenizer, queries, first, num_beams=settings.top_k, allowed_A=allowed_A)
    return fillings_of(tokenizer, queries, beams)
