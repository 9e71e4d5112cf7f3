"""Initial weights."""

from __future__ import annotations

import math

import torch
from torch import nn

from unmask.model.encoder import MaskedLM
from unmask.model.parts import Linear

CUTOFF = 2.0  # standard deviations


def initialise(model: MaskedLM, *, seed: int) -> None:
    """Truncated normal weights; those that write to the residual stream are smaller in deep models.

    Source: ModernBERT (Warner et al. 2024, appendix A), after Megatron: std 0.02, divided by sqrt(2 x layers) for
    output projections and the head; norms 1, biases 0.

    Args:
        model: Its weights are overwritten.
        seed: The same seed gives the same weights.
    """
    generator = torch.Generator().manual_seed(seed)
    std = model.config.initializer_range
    small = std / math.sqrt(2.0 * model.config.num_layers)

    def fill(weight: nn.Parameter, std: float) -> None:
        nn.init.trunc_normal_(weight, 0.0, std, -CUTOFF * std, CUTOFF * std, generator=generator)

    with torch.no_grad():
        fill(model.encoder.tokens, std)
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                writes = name.endswith(".out") or name.startswith("head.")
                fill(module.weight, small if writes else std)
