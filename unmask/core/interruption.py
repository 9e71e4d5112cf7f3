"""SIGINT and SIGTERM as an exception that says how the work goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

GOES_ON = "the same command goes on from what was saved last"
GOES_ON_WITH_RESUME = "the same command with --resume goes on from what was saved last"


class Interrupted(Exception):
    """A signal asked to stop. Nothing is lost."""

    def __init__(self, signum: int, text: str) -> None:
        super().__init__(text)
        self.signum = signum


class Interruption:
    """While it is entered, a signal raises `Interrupted` at once, or, in a section that must end well, is noted.

    Outside the main thread Python takes no signals, and nothing is done.

    Args:
        remark: What `Interrupted` says of how to go on.
    """

    def __init__(self, remark: str = GOES_ON_WITH_RESUME) -> None:
        self.remark = remark
        self.signum: int | None = None
        self.patient = False
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        # Libraries in C make a SystemError of what a signal raises within them.
        cause = error.__cause__ if isinstance(error, SystemError) else None
        while cause is not None:
            if isinstance(cause, Interrupted):
                raise cause
            cause = cause.__cause__

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.patient and self.signum is None:
            self.signum = signum
            return
        raise Interrupted(signum, f"stopped; {self.remark}")

    @contextmanager
    def patience(self) -> Iterator[None]:
        """A section that looks at `signum` by itself and ends well; a second signal does not wait for it."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False
