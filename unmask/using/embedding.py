"""Embeddings of texts.

Shape suffixes: T = positions of a batch in a line, E = its texts, N = its tokens without padding, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import SettingsError
from unmask.folders.layout_names import Pooling
from unmask.runner import Network, TextRows, run
from unmask.text.reading import check_characters
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.using.likeliest import cut, cut_off
from unmask.using.sparse_vectors import SparseVectors

Vectors = TypeVar("Vectors", bound=NDArray[np.float32] | SparseVectors)
LongTexts = Literal["error", "split", "truncate"]
PART_TEXTS = 8192  # tokenized and packed at once


@dataclass(frozen=True)
class EmbedSettings:
    """How embeddings are made. `Model.embed_settings` takes from the model's folder what nobody asked for.

    Attributes:
        pooling: `mean` of all tokens' hidden states, special tokens included, which is what sentence-transformers
            makes of a plain model folder; or that of the `first` token.
        normalize: Whether each is divided by its Euclidean length.
        long_texts: What becomes of texts longer than the model: an `error`; `split` into windows that follow each
            other, of which the mean is taken (over tokens, or over first tokens); or `truncate`, as other tools do in
            silence.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    long_texts: LongTexts = "error"

    def __post_init__(self) -> None:
        for name, kinds in (("pooling", Pooling), ("long_texts", LongTexts)):
            if getattr(self, name) not in get_args(kinds):
                allowed = " or ".join(map(repr, get_args(kinds)))
                raise SettingsError(f"{name} is {allowed}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class Embedded(Generic[Vectors]):
    """Embeddings, and what they were made of.

    Attributes:
        vectors: [texts, hidden_size], float32; or as wide as the vocabulary, and sparse.
        num_tokens: Of the texts, without special tokens and without what was cut off.
        num_long: Texts that were longer than the model.
    """

    vectors: Vectors
    num_tokens: int
    num_long: int


def embed_texts(
    model: Network, tokenizer: Tokenizer, texts: Sequence[str], settings: EmbedSettings, *, names: Sequence[str] = ()
) -> Embedded[NDArray[np.float32]]:
    """Embeds texts. Memory beside the result does not grow with their number.

    Args:
        model: In evaluation mode; its encoder makes hidden states.
        tokenizer: Its tokenizer.
        texts: Any number; `[MASK]` and other special tokens in them are such, as in transformers.
        settings: How.
        names: What errors call each text; its number, counted from 0, unless given.

    Raises:
        SettingsError: Something is no text, holds what is no character, has no tokens, or is longer than the model.
    """
    if isinstance(texts, str):
        raise SettingsError("embed takes a list of texts; put brackets around a single one")
    vectors = np.empty((len(texts), model.encoder.width), dtype=np.float32)
    num_tokens = num_long = 0
    for begin in range(0, len(texts), PART_TEXTS):
        part = texts[begin : begin + PART_TEXTS]
        called = [names[begin + n] if names else f"text {begin + n}" for n in range(len(part))]
        sequences, owners, long = windows_of(model, tokenizer, part, settings.long_texts, called)
        vectors[begin : begin + len(part)] = pooled(model, tokenizer, sequences, owners, settings, len(part))
        num_tokens += count_tokens(tokenizer, sequences)
        num_long += long
    return Embedded(vectors, num_tokens, num_long)


def windows_of(
    model: Network, tokenizer: Tokenizer, texts: Sequence[str], long_texts: LongTexts, called: Sequence[str]
) -> tuple[list[NDArray[np.int32]], NDArray[np.int64], int]:
    """Token ids, which text each belongs to, and how many texts are longer than the model.

    Raises:
        SettingsError: As `embed_texts`.
    """
    for name, text in zip(called, texts, strict=True):
        if not isinstance(text, str):
            raise SettingsError(f"{name} is {type(text).__name__}, not a text")
        check_characters(text, name)
    longest = model.config.max_position_embeddings
    sequences, owners, num_long = [], [], 0
    for number, input_ids in enumerate(tokenizer.encode_prompts(texts)):
        windows = [input_ids]
        if len(input_ids) == 0:
            raise SettingsError(f"{called[number]} is empty, and the tokenizer puts no special tokens around it")
        if len(input_ids) > longest:
            if long_texts == "error":
                raise SettingsError(
                    f"{called[number]} has {len(input_ids)} tokens with special ones, but the model takes {longest}; "
                    "long_texts='split' takes its parts together, 'truncate' cuts it off (--long-texts)"
                )
            num_long += 1
            is_split, special = long_texts == "split", tokenizer.special
            windows = cut(input_ids, longest, special) if is_split else [cut_off(input_ids, longest, special)]
        sequences += windows
        owners += [number] * len(windows)
    return sequences, np.array(owners, dtype=np.int64), num_long


def count_tokens(tokenizer: Tokenizer, windows: Sequence[NDArray[np.int32]]) -> int:
    """Of windows, without special tokens."""
    return sum(map(len, windows)) - len(tokenizer.special.around) * len(windows)


@torch.inference_mode()
def pooled(
    model: Network,
    tokenizer: Tokenizer,
    sequences: Sequence[NDArray[np.int32]],
    owners: NDArray[np.int64],
    settings: EmbedSettings,
    num_texts: int,
) -> NDArray[np.float32]:
    """The vectors of texts that are token ids already [num_texts, D]: sums over each text's windows, divided by what
    was summed.

    Args:
        model, tokenizer, settings: As for `embed_texts`.
        sequences: Windows with special tokens, none of them empty or longer than the model.
        owners: [windows], int64: the number of the text that each is of.
        num_texts: How many there are, each with a window at the least.
    """
    sums = torch.zeros(num_texts, model.encoder.width)
    counts = torch.zeros(num_texts)
    for rows, hidden_TD in run(model, sequences):
        owners_E, lengths_E = torch.from_numpy(owners[rows.numbers]), torch.from_numpy(rows.lengths)
        if settings.pooling == "first":
            first_ED = hidden_TD[torch.from_numpy(rows.begins).to(hidden_TD.device)]
            sums.index_add_(0, owners_E, first_ED.float().cpu())
            counts.index_add_(0, owners_E, torch.ones(len(owners_E)))
        else:
            sums.index_add_(0, owners_E, _sums_of_tokens(hidden_TD, rows).cpu())
            counts.index_add_(0, owners_E, lengths_E.float())
    vectors = sums / counts[:, None]
    if settings.normalize:
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    return vectors.numpy()


def _sums_of_tokens(hidden_TD: Tensor, rows: TextRows) -> Tensor:
    """[E, D], float32: the sum over each text's tokens."""
    device = hidden_TD.device
    lengths_E = torch.from_numpy(rows.lengths).to(device)
    texts_N = torch.arange(len(lengths_E), device=device).repeat_interleave(lengths_E)
    within_N = torch.arange(len(texts_N), device=device) - (lengths_E.cumsum(0) - lengths_E)[texts_N]
    places_N = torch.from_numpy(rows.begins).to(device)[texts_N] + within_N
    sums_ED = torch.zeros(len(lengths_E), hidden_TD.shape[1], device=device)
    return sums_ED.index_add_(0, texts_N, hidden_TD[places_N].float())
