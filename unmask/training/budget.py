"""How far training has come: by steps, by tokens, or by the clock."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.training.settings import TrainingSettings


@dataclass(frozen=True)
class Spent:
    """What has been used so far, or will have been at some moment.

    Attributes:
        step: Steps made.
        tokens: Tokens of text trained on.
        seconds: Trained, evaluations and checkpoints included.
    """

    step: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Budget:
    """A number of steps, of tokens, or of seconds; exactly one is given.

    Attributes:
        steps: Optimizer steps.
        tokens: Tokens of text, repetitions included; the step that reaches it is the last.
        seconds: Of training, evaluations and checkpoints included.
    """

    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, settings: TrainingSettings) -> Budget:
        """The budget that the settings name."""
        return cls(settings.steps, settings.tokens, None if settings.minutes is None else settings.minutes * 60.0)

    def progress(self, spent: Spent) -> float:
        """Share of the budget that is used up, in [0, 1]."""
        if self.steps is not None:
            gone = spent.step / self.steps
        elif self.tokens is not None:
            gone = spent.tokens / self.tokens
        else:
            gone = spent.seconds / (self.seconds or 1.0)
        return min(gone, 1.0)
