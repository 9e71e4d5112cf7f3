"""Modules: the layers of the encoder, and the heads on it.

Weights are kept in float32; a matrix product runs in the type of its input.

Shape suffixes: B = rows, S = positions, D = hidden size, I = intermediate size, H = heads, K = size of a head,
N = places (predicted positions, for masked tokens), V = vocabulary, C = outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unmask.core.hashing import DROPPED, GOLDEN, SEEN, mix, mix_ints
from unmask.model import fused
from unmask.model.config import Activation, EncoderConfig
from unmask.model.fused import (
    IGNORED,
    NUM_FREQUENT,
    AttentionPlan,
    Losses,
    SampledClasses,
    activate,
    losses_of_decoder,
    sampled_classes,
)


class Linear(nn.Module):
    """A matrix product. The weight stacks `num_fused` matrices of equal size in its rows; an optimizer that works on
    whole matrices must split them."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, num_fused: int = 1) -> None:
        super().__init__()
        self.num_fused = num_fused
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Norm(nn.Module):
    def __init__(self, size: int, *, eps: float, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.of_sum(x, None)[1]

    def of_sum(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum of both (`x` itself if `added` is None), and the normalised sum."""
        if fused.by_loops(x):
            total, normed = fused.AddAndNorm.apply(x, added, self.weight, self.bias, self.eps)
            return (x if added is None else total), normed
        total = x if added is None else x + added
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return total, functional.layer_norm(total, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)


def dropout(x: Tensor, rate: float, *, seed: int | Tensor | None) -> Tensor:
    """Sets a share of the numbers to 0 and scales the others up, so that the expectation stays.

    What is dropped depends on the seed and the shape alone (on one kind of device). No generator outlives the call, so
    a resumed training, or a recomputed block, drops the same numbers.

    The seed is any 64-bit integer; None drops nothing. A tensor (int64, a single number, on the device of `x`) is the
    seed of a compiled block: numbers are then dropped by hashes, since compiled code has no generators.

    Source: Srivastava et al. 2014, section 10 (scaling up in training).
    """
    if seed is None:
        return x
    if isinstance(seed, Tensor):
        counters = torch.arange(x.numel(), device=x.device) * GOLDEN + seed
        stays = (DROPPED.of(mix(counters)) >= round(rate * 2**DROPPED.size)).view(x.shape)
        return torch.where(stays, x / (1.0 - rate), 0.0)
    generator = torch.Generator(device=x.device).manual_seed(seed)
    stays = torch.empty_like(x).bernoulli_(1.0 - rate, generator=generator)
    return x * stays * (1.0 / (1.0 - rate))  # a Python float, since a bf16 factor would be rounded


class MLP(nn.Module):
    """Projection, activation, and projection back (Vaswani et al. 2017, section 3.3). A gated MLP has two inner
    projections, and multiplies one, activated, by the other (Shazeer 2020, GLU variants)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, inner, gated, bias = config.hidden_size, config.intermediate_size, config.parts.gated, config.parts.bias
        self.kind, self.gated = config.activation, gated
        self.into = Linear(hidden, 2 * inner if gated else inner, bias=bias, num_fused=2 if gated else 1)
        self.out = Linear(inner, hidden, bias=bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.out(fused.activate(self.into(x_BSD), self.kind, gated=self.gated))


class Attention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=bias, num_fused=3)
        self.out = Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x_BSD: Tensor, plan: AttentionPlan) -> Tensor:
        """Normalised [B, S, D] to [B, S, D]; the plan must be of the layer's kind (global or local)."""
        return self.out(fused.attention(self.project(x_BSD), plan).reshape(x_BSD.shape))

    def project(self, x_BSD: Tensor) -> Tensor:
        """Queries, keys and values: [B, S, 3, H, K]."""
        num_rows, length, hidden = x_BSD.shape
        return self.qkv(x_BSD).view(num_rows, length, 3, self.num_heads, hidden // self.num_heads)


Seeds = tuple[int | Tensor | None, int | Tensor | None]


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream.

    Pre-norm: `x + part(norm(x))`. Post-norm: `norm(x + part(x))`.
    """

    def __init__(self, config: EncoderConfig, *, first: bool) -> None:
        super().__init__()
        parts, hidden = config.parts, config.hidden_size
        self.post_norm = parts.post_norm
        self.dropout_rate = config.dropout
        self.attention_norm = (
            Norm(hidden, eps=config.norm_eps, bias=parts.bias) if parts.first_norm or not first else nn.Identity()
        )
        self.attention = Attention(hidden, config.num_heads, bias=parts.bias)
        self.mlp_norm = Norm(hidden, eps=config.norm_eps, bias=parts.bias)
        self.mlp = MLP(config)

    def forward(
        self, x_BSD: Tensor, added_BSD: Tensor | None, plan: AttentionPlan, seeds: Seeds = (None, None)
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the residual stream, and the term still to be added to it, which the next norm does in the same pass.
        `x_BSD` and `added_BSD` are the previous block's results; `seeds` are for dropout after attention and MLP."""
        rate, (attention_seed, mlp_seed) = self.dropout_rate, seeds
        if self.post_norm:
            assert isinstance(self.attention_norm, Norm)
            mixed_BSD = dropout(self.attention(x_BSD, plan), rate, seed=attention_seed)
            _, x_BSD = self.attention_norm.of_sum(x_BSD, mixed_BSD)
            return self.mlp_norm.of_sum(x_BSD, dropout(self.mlp(x_BSD), rate, seed=mlp_seed))[1], None
        normed_BSD = x_BSD
        if isinstance(self.attention_norm, Norm):
            x_BSD, normed_BSD = self.attention_norm.of_sum(x_BSD, added_BSD)
        mixed_BSD = dropout(self.attention(normed_BSD, plan), rate, seed=attention_seed)
        x_BSD, normed_BSD = self.mlp_norm.of_sum(x_BSD, mixed_BSD)
        return x_BSD, dropout(self.mlp(normed_BSD), rate, seed=mlp_seed)


def run_block(
    block: nn.Module, x_BSD: Tensor, added_BSD: Tensor | None, plan: AttentionPlan, seeds: Seeds
) -> tuple[Tensor, Tensor | None]:
    """A block's forward pass as a function of the block, so that layers of a kind share compiled code."""
    return block(x_BSD, added_BSD, plan, seeds)


# ----------------------------------------
# Heads: for masked tokens, and for other objectives and tasks.
#
# Each head but the one for masked tokens has a `name`, which is its submodule's name in the model.
# `unmask.model.layout_names` maps its weights to their names in a model's folder, if the folder has a place for them.
#
#     name            what it predicts                       class in transformers
#     pair_head       right pairs from wrong ones            BertForPreTraining
#     boundary_head   a span's tokens from its neighbours    none: only in checkpoints
#     label_head      classes, or a number, of whole texts   ...ForSequenceClassification
#     tag_head        tags of tokens                         ...ForTokenClassification
#     answer_head     begin and end of an answer             ...ForQuestionAnswering
#     retromae_head   texts from their vectors               none: only in checkpoints
#
# As in transformers' classes of the layout, task heads share the layers before the classifier with other heads:
#
#     bert        tanh(pooler) -> classifier          the pooler is that of the pair head, if there is one
#     roberta     tanh(dense) -> classifier
#     modernbert  norm(gelu(dense)) -> classifier     dense and norm are those of the masked-language-model head
#
# A head for single tokens is only a classifier, in ModernBERT after the same shared layers.


class MLMHead(nn.Module):
    """Maps hidden states to logits over the vocabulary, with the tied embedding matrix and a bias of its own."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        parts, hidden = config.parts, config.hidden_size
        self.kind: Activation = "gelu" if parts.gelu_head else config.activation
        self.dense = Linear(hidden, hidden, bias=parts.bias)
        self.norm = Norm(hidden, eps=config.norm_eps, bias=parts.bias)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.frequent_K: Tensor | None = None  # the most frequent tokens, if softmaxes are sampled in training
        self.sample: SampledClasses | None = None  # of the current step
        self.compiled_losses: Callable[..., Any] | None = None  # `losses_of_part`, for training (`compile_model`)

    def forward(self, hidden_ND: Tensor, tokens_VD: Tensor) -> Tensor:
        """Logits [N, V] of hidden states."""
        return self.decode(self.transform(hidden_ND), tokens_VD)

    def decode(self, x_ND: Tensor, tokens_VD: Tensor) -> Tensor:
        """Logits [N, V] of the output of `transform`."""
        return functional.linear(x_ND, tokens_VD.to(x_ND.dtype), self.bias.to(x_ND.dtype))

    def transform(self, hidden_ND: Tensor) -> Tensor:
        """What the decoder compares with the embedding matrix: [N, D]."""
        return self.norm(activate(self.dense(hidden_ND), self.kind, gated=False))

    def sample_softmax(self, frequencies_V: Tensor) -> None:
        """Makes softmaxes of training steps be over a sample of the vocabulary."""
        num_frequent = min(NUM_FREQUENT, len(frequencies_V))
        self.frequent_K = frequencies_V.argsort(descending=True, stable=True)[:num_frequent].to(self.bias.device)

    def draw_sample(self, classes_N: Tensor, *, seed: int) -> None:
        """Draws the sample of a step, of which `classes_N` are all targets (`sampled_classes`)."""
        assert self.frequent_K is not None, "after `sample_softmax`"
        self.sample = sampled_classes(classes_N, self.frequent_K, len(self.bias), seed=seed)

    def losses(
        self,
        x_ND: Tensor,
        tokens_VD: Tensor,
        targets_N: Tensor,
        weights_N: Tensor | None = None,
        *,
        sampled: bool = False,
    ) -> Losses:
        """Losses of the decoder for transformed hidden states [N, D]; arguments as for `losses_of_decoder`. If
        `sampled`, they are over the step's sample of the vocabulary, if one was drawn."""
        compiled = self.compiled_losses if self.training else None
        bias_V: Tensor = self.bias
        if sampled and self.sample is not None:
            ids_C, log_weights_C, place_V = self.sample
            tokens_VD, bias_V = tokens_VD.index_select(0, ids_C), bias_V.index_select(0, ids_C) + log_weights_C
            targets_N = torch.where(targets_N >= 0, place_V[targets_N.clamp(min=0)], IGNORED)
        return losses_of_decoder(x_ND, tokens_VD.to(x_ND.dtype), bias_V, targets_N, weights_N, compiled=compiled)


class PairHead(nn.Module):
    """Maps the hidden state of `[CLS]` to two logits, right and wrong: BERT's pooler and classifier.

    Source: Devlin et al. 2018 (BERT), section 3.1, task 2; the pooler is that of the released code.
    """

    name: ClassVar[str] = "pair_head"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.hidden_size, config.hidden_size, bias=True)
        self.classifier = Linear(config.hidden_size, 2, bias=True)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, 2] of the first tokens' hidden states."""
        return self.classifier(self.pool(hidden_ND))

    def pool(self, hidden_ND: Tensor) -> Tensor:
        """The input of the classifier: [N, D]."""
        return torch.tanh(self.pooler(hidden_ND))


