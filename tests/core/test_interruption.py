from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

import pytest

from tests.command_line import PATIENCE
from unmask.core.interruption import Interrupted, Interruption, held_signals


@pytest.mark.parametrize("error", [SystemError, RuntimeError])
def test_a_signal_that_comes_within_a_library(error: type[Exception]) -> None:
    """It turns what the handler raises into another error."""
    stopped = Interrupted(signal.SIGINT, "stopped")
    with pytest.raises(Interrupted) as caught, Interruption():
        raise error("the library failed") from stopped
    assert caught.value is stopped
    with pytest.raises(SystemError), Interruption():
        raise SystemError("something else") from ValueError("no signal")


def test_a_library_that_raises_a_keyboard_interrupt_of_its_own() -> None:
    def library() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    with pytest.raises(Interrupted) as caught, Interruption():
        library()
    assert caught.value.signum == signal.SIGTERM


def test_a_signal_that_comes_where_exceptions_are_lost() -> None:
    """As in a finalizer; in a callback of the compiler, a signal was lost, too, and the command ran to its end."""

    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            reached.append(True)

    def work() -> None:
        with Interruption():
            Finalized()
            time.sleep(30)

    reached: list[bool] = []
    with pytest.raises(Interrupted):
        work()
    assert reached


def test_a_signal_within_patience(capfd: pytest.CaptureFixture[str]) -> None:
    """The user is answered at once. If the section no longer looks, it ends the command all the same."""

    def section(error: Exception | None = None) -> None:
        with Interruption("go on") as interruption, interruption.patience():
            signal.raise_signal(signal.SIGINT)
            assert interruption.signum == signal.SIGINT
            if error is not None:
                raise error

    with pytest.raises(Interrupted, match="go on"):
        section()
    assert "Ctrl-C" in capfd.readouterr().err
    with pytest.raises(ZeroDivisionError):
        section(ZeroDivisionError())


def test_a_signal_leaves_no_future_locked() -> None:
    """A signal that came while a process waited for its workers left their pool locked, so it waited for ever."""
    first, second = sorted((Future[int](), Future[int]()), key=id)  # as they are locked

    def locked(acquire: Callable[[], bool]) -> bool:
        signal.raise_signal(signal.SIGINT)
        return acquire()

    second._condition.acquire = partial(locked, second._condition.acquire)  # type: ignore[method-assign]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), held_signals():
            wait([first, second], 0.0)
    finally:
        signal.signal(signal.SIGINT, before)
    of_pool = threading.Thread(target=first.set_result, args=(1,), daemon=True)
    of_pool.start()
    of_pool.join(PATIENCE)
    assert not of_pool.is_alive()
