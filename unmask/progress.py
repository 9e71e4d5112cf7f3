"""How far work has come: one value, whatever the work is, and one kind of callback that is told of it."""

from __future__ import annotations

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
