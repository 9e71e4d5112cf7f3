"""The encoder, the masked language model made of it and its heads, and its initial weights. The encoder knows no task.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, N = predicted positions,
V = vocabulary, H = heads, K = size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unmask.core.errors import ModelError
from unmask.core.hashing import mix_ints
from unmask.model.config import EncoderConfig, Initialisation
from unmask.model.fused import AttentionPlan, Sequences, choose_attention, heads_of, losses_of_part, rotary_table
from unmask.model.layers import (
    Attention,
    Block,
    BoundaryHead,
    Head,
    LabelHead,
    Linear,
    MLMHead,
    Norm,
    PairHead,
    RetroMAEHead,
    Seeds,
    dropout,
    heads_for,
    run_block,
)

_CLASSIFIER = 1 << 20  # gives the classifier's dropout another seed than the layers'
H = TypeVar("H", bound=nn.Module)


class RowEncoder(Protocol):
    """Computes hidden states, or logits, for each position of rows: our encoder, or one that transformers runs."""

    compute_dtype: torch.dtype  # of the activations
    shares_rows: bool  # whether a row may hold several texts, as segments that do not see each other; else it holds one
    takes_padding: bool  # whether the output for a text is independent of the padding after it
    width: int  # size of the output for a position: D

    @property
    def device(self) -> torch.device: ...  # of its weights

    def __call__(self, input_ids_BS: Tensor, **rows: Any) -> Tensor:
        """[B, S, D]; see `Encoder.forward`."""


class Trainable(Protocol):
    """What the training loop needs of a model. Only the objectives interpret its encoder's output."""

    pad_id: int  # fills the rest of a row

    @property
    def encoder(self) -> RowEncoder: ...

    def train(self, mode: bool = True) -> nn.Module: ...


