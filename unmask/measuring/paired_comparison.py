"""Which of several recipes is better, from their figures for the same seeds: paired, with intervals and a verdict.

Runs with the same seed share the order of the data, so their difference varies less than they do: differences are taken
seed by seed, and their mean has an interval by Student's t. Where recipes do not differ and their runs vary about
alike, at most 5 of 100 comparisons show a difference. Three things would let chance in, and each has its share of these
5:

    looks     A comparison may be looked at again, with more seeds. Each look takes a part of what is left (see
              `error_of_look`), so that looking until a difference shows does not help. The first look keeps most. Fewer
              seeds than were asked for are a late look (`unmask.comparing.comparison_folder.look_number`).
    pairs     With more than two recipes, each pair has an equal part (Bonferroni's correction).
    figures   One figure decides. Others are exploratory: a difference in them is claimed only for a pair that the
              deciding figure tells apart, each figure with an equal part of what the pair had (a gatekeeper).

The differences are taken for symmetric, as they are where runs have the same distribution, however skewed it is. Where
only the means are equal, and one recipe's runs have a long tail while the other's hardly vary, they are not: with 3 to
16 seeds that shows a difference in up to 15 of 100 comparisons (log-normal runs, whose logarithms deviate by 1; up to
28 with 1.5). The verdict says so of a shown difference where the deviations seen are more than `UNLIKE` times apart,
which with very few seeds is now and then an accident; where the other recipe varies too, the tail may not have been
seen yet, and nothing is said. A rule by signs would not help, since all the differences seen have the same one.

A run that failed has no figure, and a figure may not be defined for a run. Two recipes are compared by the seeds for
which both have one, and the verdict says how many are missing: what is left may be the luckier part of a recipe that
often fails.

Source: Lan and DeMets 1983 (spending the error over looks); Westfall and Krishen 2001 (gatekeepers).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

from unmask.errors import SettingsError
from unmask.measuring.uncertainty import items_of_shares, mean_interval, shares_interval

FIRST_LOOK, LATER_LOOKS = 0.03, 0.015  # of comparisons, in which a difference may be shown that is none
UNLIKE = 4.0  # a ratio of the deviations of runs that is told of


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        interval: That holds the true mean; None with one seed, or where all have the same figure and it is not known
            in what steps it comes.
        values: Of each seed that has one.
    """

    mean: float
    interval: tuple[float, float] | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """The first recipe's figure minus the second's, seed by seed.

    Attributes:
        first, second: Names.
        estimate: Of the difference; its interval is widened for looks, pairs and figures.
        claimable: Whether it may be shown at all.
    """

    first: str
    second: str
    estimate: Estimate
    claimable: bool = True

    @property
    def better(self) -> str | None:
        """The recipe with the lower figure, where the interval leaves 0 out; None: no difference shown."""
        interval = self.estimate.interval
        if not self.claimable or interval is None or interval[0] <= 0.0 <= interval[1]:
            return None
        return self.first if interval[1] < 0.0 else self.second

    @property
    def is_steady(self) -> bool:
        """Whether it is the same for several seeds, and not 0: what figures that come in steps may be by accident."""
        values = self.estimate.values
        return len(values) > 1 and self.estimate.interval is None and not math.isclose(values[0], 0.0, abs_tol=1e-9)


@dataclass(frozen=True)
class PairedComparison:
    """Figures of several recipes, all their differences, and what they show in words.

    Attributes:
        recipes: Of each its mean over seeds, with a 95 % interval of its own.
        differences: Of all pairs with a seed in common.
        confidence: Of the differences' intervals, in (0, 1).
        verdict: In words.
    """

    recipes: dict[str, Estimate]
    differences: tuple[Difference, ...]
    confidence: float
    verdict: str

    @property
    def told_apart(self) -> frozenset[tuple[str, str]]:
        """Pairs that a difference is shown of."""
        return frozenset((each.first, each.second) for each in self.differences if each.better is not None)


def error_of_look(look: int) -> float:
    """The share of comparisons in which a look may show a difference that is none.

    0.03 the first time, then 0.0075, 0.0025, 0.00125, ... (0.015 / (k (k - 1)) for the k-th): 0.045 in all, however
    many looks there are. That holds for numbers of seeds that were chosen beforehand. Who chooses each as is best by
    what the looks before showed, and knows how much runs vary, gets to 0.05 in simulation; hence no more is spent.

    Args:
        look: From 1 on.
    """
    return FIRST_LOOK if look == 1 else LATER_LOOKS / (look * (look - 1))


