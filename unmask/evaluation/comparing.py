"""Which of several recipes is better, from their figures for the same seeds: paired, with intervals and a verdict.

Runs with the same seed share the order of the data, so their difference varies less than they do: differences are taken
seed by seed, and their mean has an interval by Student's t. Where more than two recipes are compared, the intervals of
the differences are widened, so that all of them hold together in 95 of 100 cases (Bonferroni's correction).

A run that failed has no figure, and a figure may not be defined for a run. Two recipes are compared by the seeds for
which both have one, and the verdict says how many are missing: what is left may be the luckier part of a recipe that
often fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from unmask.errors import SettingsError
from unmask.evaluation.intervals import CONFIDENCE, mean_interval


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        interval: That holds the true mean in 95 of 100 cases; None with one seed, or where all have the same figure.
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
        estimate: Of the difference; its interval is widened where there are several differences.
    """

    first: str
    second: str
    estimate: Estimate

    @property
    def better(self) -> str | None:
        """The recipe with the lower figure, where the interval leaves 0 out; None: no difference shown."""
        interval = self.estimate.interval
        if interval is None or interval[0] <= 0.0 <= interval[1]:
            return None
        return self.first if interval[1] < 0.0 else self.second

    @property
    def is_steady(self) -> bool:
        """Whether it is the same for several seeds, and not 0: what figures that come in steps may be by accident."""
        values = self.estimate.values
        return len(values) > 1 and self.estimate.interval is None and not math.isclose(values[0], 0.0, abs_tol=1e-9)


@dataclass(frozen=True)
class Comparison:
    """Figures of several recipes, all their differences, and what they show in words."""

    recipes: dict[str, Estimate]
    differences: tuple[Difference, ...]
    verdict: str


def compare_figures(
    figures: Mapping[str, Sequence[float | None]], *, what: str = "loss", without: str = "failed"
) -> Comparison:
    """Compares recipes by a figure of which less is better.

    Args:
        figures: Of each recipe, one a seed, in the same order of seeds; None where the run has none.
        what: What the figure is called.
        without: What the verdict says of runs that have none.

    Returns:
        What is known: recipes with a figure at the least, and differences of pairs with a seed in common.

    Raises:
        SettingsError: There are fewer than two recipes, they have not equally many seeds, or no figure at all.
    """
    counts = {len(values) for values in figures.values()}
    known = {name: [value for value in values if value is not None] for name, values in figures.items()}
    if len(figures) < 2 or len(counts) != 1 or not any(known.values()):
        raise SettingsError("a comparison takes two recipes at the least, and the same seeds of each")
    seeds = counts.pop()
    apart = {(a, b): _differences(figures[a], figures[b]) for a, b in combinations(figures, 2)}
    apart = {pair: values for pair, values in apart.items() if values}
    level = 1.0 - (1.0 - CONFIDENCE) / max(1, len(apart))
    recipes = {name: _estimate(values, CONFIDENCE) for name, values in known.items() if values}
    differences = tuple(Difference(a, b, _estimate(values, level)) for (a, b), values in apart.items())
    verdict = _verdict(recipes, differences, what=what, seeds=seeds)
    missing = {name: seeds - len(values) for name, values in known.items() if len(values) < seeds}
    lost = "".join(f"; {count} of {seeds} runs of {name} {without}" for name, count in missing.items())
    return Comparison(recipes, differences, verdict + lost)


def _differences(first: Sequence[float | None], second: Sequence[float | None]) -> list[float]:
    """Of the seeds for which both have a figure."""
    pairs = zip(first, second, strict=True)
    return [one - other for one, other in pairs if one is not None and other is not None]


def _estimate(values: Sequence[float], confidence: float) -> Estimate:
    return Estimate(fmean(values), mean_interval(values, confidence), tuple(values))


def _verdict(recipes: Mapping[str, Estimate], differences: Sequence[Difference], *, what: str, seeds: int) -> str:
    best = min(recipes, key=lambda name: recipes[name].mean)
    if not differences:
        return f"no difference shown: no two recipes have a {what} of the same seed ({best} has the lowest {what})"
    if max(len(difference.estimate.values) for difference in differences) < 2:
        return f"no difference shown: one seed says nothing of chance ({best} has the lowest {what}); give more seeds"
    shown = [difference for difference in differences if difference.better is not None]
    if not shown:
        found = f"no difference shown in {what} over {seeds} seeds ({best} has the lowest mean)"
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
    return f"{'; '.join(sentences)}{others} ({seeds} seeds)"
