"""The encoder and the masked-language-model head. A task is an encoder and a head; the encoder knows no task.

Shape suffixes: B = rows, S = positions, D = hidden size, N = predicted positions, V = vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.errors import ModelError
from unmask.model.config import EncoderConfig
from unmask.model.parts import Attention, GatedMLP, Linear, Norm, rotary_table


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream (pre-norm).

    The first block has no norm before attention, since the embeddings are normalised already.
    """

    def __init__(self, config: EncoderConfig, *, first: bool) -> None:
        super().__init__()
        self.attention_norm = nn.Identity() if first else Norm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(config.hidden_size, config.num_heads)
        self.mlp_norm = Norm(config.hidden_size, eps=config.norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.activation)

    def forward(self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor], bias_B1SS: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), rotary, bias_B1SS)
        return x_BSD + self.mlp(self.mlp_norm(x_BSD))


class Encoder(nn.Module):
    """Token ids to hidden states, for rows that may hold several segments each.

    Attributes:
        compute_dtype: Type of the activations; weights stay float32.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        self.tokens = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.norm = Norm(config.hidden_size, eps=config.norm_eps)
        self.blocks = nn.ModuleList(Block(config, first=layer == 0) for layer in range(config.num_layers))
        self.final_norm = Norm(config.hidden_size, eps=config.norm_eps)

    def forward(
        self,
        input_ids_BS: Tensor,
        *,
        segment_ids_BS: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
    ) -> Tensor:
        """Encodes rows.

        Args:
            input_ids_BS: int64.
            segment_ids_BS: Tokens attend only to tokens of the same number; -1 is padding. None: one segment a row.
            position_ids_BS: int64, position within the segment. None: counted from the row's begin.

        Returns:
            [B, S, D], in the compute type; at padding the values mean nothing.

        Raises:
            ModelError: The rows are longer than the model.
        """
        config = self.config
        length = input_ids_BS.shape[1]
        if length > config.max_position_embeddings:
            raise ModelError(f"{length} tokens are more than the model's {config.max_position_embeddings} positions")
        if position_ids_BS is None:
            position_ids_BS = torch.arange(length, device=input_ids_BS.device).expand_as(input_ids_BS)
        if segment_ids_BS is None:
            segment_ids_BS = torch.zeros_like(input_ids_BS)
        plans = {
            is_global: (
                self._rotary(position_ids_BS, config.global_rope_theta if is_global else config.local_rope_theta),
                attention_bias(
                    segment_ids_BS,
                    window=None if is_global else config.local_window // 2,
                    dtype=self.compute_dtype,
                ),
            )
            for is_global in {config.is_global(layer) for layer in range(config.num_layers)}
        }
        x_BSD = self.norm(functional.embedding(input_ids_BS, self.tokens).to(self.compute_dtype))
        for layer, block in enumerate(self.blocks):
            x_BSD = block(x_BSD, *plans[config.is_global(layer)])
        return self.final_norm(x_BSD)

    def _rotary(self, position_ids_BS: Tensor, theta: float) -> tuple[Tensor, Tensor]:
        head_dim = self.config.hidden_size // self.config.num_heads
        cos, sin = rotary_table(position_ids_BS, head_dim=head_dim, theta=theta)
        return cos.to(self.compute_dtype), sin.to(self.compute_dtype)


def attention_bias(segment_ids_BS: Tensor, *, window: int | None, dtype: torch.dtype) -> Tensor:
    """Who may attend to whom: tokens of the same segment, at most `window` positions away.

    Returns:
        [B, 1, S, S]: 0 or minus infinity. Padding attends to padding, so that no line is all minus infinity.
    """
    allowed = segment_ids_BS[:, :, None] == segment_ids_BS[:, None, :]
    length = segment_ids_BS.shape[1]
    if window is not None and length > window + 1:
        place = torch.arange(length, device=segment_ids_BS.device)
        allowed = allowed & ((place[:, None] - place[None, :]).abs() <= window)
    bias = torch.zeros(allowed.shape, dtype=dtype, device=segment_ids_BS.device)
    return bias.masked_fill_(~allowed, float("-inf"))[:, None]


class MLMHead(nn.Module):
    """Hidden states to logits over the vocabulary, through the embedding matrix (tied) and a bias of its own."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = Norm(config.hidden_size, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_ND: Tensor, tokens_VD: Tensor) -> Tensor:
        """Logits [N, V] of the hidden states [N, D], given the embedding matrix."""
        hidden_ND = self.norm(functional.gelu(self.dense(hidden_ND)))
        return functional.linear(hidden_ND, tokens_VD.to(hidden_ND.dtype), self.bias.to(hidden_ND.dtype))


class MaskedLM(nn.Module):
    """An encoder with the masked-language-model head."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = MLMHead(config)

    def forward(
        self,
        input_ids_BS: Tensor,
        *,
        positions_N: Tensor,
        segment_ids_BS: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
    ) -> Tensor:
        """Logits at some positions only: the head costs as much as the rest of a small model.

        Args:
            input_ids_BS, segment_ids_BS, position_ids_BS: As for `Encoder`.
            positions_N: int64: places in the flattened batch (row x S + position).

        Returns:
            [N, V], in the compute type.
        """
        hidden_BSD = self.encoder(input_ids_BS, segment_ids_BS=segment_ids_BS, position_ids_BS=position_ids_BS)
        hidden_ND = hidden_BSD.flatten(0, 1).index_select(0, positions_N)
        return self.head(hidden_ND, self.encoder.tokens)

    @property
    def num_parameters(self) -> int:
        """Trained numbers, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
