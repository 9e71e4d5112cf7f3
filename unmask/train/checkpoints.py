"""What a training is apart from its settings and its data, and its checkpoints.

    checkpoints/step-00000200/model.safetensors      weights, named as in the model
                              optimizer.safetensors  momentum and running means
                              scores.safetensors     where masking follows scores of the model
                              best.safetensors       the best weights so far, where a training keeps them
                              state.json             step, cursor, counters, checksums of the others and of itself

A kill at any moment loses nothing older: a checkpoint is written under another name, forced to the disk and renamed, so
a folder with the right name is whole. Its files are checked when they are read. Training goes on while a thread writes.
Of several processes, all of which have the same state, the first writes; any number of them goes on.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unmask.core.errors import RunError, parse_json, sealed, unsealed
from unmask.core.files import file_sha256, sync_folder, whole_folder
from unmask.core.interruption import Interrupted
from unmask.data.rows import Cursor
from unmask.train.callbacks import Callback, StepReport, Trainer
from unmask.train.optimizer import load_state_tensors, state_tensors
from unmask.train.scores import ScoreBoard
from unmask.train.settings import CheckpointSettings, TrainingSettings


@dataclass(frozen=True)
class Spent:
    """What a training has used so far, or will have at some moment: steps, tokens of text, and seconds, of which
    evaluations and checkpoints are a part."""

    step: int
    tokens: int
    seconds: float


def progress_of(settings: TrainingSettings, spent: Spent) -> float:
    """The share of the budget (steps, tokens of text or minutes) that is used up, in [0, 1]."""
    if settings.steps is not None:
        gone = spent.step / settings.steps
    elif settings.tokens is not None:
        gone = spent.tokens / settings.tokens
    else:
        assert settings.minutes is not None, "one of the three is given"
        gone = spent.seconds / (settings.minutes * 60.0)
    return min(gone, 1.0)


@dataclass(frozen=True)
class Best:
    """The lowest held-out loss of a run so far, and the step after which it was measured."""

    step: int
    loss: float


@dataclass
class TrainState:
    """What a checkpoint holds. There is no random generator in it: order and masks are functions of the cursor.

    Attributes:
        model: An `nn.Module` as `unmask.model.encoder.Trainable` describes it.
        optimizer: Of its parameters.
        cursor: Where the next batch begins.
        step: Optimizer steps made.
        tokens_seen: Tokens of text trained on, repetitions included.
        seconds: Trained so far, also before interruptions.
        micro_tokens: Positions that are computed at once at most, where memory ran out or the settings say it.
        best: The lowest held-out loss so far.
        board: Scores that masking follows, where it follows any.
        history: Evaluations so far as JSON holds them, of a training that decides by them.
        recent_losses: Of the steps since the last one, of a training that reports their mean.
        best_weights: Weights to end with, where a training keeps them; on any device.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    cursor: Cursor = field(default_factory=Cursor)
    step: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0
    micro_tokens: int | None = None
    best: Best | None = None
    board: ScoreBoard | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    recent_losses: list[float] = field(default_factory=list)
    best_weights: dict[str, Tensor] | None = None

    @property
    def spent(self) -> Spent:
        """What the training has used so far."""
        return Spent(self.step, self.tokens_seen, self.seconds)


_MODEL, _OPTIMIZER, _SCORES = "model.safetensors", "optimizer.safetensors", "scores.safetensors"
_BEST, _STATE = "best.safetensors", "state.json"
_PARTIAL = "partial"


