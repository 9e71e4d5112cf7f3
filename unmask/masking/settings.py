"""Settings of masking and of mixtures, and names of strategies: each is shorthand for a pair (units, weights)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from unmask.core.errors import SettingsError, shown
from unmask.core.plugins import OrPlugIn, Table
from unmask.core.settings import Settings, check_places, settings_within
from unmask.masking.units import (
    CollocationUnits,
    EntityUnits,
    PhraseUnits,
    PlainUnits,
    SpanUnits,
    SubtreeUnits,
    TokenUnits,
    Units,
    WordUnits,
)
from unmask.masking.weights import (
    AnyWeights,
    CentralityWeights,
    FirstWeights,
    FrequencyWeights,
    LossWeights,
    RoleWeights,
    TfIdfWeights,
    UniformWeights,
    Weights,
)

# The share of masked tokens: a function of training progress in [0, 1], or drawn for each segment.

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class LineRate(Settings):
    """From `start` to `end`, in a straight line (Ankner et al. 2023, .30 to .15) or along half a cosine: slow, fast,
    slow (Yang et al. 2023, section 3.1)."""

    kind: Literal["linear", "cosine"]
    start: Rate
    """Rate at the beginning of training."""
    end: Rate
    """Rate at its end."""


class StepRate(Settings):
    """Constant between given places: `rates[i]` holds from `places[i]` on; the first place is 0.

    Example: places 0 and 0.5 with rates 0.3 and 0.15 halve the rate in the middle of the training.
    """

    kind: Literal["steps"]
    places: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], ...]
    """Progress from which each rate holds; starts at 0."""
    rates: tuple[Rate, ...]
    """Rate from each place on."""

    @model_validator(mode="after")
    def _check(self) -> StepRate:
        check_places(self.places, rates=self.rates)
        return self


class UniformRate(Settings):
    """A separate rate for each segment, uniform between `low` and `high`.

    Source: Sahoo et al. 2024 (MDLM), section 3; Nie et al. 2025 (LLaDA), section 2.1.
    """

    kind: Literal["uniform"]
    low: Rate = 0.02
    """Lowest rate of a segment."""
    high: Rate = 0.98
    """Highest rate of a segment."""
    loss_weight: Literal["inverse", "none"] = "none"
    """`inverse` weights each loss by 1 / rate, which bounds the likelihood of the text (masked diffusion); `none` does
    not."""

    @model_validator(mode="after")
    def _check(self) -> UniformRate:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


RateSchedule = Annotated[LineRate | StepRate | UniformRate, Field(discriminator="kind")]


def rate_at(rate: float | RateSchedule, progress: float) -> float:
    """The expected rate at a progress in [0, 1]."""
    match rate:
        case LineRate(kind="linear"):
            return (1.0 - progress) * rate.start + progress * rate.end
        case LineRate():
            return rate.end + (rate.start - rate.end) * 0.5 * (1.0 + math.cos(math.pi * progress))
        case StepRate():
            return [r for place, r in zip(rate.places, rate.rates, strict=True) if place <= progress][-1]
        case UniformRate():
            return 0.5 * (rate.low + rate.high)
    return rate


def rate_range(rate: float | RateSchedule) -> tuple[float, float]:
    """The lowest rate of a training, and the highest."""
    match rate:
        case LineRate():
            return min(rate.start, rate.end), max(rate.start, rate.end)
        case StepRate():
            return min(rate.rates), max(rate.rates)
        case UniformRate():
            return rate.low, rate.high
    return rate, rate


Strategy = Literal[
    "random", "whole_word", "span", "pmi", "frequency", "adaptive", "entity", "phrase", "syntax", "contextual",
    "semantic", "mixture",
]  # fmt: skip
AnyStrategy = Strategy | str | Units | Weights | tuple[Units, Weights]  # a name, of a plug-in too, or settings


# A recipe's file names units and weights by kind, so a user's class of one of these kinds would be replaced by ours.
_KINDS = {*get_args(Strategy)} | {
    kind
    for union in (PlainUnits, AnyWeights)
    for each in get_args(get_args(union)[0])
    for kind in get_args(each.model_fields["kind"].annotation)
}


def pair_of(name: str, kind: Any) -> dict[str, Settings]:
    """The units and weights of a strategy, one of which is of the user's class `kind`."""
    part = "units" if hasattr(kind, "starts") else "weights" if hasattr(kind, "log2") else ""
    if not part or not (isinstance(kind, type) and issubclass(kind, Settings)):
        raise SettingsError(f"{kind!r} is not a class of unmask.Settings with starts() or log2()")
    if name in _KINDS:
        raise SettingsError(f"{kind.__name__}: the kind {name!r} is the package's; take another name")
    try:
        settings = kind()
    except ValidationError as error:
        raise SettingsError(f"settings of {kind.__name__} need defaults: {error.errors()[0]['loc'][0]}") from error
    if getattr(settings, "kind", None) != name:
        raise SettingsError(f"`kind` of {kind.__name__} must be a Literal, with that as its default: {name!r}")
    return {**STRATEGIES["random"], part: settings}


