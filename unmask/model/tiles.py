"""A batch's attention in parts, so that no matrix of probabilities is larger than it has to be.

    global layer                  [rows 0-3: all queries x all keys], [rows 4-7: ...], ...
    global layer, very long rows  [row 0: queries 0-639 x all keys], [row 0: queries 640-1,279 x all keys], ...
    local layer, long rows        [all rows: queries 0-127 x keys 0-191], [queries 128-255 x keys 64-319], ...

Shape suffixes: B = rows, S = positions, H = heads, K = size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

SCORES = 1 << 22  # of a tile, about, on CPUs: eight megabytes in bf16
_QUERIES = 128  # of a tile of a local layer
LARGEST = 4 * SCORES  # of a tile of a global layer; cut queries cost sums of the keys' gradients in float32


@dataclass(frozen=True)
class Tile:
    """A part of the attention of a batch.

    Attributes:
        rows, queries, keys: Which.
        window: Farthest position that a query attends to; None: any.
        alike: Whether all these queries attend to all these keys.
    """

    rows: slice
    queries: slice
    keys: slice
    window: int | None
    alike: bool

    def of(self, heads_3BHSK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Its queries, keys and values, without a copy: each [b, H, q or k, K]."""
        query, key, value = heads_3BHSK
        return (
            query[self.rows, :, self.queries],
            key[self.rows, :, self.keys],
            value[self.rows, :, self.keys],
        )


def tiles_of(segment_ids_BS: Tensor, *, num_heads: int, window: int | None) -> tuple[Tile, ...]:
    """Cuts a batch on a CPU into tiles.

    Args:
        segment_ids_BS: Tokens attend only to tokens of the same number.
        num_heads: How many there are.
        window: Farthest position that a token attends to; None: any.
    """
    num_rows, length = segment_ids_BS.shape
    if window is not None and length <= window + 1:
        window = None
    local = window is not None and length > 2 * _QUERIES
    size = _QUERIES if local else _global_queries(length, num_heads)
    same_B = (segment_ids_BS == segment_ids_BS[:, :1]).all(1)
    found = []
    for begin in range(0, length, size):
        queries = slice(begin, min(begin + size, length))
        keys = slice(0, length)
        if local and window is not None:
            keys = slice(max(0, begin - window), min(length, queries.stop + window))
        num = max(1, SCORES // (num_heads * (queries.stop - begin) * (keys.stop - keys.start)))
        for row in range(0, num_rows, num):
            rows = slice(row, min(row + num, num_rows))
            found.append(Tile(rows, queries, keys, window, window is None and bool(same_B[rows].all())))
    return tuple(found)


def _global_queries(length: int, num_heads: int) -> int:
    """Queries of a tile of a global layer: all of a row where their scores are few enough."""
    if num_heads * length**2 <= LARGEST:
        return length
    return max(_QUERIES, LARGEST // (num_heads * length) // _QUERIES * _QUERIES)
