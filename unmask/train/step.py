"""One training step, in one block."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from unmask.core.errors import DivergedError, MemoryFullError, SettingsError
from unmask.core.hashing import mix_ints
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows
from unmask.model.attention import MOST, Sequences
from unmask.model.encoder import MaskedLM, Trainable, uncompile_model
from unmask.model.fused import Losses
from unmask.train.distributed import Group
from unmask.train.hardware import reason_of, says_out_of_memory, sums_dtype, works_on_its_own
from unmask.train.objectives import PREDICT_MASKED, JointTargets, Objective, StepTargets, Targets
from unmask.train.optimizer import FailedElsewhereError, Optimizer
from unmask.train.settings import TrainingSettings

# ----------------------------------------
# What a step measured, and its way from the device to whoever wants to see it.
#
# On a CPU the figures are there when the step is done. A GPU still works on the step when the host begins the next one,
# so they are sent after it into pinned memory, and asking for them waits for this step alone, not for what was queued
# behind it. Nothing within a step waits.


@dataclass(frozen=True)
class MeanLoss:
    """A loss in nats per target, and the number of targets."""

    loss: float
    count: int


@dataclass(frozen=True)
class Measured:
    """The figures of a step.

    Attributes:
        loss: Nats per predicted token, before the update.
        gradient_norm: Before clipping.
        objectives: The losses of the other objectives, by name, without their weights.
    """

    loss: float
    gradient_norm: float
    objectives: Mapping[str, MeanLoss] = field(default_factory=dict)


class Figures:
    """The figures of a step, wherever they are.

    Args:
        step: Its number, for the error's text.
        counts: Targets of each objective, by name; the first is the masked tokens.
        values_F: float64, or float32 of Apple's GPUs: the mean loss of each, and the gradient's norm; on any device.
    """

    def __init__(self, step: int, counts: Mapping[str, int], values_F: Tensor) -> None:
        self._step, self._counts = step, counts
        self._measured: Measured | None = None
        self._values_F, self._sent = values_F, None
        if values_F.device.type == "cuda":
            self._values_F = torch.empty(values_F.shape, dtype=values_F.dtype, pin_memory=True)
            self._values_F.copy_(values_F, non_blocking=True)
            self._sent = torch.cuda.Event()
            self._sent.record()

    @classmethod
    def known(cls, measured: Measured) -> Figures:
        """Figures that nobody has to wait for."""
        figures = cls(0, {}, torch.empty(0))
        figures._measured = measured
        return figures

    @property
    def arrived(self) -> bool:
        """Whether `read` would not wait."""
        return self._measured is not None or self._sent is None or self._sent.query()

    def read(self) -> Measured:
        """The figures; waits for the step where it is still being computed.

        Raises:
            DivergedError: One of them is not finite. The step has changed nothing; on a GPU the steps behind it were
                made, so whoever saves a state reads the figures of its step first.
        """
        if self._measured is None:
            if self._sent is not None:
                self._sent.synchronize()
            *losses, norm = self._values_F.tolist()
            check_finite(self._step, list(self._counts), losses, norm)
            means = [MeanLoss(loss, count) for loss, count in zip(losses, self._counts.values(), strict=True)]
            others = dict(zip(list(self._counts)[1:], means[1:], strict=True))
            self._measured = Measured(means[0].loss, norm, others)
        return self._measured


class HasFigures:
    """What a step's figures say, for what carries them; each waits for the step and raises what `Figures.read` does.

    Attributes:
        figures: Losses and the gradient's norm, which a GPU may still be computing.
    """

    figures: Figures

    @property
    def loss(self) -> float:
        """Nats per predicted token, before the update."""
        return self.figures.read().loss

    @property
    def gradient_norm(self) -> float:
        """Before clipping."""
        return self.figures.read().gradient_norm

    @property
    def objectives(self) -> Mapping[str, MeanLoss]:
        """The losses of other objectives than the leading one, by name, without their weights."""
        return self.figures.read().objectives


def check_finite(step: int, names: Sequence[str], losses: Sequence[float], norm: float = 0.0) -> None:
    """Looks at a step's figures.

    Raises:
        DivergedError: One of them is not finite; the text says which.
    """
    if not all(map(math.isfinite, losses)):
        shown = ", ".join(f"{loss} ({name})" for name, loss in zip(names, losses, strict=True))
        raise DivergedError(f"the loss of step {step} is {shown if len(losses) > 1 else losses[0]}")
    if not math.isfinite(norm):
        raise DivergedError(f"the gradient of step {step} has the norm {norm}")


# ----------------------------------------
# When a step fails and may be made again: memory that runs out, and blocks that cannot be compiled.
#
# The loop makes the step anew, with half as many rows at once or without compiling. It is the whole step and not only
# the
# call that failed, since backward passes are compiled as well, some of them when they are needed; and a block that is
# computed again there (gradient checkpointing) must be what it was in the forward pass. Where nothing fails it costs
# nothing.

# Where errors of compiling are defined. By name: Triton is not installed everywhere, and torch moves them about.
_COMPILERS = ("torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx", "triton")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why a step failed, in words: the exception itself holds what the step had computed, and must not be kept.

    Attributes:
        reason: What was said.
        of_memory: Whether memory ran out; else something cannot be compiled.
    """

    reason: str
    of_memory: bool


