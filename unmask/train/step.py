"""One training step, in one block, and the state that it changes.

If memory runs out or a block cannot be compiled, the gradient is computed again, in parts of half as many rows or
uncompiled. The whole gradient is repeated, not only the call that failed, since backward passes are compiled as well,
and a block that is recomputed there (gradient checkpointing) must be the same as in the forward pass.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from unmask.core.errors import DivergedError, MemoryFullError, SettingsError, says_out_of_memory
from unmask.core.hashing import mix_ints
from unmask.core.results import duration
from unmask.data.rows import Cursor, Rows, map_tensors
from unmask.masking.masker import MaskedRows
from unmask.model.encoder import MaskedLM, has_compiled_blocks, uncompile_model
from unmask.model.fused import MOST, Sequences
from unmask.train.distributed import ALONE, Group, Synced
from unmask.train.hardware import reason_of, sums_dtype, works_on_its_own
from unmask.train.objectives import PREDICT_MASKED, JointLoss, Objective, StepTargets, Targets
from unmask.train.settings import TrainingSettings

if TYPE_CHECKING:
    from unmask.train.scores import ScoreBoard

log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The lowest held-out loss of a run so far, and the step after which it was measured."""

    step: int
    loss: float


@dataclass
class TrainState:
    """The content of a checkpoint. It needs no random generator: order and masks are functions of the cursor."""

    model: Any  # an `nn.Module` as `unmask.model.encoder.Trainable` describes it
    optimizer: torch.optim.Optimizer
    cursor: Cursor = field(default_factory=Cursor)  # where the next batch begins
    step: int = 0  # optimizer steps made
    tokens_seen: int = 0  # tokens of text trained on, repetitions included
    seconds: float = 0.0  # of training so far, also before interruptions; with a budget in minutes, evaluations, too
    micro_tokens: int | None = None  # most positions computed at once, if the settings limit it or memory ran out
    ran_out: bool = False  # whether memory ran out
    best: Best | None = None  # the lowest held-out loss so far
    board: ScoreBoard | None = None  # scores, if masking follows any
    history: list[dict[str, Any]] = field(default_factory=list)  # evaluations, in trainings that decide by them
    recent_losses: list[float] = field(default_factory=list)  # since the last, in trainings that report their mean
    best_weights: dict[str, Tensor] | None = None  # final weights, in trainings that keep the best; on any device

    def keep_weights(self) -> None:
        self.best_weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def progress(self, settings: TrainingSettings) -> float:
        return settings.progress(self.step, self.tokens_seen, self.seconds)


@dataclass(frozen=True)
class MeanLoss:
    """A loss in nats per target, and the number of targets."""

    loss: float
    count: int


class Measured(NamedTuple):
    loss: float  # nats per predicted token, before the update
    gradient_norm: float  # before clipping
    objectives: Mapping[str, MeanLoss]  # the losses of the other objectives, by name, without their weights


class Figures:
    """The figures of a step. A GPU may still be computing them when the host begins the next step: they are copied to
    pinned memory, and reading them waits for this step only.

    `counts` are the numbers of targets by objective, the main one first. `values_F` are the mean losses of the
    objectives and the gradient's norm, on any device.
    """

    def __init__(self, step: int, counts: Mapping[str, int], values_F: Tensor, micro_batches: int) -> None:
        self.predicted_tokens, self.micro_batches = next(iter(counts.values())), micro_batches
        self._step, self._counts = step, counts
        self._measured: Measured | None = None
        self._values_F, self._sent = values_F, None
        if values_F.device.type == "cuda":
            self._values_F = torch.empty(values_F.shape, dtype=values_F.dtype, pin_memory=True)
            self._values_F.copy_(values_F, non_blocking=True)
            self._sent = torch.cuda.Event()
            self._sent.record()

    @property
    def arrived(self) -> bool:
        """Whether `read` would not wait."""
        return self._measured is not None or self._sent is None or self._sent.query()

    def read(self) -> Measured:
        """The figures; waits if the step is still being computed.

        Raises a DivergedError if one is not finite. That step has changed nothing, but on a GPU later steps may have
        been made: read the figures of a step before saving its state.
        """
        if self._measured is None:
            if self._sent is not None:
                self._sent.synchronize()
            *losses, norm = self._values_F.tolist()
            if not all(map(math.isfinite, losses)):
                by_name = ", ".join(f"{loss} ({name})" for name, loss in zip(self._counts, losses, strict=True))
                raise DivergedError(f"the loss of step {self._step} is {by_name if len(losses) > 1 else losses[0]}")
            if not math.isfinite(norm):
                raise DivergedError(f"the gradient of step {self._step} has the norm {norm}")
            named = zip(self._counts.items(), losses, strict=True)
            means = {name: MeanLoss(loss, count) for (name, count), loss in named}
            main = means.pop(next(iter(means)))
            self._measured = Measured(main.loss, norm, means)
        return self._measured