@dataclass(frozen=True)
class Snapshot:
    """A state apart from the training that goes on: tensors by file and name, and the content of `state.json`."""

    step: int
    files: dict[str, dict[str, Tensor]]
    content: dict[str, Any]

    @classmethod
    def of(cls, state: TrainState, *, fingerprint: str, copied: bool) -> Snapshot:
        """Takes it.

        Args:
            state: Of the training.
            fingerprint: Of the data and the recipe that it belongs to.
            copied: Whether the training goes on before it is written.
        """
        files = {
            _MODEL: _weights(state.model),
            _OPTIMIZER: state_tensors(state.optimizer, state.model),
            **({} if state.board is None else {_SCORES: state.board.state()}),
            **({} if state.best_weights is None else {_BEST: state.best_weights}),
        }
        if copied:
            files = {f: {n: t.to("cpu", copy=True) for n, t in tensors.items()} for f, tensors in files.items()}
        content = {
            "fingerprint": fingerprint,
            "step": state.step,
            "tokens_seen": state.tokens_seen,
            "seconds": state.seconds,
            "cursor": dataclasses.asdict(state.cursor),
            "micro_tokens": state.micro_tokens,
            "best": None if state.best is None else dataclasses.asdict(state.best),
            "history": list(state.history),
            "recent_losses": list(state.recent_losses),
            "compute_dtype": str(state.model.encoder.compute_dtype).removeprefix("torch."),
        }
        return cls(state.step, files, content)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, a tied one once."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def save_checkpoint(root: Path, state: TrainState, *, fingerprint: str, keep: int) -> Path:
    """Saves a state at once; see `write_checkpoint`."""
    return write_checkpoint(root, Snapshot.of(state, fingerprint=fingerprint, copied=False), keep=keep)


def write_checkpoint(root: Path, snapshot: Snapshot, *, keep: int) -> Path:
    """Writes a snapshot and removes all but the latest checkpoints and the best.

    Raises:
        RunError: It cannot be written; older checkpoints are untouched.
    """
    target = checkpoint_path(root, snapshot.step)
    if (target / _STATE).is_file():  # the same run at the same step: it holds the same
        return target
    try:
        with whole_folder(target, root / _PARTIAL) as partial:  # one without a state: a removal that was broken off
            for name, tensors in snapshot.files.items():
                save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, partial / name)
            files = {path.name: file_sha256(path) for path in sorted(partial.iterdir())}
            content = json.dumps(sealed(snapshot.content | {"files": files}), indent=1)
            (partial / _STATE).write_text(content + "\n", encoding="utf-8")
        sync_folder(root)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{target}: the checkpoint cannot be written ({reason}); older ones are untouched") from error
    stay = list_checkpoints(root)[-keep:]
    if snapshot.content["best"] is not None:
        stay.append(checkpoint_path(root, snapshot.content["best"]["step"]))
    for old in [path for path in root.glob("step-*") if path.is_dir() and path not in stay]:
        (old / _STATE).unlink(missing_ok=True)  # first: without it a folder is no checkpoint
        shutil.rmtree(old, ignore_errors=True)
    return target


CHECKPOINT_SECONDS = 120.0


class Checkpoints(Callback):
    """Saves the state in a thread: now and then, where a callback asks for it, and at the end.

    Args:
        root: The folder of checkpoints.
        fingerprint: Of the data and the recipe that they belong to.
        settings: How often, and how many stay.
        sync: Called before, to force to the disk what a checkpoint relies on.
    """

    def __init__(
        self, root: Path, settings: CheckpointSettings, *, fingerprint: str, sync: Callable[[], object] = lambda: None
    ) -> None:
        self._root, self._settings, self._fingerprint, self._sync = root, settings, fingerprint, sync
        self._thread = ThreadPoolExecutor(1, "unmask-checkpoint")
        self._writing: Future[Path] | None = None
        self._step: int | None = None
        self._saved_seconds: float | None = None

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        """Saves where it is time.

        Raises:
            RunError: The one before could not be written; older ones are untouched.
        """
        if self._writing is not None and self._writing.done():
            self._wait(trainer)
        if self._saved_seconds is None:
            self._saved_seconds = report.seconds
        every = self._settings.every_steps
        gone = report.seconds - self._saved_seconds
        if trainer.save_requested or (gone >= CHECKPOINT_SECONDS if every is None else report.step % every == 0):
            self.save(trainer)
            self._saved_seconds = report.seconds

    def save(self, trainer: Trainer) -> None:
        """Begins to write the state as it is now. A state that was saved already is not saved again."""
        self._wait(trainer)
        if self._step != trainer.state.step:
            self._sync()
            snapshot = Snapshot.of(trainer.state, fingerprint=self._fingerprint, copied=True)
            self._writing = self._thread.submit(write_checkpoint, self._root, snapshot, keep=self._settings.keep)
            self._step = trainer.state.step

    def on_end(self, trainer: Trainer) -> None:
        """Saves the last state where the training went well, and ends the thread when what was begun is whole."""
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