def recoverable(error: Exception, model: Trainable, settings: TrainingSettings) -> Failure:
    """What failed, where the step may be made again.

    Args:
        error: Raised by the step, here or in another process; raised again where nothing helps.
        model: Whose blocks may be compiled.
        settings: Say whether compiling was asked for.

    Raises:
        SettingsError: Compiling fails, and `training.compile_blocks` is 'yes'.
    """
    if isinstance(error, FailedElsewhereError) and error.failure in (OF_COMPILING, OF_MEMORY):
        return Failure("in another process", of_memory=error.failure == OF_MEMORY)
    if _is_of_memory(error):
        return Failure(reason_of(error), of_memory=True)
    if not isinstance(model, MaskedLM) or model.encoder.compiled_block is None or not failed_to_compile(error):
        raise error
    cause = getattr(error, "inner_exception", error)
    reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
    if settings.compile_blocks == "yes":
        raise SettingsError(
            f"training.compile_blocks = 'yes' cannot be done: {reason}; take 'no' to train without"
        ) from error
    return Failure(reason, of_memory=False)


OF_COMPILING, OF_MEMORY, FOR_GOOD = 1, 2, 3  # the worse, the higher: of several processes' failures, the worst counts


def kind_of_failure(error: Exception) -> int:
    """How a step failed, as a number, for other processes."""
    if isinstance(error, FailedElsewhereError):
        return error.failure
    if _is_of_memory(error):
        return OF_MEMORY
    return OF_COMPILING if failed_to_compile(error) else FOR_GOOD


def _is_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | RuntimeError) and says_out_of_memory(error)


