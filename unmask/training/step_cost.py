"""What a training step costs: some are made and timed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from unmask.training.loop import StepReport


class StepCost(NamedTuple):
    """Of a step: the median of its seconds without the first one's, and its tokens on average."""

    seconds: float
    tokens: float


def step_cost(reports: Iterable[StepReport], num_steps: int, *, within: float = math.inf) -> StepCost:
    """Makes so many steps of a training, or those that begin within so many seconds; one at least."""
    begin = last = time.monotonic()
    seconds, tokens = [], 0
    for report in islice(reports, num_steps):
        report.figures.read()  # waits for a GPU, which else would only have been told what to do
        now = time.monotonic()
        seconds.append(now - last)
        last, tokens = now, tokens + report.tokens
        if now - begin > within:
            break
    return StepCost(statistics.median(seconds[1:] or seconds), tokens / len(seconds))
