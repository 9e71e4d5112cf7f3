"""The folder of a fine-tuned model.

model/           the best model: a transformers folder, with its tokenizer
settings.json    task, files and settings; a folder with it holds a result
metrics.jsonl    a line at every evaluation
summary.json     figures of the result, written last
report.html      all of it for the eye
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from unmask.errors import RunError
from unmask.files import write_atomically


class ResultFolder:
    """Paths within the folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"
        self.settings = root / "settings.json"
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.report = root / "report.html"

    def check(self, *, overwrite: bool, inputs: list[Path]) -> None:
        """Whether a result may be written here. Nothing is touched.

        Raises:
            RunError: It is a file, holds a result that is not to be overwritten or other files, or what is read lies
                in it.
        """
        if self.root.exists() and not self.root.is_dir():
            raise RunError(f"{self.root} is a file; --out takes a folder")
        names = {path.name for path in self.root.iterdir()} if self.root.is_dir() else set()
        ours = {path.name for path in vars(self).values()}
        if self.settings.is_file() and not overwrite:
            raise RunError(f"{self.root} already holds a result: replace it with --overwrite, or give another --out")
        if not self.settings.is_file() and names:
            raise RunError(
                f"{self.root} holds other files ({', '.join(sorted(names)[:3])}); give a new or empty folder"
            )
        for path in inputs:
            resolved = path.resolve()
            if resolved.is_relative_to(self.root.resolve()) and resolved.relative_to(self.root.resolve()).parts[:1] in {
                (name,) for name in ours
            }:
                raise RunError(f"{path} lies in {self.root}, which --overwrite would remove; give another --out")

    def begin(self, content: dict[str, Any]) -> None:
        """Removes the result that is there, if any, and makes the folder one that holds a result.

        Raises:
            RunError: A file cannot be removed or made.
        """
        try:
            shutil.rmtree(self.model, ignore_errors=False) if self.model.is_dir() else None
            for path in (self.summary, self.report, self.metrics, self.settings):
                path.unlink(missing_ok=True)
            self.root.mkdir(parents=True, exist_ok=True)
            write_atomically(self.settings, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise RunError(f"{self.root}: the folder cannot be made ready ({error})") from error

    def discard(self) -> None:
        """Takes the mark of a result away where nothing came of it, so that the next try is not told of one."""
        if not self.summary.is_file():
            self.metrics.unlink(missing_ok=True)
            self.settings.unlink(missing_ok=True)
