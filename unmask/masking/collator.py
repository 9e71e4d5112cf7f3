"""A data collator for transformers' `Trainer` and for any torch data loader: pads, masks, returns tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.core.errors import DataError, SettingsError
from unmask.core.results import Readable, Shown
from unmask.core.settings import validated
from unmask.masking.clock import Clock
from unmask.masking.features import Width, read_features, rows_of
from unmask.masking.fixed_rows import PASSED_ON, FixedLabels, FixedRows, mask_columns
from unmask.masking.masker import IGNORED, Masker
from unmask.masking.settings import MaskingSettings, MixtureUnits, RateSchedule, Strategy, followed_scores
from unmask.masking.tables import Tables
from unmask.masking.units import Units
from unmask.masking.weights import Weights

if TYPE_CHECKING:
    import numpy as np
    from transformers import TrainerCallback


class MaskingCollator(Readable):
    """Pads features and masks them by any strategy.

        collator = unmask.MaskingCollator(tokenizer, strategy="span", rate=0.15, seed=0)
        trainer = Trainer(
            model, args, train_dataset=train, eval_dataset=collator.fixed(held_out),
            data_collator=collator, callbacks=[collator.callback],
        )

    Masks are a function of (seed, epoch, content of the row): the same for any batch size, order and number of
    workers. (A mixture `per="step"` also asks for the batch: its progress, or its number in the epoch where no progress
    is told.) Words come from the tokenizer's vocabulary, so no offsets are needed and every family is right.

    **The epoch.** `Trainer` tells a collator nothing; `callbacks=[collator.callback]` sets it, also in workers in other
    processes. Without it every epoch has the same masks, which the log warns of when a row comes again. Loops of
    other kinds call `set_epoch`.

    **Evaluation.** `Trainer` uses one collator for training and for evaluation, and lets it see no difference. So the
    masks of evaluation are not made by the collator but by the data: `eval_dataset=collator.fixed(held_out)` are rows
    that are masked already, always in the same way, and that the collator only pads. A data set without it gets the
    masks of the current epoch, so its loss moves with them; the callback says so in the log, and keeps the progress of
    the training as it is. `Trainer`'s own `eval_loss` is a mean of means, which depends on the size of a batch;
    `compute_metrics=unmask.evaluation_loss, preprocess_logits_for_metrics=unmask.token_losses` makes it the loss per
    predicted token.

    **Columns.** Of the features, `input_ids` is needed; `attention_mask`, `token_type_ids`, `position_ids`,
    `special_tokens_mask` and `word_starts` are understood; a column that holds one integer a token is an annotation
    under its name. `Trainer` drops what the model does not take before a collator sees it:
    `TrainingArguments(remove_unused_columns=False)` keeps annotations. Anything else in the features is left out of the
    batch.

    Attributes:
        masker: Does the masking.
        tokenizer: The transformers tokenizer that was given, which `Trainer` saves beside the model; None where it was
            something else.
    """

    def __init__(  # noqa: PLR0913  (what a masking is made of, each by its name)
        self,
        tokenizer: Any,
        *,
        strategy: Strategy | None = None,
        units: Units | Mapping[str, Any] | None = None,
        weights: Weights | Mapping[str, Any] | None = None,
        rate: float | RateSchedule | Mapping[str, Any] = 0.15,
        replacement: tuple[float, float, float] = (0.8, 0.1, 0.1),
        seed: int = 0,
        frequencies: Sequence[int] | NDArray[np.int64] | None = None,
        tables: Tables | str | Path | None = None,
        pad_to_multiple_of: int | None = None,
        pad_to_length: int | None = None,
    ) -> None:
        """Makes a collator.

        Args:
            tokenizer: A transformers fast tokenizer, a `tokenizers.Tokenizer`, a folder, or a name on the hub.
            strategy: A name of `unmask.masking.settings.STRATEGIES`; None: `span`, or what units and weights say.
            units, weights: In place of the strategy's: objects, also of your own, or tables of settings; as
                `Masker.from_tokenizer` takes them.
            rate: Expected share of the text's tokens that is predicted, or a schedule of it over the training, such as
                `{"kind": "linear", "start": 0.3, "end": 0.15}`.
            replacement: Shares of mask, random and unchanged among them.
            seed: Masks of different seeds are independent.
            frequencies: [vocab_size]: how often each id stands in the text, where the strategy needs it;
                `unmask.count_tokens` counts them.
            tables: These and others, in place of `frequencies`; or a path: of a lexicon (`pmi`), of prepared data
                (`frequency`, `contextual` and all that needs counts), or of a run.
            pad_to_multiple_of: The length of a batch is a multiple of this.
            pad_to_length: Every batch has this length, as compiled models and TPUs want it; longer rows are an error.

        Raises:
            SettingsError: A value is unknown or out of range, or the strategy needs what a collator does not have.
            DataError: What `tables` names cannot be used.
            TokenizerError: The tokenizer cannot be used.
        """
        masker = Masker.from_tokenizer(
            tokenizer,
            strategy=strategy or ("span" if units is None and weights is None else None),
            units=units,
            weights=weights,
            rate=rate,
            replacement=replacement,
            seed=seed,
            frequencies=frequencies,
            tables=tables,
        )
        saved = tokenizer if hasattr(tokenizer, "save_pretrained") else None
        self._begin(masker, Width(pad_to_multiple_of, pad_to_length), saved)

    @classmethod
    def from_masker(
        cls, masker: Masker, *, pad_to_multiple_of: int | None = None, pad_to_length: int | None = None
    ) -> MaskingCollator:
        """A collator of a masker, for settings in their long form (units, weights, `random_from`, `static`).

        Args:
            masker: Does the masking.
            pad_to_multiple_of: The length of a batch is a multiple of this.
            pad_to_length: Every batch has this length; longer rows are an error.

        Raises:
            SettingsError: The strategy needs what a collator does not have.
        """
        collator = cls.__new__(cls)
        collator._begin(masker, Width(pad_to_multiple_of, pad_to_length), None)
        return collator

    def _begin(self, masker: Masker, width: Width, tokenizer: Any) -> None:
        self.masker = masker
        self.tokenizer = tokenizer
        self._width = width
        self._clock = Clock()
        if getattr(masker.settings.rate, "loss_weight", "none") == "inverse":
            raise SettingsError(
                "masking.rate.loss_weight = 'inverse' gives each target a weight, which the loss of transformers' "
                "models does not take; leave it at 'none', or train with unmask.pretrain"
            )
        for name in sorted(followed_scores(masker.settings)):
            masker.tables.score(name, "the strategy")
        with contextlib.suppress(DataError):  # annotations come with the features
            masker([[masker.tokenizer.special.mask]])  # tables that are missing show now, not in a worker

    def to_dict(self) -> dict[str, Any]:
        """What the masker is."""
        return self.masker.to_dict()

    def shown(self) -> Iterator[Shown]:
        """What the masker says."""
        return self.masker.shown()

    @property
    def callback(self) -> TrainerCallback:
        """A callback for `Trainer` that sets this collator's epoch and progress."""
        from unmask.masking.trainer_callback import EpochCallback

        return EpochCallback(self.set_epoch, self._clock, static=self.masker.settings.static)

    def set_epoch(self, epoch: int, *, progress: float = 0.0, progress_a_batch: float = 0.0) -> None:
        """Begins an epoch, before its first batch is made; the callback does it in `Trainer`.

        Each batch that is masked from then on moves the progress. In a loop of your own, evaluate on rows of `fixed`:
        they are masked already and move nothing.

        Args:
            epoch: Masks of different epochs are independent.
            progress: Of the training at the epoch's begin, in [0, 1], for the rate's schedule.
            progress_a_batch: How much of it a batch is.

        Raises:
            SettingsError: A number is out of range.
        """
        if epoch < 0 or not 0.0 <= progress <= 1.0 or progress_a_batch < 0.0:
            raise SettingsError(
                f"an epoch is a number from 0 on and progress a share from 0 to 1, not {epoch} and {progress} with "
                f"{progress_a_batch} a batch"
            )
        self._clock.set(epoch, progress, progress_a_batch)

    def fixed(self, dataset: Any, *, rate: float = 0.15) -> Any:
        """A data set whose rows are masked, always in the same way, for evaluation.

        Args:
            dataset: Anything with a length and rows by number (`datasets.Dataset`, a torch data set, a list), or a
                dict of several by name. Rows are masked when they are read.
            rate: Share of the tokens that is predicted. Losses compare at equal rates only, so it is not the
                collator's own unless given.

        Returns:
            A torch data set with `input_ids`, `labels` and what a model takes beside them; a dict of them for a dict.

        Raises:
            SettingsError: The rate is no share, or the data set is a stream.
        """
        if isinstance(dataset, Mapping):
            return {name: self.fixed(part, rate=rate) for name, part in dataset.items()}
        settings = self.masker.settings
        valid = validated(MaskingSettings, {"rate": rate, "least_one": settings.least_one}, where="fixed")
        changes: dict[str, Any] = {"rate": valid.rate, "prediction_rate": None}
        if isinstance(settings.units, MixtureUnits):  # there are no steps, and each part is to be evaluated
            changes["units"] = settings.units.model_copy(update={"per": "row"})
        settings = settings.model_copy(update=changes)
        masker = Masker(settings, self.masker.tokenizer, seed=self.masker.seed, tables=self.masker.tables)
        return FixedRows(dataset, masker)

    def __call__(self, features: Sequence[Any]) -> dict[str, Tensor]:
        """Makes a batch.

        Args:
            features: Each a mapping of columns, or the list of its token ids.

        Returns:
            int64 tensors [B, S]: `input_ids`, `attention_mask`, `labels` (-100 where nothing is predicted), and
            `token_type_ids` and `position_ids` where the features have them (0 at padding).

        Raises:
            DataError: A column is missing or does not fit.
            SettingsError: Ids lie outside the vocabulary.
        """
        padding = {"input_ids": self.masker.tokenizer.special.pad, "labels": IGNORED}
        columns = read_features(features, padding=padding, width=self._width)
        if "labels" in columns.known:
            for number, feature in enumerate(features):
                if not isinstance(feature["labels"], FixedLabels):
                    raise DataError(
                        f"feature {number} has labels of its own, but the labels are what the collator hides: take the "
                        "column out (dataset.remove_columns('labels')); rows with fixed masks are made by "
                        "collator.fixed(dataset)"
                    )
            rows = rows_of(columns, self.masker.tokenizer)
            seen, labels = rows.input_ids, torch.from_numpy(columns.known["labels"])
        else:
            epoch, progress, step = self._clock.next_batch()
            rows, masked = mask_columns(self.masker, columns, epoch=epoch, progress=progress, step=step)
            if not self.masker.settings.static:
                self._clock.watch(rows.segment_keys[:, :1].flatten())
            seen, labels = masked.input_ids, masked.labels
        attention_mask = (rows.segment_ids >= 0).to(torch.int64)
        passed_on = {name: torch.from_numpy(columns.known[name]) for name in PASSED_ON if name in columns.known}
        return {"input_ids": seen, "attention_mask": attention_mask, "labels": labels, **passed_on}