class BoundaryHead(nn.Module):
    """Represents a token of a masked span by the hidden states before and after the span, and the token's place in it.
    The decoder turns this into logits. There are `max_length` place embeddings; later tokens of a span share the last.

    Source: Joshi et al. 2020 (SpanBERT), section 3.2: two layers, each with GELU and layer norm. Its place embeddings
    have 200 dimensions in the released code; here they are as wide as the hidden states.
    """

    name: ClassVar[str] = "boundary_head"

    def __init__(self, config: EncoderConfig, max_length: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.places = nn.Parameter(torch.empty(max_length, hidden))
        self.into = Linear(3 * hidden, hidden, bias=True)
        self.into_norm = Norm(hidden, eps=config.norm_eps, bias=True)
        self.dense = Linear(hidden, hidden, bias=True)
        self.norm = Norm(hidden, eps=config.norm_eps, bias=True)

    def forward(self, before_ND: Tensor, behind_ND: Tensor, place_N: Tensor) -> Tensor:
        """Representations [N, D] of tokens, from the hidden states before and after their spans, and the index of each
        token in its span (int64, from 0)."""
        place_ND = functional.embedding(place_N.clamp(max=len(self.places) - 1), self.places)
        x_ND = torch.cat([before_ND, behind_ND, place_ND.to(before_ND.dtype)], -1)
        x_ND = self.into_norm(functional.gelu(self.into(x_ND)))
        return self.norm(functional.gelu(self.dense(x_ND)))


class LabelHead(nn.Module):
    """Maps whole texts to logits of classes. `own_dense` tells whether it has its own layer before the classifier, or
    shares another head's; None: as in the layout.

    Source: the classification of single sentences in Devlin et al. 2018 (BERT), section 4.1.
    """

    name: ClassVar[str] = "label_head"

    def __init__(self, config: EncoderConfig, names: Sequence[str], *, own_dense: bool | None = None) -> None:
        super().__init__()
        self.names = tuple(names)
        with_dense = config.parts.label_dense if own_dense is None else own_dense
        self.dense = Linear(config.hidden_size, config.hidden_size, bias=True) if with_dense else None
        self.rate, self.drops_twice = config.classifier_dropout, config.layout != "bert"
        self.classifier = Linear(config.hidden_size, len(self.names), bias=True)

    def forward(self, x_ND: Tensor, *, dropout_seed: int | None = None) -> Tensor:
        """Logits [N, C] of hidden states [N, D], or of another head's output if this one has no layer of its own.

        With a seed, dropout applies to the input of the classifier; in RoBERTa, to that of the layer too.
        """
        if self.dense is not None:
            if self.drops_twice and dropout_seed is not None:
                x_ND = dropout(x_ND, self.rate, seed=mix_ints(dropout_seed, 0))
            x_ND = torch.tanh(self.dense(x_ND))
        return self.classifier(dropout(x_ND, self.rate, seed=dropout_seed))


class TokenHead(Linear):
    """Maps tokens to logits [N, C]: of tags (`tag_head`), or of the start and end of an answer (`answer_head`).
    Source: Devlin et al. 2018, sections 5.3 and 4.2."""

    def __init__(self, name: str, config: EncoderConfig, names: Sequence[str]) -> None:
        super().__init__(config.hidden_size, 2 if name == "answer_head" else len(names), bias=True)
        self.name = name
        # In transformers only ModernBERT has dropout before the answer head.
        self.rate = 0.0 if name == "answer_head" and config.parts.label_dense else config.classifier_dropout

    def forward(self, x_ND: Tensor, *, dropout_seed: int | None = None) -> Tensor:
        """Logits [N, C]; with a seed, dropout applies to the input."""
        return super().forward(dropout(x_ND, self.rate, seed=dropout_seed if self.rate else None))


# ----------------------------------------
# The decoder of RetroMAE reconstructs texts from their vectors. Only training uses it; no model's folder holds it.
#
# Each token is predicted from the text's vector, the token's place, and a random set of the other tokens, drawn for
# each place. The vector replaces the text's first token, so that rows keep their length:
#
#     text           [CLS]    the     cat     sat    [SEP]
#     queries         v+p0    v+p1    v+p2    v+p3    v+p4     the vector, and the place
#     keys, values     v     the+p1  cat+p2  sat+p3  [SEP]+p4
#
#     "the" sees       v       -      cat      -       -       the vector always, its own token never,
#     "cat" sees       v       -       -      sat    [SEP]     others at random, and no other text
#     "sat" sees       v      the     cat      -       -
#
# With a single layer, a place cannot see its own token by way of others.
#
# Source: Xiao et al. 2022 (RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder), section
# 3.3, "enhanced decoding". As there, the decoder has whole texts, also the tokens hidden from the encoder, and the
# vector has no position among the keys. Here tokens are drawn one by one for each place; the released code draws whole
# words, and up to 256 sets for a text that its places share.
#
# Shape suffixes: B = rows, S = positions, E = texts, N = predicted positions, D = hidden size, H = heads, K = size of a
# head, V = vocabulary; b = rows at once.

# Query-key pairs at once, but at least a row: each step of a hash takes 8 bytes for each
_PAIRS, _GPU_PAIRS = 1 << 20, 1 << 25


@dataclass(frozen=True)
class DecodedRows:
    input_ids_BS: Tensor  # int64: the tokens, none of them hidden
    text_BS: Tensor  # int64: each token's text, counted from 0 over all rows; at padding the number of texts
    place_BS: Tensor  # int64: each token's place in its text, from 0; 0 at padding
    bits_BS: Tensor  # int64: random bits of each position, which decide what it sees

    def seen(self, *, rate: float) -> Tensor:
        """What each position sees of its row: bool [B, S, S]. `rate` is the share of tokens hidden from each. Padding
        sees the padding of its row, so that every position sees something."""
        text_BS1, place_BS1, bits_BS1 = (each[..., None] for each in (self.text_BS, self.place_BS, self.bits_BS))
        text_B1S, place_B1S = self.text_BS[:, None], self.place_BS[:, None]
        by_chance_BSS = SEEN.of(mix(bits_BS1 + place_B1S * GOLDEN)) >= round(rate * 2**SEEN.size)
        return (text_BS1 == text_B1S) & ((place_B1S == 0) | (by_chance_BSS & (place_BS1 != place_B1S)))


class RetroMAEHead(nn.Module):
    """Represents tokens by their text's vector and the tokens they see; the prediction head turns this into logits.

    It is a layer like the encoder's (the same MLP, heads and biases), but post-norm like BERT. It has its own position
    embeddings: some layouts have none, and the decoder should not train the encoder's. It has no dropout.
    """

    name: ClassVar[str] = "retromae_head"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, eps, bias = config.hidden_size, config.norm_eps, config.parts.bias
        self.num_heads = config.num_heads
        self.places = nn.Parameter(torch.empty(config.max_position_embeddings, hidden))
        self.vector_norm = Norm(hidden, eps=eps, bias=bias)
        self.token_norm = Norm(hidden, eps=eps, bias=bias)
        self.query = Linear(hidden, hidden, bias=bias)
        self.key_value = Linear(hidden, 2 * hidden, bias=bias, num_fused=2)
        self.out = Linear(hidden, hidden, bias=bias)
        self.attention_norm = Norm(hidden, eps=eps, bias=bias)
        self.mlp = MLP(config)
        self.norm = Norm(hidden, eps=eps, bias=bias)

    def forward(
        self, vectors_ED: Tensor, tokens_VD: Tensor, rows: DecodedRows, positions_N: Tensor, *, rate: float
    ) -> Tensor:
        """Representations [N, D] of the tokens at the given positions of the flattened rows (int64, row x S +
        position); only attention is computed for whole rows. `vectors_ED` are in the compute type, `rate` is as for
        `DecodedRows.seen`."""
        dtype = vectors_ED.dtype
        vectors_ED = functional.pad(self.vector_norm(vectors_ED), (0, 0, 0, 1))  # the last one is for padding
        vector_BSD = functional.embedding(rows.text_BS, vectors_ED)
        place_BSD = functional.embedding(rows.place_BS, self.places)
        token_BSD = self.token_norm((functional.embedding(rows.input_ids_BS, tokens_VD) + place_BSD).to(dtype))
        queried_BSD = vector_BSD + place_BSD.to(dtype)
        seen_BSD = torch.where(rows.place_BS[..., None] == 0, vector_BSD, token_BSD)
        query_BSD, (key_BSD, value_BSD) = self.query(queried_BSD), self.key_value(seen_BSD).chunk(2, -1)

        # Attention, some rows at a time. The masks are not stored, but drawn again in the backward pass.
        def attend(query_bHSK: Tensor, key_bHSK: Tensor, value_bHSK: Tensor, of_rows: DecodedRows) -> Tensor:
            seen_b1SS = of_rows.seen(rate=rate)[:, None]
            return functional.scaled_dot_product_attention(query_bHSK, key_bHSK, value_bHSK, attn_mask=seen_b1SS)

        num_rows, length = rows.input_ids_BS.shape
        heads = [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (query_BSD, key_BSD, value_BSD)]
        mixed = [] if num_rows else [query_BSD + key_BSD + value_BSD]  # empty, but all weights get a gradient
        num = max(1, (_PAIRS if query_BSD.device.type == "cpu" else _GPU_PAIRS) // max(1, length**2))
        for begin in range(0, num_rows, num):
            part = slice(begin, begin + num)
            of_rows = DecodedRows(rows.input_ids_BS[part], rows.text_BS[part], rows.place_BS[part], rows.bits_BS[part])
            inputs = (*(each[part] for each in heads), of_rows)
            mixed_bHSK = checkpoint(attend, *inputs, use_reentrant=False, preserve_rng_state=False)
            mixed.append(mixed_bHSK.transpose(1, 2).flatten(2))
        mixed_BSD = torch.cat(mixed)

        queried_ND, mixed_ND = (each.flatten(0, 1).index_select(0, positions_N) for each in (queried_BSD, mixed_BSD))
        _, x_ND = self.attention_norm.of_sum(queried_ND, self.out(mixed_ND))
        return self.norm.of_sum(x_ND, self.mlp(x_ND))[1]


Head = PairHead | BoundaryHead | LabelHead | TokenHead | RetroMAEHead
ONLY_TRAINED = (BoundaryHead, RetroMAEHead)  # heads that are not saved in model folders
OF_TASKS = ("label_head", "tag_head", "answer_head")


def heads_for(
    config: EncoderConfig,
    *,
    pairs: bool = False,
    boundary_length: int | None = None,
    label_names: Sequence[str] | None = None,
    retromae: bool = False,
) -> list[Head]:
    """Heads of the objectives besides masked tokens, in the order in which their weights are drawn.

    `boundary_length` is the number of places in a span that the span-boundary head distinguishes, `label_names` the
    classes of documents; None: no such head.
    """
    heads: list[Head] = []
    if pairs:
        heads.append(PairHead(config))
    if boundary_length is not None:
        heads.append(BoundaryHead(config, boundary_length))
    if label_names is not None:
        heads.append(LabelHead(config, label_names, own_dense=config.parts.label_dense and not pairs))
    if retromae:
        heads.append(RetroMAEHead(config))
    return heads
