"""Folders of many runs: what they were begun for, and the text that all of them are trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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


def claim(root: Path, file: str, content: Mapping[str, Any], *, what: str) -> None:
    """Writes what a folder is for into it, or checks that it is for the same.

    Args:
        root: The folder; made where missing.
        file: Name of the file that says it.
        content: What it says: `asked` (what the user said), `recipes` (all their settings, by name) and `files` (the
            hash of each, by path). So a recipe or a text that was edited meanwhile is not the same.
        what: The kind of folder, in words.

    Raises:
        RunError: The folder holds something else; the text names the first thing that is not the same.
    """
    plain = json.loads(json.dumps(content))
    if root.exists() and not root.is_dir():
        raise RunError(f"{root} is a file; give another --out")
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        if (root / file).is_file():
            if (change := _change(read_object(root / file, "give another --out"), plain)) is not None:
                raise RunError(
                    f"{root} holds a {what} {change}; a {what} goes on as it was begun: change that back, or give "
                    "another --out"
                )
            return
        if any(path.name != _LOCK for path in root.iterdir()):
            raise RunError(f"{root} is not empty and holds no {what}; give another --out")
        write_atomically(root / file, json.dumps(plain, indent=1) + "\n")


def look_number(root: Path, file: str, figures: object, *, seeds: int) -> int:
    """Which look of a comparison this is; one that is new is written down beside what the folder is for.

    To see the same figures again is the same look, also where others came between.

    Args:
        root: The folder, claimed.
        file: Name of the file that says what it is for.
        figures: All that is judged, as JSON can say it.
        seeds: How many there are; for who reads the file.

    Returns:
        From 1 on.

    Raises:
        RunError: The file is damaged.
    """
    look = {"seeds": seeds, "figures": hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()}
    with locked(root):
        content = read_object(root / file, "give another --out")
        looks = content.get("looks", [])
        if look not in looks:
            looks.append(look)
            write_atomically(root / file, json.dumps({**content, "looks": looks}, indent=1) + "\n")
    return int(looks.index(look)) + 1


def _change(begun: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first thing that is not as it was, in words; what was asked for comes first, since the rest follows it."""
    for section in ("asked", "recipes", "files"):
        for key, old, new in differences(begun.get(section, {}), now[section]):
            if section == "files":
                change = "is new" if old is None else "is gone" if new is None else "has changed"
                return f"that was begun with other files: {key} {change}"
            if old is None and section == "recipes" and key.endswith("masking.budget"):
                return f"by an earlier version, whose masks fill a budget of tokens ({key} = 'tokens')"
            return f"with {'recipe ' if section == 'recipes' else ''}{key} = {old!r}, but now it is {new!r}"
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
