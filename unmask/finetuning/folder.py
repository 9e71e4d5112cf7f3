"""The folder of a fine-tuned model.

model/           the best model: a transformers folder, with its tokenizer
model.N/         that of the N-th seed, until runs.jsonl says that it is over and the best; a kill may leave it
settings.json    task, files and settings; a folder with it holds a result
runs.jsonl       a line for each seed whose training is over: its figures and evaluations
metrics.jsonl    a line at every evaluation
summary.json     figures of the result, written last
report.html      all of it for the eye
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.errors import RunError
from unmask.files import write_atomically

# What may have changed when a fine-tuning goes on: the number of seeds, and where files lie whose content is the same.
MAY_DIFFER = {"finetune.seeds", "model", "train", "validation", "test"}


@dataclass(frozen=True)
class FinishedRun:
    """What is kept of a seed whose training is over.

    Attributes:
        figures: As `summary.json` has them under `seeds`.
        history: Its evaluations, as `metrics.jsonl` has them.
        is_best: Whether it is better than those before it.
    """

    figures: dict[str, Any]
    history: list[dict[str, Any]]
    is_best: bool = False


class ResultFolder:
    """Paths within the folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"
        self.settings = root / "settings.json"
        self.runs = root / "runs.jsonl"
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.report = root / "report.html"

    def check(self, *, resume: bool = False, overwrite: bool = False, inputs: list[Path]) -> None:
        """Whether a result may be written here. Nothing is touched.

        Args:
            resume: Go on with the result that is there, if any.
            overwrite: Replace it.
            inputs: What is read.

        Raises:
            RunError: It is a file, holds a result and neither was asked for, both were, it holds other files, or what
                is read lies in it.
        """
        if resume and overwrite:
            raise RunError("--resume and --overwrite exclude each other")
        if self.root.exists() and not self.root.is_dir():
            raise RunError(f"{self.root} is a file; --out takes a folder")
        names = {path.name for path in self.root.iterdir()} if self.root.is_dir() else set()
        ours = {path.name for path in vars(self).values()}
        if self.settings.is_file() and not (resume or overwrite):
            raise RunError(
                f"{self.root} already holds a result: go on with --resume, replace it with --overwrite, or give "
                "another --out"
            )
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

    def go_on(self, content: dict[str, Any]) -> list[FinishedRun]:
        """The runs that are over, of a result that was begun with the same settings and the same content of the files.

        The number of seeds may differ, and where the files lie.

        Raises:
            RunError: The settings or files are others, there are fewer seeds than runs that are over, or a file is
                damaged.
        """
        try:
            begun = json.loads(self.settings.read_text(encoding="utf-8"))
            lines = self.runs.read_text(encoding="utf-8").splitlines() if self.runs.is_file() else []
            finished = [FinishedRun(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise RunError(f"{self.root}: the result is damaged ({error}); replace it with --overwrite") from error
        before, now = _flat(begun), _flat(content)
        for name in sorted((before.keys() | now.keys()) - MAY_DIFFER):
            if before.get(name) != now.get(name):
                raise RunError(
                    f"{self.root} was begun with {name} = {before.get(name)}, now it is {now.get(name)}: --resume goes "
                    "on with the same files and settings; replace the result with --overwrite, or give another --out"
                )
        if len(finished) > now["finetune.seeds"]:
            raise RunError(
                f"{self.root} holds {len(finished)} seeds whose training is over, but finetune.seeds is "
                f"{now['finetune.seeds']}; ask for as many at least, or replace the result with --overwrite"
            )
        write_atomically(self.settings, json.dumps(content, indent=2) + "\n")
        self._settle(finished)
        return finished

    def waiting(self, number: int) -> Path:
        """Where the model of the N-th seed is written, if it is the best so far."""
        return self.root / f"model.{number}"

    def keep(self, finished: list[FinishedRun]) -> None:
        """Writes down the runs that are over; the last one's model takes the best one's place, where it is better."""
        write_atomically(self.runs, "".join(json.dumps(asdict(run)) + "\n" for run in finished))
        evaluations = (line for run in finished for line in run.history)
        write_atomically(self.metrics, "".join(json.dumps(line) + "\n" for line in evaluations))
        self._settle(finished)

    def _settle(self, finished: list[FinishedRun]) -> None:
        """Brings the models to what the runs that are over say, also behind a kill."""
        last = self.waiting(len(finished))
        if finished and finished[-1].is_best and last.is_dir():
            shutil.rmtree(self.model, ignore_errors=True)
            last.rename(self.model)
        self._remove_waiting()

    def _remove_waiting(self) -> None:
        for left in self.root.glob("model.*"):
            shutil.rmtree(left)

    def begin(self, content: dict[str, Any]) -> list[FinishedRun]:
        """Removes the result that is there, if any, and makes the folder one that holds a result; no run is over yet.

        Raises:
            RunError: A file cannot be removed or made.
        """
        try:
            shutil.rmtree(self.model, ignore_errors=False) if self.model.is_dir() else None
            self._remove_waiting()
            for path in (self.summary, self.report, self.metrics, self.runs, self.settings):
                path.unlink(missing_ok=True)
            self.root.mkdir(parents=True, exist_ok=True)
            write_atomically(self.settings, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise RunError(f"{self.root}: the folder cannot be made ready ({error.strerror or error})") from error
        return []

    def discard(self) -> None:
        """Takes the mark of a result away where nothing came of it, so that the next try is not told of one."""
        if not self.runs.is_file():
            self.settings.unlink(missing_ok=True)


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one, with names such as `finetune.columns.text`."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
