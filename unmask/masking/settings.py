"""Settings of masking, and the names of strategies: each is shorthand for a pair (units, weights)."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from unmask.masking.annotated_units import EntityUnits, PhraseUnits, SubtreeUnits
from unmask.masking.annotated_weights import FirstWeights, RoleWeights
from unmask.masking.replacement import Replacement
from unmask.masking.schedule import Rate, RateSchedule
from unmask.masking.units import AnyUnits, SpanUnits, TokenUnits, WordUnits
from unmask.masking.weights import AnyWeights, FrequencyWeights, UniformWeights
from unmask.settings import Settings

STRATEGIES: dict[str, dict[str, Settings]] = {
    "random": {"units": TokenUnits(), "weights": UniformWeights()},
    "whole_word": {"units": WordUnits(), "weights": UniformWeights()},
    "span": {"units": SpanUnits(), "weights": UniformWeights()},
    "frequency": {"units": WordUnits(), "weights": FrequencyWeights()},
    "entity": {"units": EntityUnits(), "weights": FirstWeights()},
    "phrase": {"units": PhraseUnits(), "weights": UniformWeights()},
    "syntax": {"units": SubtreeUnits(), "weights": RoleWeights()},
}


class MaskingSettings(Settings):
    """What is masked, how much of it, and what stands there instead.

    Attributes:
        strategy: A name of `STRATEGIES`, which fills in units and weights; None where these are given directly
            (what is missing of them is that of `random`).
        units: How a row is partitioned.
        weights: How likely a unit is.
        rate: Expected share of the text's tokens that is predicted; a number or a schedule over progress.
        replacement: What stands at the chosen tokens.
        static: Whether the masks are the same in every epoch.
    """

    strategy: str | None = None
    units: AnyUnits
    weights: AnyWeights
    rate: Rate | RateSchedule = 0.15
    replacement: Replacement = Replacement()
    static: bool = False

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        name = values.get("strategy")
        if name is not None and (not isinstance(name, str) or name not in STRATEGIES):
            raise ValueError(f"unknown strategy {name!r}; known are {', '.join(STRATEGIES)}")
        pair = STRATEGIES[name or "random"]
        if name is None and not pair.keys() & values.keys():
            name = "random"
        parts = {part: _filled(values.get(part), default) for part, default in pair.items()}
        if any(parts[part] not in (pair[part], pair[part].model_dump()) for part in pair):
            name = None
        return {**values, **parts, "strategy": name}


def _filled(given: Any, default: Settings) -> Any:
    """A table of the default's kind, or without one, takes from it what it leaves open."""
    if given is None:
        return default
    kind = default.model_dump()["kind"]
    same_kind = isinstance(given, dict) and given.get("kind", kind) == kind
    return {**default.model_dump(), **given} if same_kind else given
