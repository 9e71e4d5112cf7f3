"""What a check of a model came to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

TOLERANCE = 1e-3  # of logits and hidden states in float32, between two ways to compute them


@dataclass(frozen=True)
class Check:
    """A result.

    Attributes:
        passed: Whether the promise holds.
        largest_difference: Between the two things that were compared: of numbers the largest absolute one, of ids or
            files how many differ; None where it is no number (NaN, infinity, or the comparison broke off).
        detail: What was compared, or what is wrong and the way out.
    """

    passed: bool
    largest_difference: float | None
    detail: str


def compare(ours: Tensor, theirs: Tensor, detail: str, *, tolerance: float = TOLERANCE) -> Check:
    """Compares numbers; other shapes, and what is not finite, pass nothing."""
    if ours.shape != theirs.shape:
        return Check(False, None, f"{detail}: of shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    difference = (ours.double() - theirs.double()).abs().max().item()
    if not math.isfinite(difference):
        return Check(False, None, f"{detail}: not finite")
    return Check(difference <= tolerance, difference, detail)


def count(wrong: list[str], detail: str) -> Check:
    """Passes where nothing is wrong; else says all that is.

    Args:
        wrong: A sentence for each thing.
        detail: What was compared.
    """
    return Check(not wrong, float(len(wrong)), "; ".join(wrong) or detail)


def worst(checks: list[Check]) -> Check:
    """The first that failed, or the one with the largest difference."""
    failed = [check for check in checks if not check.passed]
    return failed[0] if failed else max(checks, key=lambda check: check.largest_difference or 0.0)
