"""What processes that train together say to each other in a step, counted; and what that would cost on many GPUs.

    python benchmarks/messages.py --table docs/scaling.md

The step's own code runs on models without numbers in a group that is one process's view of many; every call is counted.
Where weights are shared out (`full`), calls are those that torch's FSDP2 makes by what it promises. A test counts calls
and bytes of two real processes, and of one that takes itself for one of 8 or of 1,024, and finds the same.

Seconds are by an alpha-beta model: a call takes ALPHA for every process that a message passes, and its bytes take their
number by the bandwidth. Nothing of that is measured.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from gpu_memory import SHARE, model_of, operations
from tables import replace_table
from torch import Tensor

from unmask.commands.recipe import load_recipe
from unmask.data.rows import Share
from unmask.masking.settings import rate_at
from unmask.model.encoder import MaskedLM
from unmask.model.layers import Linear
from unmask.train.distributed import Alone, GradientExchange, owners_of
from unmask.train.hardware import fitting_positions
from unmask.train.optimizer import parameter_costs

MODELS: dict[str, dict[str, int]] = {
    "150M": {},
    "400M": {"num_layers": 28, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 2624},
    "1B": {"num_layers": 28, "hidden_size": 1792, "num_heads": 28, "intermediate_size": 4096},
}
PROCESSES = (8, 64, 256, 1024)
OF_A_MACHINE = 8
GPU = 80 << 30  # bytes
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
        self.count("words", 8 * len(values))
        return [list(values)] * self.share.world_size

    def summed(self, tensor: Tensor) -> Tensor:
        self.count("sums", tensor.nbytes)
        return tensor

    def reduce(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        self.count("gradients", tensor.nbytes)
        return lambda: None

    def spread(self, tensor: Tensor, owner: int) -> Callable[[], object]:
        self.count("weights", tensor.nbytes)
        return lambda: None

    def count(self, kind: str, size: int) -> None:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.sent[kind] = self.sent.get(kind, 0) + size


def counted_step(
    model: MaskedLM, processes: int, *, sharding: str = "owners", parts: int = 1, gathered: torch.dtype = torch.bfloat16
) -> tuple[Counted, float]:
    """What one process sends in a step, and the share of the optimizer's work that the busiest has.

    Args:
        model: Without numbers.
        processes: How many there are.
        sharding: As `training.sharding`.
        parts: Of a step.
        gathered: Type of the blocks' weights that go around, where they are shared out.
    """
    group = Counted(Share(0, processes))
    costs = parameter_costs(model)
    owners = owners_of(costs, processes)
    group.told([0.0] * 3)  # targets of the step, and its parts
    if sharding == "full":
        _count_full(model, group, owners, parts, gathered)
    else:
        _count_owners(model, group, owners)
    for dtype in (torch.float32, torch.float64):  # the gradient's norm, and the loss
        group.summed(torch.zeros(1, dtype=dtype))
    for _ in range(3):  # the clock, twice, and signals
        group.told([0.0])
    loads = [0.0] * processes
    for name, owner in owners.items():
        loads[owner] += costs[name]
    return group, max(loads) / sum(loads)


def _count_owners(model: MaskedLM, group: Counted, owners: dict[str, int]) -> None:
    parameters = dict(model.named_parameters())
    exchange = GradientExchange(parameters, owners, group)
    exchange.begin_last_part()
    for parameter in parameters.values():
        parameter.grad = torch.empty_like(parameter)
    exchange.finish()
    group.told([0.0, *map(float, exchange.has_gradient)])
    exchange.sum_gradients(exchange.has_gradient)
    exchange.forget()
    exchange.spread_weights()


def _count_full(model: MaskedLM, group: Counted, owners: dict[str, int], parts: int, gathered: torch.dtype) -> None:
    """Each part gathers the root once and each block twice, and adds up the gradients of all."""
    number, of = group.share.rank, group.share.world_size
    inside = {id(parameter) for parameter in model.encoder.blocks.parameters()}
    units = [(list(block.parameters()), gathered, 2) for block in model.encoder.blocks]
    units.append(([p for p in model.parameters() if id(p) not in inside], torch.float32, 1))
    for parameters, dtype, times in units:
        numbers = sum(of * _rows(parameter, of) * parameter[0].numel() for parameter in parameters)
        for _ in range(parts * times):
            group.count("gathered", dtype.itemsize * numbers)
        for _ in range(parts):
            group.count("added up", 4 * numbers)
    group.told([0.0])
    matrices = {f"{name}.weight": m.weight for name, m in model.named_modules() if isinstance(m, Linear)}
    own_rows = sum(min(_rows(w, of), max(0, len(w) - number * _rows(w, of))) * w.shape[1] for w in matrices.values())
    owned = sum(weight.numel() for name, weight in matrices.items() if owners[name] == number)
    group.count("dealt", 4 * own_rows)
    group.count("dealt", 4 * owned)


def _rows(parameter: Tensor, processes: int) -> int:
    """Of a parameter that a process has, at the most."""
    return -(-len(parameter) // processes)


def held(model: MaskedLM, processes: int, sharding: str) -> float:
    """Bytes of weights, gradients and optimizer states in a GPU, without activations and what is gathered."""
    numbers = model.num_parameters
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, Linear))
    states = matrices + 2 * (numbers - matrices)
    if sharding == "full":
        return (
            4 * (2 * numbers + states + matrices) / processes
        )  # rows, their gradients; what is done to whole matrices
    return 4 * (3 * numbers + states / processes)  # weights, gradients, and buckets in which these travel


def seconds(
    model: MaskedLM, group: Counted, busiest: float, rate: float, *, sharding: str
) -> tuple[float, float, float]:
    """Of computing a step, of what is said while nothing is computed, and of the optimizer."""
    processes = group.share.world_size
    computing = max(LEAST, operations(model, rate) * TOKENS / processes / (SHARE * FLOPS))
    bandwidth = NEAR if processes <= OF_A_MACHINE else FAR
    passes = math.log2(processes)

    def of(*kinds: str) -> float:
        return sum(group.calls[k] * ALPHA * passes + group.sent[k] / bandwidth for k in kinds)

    words = (group.calls["words"] + group.calls["sums"]) * WORD * passes
    optimizer = sum(parameter_costs(model).values()) * 60 / (0.3 * FLOPS) * busiest
    if sharding == "full":  # the next block is gathered while one is computed
        return computing, max(0.0, of("gathered", "added up") - computing) + of("dealt") + words, optimizer
    hidden = 2 / 3 * computing  # the backward pass, in which gradients travel
    return computing, max(0.0, of("gradients") - hidden) + of("weights") + words, optimizer


def table() -> list[str]:
    """Its lines."""
    lines = [
        "| parameters | sharding | GPUs | tokens of each | GB it holds | calls | MB sent | words, bytes "
        "| computing, ms | waiting, ms | optimizer, ms | of its time a GPU computes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, size), sharding in itertools.product(MODELS.items(), ("owners", "full")):
        recipe = load_recipe("modernbert-base", overrides=[f"model.{key}={value}" for key, value in size.items()])
        model = model_of(recipe)
        rate = rate_at(recipe.masking.rate, 0.0)
        for processes in PROCESSES:
            tokens = TOKENS // processes
            settings = recipe.training.model_copy(update={"batch_tokens": tokens})
            fits = fitting_positions(
                model, settings, memory=GPU, rate=rate, processes=processes if sharding == "full" else 1
            )
            assert fits is not None, "80 GB are enough"
            group, busiest = counted_step(model, processes, sharding=sharding, parts=math.ceil(tokens / fits))
            computing, waiting, optimizer = seconds(model, group, busiest, rate, sharding=sharding)
            useful = operations(model, rate) * TOKENS / processes / (SHARE * FLOPS)
            big = [kind for kind in group.calls if kind not in ("words", "sums")]
            lines.append(
                f"| {name} | {sharding} | {processes:,} | {tokens:,} | {held(model, processes, sharding) / 1e9:.2f} | "
                f"{sum(group.calls[kind] for kind in big):,} | {sum(group.sent[kind] for kind in big) / 1e6:,.0f} | "
                f"{group.calls['words']}, {group.sent['words']:,} | "
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
