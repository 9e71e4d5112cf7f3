"""Folders of many runs: what they were begun for, and the text that all of them are trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock

from unmask.corpus.settings import CorpusSettings
from unmask.errors import RunError
from unmask.files import write_atomically
from unmask.pretraining.data import is_prepared
from unmask.pretraining.reporter import Reporter
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
        content: What it says.
        what: The kind of folder, in words.

    Raises:
        RunError: The folder holds something else.
    """
    plain = json.loads(json.dumps(content))
    if root.exists() and not root.is_dir():
        raise RunError(f"{root} is a file; give another --out")
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        if (root / file).is_file():
            if json.loads((root / file).read_text(encoding="utf-8")) != plain:
                raise RunError(f"{root} holds a {what} of other recipes, data or budget; give another --out")
            return
        if any(path.name != _LOCK for path in root.iterdir()):
            raise RunError(f"{root} is not empty and holds no {what}; give another --out")
        write_atomically(root / file, json.dumps(plain, indent=1) + "\n")


def common_data(paths: tuple[str, ...], root: Path, reporter: Reporter) -> tuple[str, ...]:
    """The prepared data of all runs: as given, or made in the folder once, while other processes wait.

    Raises:
        UnmaskError: As `unmask.tokens.prepare.prepare`.
    """
    if is_prepared(paths):
        return paths
    with locked(root):
        prepare(
            paths,
            root / "data",
            corpus=CorpusSettings(),
            tokenizer=TokenizerSettings(),
            resume=True,
            notify=reporter.stage,
            note=reporter.note,
        )
    return (str(root / "data"),)
