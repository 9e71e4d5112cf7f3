"""The likeliest tokens at places of texts of any length, for any number of texts at once.

Texts longer than the model are seen through windows, each with the special tokens around it:

    text, model of 7 positions        [CLS] a b c d e f g h [SEP]
    cut                               [CLS] a b c d e [SEP] [CLS] f g h [SEP]
    the window around d               [CLS] b c d e f [SEP]

Shape suffixes: N = places of all texts, V = vocabulary, A = ids that are allowed, K = how many are asked for,
T = all positions of a batch in a line, D = hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.runner import Predictor, logits_at, run
from unmask.tokenizer.special_tokens import SpecialIds
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.using.filled import WordSpellings

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
        spaced: For each of them, whether words carry the space before them there; see `unmask.using.filled`.
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
