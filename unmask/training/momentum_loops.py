"""What Muon does before and behind its products: each number is read and written once.

Arrays: N = matrices, R = rows, C = columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from unmask.compiled import parallel
from unmask.network.float_loops import load, store

STRETCHES = 16  # of a matrix, whose sums are added up in their order: the number of cores makes no difference


@parallel
def unit_directions(
    momentum: float, room: float, eps: float, gradient_NRC: Any, running_NRC: Any, sums_NS: Any, direction_NRC: Any
) -> None:
    """Advances the running gradients, and brings Nesterov's directions to length 1 / room.

    Args:
        momentum: Decay of the running gradient.
        room: Factor of the length that each is divided by.
        eps: Added to it.
        gradient_NRC: The gradients.
        running_NRC: The running ones, in place.
        sums_NS: float32, [N, STRETCHES]: becomes the squares of the directions, added up.
        direction_NRC: Becomes the directions, each matrix divided by its Frobenius norm times the room.
    """
    num, rows, columns = gradient_NRC.shape
    kept, fresh = np.float32(momentum), np.float32(1.0 - momentum)
    for place in prange(num * STRETCHES):
        n, stretch = place // STRETCHES, place % STRETCHES
        total = np.float32(0.0)
        for r in range(stretch * rows // STRETCHES, (stretch + 1) * rows // STRETCHES):
            gradient, running = gradient_NRC[n, r], running_NRC[n, r]
            for c in range(columns):
                running[c] += fresh * (gradient[c] - running[c])
                direction = gradient[c] + kept * (running[c] - gradient[c])
                total += direction * direction
        sums_NS[n, stretch] = total
    for place in prange(num * rows):
        n, r = place // rows, place % rows
        total = np.float32(0.0)
        for stretch in range(STRETCHES):
            total += sums_NS[n, stretch]
        factor = np.float32(1.0) / (np.float32(room) * np.sqrt(total) + np.float32(eps))
        gradient, running, direction_C = gradient_NRC[n, r], running_NRC[n, r], direction_NRC[n, r]
        for c in range(columns):
            store(direction_C, c, (gradient[c] + kept * (running[c] - gradient[c])) * factor)


@parallel
def apply(kept: float, rate: float, update_TC: Any, weight_TC: Any) -> None:
    """Weights become `kept` times themselves, less `rate` times the update; T = all rows in a line."""
    for t in prange(len(weight_TC)):
        weight, update = weight_TC[t], update_TC[t]
        for c in range(len(weight)):
            weight[c] = weight[c] * np.float32(kept) - np.float32(rate) * load(update[c])
