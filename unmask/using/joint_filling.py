"""Filling all masks of a text together, each given what stands at those that were filled before it.

Texts advance side by side, a mask each, so that a list of them is filled in as many passes as one text has masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unmask.runner import Predictor
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.using.filled import Filling, WordSpellings
from unmask.using.likeliest import Likeliest, Query, likeliest
from unmask.using.masked_text import MaskedText, put_token


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
