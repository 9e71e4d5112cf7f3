"""The encoder, and the masked language model made of it and its heads. The encoder knows no task.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, N = predicted positions,
V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unmask.compiled import serves, use_threads_of_torch
from unmask.errors import ModelError
from unmask.hashing import mix_ints
from unmask.model.attention import Plan, rotary_table
from unmask.model.block import Block
from unmask.model.boundary_head import BoundaryHead
from unmask.model.config import EncoderConfig
from unmask.model.head import MLMHead
from unmask.model.label_head import LabelHead
from unmask.model.pair_head import PairHead
from unmask.model.parts import Linear, Norm, dropout


class Encoder(nn.Module):
    """Token ids to hidden states, for rows that may hold several segments each.

    Attributes:
        compute_dtype: Type of the activations; weights stay float32.
        gradient_checkpointing: Keep only what enters each block, and compute the block again in the backward pass: a
            third more time for a fraction of the memory. Source: Chen et al. 2016.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        self.gradient_checkpointing = False
        parts, hidden = config.parts, config.hidden_size
        self.tokens = nn.Parameter(torch.empty(config.vocab_size, hidden))
        num_positions = config.first_position + config.max_position_embeddings
        num_types = config.type_vocab_size
        self.positions = None if parts.rotary else nn.Parameter(torch.empty(num_positions, hidden))
        self.token_types = None if num_types is None else nn.Parameter(torch.empty(num_types, hidden))
        self.norm = Norm(hidden, eps=config.norm_eps, bias=parts.bias)
        self.blocks = nn.ModuleList(Block(config, first=layer == 0) for layer in range(config.num_layers))
        self.final_norm = None if parts.post_norm else Norm(hidden, eps=config.norm_eps, bias=parts.bias)

    def forward(
        self,
        input_ids_BS: Tensor,
        *,
        segment_ids_BS: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
        token_type_ids_BS: Tensor | None = None,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """Encodes rows.

        Args:
            input_ids_BS: int64.
            segment_ids_BS: Tokens attend only to tokens of the same number; -1 is padding. None: one segment a row.
            position_ids_BS: int64, position within the segment. None: counted from the row's begin.
            token_type_ids_BS: int64. None: type 0 everywhere, or none where the layout has no token types.
            dropout_seed: What is dropped is a function of it. Needed in training mode with dropout, else unused.

        Returns:
            [B, S, D], in the compute type; at padding the values mean nothing.

        Raises:
            ModelError: The rows are longer than the model, the layout has no token types, or the seed is missing.
        """
        length = input_ids_BS.shape[1]
        if length > self.config.max_position_embeddings:
            raise ModelError(
                f"{length} tokens are more than the model's {self.config.max_position_embeddings} positions"
            )
        seed = self._seed(dropout_seed)
        if serves(self.tokens):
            use_threads_of_torch()
        if position_ids_BS is None:
            position_ids_BS = torch.arange(length, device=input_ids_BS.device).expand_as(input_ids_BS)
        if segment_ids_BS is None:
            segment_ids_BS = torch.zeros_like(input_ids_BS)
        plans = {
            is_global: self._plan(segment_ids_BS, position_ids_BS, is_global=is_global)
            for is_global in {self.config.is_global(layer) for layer in range(self.config.num_layers)}
        }
        x_BSD = self._embed(input_ids_BS, position_ids_BS, token_type_ids_BS)
        x_BSD = dropout(x_BSD, self.config.dropout, seed=seed)
        added_BSD = None
        for layer, block in enumerate(self.blocks):
            plan = plans[self.config.is_global(layer)]
            inputs = (x_BSD, added_BSD, plan, None if seed is None else mix_ints(seed, layer))
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BSD, added_BSD = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BSD, added_BSD = block(*inputs)
        return x_BSD if self.final_norm is None else self.final_norm.of_sum(x_BSD, added_BSD)[1]

    def _seed(self, dropout_seed: int | None) -> int | None:
        """The seed where something is dropped."""
        if not self.training or self.config.dropout == 0.0:
            return None
        if dropout_seed is None:
            raise ModelError(
                f"the model drops {self.config.dropout:.0%} in training mode and needs a dropout_seed; give one, or "
                "call eval()"
            )
        return dropout_seed

    def _embed(self, input_ids_BS: Tensor, position_ids_BS: Tensor, token_type_ids_BS: Tensor | None) -> Tensor:
        x_BSD = functional.embedding(input_ids_BS, self.tokens)
        if self.token_types is not None:
            x_BSD = x_BSD + (
                self.token_types[0]
                if token_type_ids_BS is None
                else functional.embedding(token_type_ids_BS, self.token_types)
            )
        elif token_type_ids_BS is not None:
            raise ModelError(f"the layout {self.config.layout!r} has no token types; leave token_type_ids_BS out")
        if self.positions is not None:
            x_BSD = x_BSD + functional.embedding(position_ids_BS + self.config.first_position, self.positions)
        return self.norm(x_BSD.to(self.compute_dtype))

    def _plan(self, segment_ids_BS: Tensor, position_ids_BS: Tensor, *, is_global: bool) -> Plan:
        rotary, num_heads = self.config.rotary, self.config.num_heads
        segment_ids_BS = segment_ids_BS.to(torch.int32)
        if rotary is None:
            return Plan(segment_ids_BS, num_heads, None, None)
        angles = rotary_table(
            position_ids_BS,
            head_dim=self.config.hidden_size // num_heads,
            theta=rotary.global_rope_theta if is_global else rotary.local_rope_theta,
        )
        return Plan(segment_ids_BS, num_heads, None if is_global else rotary.local_window // 2, angles)


class MaskedLM(nn.Module):
    """An encoder with the masked-language-model head, and those of other objectives where a training has them.

    Args:
        config: Of the encoder.
        pairs: Whether pairs are told from each other.
        boundary_length: Places in a span that the span-boundary head tells apart; None: there is no such head.
        label_names: The classes of documents that are told from each other; None: there is no such head.
        num_tags: Tags of tokens that are told from each other; None: there is no such head.
        answers: Whether begin and end of an answer are found among the tokens.

    Attributes:
        kept_weights: Weights of the folder that it was loaded from which are neither used nor trained, but written
            back (BERT's pooler), by the names they have there.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        pairs: bool = False,
        boundary_length: int | None = None,
        label_names: Sequence[str] | None = None,
        num_tags: int | None = None,
        answers: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = MLMHead(config)
        self.pair_head = PairHead(config) if pairs else None
        self.boundary_head = None if boundary_length is None else BoundaryHead(config, boundary_length)
        self.label_names = None if label_names is None else tuple(label_names)
        self.label_head: LabelHead | None = None
        if label_names is not None:
            own_dense = config.parts.label_dense and not pairs
            self.label_head = LabelHead(config, len(label_names), own_dense=own_dense)
        self.tag_head = None if num_tags is None else Linear(config.hidden_size, num_tags, bias=True)
        self.answer_head = Linear(config.hidden_size, 2, bias=True) if answers else None
        self.kept_weights: dict[str, Tensor] = {}

    def forward(
        self,
        input_ids_BS: Tensor,
        *,
        positions_N: Tensor,
        segment_ids_BS: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
        token_type_ids_BS: Tensor | None = None,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """Logits at some positions only: the head costs as much as the rest of a small model.

        Args:
            input_ids_BS, segment_ids_BS, position_ids_BS, token_type_ids_BS, dropout_seed: As for `Encoder`.
            positions_N: int64: places in the flattened batch (row x S + position).

        Returns:
            [N, V], in the compute type.

        Raises:
            ModelError: As for `Encoder`.
        """
        hidden_BSD = self.encoder(
            input_ids_BS,
            segment_ids_BS=segment_ids_BS,
            position_ids_BS=position_ids_BS,
            token_type_ids_BS=token_type_ids_BS,
            dropout_seed=dropout_seed,
        )
        return self.predict(hidden_BSD.flatten(0, 1), positions_N)

    def predict(self, hidden_TD: Tensor, positions_N: Tensor) -> Tensor:
        """Logits [N, V] at some places of the hidden states of a whole batch in a line."""
        return self.head(hidden_TD.index_select(0, positions_N), self.encoder.tokens)

    def classify(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, C] of the classes of documents, of their first tokens' hidden states [N, D]."""
        assert self.label_head is not None
        if not self.config.parts.label_dense:
            return self.label_head(self.head.transform(hidden_ND))
        return self.label_head(hidden_ND if self.pair_head is None else self.pair_head.pool(hidden_ND))

    def tag(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, C] of the tags of tokens, of their hidden states [N, D]."""
        assert self.tag_head is not None
        return self.tag_head(self._of_token(hidden_ND))

    def find_answers(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, 2]: that an answer begins at a token, and that it ends there; of their hidden states [N, D]."""
        assert self.answer_head is not None
        return self.answer_head(self._of_token(hidden_ND))

    def _of_token(self, hidden_ND: Tensor) -> Tensor:
        """What heads of single tokens are given: ModernBERT's share the layer and norm of the prediction head."""
        return hidden_ND if self.config.parts.label_dense else self.head.transform(hidden_ND)

    @property
    def num_parameters(self) -> int:
        """Trained numbers, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
