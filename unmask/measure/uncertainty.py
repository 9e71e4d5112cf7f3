"""Uncertainty of measured figures: intervals, standard errors over documents, and comparisons of recipes over seeds.

Intervals have 95 % confidence. Standard errors over documents, of all figures of models, are computed only here.

A measured figure, such as a loss per token, is a ratio of two sums. Tokens of a document, and all parts that it is cut
into (pieces, passages, held-out parts), are alike, since its author's words and phrases recur. So the independent draw
is the source document, and standard errors are over documents. They say how much the figure would change with other
documents of the same kind, and nothing about the seed of training.

    r = sum of y / sum of x    over documents g, such as y = the losses and x = the number of predicted tokens
    r without g, minus r       = (r x_g - y_g) / (X - x_g), where X is the sum of x
    variance                   = sum of its squares over g

This is the delete-one jackknife, written out. A text has few long documents, so there are fewer degrees of freedom than
documents: those of a sum of squares with the same mean and variance (Satterthwaite), assuming that all documents' own
ratios have the same variance. With documents of equal size, they are the number of documents minus one.

In simulations (`tests/measure/test_coverage.py`) with 8 to 50 documents, the intervals hold the true ratio in 92 to 99
of 100 cases (normal intervals with the usual error: 80 to 94); in about 90 if long documents are harder and effects are
skewed.

Source: Bell and McCaffrey 2002 (Bias reduction in standard errors for linear regression with multi-stage samples) for
both; Pustejovsky and Tipton 2018 (Small-sample methods for cluster-robust variance estimation), who call it CR3. Like
them, we omit its factor (G - 1) / G: skewed effects need the margin.

Shape suffix: G = documents, or other independent draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.core.errors import SettingsError
from unmask.core.results import decimals

CONFIDENCE = 0.95
_ROUNDING = 1e-9  # rounding error of sums and differences of figures of order 1


def wilson(successes: float, trials: float, *, degrees: float = math.inf) -> tuple[float, float]:
    """Wilson's interval of a share. It lies within [0, 1] and works for few trials and for shares near 0 or 1.

    A tie is half a success, which scipy's `binomtest` does not accept. If the number of trials is estimated (see
    `Uncertain.share_interval`), `degrees` are the degrees of freedom of that estimate.

    Source: Wilson 1927 (Probable inference, the law of succession, and statistical inference).
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    if math.isfinite(degrees):
        z = student_interval(0.0, 1.0, degrees)[1]
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return 0.0 if successes <= 0 else low, 1.0 if successes >= trials else high  # exact in spite of rounding


