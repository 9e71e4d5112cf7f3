"""Progress in a notebook: a line that is drawn anew in its place, without widgets.

Whoever works in a notebook sees how far work has come without asking for it; in a script nothing is printed.
"""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any

from unmask.progress import Notify, Pace, Progress, ignore

EVERY_SECONDS = 0.25


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (Jupyter's, Colab's); a terminal with IPython is none."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def usual_notify() -> Notify:
    """What a verb tells of its progress, where nobody says whom: a line in a notebook, nobody elsewhere."""
    return NotebookLine().notify if in_notebook() else ignore


class NotebookLine:
    """A bar with words beside it, as HTML that is replaced where it stands."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._pace = Pace()
        self._last, self._what = 0.0, ""

    def notify(self, progress: Progress) -> None:
        """Shows how far work has come."""
        share, facts = self._pace.facts(progress)
        self.show(progress.what, share, facts)

    def show(self, what: str, share: float | None, facts: str) -> None:
        """Draws it, at most some times a second; the first and the last state always.

        Args:
            what: Is done.
            share: Of it that is done, from 0 to 1; None where nobody knows.
            facts: What stands beside it.
        """
        now = time.monotonic()
        if share != 1.0 and what == self._what and now - self._last < EVERY_SECONDS:
            return
        self._last, self._what = now, what
        from IPython import display  # there, since this is its kernel; no dependency of ours

        value = "" if share is None else f" value='{share:.4f}'"
        drawn = display.HTML(f"<progress max='1'{value}></progress> {escape(what)}: {escape(facts)}")
        if self._handle is None:
            self._handle = display.display(drawn, display_id=True)
        else:
            self._handle.update(drawn)
