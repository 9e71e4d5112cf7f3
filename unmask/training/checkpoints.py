"""Everything that a training is, apart from its settings and its data, and its checkpoints.

Checkpoints hold all of this state, and are written so that a kill at any moment loses nothing older:

    checkpoints/step-00000200/model.safetensors      weights, named as in the encoder
                              optimizer.safetensors  momentum and running means
                              scores.safetensors     where masking follows scores of the model
                              state.json             step, cursor, counters, checksums of the others and of itself

A checkpoint is written under another name, forced to the disk and renamed; a folder with the right name is whole. Its
files are checked when they are read: a bit that a disk has turned would go on into weights that nobody can explain.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from unmask.errors import RunError
from unmask.files import file_sha256, sync_folder, whole_folder
from unmask.network.encoder import MaskedLM
from unmask.network.trainable import Trainable
from unmask.rows.stream import Cursor
from unmask.training.budget import Spent
from unmask.training.optimizer import Optimizer
from unmask.training.scores import ScoreBoard
from unmask.values import parse_json, sealed, unsealed

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

    def set_dtype(self, dtype: torch.dtype) -> None:
        """Computes in this type from now on: a run that goes on elsewhere keeps the choice it began with."""
        self.model.encoder.compute_dtype = dtype
        if self.optimizer.muon is not None:
            self.optimizer.muon.dtype = dtype


TrainState = TrainableState[MaskedLM]


_MODEL, _OPTIMIZER, _SCORES = "model.safetensors", "optimizer.safetensors", "scores.safetensors"
_STATE = "state.json"
_PARTIAL = "partial"


def save_checkpoint(root: Path, state: TrainState, *, fingerprint: str, keep: int) -> Path:
    """Saves the state and removes all but the latest checkpoints and the best.

    Args:
        root: The folder of checkpoints.
        state: What is saved.
        fingerprint: Of the data and the recipe that it belongs to.
        keep: How many checkpoints stay.

    Returns:
        The checkpoint's folder.

    Raises:
        RunError: It cannot be written; older checkpoints are untouched.
    """
    target = checkpoint_path(root, state.step)
    if (target / _STATE).is_file():  # the same run at the same step: it holds the same
        return target
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
    try:
        with whole_folder(target, root / _PARTIAL) as partial:  # one without a state: a removal that was broken off
            save_file({name: p.detach().contiguous() for name, p in state.model.named_parameters()}, partial / _MODEL)
            save_file(state.optimizer.state(), partial / _OPTIMIZER)
            if state.board is not None:
                save_file({name: t.contiguous() for name, t in state.board.state().items()}, partial / _SCORES)
            content["files"] = {path.name: file_sha256(path) for path in sorted(partial.iterdir())}
            (partial / _STATE).write_text(json.dumps(sealed(content), indent=1) + "\n", encoding="utf-8")
        sync_folder(root)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{target}: the checkpoint cannot be written ({reason}); older ones are untouched") from error
    kept = list_checkpoints(root)[-keep:]
    if state.best is not None:
        kept.append(checkpoint_path(root, state.best.step))
    for old in [path for path in root.glob("step-*") if path not in kept]:
        (old / _STATE).unlink(missing_ok=True)  # first: without it a folder is no checkpoint
        shutil.rmtree(old, ignore_errors=True)
    return target


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
        weights, optimizer = load_file(folder / _MODEL), load_file(folder / _OPTIMIZER)
        scores = None if state.board is None else load_file(folder / _SCORES)
        state.model.load_state_dict(weights)
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
