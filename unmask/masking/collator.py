"""A data collator for transformers' `Trainer` and for any torch data loader: pads, masks, returns tensors."""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, get_worker_info

from unmask.core.errors import DataError, SettingsError
from unmask.core.hashing import GOLDEN, mix, mix_ints
from unmask.core.results import Readable, Shown
from unmask.core.settings import validated
from unmask.data.rows import Rows
from unmask.masking.draw import draw_units, flatten, partition, pick
from unmask.masking.masker import IGNORED, MaskedRows, Masker, before_padding, check_ids, content_rows
from unmask.masking.replacement import RandomTokens, Replacement, replace_tokens, uniform_counts
from unmask.masking.settings import MaskingSettings, MixtureUnits, RateSchedule, Strategy, followed_scores
from unmask.masking.tables import Tables
from unmask.masking.units import Units
from unmask.masking.weights import Weights
from unmask.tokenizer.loading import as_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import EvalPrediction, TrainerCallback

# ----------------------------------------
# What time it is in the training, for collators that work in other processes than the training does.

log = logging.getLogger("unmask")


class Clock:
    """The epoch and the progress, in memory that a data loader's workers share.

    It is set once an epoch, when no worker is at work. Within the epoch, batches are counted where they are made: a
    loader deals them out to its workers in turn, so each worker knows the number of its batch, and the progress is the
    same for any number of workers, however far they work ahead.

    The memory is a torch tensor: workers that are forked inherit it, and for workers that are spawned torch's own
    pickling hands over the memory instead of a copy.
    """

    def __init__(self) -> None:
        self._told = torch.zeros(4, dtype=torch.float64).share_memory_()  # times set, epoch, progress, that of a batch
        self._first_key = torch.zeros(2, dtype=torch.int64).share_memory_()  # of all rows; whether it was said
        self._times_set = 0.0
        self._batches = 0

    def set(self, epoch: int, progress: float, progress_a_batch: float) -> None:
        """Begins an epoch."""
        times = float(self._told[0]) + 1.0
        self._told.copy_(torch.tensor([times, epoch, progress, progress_a_batch], dtype=torch.float64))

    def next_batch(self) -> tuple[int, float, int]:
        """Counts a batch.

        Returns:
            Its epoch, its progress in [0, 1], and its number in the epoch where the progress does not move with each
            batch, else 0: a training that is resumed amid an epoch knows the progress and not the number.
        """
        times, epoch, begin, a_batch = self._told.tolist()
        if times != self._times_set:
            self._times_set, self._batches = times, 0
        worker = get_worker_info()
        number = self._batches if worker is None else self._batches * worker.num_workers + worker.id
        self._batches += 1
        return int(epoch), min(1.0, begin + number * a_batch), 0 if a_batch else number

    @property
    def batches(self) -> int:
        """How many batches of this epoch were counted in this process."""
        return self._batches if float(self._told[0]) == self._times_set else 0

    @batches.setter
    def batches(self, number: int) -> None:
        self._times_set, self._batches = float(self._told[0]), number

    def watch(self, keys: Tensor) -> None:
        """Says once in the log that the first row of all came again although nobody told an epoch.

        Args:
            keys: [B]: the content of rows.
        """
        if self._told[0] > 0 or self._first_key[1] or not len(keys):
            return
        if not self._first_key[0]:
            self._first_key[0] = keys[0]
        elif (keys == self._first_key[0]).any():
            self._first_key[1] = 1
            log.warning(
                "a row came a second time, but the collator was told of no epoch, so its mask is the same: give the "
                "Trainer callbacks=[collator.callback], or call collator.set_epoch in a loop of your own; for masks "
                "that never change, say static=true in the masking settings"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What plain pickling copied is shared again."""
        self.__dict__.update(state)
        for name in ("_told", "_first_key"):
            tensor: Tensor = state[name]
            if not tensor.is_shared():
                tensor.share_memory_()


# ----------------------------------------
# Features of data sets: how often each token stands in them, and features as padded columns and as rows.
#
# Shapes: B = features, S = tokens of the longest of them, filled up to a multiple where one is asked for.


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
        ids, _ = joined("input_ids", as_mappings(part))
        check_ids(ids, known)
        counts += np.bincount(ids, minlength=known.vocab_size)
    return counts


# Columns whose meaning is known. Others that hold one integer a token are annotations.
_KNOWN = (
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "word_starts", "labels",
)  # fmt: skip
# Those that a batch passes on as they are.
PASSED_ON = ("token_type_ids", "position_ids")


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


@dataclass(frozen=True)
class Width:
    """How long the rows of a batch are: as long as the longest, unless one of these is asked for.

    Attributes:
        multiple: A multiple of this.
        length: This, always.

    Raises:
        SettingsError: A number is none from 1 on, or both are asked for.
    """

    multiple: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("pad_to_multiple_of", self.multiple), ("pad_to_length", self.length)):
            if number is not None and number < 1:
                raise SettingsError(f"{name} is a number from 1 on, not {number}")
        if self.multiple is not None and self.length is not None:
            raise SettingsError("pad_to_length says the length of every batch; leave pad_to_multiple_of out")

    def of(self, lengths: NDArray[np.int64]) -> int:
        """The length of a batch with rows of these lengths.

        Raises:
            DataError: A row is longer than the length that was asked for.
        """
        longest = int(lengths.max(initial=0))
        if self.length is not None and longest > self.length:
            raise DataError(
                f"feature {int(lengths.argmax())} has {longest} tokens, and pad_to_length is {self.length}; tokenise "
                f"with truncation=True, max_length={self.length}"
            )
        return self.length or -(-longest // (self.multiple or 1)) * (self.multiple or 1)


def read_features(features: Sequence[Any], *, padding: Mapping[str, int], width: Width) -> FeatureColumns:
    """Pads features.

    Args:
        features: Each a mapping of columns, or the list of its token ids.
        padding: What stands behind a feature's end, by column, where that is not 0.
        width: What S is.

    Raises:
        DataError: A column is missing in some features, is no list of integers, or is not as long as `input_ids`; or
            an attention mask holds anything but 0 and 1.
    """
    mappings = as_mappings(features)
    first = mappings[0] if mappings else {"input_ids": []}
    if "input_ids" not in first:
        raise DataError(f"the features have no input_ids; they have {', '.join(first)}")
    flat, lengths = joined("input_ids", mappings)
    inside = np.arange(width.of(lengths)) < lengths[:, None]

    def padded(name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(values) == inside.size:
            return values.reshape(inside.shape)
        column = np.full(inside.shape, padding.get(name, 0), dtype=np.int64)
        column[inside] = values
        return column

    known = {"input_ids": padded("input_ids", flat)}
    for name in _KNOWN[1:]:
        if any(name in feature for feature in mappings):
            values, own = joined(name, mappings)
            if (own != lengths).any():
                number = int(np.flatnonzero(own != lengths)[0])
                raise DataError(
                    f"feature {number} has {lengths[number]} input_ids but {own[number]} {name}; it wants one a token"
                )
            if name == "attention_mask":
                _check_attention(values, lengths)
            known[name] = padded(name, values)
    annotations, other = {}, []
    for name in first:
        if name not in _KNOWN:
            found = _annotation(name, mappings, lengths)
            if found is None:
                other.append(name)
            else:
                annotations[name] = padded(name, found)
    return FeatureColumns(lengths, known, annotations, tuple(other))


def as_mappings(features: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Features as mappings of columns; one that is the list of its token ids has these alone."""
    return [feature if isinstance(feature, Mapping) else {"input_ids": feature} for feature in features]


def rows_of(columns: FeatureColumns, tokenizer: Tokenizer) -> Rows:
    """Makes rows of them, each keyed by its content.

    Padding is where `attention_mask` says so, or else the pad tokens at the end. Words come from the tokenizer's
    vocabulary, unless there is a column `word_starts`. What `special_tokens_mask` names is not masked either.

    Raises:
        SettingsError: Ids lie outside the vocabulary.
    """
    known = columns.known
    input_ids = known["input_ids"]
    check_ids(input_ids, tokenizer)
    attended = known.get("attention_mask")
    inside = before_padding(input_ids, tokenizer) if attended is None else attended != 0
    rows = content_rows(input_ids, inside, tokenizer)
    if "special_tokens_mask" in known:
        text = torch.from_numpy(known["special_tokens_mask"] == 0)
        rows = replace(rows, maskable=rows.maskable & text)
    if "word_starts" in known:
        rows = replace(rows, word_starts=torch.from_numpy(known["word_starts"] != 0) & rows.maskable)
    return replace(rows, annotations={name: torch.from_numpy(c) for name, c in columns.annotations.items()})


def joined(name: str, features: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values of a column one behind another, and how many each feature has.

    Raises:
        DataError: It is missing, or no list of integers.
    """
    for number, feature in enumerate(features):
        if name not in feature:
            raise DataError(f"feature {number} has no {name}, which others have")
    given = [feature[name] for feature in features]
    if all(type(values) is list for values in given):
        return _joined_lists(name, given), np.fromiter(map(len, given), dtype=np.int64, count=len(given))
    parts = []
    for number, values in enumerate(given):
        part = np.asarray(values)
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iub"):
            raise DataError(f"{name} of feature {number} is not a list of integers")
        parts.append(part)
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    flat = np.concatenate(parts) if parts else np.empty(0)
    return flat.astype(np.int64, copy=False), lengths


def _check_attention(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    """Raises: DataError: It holds anything but 0 and 1."""
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        number = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        raise DataError(
            f"attention_mask of feature {number} holds {values[wrong[0]]}; it wants 1 at tokens and 0 at padding. "
            "Numbers of packed texts cannot be passed on: give each text as a feature of its own"
        )


def _joined_lists(name: str, given: Sequence[list[Any]]) -> NDArray[np.int64]:
    """Lists one behind another; in half the time that numpy takes, which looks at all before it copies.

    Where all values are the same, as those of `attention_mask` often are, none of them is looked at: lists count equal
    objects in a twentieth of that time.
    """
    some = next((values[0] for values in given if values), None)
    if (
        isinstance(some, int)
        and -(2**63) <= some < 2**63
        and all(values.count(some) == len(values) for values in given)
    ):
        return np.full(sum(map(len, given)), some, dtype=np.int64)
    buffer = array("q")
    for number, values in enumerate(given):
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
        flat, own = joined(name, features)
    except (DataError, ValueError, TypeError):  # ragged or of another kind: no annotation
        return None
    return flat if (own == lengths).all() else None


# ----------------------------------------
# Masking with the interface of a well-known annotated implementation of BERT's objective, with its mistakes mended.
#
# It needs no tokenizer: ids below a number, some of which are special. The work is that of the engine's parts.
#
# Shape suffixes: S = positions, B = columns of the batch, T = B x S in a line, column after column; V = vocabulary.

_MASK, _REPLACE = 3, 4


class MLM:
    """Masks sequences that stand in the columns of a tensor: `x, y = mlm(x)`.

    Where the interface comes from, "random" and "unchanged" are drawn apart from each other (81.0 / 10.0 / 9.1 instead
    of 80 / 10 / 10) and random tokens may be padding or the mask. Here one draw parts the chosen tokens, random tokens
    are ordinary and never the token itself, and the share of chosen tokens is exact.

    There, masks come from torch's random generator. Here, they are a function of (seed, epoch, column, what the column
    holds): `mlm(x, epoch=3)` gives the same whenever it is called. Without an epoch, the calls are counted, so that
    each draws anew: the first is epoch 0. To go on after a stop, set `mlm.calls`.

    Args:
        padding_token: Its id; it also stands in the labels wherever nothing is to be predicted, so that
            `CrossEntropyLoss(ignore_index=padding_token)` is the loss.
        mask_token: Id of the mask.
        no_mask_tokens: Ids that are never chosen and never drawn, beside these two.
        n_tokens: Random ids are drawn below it; so are all ids of the text.
        masking_prob: Expected share of the ordinary tokens of each column that is to be predicted, in [0, 1].
        randomize_prob: Share of these that becomes a random token.
        no_change_prob: Share of these that stays; the others become the mask.
        seed: Masks of different seeds are independent.

    Raises:
        SettingsError: A share lies outside [0, 1], an id is negative, or fewer than two ids are ordinary.

    Source: Devlin et al. 2018, section 3.1.
    """

    def __init__(
        self,
        padding_token: int = 0,
        mask_token: int = 1,
        no_mask_tokens: Sequence[int] = (),
        n_tokens: int = 67,
        masking_prob: float = 0.15,
        randomize_prob: float = 0.1,
        no_change_prob: float = 0.1,
        *,
        seed: int = 0,
    ) -> None:
        shares = {"masking_prob": masking_prob, "randomize_prob": randomize_prob, "no_change_prob": no_change_prob}
        for name, share in shares.items():
            if not 0.0 <= share <= 1.0:
                raise SettingsError(f"{name} is a share from 0 to 1, not {share}")
        masked = 1.0 - randomize_prob - no_change_prob
        if masked < -1e-9:
            raise SettingsError(
                f"randomize_prob and no_change_prob are shares of the chosen tokens and add up to at most 1, not "
                f"{randomize_prob + no_change_prob:g}"
            )
        specials = [padding_token, mask_token, *no_mask_tokens]
        if min(specials) < 0:
            raise SettingsError(f"ids of tokens begin with 0; {min(specials)} is none")
        self.padding_token, self.mask_token, self.n_tokens = padding_token, mask_token, n_tokens
        self.masking_prob, self.seed, self.calls = masking_prob, seed, 0
        ordinary = np.arange(max(n_tokens, *specials) + 1) < n_tokens
        ordinary[specials] = False
        if ordinary.sum() < 2:
            raise SettingsError(
                f"of the ids below n_tokens={n_tokens}, {ordinary.sum()} are ordinary; masking needs at least two"
            )
        self._replacement = Replacement(shares=(max(masked, 0.0), randomize_prob, no_change_prob))
        self._random_tokens = RandomTokens(uniform_counts(ordinary))
        known = ordinary.copy()
        known[specials] = True
        self._ordinary_V, self._known_V = torch.from_numpy(ordinary), torch.from_numpy(known)

    def __call__(self, x: Tensor, *, epoch: int | None = None) -> tuple[Tensor, Tensor]:
        """Masks a batch; it is unchanged.

        Args:
            x: [S, B], int64: a sequence in each column.
            epoch: Masks of different epochs are independent; None counts the calls.

        Returns:
            [S, B], int64 each: what the model sees, and the labels: the original id where it is to be predicted,
            `padding_token` elsewhere.

        Raises:
            SettingsError: The tensor has another shape or type, or holds ids that are not below `n_tokens`.
        """
        rows = self._rows(x.cpu())
        if epoch is None:
            epoch, self.calls = self.calls, self.calls + 1
        flat = flatten(rows, mix_ints(self.seed, epoch, _MASK))
        units = partition(flat, rows.word_starts.reshape(-1))
        chosen_T, _ = draw_units(flat, units, None, self.masking_prob)
        seen_T = replace_tokens(
            flat.input_ids_T,
            chosen_T,
            mix(flat.bits_T + mix_ints(_REPLACE)),
            unit_begin_T=units.begin_T,
            settings=self._replacement,
            per_unit=False,
            mask_id=self.mask_token,
            random_tokens=self._random_tokens,
        )
        labels_T = pick(chosen_T, flat.input_ids_T, self.padding_token)
        seen_BS, labels_BS = seen_T.view(rows.shape), labels_T.view(rows.shape)
        return seen_BS.T.contiguous().to(x.device), labels_BS.T.contiguous().to(x.device)

    def _rows(self, x: Tensor) -> Rows:
        """The columns as rows, each of them one segment whose tokens are units."""
        if x.ndim != 2 or x.dtype != torch.int64:
            raise SettingsError(f"x is an int64 tensor of shape [seq_len, batch], not {x.dtype} of {tuple(x.shape)}")
        ids_BS = x.T.contiguous()
        last = len(self._known_V) - 1
        bad_BS = (ids_BS < 0) | (ids_BS > last) | ~self._known_V[ids_BS.clamp(0, last)]
        if bad_BS.any():
            raise SettingsError(
                f"x holds the id {int(ids_BS[bad_BS][0])}, which is neither below n_tokens={self.n_tokens} nor special"
            )
        places_S = torch.arange(ids_BS.shape[1])
        columns_B1 = torch.arange(ids_BS.shape[0])[:, None]
        held_B1 = mix(mix(ids_BS + 1) + places_S * GOLDEN).sum(1, keepdim=True)
        return Rows(
            input_ids=ids_BS,
            segment_ids=torch.zeros_like(ids_BS, dtype=torch.int32),
            position_ids=places_S.expand_as(ids_BS),
            word_starts=torch.ones_like(ids_BS, dtype=torch.bool),
            maskable=self._ordinary_V[ids_BS],
            segment_keys=mix(mix(held_B1) + columns_B1).expand_as(ids_BS),  # equal columns have masks of their own
        )


# ----------------------------------------
# The exact loss of an evaluation in transformers' `Trainer`.
#
# `Trainer` reports a mean over rows of means over batches, so that its `eval_loss` depends on the size of a batch where
# rows have different numbers of masks: a mask in a batch of few weighs more than one in a batch of many. The loss of a
# model is the sum over all masks, divided by their number.
#
#     Trainer(
#         ..., eval_dataset=collator.fixed(held_out),
#         compute_metrics=unmask.evaluation_loss, preprocess_logits_for_metrics=unmask.token_losses,
#     )
#
# Shape suffixes: B = rows of a batch, N = rows of the data set, S = positions, V = vocabulary.


def token_losses(logits_BSV: Any, labels_BS: Tensor) -> Tensor:
    """What `Trainer` keeps of a batch in place of its logits: a number a position, not one for each word.

    Args:
        logits_BSV: The model's logits, or a tuple that begins with them.
        labels_BS: The targets; -100 where nothing is to be predicted.

    Returns:
        float32 [B, S]: cross-entropies in nats, 0 where there is no target.

    Raises:
        DataError: There are not logits for every position.
    """
    logits = logits_BSV[0] if isinstance(logits_BSV, tuple | list) else logits_BSV
    if logits.shape[:-1] != labels_BS.shape:
        raise DataError(
            f"logits of shape {tuple(logits.shape)} are not one for each label, {tuple(labels_BS.shape)}; a model with "
            "sparse_prediction gives those at masks alone: set model.config.sparse_prediction = False to evaluate it"
        )
    losses = functional.cross_entropy(
        logits.float().flatten(0, -2), labels_BS.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses.view(labels_BS.shape)


def evaluation_loss(evaluated: EvalPrediction) -> dict[str, float]:
    """The loss per predicted token, for `compute_metrics` of `Trainer`, which then reports it as its `eval_loss`.

    Args:
        evaluated: Predictions float [N, S], made by `token_losses` (or logits [N, S, V], which take much memory), and
            labels int [N, S].

    Returns:
        `loss` in nats, which takes the place of `Trainer`'s own; `perplexity`; and `predicted_tokens`.

    Raises:
        DataError: There is no target, or the predictions are neither.
    """
    predictions, labels = evaluated.predictions, np.asarray(evaluated.label_ids)
    if isinstance(predictions, tuple | list):
        predictions = predictions[0]
    losses = np.asarray(predictions)
    if losses.ndim == labels.ndim + 1:
        losses = token_losses(torch.from_numpy(losses), torch.from_numpy(labels)).numpy()
    if losses.shape != labels.shape:
        raise DataError(
            f"predictions of shape {losses.shape} are neither losses nor logits of labels of shape {labels.shape}; "
            "give Trainer preprocess_logits_for_metrics=unmask.token_losses"
        )
    asked = labels != IGNORED
    count = int(asked.sum())
    if not count:
        raise DataError("there is nothing to predict in the evaluation's rows: give masked ones, collator.fixed(rows)")
    loss = float(losses[asked].sum(dtype=np.float64)) / count
    return {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0))), "predicted_tokens": count}


# ----------------------------------------
# Columns to masked rows, and rows for evaluation that the data set masks, so that their masks never change.


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

    **The epoch.** `Trainer` tells a collator nothing; `callbacks=[collator.callback]` does, also to workers in other
    processes. Without it every epoch has the same masks, which is said in the log when a row comes again. Loops of
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
        if not masker.tables.has_no_scores_yet:
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
        """A callback for `Trainer` that tells this collator the epoch and the progress."""
        from unmask.masking.trainer_callback import EpochCallback

        return EpochCallback(self.set_epoch, self._clock, static=self.masker.settings.static)

    def set_epoch(self, epoch: int, *, progress: float = 0.0, progress_a_batch: float = 0.0) -> None:
        """Begins an epoch, before its batches are asked for; the callback does it in `Trainer`.

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
                dict of several by name. Rows are masked when they are asked for.
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
            check_fixed(features)
            rows = rows_of(columns, self.masker.tokenizer)
            seen, labels = rows.input_ids, torch.from_numpy(columns.known["labels"])
        else:
            epoch, progress, step = self._clock.next_batch()
            rows, masked = mask_columns(self.masker, columns, epoch=epoch, progress=progress, step=step)
            if not self.masker.settings.static:
                self._clock.watch(rows.segment_keys[:, :1].flatten())
            seen, labels = masked.input_ids, masked.labels
        attention_mask = (rows.segment_ids >= 0).to(torch.int64)
        batch = {"input_ids": seen, "attention_mask": attention_mask, "labels": labels}
        for name in PASSED_ON:
            if name in columns.known:
                batch[name] = torch.from_numpy(columns.known[name])
        return batch
