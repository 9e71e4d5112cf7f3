"""What goes wrong in public implementations of masking. The table at the end says which test is for which."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.masking.helpers import make_rows, masker_of
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES, needed_annotations
from unmask.measure.held_out import HeldOutSet
from unmask.model.encoder import MaskedLM
from unmask.model.fused import losses_of, predicted_positions
from unmask.tokenizer.tokenizer import Tokenizer

ALL = sorted(STRATEGIES)


@pytest.mark.parametrize("strategy", ALL)
def test_shares_do_not_overlap(tokenizer: Tokenizer, strategy: str) -> None:
    """1. Independent draws for random and keep give 81.0 / 10.0 / 9.1 instead of 80 / 10 / 10."""
    rows = make_rows(tokenizer, 6000, [120])
    masked = masker_of(tokenizer, strategy=strategy, rate=0.3)(rows)
    target = masked.labels != -100
    seen, true = masked.input_ids[target], masked.labels[target]
    mask = (seen == tokenizer.special.mask).double().mean()
    # A span is one draw for about six tokens, so its shares scatter by the square root of that more.
    deviation = (0.8 * 0.2 / len(seen)) ** 0.5 * (3.5 if strategy == "span" else 1.0)
    assert abs(mask - 0.8) < 4 * deviation
    assert abs((seen == true).double().mean() - 0.1) < 4 * deviation


@pytest.mark.parametrize("strategy", ALL)
def test_special_tokens_are_neither_chosen_nor_drawn(tokenizer: Tokenizer, strategy: str) -> None:
    """2 and 3. `[PAD]`, `[MASK]` or `[CLS]` as random tokens; `[CLS]` as a target."""
    rows = make_rows(tokenizer, 1000, [20, 5, 1])
    masked = masker_of(tokenizer, strategy=strategy, rate=0.9, replacement=(0.0, 1.0, 0.0))(rows)
    target = masked.labels != -100
    ordinary = torch.from_numpy(tokenizer.ordinary)
    assert target.sum() > 20_000
    assert ordinary[masked.labels[target]].all()
    assert ordinary[masked.input_ids[target]].all()
    assert torch.equal(masked.input_ids[~rows.maskable], rows.input_ids[~rows.maskable])


@pytest.mark.parametrize("mean_word", [1.0, 2.0, 6.0])
def test_long_words_neither_inflate_nor_deflate_the_rate(tokenizer: Tokenizer, mean_word: float) -> None:
    """5. A word of n pieces hit with 1 - (1 - p)^n; or skipped where it is longer than the budget that is left."""
    rows = make_rows(tokenizer, 4000, [12], mean_word=mean_word)
    target = masker_of(tokenizer, strategy="whole_word", rate=0.15)(rows).labels != -100
    counts = target.sum(1).double()
    assert abs(counts.mean() - 0.15 * 12) < 4 * counts.std() / 4000**0.5


@pytest.mark.parametrize("strategy", ALL)
def test_labels_are_the_original_tokens(tokenizer: Tokenizer, strategy: str) -> None:
    """6. Overlapping spans that re-read corrupted tokens give wrong labels."""
    rows = make_rows(tokenizer, 500, [100])
    masked = masker_of(tokenizer, strategy=strategy, rate=0.6)(rows)
    target = masked.labels != -100
    assert torch.equal(masked.labels[target], rows.input_ids[target])


def test_rows_without_a_target_make_no_nan(tokenizer: Tokenizer) -> None:
    """7. At 15 % most rows of four tokens have no target; a mean over none is NaN."""
    rows = make_rows(tokenizer, 2000, [4])
    labels = Masker.from_tokenizer(tokenizer, rate=0.15)(rows).labels
    without = (labels == -100).all(1)
    assert 0.35 < without.double().mean() < 0.45, "the expected rate stays exact: 0.6 targets a row"
    positions = predicted_positions(labels[without])
    assert len(positions) == 0
    assert losses_of(torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64)).total == 0.0


@pytest.mark.parametrize("strategy", ALL)
def test_the_input_is_not_changed(tokenizer: Tokenizer, strategy: str) -> None:
    """8. Masking in place lets labels alias the input."""
    rows = make_rows(tokenizer, 10, [30])
    before = rows.input_ids.clone()
    masked = masker_of(tokenizer, strategy=strategy, rate=0.9)(rows)
    assert torch.equal(rows.input_ids, before)
    assert len({masked.input_ids.data_ptr(), masked.labels.data_ptr(), rows.input_ids.data_ptr()}) == 3
    plain = [[2, 10, 11, 12, 3]]
    if not needed_annotations(masker_of(tokenizer, strategy=strategy).settings):  # lists have no annotations
        masker_of(tokenizer, strategy=strategy, rate=0.9)(plain)
    assert plain == [[2, 10, 11, 12, 3]]


def test_evaluation_has_its_own_fixed_masks(tokenizer: Tokenizer, validation_store: TokenStore) -> None:
    """9. Evaluation that draws new masks each time, and moves the training's generator."""
    before = torch.random.get_rng_state()
    one, two = (HeldOutSet(validation_store, tokenizer, length=64, max_tokens=10**6) for _ in range(2))
    for (_, a), (_, b) in zip(one.batches, two.batches, strict=True):
        assert torch.equal(a.input_ids, b.input_ids)
        assert ((a.input_ids == tokenizer.special.mask) == (a.labels != -100)).all()
    assert torch.equal(before, torch.random.get_rng_state())
    share = len(one.targets()) / one.num_tokens
    assert abs(share - 0.15) < 0.01


