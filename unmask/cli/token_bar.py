"""A bar for commands that go through tokens: how many of how many, how fast, and the time left."""

from __future__ import annotations

import time

from unmask.cli.progress import ConsoleBar, duration


class TokenBar(ConsoleBar):
    """Draws what a `notify` is told."""

    def __init__(self, first: str) -> None:
        """Begins.

        Args:
            first: What is done before there is anything to count.
        """
        super().__init__()
        self.begin_task(first)

    def notify(self, what: str, done: int, total: int) -> None:
        """Shows how far it has come.

        Args:
            what: Is done now.
            done: Tokens of it.
            total: Tokens of all of it, about.
        """
        self.begin_task(what)
        rate = done / max(time.monotonic() - self._begin, 1e-3)
        facts = f"{done:,} of {total:,} tokens, {rate:,.0f} tokens/s"
        if 0 < done < total:
            facts += f", {duration((total - done) / rate)} left"
        self.show(min(done / max(total, 1), 1.0), facts)