def compare_figures(
    figures: Mapping[str, Sequence[float | None]],
    *,
    what: str = "loss",
    without: str = "failed",
    look: int = 1,
    items: int | None = None,
    exploratory: int = 0,
    open_pairs: Collection[tuple[str, str]] = (),
) -> PairedComparison:
    """Compares recipes by a figure of which less is better.

    Args:
        figures: Of each recipe, one a seed, in the same order of seeds; None where the run has none.
        what: What the figure is called.
        without: What the verdict says of runs that have none.
        look: How many different states of these figures were judged, this one included.
        items: Of how many items the figures are shares; None: they are none, unless all lie in [0, 1] and are shares of
            the same few items.
        exploratory: How many figures are exploratory, this one among them; 0: this one decides.
        open_pairs: Of an exploratory figure: the pairs that the deciding figure tells apart.

    Returns:
        What is known: recipes with a figure at the least, and differences of pairs with a seed in common.

    Raises:
        SettingsError: There are fewer than two recipes, they have not equally many seeds, or no figure at all.
    """
    counts = {len(values) for values in figures.values()}
    known = {name: [value for value in values if value is not None] for name, values in figures.items()}
    if len(figures) < 2 or len(counts) != 1 or not any(known.values()):
        raise SettingsError("a comparison takes two recipes at the least, and the same seeds of each")
    seeds, pairs = counts.pop(), list(combinations(figures, 2))
    confidence = 1.0 - error_of_look(look) / len(pairs) / max(1, exploratory)
    items = items or items_of_shares([value for values in known.values() for value in values])
    differences = tuple(
        Difference(a, b, _estimate(values, items, confidence), claimable=not exploratory or (a, b) in open_pairs)
        for a, b in pairs
        if (values := _differences(figures[a], figures[b]))
    )
    recipes = {
        name: Estimate(fmean(values), mean_interval(values), tuple(values)) for name, values in known.items() if values
    }
    basis = f"look {look} of this comparison, {_interval(confidence, len(pairs))}"
    verdict = _verdict(recipes, differences, what=what, seeds=seeds, basis=basis)
    missing = {name: seeds - len(values) for name, values in known.items() if len(values) < seeds}
    lost = "".join(f"; {count} of {seeds} runs of {name} {without}" for name, count in missing.items())
    marked = "exploratory: " if exploratory else ""
    return PairedComparison(recipes, differences, confidence, f"{marked}{verdict}{lost}{_unlike(figures, differences)}")


def percent(confidence: float) -> str:
    """97 %, 99.67 %, 99.9972 %: what is missing from 100 has two digits at the least."""
    missing = 100.0 * (1.0 - confidence)
    digits = max(0, 1 - math.floor(math.log10(missing)))
    shown = f"{100.0 - missing:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if digits else shown} %"


def _interval(confidence: float, pairs: int) -> str:
    return f"interval at {percent(confidence)}" if pairs == 1 else f"intervals at {percent(confidence)}: {pairs} pairs"


def _differences(first: Sequence[float | None], second: Sequence[float | None]) -> list[float]:
    """Of the seeds for which both have a figure."""
    pairs = zip(first, second, strict=True)
    return [one - other for one, other in pairs if one is not None and other is not None]


def _estimate(values: Sequence[float], items: int | None, confidence: float) -> Estimate:
    interval = mean_interval(values, confidence) if items is None else shares_interval(values, items, confidence)
    return Estimate(fmean(values), interval, tuple(values))


def _unlike(figures: Mapping[str, Sequence[float | None]], differences: Sequence[Difference]) -> str:
    """What the verdict says of shown differences whose runs vary so unlike that the interval may mislead."""
    said = ""
    for each in differences:
        runs = zip(figures[each.first], figures[each.second], strict=True)
        both = [(one, other) for one, other in runs if one is not None and other is not None]
        if each.better is None:
            continue
        spread = {each.first: stdev(first for first, _ in both), each.second: stdev(second for _, second in both)}
        steady, varying = sorted(spread, key=spread.__getitem__)
        if spread[varying] > UNLIKE * spread[steady]:
            said += (
                f"; runs of {varying} vary more than {UNLIKE:g} times as much as those of {steady}, so that the "
                f"interval of {len(both)} seeds may be too narrow"
            )
    return said


def _verdict(
    recipes: Mapping[str, Estimate], differences: Sequence[Difference], *, what: str, seeds: int, basis: str
) -> str:
    best = min(recipes, key=lambda name: recipes[name].mean)
    if not differences:
        return f"no difference shown: no two recipes have a {what} of the same seed ({best} has the lowest {what})"
    if max(len(difference.estimate.values) for difference in differences) < 2:
        return f"no difference shown: one seed says nothing of chance ({best} has the lowest {what}); give more seeds"
    shown = [difference for difference in differences if difference.better is not None]
    if not shown:
        found = f"no difference shown in {what} over {seeds} seeds ({best} has the lowest mean; {basis})"
        steady = any(difference.is_steady for difference in differences)
        return f"{found}; the same difference for every seed says nothing of chance" if steady else found
    sentences = []
    for difference in shown:
        worse = difference.second if difference.better == difference.first else difference.first
        interval = difference.estimate.interval
        assert interval is not None, "a shown difference has one"
        low, high = sorted(abs(bound) for bound in interval)
        sentences.append(
            f"{difference.better} has a lower {what} than {worse} by {abs(difference.estimate.mean):.3f} "
            f"({low:.3f} to {high:.3f})"
        )
    rest = len(differences) - len(shown)
    others = f"; no difference shown in {rest} other {'pairs' if rest > 1 else 'pair'}" if rest else ""
    return f"{'; '.join(sentences)}{others} ({seeds} seeds; {basis})"
