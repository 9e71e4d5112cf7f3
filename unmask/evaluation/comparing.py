"""Which of several recipes is better, from their figures for the same seeds: paired, with intervals and a verdict.

Runs with the same seed share the order of the data, so their difference varies less than they do: differences are taken
seed by seed, and their mean has an interval by Student's t. Where more than two recipes are compared, the intervals of
the differences are widened, so that all of them hold together in 95 of 100 cases (Bonferroni's correction).
"""

from __future__ import annotations

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
        interval: That holds the true mean in 95 of 100 cases; None with one seed.
        values: Of each seed.
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


@dataclass(frozen=True)
class Comparison:
    """Figures of several recipes, all their differences, and what they show in words."""

    recipes: dict[str, Estimate]
    differences: tuple[Difference, ...]
    verdict: str


def compare_figures(figures: Mapping[str, Sequence[float]], *, what: str = "loss") -> Comparison:
    """Compares recipes by a figure of which less is better.

    Args:
        figures: Of each recipe, one a seed, in the same order of seeds.
        what: What the figure is called.

    Raises:
        SettingsError: There are fewer than two recipes, or they have not equally many seeds.
    """
    counts = {len(values) for values in figures.values()}
    if len(figures) < 2 or len(counts) != 1 or counts == {0}:
        raise SettingsError("a comparison takes two recipes at the least, and the same seeds of each")
    pairs = list(combinations(figures, 2))
    level = 1.0 - (1.0 - CONFIDENCE) / len(pairs)
    recipes = {name: _estimate(values, CONFIDENCE) for name, values in figures.items()}
    differences = tuple(
        Difference(a, b, _estimate([x - y for x, y in zip(figures[a], figures[b], strict=True)], level))
        for a, b in pairs
    )
    return Comparison(recipes, differences, _verdict(recipes, differences, what=what, seeds=counts.pop()))


def _estimate(values: Sequence[float], confidence: float) -> Estimate:
    return Estimate(fmean(values), mean_interval(values, confidence), tuple(values))


def _verdict(recipes: Mapping[str, Estimate], differences: Sequence[Difference], *, what: str, seeds: int) -> str:
    best = min(recipes, key=lambda name: recipes[name].mean)
    if seeds < 2:
        return f"no difference shown: one seed says nothing of chance ({best} has the lowest {what}); give more seeds"
    shown = [difference for difference in differences if difference.better is not None]
    if not shown:
        return f"no difference shown in {what} over {seeds} seeds ({best} has the lowest mean)"
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
