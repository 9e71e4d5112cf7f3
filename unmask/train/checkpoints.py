"""Everything that a training is, apart from its settings and its data, and its checkpoints.

Checkpoints hold all of this state, and are written so that a kill at any moment loses nothing older:

    checkpoints/step-00000200/model.safetensors      weights, named as in the encoder
                              optimizer.safetensors  momentum and running means; of several processes
                              optimizer-1-of-2.safetensors ...  each writes those of the parameters that it owns
                              scores.safetensors     where masking follows scores of the model
                              state.json             step, cursor, counters, checksums of the others and of itself

A checkpoint is written under another name, forced to the disk and renamed; a folder with the right name is whole. Its
files are checked when they are read: a bit that a disk has turned would go on into weights that nobody can explain.
What several processes have saved any number of them goes on from: tensors are whole, and found by their names.

Training goes on while a thread writes. Of several processes the first waits in its thread for the files of the others,
which stand beside the checkpoints until then, and puts them in.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unmask.core.errors import RunError, parse_json, sealed, unsealed
from unmask.core.files import file_sha256, sync_folder, whole_folder
from unmask.data.rows import Cursor
from unmask.model.encoder import MaskedLM, Trainable
from unmask.train.optimizer import Optimizer
from unmask.train.scores import ScoreBoard
from unmask.train.settings import TrainingSettings

# ----------------------------------------
# How far training has come: by steps, by tokens, or by the clock.


@dataclass(frozen=True)
class Spent:
    """What has been used so far, or will have been at some moment.

    Attributes:
        step: Steps made.
        tokens: Tokens of text trained on.
        seconds: Trained, evaluations and checkpoints included.
    """

    step: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Budget:
    """A number of steps, of tokens, or of seconds; exactly one is given.

    Attributes:
        steps: Optimizer steps.
        tokens: Tokens of text, repetitions included; the step that reaches it is the last.
        seconds: Of training, evaluations and checkpoints included.
    """

    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, settings: TrainingSettings) -> Budget:
        """The budget that the settings name."""
        return cls(settings.steps, settings.tokens, None if settings.minutes is None else settings.minutes * 60.0)

    def progress(self, spent: Spent) -> float:
        """Share of the budget that is used up, in [0, 1]."""
        if self.steps is not None:
            gone = spent.step / self.steps
        elif self.tokens is not None:
            gone = spent.tokens / self.tokens
        else:
            gone = spent.seconds / (self.seconds or 1.0)
        return min(gone, 1.0)


Model = TypeVar("Model", bound=Trainable)


@dataclass(frozen=True)
class Best:
    """The lowest held-out loss of a run so far, and the step after which it was measured."""

    step: int
    loss: float


@dataclass
class TrainableState(Generic[Model]):
    """What a checkpoint holds. There is no random generator in it: order and masks are functions of the cursor.

    Attributes:
        model: The weights.
        optimizer: Its momentum and running means.
        cursor: Where the next batch begins.
        step: Optimizer steps made.
        tokens_seen: Tokens of text trained on, repetitions included.
        seconds: Trained so far, also before interruptions.
        micro_tokens: Positions that are computed at once at most, where memory ran out or the settings say it.
        best: The lowest held-out loss so far.
        board: Scores that masking follows, where it follows any.
    """

    model: Model
    optimizer: Optimizer
    cursor: Cursor = field(default_factory=Cursor)
    step: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0
    micro_tokens: int | None = None
    best: Best | None = None
    board: ScoreBoard | None = None

    @property
    def spent(self) -> Spent:
        """What the training has used so far."""
        return Spent(self.step, self.tokens_seen, self.seconds)

    @property
    def module(self) -> nn.Module:
        """The model, as torch sees it."""
        return cast(nn.Module, self.model)

    def weights(self, *, kept: bool = True) -> dict[str, Tensor]:
        """All weights by name, whole; of several processes all ask together.

        Args:
            kept: Whether this process wants them.
        """
        if self.optimizer.sharding is not None:
            return self.optimizer.sharding.weights(torch.device("cpu"), kept=kept)
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    def set_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes back what `weights` gave.

        Raises:
            RuntimeError: They are another model's.
        """
        if self.optimizer.sharding is not None:
            self.optimizer.sharding.set_weights(weights)
        else:
            self.module.load_state_dict(weights)

    def whole_model(self) -> Model:
        """The model to look at: where its weights are shared out, a copy with all of them. All ask together."""
        sharding = self.optimizer.sharding
        return self.model if sharding is None else cast(Model, sharding.whole_model())

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Computes in this type from now on: a run that goes on elsewhere keeps the choice it began with."""
        self.model.encoder.compute_dtype = dtype
        if self.optimizer.muon is not None:
            self.optimizer.muon.dtype = dtype


TrainState = TrainableState[MaskedLM]


_MODEL, _OPTIMIZER, _SCORES = "model.safetensors", "optimizer.safetensors", "scores.safetensors"
_STATE = "state.json"
_PARTIAL = "partial"
_EVERY_SECONDS = 0.05  # a file of another process is looked for


@dataclass(frozen=True)
class Snapshot:
    """What one process puts into a checkpoint, apart from the training that goes on.

    Attributes:
        step: After which it was taken.
        files: Tensors by file and name; of another process than the first only those of the optimizer that it owns.
        content: What the state's file says.
        best: The lowest held-out loss by then.
        others: Files that other processes write.
        is_first: Whether this process makes the folder.
    """

    step: int
    files: dict[str, dict[str, Tensor]]
    content: dict[str, Any]
    best: Best | None
    others: tuple[str, ...]
    is_first: bool

    @classmethod
    def of(cls, state: TrainState, *, fingerprint: str, copied: bool) -> Snapshot:
        """Takes it; of several processes all take theirs together.

        Args:
            state: Of the training.
            fingerprint: Of the data and the recipe that it belongs to.
            copied: Whether the training goes on before it is written.
        """
        share = state.optimizer.group.share
        names = (
            [_OPTIMIZER]
            if share.world_size == 1
            else [f"optimizer-{n + 1}-of-{share.world_size}.safetensors" for n in range(share.world_size)]
        )
        files, weights = {names[share.rank]: state.optimizer.state()}, state.weights(kept=share.rank == 0)
        if share.rank == 0:
            files[_MODEL] = weights
            if state.board is not None:
                files[_SCORES] = state.board.state()
        if copied:
            files = {f: {n: t.to("cpu", copy=True) for n, t in tensors.items()} for f, tensors in files.items()}
        content: dict[str, Any] = {
            "fingerprint": fingerprint,
            "step": state.step,
            "tokens_seen": state.tokens_seen,
            "seconds": state.seconds,
            "cursor": dataclasses.asdict(state.cursor),
            "micro_tokens": state.micro_tokens,
            "best": None if state.best is None else dataclasses.asdict(state.best),
            "compute_dtype": str(state.model.encoder.compute_dtype).removeprefix("torch."),
        }
        others = tuple(name for name in names if name not in files)
        return cls(state.step, files, content, state.best, others if share.rank == 0 else (), share.rank == 0)


def save_checkpoint(root: Path, state: TrainState, *, fingerprint: str, keep: int) -> Path:
    """Saves the state of the only process at once; see `write_checkpoint`."""
    return write_checkpoint(root, Snapshot.of(state, fingerprint=fingerprint, copied=False), keep=keep)


def write_checkpoint(root: Path, snapshot: Snapshot, *, keep: int, gone: Callable[[], bool] = lambda: False) -> Path:
    """Writes a snapshot and removes all but the latest checkpoints and the best.

    Args:
        root: The folder of checkpoints.
        snapshot: Of this process. The first returns when the checkpoint is whole, others when their part is there.
        keep: How many checkpoints stay.
        gone: Whether files of other processes need not be waited for any more.

    Returns:
        The checkpoint's folder.

    Raises:
        RunError: It cannot be written; older checkpoints are untouched.
    """
    target = checkpoint_path(root, snapshot.step)
    if (target / _STATE).is_file():  # the same run at the same step: it holds the same
        return target
    try:
        if not snapshot.is_first:
            for name, tensors in snapshot.files.items():
                _save_tensors(tensors, root / f"{_PARTIAL}-{name}")
                os.replace(root / f"{_PARTIAL}-{name}", _beside(target, name))
            return target
        with whole_folder(target, root / _PARTIAL) as partial:  # one without a state: a removal that was broken off
            for name, tensors in snapshot.files.items():
                _save_tensors(tensors, partial / name)
            for name in snapshot.others:
                _wait_for(_beside(target, name), gone)
                os.replace(_beside(target, name), partial / name)
            files = {path.name: file_sha256(path) for path in sorted(partial.iterdir())}
            content = json.dumps(sealed(snapshot.content | {"files": files}), indent=1)
            (partial / _STATE).write_text(content + "\n", encoding="utf-8")
        sync_folder(root)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{target}: the checkpoint cannot be written ({reason}); older ones are untouched") from error
    kept = list_checkpoints(root)[-keep:]
    if snapshot.best is not None:
        kept.append(checkpoint_path(root, snapshot.best.step))
    for old in [path for path in root.glob("step-*") if path.is_dir() and path not in kept]:
        (old / _STATE).unlink(missing_ok=True)  # first: without it a folder is no checkpoint
        shutil.rmtree(old, ignore_errors=True)
    return target


def clear_parts(root: Path) -> None:
    """Removes what processes wrote for checkpoints that were never made; before any of them writes again."""
    for path in [*root.glob("step-*.safetensors"), *root.glob(f"{_PARTIAL}-*")]:
        path.unlink(missing_ok=True)


def _beside(target: Path, name: str) -> Path:
    """Where a file of another process stands until the first takes it."""
    return target.with_name(f"{target.name}-{name}")


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _wait_for(path: Path, gone: Callable[[], bool]) -> None:
    """Waits for a file of another process; the process that does not write it ends, and so does this one."""
    while not path.is_file():
        if gone():
            raise OSError(f"{path.name} of another process was not written")
        time.sleep(_EVERY_SECONDS)


class CheckpointWriter:
    """Writes checkpoints in a thread. As a context manager it ends with the last one whole, or not there.

    Args:
        root: The folder of checkpoints.
        fingerprint: Of the data and the recipe that they belong to.
        keep: How many stay.
    """

    def __init__(self, root: Path, *, fingerprint: str, keep: int) -> None:
        self._root, self._fingerprint, self._keep = root, fingerprint, keep
        self._thread = ThreadPoolExecutor(1, "unmask-checkpoint")
        self._writing: Future[Path] | None = None
        self._step: int | None = None
        self._gone = threading.Event()

    def save(self, state: TrainState) -> None:
        """Begins to write the state as it is now. A state that was saved already is not saved again.

        Raises:
            RunError: The one before could not be written; older ones are untouched.
        """
        self.wait()
        if self._step == state.step:
            return
        snapshot = Snapshot.of(state, fingerprint=self._fingerprint, copied=True)
        self._writing = self._thread.submit(
            write_checkpoint, self._root, snapshot, keep=self._keep, gone=self._gone.is_set
        )
        self._step = state.step

    def wait(self) -> None:
        """Waits until what was begun is whole.

        Raises:
            RunError: It could not be written; older ones are untouched.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def settle(self, seconds: float) -> None:
        """Waits until what was begun is whole or has failed, but no longer than so many seconds: where another process
        has gone, it may never be."""
        if self._writing is not None:
            futures.wait([self._writing], timeout=seconds)

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._gone.set()
        self._thread.shutdown()
        if kind is None:
            self.wait()


