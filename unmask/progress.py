"""How far work has come: one value, whatever the work is, and one kind of callback that is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["tokens", "bytes", "characters", "texts"]


@dataclass(frozen=True)
class Progress:
    """How far some work has come.

    Attributes:
        what: Is done now, in words.
        done: How much of it.
        total: Of how much, about; None where nobody knows.
        unit: What is counted.
    """

    what: str
    done: int
    total: int | None = None
    unit: Unit = "tokens"


class Pace:
    """How fast work goes on, in words."""

    def __init__(self) -> None:
        self._what, self._begin = "", time.monotonic()

    def facts(self, progress: Progress) -> tuple[float | None, str]:
        """The share that is done, and how much of how much, how fast, and the time left."""
        if progress.what != self._what:
            self._what, self._begin = progress.what, time.monotonic()
        done, total = progress.done, progress.total
        rate = done / max(time.monotonic() - self._begin, 1e-3)
        if progress.unit in ("tokens", "texts"):
            of = "" if total is None else f" of {total:,}"
            facts = f"{done:,}{of} {progress.unit}, {rate:,.0f} {progress.unit}/s"
        else:
            unit = "MB" if progress.unit == "bytes" else "M characters"
            facts = f"{done / 1e6:,.1f} {unit}, {rate / 1e6:,.1f} {unit}/s"
        if total is not None and 0 < done < total:
            facts += f", {duration((total - done) / rate)} left"
        return None if total is None else min(done / max(total, 1), 1.0), facts


def duration(seconds: float) -> str:
    """`4 s`, `2:05`, `1:02:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


Notify = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Nobody is told."""


def counted(notify: Notify, what: str, total: int | None, unit: Unit = "tokens") -> Callable[[int], None]:
    """What is told how much more was done, and tells of the sum; other arguments as for `Progress`."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        notify(Progress(what, done, total, unit))

    return count
