"""Rows from plain token ids and from the features of data sets: each row is one segment, keyed by its content.

Shapes: B = rows, S = tokens of the longest of them, filled up to a multiple where one is asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import DataError, SettingsError
from unmask.data.rows import Rows
from unmask.masking.draw_loops import positions_and_keys, up_to_last
from unmask.tokenizer.loading import as_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

# Columns whose meaning is known. Others that hold one integer a token are annotations.
_KNOWN = (
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "word_starts", "labels",
)  # fmt: skip


def rows_from_ids(rows: Tensor | Sequence[Sequence[int]], tokenizer: Tokenizer) -> Rows:
    """Makes a batch of token ids.

    Args:
        rows: Ids with their special tokens: a list of lists, or a [B, S] integer tensor, padded on the right.
        tokenizer: Whose ids they are.

    Raises:
        SettingsError: The ids are not integers in the vocabulary, or not two-dimensional.
    """
    if isinstance(rows, Tensor):
        if rows.ndim != 2 or rows.is_floating_point():
            raise SettingsError(f"rows are a [B, S] tensor of integers, not {rows.dtype} of shape {tuple(rows.shape)}")
        return _content_rows(rows.cpu().numpy().astype(np.int64), None, tokenizer).to(rows.device)
    parts = []
    for number, row in enumerate(rows):
        try:
            values = np.asarray(row)
        except ValueError as error:  # lists of several lengths
            raise SettingsError(f"row {number} is not a list of token ids") from error
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise SettingsError(f"row {number} is not a list of token ids; give a list of rows, such as [[2, 50, 3]]")
        parts.append(values)
    input_ids = np.full((len(parts), max(map(len, parts), default=0)), tokenizer.special.pad, dtype=np.int64)
    for number, values in enumerate(parts):
        input_ids[number, : len(values)] = values
    return _content_rows(input_ids, None, tokenizer)


def _content_rows(input_ids: NDArray[np.int64], inside: NDArray[np.bool_] | None, tokenizer: Tokenizer) -> Rows:
    # Keys are of the ids and their places, however the row is padded: `inside` says what belongs to it, None that it
    # reaches up to the last token that is no padding (a pad id amid the row belongs to it).
    check_ids(input_ids, tokenizer)
    if inside is None:
        inside = up_to_last(tokenizer.special.pad, input_ids)
    positions, keys = positions_and_keys(input_ids, inside)
    maskable = tokenizer.ordinary[input_ids] & inside
    return Rows(
        input_ids=torch.from_numpy(input_ids),
        segment_ids=torch.from_numpy(np.where(inside, 0, -1).astype(np.int32)),
        position_ids=torch.from_numpy(positions),
        word_starts=torch.from_numpy(tokenizer.starts(input_ids) & maskable),
        maskable=torch.from_numpy(maskable),
        segment_keys=torch.from_numpy(keys),
    )


def check_ids(input_ids: NDArray[np.int64], tokenizer: Tokenizer) -> None:
    """Raises: SettingsError: An id lies outside the vocabulary."""
    if input_ids.size and (input_ids.min() < 0 or input_ids.max() >= tokenizer.vocab_size):
        bad = input_ids[(input_ids < 0) | (input_ids >= tokenizer.vocab_size)][0]
        raise SettingsError(f"id {bad} lies outside the tokenizer's vocabulary (0 to {tokenizer.vocab_size - 1})")


def count_tokens(dataset: Any, tokenizer: Any) -> NDArray[np.int64]:
    """Counts how often each id stands in a tokenised data set, for strategies and replacements by frequency.

    Args:
        dataset: Features with `input_ids`, or lists of token ids, one after the other.
        tokenizer: In any form that `Masker.from_tokenizer` takes.

    Returns:
        [vocab_size], int64. Special tokens are counted as they stand; masking leaves them out.

    Raises:
        DataError: A feature has no `input_ids`, or they are not integers.
        SettingsError: Ids lie outside the vocabulary.
        TokenizerError: The tokenizer cannot be used.
    """
    known = as_tokenizer(tokenizer)
    counts = np.zeros(known.vocab_size, dtype=np.int64)
    features = iter(dataset)
    while part := list(islice(features, 1000)):
        ids, _ = _joined("input_ids", _as_mappings(part))
        check_ids(ids, known)
        counts += np.bincount(ids, minlength=known.vocab_size)
    return counts


@dataclass(frozen=True)
class Width:
    """How long the rows of a batch are: as long as the longest, unless one of these is asked for.

    Attributes:
        multiple: A multiple of this.
        length: This, always.

    Raises:
        SettingsError: A number is none from 1 on, or both are given.
    """

    multiple: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("pad_to_multiple_of", self.multiple), ("pad_to_length", self.length)):
            if number is not None and number < 1:
                raise SettingsError(f"{name} is a number from 1 on, not {number}")
        if self.multiple is not None and self.length is not None:
            raise SettingsError("pad_to_length says the length of every batch; leave pad_to_multiple_of out")


@dataclass(frozen=True)
class FeatureColumns:
    """Features one below the other, padded on the right.

    Attributes:
        lengths: [B]: tokens of each feature, before padding.
        known: By name, [B, S], int64: the columns whose meaning is known.
        annotations: By name, [B, S], int64.
        other: Names of the columns that hold something else.
    """

    lengths: NDArray[np.int64]
    known: Mapping[str, NDArray[np.int64]]
    annotations: Mapping[str, NDArray[np.int64]]
    other: tuple[str, ...]


def read_features(features: Sequence[Any], *, padding: Mapping[str, int], width: Width) -> FeatureColumns:
    """Pads features.

    Args:
        features: Each a mapping of columns, or the list of its token ids.
        padding: What stands behind a feature's end, by column, where that is not 0.
        width: What S is.

    Raises:
        DataError: A column is missing in some features, is no list of integers, or is not as long as `input_ids`; an
            attention mask holds anything but 0 and 1; or a feature is longer than the width.
    """
    mappings = _as_mappings(features)
    first = mappings[0] if mappings else {"input_ids": []}
    if "input_ids" not in first:
        raise DataError(f"the features have no input_ids; they have {', '.join(first)}")
    flat, lengths = _joined("input_ids", mappings)
    longest = int(lengths.max(initial=0))
    if width.length is not None and longest > width.length:
        raise DataError(
            f"feature {int(lengths.argmax())} has {longest} tokens, and pad_to_length is {width.length}; tokenise "
            f"with truncation=True, max_length={width.length}"
        )
    multiple = width.multiple or 1
    inside = np.arange(width.length or -(-longest // multiple) * multiple) < lengths[:, None]

    def padded(name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(values) == inside.size:
            return values.reshape(inside.shape)
        column = np.full(inside.shape, padding.get(name, 0), dtype=np.int64)
        column[inside] = values
        return column

    known = {"input_ids": padded("input_ids", flat)}
    for name in _KNOWN[1:]:
        if any(name in feature for feature in mappings):
            values, own = _joined(name, mappings)
            if (own != lengths).any():
                number = int(np.flatnonzero(own != lengths)[0])
                raise DataError(
                    f"feature {number} has {lengths[number]} input_ids but {own[number]} {name}; it wants one a token"
                )
            wrong = np.flatnonzero((values != 0) & (values != 1)) if name == "attention_mask" else values[:0]
            if len(wrong):
                number = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
                raise DataError(
                    f"attention_mask of feature {number} holds {values[wrong[0]]}; it wants 1 at tokens and 0 at "
                    "padding. Numbers of packed texts cannot be passed on: give each text as a feature of its own"
                )
            known[name] = padded(name, values)
    annotations, other = {}, []
    for name in first:
        if name not in _KNOWN:
            column = _annotation(name, mappings, lengths)
            if column is None:
                other.append(name)
            else:
                annotations[name] = padded(name, column)
    return FeatureColumns(lengths, known, annotations, tuple(other))


def rows_of(columns: FeatureColumns, tokenizer: Tokenizer) -> Rows:
    """Makes rows of them, each keyed by its content.

    Padding is where `attention_mask` says so, or else the pad tokens at the end. Words come from the tokenizer's
    vocabulary, unless there is a column `word_starts`. What `special_tokens_mask` names is not masked either.

    Raises:
        SettingsError: Ids lie outside the vocabulary.
    """
    known = columns.known
    attended = known.get("attention_mask")
    rows = _content_rows(known["input_ids"], None if attended is None else attended != 0, tokenizer)
    if "special_tokens_mask" in known:
        rows = replace(rows, maskable=rows.maskable & torch.from_numpy(known["special_tokens_mask"] == 0))
    if "word_starts" in known:
        rows = replace(rows, word_starts=torch.from_numpy(known["word_starts"] != 0) & rows.maskable)
    return replace(rows, annotations={name: torch.from_numpy(c) for name, c in columns.annotations.items()})


def _as_mappings(features: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [feature if isinstance(feature, Mapping) else {"input_ids": feature} for feature in features]


def _joined(name: str, features: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values of a column one behind another, and how many each feature has.

    Raises:
        DataError: It is missing, or no list of integers.
    """
    for number, feature in enumerate(features):
        if name not in feature:
            raise DataError(f"feature {number} has no {name}, which others have")
    columns = [feature[name] for feature in features]
    if all(type(values) is list for values in columns):
        return _joined_lists(name, columns), np.fromiter(map(len, columns), dtype=np.int64, count=len(columns))
    parts = []
    for number, values in enumerate(columns):
        part = np.asarray(values)
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iub"):
            raise DataError(f"{name} of feature {number} is not a list of integers")
        parts.append(part)
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    flat = np.concatenate(parts) if parts else np.empty(0)
    return flat.astype(np.int64, copy=False), lengths


def _joined_lists(name: str, lists: Sequence[list[Any]]) -> NDArray[np.int64]:
    # In half the time that numpy takes, which looks at all before it copies. Where all values are the same, as those of
    # `attention_mask` often are, none of them is looked at: lists count equal objects in a twentieth of that time.
    some = next((values[0] for values in lists if values), None)
    if (
        isinstance(some, int)
        and -(2**63) <= some < 2**63
        and all(values.count(some) == len(values) for values in lists)
    ):
        return np.full(sum(map(len, lists)), some, dtype=np.int64)
    buffer = array("q")
    for number, values in enumerate(lists):
        try:
            buffer.fromlist(values)
        except (TypeError, OverflowError) as error:
            raise DataError(f"{name} of feature {number} is not a list of integers") from error
    return np.frombuffer(buffer, dtype=np.int64)


def _annotation(
    name: str, features: Sequence[Mapping[str, Any]], lengths: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """The values of a column that holds one integer a token in every feature; None where it does not."""
    for feature in features:
        value = feature.get(name)
        if value is None or isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
            return None
    try:
        flat, own = _joined(name, features)
    except (DataError, ValueError, TypeError):  # ragged or of another kind: no annotation
        return None
    return flat if (own == lengths).all() else None
