"""Our training for benchmarks: assembled from a recipe and prepared text, without a run's folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import unmask
from unmask.commands.masking_tables import masker_of
from unmask.commands.recipe import Recipe, new_model
from unmask.commands.run_data import PreparedData, stream_of
from unmask.data.reading import bare_suffix, open_bytes
from unmask.data.rows import RowStream
from unmask.masking.masker import Masker
from unmask.model.encoder import compile_model, initialise
from unmask.train.callbacks import StepReport
from unmask.train.hardware import choose_dtype, samples_softmax, why_not_compiled, works_on_its_own
from unmask.train.initialisation import begin_from_corpus
from unmask.train.settings import TrainingSettings
from unmask.train.step import TrainState
from unmask.train.trainer import Trainer


class Training(NamedTuple):
    """A training before its first step."""

    trainer: Trainer
    state: TrainState
    stream: RowStream
    masker: Masker
    settings: TrainingSettings

    def reports(self, clock: Callable[[], float] = time.monotonic) -> Iterator[StepReport]:
        self.trainer.clock = clock
        return self.trainer.steps()


def assemble(recipe: Recipe, data: PreparedData, device: torch.device) -> Training:
    settings = recipe.training
    model = new_model(recipe, data.tokenizer)
    initialise(model, seed=settings.seed, method=recipe.model.initialisation)
    if recipe.model.initialisation == "corpus":
        begin_from_corpus(model, data.train, data.frequencies, seed=settings.seed)
    model.to(device)
    model.encoder.compute_dtype = choose_dtype(settings.precision, device)
    if samples_softmax(settings, recipe.masking, device, data.tokenizer.vocab_size):
        model.head.sample_softmax(torch.from_numpy(data.frequencies))
    choice, minutes, steps = settings.compile_blocks, settings.minutes, settings.known_steps
    if why_not_compiled(choice, device, minutes=minutes, steps=steps) is None:
        compile_model(model)
    stream = stream_of(recipe, data, ahead=works_on_its_own(device))
    masker = masker_of(recipe, data.tokenizer, data.tables)
    trainer = Trainer(model, stream, settings, masker=masker)
    return Training(trainer, trainer.state, stream, masker, settings)


def prepare(texts: Sequence[Path], out: Path, vocab_size: int, **options: Any) -> None:
    """Prepares text with WordPiece."""
    unmask.prepare(list(texts), out=out, vocab_size=vocab_size, tokenizer_kind="wordpiece", **options)


def beginning(source: Path, name: str, megabytes: float, out: Path) -> Path:
    """Writes the first megabytes of a text to a file, cut at the last document end, or line end if there is none."""
    with open_bytes(source) as file:
        text = file.read(int(megabytes * 1e6) + 1)
    if len(text) > megabytes * 1e6:
        text = text[: text.rfind(b"\n\n") + 2] if b"\n\n" in text else text[: text.rfind(b"\n") + 1] or text
    path = out / f"{name}-{hashlib.sha256(text).hexdigest()[:8]}{bare_suffix(source)}"
    if not path.is_file():  # not rewritten, since a preparation identifies files by their modification time
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(text)
        partial.replace(path)
    return path
