"""How much attention each token receives. Fused attention keeps no probabilities, so they are computed again, apart.

Shape suffixes: B = rows, S = positions, H = heads, K = size of a head.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unmask.network.block import Attention, Block
from unmask.network.encoder import Encoder


@torch.no_grad()
def attention_received(
    encoder: Encoder,
    input_ids_BS: Tensor,
    *,
    segment_ids_BS: Tensor,
    position_ids_BS: Tensor,
    token_type_ids_BS: Tensor | None = None,
) -> Tensor:
    """The attention that each token receives from the others of its segment, as a mean over layers, heads and queries.

    The cost is a forward pass and, a layer, a matrix of probabilities [B, H, S, S]: give it few rows.

    Args:
        encoder: In evaluation mode.
        input_ids_BS, segment_ids_BS, position_ids_BS, token_type_ids_BS: As for the encoder.

    Returns:
        [B, S], float32: 1 where a token receives an even share; 0 at padding.
    """
    received_BS = torch.zeros(input_ids_BS.shape, device=input_ids_BS.device)
    real_BS = segment_ids_BS >= 0
    hooks = []
    for block in encoder.blocks:
        assert isinstance(block, Block)
        add = partial(_add, received_BS, real_BS)
        hooks.append(block.attention.register_forward_pre_hook(add))
    try:
        encoder(
            input_ids_BS,
            segment_ids_BS=segment_ids_BS,
            position_ids_BS=position_ids_BS,
            token_type_ids_BS=token_type_ids_BS,
        )
    finally:
        for hook in hooks:
            hook.remove()
    return received_BS / len(encoder.blocks) * real_BS


def _add(received_BS: Tensor, real_BS: Tensor, module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Adds what the tokens receive in one layer. A sum over the segment's queries is 1 for an even share."""
    assert isinstance(module, Attention)
    x_BSD, plan = inputs
    query_BHSK, key_BHSK, _ = module.project(x_BSD, plan)
    scores_BHSS = query_BHSK.float() @ key_BHSK.float().transpose(-1, -2) * query_BHSK.shape[-1] ** -0.5
    probabilities_BHSS = torch.softmax(scores_BHSS + plan.bias_B1SS, dim=-1)
    received_BS += (probabilities_BHSS.mean(1) * real_BS[:, :, None]).sum(1)
