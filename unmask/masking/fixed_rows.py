"""Padded features as masked rows, and rows for evaluation that the data set masks, so that their masks never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from unmask.core.errors import DataError, SettingsError
from unmask.data.rows import Rows
from unmask.masking.features import FeatureColumns, Width, read_features, rows_of
from unmask.masking.masker import MaskedRows, Masker

PASSED_ON = ("token_type_ids", "position_ids")  # columns that a batch passes on as they are


def mask_columns(
    masker: Masker, columns: FeatureColumns, *, epoch: int = 0, progress: float = 0.0, step: int = 0
) -> tuple[Rows, MaskedRows]:
    """The rows before and after masking. A missing annotation is named with what the caller can do."""
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


class FixedLabels(list[int]):
    """Labels that `FixedRows` made.

    The type sets them apart from labels of any other meaning, also where features are copied column by column, as
    `Trainer` does.
    """


class FixedRows(Dataset[dict[str, Any]]):
    """A data set over another one, with masks of epoch 0. A row is masked when it is read, not by the collator.

    Args:
        dataset: Rows by number.
        masker: Does the masking.

    Raises:
        SettingsError: The data set is a stream, which has no rows by number.
    """

    def __init__(self, dataset: Any, masker: Masker) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise SettingsError(
                f"{type(dataset).__name__} has no rows by number, so their masks cannot be fixed; take as many rows of "
                "the stream as the evaluation wants into a list first"
            )
        self.dataset = dataset
        self.masker = masker

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Some rows at once, as torch's data loader reads them."""
        features = [self.dataset[int(index)] for index in indices]
        columns = read_features(features, padding={"input_ids": self.masker.tokenizer.special.pad}, width=Width())
        _, masked = mask_columns(self.masker, columns)
        names = [name for name in ("attention_mask", *PASSED_ON) if name in columns.known]
        return [
            {
                **{name: columns.known[name][row, :length] for name in names},
                "input_ids": masked.input_ids[row, :length].numpy(),
                "labels": FixedLabels(masked.labels[row, :length].tolist()),
            }
            for row, length in enumerate(columns.lengths)
        ]
