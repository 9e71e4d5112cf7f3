"""Models with heads beside that for masked tokens."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.model.heads import heads_for


def rich_model(
    config: EncoderConfig,
    *,
    pairs: bool = False,
    boundary_length: int | None = None,
    label_names: Sequence[str] | None = None,
    retromae: bool = False,
) -> MaskedLM:
    """With the heads of these objectives; weights are not drawn yet."""
    heads = heads_for(config, pairs=pairs, boundary_length=boundary_length, label_names=label_names, retromae=retromae)
    return MaskedLM(config, heads)
