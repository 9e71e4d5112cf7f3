"""A training from a checkpoint, measured before and after, on the new text and on the old, under the same masks."""

from __future__ import annotations

import json
import math
from typing import Any

from unmask.files import read_object, write_atomically
from unmask.measuring.held_out import HeldOut, HeldOutSet
from unmask.measuring.uncertainty import plain_interval
from unmask.pretraining.continued_data import open_old_text
from unmask.pretraining.continuing import FACTS
from unmask.pretraining.run_folder import START_ANEW, RunFolder
from unmask.pretraining.watch import Watch
from unmask.training.checkpoints import TrainState

_FIGURES = (
    "loss", "loss_stderr", "loss_interval", "accuracy", "perplexity", "bits_per_token_byte",
    "bits_per_token_byte_interval", "predicted_tokens", "documents",
)  # fmt: skip
_EARLIER = {"bits_per_byte": "bits_per_token_byte", "bits_per_byte_interval": "bits_per_token_byte_interval"}


class BeforeAfter:
    """The two evaluations. Where words were added, both are those of the model and tokenizer that have them.

    Args:
        folder: Of the run; `old/` is there.
        watch: Has the rows of the new text.
    """

    def __init__(self, folder: RunFolder, watch: Watch) -> None:
        self.folder, self.watch = folder, watch
        self.max_tokens = watch.settings.final_max_tokens

    def look_before(self, state: TrainState) -> None:
        """Evaluates the model that the training begins with, and keeps the figures."""
        self.watch.reporter.note("evaluating the model before the training")
        new = self.watch.held_out_set(self.max_tokens).evaluate(state.model)
        self._keep({"new": _plain(new), "old": self._on_old_text(state)})

    def summary(self, state: TrainState, new: HeldOut) -> dict[str, Any]:
        """What the summary says of it.

        Args:
            state: After the training.
            new: The result on the new text.

        Returns:
            `start`: what was done to the checkpoint; `domains`: by `new` and `old` the figures `before` and `after`;
            `old` is None where there is no old text.
        """
        before = {
            name: found and {_EARLIER.get(key, key): value for key, value in found.items()}  # of a run that goes on
            for name, found in read_object(self.folder.before, START_ANEW).items()
        }
        after = {"new": _plain(new), "old": self._on_old_text(state)}
        return {
            "start": read_object(self.folder.start / FACTS, START_ANEW),
            "domains": {
                name: None if before[name] is None else {"before": before[name], "after": after[name]}
                for name in ("new", "old")
            },
        }

    def _on_old_text(self, state: TrainState) -> dict[str, Any] | None:
        store = open_old_text(self.folder.old)
        if store is None:
            return None
        length = self.watch.training.sequence_length
        held_out = HeldOutSet(store, self.watch.data.tokenizer, length=length, max_tokens=self.max_tokens)
        return _plain(held_out.evaluate(state.model))

    def _keep(self, figures: dict[str, Any]) -> None:
        write_atomically(self.folder.before, json.dumps(figures, indent=1) + "\n")


def _plain(result: HeldOut) -> dict[str, Any]:
    """The figures as JSON takes them."""
    values = {name: getattr(result, name) for name in _FIGURES}
    values |= {name: plain_interval(values[name]) for name in ("loss_interval", "bits_per_token_byte_interval")}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}
