"""Folders of many runs: what they were begun for, and the text that all of them are trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.claimed import ClaimedFolder, differences
from unmask.errors import RunError
from unmask.files import read_object
from unmask.pretraining.run_data import is_prepared
from unmask.pretraining.run_reporter import Reporter
from unmask.recipe.recipe import Recipe
from unmask.shards.preparation import prepare
from unmask.tokenizer.settings import TokenizerSettings


def folder_of_runs(root: Path, marker: str, what: str) -> ClaimedFolder:
    """A folder of many runs, which several processes may share.

    Args:
        root: The folder.
        marker: Name of the file that says what it is for.
        what: The kind of folder, with its article.
    """
    return ClaimedFolder(root=root, marker=marker, what=what, options=())


def claim(folder: ClaimedFolder, content: Mapping[str, Any], *, unsaid: Mapping[str, Any] | None = None) -> None:
    """Writes what a folder is for into it, or checks that it is for the same.

    Args:
        folder: Made where missing.
        content: What it is for: `asked` (what the user said), `recipes` (all their settings, by name) and `files` (the
            hash of each, by path). So a recipe or a text that was edited meanwhile is not the same.
        unsaid: What a folder was asked for where its file, of an earlier version, does not say it.

    Raises:
        RunError: The folder holds something else; the text names the first thing that is not the same.
    """
    plain = json.loads(json.dumps(content))
    folder.make()
    with folder.locked():
        if folder.is_claimed:
            begun = _read(folder)
            begun["asked"] = {**(unsaid or {}), **begun.get("asked", {})}
            _check_same(folder, begun, plain)
        else:
            folder.check_names()
            folder.claim(json.dumps(plain, indent=1) + "\n")


def _read(folder: ClaimedFolder) -> dict[str, Any]:
    assert folder.marker is not None
    return read_object(folder.root / folder.marker, "give another --out")


def _check_same(folder: ClaimedFolder, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """What was asked for comes first, since the rest follows it."""
    folder.check_same(begun.get("asked", {}), now["asked"])
    before = begun.get("recipes", {})
    for key, old, new in differences(before, now["recipes"]):
        if old is None and key.endswith("masking.budget"):
            raise RunError(
                f"{folder.root} holds {folder.what} that was begun by an earlier version, whose masks fill a budget of "
                f"tokens ({key} = 'tokens'), but now it is {new!r}, and runs of both are not alike; give another --out"
            )
        break
    folder.check_same(before, now["recipes"], of="recipe ")
    for path, old, new in differences(begun.get("files", {}), now["files"]):
        change = "is new" if old is None else "is gone" if new is None else "has changed"
        raise folder.changed(f"that was begun with other files: {path} {change}")


def ask_for_seeds(folder: ClaimedFolder, seeds: int) -> int:
    """Writes down how many seeds are asked for, where that is more than ever before.

    It is done before the first run: each run's figures are seen as soon as it ends, so who may stop anywhere chooses
    among all numbers of seeds up to this one.

    Args:
        folder: Claimed.
        seeds: How many are asked for now.

    Returns:
        The most that were ever asked for.

    Raises:
        RunError: The file is damaged.
    """
    with folder.locked():
        content = _read(folder)
        looks = content.get("looks", [])
        known = max([content.get("most_seeds", 0), *(look["seeds"] for look in looks)])
        if seeds > content.get("most_seeds", 0):
            folder.claim(json.dumps({**content, "most_seeds": max(seeds, known)}, indent=1) + "\n")
    return max(seeds, known)


def look_number(folder: ClaimedFolder, figures: object, *, seeds: int, most_seeds: int) -> int:
    """Which look of a comparison this is; one that is new is written down beside what the folder is for.

    To see the same figures again is the same look, also where others came between. One on fewer seeds than were ever
    asked for may have been chosen by what runs printed. So it counts as if every number of seeds up to it had been
    looked at: with n seeds it is look n at the least, which leaves look 1 to the number that was asked for. All looks
    after it come behind it.

    Args:
        folder: Claimed.
        figures: All that is judged, as JSON can say it.
        seeds: How many there are.
        most_seeds: The most that were ever asked for.

    Returns:
        From 1 on.

    Raises:
        RunError: The file is damaged.
    """
    new = {"seeds": seeds, "figures": hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()}
    with folder.locked():
        content = _read(folder)
        looks = [{"look": place, **look} for place, look in enumerate(content.get("looks", []), 1)]
        for look in looks:
            if new.items() <= look.items():
                return int(look["look"])
        number = next_look([int(look["look"]) for look in looks], seeds=seeds, most_seeds=most_seeds)
        looks.append({"look": number, **new})
        folder.claim(json.dumps({**content, "looks": looks}, indent=1) + "\n")
    return number


def next_look(before: Sequence[int], *, seeds: int, most_seeds: int) -> int:
    """The number of a look at figures that were not looked at; see `look_number`."""
    return max(max(before, default=0) + 1, seeds if seeds < most_seeds else 1)


def tokenizer_of(recipe: Recipe) -> TokenizerSettings:
    """What text is tokenized with for a recipe: a checkpoint brings its own tokenizer."""
    return recipe.tokenizer if recipe.start is None else TokenizerSettings(path=recipe.start.checkpoint)


def common_data(paths: tuple[str, ...], folder: ClaimedFolder, recipe: Recipe, reporter: Reporter) -> tuple[str, ...]:
    """The prepared data of all runs: as given, or made in the folder once, while other processes wait.

    Args:
        paths: Of the text, or a prepared folder.
        folder: Of the runs.
        recipe: Says how text is prepared, for all.
        reporter: Told of the progress.

    Raises:
        UnmaskError: As `unmask.shards.preparation.prepare`.
    """
    if is_prepared(paths):
        return paths
    with folder.locked():
        prepare(
            paths,
            folder.root / "data",
            corpus=recipe.corpus,
            tokenizer=tokenizer_of(recipe),
            annotation=recipe.annotation,
            resume=True,
            notify=reporter.notify,
            note=reporter.note,
        )
    return (str(folder.root / "data"),)
