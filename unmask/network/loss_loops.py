"""The decoder's cross-entropy: logits are read for the loss and become their own gradient.

Arrays: N = predicted positions, V = vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from unmask.compiled import parallel
from unmask.network.float_loops import exp, largest_of, load, store


@parallel
def losses(logits_NV: Any, bias_V: Any, targets_N: Any, scale_N: Any, each_N: Any, wrong_N: Any) -> None:
    """Args:
    logits_NV: Without the bias; become their gradient, times the scale.
    bias_V: float32.
    targets_N: Right answers; the row is ignored where it is negative.
    scale_N: float32: of each row's gradient.
    each_N: float32: become the losses; 0 where the row is ignored.
    wrong_N: bool: become whether something else was more likely.
    """
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
