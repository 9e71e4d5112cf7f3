"""The exact loss of an evaluation in transformers' `Trainer`.

`Trainer` reports a mean over rows of means over batches, so that its `eval_loss` depends on the size of a batch where
rows have different numbers of masks: a mask in a batch of few weighs more than one in a batch of many. The loss of a
model is the sum over all masks, divided by their number.

    Trainer(
        ..., eval_dataset=collator.fixed(held_out),
        compute_metrics=unmask.evaluation_loss, preprocess_logits_for_metrics=unmask.token_losses,
    )

Shape suffixes: B = rows of a batch, N = rows of the data set, S = positions, V = vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unmask.core.errors import DataError
from unmask.masking.masker import IGNORED

if TYPE_CHECKING:
    from transformers import EvalPrediction


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
    losses = np.asarray(predictions[0] if isinstance(predictions, tuple | list) else predictions)
    if losses.ndim == labels.ndim + 1:
        losses = token_losses(torch.from_numpy(losses), torch.from_numpy(labels)).numpy()
    if losses.shape != labels.shape:
        raise DataError(
            f"predictions of shape {losses.shape} are neither losses nor logits of labels of shape {labels.shape}; "
            "give Trainer preprocess_logits_for_metrics=unmask.token_losses"
        )
    predicted = labels != IGNORED
    count = int(predicted.sum())
    if not count:
        raise DataError("there is nothing to predict in the evaluation's rows: give masked ones, collator.fixed(rows)")
    loss = float(losses[predicted].sum(dtype=np.float64)) / count
    return {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0))), "predicted_tokens": count}
