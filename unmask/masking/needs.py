"""Which annotations a strategy needs, so that it can be said before anything is prepared."""

from __future__ import annotations

from unmask.settings import settings_within


def needed_annotations(settings: object) -> tuple[str, ...]:
    """The columns of annotation that some settings of masking need, each once.

    Args:
        settings: Units, weights, or anything that holds such, as a mixture does: settings whose class says so with
            `needs`.
    """
    needs = (name for inner in settings_within(settings) for name in getattr(inner, "needs", ()))
    return tuple(dict.fromkeys(needs))
