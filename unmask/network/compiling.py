"""torch.compile for GPUs: the norm of embeddings, blocks, what the head does before its decoder, and the loss.

On a GPU the operations between matrix products (norms, rotations, activations, conversions) are each limited by memory,
and launched one by one; compiled, they become few kernels. CPUs have loops of their own for these (`unmask.compiled`).

A block is compiled and not the whole encoder: all layers of a kind share one piece of code, so compiling takes as long
for 22 layers as for three, and gradient checkpointing stays outside. It is compiled for each shape of rows, for any
number of sequences in them, and for each bucket of their lengths; head and loss for any number of targets, which falls
while a mask rate falls. Evaluation runs uncompiled, since its shapes change from batch to batch.

Compiling happens in the first steps, backward passes included, and may fail there: `unmask.training.retries`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import maybe_mark_dynamic

from unmask.network.attention_plan import AttentionPlan
from unmask.network.block import Seeds, run_block
from unmask.network.encoder import MaskedLM, run_embedding_norm
from unmask.network.fused import losses_of_part
from unmask.network.heads import run_transform

_TUNED = "max-autotune-no-cudagraphs"
_VARIANTS = 64  # of a block: first, local and global layers, times the shapes of rows and of parts of a step


def compile_model(model: MaskedLM, *, backend: str = "inductor", tuned: bool = False) -> None:
    """Lets a model train with compiled parts. Names of its weights stay as they are.

    Args:
        model: On its device, with its compute type.
        backend: Of torch.compile.
        tuned: Whether the kernels of matrix products are chosen by trying them, which takes minutes.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _VARIANTS)
    named: dict[str, Any] = {"dynamic": False, "backend": backend, "mode": _TUNED if tuned else None}
    block, losses = torch.compile(run_block, **named), torch.compile(losses_of_part, **named)
    norm, transform = torch.compile(run_embedding_norm, **named), torch.compile(run_transform, **named)

    def any_sequences(
        layer: nn.Module, x_BSD: Tensor, added_BSD: Tensor | None, plan: AttentionPlan, seeds: Seeds
    ) -> Any:
        if plan.sequences is not None:
            maybe_mark_dynamic(plan.sequences.cu_seqlens, 0)
        return block(layer, x_BSD, added_BSD, plan, seeds)

    def any_rows(bias_V: Tensor, *of_rows: Tensor) -> None:
        for each in of_rows:
            maybe_mark_dynamic(each, 0)
        losses(bias_V, *of_rows)

    def any_positions(head: nn.Module, hidden_ND: Tensor) -> Any:
        maybe_mark_dynamic(hidden_ND, 0)
        return transform(head, hidden_ND)

    model.encoder.compiled_norm, model.encoder.compiled_block = norm, any_sequences
    model.head.compiled_transform, model.head.compiled_losses = any_positions, any_rows


def uncompile_model(model: MaskedLM) -> None:
    """Lets it train as it is written."""
    model.encoder.compiled_norm = model.encoder.compiled_block = None
    model.head.compiled_transform = model.head.compiled_losses = None
