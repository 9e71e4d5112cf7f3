"""One training step, in one block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unmask.errors import DivergedError, MemoryFullError
from unmask.hashing import mix_ints
from unmask.masking.masker import MaskedRows
from unmask.network.loss import Losses
from unmask.network.trainable import Trainable
from unmask.rows.rows import Rows
from unmask.training.figures import Figures, HasFigures
from unmask.training.gradient_cache import CachedLoss, cached_loss
from unmask.training.group import Group
from unmask.training.hardware import reason_of, says_out_of_memory, sums_dtype, works_on_its_own
from unmask.training.objectives import PREDICT_MASKED, Objective, Targets
from unmask.training.optimizer import Optimizer
from unmask.training.retries import kind_of_failure
from unmask.training.step_parts import StepPart, parts_of

_MOST_PARTS = 1 << 20  # of a step; sets the seeds of processes apart


@dataclass(frozen=True)
class Observed:
    """What the predictions of a step came to.

    Attributes:
        targets_N: int64: the right ids.
        losses_N: float32: their cross-entropies.
        wrong_N: bool: whether another id was the most likely.
        pos_N: int64: numbers of their parts of speech, 0 for none; None where the rows do not have them.
    """

    targets_N: Tensor
    losses_N: Tensor
    wrong_N: Tensor
    pos_N: Tensor | None = None


@dataclass(frozen=True)
class StepResult(HasFigures):
    """What a step measured.

    Attributes:
        figures: Losses and the gradient's norm.
        predicted_tokens: How many were predicted.
        micro_batches: Parts that it was computed in.
        observed: What each prediction came to, where that was asked for.
    """

    figures: Figures
    predicted_tokens: int
    micro_batches: int = 1
    observed: Observed | None = None


def training_step(  # noqa: PLR0913  (what a step is made of)
    model: Trainable,
    optimizer: Optimizer,
    rows: Rows,
    masked: MaskedRows,
    *,
    learning_rate_scale: float,
    step: int,
    dropout_seed: int | None = None,
    micro_rows: int | None = None,
    objectives: Sequence[Objective] = (),
    leading: Objective = PREDICT_MASKED,
    observe: bool = False,
    patient: bool = False,
) -> StepResult:
    """Predicts the masked tokens of a batch, and what else is asked for, and updates the model.

    Each loss is summed, and divided by the number of its targets in the whole step (or the sum of their weights),
    however many parts and processes it is computed in: means of parts with unequal numbers of targets must not be
    averaged. A loss that compares targets across the step is computed by way of the vectors of all parts and processes
    (`unmask.training.gradient_cache`). What is minimised is the loss per predicted token plus that of each other
    objective, times its weight.

    On a GPU nothing waits for the device where rows and masks are given on the host, and the figures say later whether
    they are finite; on a CPU that is known before anything is updated.

    Each of several processes (the optimizer's group) is given its share of the rows. All make the step, or none does.

    Args:
        model: On the device of the rows, or on a GPU.
        optimizer: Its parameters' optimizer.
        rows: What the batch holds, or this process's share of it.
        masked: What the model sees and must predict there.
        learning_rate_scale: Factor of the peak learning rates.
        step: Number of the step, for the error's text.
        dropout_seed: What a model with dropout drops is a function of it and the number of the part.
        micro_rows: Rows that are computed at once at most, to fit the memory; None computes all at once.
        objectives: What is learned beside the leading objective.
        leading: Whose loss is that of the step: masked tokens, or a task that a model is fine-tuned for.
        observe: Whether the result says what each prediction came to.
        patient: Whether other processes may take long for this step, since something is compiled in it.

    Raises:
        DivergedError: The loss or the gradient is not finite; nothing was updated. On a GPU the figures raise it, and
            nothing was updated there, either.
        FailedElsewhereError: Another process failed in it; nothing was updated.
        GroupError: Another process has ended, or does not answer.
        MemoryFullError: Memory ran out in the update, when some weights were changed.
    """
    device, group = model.encoder.device, optimizer.group
    learned = (leading, *objectives)
    parts = parts_of(rows, masked, learned, micro_rows=micro_rows, device=device, width=model.encoder.width)
    # What losses are divided by and how many targets they are of: in all parts, and of all processes.
    found = [
        (sum(part.totals[i] for part in parts), sum(len(part.targets[i]) for part in parts))
        for i in range(len(learned))
    ]
    told = group.told([*(number for pair in found for number in pair), len(parts)], patient=patient)
    parts += [parts[-1].without_targets()] * (
        optimizer.parts_for(len(parts), int(max(s[-1] for s in told))) - len(parts)
    )
    totals = [math.fsum(each) or 1.0 for each in zip(*(said[:-1:2] for said in told), strict=True)]
    of_all = [int(sum(each)) for each in zip(*(said[1::2] for said in told), strict=True)]
    counts = dict(zip((each.name for each in learned), of_all, strict=True))
    observed: list[Observed] = []
    sums = [torch.zeros((), dtype=sums_dtype(device), device=device) for _ in learned]

    def seed_of(number: int) -> int | None:
        return None if dropout_seed is None else mix_ints(dropout_seed, number + group.share.number * _MOST_PARTS)

    def encode(part: StepPart, number: int) -> Tensor:
        return _hidden(model, part, seed_of(number))

    joint = any(each.joint is not None for each in learned)
    assert optimizer.sharding is None or not joint, "its first pass would have to gather weights as well"
    with optimizer.computing(kind_of_failure, num_parts=len(parts), patient=patient):
        cached = {
            index: cached_loss(
                model, parts, index, objective, encode=encode, total=totals[index], group=group, patient=patient
            )
            for index, objective in enumerate(learned)
            if objective.joint is not None and (len(parts) > 1 or group.share.of > 1)
        }
        for index, of_all_parts in cached.items():
            sums[index] = of_all_parts.mean.to(sums[index].dtype)
        for number, part in enumerate(parts):
            losses = optimizer.run(partial(_losses_of_part, model, part, learned, seed_of(number), number, cached))
            loss = torch.zeros((), device=device)
            for index, (objective, of_part) in enumerate(zip(learned, losses, strict=True)):
                if isinstance(of_part, Tensor):  # what its vectors have to do with the loss of all parts
                    loss = loss + of_part
                    continue
                target = part.targets[index]
                if observe and objective is PREDICT_MASKED and isinstance(target, Targets):
                    observed.append(Observed(target.classes_N, of_part.each_N, of_part.wrong_N, part.pos_N))
                mean = of_part.total / totals[index]
                sums[index] = sums[index] + mean.detach().to(sums[index].dtype)
                loss = loss + objective.weight * mean
            if number + 1 == len(parts):
                optimizer.begin_last_part()
            loss.backward()
    norm = optimizer.clip()
    losses_O = group.summed(torch.stack(sums))
    values_F = torch.cat([losses_O, norm.to(losses_O.dtype)[None]])
    diverged = (~values_F.isfinite().all()).float() if works_on_its_own(device) else None
    figures = Figures(step, counts, values_F)
    if diverged is None:
        try:
            figures.read()
        except DivergedError:
            optimizer.clear()
            raise
    try:
        optimizer.step(learning_rate_scale, diverged=diverged)
    except (MemoryError, RuntimeError) as error:
        if not says_out_of_memory(error):
            raise
        raise MemoryFullError(
            f"memory ran out while the weights of step {step} were changed ({reason_of(error)}): it cannot "
            "be made again; go on with --resume when more memory is free, or take a smaller model"
        ) from error
    return StepResult(figures, counts[leading.name], len(parts), _joined(observed, group))


def _hidden(model: Trainable, part: StepPart, dropout_seed: int | None) -> Tensor:
    """[T, D]: the hidden states of a part, one row behind another."""
    return model.encoder(
        part.input_ids_BS,
        segment_ids_BS=part.segment_ids_BS,
        position_ids_BS=part.position_ids_BS,
        token_type_ids_BS=part.token_type_ids_BS,
        sequences=part.sequences,
        dropout_seed=dropout_seed,
    ).flatten(0, 1)


def _losses_of_part(
    model: Trainable,
    part: StepPart,
    learned: Sequence[Objective],
    dropout_seed: int | None,
    number: int,
    cached: Mapping[int, CachedLoss],
) -> tuple[Losses | Tensor, ...]:
    """Of each objective; of one whose loss is that of all parts, a number with the same gradient in this part."""
    kept = {index: each.kept for index, each in cached.items() if each.kept is not None}
    hidden_TD = next(iter(kept.values())).hidden_TD if kept else _hidden(model, part, dropout_seed)
    found: list[Losses | Tensor] = []
    for index, (objective, target) in enumerate(zip(learned, part.targets, strict=True)):
        if index in kept:
            found.append(cached[index].of_part(number, kept[index].vectors_ED))
        elif index in cached and objective.joint is not None:
            found.append(cached[index].of_part(number, objective.joint.vectors(model, hidden_TD, target)))
        else:
            found.append(objective.losses(model, hidden_TD, target, dropout_seed))
    return tuple(found)


def _joined(observed: list[Observed], group: Group) -> Observed | None:
    """What all parts and processes came to, in the order of their rows, as one process would have it."""
    if not observed:
        return None
    pos = [entry.pos_N for entry in observed if entry.pos_N is not None]  # all parts have them, or none does
    return Observed(
        targets_N=group.joined(torch.cat([entry.targets_N for entry in observed])),
        losses_N=group.joined(torch.cat([entry.losses_N for entry in observed])),
        wrong_N=group.joined(torch.cat([entry.wrong_N for entry in observed])),
        pos_N=group.joined(torch.cat(pos)) if pos else None,
    )
