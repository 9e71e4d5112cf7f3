"""What a step of fine-tuning learns, as an objective that leads the training loop.

Shape suffixes: T = B x S, all positions in a line, D = hidden size, N = targets, C = classes, L = tokens of an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from unmask.masking.engine import MaskedRows
from unmask.model.folder_layout import Pooling
from unmask.model.loss import Losses, losses_of, predicted_positions
from unmask.model.task_folder import TaskKind
from unmask.model.task_network import TaskNetwork
from unmask.packing.rows import Rows
from unmask.tasks.answer import BEGIN, END
from unmask.tasks.text import TARGET
from unmask.training.objectives import Objective, Targets

NAME = "task"


def objective_of(kind: TaskKind, weights: Sequence[float] | None = None, *, pooling: Pooling = "first") -> Objective:
    """The objective of a task.

    Args:
        kind: Of the task.
        weights: Of the losses by class; None: all 1.
        pooling: What whole texts are told from.
    """
    weights_C = None if weights is None else torch.tensor(weights, dtype=torch.float32)
    match kind:
        case "classify" | "pairs":
            return Objective(NAME, 1.0, _class_targets(weights_C, pooling), _class_losses)
        case "tag":
            return Objective(NAME, 1.0, _class_targets(weights_C, "first"), _tag_losses)
        case "regress":
            return Objective(NAME, 1.0, _number_targets(pooling), _number_losses)
        case "answer":
            return Objective(NAME, 1.0, _answer_targets, _answer_losses)


def _class_targets(weights_C: Tensor | None, pooling: Pooling) -> Callable[[Rows, MaskedRows], Targets]:
    def find(rows: Rows, masked: MaskedRows) -> Targets:
        classes_BS = rows.classes[TARGET]
        positions_N = predicted_positions(classes_BS)
        classes_N = classes_BS.flatten()[positions_N]
        weights_N = None if weights_C is None else weights_C.to(classes_N.device)[classes_N]
        return Targets(_places(rows, positions_N, pooling), classes_N, weights_N=weights_N)

    return find


def _places(rows: Rows, first_N: Tensor, pooling: Pooling) -> Tensor:
    """What examples are told from: their first tokens, or all of them, [N, L], -1 where one is shorter than others."""
    return first_N if pooling == "first" else _tokens(rows, first_N)


def _tokens(rows: Rows, first_N: Tensor) -> Tensor:
    """The places of all tokens of the examples that begin there: [N, L], -1 where one is shorter than others."""
    key_T = _segment_numbers(rows.segment_ids).flatten()
    tokens = [torch.nonzero(key_T == key_T[first]).squeeze(1) for first in first_N]
    return pad_sequence(tokens, batch_first=True, padding_value=-1) if tokens else first_N[:, None]


def _text_logits(model: TaskNetwork, hidden_TD: Tensor, places: Tensor, dropout_seed: int | None) -> Tensor:
    """Logits [N, C] of texts, told from what `_places` gives."""
    if places.ndim == 1:
        return model.classify(hidden_TD.index_select(0, places), dropout_seed=dropout_seed)
    held_NL1 = (places >= 0)[..., None]
    sum_ND = (hidden_TD[places.clamp(min=0)].float() * held_NL1).sum(1)
    mean_ND = (sum_ND / held_NL1.sum(1)).to(hidden_TD.dtype)
    return model.classify(mean_ND, dropout_seed=dropout_seed)


def _class_losses(model: TaskNetwork, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None) -> Losses:
    logits_NC = _text_logits(model, hidden_TD, targets.positions_N, dropout_seed)
    return losses_of(logits_NC, targets.classes_N, targets.weights_N)


def _tag_losses(model: TaskNetwork, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None) -> Losses:
    logits_NC = model.tag(hidden_TD.index_select(0, targets.positions_N), dropout_seed=dropout_seed)
    return losses_of(logits_NC, targets.classes_N, targets.weights_N)


def _number_targets(pooling: Pooling) -> Callable[[Rows, MaskedRows], Targets]:
    """Here the right answers are numbers, float32."""

    def find(rows: Rows, masked: MaskedRows) -> Targets:
        values_T = rows.classes[TARGET].flatten()
        positions_N = torch.nonzero(~values_T.isnan()).squeeze(1)
        return Targets(_places(rows, positions_N, pooling), values_T[positions_N])

    return find


def _number_losses(model: TaskNetwork, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None) -> Losses:
    """Squared errors."""
    found_N = _text_logits(model, hidden_TD, targets.positions_N, dropout_seed)[:, 0].float()
    each_N = functional.mse_loss(found_N, targets.classes_N, reduction="none")
    return Losses(each_N.sum(), each_N.detach(), torch.zeros_like(each_N, dtype=torch.bool))


def _answer_targets(rows: Rows, masked: MaskedRows) -> Targets:
    """A target an example: here positions are [N, L], the places of all its tokens, and classes [N, 2], the tokens at
    which the answer begins and ends."""
    begins_BS, ends_BS = rows.classes[BEGIN], rows.classes[END]
    first_N = predicted_positions(begins_BS)
    classes_N2 = torch.stack([begins_BS.flatten()[first_N], ends_BS.flatten()[first_N]], 1)
    return Targets(_tokens(rows, first_N), classes_N2)


def _segment_numbers(segment_ids_BS: Tensor) -> Tensor:
    """Numbers that tell the segments of all rows apart; -1 at padding."""
    row_B1 = torch.arange(len(segment_ids_BS), device=segment_ids_BS.device)[:, None] * segment_ids_BS.shape[1]
    return torch.where(segment_ids_BS >= 0, row_B1 + segment_ids_BS, -1)


def _answer_losses(model: TaskNetwork, hidden_TD: Tensor, targets: Targets, dropout_seed: int | None) -> Losses:
    """Mean of the cross-entropies of begin and end, each among all tokens of the example."""
    positions_NL = targets.positions_N
    held_NL = positions_NL >= 0
    logits_NL2 = model.find_answers(hidden_TD[positions_NL.clamp(min=0)], dropout_seed=dropout_seed).float()
    logits_NL2 = logits_NL2.masked_fill(~held_NL[..., None], float("-inf"))
    logits_2NL = logits_NL2.permute(2, 0, 1).flatten(0, 1)
    of_both = losses_of(logits_2NL, targets.classes_N.T.flatten())
    begin_N, end_N = of_both.each_N.chunk(2)
    wrong_begin_N, wrong_end_N = of_both.wrong_N.chunk(2)
    return Losses(of_both.total / 2, (begin_N + end_N) / 2, wrong_begin_N | wrong_end_N)
