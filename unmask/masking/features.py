"""Rows from plain token ids and from the features of data sets: each row is one segment, keyed by its content.

Shapes: B = rows, S = tokens of the longest row, rounded up to a multiple if one is set.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import DataError, SettingsError
from unmask.data.rows import Rows
from unmask.masking.draw_loops import positions_and_keys
from unmask.model.fused import IGNORED
from unmask.tokenizer.loading import as_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

# Columns with a known meaning. Other columns with one integer per token are annotations.
_KNOWN = (
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "word_starts", "labels",
)  # fmt: skip


def rows_from_ids(rows: Tensor | Sequence[Sequence[int]], tokenizer: Tokenizer) -> Rows:
    """Makes a batch from token ids with special tokens: a list of lists, or a [B, S] integer tensor, padded on the
    right. Raises a SettingsError if they are not integers in the vocabulary, or not two-dimensional."""
    if isinstance(rows, Tensor):
        if rows.ndim != 2 or rows.is_floating_point():
            raise SettingsError(f"rows must be a [B, S] tensor of integers, not {rows.dtype} of {tuple(rows.shape)}")
        return _content_rows(rows.cpu().numpy().astype(np.int64), None, tokenizer).to(rows.device)
    try:
        return rows_from_features(list(rows), tokenizer)[0]
    except DataError as error:
        raise SettingsError(f"{error}; rows must be lists of token ids, such as [[2, 50, 3]]") from error


def _content_rows(input_ids: NDArray[np.int64], inside: NDArray[np.bool_] | None, tokenizer: Tokenizer) -> Rows:
    # Keys depend on the ids and their places, not on padding. `inside` marks the tokens of a row; None: all up to the
    # last token that is not padding (a pad id within the row belongs to it).
    check_ids(input_ids, tokenizer)
    if inside is None:
        is_token = input_ids != tokenizer.special.pad
        inside = np.ascontiguousarray(np.logical_or.accumulate(is_token[:, ::-1], axis=1)[:, ::-1])
    positions, keys = positions_and_keys(input_ids, inside)
    maskable = tokenizer.ordinary[input_ids] & inside
    return Rows(
        input_ids=torch.from_numpy(input_ids),
        segment_ids=torch.from_numpy(np.where(inside, 0, -1).astype(np.int32)),
        position_ids=torch.from_numpy(positions),
        word_starts=torch.from_numpy(tokenizer.word_starts.of_ids(input_ids) & maskable),
        maskable=torch.from_numpy(maskable),
        segment_keys=torch.from_numpy(keys),
    )


def check_ids(input_ids: NDArray[np.int64], tokenizer: Tokenizer) -> None:
    if input_ids.size and (input_ids.min() < 0 or input_ids.max() >= tokenizer.vocab_size):
        bad = input_ids[(input_ids < 0) | (input_ids >= tokenizer.vocab_size)][0]
        raise SettingsError(f"id {bad} is outside the tokenizer's vocabulary (0 to {tokenizer.vocab_size - 1})")


def count_tokens(dataset: Any, tokenizer: Any) -> NDArray[np.int64]:
    """Counts each id in a tokenized data set, for strategies and replacements by frequency.

    Args:
        dataset: Features with `input_ids`, or lists of token ids.
        tokenizer: Any form that `Masker.from_tokenizer` takes.

    Returns:
        [vocab_size], int64. Special tokens are counted as well; masking ignores them.

    Raises:
        DataError: A feature has no `input_ids`, or they are not integers.
        SettingsError: Ids are outside the vocabulary.
    """
    known = as_tokenizer(tokenizer)
    counts = np.zeros(known.vocab_size, dtype=np.int64)
    features, done = iter(dataset), 0
    while part := list(islice(features, 1000)):
        ids, _ = _joined("input_ids", _as_mappings(part), done)
        check_ids(ids, known)
        counts += np.bincount(ids, minlength=known.vocab_size)
        done += len(part)
    return counts


def rows_from_features(
    features: Sequence[Any],
    tokenizer: Tokenizer,
    *,
    pad_to_multiple_of: int | None = None,
    pad_to_length: int | None = None,
) -> tuple[Rows, dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """Makes rows from features, each keyed by its content: mappings of columns, or lists of token ids.

    `attention_mask` marks padding; without it, padding is the pad tokens at the end. Words come from the tokenizer's
    vocabulary, unless there is a column `word_starts`. Tokens in `special_tokens_mask` are not masked either. Other
    columns with one integer per token are annotations. Rows are as long as the longest feature, unless a multiple or a
    length is set.

    Returns:
        The rows; the columns with a known meaning, padded, by name, [B, S], int64; and the number of tokens of each
        feature, [B].
    """
    mappings = _as_mappings(features)
    first = mappings[0] if mappings else {"input_ids": []}
    if "input_ids" not in first:
        raise DataError(f"the features have no input_ids; they have {', '.join(first)}")
    flat, lengths = _joined("input_ids", mappings)
    longest = int(lengths.max(initial=0))
    if pad_to_length is not None and longest > pad_to_length:
        raise DataError(
            f"feature {int(lengths.argmax())} has {longest} tokens, but pad_to_length is {pad_to_length}; "
            f"tokenize with truncation=True, max_length={pad_to_length}"
        )
    multiple = pad_to_multiple_of or 1
    inside = np.arange(pad_to_length or -(-longest // multiple) * multiple) < lengths[:, None]
    padding = {"input_ids": tokenizer.special.pad, "labels": IGNORED}

    def padded(name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(values) == inside.size:
            return values.reshape(inside.shape)
        column = np.full(inside.shape, padding.get(name, 0), dtype=np.int64)
        column[inside] = values
        return column

    known = {"input_ids": padded("input_ids", flat)}
    for name in _KNOWN[1:]:
        if any(name in feature for feature in mappings):
            values, sizes = _joined(name, mappings)
            if (sizes != lengths).any():
                number = int(np.flatnonzero(sizes != lengths)[0])
                what = f"{lengths[number]} input_ids but {sizes[number]} {name}"
                raise DataError(f"feature {number} has {what}; give one per token")
            wrong = np.flatnonzero((values != 0) & (values != 1)) if name == "attention_mask" else values[:0]
            if len(wrong):
                number = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
                raise DataError(
                    f"attention_mask of feature {number} holds {values[wrong[0]]}; it must be 1 at tokens and "
                    "0 at padding. Packed texts are not supported: give each text as a separate feature"
                )
            known[name] = padded(name, values)

    annotations = {}
    for name in first:
        cells = [] if name in _KNOWN else [feature.get(name) for feature in mappings]
        if not cells or any(isinstance(cell, str | bytes | Mapping) or not hasattr(cell, "__len__") for cell in cells):
            continue
        try:
            values, sizes = _joined(name, mappings)
        except DataError:  # ragged or of another type: not an annotation
            continue
        if (sizes == lengths).all():
            annotations[name] = torch.from_numpy(padded(name, values))

    attended = known.get("attention_mask")
    rows = _content_rows(known["input_ids"], None if attended is None else attended != 0, tokenizer)
    if "special_tokens_mask" in known:
        rows = replace(rows, maskable=rows.maskable & torch.from_numpy(known["special_tokens_mask"] == 0))
    if "word_starts" in known:
        rows = replace(rows, word_starts=torch.from_numpy(known["word_starts"] != 0) & rows.maskable)
    return replace(rows, annotations=annotations), known, lengths


def _as_mappings(features: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [feature if isinstance(feature, Mapping) else {"input_ids": feature} for feature in features]


def _joined(
    name: str, features: Sequence[Mapping[str, Any]], done: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The concatenated values of a column, and the number of values of each feature; `done` features came before."""
    for number, feature in enumerate(features, done):
        if name not in feature:
            raise DataError(f"feature {number} has no {name}, which others have")
    columns = [feature[name] for feature in features]
    lists = all(type(values) is list for values in columns)
    # `array` converts lists in half the time of numpy, which inspects all values before it copies. If all values are
    # equal, as in many an `attention_mask`, `list.count` finds that in a twentieth of the time.
    if lists:
        lengths = np.fromiter(map(len, columns), dtype=np.int64, count=len(columns))
        first = next((values[0] for values in columns if values), None)
        is_small = isinstance(first, int) and -(2**63) <= first < 2**63
        if is_small and all(values.count(first) == len(values) for values in columns):
            return np.full(lengths.sum(), first, dtype=np.int64), lengths
    buffer, parts = array("q"), []
    for number, values in enumerate(columns, done):
        try:
            if lists:
                buffer.fromlist(values)
                continue
            part = np.asarray(values)
            if part.ndim != 1 or (part.size and part.dtype.kind not in "iub"):
                raise TypeError
            parts.append(part)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{name} of feature {number} is not a list of integers") from error
    if lists:
        return np.frombuffer(buffer, dtype=np.int64), lengths
    flat = np.concatenate(parts) if parts else np.empty(0)
    return flat.astype(np.int64, copy=False), np.array([len(part) for part in parts], dtype=np.int64)
