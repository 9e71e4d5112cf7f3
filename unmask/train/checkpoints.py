"""Checkpoints: a training's state on the disk.

    checkpoints/step-00000200/model.safetensors      weights, named as in the model
                              optimizer.safetensors  momentum and running means
                              scores.safetensors     if masking follows scores of the model
                              best.safetensors       the best weights so far, if the training keeps them
                              state.json             step, cursor, counters, checksums of the others and of itself

A kill at any moment loses no older checkpoint. A checkpoint is written under another name, forced to the disk and
renamed, so a folder with the right name is complete. Files are checked when they are read. A thread writes while
training continues. All processes have the same state, and rank 0 writes it; any number of processes can resume from it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unmask.core.compiled import keep_to_quota
from unmask.core.errors import DivergedError, RunError, parse_json, unsealed
from unmask.core.files import file_sha256, whole_folder, write_object, writing
from unmask.core.interruption import Interrupted, Interruption
from unmask.core.results import Reporter
from unmask.data.rows import Cursor
from unmask.model.encoder import MaskedLM, compile_model, has_compiled_blocks
from unmask.train.callbacks import Callback, MetricsFile, ShowProgress, StepReport, StopAtSignal, Trainer
from unmask.train.distributed import on_every_rank, on_rank_zero
from unmask.train.hardware import COMPILING, choose_device, choose_dtype, must_compile, why_not_compiled
from unmask.train.optimizer import load_state_tensors, state_tensors
from unmask.train.settings import CheckpointSettings, TrainingSettings
from unmask.train.step import Best, TrainState

_MODEL, _OPTIMIZER, _SCORES = "model.safetensors", "optimizer.safetensors", "scores.safetensors"
_BEST, _STATE = "best.safetensors", "state.json"
# Stored unchanged
_COUNTERS = ("step", "tokens_seen", "seconds", "micro_tokens", "ran_out", "history", "recent_losses")
CHECKPOINT_SECONDS = 120.0

Tensors = dict[str, dict[str, Tensor]]
"""By file and name."""


def checkpoint_path(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def list_checkpoints(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if (path / _STATE).is_file())


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; tied ones once."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _snapshot(state: TrainState, fingerprint: str) -> tuple[Tensors, dict[str, Any]]:
    """A state as tensors, not copied, and the content of `state.json`."""
    tensors = {_MODEL: _weights(state.model), _OPTIMIZER: state_tensors(state.optimizer, state.model)}
    if state.board is not None:
        tensors[_SCORES] = state.board.state()
    if state.best_weights is not None:
        tensors[_BEST] = state.best_weights
    content = {name: copy.copy(getattr(state, name)) for name in _COUNTERS} | {
        "fingerprint": fingerprint,
        "cursor": dataclasses.asdict(state.cursor),
        "best": None if state.best is None else state.best._asdict(),
        "compute_dtype": str(state.model.encoder.compute_dtype).removeprefix("torch."),
    }
    return tensors, content


def _write(root: Path, tensors: Tensors, content: dict[str, Any], *, keep: int) -> Path:
    """Writes a checkpoint, then removes all but the latest ones and the best. On failure older ones are untouched."""
    target = checkpoint_path(root, content["step"])
    if (target / _STATE).is_file():  # written by the same run at the same step, so it is equal
        return target
    # A folder without state.json is left from an interrupted removal.
    with writing(target, SafetensorError), whole_folder(target, root / "partial") as partial:
        for name, by_name in tensors.items():
            save_file({key: tensor.contiguous() for key, tensor in by_name.items()}, partial / name)
        files = {path.name: file_sha256(path) for path in sorted(partial.iterdir())}
        write_object(partial / _STATE, content | {"files": files})
    stay = list_checkpoints(root)[-keep:]
    if content["best"] is not None:
        stay.append(checkpoint_path(root, content["best"]["step"]))
    for old in [path for path in root.glob("step-*") if path.is_dir() and path not in stay]:
        (old / _STATE).unlink(missing_ok=True)  # first, since without it a folder is not a checkpoint
        shutil.rmtree(old, ignore_errors=True)
    return target


def remove_checkpoints(root: Path, fingerprints: Collection[str]) -> None:
    """Removes checkpoints of finished trainings. Damaged ones stay, so that `load_checkpoint` reports them."""
    for folder in list_checkpoints(root):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if parse_json(folder / _STATE)["fingerprint"] in fingerprints:
                shutil.rmtree(folder)


class Checkpoints(Callback):
    """Saves the state in a thread: at intervals, if a callback requests it, and at the end.

    `fingerprint` identifies the data and recipe that checkpoints belong to. `metrics` is forced to the disk before a
    checkpoint is written.
    """

    def __init__(
        self, root: Path, settings: CheckpointSettings, *, fingerprint: str, metrics: MetricsFile | None = None
    ) -> None:
        self._root, self._settings, self._fingerprint, self._metrics = root, settings, fingerprint, metrics
        self._thread = ThreadPoolExecutor(1, "unmask-checkpoint")
        self._writing: Future[Path] | None = None
        self._step: int | None = None
        self._saved_seconds: float | None = None

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Saves if it is time. Raises a RunError if the previous one could not be written; older ones are untouched."""
        if self._writing is not None and self._writing.done():
            self._wait(trainer)
        if self._saved_seconds is None:
            self._saved_seconds = report.seconds
        every = self._settings.every_steps
        elapsed = report.seconds - self._saved_seconds
        if trainer.save_requested or (elapsed >= CHECKPOINT_SECONDS if every is None else report.step % every == 0):
            self.save(trainer)
            self._saved_seconds = report.seconds

    def save(self, trainer: Trainer) -> None:
        """Starts writing the current state, unless it is already saved."""
        trainer.read_figures()  # raises if a step diverged, which must not be saved
        self._wait(trainer)
        if self._step != trainer.state.step:
            if self._metrics is not None:
                self._metrics.sync()
            tensors, content = _snapshot(trainer.state, self._fingerprint)
            copies = {file: {n: t.to("cpu", copy=True) for n, t in named.items()} for file, named in tensors.items()}
            self._writing = self._thread.submit(_write, self._root, copies, content, keep=self._settings.keep)
            self._step = trainer.state.step
            if self._metrics is not None:
                self._metrics.pass_on(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Saves the last state if the training did not fail, and ends the thread after its last checkpoint."""
        try:
            if trainer.error is None:
                self.save(trainer)
            if trainer.error is None or isinstance(trainer.error, Interrupted):
                self._wait(trainer)
        finally:
            self._thread.shutdown()

    def _wait(self, trainer: Trainer) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            folder = writing.result()
            for callback in trainer.callbacks:
                callback.on_checkpoint(trainer, folder)


def load_checkpoint(folder: Path, state: TrainState, *, fingerprint: str) -> None:
    """Loads a checkpoint into a new state. Everything is read before anything is changed."""
    try:
        try:
            content = unsealed(parse_json(folder / _STATE))
        except ValueError as error:
            raise ValueError(f"{_STATE}: {error}") from error
        for name, sha256 in content["files"].items():
            if file_sha256(folder / name) != sha256:
                raise ValueError(f"{name} does not match its checksum")
        if content["fingerprint"] != fingerprint:
            what = "this checkpoint belongs to other data or another recipe"
            raise RunError(f"{folder}: {what}; start over", options=("overwrite",))
        counters: dict[str, Any] = {name: content[name] for name in _COUNTERS}
        counters["cursor"] = Cursor.from_plain(content["cursor"])
        counters["best"] = content["best"] and Best(int(content["best"]["step"]), float(content["best"]["loss"]))
        counters["best_weights"] = load_file(folder / _BEST) if _BEST in content["files"] else None
        weights, optimizer = load_file(folder / _MODEL), load_file(folder / _OPTIMIZER)
        scores = None if state.board is None else load_file(folder / _SCORES)
        if weights.keys() != _weights(state.model).keys():
            raise ValueError("its weights belong to another model")
        state.model.load_state_dict(weights, strict=False)
        load_state_tensors(state.optimizer, state.model, optimizer)
        if state.board is not None and scores is not None:
            state.board.load_state(scores)
    except RunError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, RuntimeError, ValueError, SafetensorError) as error:
        others = [path.name for path in list_checkpoints(folder.parent) if path != folder]
        way_out = f"to resume from {others[-1]}" if others else "to start over, since there is no other one"
        raise RunError(f"{folder}: damaged checkpoint ({error}); remove this folder {way_out}") from error
    for name, value in counters.items():
        setattr(state, name, value)


# ----------------------------------------
# Parts that all trainings share.


def place_model(model: Any, settings: TrainingSettings, checkpoints: Path | None = None) -> str | None:
    """Moves a model to its device and applies the settings. Returns why its blocks are not compiled, or None if they
    are. A resumed run keeps the compute type that it began with, also on another machine.
    """
    device = choose_device()
    keep_to_quota()
    model.to(device)
    model.encoder.compute_dtype = choose_dtype(settings.precision, device)
    with contextlib.suppress(OSError, IndexError, KeyError, TypeError, AttributeError, ValueError):
        # If there is no checkpoint, keep the chosen type; if it is damaged, `load_checkpoint` reports it.
        content = parse_json((list_checkpoints(checkpoints) if checkpoints else [])[-1] / _STATE)
        if isinstance(dtype := getattr(torch, content["compute_dtype"]), torch.dtype):
            model.encoder.compute_dtype = dtype
    model.encoder.gradient_checkpointing = settings.gradient_checkpointing
    if not isinstance(model, MaskedLM):
        return "only networks of this package are compiled"
    reason = why_not_compiled(settings.compile_blocks, device, minutes=settings.minutes, steps=settings.known_steps)
    if reason is None:
        compile_model(model)
    return reason


def fit(  # noqa: PLR0913  (shared by the trainings of all commands)
    trainer: Trainer,
    root: Path,
    watch: Callback,
    interruption: Interruption,
    reporter: Reporter,
    settings: CheckpointSettings,
    callbacks: Sequence[Callback] = (),
    *,
    begin: Callable[[], None] = lambda: None,
    with_metrics: bool = True,
    what: str = "training",
    section: str = "training",
    may_end_early: bool = False,
) -> MetricsFile | None:
    """Trains from the last checkpoint in a run's folder `root`, to which rank 0 writes. Errors are the trainer's.

    `callbacks` are the user's. `watch` is called after them and before checkpoints, which it may request. `begin` is
    called before the first step, after the checkpoint is loaded. `section` has the setting of the learning rate. Rank 0
    gets the writer of metrics.jsonl, if any.
    """
    state, group, checkpoints = trainer.state, trainer.group, root / "checkpoints"
    if names := on_rank_zero(group, lambda: [path.name for path in list_checkpoints(checkpoints)]):
        name, fingerprint = names[-1], trainer.fingerprint
        on_every_rank(group, lambda: load_checkpoint(checkpoints / name, state, fingerprint=fingerprint))
        reporter.note(f"resuming from step {state.step:,} ({name})")
    metrics = None
    if group.is_main:
        if with_metrics:
            metrics = MetricsFile(root / "metrics.jsonl", step=state.step)
            trainer.callbacks.append(metrics)
        trainer.callbacks.append(ShowProgress(reporter, what, may_end_early=may_end_early))
    trainer.callbacks += [*callbacks, watch, StopAtSignal(interruption)]
    if group.is_main:
        fingerprint = trainer.fingerprint
        trainer.callbacks.append(Checkpoints(checkpoints, settings, fingerprint=fingerprint, metrics=metrics))
    if isinstance(trainer.model, MaskedLM) and must_compile(choose_device()):
        reporter.note(COMPILING)
    if has_compiled_blocks(trainer.model):
        reporter.note("the first steps compile the model's blocks, which takes up to a minute")
    begin()
    try:
        with interruption.patience():
            trainer.fit()
    except DivergedError as error:
        complete = list_checkpoints(checkpoints)
        last = f"the latest checkpoint is {complete[-1]}" if complete else "there is no checkpoint yet"
        rate = f"{section}.learning_rate={trainer.settings.learning_rate / 3:.2g}"
        way_out, options = f"Start over with a lower rate, such as {rate}", ["set", "overwrite"]
        if (recipe := root / "recipe.toml").is_file():  # it has the size that was chosen
            way_out = f"Start over in another folder with {recipe} as the recipe and a lower rate, such as {rate}"
            options = ["set", "recipe", "out"]
        raise DivergedError(f"{error}; {last}. {way_out}", options=options) from error
    finally:  # frees the memory of the training when its caller returns, not at some later garbage collection
        trainer.callbacks.clear()
        trainer.error = None
    return metrics
