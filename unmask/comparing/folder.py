"""Folders of many runs: what they were begun for, and the text that all of them are trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock

from unmask.errors import RunError
from unmask.files import read_object, write_atomically
from unmask.pretraining.claim import differences
from unmask.pretraining.data import is_prepared
from unmask.pretraining.reporter import Reporter
from unmask.recipe.recipe import Recipe
from unmask.tokens.prepare import prepare
from unmask.tokens.settings import TokenizerSettings

_LOCK = ".lock"


def locked(root: Path) -> BaseFileLock:
    """While it is entered, no other process is in it for the same folder."""
    return FileLock(root / _LOCK)


def claim(
    root: Path, file: str, content: Mapping[str, Any], *, what: str, unsaid: Mapping[str, Any] | None = None
) -> None:
    """Writes what a folder is for into it, or checks that it is for the same.

    Args:
        root: The folder; made where missing.
        file: Name of the file that says it.
        content: What it says: `asked` (what the user said), `recipes` (all their settings, by name) and `files` (the
            hash of each, by path). So a recipe or a text that was edited meanwhile is not the same.
        what: The kind of folder, in words.
        unsaid: What a folder was asked for where its file, of an earlier version, does not say it.

    Raises:
        RunError: The folder holds something else; the text names the first thing that is not the same.
    """
    plain = json.loads(json.dumps(content))
    if root.exists() and not root.is_dir():
        raise RunError(f"{root} is a file; give another --out")
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        if (root / file).is_file():
            begun = read_object(root / file, "give another --out")
            begun["asked"] = {**(unsaid or {}), **begun.get("asked", {})}
            if (change := _change(begun, plain, what)) is not None:
                raise RunError(f"{root} holds a {what} {change}")
            return
        if any(path.name != _LOCK for path in root.iterdir()):
            raise RunError(f"{root} is not empty and holds no {what}; give another --out")
        write_atomically(root / file, json.dumps(plain, indent=1) + "\n")


def ask_for_seeds(root: Path, file: str, seeds: int) -> int:
    """Writes down how many seeds are asked for, where that is more than ever before.

    It is done before the first run: each run's figures are seen as soon as it ends, so who may stop anywhere chooses
    among all numbers of seeds up to this one.

    Args:
        root: The folder, claimed.
        file: Name of the file that says what it is for.
        seeds: How many are asked for now.

    Returns:
        The most that were ever asked for.

    Raises:
        RunError: The file is damaged.
    """
    with locked(root):
        content = read_object(root / file, "give another --out")
        looks = content.get("looks", [])
        known = max([content.get("most_seeds", 0), *(look["seeds"] for look in looks)])
        if seeds > content.get("most_seeds", 0):
            write_atomically(root / file, json.dumps({**content, "most_seeds": max(seeds, known)}, indent=1) + "\n")
    return max(seeds, known)


def look_number(root: Path, file: str, figures: object, *, seeds: int, most_seeds: int) -> int:
    """Which look of a comparison this is; one that is new is written down beside what the folder is for.

    To see the same figures again is the same look, also where others came between. One on fewer seeds than were ever
    asked for may have been chosen by what runs printed. So it counts as if every number of seeds up to it had been
    looked at: with n seeds it is look n at the least, which leaves look 1 to the number that was asked for. All looks
    after it come behind it.

    Args:
        root: The folder, claimed.
        file: Name of the file that says what it is for.
        figures: All that is judged, as JSON can say it.
        seeds: How many there are.
        most_seeds: The most that were ever asked for.

    Returns:
        From 1 on.

    Raises:
        RunError: The file is damaged.
    """
    new = {"seeds": seeds, "figures": hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()}
    with locked(root):
        content = read_object(root / file, "give another --out")
        looks = [{"look": place, **look} for place, look in enumerate(content.get("looks", []), 1)]
        for look in looks:
            if new.items() <= look.items():
                return int(look["look"])
        number = next_look([int(look["look"]) for look in looks], seeds=seeds, most_seeds=most_seeds)
        looks.append({"look": number, **new})
        write_atomically(root / file, json.dumps({**content, "looks": looks}, indent=1) + "\n")
    return number


def next_look(before: Sequence[int], *, seeds: int, most_seeds: int) -> int:
    """The number of a look at figures that were not looked at; see `look_number`."""
    return max(max(before, default=0) + 1, seeds if seeds < most_seeds else 1)


def _change(begun: Mapping[str, Any], now: Mapping[str, Any], what: str) -> str | None:
    """The first thing that is not as it was, and the way out; what was asked for comes first, the rest follows it."""
    back = f"a {what} goes on as it was begun: change that back, or give another --out"
    for section in ("asked", "recipes", "files"):
        for key, old, new in differences(begun.get(section, {}), now[section]):
            if section == "files":
                change = "is new" if old is None else "is gone" if new is None else "has changed"
                return f"that was begun with other files: {key} {change}; {back}"
            if old is None and section == "recipes" and key.endswith("masking.budget"):
                return (
                    f"that was begun by an earlier version, whose masks fill a budget of tokens ({key} = 'tokens'), "
                    f"but now it is {new!r}, and runs of both are not alike; give another --out"
                )
            return f"with {'recipe ' if section == 'recipes' else ''}{key} = {old!r}, but now it is {new!r}; {back}"
    return None


def tokenizer_of(recipe: Recipe) -> TokenizerSettings:
    """What text is tokenized with for a recipe: a checkpoint brings its own tokenizer."""
    return recipe.tokenizer if recipe.start is None else TokenizerSettings(path=recipe.start.checkpoint)


def common_data(paths: tuple[str, ...], root: Path, recipe: Recipe, reporter: Reporter) -> tuple[str, ...]:
    """The prepared data of all runs: as given, or made in the folder once, while other processes wait.

    Args:
        paths: Of the text, or a prepared folder.
        root: The folder of the runs.
        recipe: Says how text is prepared, for all.
        reporter: Told of the progress.

    Raises:
        UnmaskError: As `unmask.tokens.prepare.prepare`.
    """
    if is_prepared(paths):
        return paths
    with locked(root):
        prepare(
            paths,
            root / "data",
            corpus=recipe.corpus,
            tokenizer=tokenizer_of(recipe),
            annotation=recipe.annotation,
            resume=True,
            notify=reporter.stage,
            note=reporter.note,
        )
    return (str(root / "data"),)
