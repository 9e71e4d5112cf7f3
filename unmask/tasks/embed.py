"""Embeddings of texts, dense or sparse.

Shape suffixes: T = positions of a batch in a line, E = its texts, N = its tokens without padding, D = hidden size, V =
vocabulary, Z = numbers that are not 0.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, ModelError, SettingsError
from unmask.data.columns import without_gaps
from unmask.data.documents import Document, Documents, in_groups
from unmask.data.reading import LONGEST_ROW, check_characters
from unmask.data.sources import readable
from unmask.data.tables import in_words
from unmask.model.pooling import POOLINGS, pool
from unmask.tasks.inputs import around, cut
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.runner import Network, Predictor, logits_at, run

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # importing it takes a good part of a second

log = logging.getLogger("unmask")
LongTexts = Literal["error", "split", "truncate"]
# Texts tokenized and packed at once; fewer if they are long, since a token takes some 100 bytes meanwhile.
PART_TEXTS, PART_CHARS = 8192, 1 << 22
SPARSE_TEXTS = 256  # texts at once for sparse vectors, which are dense in between


@dataclass(frozen=True)
class EmbedSettings:
    """How embeddings are made; `Model.embed_settings` reads defaults from the model's folder."""

    pooling: str = "mean"  # a name of `POOLINGS`
    normalize: bool = False  # whether each vector is divided by its Euclidean length
    # For texts longer than the model: `split` takes the mean of their windows, weighted by tokens, as an index does;
    # `truncate` cuts them off, as sentence-transformers does.
    long_texts: LongTexts = "split"

    def __post_init__(self) -> None:
        for name, kinds in (("pooling", tuple(POOLINGS)), ("long_texts", get_args(LongTexts))):
            if getattr(self, name) not in kinds:
                allowed = " or ".join(map(repr, kinds))
                raise SettingsError(f"{name} is {allowed}, not {getattr(self, name)!r}")


class Embedded(NamedTuple):
    vectors: Any  # [texts, hidden_size], float32; or sparse, a `csr_array` as wide as the vocabulary
    num_tokens: int  # without special tokens and what was cut off
    num_long: int  # texts longer than the model


class _Windows(NamedTuple):
    """A group of texts as token ids with special tokens; those longer than the model in several windows."""

    texts: slice  # the texts of this group
    input_ids: list[NDArray[np.int32]]
    owners: NDArray[np.int64]  # the text of each window, counted from the first of the slice
    num_tokens: int
    num_long: int


def _named(texts: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts):
        name = names[number] if names else f"text {number}"
        if not isinstance(text, str):
            raise SettingsError(f"{name} is {type(text).__name__}, not a text")
        check_characters(text, name)
        yield name, text


def _in_windows(
    model: Network, tokenizer: Tokenizer, texts: Sequence[str], long_texts: LongTexts, names: Sequence[str], most: int
) -> Iterator[_Windows]:
    longest, special, begin = model.config.max_position_embeddings, tokenizer.special, 0
    for group in in_groups(_named(texts, names), most=most, most_chars=PART_CHARS, text_of=itemgetter(1)):
        name_of, part = zip(*group, strict=True)
        sequences, owners = [], []
        encoded = tokenizer.encode_prompts(part)
        lengths = np.array([len(input_ids) for input_ids in encoded])
        tokenizer.watch(tokenizer.unknown_in(part, np.concatenate(encoded), lengths))
        for number, input_ids in enumerate(encoded):
            if len(input_ids) == 0:
                what = "is empty, and the tokenizer puts no special tokens around it"
                raise SettingsError(f"{name_of[number]} {what}; remove it (.parquet output skips empty lines)")
            if len(input_ids) > longest and long_texts == "error":
                raise SettingsError(
                    f"{name_of[number]} has {len(input_ids)} tokens with special ones, but the model takes "
                    f"{longest}; split or truncate it with long_texts (--long-texts)"
                )
            if long_texts == "split":
                windows = cut(input_ids, longest, special)
            else:
                windows = [around(input_ids, 0, longest, special)[0]]
            sequences += windows
            owners += [number] * len(windows)
        num_tokens = sum(map(len, sequences)) - len(special.around) * len(sequences)
        numbers = np.array(owners, dtype=np.int64)
        yield _Windows(slice(begin, begin + len(part)), sequences, numbers, num_tokens, int((lengths > longest).sum()))
        begin += len(part)


