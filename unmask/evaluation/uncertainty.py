"""How sure a measured figure is: the one place where standard errors over documents are computed.

What is measured, such as a loss per token, is a ratio of two sums. Tokens of a document, and all that it is cut into
(pieces, passages, held-out parts), are alike: a writer's words and turns run through all of it. So what is drawn
independently is the source document, and the standard error is of these. It tells how much the figure would change with
other documents of the same kind; of the seed of a training it tells nothing.

    r = sum of y / sum of x    over documents g, such as y = the losses and x = the number of predicted tokens
    r without g, minus r       = (r x_g - y_g) / (X - x_g), X being the sum of x
    variance                   = sum of its squares over g

That is the delete-one jackknife, written out. The long documents of a text are few, so its degrees of freedom are fewer
than the documents: they are those of a sum of squares with the same mean and variance (Satterthwaite), computed as if
documents' own ratios varied alike. With equal documents they are one less than the documents.

In simulations with 8 to 50 documents, log-normal lengths (whose logarithms deviate by up to 0.8) and effects of
documents that are normal, or skewed by up to 2, the 95 % intervals hold the true ratio in 92 to 99 of 100 cases
(`tests/evaluation/test_coverage.py`), where normal intervals on the usual error hold it in 80 to 94. With lengths that
deviate by 1.5 they are wider than needed, and hold it in 96 to 99.5. Two things they do not know of: where the long
documents are the hard ones and effects are skewed too, it is about 90; and what the corpus calls documents may still be
alike, such as the lines of one book.

Source: Bell and McCaffrey 2002 (Bias reduction in standard errors for linear regression with multi-stage samples) for
both; Pustejovsky and Tipton 2018 (Small-sample methods for cluster-robust variance estimation), who call it CR3. Its
factor (G - 1) / G is left out, as they do: skewed effects need the room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.evaluation.intervals import student_margin

FEW = 20  # fewer documents are warned of
_ROUNDING = 1e-12  # of what sums of losses come to


@dataclass(frozen=True)
class Uncertain:
    """A ratio of sums, and how sure it is.

    Attributes:
        value: The ratio; not a number where nothing was counted.
        stderr: Its standard error; None with fewer than two documents, where one is all but everything, and where all
            of them have the same ratio, which tells nothing of chance; never 0.
        degrees: Of freedom of the standard error, at least 1; None where there is none.
        draws: How many documents, or other independent draws, were counted.
    """

    value: float
    stderr: float | None
    degrees: float | None
    draws: int

    @property
    def margin(self) -> float | None:
        """Half the width of the 95 % interval by Student's t: what stands behind ± in every table."""
        if self.stderr is None or self.degrees is None:
            return None
        return student_margin(self.stderr, self.degrees)

    @property
    def interval(self) -> tuple[float, float] | None:
        """That holds the true ratio in 95 of 100 cases."""
        margin = self.margin
        return None if margin is None else (self.value - margin, self.value + margin)

    @property
    def share_interval(self) -> tuple[float, float] | None:
        """The interval of a share, cut at 0 and 1."""
        interval = self.interval
        return None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))


def ratio_over_draws(above_G: ArrayLike, below_G: ArrayLike) -> Uncertain:
    """The ratio of two sums over independent draws; see the module's docstring.

    Args:
        above_G: [G]: what each document adds above the line.
        below_G: [G]: what it adds below, not negative. A document with nothing below counts where it adds something
            above, since the ratio has it too; one with nothing at all does not.
    """
    above, below = np.asarray(above_G, dtype=np.float64), np.asarray(below_G, dtype=np.float64)
    counted = (below > 0.0) | (above != 0.0)
    above, below = above[counted], below[counted]
    total = float(below.sum())
    value = float(above.sum()) / total if total > 0.0 else math.nan
    if len(below) < 2 or not math.isfinite(value) or total - float(below.max()) <= _ROUNDING * total:
        return Uncertain(value, None, None, len(below))
    share = below / total
    change = (share * value - above / total) / (1.0 - share)  # of the ratio, where a document is left out
    stderr = math.sqrt(float(np.square(change).sum()))
    if stderr <= _ROUNDING * max(1.0, abs(value)):
        return Uncertain(value, None, None, len(below))
    return Uncertain(value, stderr, _degrees(share), len(below))


def _degrees(share: NDArray[np.float64]) -> float:
    """Satterthwaite's degrees of freedom of the jackknife, where documents' ratios are normal and vary alike.

    The variance is the quadratic form of A = (I - 1 share') D (I - share 1') in these ratios, D being diagonal, and has
    trace(A)^2 / trace(A^2) degrees. The traces are sums over pairs of documents, here multiplied out.
    """
    weight = np.square(share / (1.0 - share))
    weight /= weight.sum()
    squares = float(np.square(share).sum())
    once, twice = float((weight * share).sum()), float((weight * share * share).sum())
    trace = float((weight * (1.0 - 2.0 * share + squares)).sum())
    alone = float((weight * weight * (1.0 + 2.0 * squares - 4.0 * share)).sum())
    pairs = squares * squares + 2.0 * twice + 2.0 * once * once - 4.0 * squares * once
    return max(1.0, trace * trace / (alone + pairs))


def plain_interval(interval: tuple[float, float] | None) -> list[float] | None:
    """As JSON gives it back, so that results equal what is read from their files."""
    return None if interval is None else list(interval)


def few_documents(documents: int) -> str | None:
    """What must be said where figures rest on few documents; None where they rest on enough."""
    if documents >= FEW:
        return None
    if documents < 2:
        return (
            "all of the measured text is one document, so that there is no standard error and no interval: how much "
            "the figures would change with other text is not known; measure on several documents"
        )
    return (
        f"the measured text is of {documents} documents only: the intervals are wide, and less reliable than with "
        f"{FEW} or more"
    )
