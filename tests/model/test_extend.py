"""More rows for words and for positions, by hand; earlier rows do not change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.model.helpers import MakeModel, all_logits, their_logits
from unmask.model.encoder import MaskedLM, extended
from unmask.model.folder import load_model, save_model


def logits(model: MaskedLM, ids: list[int]) -> torch.Tensor:
    return all_logits(model, torch.tensor([ids]))[0]


def test_a_word_is_the_mean_of_its_pieces(make_model: MakeModel) -> None:
    model = make_model(vocab_size=20)
    grown = extended(model, words=[(5, 6), (7, 7, 10)], first_id=20)
    old, new = model.encoder.tokens, grown.encoder.tokens
    assert grown.config.vocab_size == len(new) == len(grown.head.bias) == 22
    assert torch.equal(new[:20], old)
    torch.testing.assert_close(new[20], (old[5] + old[6]) / 2)
    torch.testing.assert_close(new[21], (2 * old[7] + old[10]) / 3)
    torch.testing.assert_close(grown.head.bias[21], (2 * model.head.bias[7] + model.head.bias[10]) / 3)
    before, after = logits(model, [2, 5, 9, 3]), logits(grown, [2, 5, 9, 3])
    torch.testing.assert_close(after[:, :20], before)
    torch.testing.assert_close(after[:, 20], before[:, [5, 6]].mean(1), msg="the decoder is the embedding")
    assert len(model.encoder.tokens) == 20, "the model that was given is left alone"


def test_rows_that_fill_the_table_up_are_used_first(make_model: MakeModel) -> None:
    """Released models have more rows than their tokenizer has ids."""
    model = make_model(vocab_size=64)
    grown = extended(model, words=[(5, 6)], first_id=50)
    assert len(grown.encoder.tokens) == 64
    torch.testing.assert_close(grown.encoder.tokens[50], model.encoder.tokens[[5, 6]].mean(0))
    kept = torch.arange(64) != 50
    assert torch.equal(grown.encoder.tokens[kept], model.encoder.tokens[kept])
    assert len(extended(model, words=[(5, 6)] * 3, first_id=63).encoder.tokens) == 66


@pytest.mark.parametrize(("layout", "first"), [("bert", 0), ("roberta", 1), ("roberta-prelayernorm", 1)])
def test_learned_positions_are_copied_in_turn(make_model: MakeModel, layout: str, first: int) -> None:
    """16 positions become 40; RoBERTa's rows for padding (ids 0 to the padding's) precede them once."""
    model = make_model(layout=layout, max_position_embeddings=16)
    longer = extended(model, num_positions=40)
    old, new = model.encoder.positions, longer.encoder.positions
    assert (len(old), len(new)) == (16 + first, 40 + first)
    assert torch.equal(new[: 16 + first], old)
    for position in (16, 17, 31, 32, 39):
        assert torch.equal(new[first + position], old[first + position % 16]), position
    ids = [2, *range(10, 24), 3]
    assert torch.equal(logits(longer, ids), logits(model, ids))
    assert torch.isfinite(logits(longer, [2, *range(10, 48), 3])).all()


@pytest.mark.parametrize("layout", ["bert", "roberta", "modernbert"])
def test_what_was_extended_is_the_same_in_transformers(make_model: MakeModel, tmp_path: Path, layout: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = make_model(layout=layout, vocab_size=30, max_position_embeddings=16)
    model.unused_weights = {"bert.pooler.dense.bias": torch.ones(32)} if layout == "bert" else {}
    grown = extended(model, words=[(5, 6), (7, 8, 9)], first_id=30, num_positions=24)
    assert grown.unused_weights == model.unused_weights
    save_model(grown, tmp_path)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    ids = [2, 30, 31, *range(10, 28), 3]
    expected = their_logits(theirs, torch.tensor([ids]))[0]
    assert expected.shape == (len(ids), 32)
    torch.testing.assert_close(logits(grown, ids), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(load_model(tmp_path, mask_id=4).eval(), ids), logits(grown, ids))
