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

from unmask.core.errors import SettingsError
from unmask.data.reading import check_characters
from unmask.data.rows import TextRows
from unmask.model.pooling import POOLINGS, pool
from unmask.tasks.inputs import around, cut
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.runner import Network, Predictor, logits_at, run

# ----------------------------------------
# Vectors of which most numbers are 0: the others alone are kept, vector by vector, or number by number to be searched.
#
# three vectors of 5    0 2 0 0 1    begins 0 2 3 3    tokens 1 4 0    values 2 1 7
#                       7 0 0 0 0
#                       0 0 0 0 0
# their postings        begins 0 1 2 2 2 3    vectors 1 0 0    values 7 2 1


@dataclass(frozen=True)
class SparseVectors:
    """N vectors, Z numbers of which are not 0.

    Attributes:
        begins: [N + 1], int64: where each one's numbers begin.
        tokens: [Z], int32: which number of the vector each is, ascending within a vector.
        values: [Z], float32.
        width: Numbers of a vector, with those that are 0.
    """

    begins: NDArray[np.int64]
    tokens: NDArray[np.int32]
    values: NDArray[np.float32]
    width: int

    def __len__(self) -> int:
        return len(self.begins) - 1

    def __getitem__(self, some: slice) -> SparseVectors:
        """Vectors that follow each other."""
        begin, end, step = some.indices(len(self))
        if step != 1:
            raise ValueError("only vectors that follow each other are taken")
        begins = self.begins[begin : max(begin, end) + 1]
        taken = slice(begins[0], begins[-1])
        return SparseVectors(begins - begins[0], self.tokens[taken], self.values[taken], self.width)

    @classmethod
    def of(cls, dense_ND: NDArray[np.float32]) -> SparseVectors:
        """What is not 0 of vectors."""
        rows, tokens = np.nonzero(dense_ND)
        begins = np.searchsorted(rows, np.arange(len(dense_ND) + 1))
        return cls(begins, tokens.astype(np.int32), dense_ND[rows, tokens], dense_ND.shape[1])

    @classmethod
    def joined(cls, parts: Sequence[SparseVectors]) -> SparseVectors:
        """Several one after the other, at least one."""
        counts = [np.diff(part.begins) for part in parts]
        begins = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        tokens, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("tokens", "values"))
        return cls(begins, tokens, values, parts[0].width)

    def dense(self) -> NDArray[np.float32]:
        """All numbers: [N, width]."""
        dense_ND = np.zeros((len(self), self.width), dtype=np.float32)
        dense_ND[np.repeat(np.arange(len(self)), np.diff(self.begins)), self.tokens] = self.values
        return dense_ND

    def unit(self) -> SparseVectors:
        """Divided by their length; those of length 0 stay."""
        owners = np.repeat(np.arange(len(self)), np.diff(self.begins))
        lengths = np.sqrt(np.bincount(owners, self.values.astype(np.float64) ** 2, minlength=len(self)))
        values = (self.values / lengths[owners]).astype(np.float32)
        return SparseVectors(self.begins, self.tokens, values, self.width)

    def postings(self) -> Postings:
        """The same by their numbers."""
        order = np.argsort(self.tokens, kind="stable")
        begins = np.concatenate([[0], np.cumsum(np.bincount(self.tokens, minlength=self.width))])
        owners = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.begins))
        return Postings(begins.astype(np.int32), owners[order], self.values[order], len(self))