def checkpoint_path(root: Path, step: int) -> Path:
    """Where the checkpoint of a step stands, if there is one."""
    return root / f"step-{step:08d}"


def list_checkpoints(root: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(path for path in root.glob("step-*") if (path / _STATE).is_file())


def _whole_content(folder: Path) -> dict[str, Any]:
    """What the state says of a checkpoint whose files are as they were written; earlier versions have no checksums.

    Raises:
        ValueError: Something has changed since.
    """
    try:
        content = unsealed(parse_json((folder / _STATE).read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{_STATE}: {error}") from error
    for name, sha256 in content.get("files", {}).items():
        if file_sha256(folder / name) != sha256:
            raise ValueError(f"{name} does not fit its checksum")
    return content


def begun_dtype(root: Path) -> torch.dtype | None:
    """The type that a run with checkpoints computes in; None where there is none, or its state cannot be read."""
    try:
        content = parse_json((list_checkpoints(root)[-1] / _STATE).read_text(encoding="utf-8"))
        found = getattr(torch, content["compute_dtype"])
    except (OSError, IndexError, KeyError, TypeError, AttributeError, ValueError):  # `load_checkpoint` says why
        return None
    return found if isinstance(found, torch.dtype) else None


def load_checkpoint(folder: Path, state: TrainState, *, fingerprint: str) -> None:
    """Puts a checkpoint into a freshly made state.

    Raises:
        RunError: It is damaged, or belongs to other data or another recipe.
    """
    try:
        content = _whole_content(folder)
        if content["fingerprint"] != fingerprint:
            raise RunError(f"{folder}: this checkpoint belongs to other data or another recipe; use --overwrite")
        # All of it is read before anything is changed: a damaged checkpoint leaves the state as it was made.
        step, tokens_seen, seconds = int(content["step"]), int(content["tokens_seen"]), float(content["seconds"])
        micro_tokens = None if content["micro_tokens"] is None else int(content["micro_tokens"])
        cursor = Cursor.from_plain(content["cursor"])
        best = content["best"] and Best(int(content["best"]["step"]), float(content["best"]["loss"]))
        dtype = getattr(torch, content["compute_dtype"])
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"{content['compute_dtype']} is no type of numbers")
        weights = load_file(folder / _MODEL)
        optimizer: dict[str, Tensor] = {}
        for path in sorted(folder.glob("optimizer*.safetensors")):
            optimizer |= load_file(path)
        scores = None if state.board is None else load_file(folder / _SCORES)
        state.set_weights(weights)
        state.optimizer.load_state(optimizer)
        if state.board is not None and scores is not None:
            state.board.load_state(scores)
    except RunError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, RuntimeError, ValueError, SafetensorError) as error:
        before = [path.name for path in list_checkpoints(folder.parent) if path.name < folder.name]
        way_out = f"to go on from {before[-1]}" if before else "to begin anew, since there is none before it"
        raise RunError(f"{folder}: damaged checkpoint ({error}); remove this folder {way_out}") from error
    state.step, state.micro_tokens = step, micro_tokens
    state.tokens_seen, state.seconds = tokens_seen, seconds
    state.cursor, state.best = cursor, best
    state.set_dtype(dtype)
