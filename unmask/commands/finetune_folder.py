"""The folder of a fine-tuned model.

model/           the best model: a transformers folder, with its tokenizer and its card
model.N/         that of the N-th seed, until runs.jsonl says that it is over and the best; a kill may leave it
settings.json    task, files and settings; a folder with it holds a result
runs.jsonl       a line for each seed whose training is over: its figures and evaluations, with their checksum
metrics.jsonl    a line at every evaluation
checkpoints/     the latest state of the seed that is trained
summary.json     figures of the result, written last
report.html      all of it for the eye
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.core.errors import (
    RunError,
    parse_json,
    sealed,
    unsealed,
)
from unmask.core.files import ClaimedFolder, write_atomically
from unmask.model.card_head import CardSettings, with_named

CHECKPOINTS = "checkpoints"
# What may have changed when a fine-tuning goes on: the number of seeds, what the card says, and where files lie whose
# content is the same.
MAY_DIFFER = {"finetune.seeds", "finetune.card", "model", "train", "validation", "test"}


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
    """Paths within the folder, and what is done with them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"
        self.settings = root / "settings.json"
        self.runs = root / "runs.jsonl"
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        self.checkpoints = root / CHECKPOINTS
        self.claimed = ClaimedFolder(root=root, marker=self.settings.name, what="a result")

    def go_on(self, content: dict[str, Any]) -> list[FinishedRun]:
        """The runs that are over, of a result that was begun with the same settings and the same content of the files.

        The number of seeds may differ, what the card says, and where the files lie.

        Raises:
            RunError: The settings or files are others, there are fewer seeds than runs that are over, or a file is
                damaged.
        """
        begun = self._begun()
        try:
            lines = self.runs.read_text(encoding="utf-8").splitlines() if self.runs.is_file() else []
            finished = [FinishedRun(**unsealed(parse_json(line))) for line in lines]
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from error
        self.claimed.check_same(begun, json.loads(json.dumps(content)), but_for=MAY_DIFFER)
        if len(finished) > (seeds := content["finetune"]["seeds"]):
            raise RunError(
                f"{self.root} holds {len(finished)} seeds whose training is over, but finetune.seeds is {seeds}; ask "
                "for as many at least, or replace the result with --overwrite"
            )
        self.claimed.claim(json.dumps(content, indent=2) + "\n")
        self._settle(finished)
        return finished

    def card(self, named: CardSettings) -> CardSettings:
        """What the card of the result that is here says, where this is asked for now.

        Raises:
            RunError: The result is damaged.
            SettingsError: What was asked for then and now contradicts itself.
        """
        settings = self._begun().get("finetune")
        if not isinstance(settings, dict) or not isinstance(settings.get("card", {}), dict):
            raise self._damaged(ValueError(f"{self.settings.name} does not say how it was begun"))
        return with_named(settings.get("card", {}), named, where=f"{self.settings}: card")

    def _begun(self) -> dict[str, Any]:
        try:
            begun = parse_json(self.settings.read_text(encoding="utf-8"))
            if not isinstance(begun, dict):
                raise ValueError(f"{self.settings.name} is no JSON object")
        except ValueError as error:
            raise self._damaged(error) from error
        return begun

    def _damaged(self, error: Exception) -> RunError:
        return RunError(f"{self.root}: the result is damaged ({error}); replace it with --overwrite")

    def waiting(self, number: int) -> Path:
        """Path of the model of the N-th seed, if it is the best so far."""
        return self.root / f"model.{number}"

    def keep(self, finished: list[FinishedRun]) -> None:
        """Writes down the runs that are over; the last one's model takes the best one's place, where it is better."""
        write_atomically(self.runs, "".join(json.dumps(sealed(asdict(run))) + "\n" for run in finished))
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
        if self.claimed.is_claimed:
            self._remove_waiting()
            files = (self.model, self.runs, self.metrics, self.summary, self.report, self.checkpoints)
            self.claimed.clear(path.name for path in files)
        self.claimed.make()
        self.claimed.claim(json.dumps(content, indent=2) + "\n")
        return []

    def discard(self) -> None:
        """Takes the mark of a result away where nothing came of it, so that the next try is not told of one."""
        if not self.runs.is_file():
            self.settings.unlink(missing_ok=True)
