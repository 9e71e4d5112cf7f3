"""The span-boundary head: a token of a span from the two tokens beside the span, and its place in it.

Shape suffixes: D = hidden size, N = predicted positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.model.config import EncoderConfig
from unmask.model.parts import Linear, Norm


class BoundaryHead(nn.Module):
    """Two hidden states and a place to what the decoder makes logits of.

    Args:
        config: Of the encoder.
        max_length: Places that are told apart; what stands further on in a span shares the last one.

    Source: Joshi et al. 2020 (SpanBERT), section 3.2: two layers, each with GELU and layer norm. Its place embeddings
    have 200 dimensions in the released code; here they are as wide as the hidden states.
    """

    def __init__(self, config: EncoderConfig, max_length: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.places = nn.Parameter(torch.empty(max_length, hidden))
        self.into = Linear(3 * hidden, hidden, bias=True)
        self.into_norm = Norm(hidden, eps=config.norm_eps, bias=True)
        self.dense = Linear(hidden, hidden, bias=True)
        self.norm = Norm(hidden, eps=config.norm_eps, bias=True)

    def forward(self, before_ND: Tensor, behind_ND: Tensor, place_N: Tensor) -> Tensor:
        """Representations [N, D] of the tokens.

        Args:
            before_ND: Hidden states of the tokens before the spans.
            behind_ND: Hidden states of the tokens behind the spans.
            place_N: int64: which token of its span each one is, from 0.
        """
        place_ND = functional.embedding(place_N.clamp(max=len(self.places) - 1), self.places)
        x_ND = torch.cat([before_ND, behind_ND, place_ND.to(before_ND.dtype)], -1)
        x_ND = self.into_norm(functional.gelu(self.into(x_ND)))
        return self.norm(functional.gelu(self.dense(x_ND)))