def test_losses_of_unequal_batches_are_summed_before_they_are_divided() -> None:
    """10. A mean of means is not the loss per predicted token."""
    logits, targets = torch.randn(12, 7, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 7
    parts = [slice(0, 2), slice(2, 12)]
    total = sum(losses_of(logits[p], targets[p]).total for p in parts) / 12
    assert float(total) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, targets)), rel=1e-6)


def test_id_0_can_be_predicted() -> None:
    """11. `labels > 0` as the test for a target."""
    assert predicted_positions(torch.tensor([[-100, 0, -100], [3, -100, 0]])).tolist() == [1, 3, 5]


def test_no_token_is_drawn_twice(tokenizer: Tokenizer) -> None:
    """12. Sampling with replacement gives 13.8 % instead of 15 %."""
    rows = make_rows(tokenizer, 1000, [100])
    counts = (Masker.from_tokenizer(tokenizer, rate=0.15)(rows).labels != -100).sum(1)
    assert (counts == 15).double().mean() > 0.999


def test_dropout_is_off_in_validation(
    make_model: Callable[..., MaskedLM], validation_store: TokenStore, tokenizer: Tokenizer
) -> None:
    """14. A model in the midst of its training is evaluated as it will be used, and goes on training."""
    held_out = HeldOutSet(validation_store, tokenizer, length=64, max_tokens=2000)
    plain, dropping = make_model(layout="bert"), make_model(layout="bert", dropout=0.5)
    expected = held_out.evaluate(plain).loss
    assert held_out.evaluate(dropping.train()).loss == expected
    assert dropping.training


def test_half_of_the_budget_may_be_one_word(tokenizer: Tokenizer) -> None:
    """A word longer than the whole budget is still masked now and then, and as a whole."""
    rows = make_rows(tokenizer, 3000, [10], mean_word=1e9)
    counts = (masker_of(tokenizer, strategy="whole_word", rate=0.15)(rows).labels != -100).sum(1)
    assert set(np.unique(counts.numpy()).tolist()) == {0, 10}
    assert abs((counts == 10).double().mean() - 0.15) < 4 * (0.15 * 0.85 / 3000) ** 0.5


# Where each of the pitfalls is tested: here, or in the file that is named.
PITFALLS: dict[int, tuple[str, ...]] = {
    1: ("test_shares_do_not_overlap", "test_every_pair.py::test_shares_of_tokens_and_of_units"),
    2: ("test_special_tokens_are_neither_chosen_nor_drawn", "test_any_batch.py::test_any_batch_of_any_vocabulary"),
    3: ("test_special_tokens_are_neither_chosen_nor_drawn", "test_any_batch.py::test_any_batch_of_any_vocabulary"),
    4: (
        "../tokenizer/test_words.py::test_words_are_those_a_person_would_write",
        "../tokenizer/test_words.py::test_words_of_byte_level_bpe_are_its_pre_tokenizers_pieces",
    ),
    5: (
        "test_long_words_neither_inflate_nor_deflate_the_rate",
        "test_every_pair.py::test_the_rate_is_exact_for_words_of_any_size",
    ),
    6: ("test_labels_are_the_original_tokens",),
    7: ("test_rows_without_a_target_make_no_nan", "test_every_pair.py::test_the_floor_of_one_target"),
    8: ("test_the_input_is_not_changed", "test_every_pair.py::test_nothing_of_the_input_is_changed"),
    9: (
        "test_evaluation_has_its_own_fixed_masks",
        "test_engine.py::test_a_mask_depends_on_seed_epoch_and_content_alone",
        "test_same_everywhere.py::test_rows_shared_out_over_ranks",
        "test_same_everywhere.py::test_batches_of_any_size_and_a_resumed_stream",
        "test_trainer.py::test_masks_are_those_of_the_epoch_for_any_number_of_workers",
        "test_trainer.py::test_a_resumed_training_goes_on_with_its_epoch",
        "../train/test_loop.py::test_resuming_equals_never_having_stopped",
    ),
    10: (
        "test_losses_of_unequal_batches_are_summed_before_they_are_divided",
        "../train/test_loop.py::test_the_loss_is_the_naive_one",
        "../measure/test_held_out.py::test_the_loss_is_per_predicted_token",
    ),
    11: ("test_id_0_can_be_predicted",),
    12: ("test_no_token_is_drawn_twice",),
    13: (
        "../model/test_parity.py::test_packed_equals_alone_and_transformers",
        "../model/test_parity.py::test_a_change_in_one_document_does_not_reach_its_neighbour",
        "../data/test_stream.py::test_an_epoch_holds_every_token_once",
    ),
    14: ("test_dropout_is_off_in_validation",),
    15: (
        "../measure/test_minimal_pairs.py::test_the_tally_by_hand",
        "../measure/test_minimal_pairs.py::test_a_trained_model_knows_the_order_of_words",
    ),
}


def test_every_pitfall_has_a_test() -> None:
    assert sorted(PITFALLS) == list(range(1, 16))
    here = Path(__file__)
    for names in PITFALLS.values():
        for name in names:
            file, _, function = name.rpartition("::")
            text = (here.parent / (file or here.name)).read_text(encoding="utf-8")
            assert re.search(rf"^def {function}\(", text, re.MULTILINE), name
