"""Columns to masked rows, and rows for evaluation that the data set masks, so that their masks never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from unmask.errors import DataError, SettingsError
from unmask.masking.features import PASSED_ON, FeatureColumns, Width, read_features, rows_of
from unmask.masking.masker import MaskedRows, Masker
from unmask.rows.rows import Rows


def mask_columns(
    masker: Masker, columns: FeatureColumns, *, epoch: int, progress: float, step: int
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
        DataError: The strategy needs an annotation that the features do not have; the text says what the caller can do.
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


_PASSED_ON = ("attention_mask", *PASSED_ON)


class FixedLabels(list[int]):
    """Labels that `FixedRows` made.

    The type tells them from labels of any other meaning, also where features are copied column by column, as `Trainer`
    does.
    """


class FixedRows(Dataset[dict[str, Any]]):
    """A data set over another one, with masks of epoch 0. A row is masked when it is asked for, not by the collator.

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
        """Some rows at once, as torch's data loader asks for them."""
        features = [self.dataset[int(index)] for index in indices]
        columns = read_features(features, padding={"input_ids": self.masker.tokenizer.special.pad}, width=Width())
        _, masked = mask_columns(self.masker, columns, epoch=0, progress=0.0, step=0)
        made = []
        for row, length in enumerate(columns.lengths):
            feature = {name: columns.known[name][row, :length] for name in _PASSED_ON if name in columns.known}
            feature["input_ids"] = masked.input_ids[row, :length].numpy()
            made.append({**feature, "labels": FixedLabels(masked.labels[row, :length].tolist())})
        return made


def check_fixed(features: Sequence[Any]) -> None:
    """Makes sure that labels are those of masks.

    Raises:
        DataError: They are not.
    """
    for number, feature in enumerate(features):
        labels = feature.get("labels") if isinstance(feature, Mapping) else None
        if not isinstance(labels, FixedLabels):
            raise DataError(
                f"feature {number} has labels of its own, but the labels are what the collator hides: take the column "
                "out (dataset.remove_columns('labels')); rows with fixed masks are made by collator.fixed(dataset)"
            )
