"""Our training, whole or with one thing taken away, for time_to_loss.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from assembly import Training, assemble
from numpy.typing import NDArray
from turns import Turn

from unmask.core.errors import DivergedError
from unmask.core.hashing import permutation
from unmask.data.packing import PackedRows
from unmask.data.rows import RowStream

OURS = "ours"
# Settings beside the recipe's; documents, loops and packing are none.
TAKEN_AWAY: dict[str, tuple[str, ...]] = {
    "no-muon": ("training.optimizer.kind=adamw", "training.weight_decay=0.1"),
    "no-loops": (),
    "no-modernbert": ("model.layout=bert",),
    "paragraphs": (),
    "no-packing": (),
}
WITH_LOOPS = ("unmask.model.fused", "unmask.train.optimizer")
_ALONE = 5  # sets this order of rows apart


class PaddedRows(RowStream):
    """Each piece of a document in rows of its own, cut where it is longer than a row; the rest of a row is padding."""

    def _packed(
        self,
        piece: NDArray[np.int64],
        start: NDArray[np.int64],
        size: NDArray[np.int64],
        length: int,
        place: tuple[int, int, int],
    ) -> PackedRows:
        room = length - self._overhead
        parts = -(-size // room)
        at = (np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)) * room
        rows = PackedRows.of(
            np.arange(len(at) + 1),
            np.repeat(piece, parts),
            np.repeat(start, parts) + at,
            np.minimum(room, np.repeat(size, parts) - at),
        )
        return rows.in_order(permutation(len(rows), _ALONE, self.seed, *place))


def without_loops() -> None:
    """From here on this process computes models and Muon by tensor operations, as other devices do."""
    for name in WITH_LOOPS:
        module: Any = sys.modules[name]
        module.serves = lambda tensor: False


def new_training(work: Any, data: Any) -> Training:
    """A training that has not begun."""
    from unmask.commands.recipe import load_recipe

    options = {
        "training.minutes": work.minutes,
        "training.seed": work.seed,
        "training.batch_tokens": work.batch_tokens,
        "training.learning_rate": work.learning_rate,
    }
    recipe = load_recipe("tiny", options=options, overrides=(*TAKEN_AWAY.get(work.system, ()), *work.overrides))
    training = assemble(recipe, data, torch.device("cpu"))
    if work.system != "no-packing":
        return training
    settings = training.settings
    stream = PaddedRows(data.train, data.tokenizer, length=settings.sequence_length, seed=settings.seed)
    return replace(training, stream=stream)


def train_ours(work: Any, out: TextIO, marks: list[float], held_out: Callable[[Any], Any]) -> None:
    """Our process, or one with something taken away; see `plain_loop.train_peer`."""
    from unmask.commands.run_data import open_prepared

    if work.system == "no-loops":
        without_loops()
    data = open_prepared(Path(work.data))
    fixed = held_out(data)
    next(new_training(work, data).reports())  # has the loops compiled, once on a machine
    training = new_training(work, data)
    model = training.state.model

    def evaluate() -> tuple[float, float]:
        found = fixed.evaluate(model)
        return found.loss, found.accuracy

    turn = Turn(out, evaluate, marks)
    turn.begin(parameters=model.num_parameters, batch_tokens=training.settings.batch_tokens)
    with suppress(DivergedError):  # then the model is that of the step before, which its last look tells
        for report in training.reports(turn.now):
            turn.step(report.tokens)
    turn.end()