def _check_finite(vectors: NDArray[np.float32], begin: int, names: Sequence[str]) -> None:
    """Raises a ModelError for a vector with a number that is not finite; they are of the texts from `begin` on."""
    wrong = np.flatnonzero(~np.isfinite(vectors).all(1))
    if len(wrong):
        number = begin + int(wrong[0])
        what = f"the vector of {names[number] if names else f'text {number}'} is not finite"
        raise ModelError(f"{what}; the model is damaged or diverged")


def notes_on(num_texts: int, num_blank: int, num_long: int, longest: int, long_texts: LongTexts) -> Iterator[str]:
    """Notes about texts that are empty, or longer than the model's `longest` tokens, a line each."""
    if num_blank:
        yield f"{num_blank:,} of {num_texts:,} texts are empty: their vectors come from the special tokens alone"
    if num_long:
        what = "split into parts, whose vectors are combined" if long_texts == "split" else "cut off"
        yield f"{num_long:,} of {num_texts:,} texts are longer than the model's {longest:,} tokens: {what} (long_texts)"


def is_table(texts: Any) -> bool:
    """Whether this is a table, a dataset or a dict of columns: its items are names, not texts."""
    return isinstance(texts, Mapping) or any(hasattr(texts, name) for name in ("columns", "column_names"))


def whole_texts(file: Documents) -> Iterator[Document]:
    """The texts of a file; a CorpusError for one so long that it comes in pieces."""
    for text in file:
        if not text.last:
            raise CorpusError(f"{file.sources[0].path}: a text is longer than {LONGEST_ROW:,} characters; cut it")
        yield text


def texts_in_memory(texts: Any) -> list[Any]:
    """The texts of a list, an array or a column; of a table, a dataset or rows, whose text column is detected and
    logged; or of a path. Missing texts and blank lines become empty ones, so that vectors match rows and lines."""
    if isinstance(texts, str) and not os.path.isfile(texts[:1000]):
        raise SettingsError("embed takes a list of texts; put brackets around a single one")
    first = texts[0] if isinstance(texts, list | tuple) and texts else None
    if not is_table(texts) and not isinstance(texts, str | Path) and not isinstance(first, Mapping):
        return ["" if without_gaps(text) is None else text for text in texts]
    with readable(texts) as here:
        rows = Documents(here, title_column=False, blank_lines=True, unit="line", piece_chars=LONGEST_ROW)
        listed = [row.text for row in whole_texts(rows)]
    if (column := rows.sources[0].column) is not None:
        log.info("texts are in %s", in_words(column))
    return listed


def embed_texts(
    model: Network, tokenizer: Tokenizer, texts: Sequence[str], settings: EmbedSettings, *, names: Sequence[str] = ()
) -> Embedded:
    """Embeds any number of texts; memory is bounded, apart from the result. `[MASK]` and other special tokens written
    in texts become special tokens, as in transformers. Errors mention texts by `names`, by default by number.

    Raises:
        SettingsError: An item is not a text, is not Unicode, has no tokens, or is longer than the model.
        ModelError: A vector is not finite.
    """
    vectors = np.empty((len(texts), model.encoder.width), dtype=np.float32)
    num_tokens = num_long = 0
    for group in _in_windows(model, tokenizer, texts, settings.long_texts, names, PART_TEXTS):
        num_texts = group.texts.stop - group.texts.start
        vectors[group.texts] = pooled(model, group.input_ids, group.owners, settings, num_texts)
        _check_finite(vectors[group.texts], group.texts.start, names)
        num_tokens += group.num_tokens
        num_long += group.num_long
    return Embedded(vectors, num_tokens, num_long)


