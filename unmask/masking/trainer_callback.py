"""The callback of transformers' `Trainer` that sets a collator's epoch. Imported only where it is used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset

from unmask.core.errors import SettingsError

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise SettingsError("the collator's callback needs transformers: pip install 'unmask[transformers]'") from error

log = logging.getLogger("unmask")


class EpochCallback(TrainerCallback):
    """Tells a collator each epoch before its first batch is made, and looks at what is evaluated.

    Epochs are counted here: `state.epoch` is a share of an epoch whose length `Trainer` does not always know. It is
    asked once, where a resumed training begins.

    Batches of an evaluation are counted like those of training where the same process makes them. So the count is noted
    as a step begins and ends, when every batch so far is of training, and an evaluation's end brings it back. Where
    masks are `static`, no evaluation moves with them.
    """

    def __init__(self, set_epoch: Callable[..., None], clock: Any, *, static: bool) -> None:
        self._set_epoch = set_epoch
        self._clock = clock
        self._static = static
        self._batches: int | None = None
        self._epoch: int | None = None
        self._said = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._epoch = self._batches = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batches = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tells the collator the epoch; progress is steps done of all steps, before the first batch that is made."""
        done = state.global_step
        if self._epoch is None:
            self._epoch = int((state.epoch or 0.0) + 1e-6)
            # A training that goes on makes the batches of a stream again and skips them; the collator counts these once
            # more. Of rows by number, only their numbers are skipped.
            loader = kwargs.get("train_dataloader")
            if not args.ignore_data_skip and isinstance(getattr(loader, "dataset", None), IterableDataset):
                try:
                    steps = -(-len(loader) // args.gradient_accumulation_steps)  # type: ignore[arg-type]
                except TypeError:  # a stream without a length is one epoch of all steps
                    steps = state.max_steps
                done -= int(state.global_step % max(1, steps))
        else:
            self._epoch += 1
        batches = max(1, state.max_steps) * args.gradient_accumulation_steps
        progress = min(1.0, done / max(1, state.max_steps))
        self._set_epoch(self._epoch, progress=progress, progress_a_batch=1.0 / batches)
        self._batches = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notes how many batches of training there were; some are made before their step."""
        self._batches = self._clock.batches

    on_substep_end = on_step_end = on_step_begin

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forgets the batches of an evaluation."""
        if self._batches is not None:
            self._clock.batches = self._batches

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self.on_evaluate(args, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Says once where rows of an evaluation have no fixed masks."""
        dataset = getattr(kwargs.get("eval_dataloader"), "dataset", None)
        if self._said or dataset is None or getattr(dataset, "has_fixed_masks", False) or self._static:
            return
        self._said = True
        log.warning(
            "the masks of this evaluation change from epoch to epoch, and its loss with them: give the Trainer "
            "eval_dataset=collator.fixed(eval_dataset)"
        )
