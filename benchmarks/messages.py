"""What processes that train together say to each other in a step, counted; and what that would cost on many GPUs.

    python benchmarks/messages.py --table docs/scaling.md

The step's own code runs on models without numbers in a group that is one process's view of many; every call is counted.
Seconds are by an alpha-beta model: a call takes ALPHA for every process that a message passes, and its bytes take their
number by the bandwidth. Nothing of it is measured.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu_memory import SHARE, model_of, operations
from tables import replace_table
from torch import Tensor, nn

from unmask.masking.rate_schedule import rate_at
from unmask.recipe.recipe import load_recipe
from unmask.rows.stream import Share
from unmask.training.gradients import GradientExchange, owners_of
from unmask.training.group import Alone
from unmask.training.optimizer import parameter_costs

MODELS: dict[str, dict[str, int]] = {
    "150M": {},
    "400M": {"num_layers": 28, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 2624},
    "1B": {"num_layers": 28, "hidden_size": 1792, "num_heads": 28, "intermediate_size": 4096},
}
PROCESSES = (8, 64, 256, 1024)
OF_A_MACHINE = 8
TOKENS = 1 << 22  # of a step, all processes together
FLOPS = 790e12  # bf16 products of an H100
NEAR, FAR = 370e9, 45e9  # bytes a second of a GPU, within a machine and between machines
ALPHA = 3e-6  # seconds that a message takes from one process to the next
WORD = 50e-6  # seconds that a word takes between two hosts, by gloo
LEAST = 0.030  # seconds in which a host launches the operations of a step


@dataclass
class Counted(Alone):
    """One process of many; the others are not there.

    Attributes:
        share: As of a group.
        calls, sent: By kind: how often it was called, and with how many bytes.
    """

    share: Share
    calls: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def told(self, values: Sequence[float], *, patient: bool = False) -> list[list[float]]:
        self._count("words", 8 * len(values))
        return [list(values)] * self.share.of

    def reduce(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        self._count("gradients", tensor.nbytes)
        return lambda: None

    def spread(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        self._count("weights", tensor.nbytes)
        return lambda: None

    def _count(self, kind: str, size: int) -> None:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.sent[kind] = self.sent.get(kind, 0) + size


def counted_step(model: nn.Module, processes: int) -> tuple[Counted, float]:
    """What one process sends in a step, and the share of the optimizer's work that the busiest has."""
    group = Counted(Share(0, processes))
    parameters, costs = dict(model.named_parameters()), parameter_costs(model)
    owners = owners_of(costs, processes)
    exchange = GradientExchange(parameters, owners, group)
    group.told([0.0] * 2)  # targets of the step
    exchange.begin_last_part()
    for parameter in parameters.values():
        parameter.grad = torch.empty_like(parameter)
    exchange.finish()
    group.told([0.0, *map(float, exchange.has_gradient)])
    exchange.sum_gradients(exchange.has_gradient)
    exchange.forget()
    exchange.spread_weights()
    for _ in range(3):  # the clock, twice, and signals
        group.told([0.0])
    loads = [0.0] * processes
    for name, owner in owners.items():
        loads[owner] += costs[name]
    return group, max(loads) / sum(loads)


def seconds(model: Any, group: Counted, busiest: float, rate: float) -> tuple[float, float, float]:
    """Of computing a step, of what is said while nothing is computed, and of the optimizer."""
    processes = group.share.of
    computing = max(LEAST, operations(model, rate) * TOKENS / processes / (SHARE * FLOPS))
    bandwidth = NEAR if processes <= OF_A_MACHINE else FAR
    passes = math.log2(processes)
    gradients = group.calls["gradients"] * ALPHA * passes + group.sent["gradients"] / bandwidth
    weights = group.calls["weights"] * ALPHA * passes + group.sent["weights"] / bandwidth
    words = group.calls["words"] * WORD * passes
    hidden = 2 / 3 * computing  # the backward pass, in which gradients travel
    optimizer = sum(parameter_costs(model).values()) * 60 / (0.3 * FLOPS) * busiest
    return computing, max(0.0, gradients - hidden) + weights + words, optimizer


def table() -> list[str]:
    """Its lines."""
    lines = [
        "| parameters | GPUs | tokens of each | calls for gradients | MB sent for them | words, bytes "
        "| computing, ms | waiting, ms | optimizer, ms | of its time a GPU computes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, size in MODELS.items():
        recipe = load_recipe("modernbert-base", overrides=[f"model.{key}={value}" for key, value in size.items()])
        model = model_of(recipe)
        rate = rate_at(recipe.masking.rate, 0.0)
        for processes in PROCESSES:
            group, busiest = counted_step(model, processes)
            computing, waiting, optimizer = seconds(model, group, busiest, rate)
            useful = operations(model, rate) * TOKENS / processes / (SHARE * FLOPS)
            lines.append(
                f"| {name} | {processes:,} | {TOKENS // processes:,} | {group.calls['gradients']} | "
                f"{group.sent['gradients'] / 1e6:,.0f} | {group.calls['words']}, {group.sent['words']:,} | "
                f"{computing * 1e3:,.0f} | {waiting * 1e3:,.1f} | {optimizer * 1e3:,.1f} | "
                f"{useful / (computing + waiting + optimizer):.0%} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="page whose table `messages` is rewritten")
    asked = parser.parse_args()
    lines = table()
    print(*lines, sep="\n")
    if asked.table:
        replace_table(asked.table, "messages", "\n".join(lines))


if __name__ == "__main__":
    main()
