"""Rows from plain token ids, for callers who do not pack: each row is one segment, keyed by its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import SettingsError
from unmask.masking.row_loops import positions_and_keys, up_to_last
from unmask.rows.rows import Rows
from unmask.tokenizer.tokenizer import Tokenizer


def rows_from_ids(rows: Tensor | Sequence[Sequence[int]], tokenizer: Tokenizer) -> Rows:
    """Makes a batch of token ids.

    Args:
        rows: Ids with their special tokens: a list of lists, or a [B, S] integer tensor, padded on the right.
        tokenizer: Whose ids they are.

    Raises:
        SettingsError: The ids are not integers in the vocabulary, or not two-dimensional.
    """
    input_ids = _padded(rows, tokenizer.special.pad)
    check_ids(input_ids, tokenizer)
    device = rows.device if isinstance(rows, Tensor) else torch.device("cpu")
    return content_rows(input_ids, before_padding(input_ids, tokenizer), tokenizer).to(device)


def content_rows(input_ids: NDArray[np.int64], inside: NDArray[np.bool_], tokenizer: Tokenizer) -> Rows:
    """Makes a batch in which each row is one segment, keyed by its ids and their places, however it is padded.

    Args:
        input_ids: [B, S]: ids in the vocabulary, with their special tokens.
        inside: [B, S]: what belongs to the row; the rest is padding, on either side.
        tokenizer: Whose ids they are.
    """
    positions, keys = positions_and_keys(input_ids, inside)
    maskable = tokenizer.ordinary[input_ids] & inside
    starts = tokenizer.starts(input_ids) & maskable
    return Rows(
        input_ids=torch.from_numpy(input_ids),
        segment_ids=torch.from_numpy(np.where(inside, 0, -1).astype(np.int32)),
        position_ids=torch.from_numpy(positions),
        word_starts=torch.from_numpy(starts),
        maskable=torch.from_numpy(maskable),
        segment_keys=torch.from_numpy(keys),
    )


def check_ids(input_ids: NDArray[np.int64], tokenizer: Tokenizer) -> None:
    """Raises: SettingsError: An id lies outside the vocabulary."""
    if input_ids.size and (input_ids.min() < 0 or input_ids.max() >= tokenizer.vocab_size):
        bad = input_ids[(input_ids < 0) | (input_ids >= tokenizer.vocab_size)][0]
        raise SettingsError(f"id {bad} lies outside the tokenizer's vocabulary (0 to {tokenizer.vocab_size - 1})")


def before_padding(input_ids: NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """[B, S]: true up to the last token of each row that is no padding; a pad id amid the row belongs to it."""
    return up_to_last(tokenizer.special.pad, input_ids)


def _padded(rows: Tensor | Sequence[Sequence[int]], pad_id: int) -> NDArray[np.int64]:
    if isinstance(rows, Tensor):
        if rows.ndim != 2 or rows.is_floating_point():
            raise SettingsError(f"rows are a [B, S] tensor of integers, not {rows.dtype} of shape {tuple(rows.shape)}")
        return rows.cpu().numpy().astype(np.int64)
    parts = [_row(number, row) for number, row in enumerate(rows)]
    padded = np.full((len(parts), max(map(len, parts), default=0)), pad_id, dtype=np.int64)
    for number, values in enumerate(parts):
        padded[number, : len(values)] = values
    return padded


def _row(number: int, row: Sequence[int]) -> NDArray[Any]:
    """Raises: SettingsError: The row is not a list of token ids."""
    try:
        values = np.asarray(row)
    except ValueError as error:  # lists of several lengths
        raise SettingsError(f"row {number} is not a list of token ids") from error
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise SettingsError(f"row {number} is not a list of token ids; give a list of rows, such as [[2, 50, 3]]")
    return values
