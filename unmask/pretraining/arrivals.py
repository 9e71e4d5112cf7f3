"""Reports of a training in their order, each handed on when its figures are there.

A GPU may still be computing a step when it is reported. Who reads each report at once would let the GPU wait for the
host; who takes them from here sees them a step or two later, and on a CPU at once.
"""

from __future__ import annotations

from collections import deque

from unmask.training.loop import StepReport


class Arrivals:
    """Reports whose figures are still to come."""

    def __init__(self) -> None:
        self._waiting: deque[StepReport] = deque()

    def add(self, report: StepReport) -> list[StepReport]:
        """Takes a report, and gives those whose figures have come, in order."""
        self._waiting.append(report)
        here = []
        while self._waiting and self._waiting[0].figures.arrived:
            here.append(self._waiting.popleft())
        return here

    def rest(self) -> list[StepReport]:
        """All that are left; reading their figures waits."""
        here = list(self._waiting)
        self._waiting.clear()
        return here
