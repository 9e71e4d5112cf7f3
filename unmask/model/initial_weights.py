"""Initial weights, and more rows for a model that is there: of new words, and of positions.

Only matrices and embeddings are drawn; norms and biases stay as they are made: 1 and 0. Where a model gets more rows,
nothing that it knew is changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from unmask.model.config import EncoderConfig, Initialisation
from unmask.model.encoder import MaskedLM
from unmask.model.heads import BoundaryHead, PairHead, RetroMAEHead, heads_for
from unmask.model.layers import Linear

CUTOFF = 2.0  # standard deviations


def initialise(model: MaskedLM, *, seed: int, method: Initialisation = "depth_scaled") -> None:
    """Draws initial weights.

    All are truncated normal, cut at two standard deviations; that of embeddings is `initializer_range` in either way:
    the decoder is tied to them, and larger ones would make confident guesses of an untrained model.

    Args:
        model: Its weights are overwritten.
        seed: The same seed gives the same weights.
        method: The standard deviation of matrices.

            - `truncated_normal`: `initializer_range`. Source: BERT (Devlin et al. 2019), as its released code has it.
            - `depth_scaled`: the same, but output projections and the head are divided by sqrt(2 x layers), so that
              the residual stream does not grow with depth. Source: ModernBERT (Warner et al. 2024, appendix A),
              after Megatron.
    """
    generator = torch.Generator().manual_seed(seed)
    std = model.config.initializer_range
    small = std / math.sqrt(2.0 * model.config.num_layers) if method == "depth_scaled" else std
    encoder = model.encoder
    with torch.no_grad():
        for table in (encoder.tokens, encoder.positions, encoder.token_types):
            if table is not None:
                _fill(table, std, generator)
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                writes = name.endswith(".out") or name.startswith("head.")
                _fill(module.weight, small if writes else std, generator)
        for head in (model.find_head(BoundaryHead), model.find_head(RetroMAEHead)):
            if head is not None:  # last, so that other heads change nothing of what the encoder draws
                _fill(head.places, std, generator)


def initialise_head(model: MaskedLM, *, seed: int) -> None:
    """Draws the head of a model whose folder had none, as `truncated_normal` does; the encoder stays."""
    with torch.no_grad():
        _fill(model.head.dense.weight, model.config.initializer_range, torch.Generator().manual_seed(seed))


def draw_task_head(head: nn.Module, config: EncoderConfig, generator: torch.Generator) -> None:
    """Draws the matrices of a task's new head, in the order in which they stand.

    They are drawn as transformers' classes of the layout do it: ModernBERT's classifier with a standard deviation of
    hidden_size^-1/2, cut at two of them, so that that of its logits is about 1; the others' with `initializer_range`,
    and so is the layer before them. With 0.02 in place of the former, logits are near 0, and much of a short
    fine-tuning goes into making them larger (docs/experiments.md).
    """
    with torch.no_grad():
        for module in head.modules():
            if not isinstance(module, Linear):
                continue
            if config.parts.wide_classifier:
                _fill(module.weight, config.hidden_size**-0.5, generator)
            else:
                module.weight.normal_(0.0, config.initializer_range, generator=generator)


def _fill(weight: Tensor, std: float, generator: torch.Generator) -> None:
    nn.init.trunc_normal_(weight, 0.0, std, -CUTOFF * std, CUTOFF * std, generator=generator)


def with_words(model: MaskedLM, pieces: Sequence[Sequence[int]], *, first_id: int) -> MaskedLM:
    """The model with rows of new words, each the mean of the rows of the pieces that spelled the word before.

    The embedding is the decoder too, so the new word's logit is the mean of its pieces' logits; the decoder's bias is
    their mean as well. Rows beyond the old vocabulary that only fill the table up are used before it grows. The new
    words' ids begin with `first_id`; the model is left as it is.

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

    A copy keeps what neighbours mean to each other, everywhere but at the seams, and is trained from there. The number
    includes special tokens and is larger than the model's, which is left as it is.

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
