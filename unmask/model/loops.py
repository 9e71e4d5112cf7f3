"""Compiled loops for CPUs, between matrix products. bf16 is read and written as bits; all arithmetic is in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic, overload

from unmask.core.compiled import compiled, inlined, parallel


@intrinsic
def float_of_bits(context: Any, bits: Any) -> Any:
    return types.float32(types.uint32), lambda _, builder, __, values: builder.bitcast(values[0], ir.FloatType())


@intrinsic
def bits_of_float(context: Any, number: Any) -> Any:
    return types.uint32(types.float32), lambda _, builder, __, values: builder.bitcast(values[0], ir.IntType(32))


def load(element: Any) -> float:
    """An element of an array as float32; the array is float32, or the 16 bits of bf16."""
    raise NotImplementedError("for compiled loops only")


def store(array: Any, place: int, number: float) -> None:
    """Writes a float32 into an array of either kind."""
    raise NotImplementedError("for compiled loops only")


@overload(load, inline="always")
def _load(element: Any) -> Any:
    def read(element: Any) -> Any:
        return element

    def read_bf16(element: Any) -> Any:
        return float_of_bits(np.uint32(np.uint32(element) << np.uint32(16)))

    return read_bf16 if element == types.uint16 else read


@overload(store, inline="always")
def _store(array: Any, place: Any, number: Any) -> Any:
    def write(array: Any, place: Any, number: Any) -> Any:
        array[place] = number

    def write_bf16(array: Any, place: Any, number: Any) -> Any:  # to the nearest, halves to even
        bits = bits_of_float(np.float32(number))
        array[place] = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))

    return write_bf16 if array.dtype == types.uint16 else write


@inlined
def exp(x: float) -> float:
    """The exponential, to two units in the last place; 0 below -87. Source: Cephes, expf."""
    one = np.float32(1.0)
    y = max(min(x, np.float32(88.0)), np.float32(-87.0))
    n = np.floor(y * np.float32(1.44269504088896341) + np.float32(0.5))
    r = y - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + one
    power = float_of_bits(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)))
    number = np.float32(0.0) if x < np.float32(-87.0) else p * power
    return number if x == x else x  # noqa: PLR0124  (NaN stays NaN)


@inlined
def largest_of(line: Any) -> float:
    """The largest number of a line of float32, which must not be empty; NaN counts as the largest.

    Numbers are compared as integers that sort the same, since compilers vectorise a running maximum of integers.
    """
    largest = np.int32(-0x80000000)
    for place in range(len(line)):
        largest = max(largest, _in_order(np.int32(bits_of_float(line[place]))))
    return float_of_bits(np.uint32(_in_order(largest)))


@inlined
def _in_order(bits: int) -> int:
    """The bits of floating-point numbers as integers that sort the same, and back."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


# ----------------------------------------
# GELU, gated or not: one pass for values, another for gradients.
#
# Arrays: T = positions in a line, I = intermediate size.


@inlined
def _gelu(x: float) -> tuple[float, float]:
    """x times the normal distribution's integral, to 1e-7. Source: Abramowitz and Stegun 1964, 7.1.26."""
    u = abs(x) * np.float32(0.7071067811865476)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * u)
    p = np.float32(1.061405429) * t - np.float32(1.453152027)
    p = p * t + np.float32(1.421413741)
    p = p * t - np.float32(0.284496736)
    p = (p * t + np.float32(0.254829592)) * t
    density = exp(-u * u)
    tail = np.float32(0.5) * p * density
    below = np.float32(1.0) - tail if x > np.float32(0.0) else tail
    return x * below, below + x * density * np.float32(0.3989422804014327)


@inlined
def _line(x: Any, gate: Any, out: Any) -> None:
    if gate.size:
        for i in range(len(out)):
            store(out, i, _gelu(load(x[i]))[0] * load(gate[i]))
    else:
        for i in range(len(out)):
            store(out, i, _gelu(load(x[i]))[0])


@inlined
def _line_backward(gradient: Any, x: Any, gate: Any, of_x: Any, of_gate: Any) -> None:
    if gate.size:
        for i in range(len(gradient)):
            value, slope = _gelu(load(x[i]))
            g = load(gradient[i])
            store(of_x, i, g * load(gate[i]) * slope)
            store(of_gate, i, g * value)
    else:
        for i in range(len(gradient)):
            store(of_x, i, load(gradient[i]) * _gelu(load(x[i]))[1])


# The first half of a line of `into_T` is activated, and its second half is the gate; without a gate all of it is
# activated. The backward pass computes the activation again.


@parallel
def gelu(into_T: Any, out_TI: Any) -> None:
    width = out_TI.shape[1]
    for t in prange(len(out_TI)):
        _line(into_T[t, :width], into_T[t, width:], out_TI[t])


@parallel
def gelu_backward(gradient_TI: Any, into_T: Any, result_T: Any) -> None:
    width = gradient_TI.shape[1]
    for t in prange(len(gradient_TI)):
        into, result = into_T[t], result_T[t]
        _line_backward(gradient_TI[t], into[:width], into[width:], result[:width], result[width:])


# ----------------------------------------
# Layer normalisation with the addition before it.
#
# Arrays: T = positions in a line, D = hidden size, C = stretches of positions. The sums of stretches are added up in
# order, so that the result does not depend on the number of cores.

STRETCHES = 64


