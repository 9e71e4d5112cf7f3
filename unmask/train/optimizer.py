"""The optimizers: Muon for matrices with AdamW for the rest, or AdamW alone.

Each is a `torch.optim.Optimizer`, built by a function in `OPTIMIZERS`. The learning rate of a parameter group is its
peak, which the trainer multiplies by the schedule. With several processes, each computes the whole update.
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


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    return OPTIMIZERS[settings.optimizer.kind](model, settings)


def _muon(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Muon for the weights of linear modules, which are the matrices of blocks and heads; AdamW for the rest, also for
    an embedding that a linear module shares."""
    choice = settings.optimizer
    assert isinstance(choice, MuonSettings), "the table is by kind"
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    modules = [module for module in model.modules() if isinstance(module, Linear | nn.Linear)]
    stacked: dict[Any, int] = {
        m.weight: m.num_fused if isinstance(m, Linear) else 1 for m in modules if m.weight not in embeddings
    }
    if not stacked:
        return adamw_for(dict(model.named_parameters()), settings)
    muon = Muon(
        stacked,
        lr=settings.learning_rate,
        momentum=choice.momentum,
        weight_decay=settings.weight_decay,
        dtype=getattr(getattr(model, "encoder", None), "compute_dtype", torch.float32),
    )
    rest = {name: parameter for name, parameter in model.named_parameters() if parameter not in stacked}
    return Together(muon, adamw_for(rest, settings, embedding_rate=choice.embedding_rate))


OPTIMIZERS: dict[str, Callable[[nn.Module, TrainingSettings], torch.optim.Optimizer]] = {
    "muon": _muon,
    "adamw": lambda model, settings: adamw_for(dict(model.named_parameters()), settings),
}


def adamw_for(
    parameters: Mapping[str, nn.Parameter], settings: TrainingSettings, *, embedding_rate: float = 1.0
) -> torch.optim.Optimizer:
    """AdamW with a parameter group for each factor of the learning rate; matrices decay, vectors do not."""
    choice = settings.optimizer
    assert isinstance(choice, AdamWSettings | MuonSettings), "both have AdamW's settings"
    embeddings = "encoder.tokens", "encoder.positions", "encoder.token_types"  # parameters, or each an `nn.Embedding`
    factors = {
        name: embedding_rate if name.removesuffix(".weight").endswith(embeddings) else 1.0 for name in parameters
    }
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
    """Several optimizers, each for its own parameters, as one that shares their groups and state."""

    _step_supports_amp_scaling = True  # `step` reads `found_inf`, the protocol of torch's gradient scaler

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
    """All tensors of an optimizer's state, by role and parameter name; before the first step there may be none."""
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
        device = parameters[name].device
        optimizer.state[parameters[name]] = {role: t.to(device).clone() for role, t in states[name].items()}


# ----------------------------------------
# Muon: momentum whose matrices are orthogonalised before they are applied.
#
# torch has a Muon too. This one is cheaper for small encoders, and treats fused projections correctly. Matrices of one
# shape are orthogonalised together in batched products. Fused projections (queries, keys and values in one weight) are
# split first, since each is a matrix of its own. On CPUs a batch holds as many matrices as fit the caches, and two
# compiled loops read and write each number once, in place of a dozen passes over memory.
#
# Shape suffixes: N = matrices, R = rows, C = columns.

STRETCHES = 16  # parts of a matrix whose sums are added up in order, so that the number of cores makes no difference


