"""Which parameter is trained by what: Muon for matrices and AdamW for the rest, or AdamW alone; and by which process.

Of several processes each owns some parameters whole. It alone has what the optimizer remembers of them, and does its
work on them; see `unmask.training.gradients`. Where weights are shared out as well, each has some rows of every
parameter and trains these, but for matrices of Muon's, which have owners; see `unmask.training.full_sharding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from unmask.errors import EndedElsewhereError
from unmask.network.encoder import MaskedLM
from unmask.network.layers import Linear
from unmask.training.full_sharding import FullSharding
from unmask.training.gradients import Exchange, GradientExchange, owners_of
from unmask.training.group import ALONE, Group, GroupError
from unmask.training.muon import Matrix, Muon
from unmask.training.settings import MuonSettings, TrainingSettings

Value = TypeVar("Value")
_ROLES = ("step", "exp_avg", "exp_avg_sq")
_OF_ADAMW = 16.0  # what it does with a number, in products of Muon's (which are fast): it reads and writes memory


class Optimizer:
    """All parameters of a model with what trains them.

    Args:
        model: To be trained.
        settings: Learning rates, decay, kind.
        dtype: Of Muon's products.
        factor_of: The share of the learning rate that a parameter of AdamW's takes, by its name; None: all of it.
        group: The processes that train the model, all of which make their optimizers alike.

    Attributes:
        sharding: Has the weights, where they are shared out, and the model's parameters are rows; None: they are whole.

    Raises:
        SettingsError: This version of torch cannot share weights out.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        *,
        dtype: torch.dtype,
        factor_of: Callable[[str], float] | None = None,
        group: Group = ALONE,
    ) -> None:
        choice = settings.optimizer
        self.group = group
        self.clip_norm = settings.clip_norm
        self._device = next(model.parameters()).device
        self._on_cuda_or_cpu = self._device.type in ("cuda", "cpu")
        self.learning_rate = self.rest_learning_rate = settings.learning_rate
        matrices = _matrices(model) if isinstance(choice, MuonSettings) else []
        of_muon = {matrix.name for matrix in matrices}
        owners = owners_of(parameter_costs(model, muon=bool(matrices)), group.share.of)
        self.owned = {name for name, owner in owners.items() if owner == group.share.number}
        self._exchange: Exchange | None = None
        self.sharding: FullSharding | None = None
        if group.share.of > 1 and settings.sharding == "full":
            assert isinstance(model, MaskedLM), "no other model has the setting"
            of_matrices = {name: owner for name, owner in owners.items() if name in of_muon}
            gathered = None if self._device.type == "cpu" or dtype == torch.float32 else dtype
            self._exchange = self.sharding = FullSharding(model, of_matrices, group, dtype=gathered)
        elif group.share.of > 1:
            self._exchange = GradientExchange(dict(model.named_parameters()), owners, group)
        self._parameters = dict(model.named_parameters())
        # What this process trains: parameters that it owns, or its rows of all.
        self._trained = {name: p for name, p in self._parameters.items() if name in self.owned}
        matrices = [matrix for matrix in matrices if matrix.name in self.owned]
        if self.sharding is not None:
            self._trained, matrices = self.sharding.rows, self.sharding.owned(matrices)
        self._rest = {name: p for name, p in self._trained.items() if name not in of_muon}  # what AdamW trains
        self.muon: Muon | None = None
        if isinstance(choice, MuonSettings):
            self.muon = Muon(
                matrices,
                momentum=choice.momentum,
                iterations=choice.iterations,
                weight_decay=settings.weight_decay,
                dtype=dtype,
            )
            self.rest_learning_rate = choice.embedding_learning_rate or settings.learning_rate
        factors = {name: 1.0 if factor_of is None else factor_of(name) for name in self._rest}
        groups = [
            {
                "params": [p for name, p in self._rest.items() if factors[name] == factor and (p.ndim == 2) == decays],
                "weight_decay": settings.weight_decay if decays else 0.0,
                "factor": factor,
            }
            for factor in sorted(set(factors.values()) or {1.0}, reverse=True)
            for decays in (True, False)
        ]
        self.adamw = torch.optim.AdamW(
            groups, lr=self.rest_learning_rate, betas=choice.betas, eps=choice.eps, fused=True
        )

    @contextmanager
    def computing(
        self, kind_of: Callable[[Exception], int], *, num_parts: int = 1, patient: bool = False
    ) -> Iterator[None]:
        """While it is entered, this step's gradient is computed; whether that went well is decided by all processes.

        Args:
            kind_of: Tells failures apart, by numbers from 1.
            num_parts: In how many parts it is computed.
            patient: Whether the others may take long.

        Raises:
            FailedElsewhereError: It went well here, or failed less badly, but another process failed.
            GroupError: Another process has ended, or does not answer.
        """
        if self._exchange is None:
            yield
            return
        self._exchange.begin(num_parts)
        try:
            yield
        except GroupError:
            raise
        except Exception as error:
            failure = kind_of(error)
            if self._agreed(failure, error, patient=patient) == failure:
                raise
        else:
            self._agreed(0, patient=patient)
        if self._failed:
            raise FailedElsewhereError(self._failed)

    def _agreed(self, failure: int, error: Exception | None = None, *, patient: bool) -> int:
        """The worst failure of all processes'."""
        assert self._exchange is not None
        self._exchange.finish(error)
        told = self.group.told([failure, *map(float, self._exchange.has_gradient)], patient=patient)
        self._failed, *has_gradient = (int(max(each)) for each in zip(*told, strict=True))
        self._has_gradient = [bool(each) for each in has_gradient]
        return self._failed

    def parts_for(self, own: int, of_all: int) -> int:
        """In how many parts this process computes a step.

        Args:
            own: It has rows for so many.
            of_all: The most that any process has rows for.
        """
        return own if self.sharding is None else of_all  # weights are gathered as often by all

    def run(self, work: Callable[[], Value]) -> Value:
        """Does the forward pass of a part, whose weights may have to be gathered for it.

        Args:
            work: Computes with the model.
        """
        return work() if self._exchange is None else self._exchange.run(work)

    def begin_last_part(self) -> None:
        """The backward pass that follows is the last of this step, so that gradients may travel as they are ready."""
        if self._exchange is not None:
            self._exchange.begin_last_part()

    def clip(self) -> Tensor:
        """Scales the gradient down to the largest norm allowed, and returns the norm it had, where it is."""
        at_once = True if self._on_cuda_or_cpu else None  # elsewhere torch decides
        if self._exchange is not None:
            self._exchange.sum_gradients(self._has_gradient)
        parameters = [p for p in self._trained.values() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=at_once)
        if self._exchange is not None:
            norm = self.group.summed(norm.to(device=self._device, dtype=torch.float32).square()).sqrt()
        nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, norm, foreach=at_once)
        return norm

    def clear(self) -> None:
        """Forgets the gradient."""
        if self._exchange is not None:
            self._exchange.forget()
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
            self._step_of_muon(self.muon, self.learning_rate * scale, diverged)
        for group in self.adamw.param_groups:
            group["lr"] = self.rest_learning_rate * scale * group["factor"]
        self.adamw.found_inf = diverged  # type: ignore[attr-defined]  # which torch's gradient scaler sets, too
        self.adamw.step()
        self.clear()
        self.spread_weights()

    def _step_of_muon(self, muon: Muon, rate: float, diverged: Tensor | None) -> None:
        if self.sharding is not None:
            self.sharding.gradients_to_owners()
        muon.step(rate, diverged=diverged)
        if self.sharding is not None:
            kept = 1.0 - rate * muon.weight_decay
            self.sharding.updates_from_owners(kept if diverged is None else torch.where(diverged > 0, 1.0, kept))

    def spread_weights(self) -> None:
        """Gives all processes the weights of those that own them."""
        if self._exchange is not None:
            self._exchange.spread_weights()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the optimizers remember of what this process owns, whole, by role and parameter name.

        It is empty before the first step. Of several processes all ask together.
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._rest.items():
            for role in _ROLES if parameter in self.adamw.state else ():
                value = self.adamw.state[parameter][role]
                if self.sharding is not None and role != "step":
                    value = self.sharding.whole(name, value).cpu()  # they are many, and not for the device
                if name in self.owned:
                    tensors[f"adamw.{role}.{name}"] = value
        if self.muon is not None:
            tensors |= {f"muon.momentum.{name}": value for name, value in self.muon.state().items()}
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `state` gave, to any number of processes: what another owns does not matter.

        Raises:
            KeyError: A tensor is missing.
        """
        if self.muon is not None:
            prefix = "muon.momentum."
            self.muon.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        for name, parameter in self._rest.items():
            found = {role: tensors[f"adamw.{role}.{name}"] for role in _ROLES}
            if self.sharding is not None:
                found = {r: t if r == "step" else self.sharding.own_rows(name, t) for r, t in found.items()}
            self.adamw.state[parameter] = {role: t.to(parameter.device).clone() for role, t in found.items()}


class FailedElsewhereError(EndedElsewhereError):
    """A step failed in another process.

    Attributes:
        failure: How, as the step's `kind_of` numbers it.
    """

    def __init__(self, failure: int) -> None:
        super().__init__("another process failed in this step, and says why")
        self.failure = failure


def parameter_costs(model: nn.Module, *, muon: bool = True) -> dict[str, float]:
    """What the optimizer does for each parameter, by name, roughly, in products of Muon's.

    Args:
        model: Whose parameters they are.
        muon: Whether Muon trains its matrices.
    """
    costs = {name: _OF_ADAMW * parameter.numel() for name, parameter in model.named_parameters()}
    for matrix in _matrices(model) if muon else []:
        _, rows, columns = matrix.parts(matrix.weight).shape
        costs[matrix.name] = float(matrix.num_fused * math.prod((rows, columns, min(rows, columns))))
    return costs


def _matrices(model: nn.Module) -> list[Matrix]:
    return [
        Matrix(f"{name}.weight", module.weight, module.num_fused)
        for name, module in model.named_modules()
        if isinstance(module, Linear)
    ]
