"""Which parameter is trained by what: Muon for matrices and AdamW for the rest, or AdamW alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from unmask.network.layers import Linear
from unmask.training.muon import Matrix, Muon
from unmask.training.settings import MuonSettings, TrainingSettings

_ROLES = ("step", "exp_avg", "exp_avg_sq")


class Optimizer:
    """All parameters of a model with what trains them.

    Args:
        model: To be trained.
        settings: Learning rates, decay, kind.
        dtype: Of Muon's products.
        factor_of: The share of the learning rate that a parameter of AdamW's takes, by its name; None: all of it.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        *,
        dtype: torch.dtype,
        factor_of: Callable[[str], float] | None = None,
    ) -> None:
        choice = settings.optimizer
        self.clip_norm = settings.clip_norm
        self._on_cuda_or_cpu = next(model.parameters()).device.type in ("cuda", "cpu")
        self.learning_rate = self.rest_learning_rate = settings.learning_rate
        self._parameters = dict(model.named_parameters())
        self._rest = dict(self._parameters)  # what AdamW trains, by name
        self.muon: Muon | None = None
        if isinstance(choice, MuonSettings):
            matrices = _matrices(model)
            self.muon = Muon(
                matrices,
                momentum=choice.momentum,
                iterations=choice.iterations,
                weight_decay=settings.weight_decay,
                dtype=dtype,
            )
            for matrix in matrices:
                del self._rest[matrix.name]
            self.rest_learning_rate = choice.embedding_learning_rate or settings.learning_rate
        factors = {name: 1.0 if factor_of is None else factor_of(name) for name in self._rest}
        groups = [
            {
                "params": [p for name, p in self._rest.items() if factors[name] == factor and (p.ndim == 2) == decays],
                "weight_decay": settings.weight_decay if decays else 0.0,
                "factor": factor,
            }
            for factor in sorted(set(factors.values()), reverse=True)
            for decays in (True, False)
        ]
        self.adamw = torch.optim.AdamW(
            groups, lr=self.rest_learning_rate, betas=choice.betas, eps=choice.eps, fused=True
        )

    def clip(self) -> Tensor:
        """Scales the gradient down to the largest norm allowed, and returns the norm it had, where it is."""
        at_once = True if self._on_cuda_or_cpu else None  # elsewhere torch decides
        return nn.utils.clip_grad_norm_(self._parameters.values(), self.clip_norm, foreach=at_once)

    def clear(self) -> None:
        """Forgets the gradient."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def step(self, scale: float, *, diverged: Tensor | None = None) -> None:
        """Applies the gradient and clears it.

        Args:
            scale: Factor of the peak learning rates.
            diverged: float32, where the weights are: 1 where the gradient is not finite, and nothing is to be changed,
                else 0. The host does not wait for it. None: the gradient is known to be finite.
        """
        if self.muon is not None:
            self.muon.step(self.learning_rate * scale, diverged=diverged)
        for group in self.adamw.param_groups:
            group["lr"] = self.rest_learning_rate * scale * group["factor"]
        self.adamw.found_inf = diverged  # type: ignore[attr-defined]  # which torch's gradient scaler sets, too
        self.adamw.step()
        self.clear()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the optimizers remember, by role and parameter name; empty before the first step."""
        tensors = {
            f"adamw.{role}.{name}": self.adamw.state[parameter][role]
            for name, parameter in self._rest.items()
            for role in _ROLES
            if parameter in self.adamw.state
        }
        if self.muon is not None:
            tensors |= {f"muon.momentum.{name}": value for name, value in self.muon.state().items()}
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `state` gave.

        Raises:
            KeyError: A tensor is missing.
        """
        if self.muon is not None:
            prefix = "muon.momentum."
            self.muon.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        for name, parameter in self._rest.items():
            self.adamw.state[parameter] = {
                role: tensors[f"adamw.{role}.{name}"].to(parameter.device).clone() for role in _ROLES
            }


def _matrices(model: nn.Module) -> list[Matrix]:
    return [
        Matrix(f"{name}.weight", module.weight, module.num_fused)
        for name, module in model.named_modules()
        if isinstance(module, Linear)
    ]