STRATEGIES: Table[dict[str, Settings]] = Table("strategies", {
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
}, pair_of)  # fmt: skip
_OwnUnits = OrPlugIn(STRATEGIES, "starts")
_OwnWeights = OrPlugIn(STRATEGIES, "log2")
_StrategyName = Annotated[Strategy, OrPlugIn(STRATEGIES)]


def add_kind(settings: object) -> None:
    if isinstance(settings, Settings) and not type(settings).__module__.startswith("unmask."):
        kind = str(getattr(settings, "kind", ""))
        STRATEGIES[kind] = pair_of(kind, type(settings))


def values_of(strategy: Any) -> dict[str, Any]:
    """Settings of units, of weights or of both, as a recipe's values by key."""
    values: dict[str, Any] = {"masking.strategy": "random"}  # replaces the recipe's units and weights
    for settings in strategy if isinstance(strategy, tuple) else (strategy,):
        if not isinstance(settings, Settings):
            raise SettingsError(
                f"strategy takes a name, or units and weights that are unmask.Settings, not {shown(settings)}",
                options=["strategy"],
            )
        values[f"masking.{'weights' if hasattr(settings, 'log2') else 'units'}"] = settings.model_dump()
    return values


def expand_strategy(values: Any) -> Any:
    """Fills in the units and weights of a named strategy, unless they are given."""
    if not isinstance(values, dict):
        return values
    name = values.get("strategy")
    if name is not None and (not isinstance(name, str) or name not in STRATEGIES):
        return values  # the field's own validation reports it
    pair = STRATEGIES[name or "random"]
    if name is None and not pair.keys() & values.keys():
        name = "random"
    parts = {}
    for part, default in pair.items():
        content, defaults = values.get(part), default.model_dump()
        if isinstance(content, dict) and content.get("kind", defaults["kind"]) == defaults["kind"]:
            content = {**defaults, **content}  # a table takes missing fields from the default
        parts[part] = default if content is None else content
        own = parts[part]
        if not isinstance(own, Settings):
            try:
                own = type(default).model_validate(own)
            except ValueError:  # another kind, or an error that the validation of the whole reports
                own = None
        if own != default:
            name = None
    return {**values, **parts, "strategy": name}


class LinearShare(Settings):
    """Linear from `start` to `end` over the training."""

    kind: Literal["linear"]
    start: Share
    """Share at the beginning of training."""
    end: Share
    """Share at its end."""


class MixturePart(Settings):
    """One strategy of a mixture."""

    strategy: _StrategyName | None = None
    """Shorthand for units and weights. Unset: these are given directly."""
    units: Annotated[PlainUnits, _OwnUnits] = TokenUnits()
    """How a row is partitioned, as in `masking.units`."""
    weights: Annotated[AnyWeights, _OwnWeights] = UniformWeights()
    """How likely a unit is, as in `masking.weights`."""
    share: Share | LinearShare = 1.0
    """Its share of the segments (or steps), relative to the sum of all shares; or a line over the training."""

    _expand = model_validator(mode="before")(expand_strategy)


