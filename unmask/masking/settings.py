"""Settings of masking and of mixtures, and names of strategies: each is shorthand for a pair (units, weights)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from unmask.masking.annotated_weights import FirstWeights, RoleWeights
from unmask.masking.rate_schedule import BetaRate, Rate, RateSchedule, SampledRate, ScheduledRate, StepRate, UniformRate
from unmask.masking.replacement import Replacement, Share
from unmask.masking.scored_weights import CentralityWeights, LossWeights, TfIdfWeights
from unmask.masking.units import (
    CollocationUnits,
    EntityUnits,
    PhraseUnits,
    PlainUnits,
    SpanUnits,
    SubtreeUnits,
    TokenUnits,
    WordUnits,
)
from unmask.masking.weights import AnyWeights, FrequencyWeights, UniformWeights
from unmask.settings import Settings, settings_within

Strategy = Literal[
    "random", "whole_word", "span", "pmi", "frequency", "adaptive", "entity", "phrase", "syntax", "contextual",
    "semantic", "mixture",
]  # fmt: skip
STRATEGIES: dict[str, dict[str, Settings]] = {
    "random": {"units": TokenUnits(), "weights": UniformWeights()},
    "whole_word": {"units": WordUnits(), "weights": UniformWeights()},
    "span": {"units": SpanUnits(), "weights": UniformWeights()},
    "pmi": {"units": CollocationUnits(), "weights": UniformWeights()},
    "frequency": {"units": WordUnits(), "weights": FrequencyWeights()},
    "adaptive": {"units": WordUnits(), "weights": LossWeights()},
    "entity": {"units": EntityUnits(), "weights": FirstWeights()},
    "phrase": {"units": PhraseUnits(), "weights": UniformWeights()},
    "syntax": {"units": SubtreeUnits(), "weights": RoleWeights()},
    "contextual": {"units": WordUnits(), "weights": TfIdfWeights()},
    "semantic": {"units": WordUnits(), "weights": CentralityWeights()},
}


class LinearShare(Settings):
    """From `start` to `end` in a straight line over the training."""

    kind: Literal["linear"]
    start: Share
    end: Share

    def at(self, progress: float) -> float:
        """The share at a progress in [0, 1]."""
        return self.start + (self.end - self.start) * progress


class MixturePart(Settings):
    """One strategy of a mixture.

    Attributes:
        strategy: A name of `STRATEGIES`, which fills in units and weights; None where these are given directly.
        units, weights: As in `MaskingSettings`.
        share: Of the document pieces (or steps) that it falls to, before shares are scaled to a sum of 1; a number,
            or a line over the training.
    """

    strategy: str | None = None
    units: PlainUnits
    weights: AnyWeights
    share: Share | LinearShare = 1.0

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: Any) -> Any:
        return expand_strategy(values)


class MixtureUnits(Settings):
    """One strategy for each document piece or step.

    Attributes:
        parts: The strategies, with their shares.
        per: Whether each document piece (`row`) or each `step` gets one; a row holds several pieces, and a mask does
            not depend on what else a row holds. A step is known by its epoch and its progress, or its number where no
            progress is told.
    """

    kind: Literal["mixture"] = "mixture"
    parts: Annotated[tuple[MixturePart, ...], Field(min_length=2)]
    per: Literal["row", "step"] = "row"

    @model_validator(mode="after")
    def _check(self) -> Self:
        ends = (
            [part.share if isinstance(part.share, float) else part.share.at(p) for part in self.parts] for p in (0, 1)
        )
        if not all(sum(shares) > 0.0 for shares in ends):
            raise ValueError("the shares of the parts are all 0 at the beginning or the end; give one of them more")
        return self


AnyUnits = Annotated[PlainUnits | MixtureUnits, Field(discriminator="kind")]


class MaskingSettings(Settings):
    """What is masked, how much of it, and what stands there instead.

    Attributes:
        strategy: A name of `STRATEGIES`, which fills in units and weights; None where these are given directly
            (what is missing of them is that of `random`).
        units: How a row is partitioned.
        weights: How likely a unit is.
        rate: Expected share of the text's tokens that is chosen; a number, a schedule over progress, or a distribution
            from which each document piece draws.
        prediction_rate: Expected share that is predicted, at most `rate`; the rest of the chosen tokens is replaced and
            not predicted. None predicts all that are chosen. Source: Wettig et al. 2023, section 5.
        budget: `units` takes every unit with the probability that its weight gives it: equal ones with the rate,
            others in proportion to their weights (at most 1), so that neither size nor place nor the length of the
            document matters. `tokens` fills a budget of tokens in the order of random keys, as earlier versions did:
            the share of tokens varies less from step to step, but in short documents long words are taken too
            rarely, last spans too often, and not in proportion to weights (docs/masking.md).
        least_one: Whether each document piece has at least one target; this bends the rate of very short ones, so
            it cannot be had with losses that are weighted by the rate.
        replacement: What stands at the chosen tokens.
        static: Whether the masks are the same in every epoch; where the rate follows a schedule, as many of them as it
            says.
        refresh_steps: Steps after which scores that a model makes for the weights are made anew.
    """

    strategy: str | None = None
    units: AnyUnits
    weights: AnyWeights
    rate: Rate | RateSchedule = 0.15
    prediction_rate: Rate | None = None
    budget: Literal["units", "tokens"] = "units"
    least_one: bool = False
    replacement: Replacement = Replacement()
    static: bool = False
    refresh_steps: Annotated[int, Field(ge=1)] = 200

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: Any) -> Any:
        return expand_strategy(values)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.units, MixtureUnits) and self.weights != UniformWeights():
            raise ValueError("the weights of a mixture stand in its parts; leave masking.weights out")
        if self.static and isinstance(self.units, MixtureUnits) and self.units.per == "step":
            raise ValueError("static masks cannot have a strategy for each step; set units.per to 'row'")
        weighted = getattr(self.rate, "loss_weight", "none") != "none"
        if self.least_one and weighted:
            raise ValueError(
                "loss_weight = 'inverse' is for targets that are hidden at their rate, and least_one hides some "
                "whatever the rate is; leave it or least_one out"
            )
        if self.prediction_rate is not None and weighted:
            raise ValueError(
                "loss_weight = 'inverse' is for rates at which all that is hidden is predicted; leave it or "
                "prediction_rate out"
            )
        if self.prediction_rate is not None:
            least = min(_least(self.rate), 1.0)
            if self.prediction_rate > least:
                raise ValueError(
                    f"prediction_rate {self.prediction_rate} is more than the rate ({least:g} at its least): a token "
                    "that stands there unchanged would be predicted from itself"
                )
        return self


def all_weights(settings: MaskingSettings) -> list[Settings]:
    """The weights of a strategy, or of all parts of a mixture."""
    if isinstance(settings.units, MixtureUnits):
        return [part.weights for part in settings.units.parts]
    return [settings.weights]


def followed_scores(settings: MaskingSettings) -> set[str]:
    """Names of the scores of a model that the weights follow; empty where they follow none."""
    return {name for weights in all_weights(settings) if (name := getattr(weights, "score", None))}


def span_units(settings: MaskingSettings) -> SpanUnits | None:
    """How spans are drawn, by the strategy or the first part of a mixture that draws some; None: there are none."""
    parts = settings.units.parts if isinstance(settings.units, MixtureUnits) else (settings,)
    return next((part.units for part in parts if isinstance(part.units, SpanUnits)), None)


def _least(rate: float | ScheduledRate | SampledRate) -> float:
    if isinstance(rate, float):
        return rate
    if isinstance(rate, UniformRate | BetaRate):
        return float(rate.quantiles()[0])
    if isinstance(rate, StepRate):
        return min(rate.rates)
    return min(rate.at(progress / 100) for progress in range(101))


def expand_strategy(values: Any) -> Any:
    """Fills in units and weights by the name of a strategy; what is given beside it is kept.

    Raises:
        ValueError: The name is unknown.
    """
    if not isinstance(values, dict):
        return values
    name = values.get("strategy")
    if name is not None and (not isinstance(name, str) or name not in STRATEGIES):
        raise ValueError(f"unknown strategy {name!r}; known are {', '.join(STRATEGIES)}")
    pair = STRATEGIES[name or "random"]
    if name is None and not pair.keys() & values.keys():
        name = "random"
    parts = {part: _filled(values.get(part), default) for part, default in pair.items()}
    if not all(_is_default(parts[part], default) for part, default in pair.items()):
        name = None
    return {**values, **parts, "strategy": name}


def _is_default(given: Any, default: Settings) -> bool:
    """Whether settings, or a table of such as a recipe's file holds it, are those of the strategy."""
    if isinstance(given, Settings):
        return given == default
    try:
        return type(default).model_validate(given) == default
    except ValueError:
        return False  # of another kind, or wrong, which whoever takes it says


def _filled(given: Any, default: Settings) -> Any:
    """A table of the default's kind, or without one, takes from it what it leaves open."""
    if given is None:
        return default
    kind = default.model_dump()["kind"]
    same_kind = isinstance(given, dict) and given.get("kind", kind) == kind
    return {**default.model_dump(), **given} if same_kind else given


STRATEGIES["mixture"] = {
    "units": MixtureUnits.model_validate(
        {"parts": [{"strategy": "random"}, {"strategy": "whole_word"}, {"strategy": "span"}]}
    ),
    "weights": UniformWeights(),
}


def needed_annotations(settings: object) -> tuple[str, ...]:
    """The columns of annotation that some settings of masking need, each once: known before anything is prepared.

    Args:
        settings: Units, weights, or anything that holds such, as a mixture does: settings whose class says so with
            `needs`.
    """
    needs = (name for inner in settings_within(settings) for name in getattr(inner, "needs", ()))
    return tuple(dict.fromkeys(needs))
