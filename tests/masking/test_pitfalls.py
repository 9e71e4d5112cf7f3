"""Errors in public implementations of masking, by number; missing numbers are covered by other tests."""

from __future__ import annotations

import torch

from tests.masking.helpers import make_rows
from tests.model.helpers import MakeModel
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.measure.held_out import HeldOutSet
from unmask.model.fused import losses_of, predicted_positions
from unmask.tokenizer.tokenizer import Tokenizer


def test_rows_without_a_target_make_no_nan(tokenizer: Tokenizer) -> None:
    """7. At 15 % most rows of four tokens have no target; a mean over none is NaN."""
    rows = make_rows(tokenizer, 2000, [4])
    labels = Masker.from_tokenizer(tokenizer, rate=0.15)(rows).labels
    without = (labels == -100).all(1)
    assert 0.35 < without.double().mean() < 0.45, "the expected rate stays exact: 0.6 targets a row"
    positions = predicted_positions(labels[without])
    assert len(positions) == 0
    assert losses_of(torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64)).total == 0.0


def test_evaluation_has_its_own_fixed_masks(tokenizer: Tokenizer, validation_store: TokenStore) -> None:
    """9. Evaluation that draws new masks each time, and advances the training's random generator."""
    before = torch.random.get_rng_state()
    one, two = (HeldOutSet(validation_store, tokenizer, length=64, max_tokens=10**6) for _ in range(2))
    for (_, a), (_, b) in zip(one.batches, two.batches, strict=True):
        assert torch.equal(a.input_ids, b.input_ids)
        assert ((a.input_ids == tokenizer.special.mask) == (a.labels != -100)).all()
    assert torch.equal(before, torch.random.get_rng_state())
    special = torch.tensor([tokenizer.special.pad, *tokenizer.special.around])
    share = len(one.targets()) / sum(int((~torch.isin(rows.input_ids, special)).sum()) for rows, _ in one.batches)
    assert abs(share - 0.15) < 0.01


def test_id_0_can_be_predicted() -> None:
    """11. `labels > 0` as the test for a target."""
    assert predicted_positions(torch.tensor([[-100, 0, -100], [3, -100, 0]])).tolist() == [1, 3, 5]


def test_dropout_is_off_in_validation(
    make_model: MakeModel, validation_store: TokenStore, tokenizer: Tokenizer
) -> None:
    """14. During training, a model is evaluated in evaluation mode, and then continues in training mode."""
    held_out = HeldOutSet(validation_store, tokenizer, length=64, max_tokens=2000)
    plain, dropping = make_model(layout="bert"), make_model(layout="bert", dropout=0.5)
    expected = held_out.evaluate(plain).loss
    assert held_out.evaluate(dropping.train()).loss == expected
    assert dropping.training
