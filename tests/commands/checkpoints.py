"""Checkpoints in the form of released models, short trainings from them, and trainings that end otherwise."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import unmask
from unmask.core.errors import RunError
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import StepReport

SHORT = ("evaluation.times=1", "evaluation.final_max_tokens=1000000")


def further(
    text: Path, out: Path, checkpoint: Path, *, steps: int, settings: Sequence[str] = (), **options: Any
) -> unmask.Run:
    """A short training."""
    return unmask.pretrain(
        [text],
        out=out,
        from_=checkpoint,
        steps=steps,
        settings=("training.batch_tokens=512", "training.learning_rate=1e-3", *SHORT, *settings),
        **options,
    )


def released(model: MaskedLM, tokenizer: Tokenizer, folder: Path) -> Path:
    """A model's folder with its tokenizer."""
    save_model(model, folder)
    tokenizer.save(folder, max_length=model.config.max_position_embeddings)
    return folder


class Stopping(unmask.Callback):
    """Sends this process a signal after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
        if report.step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def frees_its_model(train: Callable[[unmask.Callback], object], *, fails: bool = False) -> bool:
    """Whether a training leaves no cycle to the garbage collector, which may run after the next training needs the
    memory."""
    models: list[Callable[[], object]] = []

    class Watching(unmask.Callback):
        def on_step(self, trainer: unmask.Trainer, report: StepReport) -> None:
            models.append(weakref.ref(trainer.model))
            if fails:
                raise RunError("as a test says")

    gc.disable()
    try:
        with suppress(RunError):
            train(Watching())
        return models[0]() is None
    finally:
        gc.enable()