def checkpoint_path(root: Path, step: int) -> Path:
    """Path of the checkpoint of a step, if there is one."""
    return root / f"step-{step:08d}"


def last_checkpoint(root: Path) -> str | None:
    """Name of the latest whole checkpoint."""
    checkpoints = list_checkpoints(root)
    return checkpoints[-1].name if checkpoints else None


def list_checkpoints(root: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(path for path in root.glob("step-*") if (path / _STATE).is_file())


def begun_dtype(root: Path) -> torch.dtype | None:
    """The type that a run with checkpoints computes in; None where there is none, or its state cannot be read."""
    try:
        content = parse_json((list_checkpoints(root)[-1] / _STATE).read_text(encoding="utf-8"))
        dtype = getattr(torch, content["compute_dtype"])
    except (OSError, IndexError, KeyError, TypeError, AttributeError, ValueError):  # `load_checkpoint` says why
        return None
    return dtype if isinstance(dtype, torch.dtype) else None


def load_checkpoint(folder: Path, state: TrainState, *, fingerprint: str) -> None:
    """Puts a checkpoint into a freshly made state. All of it is read before anything is changed.

    Raises:
        RunError: It is damaged, or belongs to other data or another recipe.
    """
    try:
        try:
            content = unsealed(parse_json((folder / _STATE).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{_STATE}: {error}") from error
        for name, sha256 in content["files"].items():
            if file_sha256(folder / name) != sha256:
                raise ValueError(f"{name} does not fit its checksum")
        if content["fingerprint"] != fingerprint:
            raise RunError(f"{folder}: this checkpoint belongs to other data or another recipe; use --overwrite")
        step, tokens_seen, seconds = int(content["step"]), int(content["tokens_seen"]), float(content["seconds"])
        micro_tokens = None if content["micro_tokens"] is None else int(content["micro_tokens"])
        cursor, history = Cursor.from_plain(content["cursor"]), list(content["history"])
        recent_losses = list(map(float, content["recent_losses"]))
        if not isinstance(getattr(torch, content["compute_dtype"]), torch.dtype):
            raise TypeError(f"{content['compute_dtype']} is no type of numbers")
        best = content["best"] and Best(int(content["best"]["step"]), float(content["best"]["loss"]))
        weights, optimizer = load_file(folder / _MODEL), load_file(folder / _OPTIMIZER)
        best_weights = load_file(folder / _BEST) if _BEST in content["files"] else None
        scores = None if state.board is None else load_file(folder / _SCORES)
        if weights.keys() != _weights(state.model).keys():
            raise ValueError("its weights are those of another model")
        state.model.load_state_dict(weights, strict=False)
        load_state_tensors(state.optimizer, state.model, optimizer)
        if state.board is not None and scores is not None:
            state.board.load_state(scores)
    except RunError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, RuntimeError, ValueError, SafetensorError) as error:
        before = [path.name for path in list_checkpoints(folder.parent) if path.name < folder.name]
        way_out = f"to go on from {before[-1]}" if before else "to begin anew, since there is none before it"
        raise RunError(f"{folder}: damaged checkpoint ({error}); remove this folder {way_out}") from error
    state.step, state.tokens_seen, state.seconds, state.micro_tokens = step, tokens_seen, seconds, micro_tokens
    state.cursor, state.best, state.best_weights = cursor, best, best_weights
    state.history, state.recent_losses = history, recent_losses
