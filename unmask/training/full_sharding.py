"""Weights, gradients and optimizer states shared out over processes by rows, for models that do not fit one device.

Each process keeps its rows of every parameter. Whole weights are there while they are computed with, block by block,
by torch's FSDP2, and gradients are added up as soon as a block's are made, straight into the rows of their owners:

    forward    gather root, gather block 1, compute, free, gather block 2 ...
    backward   gather block 2, compute, add up, free, gather block 1 ...     a part of a step
    update     AdamW on rows; matrices of Muon go whole to their owners, and what they do to a weight comes back as rows

All processes gather and add up in one order, and as often: a process in which a step fails takes part in all that the
others still do in this step, with zeros, since they cannot know of it while they wait. For that it has to know what
comes, so a row of padding goes through the model before the first step, and what goes around with it is noted.

Source: Rajbhandari et al. 2020 (ZeRO), section 5.3; Zhao et al. 2023 (PyTorch FSDP), sections 3 and 4.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.network.encoder import MaskedLM
from unmask.training.group import Group, GroupError
from unmask.training.muon import Matrix

Value = TypeVar("Value")
_REHEARSED = 8  # positions of the row that goes through the model before the first step


class _Root(nn.Module):
    """What holds all parameters that stand in no block while whatever uses the model is run."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        """What the work comes to, which computes with the model."""
        return work()


@dataclass(frozen=True)
class Passing:
    """Numbers that go around among all processes.

    Attributes:
        gathers: Whether what all have is put together; else it is added up and shared out.
        size: Of all processes' parts.
        dtype: Of the numbers.
    """

    gathers: bool
    size: int
    dtype: torch.dtype


class FullSharding:
    """Shares a model out, and does for it what `unmask.training.gradients.GradientExchange` does for a whole one.

    Args:
        model: Where it is to be trained, the same in all processes; its parameters become rows of themselves.
        owners: Whose each matrix of Muon's is, by name; the owner orthogonalises it.
        group: The processes.
        dtype: That the weights of blocks are gathered in, which must be what they are computed with; None: float32.

    Attributes:
        rows: This process's rows of every parameter, by name; they share memory with the model's.
        of_part: What goes around in every part of a step; None before the first.

    Raises:
        SettingsError: This version of torch cannot do it.
    """

    def __init__(
        self, model: MaskedLM, owners: Mapping[str, int], group: Group, *, dtype: torch.dtype | None = None
    ) -> None:
        self._model, self._group = model, group
        self._device = model.encoder.device
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self._empty = _without_numbers(model)
        self._root = _shared_out(model, group, dtype, _Gathers(self._pass), _Sums(self._pass))
        self.rows = {
            name: nn.Parameter(parameter.to_local(), requires_grad=False)  # type: ignore[attr-defined]
            for name, parameter in model.named_parameters()
        }
        # By owner, and with one owner by name: the order in which parts of matrices travel.
        self._of_owner = [[name for name in owners if owners[name] == number] for number in range(group.share.of)]
        self._wholes: list[Matrix] = []
        self._passed: list[Passing] = []  # in the part of the step that is computed
        self.of_part: list[Passing] | None = None
        self._num_parts = self._num_run = 0

    def owned(self, matrices: Iterable[Matrix]) -> list[Matrix]:
        """Those of Muon's matrices that this process owns, each with room for what is done to the whole weight."""
        mine = set(self._of_owner[self._group.share.number])
        self._wholes = [
            replace(m, weight=nn.Parameter(torch.zeros(self._shapes[m.name], device=self._device), requires_grad=False))
            for m in matrices
            if m.name in mine
        ]
        return self._wholes

    # A step

    def begin(self, num_parts: int) -> None:
        """A step begins, of as many parts in every process."""
        if self.of_part is None:
            self._rehearse()
        self._num_parts, self._num_run, self._passed = num_parts, 0, []

    def run(self, work: Callable[[], Value]) -> Value:
        """Does the forward pass of a part: what computes with the model must be called by it.

        Args:
            work: Returns tensors, alone or in tuples; the backward pass begins with those that have a gradient.
        """
        if self._passed:
            self._num_run, self.of_part, self._passed = self._num_run + 1, self._passed, []
        result: Value = self._root(work)
        return result

    def begin_last_part(self) -> None:
        """Nothing changes: gradients of every part are added up at once, since a whole gradient would not fit."""

    def finish(self, error: BaseException | None = None) -> None:
        """The parts are computed, or it failed. Then zeros go around as far as the others still expect something."""
        if error is None or isinstance(error, GroupError):
            return
        traceback.clear_frames(error.__traceback__)  # they hold what the step has computed, and memory may be short
        for parameter in self._model.parameters():
            parameter.grad = None  # also those of whole weights, which would be added to the next ones
        self._root.reset_iter_state()
        assert self.of_part is not None, "there was a rehearsal"
        left = (self._num_parts - self._num_run) * self.of_part
        for passing in left[len(self._passed) :]:
            whole_N = torch.zeros(passing.size, dtype=passing.dtype, device=self._device)
            own_P = whole_N.new_zeros(passing.size // self._group.share.of)
            _go_around(self._group, passing, whole_N, own_P)

    @property
    def has_gradient(self) -> list[bool]:
        """Nothing is to be said: every process has a part of every gradient."""
        return []

    def sum_gradients(self, has_gradient: Sequence[bool]) -> None:
        """Gives the rows their gradients, which are added up already."""
        for (name, rows), parameter in zip(self.rows.items(), self._model.parameters(), strict=True):
            assert parameter.grad is not None, f"{name} has no gradient"
            rows.grad = parameter.grad.to_local()  # type: ignore[attr-defined]

    def forget(self) -> None:
        """Forgets the gradients."""
        for tensor in chain(self._model.parameters(), self.rows.values()):
            tensor.grad = None

    def spread_weights(self) -> None:
        """Nothing is to be done: the next step gathers what it needs."""

    # Matrices of Muon

    @torch.no_grad()
    def gradients_to_owners(self) -> None:
        """Gives every whole matrix its gradient, and sets what is done to its weight to nothing."""
        own = {name: self.rows[name].grad for name in chain(*self._of_owner)}
        found = self._dealt(own, to_owners=True)
        for matrix in self._wholes:
            matrix.weight.zero_()
            matrix.weight.grad = torch.cat(found[matrix.name])

    @torch.no_grad()
    def updates_from_owners(self, kept: float | Tensor) -> None:
        """Makes the weights smaller, and adds what the owners of whole matrices have done to them.

        Args:
            kept: What the weights are multiplied by first.
        """
        wholes: dict[str, Tensor | None] = {matrix.name: matrix.weight.detach() for matrix in self._wholes}
        found = self._dealt(wholes, to_owners=False)
        for name, (update,) in found.items():
            self.rows[name].mul_(kept).add_(update)
        for matrix in self._wholes:
            matrix.weight.grad = None

    def _dealt(self, tensors: Mapping[str, Tensor | None], *, to_owners: bool) -> dict[str, list[Tensor]]:
        """Rows of all processes to the owner of the whole, in their order; or of the whole to their processes."""
        number = self._group.share.number
        mine = [[(name, number) for name in names] for names in self._of_owner]
        theirs = [[(name, other) for name in self._of_owner[number]] for other in range(self._group.share.of)]
        given, taken = (mine, theirs) if to_owners else (theirs, mine)
        flat = []
        for name, whose in chain(*given):
            tensor = tensors[name]
            assert tensor is not None, f"{name} has no gradient"
            flat.append((tensor if to_owners else tensor[self._part(name, whose)]).flatten())
        sizes = [[sum(self._shape(*each).numel() for each in group) for group in groups] for groups in (given, taken)]
        sent = torch.cat(flat) if flat else torch.empty(0, device=self._device)
        received = self._group.deal(sent, *sizes)
        order = list(chain(*taken))
        found: dict[str, list[Tensor]] = {}
        for (name, whose), part in zip(order, received.split([self._shape(*e).numel() for e in order]), strict=True):
            found.setdefault(name, []).append(part.view(self._shape(name, whose)))
        return found

    def _part(self, name: str, number: int) -> slice:
        """Which rows of a parameter are a process's."""
        total = self._shapes[name][0]
        each = -(-total // self._group.share.of)
        return slice(min(number * each, total), min((number + 1) * each, total))

    def _shape(self, name: str, number: int) -> torch.Size:
        part = self._part(name, number)
        return torch.Size([part.stop - part.start, *self._shapes[name][1:]])

    # Whole tensors

    @torch.no_grad()
    def whole(self, name: str, rows: Tensor) -> Tensor:
        """What all processes have for the rows of a parameter, in its shape; all ask for it together."""
        share, shape = self._group.share, self._shapes[name]
        own = rows.new_zeros(-(-shape[0] // share.of), *shape[1:])
        own[: len(rows)] = rows
        whole_N = own.new_empty(share.of * own.numel())
        self._group.gather_into(whole_N, own.flatten())
        return whole_N[: shape.numel()].view(shape)

    def own_rows(self, name: str, whole: Tensor) -> Tensor:
        """This process's rows of a whole tensor in a parameter's shape."""
        return whole[self._part(name, self._group.share.number)]

    def weights(self, device: torch.device | None = None, *, kept: bool = True) -> dict[str, Tensor]:
        """All weights, whole; all processes ask together.

        Args:
            device: Where they are wanted; None: where the model is.
            kept: Whether this process wants them; else it has helped others to them.
        """
        self._group.told([0.0], patient=True)  # what they did before may have taken unequally long
        found = {}
        for name, rows in self.rows.items():
            whole = self.whole(name, rows)
            if kept:
                found[name] = whole.to(device or whole.device)
        return found

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes back what `weights` gave, to any number of processes.

        Raises:
            RuntimeError: They are another model's, in names or shapes.
        """
        whole = copy.deepcopy(self._empty)
        whole.load_state_dict(dict(weights), assign=True)
        for name, weight in whole.named_parameters():
            self.rows[name].copy_(self.own_rows(name, weight))

    def whole_model(self) -> MaskedLM:
        """The model with all its weights, for whoever looks at it; all processes ask together."""
        whole = copy.deepcopy(self._empty)
        whole.load_state_dict(self.weights(), assign=True)
        whole.kept_weights = self._model.kept_weights
        whole.encoder.compute_dtype = self._model.encoder.compute_dtype
        return whole.train(self._model.training)

    def _rehearse(self) -> None:
        """Notes what goes around in a part, with a row of padding and without a loss."""
        ids_BS = torch.full((1, _REHEARSED), self._model.pad_id, device=self._device)
        with torch.enable_grad():
            self.run(lambda: self._model.encoder(ids_BS, dropout_seed=0).float().sum() * 0.0).backward()
        self.of_part = self._passed
        self.forget()

    def _pass(self, passing: Passing, whole_N: Tensor, own_P: Tensor) -> None:
        self._passed.append(passing)
        _go_around(self._group, passing, whole_N, own_P)


def _go_around(group: Group, passing: Passing, whole_N: Tensor, own_P: Tensor) -> None:
    if passing.gathers:
        group.gather_into(whole_N, own_P)
    else:
        group.scatter_sum(own_P, whole_N)


class _Gathers:
    """FSDP2's all-gather, noted."""

    def __init__(self, go: Callable[[Passing, Tensor, Tensor], None]) -> None:
        self._go = go

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room for numbers."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """Gathers."""
        self._go(Passing(True, output_tensor.numel(), output_tensor.dtype), output_tensor, input_tensor)


class _Sums(_Gathers):
    """FSDP2's reduce-scatter, noted."""

    def __call__(  # type: ignore[override]
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        """Adds up: the step divides losses by the targets of all processes, so no mean is asked for."""
        self._go(Passing(False, input_tensor.numel(), input_tensor.dtype), input_tensor, output_tensor)


def _shared_out(model: MaskedLM, group: Group, dtype: torch.dtype | None, gathers: _Gathers, sums: _Sums) -> Any:
    """The root around a model whose blocks, and what stands in none, have become FSDP2's."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise SettingsError(
            f"training.sharding = 'full' needs torch 2.13 or newer; this is {torch.__version__}. Take 'owners'"
        )
    # A block returns views, and nothing writes into them: without a filter each step would warn of what that would do.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    assert group.of_weights is not None, "several processes have a group"
    mesh = DeviceMesh.from_group(group.of_weights, model.encoder.device.type)
    # Blocks convert all their weights to the type of what goes through them, so it is the same to gather them in it,
    # and half as much; embeddings are looked up, and gradients added up, in float32.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.encoder.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root: Any = fully_shard(_Root(model), mesh=mesh)
    for part in (*model.encoder.blocks, root):
        part.set_custom_all_gather(gathers)
        part.set_custom_reduce_scatter(sums)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    root.set_reduce_scatter_unused_params(True)  # what is added up must be as long everywhere
    return root


def _without_numbers(model: MaskedLM) -> MaskedLM:
    """A copy whose weights have shapes only."""
    memo: dict[int, Any] = {id(weight): weight for weight in model.kept_weights.values()}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    return copy.deepcopy(model, memo)
