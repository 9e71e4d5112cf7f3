"""Figures of predicted classes, whatever they are classes of; by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.tasks.task import Metrics

NAMES = ("accuracy", "macro_f1", "micro_f1", "matthews")


def of_classes(right: Sequence[str], predicted: Sequence[str]) -> Metrics:
    """All of `NAMES`. What stands in no right class is an error, and no class of its own."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    known = sorted(set(right))  # a class that only predictions have counts by what it takes from the others
    return {
        "accuracy": float(accuracy_score(right, predicted)),
        "macro_f1": float(f1_score(right, predicted, labels=known, average="macro", zero_division=0)),
        "micro_f1": float(f1_score(right, predicted, average="micro", zero_division=0)),
        "matthews": float(matthews_corrcoef(right, predicted)),
    }
