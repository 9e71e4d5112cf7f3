"""The masked-language-model head.

Shape suffixes: D = hidden size, N = predicted positions, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.model.config import EncoderConfig
from unmask.model.loss import Losses, losses_of_decoder
from unmask.model.parts import Activated, Linear, Norm


class MLMHead(nn.Module):
    """Hidden states to logits over the vocabulary, through the embedding matrix (tied) and a bias of its own.

    Attributes:
        compiled_losses: `fused.losses_of_part`, compiled, for training (`unmask.model.compiling`); None: it is not.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        parts, hidden = config.parts, config.hidden_size
        self.activation = Activated("gelu" if parts.gelu_head else config.activation)
        self.dense = Linear(hidden, hidden, bias=parts.bias)
        self.norm = Norm(hidden, eps=config.norm_eps, bias=parts.bias)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.compiled_losses: Callable[..., Any] | None = None

    def forward(self, hidden_ND: Tensor, tokens_VD: Tensor) -> Tensor:
        """Logits [N, V] of the hidden states [N, D], given the embedding matrix."""
        return self.decode(self.transform(hidden_ND), tokens_VD)

    def transform(self, hidden_ND: Tensor) -> Tensor:
        """What the decoder compares with the embedding matrix: [N, D]."""
        return self.norm(self.activation(self.dense(hidden_ND)))

    def losses(self, x_ND: Tensor, tokens_VD: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Losses:
        """Losses of what the decoder makes of the transformed [N, D]; arguments as for `losses_of_decoder`."""
        compiled = self.compiled_losses if self.training else None
        return losses_of_decoder(x_ND, tokens_VD.to(x_ND.dtype), self.bias, targets_N, weights_N, compiled=compiled)

    def decode(self, x_ND: Tensor, tokens_VD: Tensor) -> Tensor:
        """Logits [N, V] of what the decoder compares with the embedding matrix."""
        return functional.linear(x_ND, tokens_VD.to(x_ND.dtype), self.bias.to(x_ND.dtype))
