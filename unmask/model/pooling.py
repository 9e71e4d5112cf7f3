"""Pooling: how the hidden states of a text's tokens become one vector.

A pooling is a function and a row in `POOLINGS`. `embed`, search, the embedder, sentence-transformers' files and ONNX
graphs read that table (docs/extending.md).

numpy and torch are imported where they run, so that the command line can offer the names at once.

Shape suffixes: E = texts, S = tokens of the longest, N = tokens of all texts in a line, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pooling:
    """One way to make a vector of a text.

    Attributes:
        vectors: From hidden states [E, S, D] and a mask [E, S], 1 at tokens and 0 at the padding behind them, to
            vectors [E, D]. It is exported to ONNX as well, so it must not branch on values.
        sentence_transformers: Its name there (`pooling_mode`).
        description: What a text's vector is, in words.
    """

    vectors: Callable[[Tensor, Tensor], Tensor]
    sentence_transformers: str
    description: str


def _mean(hidden_ESD: Tensor, mask_ES: Tensor) -> Tensor:
    weight_ES1 = mask_ES[..., None].to(hidden_ESD.dtype)
    return (hidden_ESD * weight_ES1).sum(1) / weight_ES1.sum(1).clamp(min=1.0)


def _first(hidden_ESD: Tensor, mask_ES: Tensor) -> Tensor:
    return hidden_ESD[:, 0]


def _max(hidden_ESD: Tensor, mask_ES: Tensor) -> Tensor:
    return hidden_ESD.masked_fill(mask_ES[..., None] == 0, -1e9).amax(1)


POOLINGS: dict[str, Pooling] = {
    "mean": Pooling(_mean, "mean", "the mean of its tokens' hidden states, special tokens included"),
    "first": Pooling(_first, "cls", "the hidden state of its first token"),
    "max": Pooling(_max, "max", "the largest of its tokens' hidden states in each dimension"),
}


def pool(hidden_ND: Tensor, lengths: Sequence[int], pooling: str) -> Tensor:
    """Vectors [E, D] of texts whose tokens stand one text behind another, float32.

    Args:
        hidden_ND: Hidden states of the tokens, without padding.
        lengths: Tokens of each text, at least 1.
        pooling: A name of `POOLINGS`.
    """
    import numpy as np
    import torch

    if not len(lengths):  # a part of a step without texts
        return hidden_ND.float()
    device, lengths_E = hidden_ND.device, np.asarray(lengths, dtype=np.int64)
    begins_E = np.cumsum(lengths_E) - lengths_E
    # Texts are padded together with those of their octave, so that at most half of what is gathered is padding.
    octaves_E = np.ceil(np.log2(lengths_E))
    numbers, vectors = [], []
    for octave in np.unique(octaves_E):
        some = np.flatnonzero(octaves_E == octave)
        within_S = np.arange(lengths_E[some].max())
        mask_ES = within_S < lengths_E[some, None]
        places_ES = np.where(mask_ES, begins_E[some, None] + within_S, 0)
        places, mask = (torch.from_numpy(array).to(device, non_blocking=True) for array in (places_ES, mask_ES))
        hidden_ESD = hidden_ND.index_select(0, places.flatten()).view(*places.shape, -1).float()
        vectors.append(POOLINGS[pooling].vectors(hidden_ESD, mask))
        numbers.append(some)
    order = torch.from_numpy(np.argsort(np.concatenate(numbers))).to(device, non_blocking=True)
    return torch.cat(vectors).index_select(0, order)