@dataclass(frozen=True)
class Postings:
    """Of each number of vectors those in which it is not 0: an inverted index.

    Attributes:
        begins: [width + 1], int32.
        vectors: [Z], int32: numbers of vectors, ascending within a posting list.
        values: [Z], float32.
        count: How many vectors there are.
    """

    begins: NDArray[np.int32]
    vectors: NDArray[np.int32]
    values: NDArray[np.float32]
    count: int

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return len(self.begins) - 1

    def products(self, tokens: NDArray[np.int32], values: NDArray[np.float32]) -> NDArray[np.float64]:
        """Inner products [count] of a vector with all of these; each depends on its two vectors alone.

        Products of two numbers of float32 are exact in float64, and are added up in the order of tokens.

        Raises:
            ValueError: The lists are damaged.
        """
        lists = [slice(begin, end) for begin, end in zip(self.begins[tokens], self.begins[tokens + 1], strict=True)]
        if not lists:
            return np.zeros(self.count)
        weights = np.repeat(values.astype(np.float64), [each.stop - each.start for each in lists])
        weights *= np.concatenate([self.values[each] for each in lists])
        owners = np.concatenate([self.vectors[each] for each in lists])
        if len(owners) and not 0 <= owners.min() <= owners.max() < self.count:
            raise ValueError(f"posting lists of vectors that are none of {self.count:,}")
        return np.bincount(owners, weights, minlength=self.count).astype(np.float64, copy=False)

    def to_array(self) -> NDArray[np.int32]:
        """All of it in a line, for a file."""
        return np.concatenate([self.begins, self.vectors, self.values.view(np.int32)], dtype="<i4")

    @classmethod
    def of_array(cls, array: NDArray[np.int32], *, width: int, count: int) -> Postings:
        """What `to_array` gave, which may be mapped from a file and is not copied.

        Raises:
            ValueError: It is of other vectors, or damaged.
        """
        if array.ndim != 1 or array.dtype != np.int32 or len(array) <= width:
            raise ValueError(f"no posting lists of {width:,} numbers")
        size = int(array[width])
        if len(array) != width + 1 + 2 * size:
            raise ValueError(f"{len(array):,} numbers, not {width + 1 + 2 * size:,}")
        if array[0] != 0 or (np.diff(array[: width + 1]) < 0).any():
            raise ValueError("posting lists that do not begin one behind the other")
        behind = width + 1 + size
        return cls(array[: width + 1], array[width + 1 : behind], array[behind:].view(np.float32), count)


Vectors = TypeVar("Vectors", bound=NDArray[np.float32] | SparseVectors)
LongTexts = Literal["error", "split", "truncate"]
PART_TEXTS = 8192  # tokenized and packed at once


@dataclass(frozen=True)
class EmbedSettings:
    """How embeddings are made. `Model.embed_settings` takes from the model's folder what is not asked for.

    Attributes:
        pooling: A name of `unmask.model.pooling.POOLINGS`; the mean is what sentence-transformers makes of a plain
            model folder.
        normalize: Whether each is divided by its Euclidean length.
        long_texts: What becomes of texts longer than the model: an `error`; `split` into windows that follow each
            other, of whose vectors the mean is taken, weighted by their tokens; or `truncate`, as other tools do in
            silence.
    """

    pooling: str = "mean"
    normalize: bool = False
    long_texts: LongTexts = "error"

    def __post_init__(self) -> None:
        for name, kinds in (("pooling", tuple(POOLINGS)), ("long_texts", get_args(LongTexts))):
            if getattr(self, name) not in kinds:
                allowed = " or ".join(map(repr, kinds))
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
            windows = cut(input_ids, longest, special) if is_split else [around(input_ids, 0, longest, special)[0]]
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
    """The vectors of texts that are token ids already [num_texts, D]: the mean over each text's windows, weighted by
    their tokens.

    Args:
        model, tokenizer, settings: As for `embed_texts`.
        sequences: Windows with special tokens, none of them empty or longer than the model.
        owners: [windows], int64: the number of the text that each is of.
        num_texts: How many there are, each with a window at the least.
    """
    # In float64 a vector times its number of tokens, divided by it again, is the vector.
    sums = torch.zeros(num_texts, model.encoder.width, dtype=torch.float64)
    counts = torch.zeros(num_texts, dtype=torch.float64)
    within = [np.arange(len(ids)) for ids in sequences]
    for rows, hidden_TD in run(model, sequences):
        owners_E, lengths_E = torch.from_numpy(owners[rows.numbers]), torch.from_numpy(rows.lengths).double()
        places_N = rows.places(within).to(hidden_TD.device)
        vectors_ED = pool(hidden_TD.index_select(0, places_N), rows.lengths.tolist(), settings.pooling)
        sums.index_add_(0, owners_E, vectors_ED.double().cpu() * lengths_E[:, None])
        counts.index_add_(0, owners_E, lengths_E)
    vectors = (sums / counts[:, None]).float()
    if settings.normalize:
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    return vectors.numpy()


