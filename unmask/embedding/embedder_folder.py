"""The folder of an embedding model's training.

settings.json            model, text and settings; a folder with it holds a training
given/, pipes/, ...      text that was no file
data/texts.safetensors   documents as tokens
negatives.safetensors    wrong answers that the model has found, where it was to look for them
checkpoints/             the latest states
metrics.jsonl            a line every few steps and at every evaluation
model/                   the result: a folder of sentence-transformers and of transformers
summary.json             figures of the result, written last
report.html              curves and figures for the eye
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unmask.claimed import ClaimedFolder
from unmask.errors import RunError
from unmask.files import read_object
from unmask.text.given import GIVEN
from unmask.text.pipes import PIPES, STDIN_FILE

START_ANEW = "start anew with --overwrite"
MAY_DIFFER = {"embedder.card", "model", "corpus_files", "pairs_file"}  # the last three may have moved


class EmbedderFolder:
    """Paths within the folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = root / "settings.json"
        self.data = root / "data"
        self.texts = self.data / "texts.safetensors"
        self.negatives = root / "negatives.safetensors"
        self.checkpoints = root / "checkpoints"
        self.metrics = root / "metrics.jsonl"
        self.model = root / "model"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        ours = {
            self.data.name, self.negatives.name, self.checkpoints.name, self.metrics.name, self.model.name,
            self.summary.name, self.report.name, GIVEN, PIPES, STDIN_FILE,
        }  # fmt: skip
        self._ours = ours
        self.claimed = ClaimedFolder(root=root, marker=self.settings.name, what="an embedder", ours=ours)

    def begin(self, content: dict[str, Any]) -> None:
        """Makes the folder one that holds a training.

        Raises:
            WriteError: It cannot be written.
        """
        self.claimed.claim(json.dumps(content, indent=1) + "\n")

    def clear(self) -> None:
        """Removes the training that is here.

        Raises:
            RunError: A file cannot be removed.
        """
        self.claimed.clear(self._ours)

    def check_same(self, content: dict[str, Any]) -> None:
        """Makes sure that the training that goes on is the one that was begun.

        Raises:
            RunError: It is another one, or what was written of it is damaged.
        """
        begun = read_object(self.settings, START_ANEW)
        self.claimed.check_same(begun, json.loads(json.dumps(content)), but_for=MAY_DIFFER)

    def read_summary(self) -> dict[str, Any]:
        """What a training that is over came to.

        Raises:
            RunError: It is damaged.
        """
        summary = read_object(self.summary, "take it away, and the model is measured again")
        if "model" not in summary:
            raise RunError(
                f"{self.summary}: damaged (it names no model); take it away, and the model is measured again"
            )
        return summary
