"""The plateau of token frequencies, recognised and explained: the most common worry of whoever pretrains.

Every masked language model first learns how frequent each token is, which brings its loss to the entropy of these
frequencies, and stays there until attention has learned to look at the neighbours. Then the loss falls again.
"""

from __future__ import annotations

from collections.abc import Sequence

MARGIN = 0.1  # nats: less than this under the entropy is the plateau
_LEAST_PROGRESS = 0.15  # before, a model is on its way to it
FEW_STEPS = 100


def on_plateau(loss: float, entropy: float) -> bool:
    """Whether a held-out loss says no more than token frequencies do. Both in nats per predicted token."""
    return loss > entropy - MARGIN


def is_stuck(losses: Sequence[float], entropy: float, *, progress: float, step: int) -> bool:
    """Whether training does not get away from the plateau.

    Args:
        losses: Held-out losses so far, that of the untrained model first.
        entropy: Of the token frequencies, on the same tokens.
        progress: Of the budget.
        step: Steps made.
    """
    trained = losses[1:]
    recent = trained[-2:]
    return (
        step >= FEW_STEPS
        and progress >= _LEAST_PROGRESS
        and len(recent) == 2
        and all(on_plateau(loss, entropy) for loss in recent)
    )


def explain_plateau(loss: float, entropy: float, *, step: int, learning_rate: float) -> str:
    """What it means, whether it is normal, and what helps.

    Args:
        loss: The latest held-out loss.
        entropy: Of the token frequencies.
        step: After which it was measured.
        learning_rate: The peak rate.
    """
    if step < FEW_STEPS:
        return (
            f"{step:,} steps are too few to learn more than how frequent each token is (held-out loss {loss:.2f}, "
            f"entropy of the frequencies {entropy:.2f}); give more minutes or steps, or a smaller training.batch_tokens"
        )
    where = "still above" if loss > entropy + MARGIN else "still at"
    return (
        f"the held-out loss ({loss:.2f}) is {where} the entropy of the token frequencies ({entropy:.2f}) after "
        f"{step:,} steps: nothing of the context is used yet. Every masked language model goes through this, and "
        "leaves it when attention has found the neighbours, small ones mostly within some hundred steps. If it stays: "
        "more steps (a longer budget, or a smaller training.batch_tokens), another training.learning_rate (now "
        f"{learning_rate:g}; try a third, or three times), a lower masking.rate; and a look at the text: shuffled or "
        "one-word lines have no context to learn from"
    )