@parallel
def norm(
    eps: float, x_TD: Any, added_TD: Any, weight_D: Any, bias_D: Any, sum_TD: Any, out_TD: Any, scale_T: Any
) -> None:
    """Adds, normalises, and keeps what the backward pass needs; `added_TD` and `bias_D` may have no elements.

    Writes `sum_TD` if something is added, `out_TD`, and `scale_T` [T, 2], float32: means and reciprocals of standard
    deviations.
    """
    num, width = x_TD.shape
    for t in prange(num):
        line = np.empty(width, dtype=np.float32)
        x, out = x_TD[t], out_TD[t]
        if added_TD.size:
            added, total = added_TD[t], sum_TD[t]
            for d in range(width):
                store(total, d, load(x[d]) + load(added[d]))
            for d in range(width):
                line[d] = load(total[d])  # the rounded sum, since the backward pass sees that
        else:
            for d in range(width):
                line[d] = load(x[d])
        mean = np.float32(0.0)
        for d in range(width):
            mean += line[d]
        mean /= np.float32(width)
        variance = np.float32(0.0)
        for d in range(width):
            variance += (line[d] - mean) * (line[d] - mean)
        scale = np.float32(1.0) / np.sqrt(variance / np.float32(width) + np.float32(eps))
        if bias_D.size:
            for d in range(width):
                store(out, d, (line[d] - mean) * scale * weight_D[d] + bias_D[d])
        else:
            for d in range(width):
                store(out, d, (line[d] - mean) * scale * weight_D[d])
        scale_T[t, 0], scale_T[t, 1] = mean, scale


@parallel
def norm_backward(
    gradient_TD: Any, passed_TD: Any, x_TD: Any, weight_D: Any, scale_T: Any, result_TD: Any, sums_2CD: Any
) -> None:
    """Writes the gradient of `x_TD`, the norm's input, into `result_TD`, and adds those of weight and bias, for each
    stretch, to `sums_2CD`. `passed_TD` is the gradient of the sum from its other uses, and may have no elements.
    """
    num, width = x_TD.shape
    stretches = sums_2CD.shape[1]
    for c in prange(stretches):
        of_weight, of_bias = sums_2CD[0, c], sums_2CD[1, c]
        for t in range(c * num // stretches, (c + 1) * num // stretches):
            gradient, x, result = gradient_TD[t], x_TD[t], result_TD[t]
            mean, scale = scale_T[t, 0], scale_T[t, 1]
            total, along = np.float32(0.0), np.float32(0.0)
            for d in range(width):
                g, place = load(gradient[d]), (load(x[d]) - mean) * scale
                of_weight[d] += g * place
                of_bias[d] += g
                total += g * weight_D[d]
                along += g * weight_D[d] * place
            total /= np.float32(width)
            along /= np.float32(width)
            if passed_TD.size:
                passed = passed_TD[t]
                for d in range(width):
                    place = (load(x[d]) - mean) * scale
                    own = (load(gradient[d]) * weight_D[d] - total - place * along) * scale
                    store(result, d, own + load(passed[d]))
            else:
                for d in range(width):
                    place = (load(x[d]) - mean) * scale
                    store(result, d, (load(gradient[d]) * weight_D[d] - total - place * along) * scale)


# ----------------------------------------
# Projections to heads and back: rotation, scaling and moving in one pass.
#
# Arrays: B = rows, S = positions, H = heads, K = size of a head; R = half of K.


@parallel
def split(scale: float, qkv_BS3HK: Any, cos_BSR: Any, sin_BSR: Any, heads_3BHSK: Any) -> None:
    """Scales queries, rotates queries and keys by their angles (arrays without elements: no rotation), and moves
    queries, keys and values to the order of heads."""
    num_rows, length, _, num_heads, size = qkv_BS3HK.shape
    half = size // 2
    for head in prange(num_rows * num_heads):  # each iteration writes contiguous pieces
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
    """The transpose of `split`: turns gradients of heads into those of the projection. Heads may be float32."""
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
    """Turns a tile's scores into probabilities, in place. Its queries and keys begin at `first_query` and `first_key`
    in the rows. A query sees the keys of its own segment, at most `window` positions away."""
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
    """For each key the begin and end of its segment's run, and whether each segment is a single run."""
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
    """Turns the gradient of probabilities into that of scores, in place."""
    num, num_queries, num_keys = p_Nqk.shape
    for n in prange(num):
        for q in range(num_queries):
            gradient, p = gradient_Nqk[n, q], p_Nqk[n, q]
            total = np.float32(0.0)
            for k in range(num_keys):
                total += load(gradient[k]) * load(p[k])
            for k in range(num_keys):
                store(gradient, k, load(p[k]) * (load(gradient[k]) - total))


# ----------------------------------------
# The decoder's cross-entropy: the pass that reads logits for the loss overwrites them with their gradient.
#
# Arrays: N = predicted positions, V = vocabulary.


@parallel
def losses(logits_NV: Any, bias_V: Any, targets_N: Any, scale_N: Any, each_N: Any, wrong_N: Any) -> None:
    """Overwrites logits, which lack the bias, with their gradient times the scale. Writes losses into `each_N`, and
    whether another class was more likely into `wrong_N`. Ignores rows with a negative target: their loss is 0."""
    num, size = logits_NV.shape
    for n in prange(num):
        logits, target, scale = logits_NV[n], targets_N[n], scale_N[n]
        if target < 0:
            logits[:] = 0
            each_N[n], wrong_N[n] = 0.0, False
            continue
        line = np.empty(size, dtype=np.float32)
        for v in range(size):
            line[v] = load(logits[v]) + bias_V[v]
        largest = largest_of(line)
        right = line[target]
        total = np.float32(0.0)
        for v in range(size):
            line[v] = exp(line[v] - largest)
            total += line[v]
        each_N[n] = np.log(total) + largest - right
        wrong_N[n] = right < largest
        factor = scale / total
        for v in range(size):
            store(logits, v, line[v] * factor)
        store(logits, target, line[target] * factor - scale)