# ----------------------------------------
# The parts of a step: a few rows each, with their targets, on the model's device.
#
# If the model is on a GPU, rows and masks are on the host. Targets are found and counted there, and the model's inputs,
# a few MB, are pinned and copied. The copies are queued on the GPU after the previous step; the host does not wait for
# them, and knows every shape in advance.
#
# Shape suffixes: B = rows, S = positions, N = targets.


@dataclass(frozen=True)
class StepPart:
    """Rows of a step that are computed at once."""

    input_ids_BS: Tensor  # int64: masked ids, the model's input
    # The encoder's other arguments: `segment_ids_BS`, `position_ids_BS`, `token_type_ids_BS` or None, and `sequences`:
    # the segments in a line, or None, in which case the encoder makes them if it needs them.
    inputs: dict[str, Any]
    targets: tuple[StepTargets, ...]  # of each objective
    totals: tuple[float, ...]  # this part's contribution to the divisor of each objective's summed loss
    pos_N: Tensor | None  # parts of speech of the first objective's targets, if the rows have them


_BUFFER_BYTES = 4 << 30  # most extra memory of attention's backward pass for a part
_BLOCK = 128  # attention's backward pass rounds sequences up to at most a multiple of this
_FILLED = 1.25  # largest ratio of all sequences to those of non-zero length


