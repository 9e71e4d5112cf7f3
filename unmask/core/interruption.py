"""SIGINT and SIGTERM as an exception that says how to resume."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from unmask.core.launcher import launched

STUCK_SECONDS = 60.0  # how long a process may wait for others after a signal
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 0.2
_LOST_IN = ("llvmlite", "<frozen importlib._bootstrap>")
_waits: dict[str, float] = {}  # when this process began to wait for others, if it does
GOES_ON = "run the same command again to resume from the last save"
GOES_ON_WITH_RESUME = "run the same command with --resume (instead of --overwrite) to continue from the last save"


class Interrupted(KeyboardInterrupt):
    """A signal asked to stop. Nothing is lost: `text` says what was done, `way_on` how to go on.

    It is no `Exception`: libraries, and loops over runs, catch those to try again or to go on with something else.
    """

    def __init__(self, signum: int, text: str, way_on: str = "") -> None:
        super().__init__("; ".join(part for part in (text, way_on) if part))
        self.signum = signum


def interruption_in(error: BaseException | None) -> Interrupted | None:
    """The interruption that caused an error, if any: libraries may wrap it in an error of their own."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__
    return error


@contextmanager
def waiting() -> Iterator[None]:
    """Marks that this process waits for others."""
    _waits["begun"] = time.monotonic()
    try:
        yield
    finally:
        _waits.clear()


@contextmanager
def held_signals() -> Iterator[None]:
    """Delays signals that Python handles until the section ends. Raised within it, amid the locks of several futures,
    they would leave these locked, and the process pool would never end. Only the main thread gets signals."""
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
    """In a forked child, stops sending signals to the parent's socket."""
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_signals)


class Interruption:
    """While it is entered, a signal raises `Interrupted` at once or, within `patience`, is first noted in `signum`.

    Python handles no signal while torch waits for other processes, one of which may have been stopped. So a thread ends
    the process if it still waits (`waiting`) a minute after the signal. Outside the main thread, where Python handles
    no signals, nothing is done. `remark` tells the user how to go on.
    """

    def __init__(self, remark: str = GOES_ON_WITH_RESUME) -> None:
        self.remark = remark
        self.signum: int | None = None
        self.patient = False
        self._raised: Interrupted | None = None
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
        # Some libraries (Ray) raise a KeyboardInterrupt of their own.
        stop = interruption_in(error) or (self._raised if isinstance(error, KeyboardInterrupt) else None)
        if stop is not None and stop is not error:
            raise stop

    def _watch(self) -> None:
        """Reads signals as they come; ends the process if it still waits for others long after one."""
        received = 0
        with self._signals:
            self._signals.settimeout(_LOOK_SECONDS)
            while not self._ended.is_set():
                try:
                    numbers = self._signals.recv(1)
                except TimeoutError:
                    numbers = b""
                if numbers and self._wakeup >= 0:  # passes them on to an event loop
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

    def _raise_again(self, signum: int) -> None:
        if self._ended.wait(_AGAIN_SECONDS):
            return
        main = threading.main_thread().ident
        if hasattr(signal, "pthread_kill") and main is not None:
            signal.pthread_kill(main, signum)  # ends a wait of the main thread, as a signal from outside does
        else:
            signal.raise_signal(signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.patient and self.signum is None:
            self.signum = signum
            again = "Ctrl-C" if signum == signal.SIGINT else "signal"
            note = f"unmask: saving and stopping after this step; a second {again} stops without saving"
            if launched().get("RANK", "0") == "0":
                with suppress(OSError):
                    os.write(2, f"\n{note}\n".encode())  # not through a stream or a log, whose lock may be held
            return
        # An exception in a finalizer, in an import, or where llvmlite's C calls Python, is
        # lost or becomes another error. So the signal is raised again in a moment.
        while frame is not None:
            if frame.f_code.co_name == "__del__" or any(name in frame.f_code.co_filename for name in _LOST_IN):
                threading.Thread(target=self._raise_again, args=(signum,), daemon=True).start()
                return
            frame = frame.f_back
        self._raised = Interrupted(signum, "stopped", self.remark)
        raise self._raised

    @contextmanager
    def patience(self) -> Iterator[None]:
        """A section that checks `signum` and ends cleanly by itself. A second signal is raised at once, and one that
        the section has not seen is raised at its end."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False
        if self.signum is not None:  # it came after the last check, perhaps during the last save
            raise Interrupted(self.signum, "stopped", self.remark)
