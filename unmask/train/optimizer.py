"""The optimizers: Muon for matrices with AdamW for the rest, or AdamW alone.

Each is a `torch.optim.Optimizer` that a function of `OPTIMIZERS` builds. The learning rate of a group of parameters is
its peak, which the trainer multiplies by the schedule. Each of several processes does the whole update.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from numba import prange
from torch import Tensor, nn

from unmask.core.compiled import arrays, parallel, serves, use_threads_of_torch
from unmask.model.layers import Linear
from unmask.model.loops import load, store
from unmask.train.settings import AdamWSettings, MuonSettings, TrainingSettings

FactorOf = Callable[[str], float]
"""The share of the learning rate that a parameter takes, by its name."""


def build_optimizer(
    model: nn.Module, settings: TrainingSettings, *, factor_of: FactorOf = lambda name: 1.0
) -> torch.optim.Optimizer:
    """Makes the optimizer that the settings name, for a model on its device; `factor_of` is of AdamW's parameters."""
    return OPTIMIZERS[settings.optimizer.kind](model, settings, factor_of)


def _muon(model: nn.Module, settings: TrainingSettings, factor_of: FactorOf) -> torch.optim.Optimizer:
    """Muon for the weights of linear modules, which are the matrices of blocks and heads; AdamW for the rest."""
    choice = settings.optimizer
    assert isinstance(choice, MuonSettings), "the table goes by kind"
    modules = [module for module in model.modules() if isinstance(module, Linear | nn.Linear)]
    stacked: dict[Any, int] = {m.weight: m.num_fused if isinstance(m, Linear) else 1 for m in modules}
    if not stacked:
        return adamw_for(dict(model.named_parameters()), settings, factor_of)
    muon = Muon(
        stacked,
        lr=settings.learning_rate,
        momentum=choice.momentum,
        weight_decay=settings.weight_decay,
        dtype=getattr(getattr(model, "encoder", None), "compute_dtype", torch.float32),
    )
    rest = {name: parameter for name, parameter in model.named_parameters() if parameter not in stacked}

    def factor_in_all(name: str) -> float:
        return factor_of(name) * (choice.embedding_rate if name.endswith("encoder.tokens") else 1.0)

    return Together(muon, adamw_for(rest, settings, factor_in_all))


OPTIMIZERS: dict[str, Callable[[nn.Module, TrainingSettings, FactorOf], torch.optim.Optimizer]] = {
    "muon": _muon,
    "adamw": lambda model, settings, factor_of: adamw_for(dict(model.named_parameters()), settings, factor_of),
}


def adamw_for(
    parameters: Mapping[str, nn.Parameter], settings: TrainingSettings, factor_of: FactorOf
) -> torch.optim.Optimizer:
    """AdamW whose groups have one factor of the learning rate each; matrices decay, vectors do not."""
    choice = settings.optimizer
    assert isinstance(choice, AdamWSettings | MuonSettings), "both have AdamW's settings"
    factors = {name: factor_of(name) for name in parameters}
    groups = [
        {
            "params": [p for name, p in parameters.items() if factors[name] == factor and (p.ndim == 2) == decays],
            "weight_decay": settings.weight_decay if decays else 0.0,
            "lr_factor": factor,
        }
        for factor in sorted(set(factors.values()) or {1.0}, reverse=True)
        for decays in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=choice.betas, eps=choice.eps, fused=True)


