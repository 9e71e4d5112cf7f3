"""What a layer of attention needs to know of a batch, and which way it is computed.

There is one choice of the way, by what the device and this version of torch offer:

    loops    CPUs: compiled loops, tile by tile (`unmask.model.fused`)
    varlen   GPUs: one kernel over all segments of the batch in a line, without padding and without a bias
             (`torch.nn.attention.varlen`): what is between segments, or outside of the window, is never computed
    bias     elsewhere: PyTorch's fused attention with a bias [B, 1, S, S], which computes everything and then hides it

Shape suffixes: B = rows, S = positions, H = heads, K = size of a head, C = capacity for sequences.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

SCORES = 1 << 22  # of a tile, about, on CPUs: eight megabytes in bf16
_QUERIES = 128  # of a tile of a local layer
LARGEST = 4 * SCORES  # of a tile of a global layer; cut queries cost sums of the keys' gradients in float32


@dataclass(frozen=True)
class Tile:
    """A part of the attention of a batch, so that no matrix of probabilities is larger than it has to be.

    global layer                  [rows 0-3: all queries x all keys], [rows 4-7: ...], ...
    global layer, very long rows  [row 0: queries 0-639 x all keys], [row 0: queries 640-1,279 x all keys], ...
    local layer, long rows        [all rows: queries 0-127 x keys 0-191], [queries 128-255 x keys 64-319], ...
    """

    rows: slice
    queries: slice
    keys: slice
    window: int | None  # farthest position that a query attends to; None: any
    alike: bool  # whether all these queries attend to all these keys

    def of(self, heads_3BHSK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Its queries, keys and values, without a copy: each [b, H, q or k, K]."""
        query, key, value = heads_3BHSK
        return query[self.rows, :, self.queries], key[self.rows, :, self.keys], value[self.rows, :, self.keys]


_SHORTEST = 128  # bucket of lengths: about what a kernel's block takes
MOST = 65_535  # that one call takes: they are a dimension of the grid that a GPU's kernel is launched with


@dataclass(frozen=True)
class Sequences:
    """Packed rows as one line of sequences, as a GPU's kernels over sequences of unequal length take them.

        rows          [CLS] a b [SEP] [CLS] c [SEP] [PAD]    [CLS] d e f g h i [SEP]    two rows of eight positions
        segment_ids     0   0 0   0     1   1   1    -1        0   0 0 0 0 0 0   0
        cu_seqlens      0               4             7        8                     16   16  16 ...

    Kernels are compiled and launched for the longest sequence, so its length is rounded up to one of a few buckets;
    padding that is longer is cut into several sequences. The sequences behind the last one have length 0, so that the
    tensor has one of few lengths, too.
    """

    cu_seqlens: Tensor  # int32 [C + 1]: places at which sequences begin, then the number of positions, repeated
    max_length: int  # no sequence is longer: 128, 256, 512, ..., or the length of a row

    @classmethod
    def of(cls, segment_ids_BS: Tensor) -> Sequences:
        """The segments of packed rows (neighbours of the same number); padding (numbers below 0) at a row's end is a
        sequence of its own, or several.

        The capacity is rounded up to one of four in each octave. On a GPU this waits for the device: a training step
        gets sequences that were made on the host.
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
    """Who attends to whom in a layer of a kind, and where positions are rotary, at which angles."""

    segment_ids_BS: Tensor  # int32: tokens attend only to tokens of the same number
    num_heads: int
    window: int | None  # farthest position that a token attends to; None: any
    # Cosines and sines of the rotation angles [B, S, K / 2], float32; None: positions are not rotary
    rotary: tuple[Tensor, Tensor] | None
    sequences: Sequences | None = None  # the segments in a line, where attention is computed over them; else None

    @functools.cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """Parts of the batch, on CPUs."""
        num_rows, length = self.segment_ids_BS.shape
        window = None if self.window is None or length <= self.window + 1 else self.window
        local = window is not None and length > 2 * _QUERIES
        size = length  # all queries of a row where their scores are few enough
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
        """float32: 0 where a token (third axis) may attend to another (fourth), minus infinity elsewhere.

        Padding attends to padding, so that no line is all minus infinity.
        """
        segment_ids_BS = self.segment_ids_BS
        allowed = segment_ids_BS[:, :, None] == segment_ids_BS[:, None, :]
        if self.window is not None:
            place = torch.arange(segment_ids_BS.shape[1], device=segment_ids_BS.device)
            allowed = allowed & ((place[:, None] - place[None, :]).abs() <= self.window)
        bias = torch.zeros(allowed.shape, device=segment_ids_BS.device)
        return bias.masked_fill_(~allowed, float("-inf"))[:, None]


def rotary_table(position_ids_BS: Tensor, *, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles, float32 [B, S, head_dim / 2] each, computed once for each position that
    a row can have. Positions are within segments, so below S; `theta` is the base of the wave lengths.

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
    """How a layer computes its attention, looked up once.

    The kernel over sequences takes half precision and heads of 8, 16 ... 256, on GPUs from Ampere on. Not every version
    of torch lets it take a sliding window.
    """
    if device.type == "cpu":
        return "loops"
    fits = dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= _LARGEST_HEAD
    if not fits or device.type != "cuda" or torch.version.hip is not None:
        return "bias"
    from torch.nn.attention.varlen import varlen_attn

    takes_window = window is None or "window_size" in inspect.signature(varlen_attn).parameters
    return "varlen" if takes_window and torch.cuda.get_device_capability(device) >= _AMPERE else "bias"
