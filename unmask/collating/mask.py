"""Columns to masked rows: where missing columns are explained in terms of what the caller can do."""

from __future__ import annotations

from unmask.collating.features import Columns, rows_of
from unmask.errors import DataError
from unmask.masking.engine import MaskedRows, Masker
from unmask.packing.rows import Rows


def mask_columns(
    masker: Masker, columns: Columns, *, epoch: int, progress: float, step: int
) -> tuple[Rows, MaskedRows]:
    """Masks padded features.

    Args:
        masker: Does it.
        columns: The features.
        epoch: Masks of different epochs are independent.
        progress: Of the training, in [0, 1].
        step: Number of the step, where the progress does not tell it.

    Returns:
        The rows before and after.

    Raises:
        DataError: The strategy needs an annotation that the features do not have.
        SettingsError: Ids lie outside the vocabulary.
    """
    rows = rows_of(columns, masker.tokenizer)
    try:
        return rows, masker(rows, epoch=epoch, progress=progress, step=step)
    except DataError as error:
        seen = ", ".join([*columns.known, *columns.annotations, *columns.other])
        raise DataError(
            f"{error}. The collator sees the columns {seen}. transformers' Trainer drops those that the model does not "
            "take, unless TrainingArguments(remove_unused_columns=False); an annotation is a column of one integer a "
            "token"
        ) from error
