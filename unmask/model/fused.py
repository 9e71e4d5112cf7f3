"""The operations between matrix products: compiled loops on CPUs, each a single pass over memory; elsewhere tensor
operations. Each function chooses by its input, so that modules need not.

On CPUs tensor operations, not products, take most of a small model's time: each reads and writes megabytes, and strided
ones (heads, rotations) run at a tenth of the memory's speed. The loops (`unmask.model.loops`) compute the same, with
backward passes of their own.

Shape suffixes: B = rows, S = positions, T = B x S in a line, D = hidden size, H = heads, K = size of a head,
I = intermediate size, N = predicted positions, V = vocabulary, C = capacity for sequences; b, q, k = rows, queries and
keys of a tile.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from unmask.core.compiled import arrays, serves, use_threads_of_torch
from unmask.core.hashing import GOLDEN, mix
from unmask.model.config import Activation

STORED_LENGTH = 256  # rows up to this length keep their probabilities for the backward pass
_ANYWHERE = 1 << 40
SMALL = 1 << 20  # elements of a tensor
# Float32 logits processed at once if loops do not serve: with all intermediate tensors they take at most a gigabyte,
# and GPU kernels run long enough to be worth their launch.
_CHUNK = 1 << 26


def by_loops(x: Tensor) -> bool:
    """Whether loops process a tensor, forwards and backwards. They do not if there is no backward pass and little to
    compute, since loading them takes a second."""
    return serves(x) and (torch.is_grad_enabled() or x.numel() >= SMALL)


def loops() -> Any:
    from unmask.model import loops as module  # loads numba

    use_threads_of_torch()
    return module


class AddAndNorm(torch.autograd.Function):
    """The sum of two tensors (without the second, the first) and its layer normalisation, by loops; see `Norm`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight_D: Tensor, bias_D: Tensor | None, eps: float
    ) -> tuple[Tensor | None, Tensor]:
        x_TD = x.reshape(-1, x.shape[-1])
        none = x.new_empty(0, 0)
        added_TD = none if added is None else added.reshape(x_TD.shape)
        total_TD = none if added is None else torch.empty_like(x_TD)
        normed_TD = torch.empty_like(x_TD)
        scale_T = x.new_empty(len(x_TD), 2, dtype=torch.float32)
        own_weight_D = weight_D.detach()
        own_bias_D = weight_D.new_empty(0) if bias_D is None else bias_D.detach()
        loops().norm(eps, *arrays(x_TD, added_TD, own_weight_D, own_bias_D, total_TD, normed_TD, scale_T))
        ctx.save_for_backward(x_TD if added is None else total_TD, own_weight_D, scale_T)
        ctx.adds, ctx.has_bias = added is not None, bias_D is not None
        ctx.set_materialize_grads(False)  # an unused sum then has no gradient, rather than zeros to be added
        return (None if added is None else total_TD.view(x.shape)), normed_TD.view(x.shape)

    @staticmethod
    def backward(ctx: Any, of_total: Tensor | None, of_normed: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_D, scale_T = ctx.saved_tensors
        passed_TD = x_TD.new_empty(0, 0) if of_total is None else of_total.reshape(x_TD.shape)
        result_TD = torch.empty_like(x_TD)
        sums_2CD = weight_D.new_zeros(2, loops().STRETCHES, len(weight_D))
        gradient_TD = of_normed.reshape(x_TD.shape)
        loops().norm_backward(*arrays(gradient_TD, passed_TD, x_TD, weight_D, scale_T, result_TD, sums_2CD))
        of_weight_D, of_bias_D = sums_2CD.sum(1)
        of_x = result_TD.view(of_normed.shape)
        return of_x, of_x if ctx.adds else None, of_weight_D, of_bias_D if ctx.has_bias else None, None


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "relu2": lambda x: functional.relu(x).square(),  # So et al. 2021 (Primer), section 3
}


def activate(into: Tensor, kind: Activation, *, gated: bool) -> Tensor:
    """Activation [..., I] of [..., I]. If gated, the activated first half of [..., 2 x I] times the second half."""
    if kind == "gelu" and by_loops(into):  # nearly all models have it; the others have no loop
        return _Gelu.apply(into, gated)
    if not gated:
        return ACTIVATIONS[kind](into)
    activated, gate = into.chunk(2, dim=-1)
    return ACTIVATIONS[kind](activated) * gate


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, into: Tensor, gated: bool) -> Tensor:
        width = into.shape[-1] // 2 if gated else into.shape[-1]
        out = into.new_empty(*into.shape[:-1], width)
        loops().gelu(*arrays(into.reshape(-1, into.shape[-1]), out.view(-1, width)))
        ctx.save_for_backward(into)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (into,) = ctx.saved_tensors
        result = torch.empty_like(into, memory_format=torch.contiguous_format)
        lines = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (gradient, into, result))
        loops().gelu_backward(*arrays(*lines))
        return result, None


