"""Projections to heads and back: rotation, scaling and moving in one pass.

Arrays: B = rows, S = positions, H = heads, K = size of a head; R = half of K.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from unmask.compiled import compiled, parallel
from unmask.network.float_loops import exp, largest_of, load, store


@parallel
def split(scale: float, qkv_BS3HK: Any, cos_BSR: Any, sin_BSR: Any, heads_3BHSK: Any) -> None:
    """Queries, scaled, and keys are turned by their angles; all three are brought to the heads' order.

    Where there are no angles (an array without elements), nothing is turned.
    """
    num_rows, length, _, num_heads, size = qkv_BS3HK.shape
    half = size // 2
    for head in prange(num_rows * num_heads):  # what is written lies in one piece
        b, h = head // num_heads, head % num_heads
        for j in range(3):
            factor = np.float32(scale) if j == 0 else np.float32(1.0)
            for s in range(length):
                x, out = qkv_BS3HK[b, s, j, h], heads_3BHSK[j, b, h, s]
                if j < 2 and cos_BSR.size:
                    for k in range(half):
                        first, second = load(x[k]), load(x[k + half])
                        cos, sin = cos_BSR[b, s, k] * factor, sin_BSR[b, s, k] * factor
                        store(out, k, first * cos - second * sin)
                        store(out, k + half, second * cos + first * sin)
                elif j == 0:
                    for k in range(size):
                        store(out, k, load(x[k]) * factor)
                else:
                    for k in range(size):
                        out[k] = x[k]


@parallel
def unsplit(scale: float, heads_3BHSK: Any, cos_BSR: Any, sin_BSR: Any, qkv_BS3HK: Any) -> None:
    """The transpose of `split`: gradients of heads to those of the projection. Heads may be float32."""
    num_rows, length, _, num_heads, size = qkv_BS3HK.shape
    half = size // 2
    for place in prange(num_rows * length):
        b, s = place // length, place % length
        for j in range(3):
            factor = np.float32(scale) if j == 0 else np.float32(1.0)
            for h in range(num_heads):
                x, out = heads_3BHSK[j, b, h, s], qkv_BS3HK[b, s, j, h]
                if j < 2 and cos_BSR.size:
                    for k in range(half):
                        first, second = load(x[k]), load(x[k + half])
                        cos, sin = cos_BSR[b, s, k] * factor, sin_BSR[b, s, k] * factor
                        store(out, k, first * cos + second * sin)
                        store(out, k + half, second * cos - first * sin)
                else:
                    for k in range(size):
                        store(out, k, load(x[k]) * factor)


@parallel
def softmax(first_query: int, first_key: int, window: int, scores_bHqk: Any, segments_bS: Any) -> None:
    """Scores become probabilities, in place.

    Args:
        first_query, first_key: Where these queries and keys begin in the row.
        window: Farthest position that is seen.
        scores_bHqk: Of some queries and keys of some rows.
        segments_bS: A query sees the keys of its own segment.
    """
    num_rows, num_heads, num_queries, num_keys = scores_bHqk.shape
    hidden = np.float32(-1e30)
    for head in prange(num_rows * num_heads):
        segments = segments_bS[head // num_heads, first_key : first_key + num_keys]
        begins, ends, in_runs = _runs(segments)
        line = np.empty(num_keys, dtype=np.float32)
        for q in range(num_queries):
            scores = scores_bHqk[head // num_heads, head % num_heads, q]
            segment, place = segments_bS[head // num_heads, first_query + q], first_query + q - first_key
            begin, end = max(place - window, 0), min(place + window + 1, num_keys)
            if in_runs and 0 <= place < num_keys:
                begin, end = max(begin, begins[place]), min(end, ends[place])
            seen, own = line[: end - begin], scores[begin:end]
            for k in range(len(seen)):
                seen[k] = load(own[k])
            if not in_runs or not 0 <= place < num_keys:
                others = segments[begin:end]
                for k in range(len(seen)):
                    seen[k] = seen[k] if others[k] == segment else hidden
            largest = largest_of(seen)
            total = np.float32(0.0)
            for k in range(len(seen)):
                seen[k] = exp(seen[k] - largest)
                total += seen[k]
            factor = np.float32(1.0) / total
            for k in range(begin):
                scores[k] = 0
            for k in range(len(seen)):
                store(own, k, seen[k] * factor)
            behind = scores[end:]
            for k in range(len(behind)):
                behind[k] = 0


@compiled
def _runs(segments_k: Any) -> tuple[Any, Any, bool]:
    """For each key where the run of its segment begins and ends, and whether each segment is a single run."""
    count = len(segments_k)
    begins, ends = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    single = True
    begin = 0
    for k in range(1, count + 1):
        if k == count or segments_k[k] != segments_k[begin]:
            begins[begin:k], ends[begin:k] = begin, k
            begin = k
    for k in range(count):
        if k == begins[k]:
            for other in range(ends[k], count):
                single &= segments_k[other] != segments_k[k]
    return begins, ends, single


@parallel
def softmax_backward(gradient_Nqk: Any, p_Nqk: Any) -> None:
    """The gradient of probabilities becomes that of scores, in place."""
    num, num_queries, num_keys = p_Nqk.shape
    for n in prange(num):
        for q in range(num_queries):
            gradient, p = gradient_Nqk[n, q], p_Nqk[n, q]
            total = np.float32(0.0)
            for k in range(num_keys):
                total += load(gradient[k]) * load(p[k])
            for k in range(num_keys):
                store(gradient, k, load(p[k]) * (load(gradient[k]) - total))
