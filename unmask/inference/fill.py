"""Filling masks: candidates for each one, and the likeliest fillings of all of them together.

Shape suffixes: B = beams, S = positions, M = masks, V = vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import SettingsError
from unmask.model.encoder import MaskedLM
from unmask.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Candidate:
    """A token that may stand at a mask."""

    token: str
    token_id: int
    probability: float


@dataclass(frozen=True)
class Filling:
    """One choice for all masks of a text.

    Attributes:
        tokens: A token for each mask, in order.
        text: The text with them in place.
        probability: Of the choice, each mask filled in turn given the ones before it (chain rule).
    """

    tokens: tuple[str, ...]
    text: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """The result for a text.

    Attributes:
        masks: For each mask in order its candidates, the likeliest first, each mask looked at alone: what
            transformers' fill-mask pipeline gives.
        fillings: The likeliest choices for all masks together.
    """

    masks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...]


@torch.no_grad()
def fill_masks(model: MaskedLM, tokenizer: Tokenizer, text: str, *, top_k: int = 5) -> Filled:
    """Predicts what stands at every mask of a text.

    Args:
        model: In evaluation mode.
        tokenizer: Its tokenizer.
        text: With one or several `[MASK]` (as the tokenizer spells it).
        top_k: Candidates a mask, and fillings.

    Raises:
        SettingsError: There is no mask, the text is too long for the model, or `top_k` is out of range.
    """
    mask_id = tokenizer.special.mask
    mask = tokenizer.token(mask_id)
    if not 1 <= top_k <= tokenizer.vocab_size:
        raise SettingsError(f"top_k is a number from 1 to the vocabulary's {tokenizer.vocab_size}, not {top_k}")
    input_ids = tokenizer.encode_prompt(text)
    places = np.flatnonzero(input_ids == mask_id)
    if len(places) == 0:
        raise SettingsError(f"there is no {mask} in the text {text!r}; put {mask} where a word is to be found")
    longest = model.config.max_position_embeddings
    if len(input_ids) > longest:
        raise SettingsError(f"the text has {len(input_ids)} tokens, but the model takes {longest}; give a shorter text")
    probability_MV = _log_probabilities(model, input_ids[None], places)[0].exp()
    masks = tuple(_candidates(tokenizer, row, top_k) for row in probability_MV)
    return Filled(masks, _fill_jointly(model, tokenizer, input_ids, places, num_beams=top_k))


def _log_probabilities(model: MaskedLM, input_ids_BS: NDArray[np.int32], places: NDArray[np.int64]) -> Tensor:
    """[B, number of places, V], float32."""
    num_beams, length = input_ids_BS.shape
    positions = (np.arange(num_beams)[:, None] * length + places).reshape(-1)
    device = model.encoder.tokens.device
    logits = model(
        torch.from_numpy(input_ids_BS.astype(np.int64)).to(device),
        positions_N=torch.from_numpy(positions).to(device),
    )
    return torch.log_softmax(logits.float(), -1).view(num_beams, len(places), -1).cpu()


def _candidates(tokenizer: Tokenizer, probability_V: Tensor, top_k: int) -> tuple[Candidate, ...]:
    values, ids = probability_V.topk(top_k)
    return tuple(
        Candidate(tokenizer.token(id_), id_, value) for id_, value in zip(ids.tolist(), values.tolist(), strict=True)
    )


def _fill_jointly(
    model: MaskedLM,
    tokenizer: Tokenizer,
    input_ids: NDArray[np.int32],
    places: NDArray[np.int64],
    *,
    num_beams: int,
) -> tuple[Filling, ...]:
    """Beam search over the masks from left to right, each conditioned on the choices before it."""
    beams, scores = input_ids[None], torch.zeros(1)
    for place in places:
        log_BV = _log_probabilities(model, beams, np.array([place]))[:, 0]
        total_BV = scores[:, None] + log_BV
        scores, index = total_BV.flatten().topk(min(num_beams, total_BV.numel()))
        beam, token = np.divmod(index.numpy(), total_BV.shape[1])
        beams = beams[beam]
        beams[:, place] = token
    return tuple(
        Filling(
            tuple(tokenizer.token(id_) for id_ in beam[places].tolist()),
            tokenizer.decode(beam.tolist()),
            math.exp(score),
        )
        for beam, score in zip(beams, scores.tolist(), strict=True)
    )
