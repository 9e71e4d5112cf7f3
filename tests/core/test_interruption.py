from __future__ import annotations

import signal

import pytest
import torch
from torch import fx

from unmask.core.interruption import Interrupted


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
