"""Mixtures: one strategy for each document piece, or for each step, in proportions that may change with progress.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from unmask.hashing import mix, mix_ints
from unmask.masking.flat import FlatRows, FlatUnits, partition
from unmask.masking.lines import pick, take
from unmask.masking.settings import MixtureUnits, Part
from unmask.masking.tables import Tables
from unmask.masking.units import SpanUnits

_CHOICE = 5  # sets these draws apart from those that choose units
_BITS = 30


def draw_mixture(
    mixture: MixtureUnits, rows: FlatRows, tables: Tables, *, seed: int, epoch: int, step: int, progress: float
) -> tuple[FlatUnits, Tensor, Tensor, Tensor]:
    """Partitions each segment by the strategy that falls to it.

    Args:
        mixture: The strategies.
        rows: The batch.
        tables: For the strategies that need some.
        seed: Of the masker.
        epoch: Of the rows.
        step: Number of the step, where the progress does not tell it.
        progress: Of the training, in [0, 1].

    Returns:
        The units; [T], int64: their keys; [T], bool: whether replacement draws once for the token's unit; [T], bool:
        whether that is a span.
    """
    ends = _ends(mixture, progress)
    choice_T = mix(take(rows.bits_T, rows.segment_begin_T) + mix_ints(_CHOICE)) >> (64 - _BITS) & ((1 << _BITS) - 1)
    if mixture.per == "step":  # all segments alike
        one = mix_ints(seed, epoch, step, int(progress * (1 << 53)), _CHOICE) & ((1 << _BITS) - 1)
        choice_T = torch.full_like(choice_T, one)
    part_T = torch.zeros_like(choice_T)
    for end in ends:
        part_T += choice_T >= end

    starts_T = torch.zeros_like(rows.maskable_T)
    keys_T = torch.zeros_like(rows.bits_T)
    per_unit_T = torch.zeros_like(rows.maskable_T)
    in_span_T = torch.zeros_like(rows.maskable_T)
    for number, part in enumerate(mixture.parts):
        mine_T = part_T == number
        part_starts_T = part.units.starts(rows, tables)
        part_keys_T = part.weights.keys(rows, partition(rows, part_starts_T), tables)
        starts_T = torch.where(mine_T, part_starts_T, starts_T)
        keys_T = pick(mine_T, part_keys_T, keys_T)
        if part.units.replaced_per == "unit":
            per_unit_T |= mine_T
        if isinstance(part.units, SpanUnits):
            in_span_T |= mine_T
    return partition(rows, starts_T), keys_T, per_unit_T, in_span_T


def _ends(mixture: MixtureUnits, progress: float) -> list[int]:
    """Upper ends of the parts' shares on a scale of 2**30."""
    shares = [_share(part, progress) for part in mixture.parts]
    total = sum(shares)
    return [round(end / total * 2**_BITS) for end in accumulate(shares)]


def _share(part: Part, progress: float) -> float:
    share = part.share
    return share if isinstance(share, float) else share.at(progress)