@torch.inference_mode()
def pooled(
    model: Network,
    sequences: Sequence[NDArray[np.int32]],
    owners: NDArray[np.int64],
    settings: EmbedSettings,
    num_texts: int,
) -> NDArray[np.float32]:
    """The vectors of texts [num_texts, D]: the mean over each text's windows, weighted by their tokens.

    Windows (`sequences`) have special tokens and fit the model; `owners` [windows], int64, are their texts' numbers.
    """
    # In float64, multiplying a vector by its number of tokens and dividing again returns the vector.
    sums = torch.zeros(num_texts, model.encoder.width, dtype=torch.float64)
    counts = torch.zeros(num_texts, dtype=torch.float64)
    within = [np.arange(len(ids)) for ids in sequences]
    for rows, hidden_TD in run(model, sequences):
        owners_E, lengths_E = torch.from_numpy(owners[rows.numbers]), torch.from_numpy(rows.lengths).double()
        places_N = rows.places(within).to(hidden_TD.device)
        vectors_ED = pool(hidden_TD.index_select(0, places_N), rows.lengths.tolist(), settings.pooling)
        sums.index_add_(0, owners_E, vectors_ED.cpu().double() * lengths_E[:, None])
        counts.index_add_(0, owners_E, lengths_E)
    vectors = (sums / counts[:, None]).float()
    if settings.normalize:
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    return vectors.numpy()


@torch.inference_mode()
def sparse_texts(
    model: Predictor,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    long_texts: LongTexts,
    *,
    unit: bool = False,
    names: Sequence[str] = (),
) -> Embedded:
    """Sparse vectors: log(1 + relu(largest logit over a text's tokens, special tokens and all windows included)), equal
    to those of sentence-transformers' `SparseEncoder` for a SPLADE folder. With `unit`, each vector is divided by its
    Euclidean length. Texts, names and errors are as for `embed_texts`.

    Returns:
        Vectors as `csr_array` [texts, V], float32, sorted by token.

    Source: Formal et al. 2021 (SPLADE v2), section 3.1; in training `unmask.train.contrast`.
    """
    from scipy.sparse import csr_array, vstack

    width = model.config.vocab_size
    parts = [csr_array((0, width), dtype=np.float32)]
    num_tokens = num_long = 0
    for group in _in_windows(model, tokenizer, texts, long_texts, names, SPARSE_TEXTS):
        num_texts, within = group.texts.stop - group.texts.start, [np.arange(len(ids)) for ids in group.input_ids]
        largest_EV = torch.full((num_texts, width), -torch.inf, device=model.encoder.device)
        for rows, hidden_TD in run(model, group.input_ids):
            # A bounded number of logits at a time, in which the tokens of a window are consecutive.
            text_N, done = np.repeat(group.owners[rows.numbers], rows.lengths), 0
            for logits_NV in logits_at(model, hidden_TD, rows.places(within)):
                text = text_N[done : done + len(logits_NV)]
                done += len(logits_NV)
                begins = np.flatnonzero(np.diff(text, prepend=-1)).tolist()
                for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
                    largest_V = largest_EV[text[begin]]
                    torch.maximum(largest_V, logits_NV[begin:end].amax(0), out=largest_V)
        weights_EV = largest_EV.relu_().log1p_().cpu().numpy()
        _check_finite(weights_EV, group.texts.start, names)
        part = csr_array(weights_EV)
        if unit:
            text_Z = np.repeat(np.arange(num_texts), np.diff(part.indptr))
            lengths = np.sqrt(np.bincount(text_Z, part.data.astype(np.float64) ** 2, minlength=num_texts))
            part.data = (part.data / lengths[text_Z]).astype(np.float32)
        parts.append(part)
        num_tokens += group.num_tokens
        num_long += group.num_long
    vectors: csr_array = vstack(parts, format="csr")
    return Embedded(vectors, num_tokens, num_long)
