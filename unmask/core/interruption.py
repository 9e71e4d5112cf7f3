"""SIGINT and SIGTERM as an exception that says how the work goes on."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STUCK_SECONDS = 60.0  # that a process of several may wait for the others after a signal
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 0.2
_LOST_IN = ("llvmlite", "matplotlib", "<frozen importlib._bootstrap>")
_waits: dict[str, float] = {}  # since when this process waits for others, if it does
GOES_ON = "run the same command again to resume from the last save"
GOES_ON_WITH_RESUME = "run the same command with --resume to continue from the last save"


class Interrupted(Exception):
    """A signal asked to stop. Nothing is lost: `text` says what was done, `way_on` how to go on."""

    def __init__(self, signum: int, text: str, way_on: str = "") -> None:
        super().__init__(text)
        self.signum, self.text, self.way_on = signum, text, way_on

    def __str__(self) -> str:
        # Not of `args`: torch.fx writes the node that it was at into these.
        return "; ".join(part for part in (self.text, self.way_on) if part)


def interruption_in(error: BaseException | None) -> Interrupted | None:
    """The signal behind an error, if there is one: libraries make an error of their own of what it raises in them."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__
    return error


@contextmanager
def waiting() -> Iterator[None]:
    """Says that this process waits for others."""
    _waits["begun"] = time.monotonic()
    try:
        yield
    finally:
        _waits.clear()


@contextmanager
def held_signals() -> Iterator[None]:
    """Signals that Python handles come at the end of the section: what they raise amid the locks of several futures
    would leave these locked, so that a pool of processes never ends. Only the main thread gets signals."""
    noted: list[tuple[int, FrameType | None]] = []
    before: dict[int, Callable[[int, FrameType | None], object]] = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(signum)):
                before[signum] = handler
                signal.signal(signum, lambda number, frame: noted.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in noted[:1]:
            before[number](number, frame)


def _leave_signals() -> None:
    """In a fork's child: its signals are not its parent's."""
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_signals)


class Interruption:
    """While it is entered, a signal raises `Interrupted` at once, or, in a section that must end well, is noted.

    Python sees no signal while torch waits for other processes, one of which may have been stopped. So a thread ends
    the process where it still waits (`waiting`) a minute after the signal. Outside the main thread Python takes no
    signals, and nothing is done. `remark` is what `Interrupted` says of how to go on.
    """

    def __init__(self, remark: str = GOES_ON_WITH_RESUME) -> None:
        self.remark = remark
        self.signum: int | None = None
        self.patient = False
        self._before: dict[int, signal._HANDLER] = {}
        self._ended = threading.Event()

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._handle)
            self._signals, self._sender = socket.socketpair()
            self._sender.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, name="unmask-signals", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            self._sender.close()
        if not isinstance(error, Interrupted) and (stop := interruption_in(error)) is not None:
            raise stop

    def _watch(self) -> None:
        """Looks at signals as they come; ends the process where it still waits for others long after one."""
        received = 0
        with self._signals:
            self._signals.settimeout(_LOOK_SECONDS)
            while not self._ended.is_set():
                try:
                    numbers = self._signals.recv(1)
                except TimeoutError:
                    numbers = b""
                if numbers and self._wakeup >= 0:  # an event loop's own
                    with suppress(OSError):
                        os.write(self._wakeup, numbers)
                if numbers and numbers[0] in self._before:
                    received, since = numbers[0], time.monotonic()
                begun = _waits.get("begun")
                if received and begun is not None and time.monotonic() - max(begun, since) > STUCK_SECONDS:
                    name = signal.Signals(received).name
                    text = f"unmask: ended by {name} while other processes did not answer; {self.remark}"
                    os.write(2, f"{text}\n".encode())
                    os._exit(128 + received)

    def _again(self, signum: int) -> None:
        if not self._ended.wait(_AGAIN_SECONDS):
            signal.raise_signal(signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.patient and self.signum is None:
            self.signum = signum
            return
        # What is raised in a finalizer, where llvmlite's C calls Python, in matplotlib's callbacks, or in an import is
        # lost, or becomes another error: so again, in a moment.
        while frame is not None:
            if frame.f_code.co_name == "__del__" or any(name in frame.f_code.co_filename for name in _LOST_IN):
                threading.Thread(target=self._again, args=(signum,), daemon=True).start()
                return
            frame = frame.f_back
        raise Interrupted(signum, "stopped", self.remark)

    @contextmanager
    def patience(self) -> Iterator[None]:
        """A section that looks at `signum` by itself and ends well; a second signal does not wait for it."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False