def rows_at_once(rows: Rows, micro_tokens: int | None) -> int:
    """Rows of a step that are computed together.

    Args:
        rows: Of the step.
        micro_tokens: Positions that are computed at once at most, as known so far; None: all.
    """
    num_rows, length = rows.shape
    return num_rows if micro_tokens is None else max(1, min(num_rows, micro_tokens // length))


def fewer_rows(micro_rows: int, length: int, reason: str) -> int:
    """Half as many rows at once, after memory ran out.

    Raises:
        MemoryFullError: Not even one row fits.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if micro_rows == 1:
        raise MemoryFullError(
            f"one row of {length} positions does not fit into memory ({reason}); take a smaller model or "
            "shorter inputs (training.sequence_length, finetune.max_length); while pretraining, "
            "training.gradient_checkpointing=true saves memory, too"
        )
    log.info("out of memory (%s): trying %d rows at once", reason, (micro_rows + 1) // 2)
    return (micro_rows + 1) // 2


def in_smaller_parts(micro_tokens: int | None) -> str:
    """What is told of a training whose steps have become smaller parts, by the positions of one."""
    return (
        f"memory ran out: steps are made in parts of {micro_tokens:,} positions from now on (the same result, more "
        "slowly)"
    )


def without_compiling(model: Trainable, reason: str) -> None:
    """Has the model run uncompiled from now on, and says so."""
    assert isinstance(model, MaskedLM), "nothing else is compiled"
    uncompile_model(model)
    log.warning("blocks cannot be compiled (%s): training goes on without, more slowly", reason)


def failed_to_compile(error: Exception) -> bool:
    """Whether an error is one of torch.compile or of what it calls; where memory ran out in them it is not."""
    if says_out_of_memory(error):
        return False
    modules = [kind.__module__ for kind in type(error).__mro__]
    return any(module == name or module.startswith(f"{name}.") for module in modules for name in _COMPILERS)


# ----------------------------------------
# The parts that a step is computed in: some rows each, with their targets, brought to where the model is.
#
# Where the model is on a GPU, rows and masks are on the host: targets are found and counted there, and what the model
# needs, a few MB, is pinned and copied. The copies stand in line behind the step before, as everything that the GPU is
# told; the host does not wait for them, and knows every shape before.
#
# Shape suffixes: B = rows, S = positions, N = targets.


@dataclass(frozen=True)
class StepPart:
    """Some rows of a step.

    Attributes:
        input_ids_BS: int64: what the model sees.
        segment_ids_BS, position_ids_BS, token_type_ids_BS: As for the encoder.
        sequences: The segments in a line; None: the encoder makes them where it needs them.
        targets: Of each objective.
        totals: What the sum of each objective's losses is divided by, as far as this part adds to it.
        pos_N: Numbers of the first objective's targets' parts of speech; None where the rows do not have them.
    """

    input_ids_BS: Tensor
    segment_ids_BS: Tensor
    position_ids_BS: Tensor
    token_type_ids_BS: Tensor | None
    sequences: Sequences | None
    targets: tuple[StepTargets, ...]
    totals: tuple[float, ...]
    pos_N: Tensor | None

    def map(self, change: Callable[[Tensor], Tensor]) -> StepPart:
        """The part with a change made to each of its tensors."""

        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        return replace(
            self,
            input_ids_BS=change(self.input_ids_BS),
            segment_ids_BS=change(self.segment_ids_BS),
            position_ids_BS=change(self.position_ids_BS),
            token_type_ids_BS=changed(self.token_type_ids_BS),
            sequences=None if self.sequences is None else self.sequences.map(change),
            targets=tuple(targets.map(change) for targets in self.targets),
            pos_N=changed(self.pos_N),
        )

    def without_targets(self) -> StepPart:
        """The part, as one in which nothing is to be learned."""
        none = tuple(targets.map(lambda tensor: tensor[:0]) for targets in self.targets)
        totals = (0.0,) * len(self.totals)
        return replace(self, targets=none, totals=totals, pos_N=None if self.pos_N is None else self.pos_N[:0])


_BUFFER_BYTES = 4 << 30  # that attention's backward pass may take for a part beside what it returns
_BLOCK = 128  # positions that it rounds each sequence up to, at the most
_FILLED = 1.25  # sequences with those of length 0 behind them, times what there are, at the most


def parts_of(
    rows: Rows,
    masked: MaskedRows,
    learned: Sequence[Objective],
    *,
    micro_rows: int | None,
    device: torch.device,
    width: int,
) -> list[StepPart]:
    """Cuts a step into parts.

    Args:
        rows: What the batch holds: on the device, or on the host.
        masked: What the model sees and must predict, there as well.
        learned: The objectives.
        micro_rows: Rows of a part at most; the parts are about equally large. None makes one part, or as many as
            sequences in a line make necessary.
        device: Where the model is.
        width: Numbers of a hidden state.
    """
    num_rows = rows.shape[0]
    are_there = rows.input_ids.device.type == device.type
    if not are_there:
        micro_rows = min(micro_rows or num_rows, most_rows(rows, width))
    num_parts = math.ceil(num_rows / (micro_rows or num_rows))
    cuts = [number * num_rows // num_parts for number in range(num_parts + 1)]
    parts = [_part(rows.part(a, b), masked.part(a, b), learned) for a, b in pairwise(cuts)]
    if are_there:
        return parts
    in_line = [replace(part, sequences=Sequences.of(part.segment_ids_BS)) for part in parts]
    return [part.map(lambda tensor: sent(tensor, device)) for part in in_line]


def most_rows(rows: Rows, width: int) -> int:
    """How many of these rows a GPU's kernel over sequences may take at once.

    It takes no more than so many sequences, and in its backward pass float32 numbers for every position and for another
    128 of each sequence, which for many short ones is more than all else of the step.

    Args:
        rows: Of the step.
        width: Numbers of a hidden state.
    """
    length = rows.shape[1]
    sequences = int(rows.segment_ids.max()) + 1 + math.ceil(length / _BLOCK)  # of a row at the most, with its padding
    of_row = 4 * width * (length + _BLOCK * _FILLED * sequences)
    return max(1, min(MOST // sequences, int(_BUFFER_BYTES / of_row)))


def _part(rows: Rows, masked: MaskedRows, learned: Sequence[Objective]) -> StepPart:
    targets = tuple(each.targets(rows, masked) for each in learned)
    pos_BS = rows.annotations.get("pos")
    return StepPart(
        input_ids_BS=masked.input_ids,
        segment_ids_BS=rows.segment_ids,
        position_ids_BS=rows.position_ids,
        token_type_ids_BS=rows.token_type_ids,
        sequences=None,
        targets=targets,
        totals=tuple(each.total for each in targets),
        pos_N=None if pos_BS is None else pos_BS.flatten()[targets[0].positions_N],
    )


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On its way to a device: from pinned memory, which the copy reads while the host goes on."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


# ----------------------------------------
# Losses that compare targets across a whole step, computed part by part: any batch in the memory of one part.
#
#     1. every part forward, without a graph      vectors
#     2. the loss of all vectors                  its gradient by each vector
#     3. every part forward again, with a graph   backward from its vectors, with their gradients
#
# The result is the gradient of the whole batch at once, for one more forward pass. What is dropped is a function of the
# step and the part, so both passes of a part give the same vectors. A step of one part needs none of this.
#
# Several processes tell each other the vectors of their rows, and each computes the loss of all of them:
#
#     process 0   rows 0..3 ──▶ vectors ─┐             ┌─▶ loss of all ──▶ gradient by its own vectors ──▶ backward
#     process 1   rows 4..7 ──▶ vectors ─┴─ gathered ──┴─▶ loss of all ──▶ gradient by its own vectors ──▶ backward
#
# What is compared is then what one process would compare. A process with one part computes it once: it keeps the graph.
#
# Source: Gao et al. 2021 (Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup), section 3; vectors
# gathered from all as in Radford et al. 2021 (CLIP), section 2.5, where each process computes its rows of the scores;
# here it computes all of them, which are little beside the model.
#
# Shape suffixes: E = vectors, D = their size, K = what is known of each, M = processes, R = the most vectors of any.

Encode = Callable[[StepPart, int], Tensor]
"""Hidden states [T, D] of a part, given it and its number."""


class Kept(NamedTuple):
    """What was computed of the only part of a process, with its graph: hidden states, and vectors."""

    hidden_TD: Tensor
    vectors_ED: Tensor


@dataclass(frozen=True)
class CachedLoss:
    """The loss of a whole step, and what this process's parts are to pass back.

    Attributes:
        mean: The loss, divided by the number of targets, without a gradient; in all processes but the first 0, so that
            it counts once.
        gradients: Of each part [E, D]: of the weighted mean loss by its vectors.
        kept: Of the only part, which need not be computed again; None: there are several.
    """

    mean: Tensor
    gradients: tuple[Tensor, ...]
    kept: Kept | None

    def of_part(self, number: int, vectors_ED: Tensor) -> Tensor:
        """A number whose gradient by the weights is what this part adds to that of the step."""
        return (vectors_ED * self.gradients[number]).sum()


def cached_loss(
    model: Trainable,
    parts: Sequence[StepPart],
    index: int,
    objective: Objective,
    *,
    encode: Encode,
    total: float,
    group: Group,
    patient: bool = False,
) -> CachedLoss:
    """Makes the first two passes. Parameters that the loss itself has (a temperature) get their gradient here.

    Args:
        model: In training mode.
        parts: Of the step, this process's.
        index: Which of the step's objectives it is.
        objective: With a joint loss.
        encode: Gives the hidden states of a part, the same whenever it is asked.
        total: What the summed loss is divided by: of all processes.
        group: The processes, all of which are here.
        patient: Whether the others may take long.

    Raises:
        FailedElsewhereError: Another process could not compute its vectors.
        GroupError: Another process has ended, or does not answer.
    """
    joint = objective.joint
    assert joint is not None, "its targets are compared with each other"
    targets = cast(list[JointTargets], [part.targets[index] for part in parts])
    columns_EK = torch.cat([each.columns() for each in targets])
    told = group.told([len(columns_EK), sum(map(len, targets))], patient=patient)
    sizes, counts = ([int(number) for number in each] for each in zip(*told, strict=True))
    is_only, kept = len(parts) == 1, None
    with _computed_by_all(group, patient=patient):
        found = []
        for number, part in enumerate(parts):
            with torch.set_grad_enabled(is_only):
                hidden_TD = encode(part, number)
                vectors_ED = joint.vectors(model, hidden_TD, targets[number])
            kept = Kept(hidden_TD, vectors_ED) if is_only else None
            found.append(vectors_ED.detach())
        every_ED = torch.cat(found)
        # Room is made before anything is sent, since others would wait for who finds no memory for it.
        rooms = [_Room.of(each, sizes) for each in (every_ED, columns_EK)] if group.share.world_size > 1 else []
    if rooms:
        every_ED, columns_EK = (room.gathered(group, sizes) for room in rooms)
        del rooms
        targets = [targets[0].of_columns(columns_EK, sum(counts))]
    every_ED.requires_grad_()
    mean = joint.losses(model, every_ED, targets).total / total
    if group.is_first:
        (objective.weight * mean).backward()
        gradient_ED = every_ED.grad
    else:  # what is the loss's own, such as a temperature, has its gradient in the first process, once
        (gradient_ED,) = torch.autograd.grad(objective.weight * mean, every_ED)
    assert gradient_ED is not None
    begin = sum(sizes[: group.share.rank])
    own_ED = gradient_ED[begin : begin + sizes[group.share.rank]]
    mean = mean.detach() if group.is_first else torch.zeros_like(mean)
    return CachedLoss(mean, own_ED.split([len(each) for each in found]), kept)


class _Room(NamedTuple):
    """Room for something of all processes: what this one has of it, filled up to R, and all of it."""

    own_RK: Tensor
    every_MRK: Tensor

    @classmethod
    def of(cls, own_EK: Tensor, sizes: Sequence[int]) -> _Room:
        """Makes it, for so many of each process."""
        own_RK = pad(own_EK, (0, 0, 0, max(sizes) - len(own_EK)))
        return cls(own_RK, own_RK.new_empty(len(sizes), *own_RK.shape))

    def gathered(self, group: Group, sizes: Sequence[int]) -> Tensor:
        """[E, K]: of all processes, one behind another."""
        group.gather(self.every_MRK.unbind(0), self.own_RK)
        return torch.cat([each_RK[:size] for each_RK, size in zip(self.every_MRK, sizes, strict=True)])


@contextmanager
def _computed_by_all(group: Group, *, patient: bool) -> Iterator[None]:
    """While it is entered, something is computed that all processes wait for; they go on together or not at all.

    Raises:
        FailedElsewhereError: Another process failed in it.
    """
    if group.share.world_size == 1:
        yield
        return
    try:
        yield
    except Exception as error:
        group.told([kind_of_failure(error)], patient=patient)
        raise
    if failure := int(max(said for (said,) in group.told([0], patient=patient))):
        raise FailedElsewhereError(failure)


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
    (`unmask.train.step`). What is minimised is the loss per predicted token plus that of each other
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
        return None if dropout_seed is None else mix_ints(dropout_seed, number + group.share.rank * _MOST_PARTS)

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
            if objective.joint is not None and (len(parts) > 1 or group.share.world_size > 1)
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
