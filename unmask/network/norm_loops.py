"""Layer normalisation with the addition before it.

Arrays: T = positions in a line, D = hidden size, C = stretches of positions, whose sums are added up in their order,
so that the result does not depend on the number of cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from unmask.compiled import parallel
from unmask.network.float_loops import load, store

STRETCHES = 64


@parallel
def norm(
    eps: float, x_TD: Any, added_TD: Any, weight_D: Any, bias_D: Any, sum_TD: Any, out_TD: Any, scale_T: Any
) -> None:
    """Adds, normalises, and keeps what the backward pass needs.

    Args:
        eps: Added to the variance.
        x_TD, added_TD: What is added up; `added_TD` may have no elements.
        weight_D, bias_D: float32; the bias may have no elements.
        sum_TD: Becomes the sum, where there is something to add.
        out_TD: Becomes the result.
        scale_T: [T, 2], float32: becomes the means and the reciprocals of the standard deviations.
    """
    num, width = x_TD.shape
    for t in prange(num):
        line = np.empty(width, dtype=np.float32)
        x, out = x_TD[t], out_TD[t]
        if added_TD.size:
            added, kept = added_TD[t], sum_TD[t]
            for d in range(width):
                store(kept, d, load(x[d]) + load(added[d]))
            for d in range(width):
                line[d] = load(kept[d])  # as it was rounded: the backward pass will see that
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
    """Gradients of what was normalised, of the weight and of the bias.

    Args:
        gradient_TD: Of the result.
        passed_TD: Of the sum, from what else uses it; may have no elements.
        x_TD: What was normalised.
        weight_D, scale_T: As for `norm`.
        result_TD: Becomes the gradient of the sum.
        sums_2CD: float32, zeros: become those of weight and bias, for each stretch of positions.
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
