"""Classes of documents: whether a run has those that it learns, and what a reader of the log should know of them."""

from __future__ import annotations

from unmask.errors import DataError, SettingsError
from unmask.recipe.recipe import Recipe
from unmask.tokens.manifest import Manifest

SHOWN = 8


def check_labels(recipe: Recipe, manifest: Manifest | None) -> None:
    """Makes sure that classes are there where they are an objective.

    Args:
        recipe: Says whether they are, and where raw text has them.
        manifest: Of prepared data; None for raw text.

    Raises:
        SettingsError: Raw text would be prepared without them.
        DataError: The data was prepared without them, or holds only one.
    """
    if recipe.objectives.label is None:
        return
    if manifest is None:
        if recipe.corpus.label is None:
            raise SettingsError(
                "objectives.label learns the classes of documents; name the column of the tables in which they stand "
                "with --set corpus.label=COLUMN, or remove objectives.label (--set objectives.label=none)"
            )
    elif not manifest.labels:
        raise DataError(
            "objectives.label learns the classes of documents, which this data was prepared without; make it with "
            "unmask prepare ... --set corpus.label=COLUMN"
        )
    elif len(manifest.labels) < 2:
        (name,) = manifest.labels
        raise DataError(
            f"objectives.label tells classes from each other, but all labelled documents are {name!r}; name another "
            "column in corpus.label, or remove objectives.label (--set objectives.label=none)"
        )


def describe_labels(manifest: Manifest) -> list[str]:
    """A line with the classes, the most frequent first, and the number of documents without one."""
    if not manifest.labels:
        return []
    ranked = sorted(manifest.labels.items(), key=lambda entry: -entry[1])
    names = ", ".join(f"{name} {number:,}" for name, number in ranked[:SHOWN])
    more = f" and {len(ranked) - SHOWN:,} more" if len(ranked) > SHOWN else ""
    without = f"; {manifest.unlabelled:,} documents without a class" if manifest.unlabelled else ""
    return [f"label: {len(ranked):,} classes ({names}{more}){without}"]
