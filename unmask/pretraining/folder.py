"""The folder of a run, and what may be done to one that is already there.

recipe.toml      every setting, written first: a folder with it holds a run
sources.json     the files that the text comes from
data/            prepared shards, unless the run was given a prepared folder
checkpoints/     the latest states
metrics.jsonl    a line every few steps and at every evaluation
predictions.json what the model made of some held-out lines before training, and after it
model/           the result: a transformers folder
summary.json     figures of the result, written last
report.html      all of it for the eye
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import RunError

_OURS = ("recipe.toml", "sources.json", "metrics.jsonl", "predictions.json", "summary.json", "report.html")
_OUR_FOLDERS = ("data", "checkpoints", "model")


@dataclass(frozen=True)
class RunFolder:
    """Paths within a run's folder; see the module's docstring."""

    root: Path

    @property
    def recipe(self) -> Path:  # noqa: D102
        return self.root / "recipe.toml"

    @property
    def sources(self) -> Path:  # noqa: D102
        return self.root / "sources.json"

    @property
    def data(self) -> Path:  # noqa: D102
        return self.root / "data"

    @property
    def checkpoints(self) -> Path:  # noqa: D102
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:  # noqa: D102
        return self.root / "metrics.jsonl"

    @property
    def predictions(self) -> Path:  # noqa: D102
        return self.root / "predictions.json"

    @property
    def model(self) -> Path:  # noqa: D102
        return self.root / "model"

    @property
    def summary(self) -> Path:  # noqa: D102
        return self.root / "summary.json"

    @property
    def report(self) -> Path:  # noqa: D102
        return self.root / "report.html"

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.recipe.is_file()


def open_folder(root: Path, *, resume: bool, overwrite: bool) -> RunFolder:
    """Makes the folder ready. A run that is there is never overwritten unasked.

    Args:
        root: The folder; made where missing.
        resume: Go on with the run that is there, if any.
        overwrite: Remove the run that is there. Files that are not a run's stay.

    Raises:
        RunError: There is a run and neither was asked for, both were, or the folder holds other files.
    """
    folder = RunFolder(root)
    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if root.exists() and not root.is_dir():
        raise RunError(f"{root} is a file; --out takes a folder")
    if folder.holds_run and not resume and not overwrite:
        raise RunError(f"{root} already holds a run: go on with --resume, or start anew with --overwrite")
    if not folder.holds_run and root.is_dir():
        strangers = [path.name for path in root.iterdir() if path.name not in (*_OURS, *_OUR_FOLDERS)]
        if strangers:
            raise RunError(f"{root} holds other files ({', '.join(sorted(strangers)[:3])}); give a new or empty folder")
    if overwrite:
        clear_run(folder)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{root}: the folder cannot be made ({error.strerror})") from error
    return folder


def clear_run(folder: RunFolder) -> None:
    """Removes a run's files; others in its folder stay."""
    for name in _OURS:
        (folder.root / name).unlink(missing_ok=True)
    for name in _OUR_FOLDERS:
        shutil.rmtree(folder.root / name, ignore_errors=True)
