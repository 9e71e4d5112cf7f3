"""Mixtures: one strategy for each document piece, or for each step, in proportions that may change with progress.

Shape suffix: T = all positions of a batch in a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from unmask.hashing import PART, PART_OF_STEP, mix, mix_ints
from unmask.masking.flat_rows import FlatRows, FlatUnits, partition, pick, take
from unmask.masking.settings import MixturePart, MixtureUnits
from unmask.masking.units import SpanUnits
from unmask.masking.vocabulary_tables import Tables
from unmask.masking.weights import keys_of

_CHOICE = 5  # sets these draws apart from those that choose units


@dataclass(frozen=True)
class Mixed:
    """Segments partitioned by the strategies that fall to them.

    Attributes:
        units: The units.
        log2_T: int64: logarithms of their weights, at the places where they begin.
        keys_T: int64: their keys, where a budget of tokens needs some.
        per_unit_T: bool: whether replacement draws once for the token's unit.
        in_span_T: bool: whether that is a span.
    """

    units: FlatUnits
    log2_T: Tensor
    keys_T: Tensor | None
    per_unit_T: Tensor
    in_span_T: Tensor


def draw_mixture(
    mixture: MixtureUnits,
    rows: FlatRows,
    tables: Tables,
    *,
    seed: int,
    epoch: int,
    step: int,
    progress: float,
    with_keys: bool,
) -> Mixed:
    """Partitions each segment by the strategy that falls to it.

    Args:
        mixture: The strategies.
        rows: The batch.
        tables: For the strategies that need some.
        seed: Of the masker.
        epoch: Of the rows.
        step: Number of the step, where the progress does not tell it.
        progress: Of the training, in [0, 1].
        with_keys: Whether units get keys.
    """
    ends = _ends(mixture, progress)
    choice_T = PART.of(mix(take(rows.bits_T, rows.segment_begin_T) + mix_ints(_CHOICE)))
    if mixture.per == "step":  # all segments alike
        one = PART_OF_STEP.of(mix_ints(seed, epoch, step, int(progress * (1 << 53)), _CHOICE))
        choice_T = torch.full_like(choice_T, one)
    part_T = torch.zeros_like(choice_T)
    for end in ends:
        part_T += choice_T >= end

    starts_T = torch.zeros_like(rows.maskable_T)
    log2_T = torch.zeros_like(rows.bits_T)
    keys_T = torch.zeros_like(rows.bits_T) if with_keys else None
    per_unit_T = torch.zeros_like(rows.maskable_T)
    in_span_T = torch.zeros_like(rows.maskable_T)
    for number, part in enumerate(mixture.parts):
        mine_T = part_T == number
        part_starts_T = part.units.starts(rows, tables)
        part_units = partition(rows, part_starts_T)
        part_log2_T = part.weights.log2(rows, part_units, tables)
        starts_T = torch.where(mine_T, part_starts_T, starts_T)
        log2_T = pick(mine_T, 0 if part_log2_T is None else part_log2_T, log2_T)
        if keys_T is not None:
            keys_T = pick(mine_T, keys_of(part.weights, part_log2_T, rows, part_units), keys_T)
        if part.units.replaced_per == "unit":
            per_unit_T |= mine_T
        if isinstance(part.units, SpanUnits):
            in_span_T |= mine_T
    return Mixed(partition(rows, starts_T), log2_T, keys_T, per_unit_T, in_span_T)


def _ends(mixture: MixtureUnits, progress: float) -> list[int]:
    """Upper ends of the parts' shares on the scale of the draws."""
    shares = [_share(part, progress) for part in mixture.parts]
    total = sum(shares)
    return [round(end / total * 2**PART.size) for end in accumulate(shares)]


def _share(part: MixturePart, progress: float) -> float:
    share = part.share
    return share if isinstance(share, float) else share.at(progress)