# ----------------------------------------
# The plan of a batch's attention, and its implementation, chosen by the device and torch's version:
#
#     loops    CPUs: compiled loops, tile by tile
#     varlen   GPUs: one kernel over all segments of the batch in a line, without padding and without a bias
#              (`torch.nn.attention.varlen`); scores between segments, or outside the window, are never computed
#     bias     elsewhere: PyTorch's fused attention with a bias [B, 1, S, S], which computes all scores and hides some

SCORES = 1 << 22  # scores of a tile on CPUs, about: eight megabytes in bf16
_QUERIES = 128  # queries of a tile of a local layer
LARGEST = 4 * SCORES  # scores of a tile of a global layer; splitting its queries sums keys' gradients in float32


@dataclass(frozen=True)
class Tile:
    """A part of a batch's attention. Tiles keep matrices of probabilities small.

    global layer                  [rows 0-3: all queries x all keys], [rows 4-7: ...], ...
    global layer, very long rows  [row 0: queries 0-639 x all keys], [row 0: queries 640-1,279 x all keys], ...
    local layer, long rows        [all rows: queries 0-127 x keys 0-191], [queries 128-255 x keys 64-319], ...
    """

    rows: slice
    queries: slice
    keys: slice
    window: int | None  # greatest distance that a query attends to; None: any
    alike: bool  # whether all its queries attend to all its keys

    def of(self, heads_3BHSK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tile's queries, keys and values: each [b, H, q or k, K]."""
        query, key, value = heads_3BHSK
        return query[self.rows, :, self.queries], key[self.rows, :, self.keys], value[self.rows, :, self.keys]


_SHORTEST = 128  # smallest bucket of lengths: about a block of the kernel
MOST = 65_535  # most sequences of a call: they are a dimension of the grid of a GPU's kernel


@dataclass(frozen=True)
class Sequences:
    """Packed rows as one line of sequences, the input of GPU kernels for sequences of unequal length.

        rows          [CLS] a b [SEP] [CLS] c [SEP] [PAD]    [CLS] d e f g h i [SEP]    two rows of eight positions
        segment_ids     0   0 0   0     1   1   1    -1        0   0 0 0 0 0 0   0
        cu_seqlens      0               4             7        8                     16   16  16 ...

    Kernels are compiled and launched for the longest sequence, so its length is rounded up to one of a few buckets.
    Longer padding is cut into several sequences. Sequences of length 0 fill the tensor up, so that it has one of few
    lengths, too.
    """

    cu_seqlens: Tensor  # int32 [C + 1]: the start of each sequence, then the number of positions, repeated
    max_length: int  # upper bound of sequence lengths: 128, 256, 512, ..., or the length of a row

    @classmethod
    def of(cls, segment_ids_BS: Tensor) -> Sequences:
        """The segments of packed rows (runs of the same number). Padding (numbers below 0) at a row's end becomes one
        or more sequences.

        The capacity is rounded up to one of four sizes in each octave. On a GPU this waits for the device, so training
        steps get sequences made on the host.
        """
        num_rows, length = segment_ids_BS.shape
        begins_BS = torch.ones_like(segment_ids_BS, dtype=torch.bool)
        begins_BS[:, 1:] = segment_ids_BS[:, 1:] != segment_ids_BS[:, :-1]
        begins = torch.nonzero(begins_BS.flatten())[:, 0]
        lengths = torch.diff(begins, append=begins.new_full((1,), num_rows * length))
        lengths = lengths[segment_ids_BS.flatten()[begins] >= 0]
        longest = int(lengths.max()) if len(lengths) else 1
        max_length = min(length, max(_SHORTEST, 1 << (longest - 1).bit_length()))
        begins_BS |= (segment_ids_BS < 0) & (torch.arange(length, device=begins_BS.device) % max_length == 0)
        places = torch.nonzero(begins_BS.flatten())[:, 0].to(torch.int32)
        step = 1 << max(0, (len(places) - 1).bit_length() - 3)
        capacity = max(len(places), min(-(-len(places) // step) * step, MOST))
        cu_seqlens = places.new_full((capacity + 1,), num_rows * length)
        cu_seqlens[: len(places)] = places
        return cls(cu_seqlens, max_length)


@dataclass(frozen=True)
class AttentionPlan:
    """Which tokens attend to which in a kind of layer (global or local), and the angles of rotary positions."""

    segment_ids_BS: Tensor  # int32: tokens attend only to tokens of the same number
    num_heads: int
    window: int | None  # greatest distance that a token attends to; None: any
    # Cosines and sines of the rotation angles [B, S, K / 2], float32; None: positions are not rotary
    rotary: tuple[Tensor, Tensor] | None
    sequences: Sequences | None = None  # the segments in a line, for the kind `varlen`; else None

    @functools.cached_property
    def tiles(self) -> tuple[Tile, ...]:
        num_rows, length = self.segment_ids_BS.shape
        window = None if self.window is None or length <= self.window + 1 else self.window
        local = window is not None and length > 2 * _QUERIES
        size = length  # all queries of a row, if their scores are few enough
        if local:
            size = _QUERIES
        elif self.num_heads * length**2 > LARGEST:
            size = max(_QUERIES, LARGEST // (self.num_heads * length) // _QUERIES * _QUERIES)
        same_B = (self.segment_ids_BS == self.segment_ids_BS[:, :1]).all(1)
        tiles = []
        for begin in range(0, length, size):
            queries = slice(begin, min(begin + size, length))
            keys = slice(0, length)
            if local and window is not None:
                keys = slice(max(0, begin - window), min(length, queries.stop + window))
            num = max(1, SCORES // (self.num_heads * (queries.stop - begin) * (keys.stop - keys.start)))
            for row in range(0, num_rows, num):
                rows = slice(row, min(row + num, num_rows))
                tiles.append(Tile(rows, queries, keys, window, window is None and bool(same_B[rows].all())))
        return tuple(tiles)

    @functools.cached_property
    def bias_B1SS(self) -> Tensor:
        """float32: 0 if a token (third axis) may attend to another (fourth), else minus infinity. Padding attends to
        padding, so that no line is all minus infinity."""
        segment_ids_BS = self.segment_ids_BS
        allowed = segment_ids_BS[:, :, None] == segment_ids_BS[:, None, :]
        if self.window is not None:
            place = torch.arange(segment_ids_BS.shape[1], device=segment_ids_BS.device)
            allowed = allowed & ((place[:, None] - place[None, :]).abs() <= self.window)
        bias = torch.zeros(allowed.shape, device=segment_ids_BS.device)
        return bias.masked_fill_(~allowed, float("-inf"))[:, None]


def rotary_table(position_ids_BS: Tensor, *, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles, float32 [B, S, head_dim / 2] each, computed once for each possible
    position and looked up. Positions are within segments, so below S; `theta` is the base of the wave lengths.

    Source: Su et al. 2021 (RoFormer), section 3.4.2; halves are paired, as in GPT-NeoX and ModernBERT.
    """
    device = position_ids_BS.device
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    places = torch.arange(position_ids_BS.shape[1], device=device, dtype=torch.float32)
    angle = places[:, None] / theta**exponent
    return functional.embedding(position_ids_BS, angle.cos()), functional.embedding(position_ids_BS, angle.sin())


_LARGEST_HEAD = 256
_AMPERE = (8, 0)


@functools.cache
def choose_attention(
    device: torch.device, dtype: torch.dtype, *, head_dim: int, window: int | None
) -> Literal["loops", "varlen", "bias"]:
    """How a layer computes its attention.

    The kernel over sequences takes half precision and heads of 8, 16, ... 256, on GPUs from Ampere on. Some versions of
    torch give it no sliding window.
    """
    if device.type == "cpu":
        return "loops"
    fits = dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= _LARGEST_HEAD
    if not fits or device.type != "cuda" or torch.version.hip is not None:
        return "bias"
    from torch.nn.attention.varlen import varlen_attn

    takes_window = window is None or "window_size" in inspect.signature(varlen_attn).parameters
    return "varlen" if takes_window and torch.cuda.get_device_capability(device) >= _AMPERE else "bias"


def attention(qkv_BS3HK: Tensor, plan: AttentionPlan) -> Tensor:
    """Scaled dot-product attention [B, S, H, K], or [T, H, K], of queries, keys and values.

    The backward pass of PyTorch's fused attention is slow on CPUs, so there we use explicit products, tile by tile. For
    long rows, the backward pass computes probabilities again, so memory grows with the length and not with its square,
    as in the GPU kernel over sequences.

    Source: Dao 2023 (FlashAttention-2), in `torch.nn.attention.varlen`.
    """
    if by_loops(qkv_BS3HK):
        cos, sin = plan.rotary or (torch.empty(0, 0, 0), torch.empty(0, 0, 0))
        return _Attention.apply(qkv_BS3HK, cos, sin, plan.segment_ids_BS, plan.tiles)
    if plan.sequences is None:
        query, key, value = heads_of(qkv_BS3HK, plan)
        bias_B1SS = plan.bias_B1SS.to(query.dtype)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias_B1SS).transpose(1, 2)

    # Within the segments of the batch in a line
    from torch.nn.attention import varlen  # imports torch.compile, which takes longer than torch itself

    query_THK, key_THK, value_THK = qkv_BS3HK.flatten(0, 1).unbind(1)
    if plan.rotary is not None:
        cos, sin = (table.flatten(0, 1)[:, None].to(query_THK.dtype) for table in plan.rotary)
        query_THK, key_THK = _turn(query_THK, cos, sin), _turn(key_THK, cos, sin)
    begins, longest = plan.sequences.cu_seqlens, plan.sequences.max_length
    # The window is symmetric; older versions of torch do not have the argument.
    reach: dict[str, Any] = {} if plan.window is None else {"window_size": (plan.window, plan.window)}
    mixed_THK = varlen.varlen_attn(query_THK, key_THK, value_THK, begins, begins, longest, longest, **reach)
    assert isinstance(mixed_THK, Tensor), "no further results"
    return mixed_THK


def heads_of(qkv_BS3HK: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, rotated if positions are rotary, and values: each [B, H, S, K]."""
    # Split at once by unbind: each slice would fill a gradient of the whole with zeros.
    query, key, value = qkv_BS3HK.permute(2, 0, 3, 1, 4).unbind(0)
    if plan.rotary is not None:
        cos, sin = (table[:, None].to(query.dtype) for table in plan.rotary)
        query, key = _turn(query, cos, sin), _turn(key, cos, sin)
    return query, key, value


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (x[i], x[i + K/2]) by their angles."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv_BS3HK: Tensor, cos: Tensor, sin: Tensor, segment_ids_BS: Tensor, tiles: tuple[Tile, ...]
    ) -> Tensor:
        num_rows, length, _, num_heads, head_dim = qkv_BS3HK.shape
        heads_3BHSK = qkv_BS3HK.new_empty(3, num_rows, num_heads, length, head_dim)
        loops().split(head_dim**-0.5, *arrays(qkv_BS3HK, cos, sin, heads_3BHSK))
        mixed_BHSK = torch.empty_like(heads_3BHSK[0])
        probabilities = []
        for tile in tiles:
            query, key, value = tile.of(heads_3BHSK)
            p_bHqk = _probabilities(query, key, segment_ids_BS, tile)
            _product(p_bHqk, value, into=mixed_BHSK[tile.rows, :, tile.queries], add=False)
            if length <= STORED_LENGTH and ctx.needs_input_grad[0]:
                probabilities.append(p_bHqk)
        ctx.save_for_backward(heads_3BHSK, cos, sin, segment_ids_BS, *probabilities)
        ctx.tiles = tiles
        return mixed_BHSK.transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient_BSHK: Tensor) -> tuple[Tensor | None, ...]:
        heads_3BHSK, cos, sin, segment_ids_BS, *probabilities = ctx.saved_tensors
        _, num_rows, num_heads, length, head_dim = heads_3BHSK.shape
        tiles: tuple[Tile, ...] = ctx.tiles
        apart = all(tile.queries == tile.keys for tile in tiles)  # exactly then every key belongs to one tile
        of_heads_3BHSK = torch.empty_like(heads_3BHSK) if apart else torch.zeros_like(heads_3BHSK, dtype=torch.float32)
        gradient_BHSK = gradient_BSHK.transpose(1, 2).contiguous()
        for number, tile in enumerate(tiles):
            query, key, value = tile.of(heads_3BHSK)
            p_bHqk = probabilities[number] if probabilities else _probabilities(query, key, segment_ids_BS, tile)
            own = gradient_BHSK[tile.rows, :, tile.queries]
            scores_bHqk = own @ value.mT
            loops().softmax_backward(*arrays(scores_bHqk.flatten(0, 1), p_bHqk.flatten(0, 1)))
            of_query, of_key, of_value = tile.of(of_heads_3BHSK)
            _product(scores_bHqk, key, into=of_query, add=not apart)
            _product(scores_bHqk.mT, query, into=of_key, add=not apart)
            _product(p_bHqk.mT, own, into=of_value, add=not apart)
        result_BS3HK = gradient_BSHK.new_empty(num_rows, length, 3, num_heads, head_dim)
        loops().unsplit(head_dim**-0.5, *arrays(of_heads_3BHSK, cos, sin, result_BS3HK))
        return result_BS3HK, None, None, None, None


def _product(left: Tensor, right: Tensor, *, into: Tensor, add: bool) -> None:
    """Writes a product of [b, H, ...] into a part of a tensor, without a copy if the part is contiguous."""
    if add:
        into.add_(left @ right)
    elif into.is_contiguous():
        torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out=into.flatten(0, 1))
    else:
        into.copy_(left @ right)


def _probabilities(query: Tensor, key: Tensor, segment_ids_BS: Tensor, tile: Tile) -> Tensor:
    """[b, H, q, k]."""
    scores_bHqk = query @ key.mT
    if tile.alike:
        return torch.softmax(scores_bHqk, dim=-1)
    window = _ANYWHERE if tile.window is None else tile.window
    numbers = arrays(scores_bHqk, segment_ids_BS[tile.rows])
    loops().softmax(tile.queries.start, tile.keys.start, window, *numbers)
    return scores_bHqk


# ----------------------------------------
# The loss at predicted positions: D = size of what the decoder compares with embeddings, V = vocabulary or classes


def losses_of_part(
    bias_V: Tensor, logits_NV: Tensor, targets_N: Tensor, scale_N: Tensor, each_N: Tensor, wrong_N: Tensor
) -> None:
    """The same as the loop `losses` on CPUs, for a part of the rows, written so that it compiles to few kernels.

    The gradient overwrites the logits. The losses go into `each_N`, and whether another class was more likely into
    `wrong_N`. `scale_N` is the weight of each loss, 0 for ignored targets.
    """
    p_NV, scale_N1, targets_N1 = logits_NV + bias_V, scale_N[:, None], targets_N.clamp(min=0)[:, None]
    largest_N1 = p_NV.amax(1, keepdim=True)
    right_N1 = p_NV.gather(1, targets_N1)
    p_NV = (p_NV - largest_N1).exp()
    sum_N1 = p_NV.sum(1, keepdim=True)
    each_N.copy_((sum_N1.log() + largest_N1 - right_N1)[:, 0] * (targets_N >= 0))
    wrong_N.copy_((right_N1 < largest_N1)[:, 0] & (targets_N >= 0))
    # The target is marked by comparison, since a scatter would prevent fusion.
    is_right_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == targets_N1
    logits_NV.copy_(p_NV * (scale_N1 / sum_N1) - is_right_NV * scale_N1)


IGNORED = -100


@dataclass(frozen=True)
class Losses:
    total: Tensor  # the sum of the losses in nats, each times its weight; only this one has a gradient
    each_N: Tensor  # float32: the loss of each prediction, unweighted and without a gradient
    wrong_N: Tensor  # bool: whether another class was more likely than the target


def predicted_positions(labels: Tensor) -> Tensor:
    """Positions in the flattened batch whose label is not negative: int64 [N]. Id 0 is a label like any other."""
    return torch.nonzero(labels.flatten() >= 0).squeeze(1)


def losses_of(logits_NV: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Losses:
    """Cross-entropies over a few classes, in float32, each times its weight. The total is their sum, never their mean.
    Targets are int64."""
    each_N = functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
    right_N1 = logits_NV.detach().gather(1, targets_N[:, None])
    total = (each_N if weights_N is None else each_N * weights_N).sum()
    return Losses(total, each_N.detach(), (logits_NV.detach() > right_N1).any(1))


NUM_FREQUENT = NUM_SAMPLED = 1024


class SampledClasses(NamedTuple):
    """A sample of the vocabulary for the softmaxes of a step, in place of the whole."""

    ids_C: Tensor  # int64
    log_weights_C: Tensor  # float32: the logarithm of each one's weight, to be added to its logit
    place_V: Tensor  # int64: the index of each entry of the vocabulary in the sample; -100 if it is not in it


def sampled_classes(classes_N: Tensor, frequent_K: Tensor, vocab_size: int, *, seed: int) -> SampledClasses:
    """Draws a sample of the vocabulary (sampled softmax).

    It always contains the targets of the step and the most frequent tokens. Of the others, 1,024 are drawn with equal
    probability. A drawn token is weighted by the number of others divided by the number drawn, so the sum over the
    sample is in expectation the sum over the vocabulary.

    Args:
        classes_N: int64, the targets.
        frequent_K: int64, the most frequent tokens.
        seed: Determines what is drawn.

    Source: Jean et al. 2015 (On using very large target vocabulary for neural machine translation), section 3, where
    all but the targets are drawn. Always including the frequent tokens, which have most of the probability, is ours.
    """
    device = classes_N.device
    always_V = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    always_V[frequent_K] = True
    always_V[classes_N] = True
    others = torch.nonzero(~always_V)[:, 0]
    drawn = others[mix(others * GOLDEN + seed).topk(min(NUM_SAMPLED, len(others)), sorted=False).indices]
    ids_C = torch.cat([torch.nonzero(always_V)[:, 0], drawn])
    log_weights_C = torch.zeros(len(ids_C), device=device)
    log_weights_C[len(ids_C) - len(drawn) :] = math.log(max(len(others), 1) / max(len(drawn), 1))
    place_V = torch.full((vocab_size,), IGNORED, device=device)
    place_V[ids_C] = torch.arange(len(ids_C), device=device)
    return SampledClasses(ids_C, log_weights_C, place_V)


def losses_of_decoder(
    x_ND: Tensor,
    tokens_VD: Tensor,
    bias_V: Tensor,
    targets_N: Tensor,
    weights_N: Tensor | None = None,
    *,
    compiled: Callable[..., Any] | None = None,
) -> Losses:
    """Cross-entropies of a decoder over the vocabulary, without holding all its logits in float32.

    The gradient of the logits is the softmax minus the one-hot target. It overwrites the logits in the pass that reads
    them for the loss, a few rows at a time.

    Args:
        x_ND: What the decoder compares with the embeddings `tokens_VD`, in the same type.
        bias_V: float32.
        targets_N: int64; -100: the row only keeps the shape, has a loss of 0 and passes no gradient on.
        weights_N: float32, the weight of each loss; None: all are 1.
        compiled: `losses_of_part`, compiled, which then processes all rows at once; or None.
    """
    total, each_N, wrong_N = _DecoderLoss.apply(x_ND, tokens_VD, bias_V, targets_N, weights_N, compiled)
    return Losses(total, each_N, wrong_N)


class _DecoderLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        tokens_VD: Tensor,
        bias_V: Tensor,
        targets_N: Tensor,
        weights_N: Tensor | None,
        compiled: Callable[..., Any] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits_NV = x_ND @ tokens_VD.T  # the bias is added below: on CPUs a product first copies it over its result
        scale_N = (targets_N >= 0).float()
        if weights_N is not None:
            scale_N = scale_N * weights_N
        each_N = torch.empty(len(x_ND), dtype=torch.float32, device=x_ND.device)
        wrong_N = torch.empty(len(x_ND), dtype=torch.bool, device=x_ND.device)
        of_rows = (logits_NV, targets_N, scale_N, each_N, wrong_N)
        if serves(logits_NV):
            loops().losses(*arrays(logits_NV, bias_V, targets_N, scale_N, each_N, wrong_N))
        elif compiled is not None:
            compiled(bias_V, *of_rows)
        else:
            num = max(1, _CHUNK // logits_NV.shape[1])
            for part in zip(*(each.split(num) for each in of_rows), strict=True):
                losses_of_part(bias_V, *part)
        ctx.save_for_backward(x_ND, tokens_VD, logits_NV)  # by now the gradient of the logits
        ctx.mark_non_differentiable(each_N, wrong_N)
        return (each_N if weights_N is None else each_N * weights_N).sum(), each_N, wrong_N

    @staticmethod
    def backward(ctx: Any, factor: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, tokens_VD, gradient_NV = ctx.saved_tensors
        of_x = (gradient_NV @ tokens_VD).mul_(factor)
        of_tokens = (gradient_NV.T @ x_ND).mul_(factor)
        of_bias = (gradient_NV.new_ones(1, len(x_ND)) @ gradient_NV)[0].float().mul_(factor)  # a sum, in one pass
        return of_x, of_tokens, of_bias, None, None, None