def student_interval(mean: float, stderr: float, degrees: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a mean by Student's t; degrees of freedom may be fractional.

    Source: Student 1908 (The probable error of a mean).
    """
    from scipy.special import stdtrit  # importing scipy.stats takes a second

    half = stderr * float(stdtrit(degrees, 0.5 + confidence / 2))
    return mean - half, mean + half


def mean_interval(
    values: Sequence[float], confidence: float = CONFIDENCE, *, items: int | None = None
) -> tuple[float, float] | None:
    """The interval of the mean of independent values by Student's t; None if they say nothing about chance.

    That is the case for a single value, and for values that are all equal, up to rounding. Shares of n items come in
    steps of 1/n, so a few of them may be equal by accident; their true spread is below a step, but not 0. Student's t
    is for continuous values, and an interval of width 0 would show any difference, however small.

    With `items`, the values are differences between two shares of the same items. A few of these may be (nearly) equal
    by accident, so the variance of one is at least:

    - 1/(6 items^2), which rounding to steps of 1/items adds to the variance of two shares;
    - |mean|/items: a net difference of k items needs at least k changed items, and the variance of changes that are
      equally likely in both directions is their number.

    Source: Sheppard 1898 (rounding); McNemar 1947 (changes of paired items).
    """
    count = len(values)
    if count < 2 or (items is None and max(values) - min(values) <= _ROUNDING * max(1.0, *map(abs, values))):
        return None
    mean = fmean(values)
    # In floating point: `statistics` computes with fractions, which would take most of a comparison's time.
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    if items is not None:
        variance = max(variance, 1.0 / (6.0 * items**2), abs(mean) / items)
    return student_interval(mean, math.sqrt(variance / count), count - 1, confidence)


_DRAWS = 500  # bootstrap samples


def bootstrap_intervals(
    measure: Callable[[NDArray[np.int64]], Mapping[str, float | None]],
    documents: Sequence[Hashable],
    *,
    shares: Collection[str] = (),
) -> dict[str, list[float] | None]:
    """Bootstrap intervals of figures of any kind (F1, correlations), from documents drawn with replacement.

    Shares get Wilson's interval, since percentiles are too narrow near 0 and 1. Its number of trials is the one with
    the same standard error, or the number of documents if that error is 0. An interval is None if there is only one
    document, the figure is undefined, or, unless it is a share, all draws agree. `measure` computes the figures of
    items by number; numbers may repeat.

    Source: Efron and Tibshirani 1993 (An Introduction to the Bootstrap), chapter 13; Korn and Graubard 1998 (Confidence
    intervals for proportions with small expected number of positive counts estimated from survey data) for shares.
    """
    numbers, generator = dict[Hashable, list[int]](), np.random.default_rng(0)
    for number, document in enumerate(documents):
        numbers.setdefault(document, []).append(number)
    groups = [np.array(each) for each in numbers.values()]
    figures, drawn = measure(np.arange(len(documents))), list[Mapping[str, float | None]]()
    while len(drawn) < _DRAWS and len(groups) > 1:
        drawn.append(measure(np.concatenate([groups[n] for n in generator.integers(0, len(groups), len(groups))])))
    intervals: dict[str, list[float] | None] = {}
    for name, figure in figures.items():
        values = [value for each in drawn if (value := each[name]) is not None]
        if figure is None or len(values) < 2:
            intervals[name] = None
        elif name in shares and 0.0 <= figure <= 1.0:
            possible, variance = figure * (1.0 - figure), float(np.var(values, ddof=1))
            trials = possible / variance if min(possible, variance) > _ROUNDING**2 else len(groups)
            intervals[name] = list(wilson(figure * trials, trials))
        elif np.ptp(values) <= _ROUNDING * max(1.0, abs(figure)):
            intervals[name] = None
        else:
            tail = (1.0 - CONFIDENCE) / 2
            intervals[name] = np.quantile(values, (tail, 1.0 - tail)).tolist()
    return intervals


FEW = 20  # with fewer documents, there is a warning
_SUM_ROUNDING = 1e-12  # relative rounding error of sums of losses


@dataclass(frozen=True)
class Uncertain:
    value: float  # the ratio; NaN if nothing was counted
    # Its standard error, never 0. None with fewer than two documents, if one document is nearly all of the data, and if
    # all documents have the same ratio, which says nothing about chance.
    stderr: float | None
    degrees: float | None  # degrees of freedom of the standard error, at least 1; None without one
    draws: int  # number of documents, or other independent draws
    trials: float | None = None  # for a share: the number of independent trials with the same error; None if unknown
    is_counted: bool = False  # whether each draw is one trial, so that `trials` is a count, not an estimate

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; half its width is the figure after ± in every table."""
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> tuple[float, float] | None:
        if self.stderr is None or self.degrees is None:
            return None
        return student_interval(self.value, self.stderr, self.degrees, confidence)

    @property
    def share_interval(self) -> tuple[float, float] | None:
        """The interval of a share, such as accuracy or recall, by Wilson's score, which also bounds a share of 0 or 1.

        If draws consist of several trials, the number of trials is the one with the same standard error, and the
        quantile is Student's. If all draws have the same share, each is one trial.

        Source: Korn and Graubard 1998 (Confidence intervals for proportions with small expected number of positive
        counts estimated from survey data), for trials by standard error; Dean and Pagano 2015 for Wilson's with them.
        """
        if self.trials is None:
            return None
        degrees = math.inf if self.is_counted or self.degrees is None else self.degrees
        return wilson(self.value * self.trials, self.trials, degrees=degrees)


def ratio_over_draws(above_G: ArrayLike, below_G: ArrayLike) -> Uncertain:
    """The ratio of two sums over independent draws; see the module's docstring.

    A document with a denominator of 0 counts if its numerator is not 0, since it changes the ratio; with both 0 it does
    not count. Denominators, [G], are not negative.
    """
    above, below = np.asarray(above_G, dtype=np.float64), np.asarray(below_G, dtype=np.float64)
    counted = (below > 0.0) | (above != 0.0)
    above, below = above[counted], below[counted]
    total = float(below.sum())
    value = float(above.sum()) / total if total > 0.0 else math.nan
    if len(below) < 2 or not math.isfinite(value) or total - float(below.max()) <= _SUM_ROUNDING * total:
        return Uncertain(value, None, None, len(below))
    share = below / total
    change = (share * value - above / total) / (1.0 - share)  # of the ratio, if a document is left out
    stderr = math.sqrt(float(np.square(change).sum()))
    is_share = 0.0 <= value <= 1.0
    if stderr <= _SUM_ROUNDING * max(1.0, abs(value)):
        return Uncertain(value, None, None, len(below), 1.0 / float(np.square(share).sum()) if is_share else None)
    if is_share and np.ptp(below) == 0.0 and np.isin(above, (0.0, below[0])).all():
        return Uncertain(value, stderr, _degrees(share), len(below), len(below), is_counted=True)
    trials = value * (1.0 - value) / stderr**2 if is_share else None
    return Uncertain(value, stderr, _degrees(share), len(below), trials)


def _degrees(share: NDArray[np.float64]) -> float:
    """Satterthwaite's degrees of freedom of the jackknife, if documents' ratios are normal with equal variance.

    The variance is the quadratic form of A = (I - share 1') D (I - 1 share') in these ratios, where D is diagonal. It
    has trace(A)^2 / trace(A^2) degrees of freedom. The traces are sums over pairs of documents, here multiplied out.
    """
    if share.max() > 0.99:  # 1.000, which rounding would hide: the sums below nearly cancel out
        return 1.0
    weight = np.square(share / (1.0 - share))
    weight /= weight.sum()
    squares = float(np.square(share).sum())
    once, twice = float((weight * share).sum()), float((weight * share * share).sum())
    trace = float((weight * (1.0 - 2.0 * share + squares)).sum())
    alone = float((weight * weight * (1.0 + 2.0 * squares - 4.0 * share)).sum())
    pairs = squares * squares + 2.0 * twice + 2.0 * once * once - 4.0 * squares * once
    return max(1.0, trace * trace / (alone + pairs))


def plain_interval(interval: tuple[float, float] | None) -> list[float] | None:
    """The interval as JSON returns it, so that results equal those read from their files."""
    return None if interval is None else list(interval)


def few_draws(number: int, unit: str = "documents") -> str | None:
    """A warning if figures rest on few documents, or groups; None if they rest on enough."""
    if number >= FEW:
        return None
    if number < 2:
        one = {"queries": "query"}.get(unit, unit.removesuffix("s"))
        return (
            f"only one {one} was measured, so there is no standard error and no interval: how much the figures would "
            f"change with other text is unknown; measure on several {unit}"
        )
    return f"only {number} {unit} were measured: the intervals are wide, and less reliable than with {FEW} or more"


class Ratio:
    """A sum divided by another, such as losses by tokens, with documents as the independent draws."""

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = {}

    def add(self, document: int, numerator: float, denominator: float) -> None:
        sums = self._sums.setdefault(document, [0.0, 0.0])
        sums[0] += numerator
        sums[1] += denominator

    @property
    def denominator(self) -> float:
        return sum(sums[1] for sums in self._sums.values())

    @property
    def result(self) -> Uncertain:
        sums = np.array(list(self._sums.values())).reshape(-1, 2)
        return ratio_over_draws(sums[:, 0], sums[:, 1])


# Which of several recipes is better, from their figures for the same seeds.
#
# Runs with the same seed share the order of the data, so their difference varies less than the runs do. Differences are
# therefore taken seed by seed, and their mean has an interval by Student's t. If recipes do not differ and their runs
# vary about equally, at most 5 of 100 comparisons show a difference. This error is divided among three sources:
#
#     looks     A comparison may be looked at again, with more seeds. Each look spends a part of the remaining error
#               (see `error_of_look`).
#     pairs     With more than two recipes, each pair gets an equal part (Bonferroni's correction).
#     figures   One figure decides. Others are exploratory: a difference in them is claimed only for pairs for which
#               the deciding figure shows one, and each figure gets an equal part of the pair's error (a gatekeeper).
#
# The differences are assumed to be symmetric, as they are if runs have the same distribution, however skewed. If one
# recipe's runs have a long tail while the other's hardly vary, more than 5 of 100 comparisons show a difference
# (docs/how-to/measuring.md). The verdict says so if the standard deviations differ by a factor of more than `UNLIKE`. A
# sign test would not help, since all observed differences have the same sign.
#
# A failed run has no figure. Two recipes are compared on the seeds for which both have one, and the verdict says how
# many are missing: for a recipe that often fails, the remaining seeds may be the luckier ones.
#
# Source: Lan and DeMets 1983 (spending the error over looks); Westfall and Krishen 2001 (gatekeepers).

FIRST_LOOK, LATER_LOOKS = 0.03, 0.015  # shares of comparisons that may show a difference by chance
UNLIKE = 4.0  # the verdict warns if runs' standard deviations differ by more than this factor


def error_of_look(look: int) -> float:
    """The share of comparisons in which a look may show a difference by chance.

    It is 0.03 for the first look, then 0.0075, 0.0025, 0.00125, ... (0.015 / (k (k - 1)) for the k-th): 0.045 in all,
    for any number of looks. That holds if the numbers of seeds were chosen beforehand. In simulations, choosing each
    number optimally from the earlier looks and the known spread of runs raises the total to 0.05; hence no more than
    0.045 is spent.
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
    unlearned: Collection[str] = (),
) -> dict[str, Any]:
    """Compares recipes by a figure for which lower is better.

    Args:
        figures: For each recipe, one figure per seed, in the same order of seeds; None if the run has none.
        what: Name of the figure.
        without: What the verdict says about runs that have none.
        look: Number of different states of these figures that were judged, this one included.
        items: Number of items, if the figures are shares of items; None otherwise.
        exploratory: Number of exploratory figures, this one included; 0: this one decides.
        open_pairs: For an exploratory figure, the pairs for which the deciding figure shows a difference.
        unlearned: Recipes whose runs are no better than word frequencies: two of them are not judged.

    Returns:
        Values that JSON can hold: `recipes` with at least one figure, each with its `mean` over seeds, 95 % `interval`
        (None with one seed, or if all figures are equal) and `values`; `differences` of pairs with a common seed, the
        `first` recipe's figure minus the `second`'s, with an interval at `confidence` (widened for looks, pairs and
        figures) and which one is `better` (None: no difference shown); and the `verdict`.
    """
    counts = {len(values) for values in figures.values()}
    known = {name: [value for value in values if value is not None] for name, values in figures.items()}
    if len(figures) < 2 or len(counts) != 1 or not any(known.values()):
        raise SettingsError("a comparison needs at least two recipes, each with the same seeds")
    seeds, pairs = counts.pop(), list(combinations(figures, 2))
    confidence = 1.0 - error_of_look(look) / len(pairs) / max(1, exploratory)
    differences: list[dict[str, Any]] = []
    unlike = ""
    for first, second in pairs:
        both = [each for each in zip(figures[first], figures[second], strict=True) if None not in each]
        values = [a - b for a, b in both]  # type: ignore[operator]
        if not values:
            continue
        interval, better = mean_interval(values, confidence, items=items), None
        if (
            (not exploratory or (first, second) in open_pairs)
            and not {first, second} <= {*unlearned}
            and interval is not None
            and not interval[0] <= 0.0 <= interval[1]
        ):
            better = first if interval[1] < 0.0 else second
            # Do the spreads of the runs differ so much that the interval may mislead?
            spread = {name: stdev(runs) for name, runs in zip((first, second), zip(*both, strict=True), strict=True)}
            steady, varying = sorted(spread, key=spread.__getitem__)
            if spread[varying] > UNLIKE * spread[steady]:
                unlike += (
                    f"; runs of {varying} vary more than {UNLIKE:g} times as much as those of {steady}, so the "
                    f"interval of {len(both)} seeds may be too narrow"
                )
        estimate = _estimate(values, interval, None if items is None else (-1.0, 1.0))
        differences.append({"first": first, "second": second, **estimate, "better": better})
    bounds = None if items is None else (0.0, 1.0)
    recipes = {name: _estimate(values, mean_interval(values), bounds) for name, values in known.items() if values}
    at = "interval at " if len(pairs) == 1 else "intervals at "
    of = "" if len(pairs) == 1 else f": {len(pairs)} pairs"
    wider = "" if look == 1 else f", wider since this is verdict {look} of the comparison"
    basis = f"{at}{percent(confidence)}{of}{wider}"
    verdict = _verdict(recipes, differences, what=what, seeds=seeds, basis=basis)
    if recipes.keys() <= {*unlearned}:
        runs = sum(map(len, known.values()))
        verdict = f"no verdict: none of the {runs} runs is better than word frequencies: train longer"
    missing = {name: seeds - len(values) for name, values in known.items() if len(values) < seeds}
    lost = "".join(f"; {count} of {seeds} runs of {name} {without}" for name, count in missing.items())
    marked = "exploratory: " if exploratory else ""
    return {
        "recipes": recipes,
        "differences": differences,
        "confidence": confidence,
        "verdict": f"{marked}{verdict}{lost}{unlike}",
        "exploratory": exploratory > 0,
    }


def _estimate(
    values: Sequence[float], interval: tuple[float, float] | None, bounds: tuple[float, float] | None
) -> dict[str, Any]:
    """Clips the interval to the possible range of the mean, which Student's t does not know."""
    if interval is not None and bounds is not None:
        interval = max(interval[0], bounds[0]), min(interval[1], bounds[1])
    return {"mean": fmean(values), "interval": plain_interval(interval), "values": list(values)}


def percent(confidence: float) -> str:
    """97 %, 99.67 %, 99.9972 %: enough digits for the difference from 100 to have at least two."""
    missing = 100.0 * (1.0 - confidence)
    digits = max(0, 1 - math.floor(math.log10(missing)))
    shown = f"{100.0 - missing:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if digits else shown} %"


def _verdict(
    recipes: Mapping[str, Any], differences: Sequence[Mapping[str, Any]], *, what: str, seeds: int, basis: str
) -> str:
    best = min(recipes, key=lambda name: recipes[name]["mean"])
    if not differences:
        return f"no difference shown: no two recipes have a {what} of the same seed ({best} has the lowest {what})"
    if max(len(each["values"]) for each in differences) < 2:
        return f"no difference shown: one seed cannot rule out chance ({best} has the lowest {what}); give more seeds"
    shown = [each for each in differences if each["better"] is not None]
    if not shown:
        # The same difference for several seeds, and not 0: figures in steps may be so by accident.
        steady = any(
            len(each["values"]) > 1 and each["interval"] is None and not math.isclose(each["mean"], 0.0, abs_tol=1e-9)
            for each in differences
        )
        why = "; the same difference for every seed cannot rule out chance" if steady else ""
        return f"no difference shown in {what} over {seeds} seeds ({best} has the lowest mean; {basis}){why}"
    sentences = []
    for each in shown:
        worse = each["second"] if each["better"] == each["first"] else each["first"]
        low, high = sorted(abs(bound) for bound in each["interval"])
        sentences.append(
            f"{each['better']} has a lower {what} than {worse} by {decimals(abs(each['mean']))} "
            f"({decimals(low)} to {decimals(high)})"
        )
    rest = len(differences) - len(shown)
    others = f"; no difference shown in {rest} other {'pairs' if rest > 1 else 'pair'}" if rest else ""
    return f"{'; '.join(sentences)}{others} ({seeds} seeds; {basis})"