class Encoder(nn.Module):
    """Token ids to hidden states, for rows that may hold several segments each.

    Attributes:
        compute_dtype: Type of the activations; weights stay float32.
        gradient_checkpointing: Keep only the input of each block, and compute the block again in the backward pass: a
            third more time for a fraction of the memory. Source: Chen et al. 2016.
        compiled_block: `run_block`, compiled for training (`compile_model`); None if it is not compiled.
        shares_rows, takes_padding: Attention stays within segments, and padding is a segment of its own.
    """

    shares_rows = takes_padding = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        self.gradient_checkpointing = False
        self.compiled_block: Callable[..., Any] | None = None
        parts, hidden = config.parts, config.hidden_size
        self.width = hidden
        self.tokens = nn.Parameter(torch.empty(config.vocab_size, hidden))
        num_positions = config.first_position + config.max_position_embeddings
        num_types = config.type_vocab_size
        self.positions = None if parts.rotary else nn.Parameter(torch.empty(num_positions, hidden))
        self.token_types = None if num_types is None else nn.Parameter(torch.empty(num_types, hidden))
        self.norm = Norm(hidden, eps=config.norm_eps, bias=parts.bias)
        self.blocks = nn.ModuleList(Block(config, first=layer == 0) for layer in range(config.num_layers))
        self.final_norm = None if parts.post_norm else Norm(hidden, eps=config.norm_eps, bias=parts.bias)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def forward(  # noqa: PLR0912  (a pass, whole)
        self,
        input_ids_BS: Tensor,
        *,
        segment_ids_BS: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
        token_type_ids_BS: Tensor | None = None,
        sequences: Sequences | None = None,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """Encodes rows: [B, S, D], in the compute type. Values at padding are meaningless.

        Args:
            input_ids_BS: int64; at most as long as the model has positions.
            segment_ids_BS: Tokens attend only to tokens of the same number; -1 is padding. None: one segment a row.
            position_ids_BS: int64, position within the segment. None: counted from the start of the row.
            token_type_ids_BS: int64, if the layout has token types. None: type 0 everywhere.
            sequences: The segments of all rows in a line. None: made from `segment_ids_BS` if they are needed, which
                waits for a GPU.
            dropout_seed: Determines what is dropped. Needed in training mode with dropout, else unused.
        """
        config, length = self.config, input_ids_BS.shape[1]
        if length > config.max_position_embeddings:
            raise ModelError(f"{length} tokens are more than the model's {config.max_position_embeddings} positions")
        seed = dropout_seed if self.training and config.dropout else None
        if self.training and config.dropout and seed is None:
            raise ModelError(f"dropout of {config.dropout:.0%} in training needs a dropout_seed, or call eval()")
        if self.token_types is None and token_type_ids_BS is not None:
            raise ModelError(f"the layout {config.layout!r} has no token types; do not pass token_type_ids_BS")
        if position_ids_BS is None:
            position_ids_BS = torch.arange(length, device=input_ids_BS.device).expand_as(input_ids_BS)
        if segment_ids_BS is None:
            segment_ids_BS = torch.zeros_like(input_ids_BS)
            begins = torch.arange(len(input_ids_BS) + 1, dtype=torch.int32, device=input_ids_BS.device) * length
            sequences = sequences or Sequences(begins, length)

        # Attention plans of global (true) and local (false) layers, for those kinds that the model has
        segment_ids_BS, plans = segment_ids_BS.to(torch.int32), dict[bool, AttentionPlan]()
        rotary, head_dim = config.rotary, config.hidden_size // config.num_heads
        for is_global in {config.is_global(layer) for layer in range(config.num_layers)}:
            window = angles = None
            if rotary is not None:
                theta = rotary.global_rope_theta if is_global else rotary.local_rope_theta
                window = None if is_global else rotary.local_window // 2
                angles = rotary_table(position_ids_BS, head_dim=head_dim, theta=theta)
            kind = choose_attention(self.device, self.compute_dtype, head_dim=head_dim, window=window)
            if kind == "varlen":
                sequences = sequences or Sequences.of(segment_ids_BS)
            in_line = sequences if kind == "varlen" else None
            plans[is_global] = AttentionPlan(segment_ids_BS, config.num_heads, window, angles, in_line)
            if kind == "bias":
                plans[is_global].bias_B1SS  # noqa: B018  (computed here rather than inside a compiled block)

        # Embeddings
        x_BSD = functional.embedding(input_ids_BS, self.tokens)
        if self.token_types is not None and token_type_ids_BS is None:
            x_BSD = x_BSD + self.token_types[0]
        elif self.token_types is not None and token_type_ids_BS is not None:
            x_BSD = x_BSD + functional.embedding(token_type_ids_BS, self.token_types)
        if self.positions is not None:
            x_BSD = x_BSD + functional.embedding(position_ids_BS + config.first_position, self.positions)
        x_BSD = dropout(self.norm(x_BSD.to(self.compute_dtype)), config.dropout, seed=self._on_device(seed))

        # Blocks
        added_BSD = None
        run = self.compiled_block if self.training and self.compiled_block is not None else run_block
        for layer, block in enumerate(self.blocks):
            seeds: Seeds = (None, None)
            if seed is not None:
                layer_seed = mix_ints(seed, layer)
                seeds = self._on_device(mix_ints(layer_seed, 0)), self._on_device(mix_ints(layer_seed, 1))
            inputs = (block, x_BSD, added_BSD, plans[config.is_global(layer)], seeds)
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BSD, added_BSD = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BSD, added_BSD = run(*inputs)
        return x_BSD if self.final_norm is None else self.final_norm.of_sum(x_BSD, added_BSD)[1]

    def _on_device(self, seed: int | None) -> int | Tensor | None:
        """The seed as `dropout` takes it: a number on CPUs and for uncompiled blocks on CUDA (hashing takes a dozen
        kernels), else a tensor, filled on the device to avoid a sync."""
        device = self.tokens.device
        by_number = device.type == "cpu" or (device.type == "cuda" and self.compiled_block is None)
        return seed if seed is None or by_number else torch.full((), seed, device=device)


class MaskedLM(nn.Module):
    """An encoder with the masked-language-model head, and the heads that objectives or a task add.

    Each head is a submodule with its own name (`unmask.model.layers`), in the order in which weights are drawn.

    Attributes:
        unused_weights: Weights of the loaded folder that are neither used nor trained, only written back (BERT's
            pooler), by their names in that folder.
    """

    def __init__(self, config: EncoderConfig, heads: Sequence[Head] = ()) -> None:
        super().__init__()
        self.config = config
        self.pad_id = config.pad_id
        self.encoder = Encoder(config)
        self.head = MLMHead(config)
        for head in heads:
            self.add_module(head.name, head)
        self.unused_weights: dict[str, Tensor] = {}

    def find_head(self, kind: type[H]) -> H | None:
        return next((module for module in self.children() if isinstance(module, kind)), None)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        head = self.find_head(LabelHead)
        return None if head is None else head.names

    def forward(self, input_ids_BS: Tensor, *, positions_N: Tensor, **rows: Any) -> Tensor:
        """Logits [N, V] at the given positions of the flattened batch (int64, row x S + position) only, since the head
        costs as much as the rest of a small model. `rows` are the encoder's other arguments."""
        return self.predict(self.encoder(input_ids_BS, **rows).flatten(0, 1), positions_N)

    def predict(self, hidden_TD: Tensor, positions_N: Tensor) -> Tensor:
        """Logits [N, V] at the given positions of a flattened batch's hidden states."""
        return self.head(hidden_TD.index_select(0, positions_N), self.encoder.tokens)

    def outputs(self, head: str, hidden_ND: Tensor, *, dropout_seed: int | None = None) -> Tensor:
        """Logits [N, C] of a task's head, from the hidden states that it reads. `dropout_seed` determines what is
        dropped before the classifier; None drops nothing."""
        module, pairs = self.get_submodule(head), self.find_head(PairHead)
        if not self.config.parts.label_dense:  # ModernBERT's task heads share the prediction head's layer and norm
            hidden_ND = self.head.transform(hidden_ND)
        elif pairs is not None and isinstance(module, LabelHead):
            hidden_ND = pairs.pool(hidden_ND)  # one pooler for both
        if dropout_seed is not None and self.training and self.config.classifier_dropout > 0.0:
            return module(hidden_ND, dropout_seed=mix_ints(dropout_seed, _CLASSIFIER))
        return module(hidden_ND, dropout_seed=None)

    @property
    def num_encoder_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.encoder.parameters())

    @property
    def num_parameters(self) -> int:
        """Trainable parameters, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


# ----------------------------------------
# torch.compile for GPUs: blocks, and the loss of the decoder.
#
# On a GPU the operations between matrix products (norms, rotations, activations, conversions) are memory-bound, and
# launched one by one; compiled, they become few kernels. CPUs have loops for these (`unmask.model.loops`).
#
# We compile a block rather than the whole encoder. All layers of a kind share its code, so compiling takes as long for
# 22 layers as for three, and gradient checkpointing stays outside. A block is compiled for each shape of rows and each
# bucket of sequence lengths, with any number of sequences; the loss for any number of targets, which falls with a
# falling mask rate. Evaluation runs uncompiled, since its shapes change from batch to batch.
#
# Compilation, backward passes included, happens in the first steps, and may fail there: see `unmask.train.step`.

_VARIANTS = 64  # of a block: first, local and global layers, times the shapes of rows and of parts of a step


def compile_model(model: MaskedLM) -> None:
    """Compiles parts of a model for training on its device in its compute type; its weights keep their names."""
    from torch._dynamo import config, maybe_mark_dynamic  # takes longer to import than torch itself

    config.recompile_limit = max(config.recompile_limit, _VARIANTS)

    def compiled(function: Callable[..., Any], of_any_length: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
        """`of_any_length` returns the argument tensors whose length may change without recompilation."""
        run = torch.compile(function, dynamic=False)

        def marked(*arguments: Any) -> Any:
            for tensor in of_any_length(*arguments):
                maybe_mark_dynamic(tensor, 0)
            return run(*arguments)

        return marked

    model.encoder.compiled_block = compiled(
        run_block, lambda layer, x, added, plan, seeds: () if plan.sequences is None else (plan.sequences.cu_seqlens,)
    )
    model.head.compiled_losses = compiled(losses_of_part, lambda bias_V, *of_rows: of_rows)


def has_compiled_blocks(model: object) -> bool:
    return isinstance(model, MaskedLM) and model.encoder.compiled_block is not None


def uncompile_model(model: MaskedLM) -> None:
    model.encoder.compiled_block = model.head.compiled_losses = None


@torch.no_grad()
def attention_received(encoder: Encoder, input_ids_BS: Tensor, *, segment_ids_BS: Tensor, **rows: Any) -> Tensor:
    """The attention that each token receives from its segment, summed over queries, averaged over layers and heads:
    [B, S], float32; 1 is an even share; 0 at padding. The encoder must be in evaluation mode.

    Fused attention keeps no probabilities, so they are computed again. This costs a forward pass, and for each layer a
    matrix of probabilities [B, H, S, S]: give it few rows.
    """
    received_BS = torch.zeros(input_ids_BS.shape, device=input_ids_BS.device)
    real_BS = segment_ids_BS >= 0

    def add_received(module: Any, inputs: tuple[Any, ...]) -> None:
        x_BSD, plan = inputs
        query_BHSK, key_BHSK, _ = heads_of(module.project(x_BSD), plan)
        scores_BHSS = query_BHSK.float() @ key_BHSK.float().transpose(-1, -2) * query_BHSK.shape[-1] ** -0.5
        p_BHSS = torch.softmax(scores_BHSS + plan.bias_B1SS, dim=-1)
        received_BS.add_((p_BHSS.mean(1) * real_BS[:, :, None]).sum(1))  # over the queries: 1 for an even share

    layers = [module for module in encoder.modules() if isinstance(module, Attention)]
    hooks = [layer.register_forward_pre_hook(add_received) for layer in layers]
    try:
        encoder(input_ids_BS, segment_ids_BS=segment_ids_BS, **rows)
    finally:
        for hook in hooks:
            hook.remove()
    return received_BS / len(layers) * real_BS


# ----------------------------------------
# Initial weights, and new embedding rows for words and positions of an existing model.
#
# Only matrices and embeddings are drawn; norms stay 1 and biases 0. New rows leave the existing weights unchanged.


def draw(weight: Tensor, std: float, generator: torch.Generator) -> None:
    nn.init.trunc_normal_(weight, 0.0, std, -2.0 * std, 2.0 * std, generator=generator)


def initialise(model: MaskedLM, *, seed: int, method: Initialisation = "depth_scaled") -> None:
    """Draws initial weights.

    All are truncated normal, cut at two standard deviations. Embeddings have the standard deviation `initializer_range`
    with every method: the decoder is tied to them, and larger ones would make an untrained model guess confidently.

    The method sets the standard deviation of matrices:

    - `truncated_normal`: `initializer_range`. Source: BERT (Devlin et al. 2019), released code.
    - `depth_scaled`: the same, but output projections and the head are divided by sqrt(2 x layers), so that the
      residual stream does not grow with depth. Source: ModernBERT (Warner et al. 2024, appendix A), after Megatron.
    - `corpus`: as `depth_scaled`. `unmask.train.initialisation` later sets token embeddings from the corpus, and
      makes attention start local.
    """
    generator = torch.Generator().manual_seed(seed)
    std = model.config.initializer_range
    small = std if method == "truncated_normal" else std / math.sqrt(2.0 * model.config.num_layers)
    encoder = model.encoder
    for table in (encoder.tokens, encoder.positions, encoder.token_types):
        if table is not None:
            draw(table, std, generator)
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            writes = name.endswith(".out") or name.startswith("head.")
            draw(module.weight, small if writes else std, generator)
    for head in (model.find_head(BoundaryHead), model.find_head(RetroMAEHead)):
        if head is not None:  # drawn last, so that these heads do not change the encoder's draws
            draw(head.places, std, generator)


def retokenized(model: MaskedLM, pieces: Sequence[Sequence[int]], config: EncoderConfig) -> MaskedLM:
    """A copy of the model for another vocabulary.

    The row and the decoder bias of a token are the means over its pieces, the ids of the old vocabulary that spell it.
    A token without pieces gets the mean of all rows.

    Args:
        model: Without a head for pairs.
        pieces: [new vocab_size], of lists of old ids.
        config: The model's, with the size and the special ids of the new vocabulary.

    Source: Gee et al. 2022, as in `extended`.
    """
    weights = dict(model.state_dict())
    ids = torch.tensor([id_ for each in pieces for id_ in each], dtype=torch.int64)
    lengths = torch.tensor([len(each) for each in pieces])
    for name in ("encoder.tokens", "head.bias"):
        rows = weights[name].reshape(len(weights[name]), -1)
        means = functional.embedding_bag(ids, rows, lengths.cumsum(0) - lengths, mode="mean")
        means[lengths == 0] = rows.mean(0)
        weights[name] = means.reshape(len(pieces), *weights[name].shape[1:])
    return _rebuilt(model, config, weights)


def extended(
    model: MaskedLM, *, words: Sequence[Sequence[int]] = (), first_id: int = 0, num_positions: int | None = None
) -> MaskedLM:
    """A copy of the model with embedding rows for new words, or with positions for longer sequences.

    A new word's row and decoder bias are the means over its pieces. The embedding is tied to the decoder, so the word's
    logit is the mean of theirs. The table's spare rows beyond the old vocabulary are used before it grows. Learned
    positions are copied periodically, which keeps the relations of neighbours except at the seams.

    Args:
        model: Without a head for pairs.
        words: For each new word, the ids that spelled it before. New words are numbered from `first_id` on.
        num_positions: More than the model's, special tokens included. None: positions stay.

    Source: Gee et al. 2022 (Fast vocabulary transfer for language model compression; FVT): the mean of the pieces.
    Beltagy et al. 2020 (Longformer), section 5: the copies.
    """
    old, weights = model.config, dict(model.state_dict())
    size = max(old.vocab_size, first_id + len(words))
    for name in ("encoder.tokens", "head.bias"):
        rows = weights[name]
        weights[name] = functional.pad(rows, (0, 0) * (rows.ndim - 1) + (0, size - len(rows)))
        for number, ids in enumerate(words):
            weights[name][first_id + number] = rows[torch.tensor(list(ids), dtype=torch.int64)].mean(0)
    longest = num_positions or old.max_position_embeddings
    if model.encoder.positions is not None and longest > old.max_position_embeddings:
        table, first = weights["encoder.positions"], old.first_position  # earlier rows are for padding
        copies = torch.arange(longest) % old.max_position_embeddings
        weights["encoder.positions"] = torch.cat([table[:first], table[first + copies]])
    return _rebuilt(model, old.model_copy(update={"vocab_size": size, "max_position_embeddings": longest}), weights)


def _rebuilt(model: MaskedLM, config: EncoderConfig, weights: Mapping[str, Tensor]) -> MaskedLM:
    assert model.find_head(PairHead) is None, "a model that was loaded keeps these weights without using them"
    rebuilt = MaskedLM(config, heads_for(config, label_names=model.label_names))
    rebuilt.load_state_dict(weights)
    rebuilt.unused_weights = model.unused_weights
    return rebuilt.train(model.training)