def parts_of(
    rows: Rows,
    masked: MaskedRows,
    objectives: Sequence[Objective],
    *,
    micro_rows: int | None,
    device: torch.device,
    width: int,
) -> list[StepPart]:
    """Cuts a step into parts of about equal size. Its rows and masks are on the model's device or on the host.

    A part has at most `micro_rows` rows. None makes a single part, or more if the kernel over sequences needs it for
    hidden states of size `width` (`most_rows`).
    """
    num_rows = rows.shape[0]
    on_device = rows.input_ids.device.type == device.type
    if not on_device:
        micro_rows = min(micro_rows or num_rows, most_rows(rows, width))
    num_parts = math.ceil(num_rows / (micro_rows or num_rows))
    cuts = [number * num_rows // num_parts for number in range(num_parts + 1)]
    parts = []
    for begin, end in pairwise(cuts):
        own, own_masked = rows.part(begin, end), masked.part(begin, end)
        targets = tuple(each.targets(own, own_masked) for each in objectives)
        inputs = {
            "segment_ids_BS": own.segment_ids,
            "position_ids_BS": own.position_ids,
            "token_type_ids_BS": own.token_type_ids,
            "sequences": None if on_device else Sequences.of(own.segment_ids),
        }
        pos_BS = own.annotations.get("pos")
        pos_N = None if pos_BS is None else pos_BS.flatten()[targets[0].positions_N]
        part = StepPart(own_masked.input_ids, inputs, targets, tuple(each.total for each in targets), pos_N)
        if not on_device:  # copy from pinned memory, so that the host does not wait
            part = map_tensors(
                part, lambda t: (t.pin_memory() if device.type == "cuda" else t).to(device, non_blocking=True)
            )
        parts.append(part)
    return parts


def most_rows(rows: Rows, width: int) -> int:
    """How many of these rows a GPU's kernel over sequences can take at once, with hidden states of size `width`.

    The number of sequences is limited. The backward pass takes float32 numbers for every position, and for 128 more in
    each sequence: with many short sequences this is more than the rest of the step.
    """
    length = rows.shape[1]
    sequences = int(rows.segment_ids.max()) + 1 + math.ceil(length / _BLOCK)  # upper bound for a row, with its padding
    row_bytes = 4 * width * (length + _BLOCK * _FILLED * sequences)
    return max(1, min(MOST // sequences, int(_BUFFER_BYTES / row_bytes)))


# ----------------------------------------
# The step.
#
# A loss that compares targets across the whole step (`JointLoss`) is computed from the vectors of all parts and
# processes, so that any batch fits the memory of one part:
#
#     1. each part forward, without a graph       vectors, gathered from all processes
#     2. the loss of all vectors                  its gradient by each vector
#     3. each part forward again, with a graph    backward from its vectors, with their gradients
#
# The result is the gradient of the whole batch, for an additional forward pass, since dropout depends only on the step
# and the part. A process with a single part computes it once and keeps the graph; if memory runs out in the backward
# pass, it goes on with several.
#
# Source: Gao et al. 2021 (Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup), section 3. Vectors
# are gathered as in Radford et al. 2021 (CLIP), section 2.5. There each process computes its rows of the scores; here
# it computes all of them, which is cheap next to the model.
#
# Shape suffixes: T = positions of a part, E = vectors, D = their size, K = facts about each vector, O = objectives.

_DROPOUT = 3  # gives these seeds other values than those of the masks
_MOST_PARTS = 1 << 20  # parts of a step; gives each process its own seeds


def training_step(  # noqa: PLR0915  (one step, whole)
    state: TrainState,
    settings: TrainingSettings,
    rows: Rows,
    masked: MaskedRows,
    *,
    objectives: Sequence[Objective] = (PREDICT_MASKED,),
    learning_rate_scale: float = 1.0,
    group: Group = ALONE,
    synced: Synced | None = None,
) -> Figures:
    """Computes the losses of all objectives on a batch, and updates the model.

    Each loss is summed over all parts and processes, and divided by the number of its targets in the whole step (or the
    sum of their weights): averaging the means of parts with unequal numbers of targets would be wrong. The step
    minimises the mean loss of the main objective plus the weighted mean losses of the others.

    On a GPU nothing waits for the device if rows and masks are on the host, and reading the figures later tells whether
    they are finite. On a CPU this is known before the update.

    `rows` and `masked` are this process's share of the batch, on the device of the model or on the host. The loss of
    the first objective is that of the step. If memory runs out, `state.micro_tokens` is reduced. `synced` is
    `synced_over` the model and the group; None for a single process.
    """
    model, optimizer, board, step = state.model, state.optimizer, state.board, state.step + 1
    device, seed, first = model.encoder.device, mix_ints(settings.seed, step, _DROPOUT), group.rank * _MOST_PARTS
    attempts = _Attempts(state, settings, rows, masked, objectives)

    totals, counts = _divisors(attempts.parts, objectives, group)

    # Softmaxes are over one sample of the vocabulary in the whole step, so that its parts and processes do not matter.
    if isinstance(model, MaskedLM) and model.head.frequent_K is not None:
        targets_of = (part.targets[0] for part in attempts.parts)
        classes_N = torch.cat([targets.classes_N for targets in targets_of if isinstance(targets, Targets)])
        model.head.draw_sample(group.all_gather_rows(classes_N), seed=seed)

    def hidden_of(part: StepPart, number: int) -> Tensor:
        hidden_BSD: Tensor = model.encoder(
            part.input_ids_BS, **part.inputs, dropout_seed=mix_ints(seed, first + number)
        )
        return hidden_BSD.flatten(0, 1)

    # Vectors to compare across parts and processes.
    joint = {index: _JointVectors(objective.losses, objective.weight, index, totals[index], group)
             for index, objective in enumerate(objectives) if isinstance(objective.losses, JointLoss)}  # fmt: skip
    for each in joint.values():
        attempts.make(partial(each.compute, model, hidden_of))
        each.gather()

    predictions: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []  # for the scores that masking follows
    losses_O: list[Tensor] = []

    def loss_of(part: StepPart, number: int) -> Tensor:
        graph = next((each.graph for each in joint.values() if each.graph is not None), None)
        hidden_TD = hidden_of(part, number) if graph is None else graph[0]
        loss = torch.zeros((), device=device)
        for index, (objective, targets) in enumerate(zip(objectives, part.targets, strict=True)):
            if isinstance(objective.losses, JointLoss):
                each = joint[index]
                # A scalar whose gradient in this part is that of the joint loss. The graph can be used only once.
                vectors_ED = each.loss.vectors(model, hidden_TD, targets) if each.graph is None else each.graph[1]
                each.graph = None
                loss = loss + (vectors_ED * each.gradients[number]).sum()
                continue
            losses = objective.losses(model, hidden_TD, targets, mix_ints(seed, first + number))
            is_masked = objective.targets is PREDICT_MASKED.targets  # also with a loss of the user's own
            if board is not None and board.needs_steps and is_masked and isinstance(targets, Targets):
                predictions.append((targets.classes_N, losses.each_N, losses.wrong_N, part.pos_N))
            mean = losses.total / totals[index]
            losses_O[index] = losses_O[index] + mean.detach().to(losses_O[index].dtype)
            loss = loss + objective.weight * mean
        return loss

    def gradient(parts: Sequence[StepPart]) -> None:
        model.zero_grad()  # left by an attempt or a step that was interrupted
        predictions.clear()
        losses_O[:] = [torch.zeros((), dtype=sums_dtype(device), device=device) for _ in objectives]
        for index, each in joint.items():
            losses_O[index] = each.gradient(parts).to(losses_O[index].dtype)
        for number, part in enumerate(parts[:-1]):
            begin = time.monotonic()
            loss_of(part, number).backward()
            # The first part may have compiled loops. On a GPU the host does not know how long one takes.
            if (step, number, device.type) == (1, 1, "cpu"):
                _warn_of_long_step(len(parts) * (time.monotonic() - begin), settings)
        last = partial(loss_of, parts[-1], len(parts) - 1)
        loss = last() if synced is None else synced(last)
        attempts.is_syncing = group.world_size > 1
        with group.answered():
            loss.backward()

    attempts.make(gradient)

    # Clip the gradient, and start copying the figures to the host.
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    at_once = True if device.type in ("cuda", "cpu") else None  # elsewhere torch decides
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=at_once)
    nn.utils.clip_grads_with_norm_(parameters, settings.clip_norm, norm, foreach=at_once)
    summed_O = group.all_reduce(torch.stack(losses_O))
    values_F = torch.cat([summed_O, norm.to(summed_O.dtype)[None]])
    figures = Figures(step, counts, values_F, len(attempts.parts))

    # Update if the gradient is finite. On a GPU the host does not wait to know, if the optimizer checks `found_inf`
    # itself, the protocol of torch's gradient scaler.
    for param_group in optimizer.param_groups:  # peaks are the rates that groups were made with
        peak = param_group.setdefault("initial_lr", param_group["lr"])
        param_group["lr"] = peak * learning_rate_scale * param_group.get("lr_factor", 1.0)
    diverged = (~values_F.isfinite().all()).float() if works_on_its_own(device) else None
    checks_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
    with attempts.update(parameters):
        if diverged is None:
            figures.read()
        elif checks_itself:
            optimizer.found_inf = diverged  # type: ignore[attr-defined]
        if diverged is None or checks_itself or not diverged.item():
            optimizer.step()
    state.step = step
    if predictions and board is not None:  # gathers all parts and processes in the order of their rows
        columns = [column for column in zip(*predictions, strict=True) if column[0] is not None]
        board.observe(*(group.all_gather_rows(torch.cat(column)) for column in columns))
    return figures


def _divisors(
    parts: Sequence[StepPart], objectives: Sequence[Objective], group: Group
) -> tuple[list[float], dict[str, int]]:
    """The divisor of each objective's summed loss, and the numbers of targets by name, over all parts and processes."""
    own = [sum(each) for each in zip(*(part.totals for part in parts), strict=True)]
    own += [sum(map(len, each)) for each in zip(*(part.targets for part in parts), strict=True)]
    sums = [math.fsum(each) for each in zip(*group.all_gather(own), strict=True)]
    totals, counts = sums[: len(objectives)], sums[len(objectives) :]
    names = (objective.name for objective in objectives)
    return [total or 1.0 for total in totals], dict(zip(names, map(int, counts), strict=True))


def _warn_of_long_step(seconds: float, settings: TrainingSettings) -> None:
    if settings.minutes is not None and seconds > 60.0 * settings.minutes:
        way_out = "make steps smaller, or set a number of steps"
        log.warning("a step takes about %s, longer than the minutes: %s", duration(seconds), way_out)


class _JointVectors:
    """The loss of an objective whose targets are compared with each other across the step."""

    def __init__(self, loss: JointLoss, weight: float, index: int, total: float, group: Group) -> None:
        self.loss, self.weight, self.index, self.total, self.group = loss, weight, index, total, group
        # Hidden states and vectors of a process's only part, with their graph, until the backward pass.
        self.graph: tuple[Tensor, Tensor] | None = None

    def compute(self, model: Any, hidden_of: Callable[[StepPart, int], Tensor], parts: Sequence[StepPart]) -> None:
        self.graph, vectors = None, []
        for number, part in enumerate(parts):
            with torch.set_grad_enabled(len(parts) == 1):
                hidden_TD = hidden_of(part, number)
                vectors_ED = self.loss.vectors(model, hidden_TD, part.targets[self.index])
            self.graph = (hidden_TD, vectors_ED) if len(parts) == 1 else None
            vectors.append(vectors_ED.detach())
        targets: list[Any] = [part.targets[self.index] for part in parts]
        self.every_ED = vectors[0] if len(vectors) == 1 else torch.cat(vectors)  # sparse ones are large: no copy
        self.columns_EK = torch.cat([each.columns_EK for each in targets])
        self.count = sum(map(len, targets))

    def gather(self) -> None:
        gathered = self.group.all_gather([len(self.every_ED), self.count])
        ends = list(accumulate(int(size) for size, _ in gathered))
        self.own = slice(ends[self.group.rank] - len(self.every_ED), ends[self.group.rank])
        self.count = int(sum(count for _, count in gathered))
        self.every_ED = self.group.all_gather_rows(self.every_ED)
        self.columns_EK = self.group.all_gather_rows(self.columns_EK)

    def gradient(self, parts: Sequence[StepPart]) -> Tensor:
        """Computes the gradient of the loss by the vectors. Returns the mean loss per target, without regularisers, on
        rank 0, and 0 on the others."""
        every_ED = self.every_ED.detach().requires_grad_()
        losses = self.loss.losses(every_ED, self.columns_EK, self.count)
        (gradient_ED,) = torch.autograd.grad(self.weight * losses.total / self.total, every_ED)
        targets: list[Any] = [part.targets[self.index] for part in parts]
        self.gradients = gradient_ED[self.own].split([len(each.columns_EK) for each in targets])
        if len(parts) > 1:
            self.graph = None
        mean = losses.each_N.detach().sum() / self.total
        return mean if self.group.is_main else torch.zeros_like(mean)


class _Attempts:
    """Repeats work that may run out of memory or fail to compile until it succeeds."""

    def __init__(
        self,
        state: TrainState,
        settings: TrainingSettings,
        rows: Rows,
        masked: MaskedRows,
        objectives: Sequence[Objective],
    ) -> None:
        encoder = state.model.encoder
        self.state, self.must_compile, (num_rows, self.length) = state, settings.compile_blocks == "yes", rows.shape
        self.cut = partial(parts_of, rows, masked, objectives, device=encoder.device, width=encoder.width)
        micro_rows = None if state.micro_tokens is None else max(1, state.micro_tokens // self.length)
        self.micro_rows = min(micro_rows or num_rows, num_rows)
        self.parts = self.cut(micro_rows=micro_rows)  # the current parts of the step
        self.is_syncing = False  # whether other processes wait for this gradient, so that nothing can be repeated

    def make(self, work: Callable[[Sequence[StepPart]], object]) -> None:
        """Runs `work` on the parts. Raises a MemoryFullError if not even one row fits, or other processes wait; a
        SettingsError if blocks must be compiled but cannot be."""
        model = self.state.model
        while True:
            try:
                work(self.parts)
                return
            except Exception as error:
                of_memory = isinstance(error, MemoryError | RuntimeError) and says_out_of_memory(error)
                if not of_memory and not (has_compiled_blocks(model) and failed_to_compile(error)):
                    raise
                cause = getattr(error, "inner_exception", error)
                reason = reason_of(error) if of_memory else f"{type(cause).__name__}: {cause}".splitlines()[0]
                if self.is_syncing and of_memory:
                    half = max(1, self.micro_rows // 2) * self.length
                    raise MemoryFullError(
                        f"out of memory while gradients were exchanged between processes ({reason}); resume with "
                        f"smaller parts of a step: training. or embedder.micro_batch_tokens={half}",
                        options=("resume", "set"),
                    ) from error
                if not of_memory and (self.must_compile or self.is_syncing):
                    raise SettingsError(
                        f"blocks cannot be compiled ({reason}); start over with training.compile_blocks = 'no'"
                    ) from error
            # Outside of the handler, since the exception keeps the tensors of the failed attempt alive.
            model.zero_grad()
            if not of_memory:
                uncompile_model(model)
                log.warning("blocks cannot be compiled (%s): training continues uncompiled and slower", reason)
                continue
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self.micro_rows == 1:
                raise MemoryFullError(
                    f"one row of {self.length} positions does not fit in memory ({reason}); use shorter "
                    "inputs (training.sequence_length, finetune.max_length), a smaller model or, in "
                    "pretraining, training.gradient_checkpointing=true"
                )
            self.micro_rows = (self.micro_rows + 1) // 2
            self.state.micro_tokens, self.state.ran_out = self.micro_rows * self.length, True  # for later steps, too
            log.warning(
                "out of memory (%s): from now on steps are split into parts of %s positions (same result, slower)",
                reason, f"{self.state.micro_tokens:,}",
            )  # fmt: skip
            self.parts = self.cut(micro_rows=self.micro_rows)

    @contextmanager
    def update(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Surrounds the update of these parameters, which cannot be repeated. Removes their gradients afterwards."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not says_out_of_memory(error):
                raise
            raise MemoryFullError(
                f"out of memory while step {self.state.step + 1} updated the weights ({reason_of(error)}), so the step "
                "cannot be repeated; resume when more memory is free, or use a smaller model",
                options=("resume",),
            ) from error
        finally:
            for parameter in parameters:
                parameter.grad = None


# Modules that define compilation errors, by name: Triton is not installed everywhere, and torch moves its classes.
_COMPILERS = ("torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx", "triton")


def failed_to_compile(error: Exception) -> bool:
    """Whether an error comes from torch.compile or from code that it calls, but not from running out of memory."""
    if says_out_of_memory(error):
        return False
    modules = [kind.__module__ for kind in type(error).__mro__]
    return any(module == name or module.startswith(f"{name}.") for module in modules for name in _COMPILERS)
