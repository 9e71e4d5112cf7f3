"""The folder of a run, and what may be done to one that is already there.

recipe.toml      every setting; a folder with it holds a run
sources.json     the files that the text comes from
lexicon.safetensors  collocations of the training text, where masking needs them and no other lexicon was given
start/           where the training begins from a checkpoint: the model and tokenizer that it begins with
old/             held-out text of the checkpoint's own domain, as tokens, where there is any
before.json      what that model came to before the training, on the new and on the old text
data/            prepared shards, unless the run was given a prepared folder
checkpoints/     the latest states
metrics.jsonl    a line every few steps and at every evaluation
tensorboard/     the same for TensorBoard, where it is installed
predictions.json what the model made of some held-out lines before training, and after it
model/           the result: a transformers folder
summary.json     figures of the result, written last
report.html      all of it for the eye
"""

from __future__ import annotations

import shutil
from pathlib import Path

from unmask.errors import RunError

START_ANEW = "start anew with --overwrite"  # the way out where a file of a run is damaged


class RunFolder:
    """Paths within a run's folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipe = root / "recipe.toml"
        self.sources = root / "sources.json"
        self.stdin = root / "stdin.txt"
        self.start = root / "start"
        self.old = root / "old"
        self.before = root / "before.json"
        self.data = root / "data"
        self.lexicon = root / "lexicon.safetensors"
        self.checkpoints = root / "checkpoints"
        self.metrics = root / "metrics.jsonl"
        self.tensorboard = root / "tensorboard"
        self.predictions = root / "predictions.json"
        self.model = root / "model"
        self.summary = root / "summary.json"
        self.report = root / "report.html"

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.recipe.is_file()

    def clear(self, *, keep_data: bool = False) -> None:
        """Removes the run's files, the one that makes it a run last; others in its folder stay.

        Args:
            keep_data: Whether prepared shards, whole or in part, stay.

        Raises:
            RunError: A file cannot be removed.
        """
        try:
            data = () if keep_data else (self.data,)
            folders = (self.start, self.old, self.checkpoints, self.model, self.tensorboard)
            for path in (*data, *folders, *self.root.glob("*.partial")):
                if path.is_dir():
                    shutil.rmtree(path)
            for path in (
                self.summary,
                self.report,
                self.predictions,
                self.before,
                self.metrics,
                self.lexicon,
                self.stdin,
                self.sources,
            ):
                path.unlink(missing_ok=True)
            for path in (*self.root.glob("*.partial"), self.recipe):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"{self.root}: the run that is there cannot be removed ({error})") from error

    def strangers(self) -> list[str]:
        """Names of files that are not a run's, among those of the folder, sorted."""
        ours = {path.name for path in vars(self).values()}
        names = (path.name for path in self.root.iterdir())
        return sorted(name for name in names if name not in ours and not name.endswith(".partial"))


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
    if not folder.holds_run and root.is_dir() and (strangers := folder.strangers()):
        raise RunError(f"{root} holds other files ({', '.join(strangers[:3])}); give a new or empty folder")
    if overwrite:
        folder.clear()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{root}: the folder cannot be made ({error.strerror})") from error
    return folder