@parallel
def unit_directions(
    momentum: float, room: float, eps: float, gradient_NRC: Any, running_NRC: Any, sums_NS: Any, direction_NRC: Any
) -> None:
    """Advances the running gradients, and scales Nesterov's directions to length 1 / room.

    Updates running gradients in place. Writes the sums of the directions' squares into sums_NS, float32 [N, STRETCHES],
    and the directions, each matrix divided by its Frobenius norm times the room, plus eps, into direction_NRC.
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
    """Sets weights to `shrink` times themselves minus `rate` times the update; T = all rows in a line."""
    for t in prange(len(weight_TC)):
        weight, update = weight_TC[t], update_TC[t]
        for c in range(len(weight)):
            weight[c] = weight[c] * np.float32(shrink) - np.float32(rate) * load(update[c])


_EPS = 1e-7  # added to norms
_CACHED = 5_000_000  # bytes of the matrices that a CPU orthogonalises at once

_ROOM = 1.01  # factor by which rounding may push singular values beyond the polynomials' interval

# Polynomials a x + b x^3 + c x^5, applied in order. Each has the smallest maximum distance to 1 on the interval that
# the previous ones map [0.01, 1] to.
_NEAREST = ((8.0934, -23.6205, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))

# All but the last take numbers divided by the room, since they rise steeply beyond their intervals: in bf16 the largest
# singular value of a matrix of rank 1, at the very end of the interval, became 1e11 after five of them. Source: as for
# `orthogonalise`, section 3.4.
POLYNOMIALS = (*((a / _ROOM, b / _ROOM**3, c / _ROOM**5) for a, b, c in _NEAREST[:-1]), _NEAREST[-1])


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Moves singular values near 1, keeping the singular vectors: values from 0.01 on are mapped to 0.72 to 1.27.

    Singular values of the matrices [N, R, C] must be at most 1, or 1.01 with rounding.

    Source: Amsel et al. 2025 (The Polar Express), section 3: each step has its own polynomial, the best for the
    interval that is left. Jordan et al. 2024 applies the same polynomial five times and gets 0.7 to 1.2. Three of these
    come as near, with three fifths of the products. The coefficients are ours, for an interval that suits so few steps.
    """
    x = matrices_NRC
    is_tall = x.shape[1] > x.shape[2]  # the Gram matrix is that of the shorter side
    for a, b, c in POLYNOMIALS:
        gram = x.mT @ x if is_tall else x @ x.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, x, factor, beta=a) if is_tall else torch.baddbmm(x, factor, x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """The optimizer of matrices. Updates are scaled by 0.2 x sqrt(longer side), to AdamW's root mean square.

    `stacked` maps weights [n x rows, columns] to the number of matrices (n) stacked in each; `dtype` is the type of the
    products that orthogonalise. Momentum is Nesterov's; weight decay is multiplied by the learning rate.
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
        # 1 if the gradient is not finite and nothing may change, else 0; on the device of the weights, so that the host
        # need not wait for it. None: the gradient is known to be finite.
        self.found_inf: Tensor | None = None
        self._stacked = dict(stacked)

        # Batches of matrices of one shape: on CPUs as many as the caches hold, elsewhere all.
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for weight, num in stacked.items():
            shapes[len(weight) // num, weight.shape[1]].append(weight)
        self._batches: list[list[nn.Parameter]] = []
        for shape, alike in sorted(shapes.items()):
            most = sum(stacked[weight] for weight in alike)
            if alike[0].device.type == "cpu":
                most = max(1, _CACHED // (math.prod(shape) * dtype.itemsize))
            size = most
            for weight in alike:
                if size + stacked[weight] > most:
                    self._batches.append([])
                    size = 0
                self._batches[-1].append(weight)
                size += stacked[weight]
        for weight in stacked:
            self.state[weight]["momentum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Applies the gradients, and overwrites them as working memory."""
        (group,) = self.param_groups
        learning_rate, momentum, diverged = group["lr"], group["momentum"], self.found_inf
        shrink = 1.0 - learning_rate * group["weight_decay"]
        for weights_of_shape in self._batches:
            batch = [weight for weight in weights_of_shape if weight.grad is not None]
            on_cpu = serves(weights_of_shape[0])
            if not batch or (on_cpu and diverged is not None and diverged.item()):
                continue
            # Gradients and momentum of each weight, as the matrices stacked in it: [n, R, C].
            nums = [self._stacked[weight] for weight in batch]
            pairs = [(cast(Tensor, weight.grad), self.state[weight]["momentum"]) for weight in batch]
            gradients, running = (
                [each.unflatten(0, (num, -1)) for each, num in zip(column, nums, strict=True)]
                for column in zip(*pairs, strict=True)
            )

            # 1. Advance the running gradients, and get the directions of all matrices, with norms just below 1.
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
                if diverged is not None:  # then interpolates the running gradients with themselves: no change
                    gradients = [torch.where(diverged > 0, r, g) for r, g in zip(running, gradients, strict=True)]
                torch._foreach_lerp_(running, gradients, 1.0 - momentum)
                torch._foreach_lerp_(gradients, running, momentum)
                direction_NRC = torch.cat(gradients)
                norm_N11 = torch.linalg.matrix_norm(direction_NRC, keepdim=True)
                direction_NRC = (direction_NRC / (_ROOM * norm_N11 + _EPS)).to(self.dtype)

            # 2. Update by directions whose singular values are all near 1.
            update_NRC = orthogonalise(direction_NRC)
            rate = learning_rate * 0.2 * max(update_NRC.shape[1:]) ** 0.5
            if not on_cpu:  # all weights at once, since each GPU operation costs a launch
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
