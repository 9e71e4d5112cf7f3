"""Which annotations a strategy needs, so that it can be said before anything is prepared."""

from __future__ import annotations

from collections.abc import Iterator

from unmask.settings import Settings


def needed_annotations(settings: object) -> tuple[str, ...]:
    """The columns of annotation that some settings of masking need, each once.

    Args:
        settings: Units, weights, or anything that holds such, as a mixture does: settings whose class says so with
            `needs`.
    """
    return tuple(dict.fromkeys(_needs(settings)))


def _needs(value: object) -> Iterator[str]:
    if isinstance(value, Settings):
        yield from getattr(value, "needs", ())
        for name in type(value).model_fields:
            yield from _needs(getattr(value, name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _needs(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _needs(inner)
