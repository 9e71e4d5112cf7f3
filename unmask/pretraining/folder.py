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

from pathlib import Path

from unmask.claimed import ClaimedFolder

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

        self.claimed = ClaimedFolder(root=root, marker=self.recipe.name, what="a run", ours=self._names())

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.claimed.is_claimed

    def clear(self, *, keep_data: bool = False) -> None:
        """Removes the run's files, the one that makes it a run last; others in its folder stay.

        Args:
            keep_data: Whether prepared shards, whole or in part, stay.

        Raises:
            RunError: A file cannot be removed.
        """
        self.claimed.clear(self._names() - ({self.data.name} if keep_data else set()))

    def _names(self) -> set[str]:
        return {path.name for path in vars(self).values() if isinstance(path, Path) and path != self.root}
