"""The parts that a step is computed in: some rows each, with their targets, brought to where the model is.

Where the model is on a GPU, rows and masks are on the host: targets are found and counted there, and what the model
needs, a few MB, is pinned and copied. The copies stand in line behind the step before, as everything that the GPU is
told; the host does not wait for them, and knows every shape before.

Shape suffixes: B = rows, S = positions, N = targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from unmask.masking.masker import MaskedRows
from unmask.network.attention_plan import MOST, Sequences
from unmask.rows.rows import Rows
from unmask.training.objectives import Objective, StepTargets


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
