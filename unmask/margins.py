"""What ± means in every table: half the width of a 95 % interval. What it is over stands in the table's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

NORMAL = NormalDist().inv_cdf(0.975)  # standard errors, where what is drawn are thousands


def margin(interval: Sequence[float] | None, shown: str = ".3f") -> str:
    """What stands behind a figure; nothing where it has no interval."""
    return "" if interval is None else f" ± {(interval[1] - interval[0]) / 2:{shown}}"


def over(unit: str) -> str:
    """How a head names it."""
    return f"± 95 %, over {unit}"


def unit_of_summary(summary: Mapping[str, Any]) -> str:
    """What the figures of a summary.json are drawn from: `documents`, or `groups` where groups were held out."""
    return str(summary.get("validation_unit", "documents"))


def documents(summary: Mapping[str, Any]) -> str:
    """How many source documents, or groups of them, were measured, of a summary.json."""
    count = summary["validation_documents"]
    return f"{count:,} {unit_of_summary(summary).removesuffix('s' * (count == 1))}"


def sentence(text: str) -> str:
    """A remark as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