class Together(torch.optim.Optimizer):
    """Several optimizers, each of parameters of its own, as one: groups and state are shared with them."""

    _step_supports_amp_scaling = True  # steps look at `found_inf`, as those of torch's gradient scaler

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self.found_inf: Tensor | None = None
        for part in parts:
            self.state.update(part.state)
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.found_inf = self.found_inf  # type: ignore[attr-defined]
            part.step()


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that an optimizer remembers, by role and parameter name; before the first step there may be none."""
    return {
        f"{role}.{name}": value
        for name, parameter in model.named_parameters()
        for role, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        role, _, name = key.partition(".")
        states[name][role] = tensor
    for name in states.keys() | {name for name, parameter in parameters.items() if optimizer.state.get(parameter)}:
        of_device = parameters[name].device
        optimizer.state[parameters[name]] = {role: t.to(of_device).clone() for role, t in states[name].items()}


# ----------------------------------------
# Muon: momentum whose matrices are orthogonalised before they are applied.
#
# torch has a Muon too. This one differs in what makes it cheap and right for small encoders: matrices of one shape are
# orthogonalised together in batched products, and fused projections (queries, keys and values in one weight) are taken
# apart first, since each of them is a matrix of its own. On CPUs so many go at once as the caches hold, and two
# compiled loops read and write each number once where a dozen passes over memory would.
#
# Shape suffixes: N = matrices, R = rows, C = columns.

STRETCHES = 16  # of a matrix, whose sums are added up in their order: the number of cores makes no difference


@parallel
def unit_directions(
    momentum: float, room: float, eps: float, gradient_NRC: Any, running_NRC: Any, sums_NS: Any, direction_NRC: Any
) -> None:
    """Advances the running gradients, and brings Nesterov's directions to length 1 / room.

    Running gradients change in place. sums_NS, float32 [N, STRETCHES], becomes the squares of the directions, added up;
    direction_NRC the directions, each matrix divided by its Frobenius norm times the room, plus eps.
    """
    num, rows, columns = gradient_NRC.shape
    decay, fresh = np.float32(momentum), np.float32(1.0 - momentum)
    for place in prange(num * STRETCHES):
        n, stretch = place // STRETCHES, place % STRETCHES
        total = np.float32(0.0)
        for r in range(stretch * rows // STRETCHES, (stretch + 1) * rows // STRETCHES):
            gradient, running = gradient_NRC[n, r], running_NRC[n, r]
            for c in range(columns):
                running[c] += fresh * (gradient[c] - running[c])
                direction = gradient[c] + decay * (running[c] - gradient[c])
                total += direction * direction
        sums_NS[n, stretch] = total
    for place in prange(num * rows):
        n, r = place // rows, place % rows
        total = np.float32(0.0)
        for stretch in range(STRETCHES):
            total += sums_NS[n, stretch]
        factor = np.float32(1.0) / (np.float32(room) * np.sqrt(total) + np.float32(eps))
        gradient, running, direction_C = gradient_NRC[n, r], running_NRC[n, r], direction_NRC[n, r]
        for c in range(columns):
            store(direction_C, c, (gradient[c] + decay * (running[c] - gradient[c])) * factor)


@parallel
def apply(shrink: float, rate: float, update_TC: Any, weight_TC: Any) -> None:
    """Weights become `shrink` times themselves, less `rate` times the update; T = all rows in a line."""
    for t in prange(len(weight_TC)):
        weight, update = weight_TC[t], update_TC[t]
        for c in range(len(weight)):
            weight[c] = weight[c] * np.float32(shrink) - np.float32(rate) * load(update[c])


_EPS = 1e-7  # added to norms
_CACHED = 5_000_000  # bytes of the matrices that a CPU orthogonalises at once

_ROOM = 1.01  # what rounding may make singular values larger than the polynomials are made for

# Polynomials a x + b x^3 + c x^5, in their order: each is the nearest to 1, in the largest difference, on the interval
# that those before it make of [0.01, 1].
_NEAREST = ((8.0934, -23.6205, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))

# All but the last are of numbers that are smaller by the room. They rise steeply behind their intervals: in bf16 the
# largest singular value of a matrix of rank 1, which lies at the very end, came out as 1e11 after five of them. Source:
# as of `orthogonalise`, section 3.4.
POLYNOMIALS = (*((a / _ROOM, b / _ROOM**3, c / _ROOM**5) for a, b, c in _NEAREST[:-1]), _NEAREST[-1])


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Moves singular values near 1, keeping the singular vectors: those from 0.01 on to 0.72 to 1.27.

    Singular values of the matrices [N, R, C] are 1 at the most, or 1.01 where they were rounded.

    Source: Amsel et al. 2025 (The Polar Express), section 3: a polynomial of its own for each step, each the best for
    what is left to do. Jordan et al. 2024 takes the same one five times and comes to 0.7 to 1.2; three of these come as
    near, with three fifths of the products. The coefficients are ours, for an interval that fits so few steps.
    """
    x = matrices_NRC
    stands = x.shape[1] > x.shape[2]  # the smaller of both sides is squared
    for a, b, c in POLYNOMIALS:
        gram = x.mT @ x if stands else x @ x.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, x, factor, beta=a) if stands else torch.baddbmm(x, factor, x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """The optimizer of matrices. An update is scaled by 0.2 x sqrt(longer side): its root mean square is AdamW's.

    `stacked` are weights [n x rows, columns], and how many matrices (n) are stacked in each; `dtype` is the type of the
    products that orthogonalise. Momentum is Nesterov's; the decay is times the learning rate.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        stacked: Mapping[nn.Parameter, int],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(list(stacked), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype
        # 1 where the gradient is not finite and nothing is to change, else 0, where the weights are: the host does not
        # wait for it. None: the gradient is known to be finite.
        self.found_inf: Tensor | None = None
        self._stacked = dict(stacked)

        # Matrices of one shape together: on CPUs so many as their caches hold, elsewhere all.
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for weight, num in stacked.items():
            shapes[len(weight) // num, weight.shape[1]].append(weight)
        self._batches: list[list[nn.Parameter]] = []
        for shape, alike in sorted(shapes.items()):
            most = sum(stacked[weight] for weight in alike)
            if alike[0].device.type == "cpu":
                most = max(1, _CACHED // (math.prod(shape) * dtype.itemsize))
            held = most
            for weight in alike:
                if held + stacked[weight] > most:
                    self._batches.append([])
                    held = 0
                self._batches[-1].append(weight)
                held += stacked[weight]
        for weight in stacked:
            self.state[weight]["momentum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Applies the gradients, which serve as working memory."""
        (group,) = self.param_groups
        learning_rate, momentum, diverged = group["lr"], group["momentum"], self.found_inf
        shrink = 1.0 - learning_rate * group["weight_decay"]
        for reached in self._batches:
            batch = [weight for weight in reached if weight.grad is not None]
            on_cpu = serves(reached[0])
            if not batch or (on_cpu and diverged is not None and diverged.item()):
                continue
            # What has the shape of a weight, as the matrices that are stacked in it: [n, R, C].
            nums = [self._stacked[weight] for weight in batch]
            pairs = [(cast(Tensor, weight.grad), self.state[weight]["momentum"]) for weight in batch]
            gradients, running = (
                [each.unflatten(0, (num, -1)) for each, num in zip(column, nums, strict=True)]
                for column in zip(*pairs, strict=True)
            )

            # 1. The running gradients advance, and give the directions of all matrices, a little shorter than 1.
            if on_cpu:
                use_threads_of_torch()
                direction_NRC = torch.empty(sum(nums), *gradients[0].shape[1:], dtype=self.dtype)
                sums_NS = torch.empty(sum(nums), STRETCHES)
                begin = 0
                for gradient_NRC, running_NRC in zip(gradients, running, strict=True):
                    own = slice(begin, begin := begin + len(gradient_NRC))
                    columns = arrays(gradient_NRC, running_NRC, sums_NS[own], direction_NRC[own])
                    unit_directions(momentum, _ROOM, _EPS, *columns)
            else:
                if diverged is not None:  # between a number and itself there is only this number
                    gradients = [torch.where(diverged > 0, r, g) for r, g in zip(running, gradients, strict=True)]
                torch._foreach_lerp_(running, gradients, 1.0 - momentum)
                torch._foreach_lerp_(gradients, running, momentum)
                direction_NRC = torch.cat(gradients)
                norm_N11 = torch.linalg.matrix_norm(direction_NRC, keepdim=True)
                direction_NRC = (direction_NRC / (_ROOM * norm_N11 + _EPS)).to(self.dtype)

            # 2. The update, by directions whose singular values are all near 1.
            update_NRC = orthogonalise(direction_NRC)
            rate = learning_rate * 0.2 * max(update_NRC.shape[1:]) ** 0.5
            if not on_cpu:  # all at once: each operation on a GPU costs a launch
                weights: list[Tensor] = list(batch)
                if diverged is None:
                    torch._foreach_mul_(weights, shrink)
                else:
                    torch._foreach_mul_(weights, torch.where(diverged > 0, 1.0, shrink))
                    update_NRC.mul_(1.0 - diverged)
            for weight, update in zip(batch, update_NRC.split(nums), strict=True):
                if on_cpu:
                    apply(shrink, rate, *arrays(update.flatten(0, 1), weight))
                else:
                    weight.add_(update.flatten(0, 1), alpha=-rate)
