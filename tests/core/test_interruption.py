from __future__ import annotations

import signal
import time

import pytest
import torch
from torch import fx

from unmask.core.interruption import Interrupted, Interruption


def test_a_signal_within_a_graph_of_torch_says_what_it_said() -> None:
    """torch.fx adds the node that it was at to what is raised, in many lines."""

    def stop(x: torch.Tensor) -> torch.Tensor:
        raise Interrupted(signal.SIGTERM, "stopped; nothing is lost")

    graph = fx.Graph()
    graph.output(graph.call_function(stop, (graph.placeholder("x"),)))
    with pytest.raises(Interrupted) as raised:
        fx.Interpreter(fx.GraphModule({}, graph)).run(torch.ones(1))
    assert "executing" in str(raised.value.args[0])
    assert str(raised.value) == "stopped; nothing is lost"


@pytest.mark.parametrize("error", [SystemError, RuntimeError])
def test_a_signal_that_comes_within_a_library(error: type[Exception]) -> None:
    """Which makes another error of what the handler raises."""
    stopped = Interrupted(signal.SIGINT, "stopped")
    with pytest.raises(Interrupted) as caught, Interruption():
        raise error("the library failed") from stopped
    assert caught.value is stopped
    with pytest.raises(SystemError), Interruption():
        raise SystemError("something else") from ValueError("no signal")


def test_a_signal_that_comes_where_exceptions_are_lost() -> None:
    """In a finalizer; one in a callback of the compiler was lost, too, and the command ran to its end."""

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
