"""More rows for a model that is there: of new words, and of positions. Nothing that it knew is changed.

Shape suffixes: V = vocabulary, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unmask.model.encoder import MaskedLM
from unmask.model.heads import PairHead, heads_for


def with_words(model: MaskedLM, pieces: Sequence[Sequence[int]], *, first_id: int) -> MaskedLM:
    """The model with rows of new words, each the mean of the rows of the pieces that spelled the word before.

    The embedding is the decoder too, so the new word's logit is the mean of its pieces' logits; the decoder's bias is
    their mean as well. Rows beyond the old vocabulary that only fill the table up are used before it grows.

    Args:
        model: Left as it is.
        pieces: Of each new word, the ids that spelled it.
        first_id: Id of the first new word; the others follow.

    Source: Gee et al. 2022 (Fast vocabulary transfer for language model compression; FVT): mean of the pieces.
    """
    size = max(model.config.vocab_size, first_id + len(pieces))
    weights = dict(model.state_dict())
    for name in ("encoder.tokens", "head.bias"):
        old = weights[name]
        new = old.new_zeros(size, *old.shape[1:])
        new[: len(old)] = old
        for number, ids in enumerate(pieces):
            new[first_id + number] = old[torch.tensor(list(ids), dtype=torch.int64)].mean(0)
        weights[name] = new
    return _rebuilt(model, weights, vocab_size=size)


def with_positions(model: MaskedLM, num_positions: int) -> MaskedLM:
    """The model for longer sequences. Learned positions are copied periodically; rotary ones need no table.

    A copy keeps what neighbours mean to each other, everywhere but at the seams, and is trained from there.

    Args:
        model: Left as it is.
        num_positions: Longest sequence, special tokens included; more than the model has.

    Source: Beltagy et al. 2020 (Longformer), section 5.
    """
    config = model.config
    assert num_positions > config.max_position_embeddings
    weights = dict(model.state_dict())
    if model.encoder.positions is not None:
        table = weights["encoder.positions"]
        first = config.first_position  # rows before it stand for padding
        copies = torch.arange(num_positions) % config.max_position_embeddings
        weights["encoder.positions"] = torch.cat([table[:first], table[first + copies]])
    return _rebuilt(model, weights, max_position_embeddings=num_positions)


def _rebuilt(model: MaskedLM, weights: Mapping[str, Tensor], **changes: int) -> MaskedLM:
    """A model of another size with these weights."""
    assert model.find_head(PairHead) is None, "a model that was loaded keeps these weights without using them"
    config = model.config.model_copy(update=changes)
    built = MaskedLM(config, heads_for(config, label_names=model.label_names))
    built.load_state_dict(weights)
    built.kept_weights = model.kept_weights
    return built.train(model.training)