# ----------------------------------------
# Sparse embeddings of texts, as sentence-transformers' `SparseEncoder` makes them of a folder with SPLADE.
#
# Shape suffixes: T = positions of a batch in a line, E = its texts, V = vocabulary.

_TEXTS_AT_ONCE = 256  # whose vectors are dense for a while


@torch.inference_mode()
def sparse_texts(
    model: Predictor,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    long_texts: LongTexts,
    *,
    unit: bool = False,
    names: Sequence[str] = (),
) -> Embedded[SparseVectors]:
    """log(1 + relu(the largest logit over a text's tokens, special tokens included)), of each text.

    Args:
        model: In evaluation mode, with its head for masked tokens.
        tokenizer: Its tokenizer.
        texts, names: As for `embed_texts`.
        long_texts: What becomes of texts longer than the model; `split`: the maximum is over all windows.
        unit: Whether each is divided by its Euclidean length; what is all 0 stays so.

    Raises:
        SettingsError: As `embed_texts`.

    Source: Formal et al. 2021 (SPLADE v2), section 3.1; in training `unmask.train.contrast`.
    """
    parts = [SparseVectors.of(np.zeros((0, model.config.vocab_size), dtype=np.float32))]
    num_tokens = num_long = 0
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[begin : begin + _TEXTS_AT_ONCE]
        called = [names[begin + n] if names else f"text {begin + n}" for n in range(len(part))]
        sequences, owners, long = windows_of(model, tokenizer, part, long_texts, called)
        of_windows: list[SparseVectors | None] = [None] * len(sequences)
        for rows, hidden_TD in run(model, sequences):
            largest_EV = _largest(model, hidden_TD, rows).relu_().log1p_().cpu().numpy()
            made = SparseVectors.of(largest_EV)
            for place, number in enumerate(rows.numbers.tolist()):
                of_windows[number] = made[place : place + 1]
        windows = [each for each in of_windows if each is not None]
        if len(windows) > len(part):  # the maximum over the windows of each text
            of_text: list[list[SparseVectors]] = [[] for _ in part]
            for owner, window in zip(owners.tolist(), windows, strict=True):
                of_text[owner].append(window)
            windows = []
            for some in of_text:
                largest_1V = np.zeros((1, model.config.vocab_size), dtype=np.float32)
                for window in some:
                    np.maximum.at(largest_1V[0], window.tokens, window.values)
                windows.append(some[0] if len(some) == 1 else SparseVectors.of(largest_1V))
        parts += windows
        num_tokens += count_tokens(tokenizer, sequences)
        num_long += long
    vectors = SparseVectors.joined(parts)
    return Embedded(vectors.unit() if unit else vectors, num_tokens, num_long)


def _largest(model: Predictor, hidden_TD: Tensor, rows: TextRows) -> Tensor:
    """[E, V], float32: the largest logits over the positions of each text; a bounded number of logits at a time."""
    lengths = rows.lengths.tolist()
    places = zip(rows.begins.tolist(), lengths, strict=True)
    places_N = torch.from_numpy(np.concatenate([np.arange(begin, begin + length) for begin, length in places]))
    largest_EV = torch.full((len(lengths), model.config.vocab_size), -torch.inf, device=hidden_TD.device)
    text, left = 0, lengths[0]
    for logits_NV in logits_at(model, hidden_TD, places_N):
        begin = 0
        while begin < len(logits_NV):
            end = min(begin + left, len(logits_NV))
            torch.maximum(largest_EV[text], logits_NV[begin:end].amax(0), out=largest_EV[text])
            left -= end - begin
            if left == 0 and text + 1 < len(lengths):
                text += 1
                left = lengths[text]
            begin = end
    return largest_EV
