"""A data collator for transformers' `Trainer` and for any torch data loader, and exact evaluation losses for `Trainer`.

    Trainer(
        ..., eval_dataset=collator.fixed(held_out),
        compute_metrics=unmask.evaluation_loss, preprocess_logits_for_metrics=unmask.token_losses,
    )

Shape suffixes: B = rows of a batch, N = rows of the data set, S = positions, V = vocabulary.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from unmask.core.errors import DataError, SettingsError
from unmask.core.settings import validated
from unmask.data.rows import Rows
from unmask.masking.features import rows_from_features
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import MaskingSettings, MixtureUnits, RateSchedule, Strategy, followed_scores
from unmask.masking.tables import Tables
from unmask.masking.units import Units
from unmask.masking.weights import Weights
from unmask.model.fused import IGNORED

if TYPE_CHECKING:
    from transformers import EvalPrediction, TrainerCallback

log = logging.getLogger("unmask")
_PASSED_ON = ("token_type_ids", "position_ids")  # columns that a batch keeps unchanged


class Clock:
    """The epoch and the progress, in memory shared by a data loader's workers.

    It is set once an epoch, while no worker is running. Within the epoch, each process counts the batches that it
    makes. A loader deals batches out to its workers in turn, so each worker knows the number of its batch, however far
    it works ahead. Forked workers inherit a tensor's memory; torch passes it to spawned ones.
    """

    def __init__(self) -> None:
        self._state = torch.zeros(4, dtype=torch.float64).share_memory_()  # times set, epoch, progress, that of a batch
        self._first_key = torch.zeros(2, dtype=torch.int64).share_memory_()  # the very first row's; whether it repeated
        self.counted = (0.0, 0)  # how often the clock was set, and the batches that this process has made since

    def set(self, epoch: int, progress: float, progress_a_batch: float) -> None:
        times = float(self._state[0]) + 1.0
        self._state.copy_(torch.tensor([times, epoch, progress, progress_a_batch], dtype=torch.float64))
        self.counted = (times, 0)

    def next_batch(self, keys_B: Tensor) -> tuple[int, float, int]:
        """Counts a batch. Returns its epoch; its progress in [0, 1]; and its number in the epoch, or 0 if the progress
        changes with each batch: a training resumed within an epoch knows the progress but not the number.

        Warns once if the very first row repeats, by the keys of rows, although no epoch was ever set.
        """
        times, epoch, begin, progress_a_batch = self._state.tolist()
        batches = self.counted[1] if self.counted[0] == times else 0
        number, worker = batches, get_worker_info()
        if worker is not None:  # of which `datasets` uses no more than its stream has shards
            readers = min(worker.num_workers, getattr(worker.dataset, "num_shards", worker.num_workers))
            number = batches * readers + worker.id
        self.counted = (times, batches + 1)
        if not times and not self._first_key[1] and len(keys_B):
            if not self._first_key[0]:
                self._first_key[0] = keys_B[0]
            elif (keys_B == self._first_key[0]).any():
                self._first_key[1] = 1
                log.warning(
                    "a row was repeated but no epoch was set, so its mask is the same: give the Trainer "
                    "callbacks=[collator.callback], or call collator.set_epoch in your own loop"
                )
        return int(epoch), min(1.0, begin + number * progress_a_batch), 0 if progress_a_batch else number

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for tensor in (self._state, self._first_key):
            if not tensor.is_shared():
                tensor.share_memory_()


def _refuse_labels(features: Sequence[Any], *, but: type | None = None) -> None:
    """Raises a DataError if features have labels, except for those of a type: their tokens may be masked already."""
    for number, feature in enumerate(features):
        labels = feature.get("labels") if isinstance(feature, Mapping) else None
        if labels is not None and (but is None or not isinstance(labels, but)):
            raise DataError(
                f"feature {number} has labels already, but the collator makes them: drop the column "
                "(dataset.remove_columns('labels')), also before collator.fixed(dataset), which gives fixed masks"
            )


def _masked(
    masker: Masker, rows: Rows, features: Sequence[Any], *, epoch: int = 0, progress: float = 0.0, step: int = 0
) -> MaskedRows:
    """Masks the rows of features. The error for a missing annotation says how to keep the column."""
    try:
        return masker(rows, epoch=epoch, progress=progress, step=step)
    except DataError as error:
        first = next(iter(features), None)
        columns = ", ".join(first) if isinstance(first, Mapping) else "input_ids"
        raise DataError(
            f"{error}. The collator sees the columns {columns}. transformers' Trainer drops columns that the "
            "model does not take, unless TrainingArguments(remove_unused_columns=False); an annotation is a "
            "column with one integer per token"
        ) from error


class MaskingCollator:
    """Pads features and masks them with any strategy.

        collator = unmask.MaskingCollator(tokenizer, strategy="span", rate=0.15, seed=0)
        trainer = Trainer(
            model, args, train_dataset=train, eval_dataset=collator.fixed(held_out),
            data_collator=collator, callbacks=[collator.callback],
        )

    Masks depend only on (seed, epoch, content of the row), not on batch size, order or number of workers. (A mixture
    with `per="step"` also depends on the batch: on its progress, or on its number in the epoch if no progress is set.)
    Word boundaries are found from the vocabulary, so no offsets are needed and every kind of tokenizer works.

    **The epoch.** A collator does not know the epoch: `callbacks=[collator.callback]` sets it, in worker processes as
    well. Without the callback all epochs have the same masks, and the log warns when a row repeats. In your own loop,
    call `set_epoch`.

    **Evaluation.** `Trainer` uses the same collator for training and evaluation. With
    `eval_dataset=collator.fixed(held_out)` rows are masked beforehand, always in the same way, and only padded here.
    Other evaluation data gets the masks of the current epoch, so its loss changes with them; the log says so.
    `Trainer`'s own `eval_loss` averages the means of batches, so it depends on the batch size. With
    `compute_metrics=unmask.evaluation_loss, preprocess_logits_for_metrics=unmask.token_losses` it is the loss per
    predicted token.

    **Columns.** `input_ids` is required. `attention_mask`, `token_type_ids`, `position_ids`, `special_tokens_mask` and
    `word_starts` are used if present. Any other column with one integer per token is an annotation; `Trainer` keeps it
    with `TrainingArguments(remove_unused_columns=False)`. All other columns are left out of the batch.

    Attributes:
        masker: The `Masker` in use.
        tokenizer: The transformers tokenizer, which `Trainer` saves with the model; None for other tokenizers.
    """

    def __init__(  # noqa: PLR0913  (the parts of a masking, each by its name)
        self,
        tokenizer: Any,
        *,
        strategy: Strategy | str | None = None,
        units: Units | Mapping[str, Any] | None = None,
        weights: Weights | Mapping[str, Any] | None = None,
        rate: float | RateSchedule | Mapping[str, Any] = 0.15,
        replacement: tuple[float, float, float] = (0.8, 0.1, 0.1),
        random_from: Literal["uniform", "unigram"] = "uniform",
        seed: int = 0,
        frequencies: Sequence[int] | NDArray[np.int64] | None = None,
        tables: Tables | str | Path | None = None,
        pad_to_multiple_of: int | None = None,
        pad_to_length: int | None = None,
    ) -> None:
        """Makes a collator. The other arguments, and the errors, are those of `Masker.from_tokenizer`.

        Args:
            pad_to_multiple_of: The length of a batch is a multiple of this.
            pad_to_length: Every batch has this length, as compiled models and TPUs need; longer rows are an error.
        """
        masker = Masker.from_tokenizer(
            tokenizer,
            strategy=strategy,
            units=units,
            weights=weights,
            rate=rate,
            replacement=replacement,
            random_from=random_from,
            seed=seed,
            frequencies=frequencies,
            tables=tables,
        )
        saved = tokenizer if hasattr(tokenizer, "save_pretrained") else None
        self._begin(masker, pad_to_multiple_of, pad_to_length, saved)

    @classmethod
    def from_masker(
        cls, masker: Masker, *, pad_to_multiple_of: int | None = None, pad_to_length: int | None = None
    ) -> MaskingCollator:
        """Makes a collator from a masker, for settings that only `MaskingSettings` has, such as `static`."""
        collator = cls.__new__(cls)
        collator._begin(masker, pad_to_multiple_of, pad_to_length, None)
        return collator

    def _begin(self, masker: Masker, multiple: int | None, length: int | None, tokenizer: Any) -> None:
        self.masker = masker
        self.tokenizer = tokenizer
        self._width = {"pad_to_multiple_of": multiple, "pad_to_length": length}
        self._clock = Clock()
        for name, number in self._width.items():
            if number is not None and number < 1:
                raise SettingsError(f"{name} must be at least 1, not {number}")
        if multiple is not None and length is not None:
            raise SettingsError("pad_to_length fixes the length of every batch; remove pad_to_multiple_of")
        if getattr(masker.settings.rate, "loss_weight", "none") == "inverse":
            raise SettingsError("transformers' models cannot weight the loss; leave masking.rate.loss_weight at 'none'")
        for name in sorted(followed_scores(masker.settings)):
            masker.tables.score(name, "the strategy")
        with contextlib.suppress(DataError):  # annotations come with the features
            masker([[masker.tokenizer.special.mask]])  # reports missing tables now rather than in a worker

    @property
    def callback(self) -> TrainerCallback:
        """A callback for `Trainer` that sets this collator's epoch and progress."""
        try:
            from transformers import TrainerCallback
        except ImportError as error:
            raise SettingsError("collator.callback needs transformers: pip install 'unmask[transformers]'") from error
        collator, clock = self, self._clock

        class EpochCallback(TrainerCallback):
            """Sets each epoch before its first batch is made, and warns if evaluation masks are not fixed.

            Epochs are counted here, since `state.epoch` is a share of an epoch whose length `Trainer` may not know.
            Evaluation batches made in the same process are counted, too. So the count is saved when a step begins and
            ends, with only training batches so far, and restored after an evaluation.
            """

            def __init__(self) -> None:
                self.counted: tuple[float, int] | None = None
                self.epoch: int | None = None
                self.has_warned = False

            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                self.epoch = self.counted = None

            def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                done, loader = state.global_step, kwargs.get("train_dataloader")
                if self.epoch is None:
                    self.epoch = int((state.epoch or 0.0) + 1e-6)
                    # A resumed training makes the past batches of a stream again and skips them, so the collator counts
                    # them again. With indexed rows, only indices are skipped.
                    if not args.ignore_data_skip and isinstance(getattr(loader, "dataset", None), IterableDataset):
                        try:
                            steps = -(-len(loader) // args.gradient_accumulation_steps)  # type: ignore[arg-type]
                        except TypeError:  # a stream without a length is one epoch of all steps
                            steps = state.max_steps
                        done -= int(state.global_step % max(1, steps))
                else:
                    self.epoch += 1
                batches = max(1, state.max_steps) * args.gradient_accumulation_steps
                if type(loader).__name__ == "DataLoaderDispatcher" and not loader.split_batches:  # type: ignore[union-attr]
                    batches *= args.world_size  # the first process makes the batches of a stream for all
                progress = min(1.0, done / max(1, state.max_steps))
                collator.set_epoch(self.epoch, progress=progress, progress_a_batch=1.0 / batches)
                self.counted = clock.counted

            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                self.counted = clock.counted  # batches may be made before their step

            on_substep_end = on_step_end = on_step_begin

            def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                clock.counted = self.counted or clock.counted

            on_predict = on_evaluate  # type: ignore[assignment]  # with one more argument

            def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                dataset = getattr(kwargs.get("eval_dataloader"), "dataset", None)
                is_fixed = collator.masker.settings.static or isinstance(dataset, FixedRows)
                if dataset is not None and not is_fixed and not self.has_warned:
                    self.has_warned = True
                    log.warning(
                        "the masks of this evaluation, and so its loss, change from epoch to epoch: give the "
                        "Trainer eval_dataset=collator.fixed(eval_dataset)"
                    )

        return EpochCallback()

    def set_epoch(self, epoch: int, *, progress: float = 0.0, progress_a_batch: float = 0.0) -> None:
        """Begins an epoch; call it before the first batch. In `Trainer` the callback does.

        From then on, each masked batch advances the progress. In your own loop, evaluate on rows from `fixed`, which
        are masked already and do not.

        Args:
            epoch: Masks of different epochs are independent.
            progress: Share of the training done when the epoch begins, in [0, 1], for the rate's schedule.
            progress_a_batch: Share of the training in one batch.
        """
        if epoch < 0 or not 0.0 <= progress <= 1.0 or progress_a_batch < 0.0:
            raise SettingsError(
                f"epoch must be >= 0 and progress in [0, 1], not {epoch} and {progress} ({progress_a_batch} a batch)"
            )
        self._clock.set(epoch, progress, progress_a_batch)

    def fixed(self, dataset: Any, *, rate: float = 0.15) -> Any:
        """A data set with masked rows for evaluation, masked the same way every time.

        Args:
            dataset: Anything with a length and rows by index (`datasets.Dataset`, a torch data set, a list), or a
                dict of them. Rows are masked when they are read.
            rate: Share of the tokens to predict. The default is not the collator's rate, because losses are only
                comparable at equal rates.

        Returns:
            A torch data set with `input_ids`, `labels` and the model's other inputs; for a dict, a dict of them.

        Raises:
            SettingsError: The rate is not a share, or the data set is a stream.
        """
        if isinstance(dataset, Mapping):
            return {name: self.fixed(part, rate=rate) for name, part in dataset.items()}
        settings = self.masker.settings
        valid = validated(MaskingSettings, {"rate": rate, "least_one": settings.least_one}, where="fixed")
        changes: dict[str, Any] = {"rate": valid.rate, "prediction_rate": None}
        if isinstance(settings.units, MixtureUnits):  # there are no steps, and each part must be evaluated
            changes["units"] = settings.units.model_copy(update={"per": "row"})
        settings = settings.model_copy(update=changes)
        masker = Masker(settings, self.masker.tokenizer, seed=self.masker.seed, tables=self.masker.tables)
        return FixedRows(dataset, masker)

    def __call__(self, features: Sequence[Any]) -> dict[str, Tensor]:
        """Makes a batch from features; each is a mapping of columns, or a list of token ids.

        Returns:
            int64 tensors [B, S]: `input_ids`, `attention_mask`, `labels` (-100 where nothing is predicted), and
            `token_type_ids` and `position_ids` if the features have them (0 at padding).

        Raises:
            DataError: A column is missing or does not fit.
            SettingsError: Ids are outside the vocabulary.
        """
        _refuse_labels(features, but=FixedLabels)
        rows, known, _ = rows_from_features(features, self.masker.tokenizer, **self._width)
        if "labels" in known:
            seen, labels = rows.input_ids, torch.from_numpy(known["labels"])
        else:
            keys_B = rows.segment_keys[:, :1].flatten()  # not checked for static masks, which may repeat
            epoch, progress, step = self._clock.next_batch(keys_B[:0] if self.masker.settings.static else keys_B)
            masked = _masked(self.masker, rows, features, epoch=epoch, progress=progress, step=step)
            seen, labels = masked.input_ids, masked.labels
        attention_mask = (rows.segment_ids >= 0).to(torch.int64)
        passed_on = {name: torch.from_numpy(known[name]) for name in _PASSED_ON if name in known}
        return {"input_ids": seen, "attention_mask": attention_mask, "labels": labels, **passed_on}


class FixedLabels(list[int]):
    """Labels made by `FixedRows`. The type marks them, even if `Trainer` copies features column by column."""


class FixedRows(Dataset[dict[str, Any]]):
    """Wraps an indexed data set and masks its rows with the masks of epoch 0, which never change. A row is masked when
    it is read, not by the collator."""

    def __init__(self, dataset: Any, masker: Masker) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise SettingsError(
                f"{type(dataset).__name__} cannot be indexed by row, so its masks cannot be fixed; first copy "
                "as many rows of the stream as the evaluation needs into a list"
            )
        self.dataset = dataset
        self.masker = masker

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Reads several rows at once, as torch's data loader does."""
        features = [self.dataset[int(index)] for index in indices]
        _refuse_labels(features)
        rows, known, lengths = rows_from_features(features, self.masker.tokenizer)
        masked = _masked(self.masker, rows, features, progress=0.5)  # the mean share of each part of a mixture
        names = [name for name in ("attention_mask", *_PASSED_ON) if name in known]
        return [
            {
                **{name: known[name][row, :length] for name in names},
                "input_ids": masked.input_ids[row, :length].numpy(),
                "labels": FixedLabels(masked.labels[row, :length].tolist()),
            }
            for row, length in enumerate(lengths)
        ]


# ----------------------------------------
# The exact loss of an evaluation: the sum over all masks, divided by their number. `Trainer` itself averages the means
# of batches, so that a mask in a batch with few masks weighs more.


def token_losses(logits_BSV: Any, labels_BS: Tensor) -> Tensor:
    """The loss at each position, for `Trainer` to keep instead of a batch's logits.

    Args:
        logits_BSV: The model's logits, or a tuple that begins with them.
        labels_BS: The targets; -100 at tokens that are not predicted.

    Returns:
        float32 [B, S]: cross-entropies in nats, 0 without a target.

    Raises:
        DataError: Some positions have no logits.
    """
    logits = logits_BSV[0] if isinstance(logits_BSV, tuple | list) else logits_BSV
    if logits.shape[:-1] != labels_BS.shape:
        raise DataError(
            f"logits of shape {tuple(logits.shape)} do not match labels of shape {tuple(labels_BS.shape)}; a model "
            "with sparse_prediction has logits at masks only: set model.config.sparse_prediction = False"
        )
    losses = functional.cross_entropy(
        logits.float().flatten(0, -2), labels_BS.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses.view(labels_BS.shape)


def evaluation_loss(evaluated: EvalPrediction) -> dict[str, float]:
    """The loss per predicted token, for `Trainer`'s `compute_metrics`; `Trainer` then reports it as `eval_loss`.

    Args:
        evaluated: Predictions, float [N, S] from `token_losses` (or logits [N, S, V], which need much memory), and
            labels, int [N, S].

    Returns:
        `loss` in nats, which replaces `Trainer`'s own; `perplexity`; and `predicted_tokens`.

    Raises:
        DataError: There are no targets, or the predictions have another shape.
    """
    predictions, labels = evaluated.predictions, np.asarray(evaluated.label_ids)
    losses = np.asarray(predictions[0] if isinstance(predictions, tuple | list) else predictions)
    if losses.ndim == labels.ndim + 1:
        losses = token_losses(torch.from_numpy(losses), torch.from_numpy(labels)).numpy()
    if losses.shape != labels.shape:
        raise DataError(
            f"predictions of shape {losses.shape} are neither losses nor logits for labels of shape "
            f"{labels.shape}; give the Trainer preprocess_logits_for_metrics=unmask.token_losses"
        )
    predicted = labels != IGNORED
    count = int(predicted.sum())
    if not count:
        raise DataError("the evaluation's rows have nothing to predict: give masked rows, collator.fixed(rows)")
    loss = float(losses[predicted].sum(dtype=np.float64)) / count
    return {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0))), "predicted_tokens": count}
