"""The model's recent loss on each part of speech: averaged, refreshed, resumed, and apart from evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.masking.helpers import LABELS
from tests.train.helpers import MakeModel, new_state, settings_of, train
from tests.train.test_memory import weights_of
from tests.train.test_scores import CPU
from unmask.data.rows import RowBatch, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Tables
from unmask.measure.held_out import HeldOutSet
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.scores import ScoreBoard
from unmask.train.step import TrainState

MASKING = MaskingSettings.model_validate({"units": {"kind": "words"}, "weights": {"kind": "pos_loss"}, "rate": 0.3})


class TaggedStream(RowStream):
    """Rows whose parts of speech are made up of their ids; 0 is no tag."""

    def batch(self, *options: object, **more: object) -> RowBatch:
        batch = super().batch(*options, **more)  # type: ignore[arg-type]
        pos = torch.where(batch.rows.maskable, batch.rows.input_ids % 4, 0)
        return batch._replace(rows=replace(batch.rows, annotations={"pos": pos}))


@pytest.fixture
def stream(store: TokenStore, tokenizer: Tokenizer) -> TaggedStream:
    return TaggedStream(store, tokenizer, length=32, seed=0)


def masker_of(tokenizer: Tokenizer) -> Masker:
    return Masker(MASKING, tokenizer, tables=Tables(tokenizer.vocab_size, labels=LABELS))


def board_of(vocab_size: int = 4, num_pos: int = 3) -> ScoreBoard:
    return ScoreBoard({"pos_loss"}, vocab_size=vocab_size, every_steps=3, device=CPU, num_pos=num_pos)


@pytest.fixture
def fresh(make_model: MakeModel, tokenizer: Tokenizer) -> Callable[[], TrainState]:
    def make() -> TrainState:
        state = new_state(make_model, settings_of(steps=9))
        state.board = board_of(vocab_size=tokenizer.vocab_size)
        return state

    return make


def test_evaluation_and_scores_do_not_touch_each_other(
    fresh: Callable[[], TrainState],
    stream: TaggedStream,
    tokenizer: Tokenizer,
    validation_store: TokenStore,
) -> None:
    """A training that is evaluated after every step is the one that never is, and its masks are the same for both."""
    settings, plain, watched = settings_of(steps=7), fresh(), fresh()
    for _ in train(plain, stream, masker_of(tokenizer), settings):
        pass
    held_out = HeldOutSet(validation_store, tokenizer, length=32, max_tokens=2000)
    hidden = held_out.targets().copy()
    for _ in train(watched, stream, masker_of(tokenizer), settings):
        held_out.evaluate(watched.model)
    assert plain.board is not None
    assert watched.board is not None
    state = watched.board.state()
    assert all(torch.equal(tensor, state[name]) for name, tensor in plain.board.state().items())
    assert torch.equal(weights_of(plain), weights_of(watched))
    again = HeldOutSet(validation_store, tokenizer, length=32, max_tokens=2000)
    assert again.targets().tolist() == hidden.tolist()
    assert again.evaluate(plain.model) == held_out.evaluate(watched.model)
