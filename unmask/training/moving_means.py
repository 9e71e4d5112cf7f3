"""Moving averages of what is observed of tokens, by class: by vocabulary entry, or by part of speech.

Shape suffixes: C = classes, N = predicted positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NEW = 0.8  # of the mean since the last fold, in the moving average


class MovingMeans:
    """Gathers values by class, and folds their means into averages from time to time.

    Args:
        names: Of the values.
        num_classes: C.
        device: Where they are gathered.
    """

    def __init__(self, names: Sequence[str], num_classes: int, *, device: torch.device) -> None:
        zeros_C = torch.zeros(num_classes, device=device)
        self._gathered = {name: zeros_C.clone() for name in ("count", *names)}
        self._average = {name: zeros_C.clone() for name in names}
        self._seen_C = torch.zeros(num_classes, dtype=torch.bool, device=device)

    def add(self, class_N: Tensor, **values_N: Tensor) -> None:
        """Gathers values of some tokens. It does not wait for the device.

        Args:
            class_N: int64: the tokens' classes.
            values_N: float32, by name.
        """
        ones_N = torch.ones_like(class_N, dtype=torch.float32)
        for name, value_N in {"count": ones_N, **values_N}.items():
            self._gathered[name].index_add_(0, class_N, value_N)

    def fold(self) -> None:
        """Takes what was gathered since the last time into the averages; what was not met keeps its own."""
        count_C = self._gathered["count"]
        met_C = count_C > 0
        for name, average_C in self._average.items():
            now_C = self._gathered[name] / count_C.clamp(min=1.0)
            mixed_C = torch.where(self._seen_C, (1.0 - NEW) * average_C + NEW * now_C, now_C)
            average_C.copy_(torch.where(met_C, mixed_C, average_C))
        self._seen_C |= met_C
        for gathered_C in self._gathered.values():
            gathered_C.zero_()

    def filled(self, name: str, *, times: float = 1.0) -> Tensor:
        """The averages, times a factor: float32 [C]. What was never met gets the mean of what was."""
        average_C = self._average[name] * times
        mean = average_C.sum() / self._seen_C.sum().clamp(min=1)
        return torch.where(self._seen_C, average_C, mean)

    def state(self) -> dict[str, Tensor]:
        """All that a resumed training needs, by name."""
        state = {f"gathered.{name}": value for name, value in self._gathered.items()}
        state |= {f"average.{name}": value for name, value in self._average.items()}
        return {**state, "seen": self._seen_C}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state` gave; other names do not matter.

        Raises:
            KeyError: A tensor is missing.
        """
        for prefix, held in (("gathered", self._gathered), ("average", self._average)):
            for name, tensor in held.items():
                tensor.copy_(state[f"{prefix}.{name}"])
        self._seen_C.copy_(state["seen"])