class MixtureUnits(Settings):
    """One strategy for each segment or step."""

    kind: Literal["mixture"] = "mixture"
    parts: Annotated[tuple[MixturePart, ...], Field(min_length=2)]
    """The strategies, with their shares."""
    per: Literal["row", "step"] = "row"
    """Whether each segment (`row`) or each `step` gets its own strategy. A row holds several segments, and a mask does
    not depend on the others in its row. A step is identified by its epoch and progress, or by its number if no progress
    is set."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(sum(self.shares_at(progress)) > 0.0 for progress in (0.0, 1.0)):
            raise ValueError("the shares of the parts are all 0 at the beginning or at the end; raise one of them")
        return self

    def shares_at(self, progress: float) -> list[float]:
        """The shares of the parts, before they are scaled to a sum of 1."""
        shares = [part.share for part in self.parts]
        return [s if isinstance(s, float) else s.start + (s.end - s.start) * progress for s in shares]


class Replacement(Settings):
    """Shares of the chosen tokens and where random ones come from.

    Source: Devlin et al. 2018, section 3.1 (80/10/10); Wettig et al. 2023 find that masks alone do as well.
    """

    shares: tuple[Share, Share, Share] = (0.8, 0.1, 0.1)
    """Shares of the chosen tokens shown as `[MASK]`, as a random token, and unchanged; they add up to 1."""
    random_from: Literal["uniform", "unigram"] = "uniform"
    """What random tokens are drawn from: `uniform` over ordinary tokens, or `unigram`, by their counts in the
    corpus."""
    per: Literal["token", "unit"] | None = None
    """Whether the replacement is drawn for each `token` or once per `unit`. Unset: once per span (SpanBERT) or
    collocation, otherwise for each token (BERT)."""

    @model_validator(mode="after")
    def _check(self) -> Replacement:
        if abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"the shares of mask, random and keep must add up to 1, not {sum(self.shares):g}")
        return self


AnyUnits = Annotated[PlainUnits | MixtureUnits, Field(discriminator="kind")]


class MaskingSettings(Settings):
    """What is masked, how much, and what replaces it."""

    strategy: _StrategyName | None = None
    """Shorthand for units and weights. Unset: these are given, or are those of `random`."""
    units: Annotated[AnyUnits, _OwnUnits] = TokenUnits()
    """How a row is partitioned into what is masked together."""
    weights: Annotated[AnyWeights, _OwnWeights] = UniformWeights()
    """How likely a unit is to be masked."""
    rate: Rate | RateSchedule = 0.15
    """Expected share of the text's tokens to choose: a number, a schedule over progress, or a rate that each segment
    draws (`uniform`)."""
    prediction_rate: Rate | None = None
    """Expected share to predict, at most `rate`; the other chosen tokens are replaced but not predicted (Wettig et al.
    2023, section 5). Unset: all chosen tokens."""
    least_one: bool = False
    """Whether each segment has at least one target. This distorts the rate of very short segments, so it excludes
    losses weighted by the rate, and a `prediction_rate`."""
    replacement: Replacement = Replacement()
    """What replaces the chosen tokens."""
    static: bool = False
    """Draw masks without the epoch: those of a text that fits a row then repeat, while rate and weights stay the same
    (with equal weights, a rate schedule decides how many of them apply). The end of a longer text, and pairs, are cut
    elsewhere in each epoch, and so get other masks."""
    refresh_steps: Annotated[int, Field(ge=1)] = 200
    """Steps after which the model's scores for the weights are recomputed."""

    _expand = model_validator(mode="before")(expand_strategy)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.units, MixtureUnits) and self.weights != UniformWeights():
            raise ValueError("the weights of a mixture belong to its parts; remove masking.weights")
        if self.static and isinstance(self.units, MixtureUnits) and self.units.per == "step":
            raise ValueError("static masks cannot have a different strategy at each step; set units.per to 'row'")
        weighted = getattr(self.rate, "loss_weight", "none") != "none"
        if self.least_one and (weighted or self.prediction_rate is not None):
            raise ValueError(
                "least_one distorts the rate, so it excludes loss_weight = 'inverse' and prediction_rate; choose one"
            )
        if self.prediction_rate is not None:
            if weighted:
                way_out = "remove it or prediction_rate"
                raise ValueError(f"loss_weight = 'inverse' needs a prediction of every hidden token; {way_out}")
            if self.prediction_rate > (least := rate_range(self.rate)[0]):
                raise ValueError(
                    f"prediction_rate {self.prediction_rate} is above the rate ({least:g} at its lowest): "
                    "unchanged tokens would be predicted from themselves"
                )
        return self


def all_weights(settings: MaskingSettings) -> list[Settings]:
    if isinstance(settings.units, MixtureUnits):
        return [part.weights for part in settings.units.parts]
    return [settings.weights]


def followed_scores(settings: MaskingSettings) -> set[str]:
    """Names of the model scores that the weights follow; empty if they follow none."""
    return {name for weights in all_weights(settings) if (name := getattr(weights, "score", None))}


def span_units(settings: MaskingSettings) -> SpanUnits | None:
    """The span units of the strategy, or of the first part of a mixture that has any."""
    parts = settings.units.parts if isinstance(settings.units, MixtureUnits) else (settings,)
    return next((part.units for part in parts if isinstance(part.units, SpanUnits)), None)


STRATEGIES["mixture"] = {
    "units": MixtureUnits.model_validate({"parts": [{"strategy": name} for name in ("random", "whole_word", "span")]}),
    "weights": UniformWeights(),
}


def needed_annotations(settings: object) -> tuple[str, ...]:
    """The columns of annotation that units and weights within settings need (their `needs`), each once."""
    needs = (name for inner in settings_within(settings) for name in getattr(inner, "needs", ()))
    return tuple(dict.fromkeys(needs))
