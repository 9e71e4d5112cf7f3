"""The learning rate as a function of progress: warm-up, stable, decay."""

from __future__ import annotations


def learning_rate_scale(progress: float, *, warmup: float, decay: float) -> float:
    """Factor of the peak learning rate.

    Args:
        progress: Of the budget, in [0, 1].
        warmup: Share of the budget in which it rises from 0 to 1 in a line.
        decay: Share at the end in which it falls to 0, as 1 - sqrt(share gone).

    Source: Hägele et al. 2024 (the shape of the decay); Hu et al. 2024 (MiniCPM, the three phases).
    """
    if progress < warmup:
        return progress / warmup
    gone = (progress - (1.0 - decay)) / decay if decay > 0.0 else 0.0
    return 1.0 - min(gone, 1.0) ** 0.5 if gone > 0.0 else 1.0
