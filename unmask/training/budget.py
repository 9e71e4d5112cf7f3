"""How far training has come: by steps, or by the clock."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.training.settings import TrainingSettings


@dataclass(frozen=True)
class Budget:
    """A number of steps, or of seconds; exactly one is given.

    Attributes:
        steps: Optimizer steps.
        seconds: Of training, evaluations and checkpoints included.
    """

    steps: int | None
    seconds: float | None

    @classmethod
    def of(cls, settings: TrainingSettings) -> Budget:
        """The budget that the settings name."""
        return cls(settings.steps, None if settings.minutes is None else settings.minutes * 60.0)

    def progress(self, *, step: float, seconds: float) -> float:
        """Share of the budget that is used up before a step, in [0, 1].

        Args:
            step: Steps already made; a half one is the middle of the next.
            seconds: Already trained.
        """
        gone = step / self.steps if self.steps is not None else seconds / (self.seconds or 1.0)
        return min(gone, 1.0)
