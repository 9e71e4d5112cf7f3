"""Scores that masking follows: made from the figures of steps, refreshed, and resumed exactly."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.helpers import MakeModel, Small, save_checkpoint, settings_of, weights_of
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore, document_frequencies
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.model.encoder import attention_received
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.checkpoints import load_checkpoint
from unmask.train.scores import ScoreBoard

CPU = torch.device("cpu")


def board_of(*names: str, vocab_size: int = 4, every_steps: int = 3) -> ScoreBoard:
    return ScoreBoard(set(names), vocab_size=vocab_size, every_steps=every_steps, device=CPU)


def observed(targets: list[int], losses: list[float], wrong: list[bool]) -> tuple[torch.Tensor, ...]:
    return torch.tensor(targets), torch.tensor(losses), torch.tensor(wrong)


def test_moving_averages_by_hand(make_model: MakeModel) -> None:
    board, model = board_of("loss", "accuracy"), make_model()
    board.observe(*observed([0, 0, 2], [1.0, 3.0, 8.0], [True, False, True]))
    board.refresh(3, model, None)
    assert board.scores.version == 3
    # 0: mean 2; 2: mean 8; 1 and 3 never occurred: the mean of the others.
    assert board.scores.tables["loss"].tolist() == pytest.approx([2.0, 5.0, 8.0, 5.0])
    assert board.scores.tables["accuracy"].tolist() == pytest.approx([0.5, 0.75, 1.0, 0.75])
    board.observe(*observed([0], [7.0], [True]))
    board.refresh(6, model, None)
    assert board.scores.tables["loss"].tolist() == pytest.approx([0.2 * 2 + 0.8 * 7, 7.0, 8.0, 7.0])
    assert board.scores.tables["accuracy"][0] == pytest.approx(0.2 * 0.5 + 0.8)


def test_attention_received_is_that_of_transformers(make_model: MakeModel, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from unmask.model.folder import save_model

    for layout in ("modernbert", "bert"):
        model = make_model(layout=layout, initializer_range=0.3).eval()
        save_model(model, tmp_path / layout)
        theirs = transformers.AutoModelForMaskedLM.from_pretrained(
            tmp_path / layout, attn_implementation="eager"
        ).eval()
        ids = torch.randint(5, 100, (3, 20), generator=torch.Generator().manual_seed(0))
        actual = attention_received(
            model.encoder, ids, segment_ids_BS=torch.zeros_like(ids), position_ids_BS=torch.arange(20).expand(3, 20)
        )
        with torch.no_grad():
            layers = theirs(input_ids=ids, output_attentions=True).attentions
        expected = torch.stack([layer.mean(1).sum(1) for layer in layers]).mean(0)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert actual.std() > 0.05


def test_attention_stays_within_its_segment(make_model: MakeModel, stream: RowStream) -> None:
    """Within each segment the shares add up to its length; padding receives nothing."""
    rows = stream.batch(Cursor(), 8).rows
    actual = attention_received(
        make_model().eval().encoder, rows.input_ids, segment_ids_BS=rows.segment_ids, position_ids_BS=rows.position_ids
    )
    for ids, received in zip(rows.segment_ids, actual, strict=True):
        for number in range(int(ids.max()) + 1):
            assert float(received[ids == number].sum()) == pytest.approx(int((ids == number).sum()), rel=1e-4)
        assert (received[ids < 0] == 0).all()


@pytest.mark.parametrize("kind", ["loss", "attention"])
def test_resuming_is_exact_with_scores(small: Small, tokenizer: Tokenizer, tmp_path: Path, kind: str) -> None:
    """Stopped between two refreshes of the scores, of which one has been."""
    settings = settings_of(steps=8)
    masking = MaskingSettings.model_validate({"units": {"kind": "words"}, "weights": {"kind": kind}, "rate": 0.3})
    small, states = replace(small, masker=Masker(masking, tokenizer)), []
    for _ in range(3):
        states.append(small.state(settings))
        states[-1].board = board_of(kind, vocab_size=tokenizer.vocab_size)
    whole, first, second = states
    assert len(list(small.train(whole, settings))) == 8
    assert whole.board.scores.version == 6
    list(islice(small.train(first, settings), 4))
    load_checkpoint(save_checkpoint(tmp_path, first, fingerprint="x", keep=1), second, fingerprint="x")
    list(small.train(second, settings))
    assert torch.equal(weights_of(whole), weights_of(second))


def test_document_frequencies_by_an_oracle(store: TokenStore, tokenizer: Tokenizer) -> None:
    expected = torch.zeros(tokenizer.vocab_size, dtype=torch.int64)
    for piece in range(len(store)):
        expected[torch.from_numpy(store.gather(np.array([piece])).input_ids.astype(int)).unique()] += 1
    for chunks in (store.chunks(), store.chunks(700)):
        assert document_frequencies(chunks, tokenizer.vocab_size).tolist() == expected.tolist()


def test_parts_of_speech_have_averages_of_their_own(make_model: MakeModel) -> None:
    board, model = ScoreBoard({"pos_loss"}, vocab_size=4, every_steps=3, device=CPU, num_pos=3), make_model()
    assert board.needs_steps
    ids = torch.zeros(3, dtype=torch.int64)
    board.observe(ids, torch.tensor([1.0, 3.0, 8.0]), ids > 0, torch.tensor([1, 1, 0]))
    board.refresh(3, model, None)
    assert set(board.scores.tables) == {"pos_loss"}
    # 1: mean 2; untagged: 8; 2 and 3 were never met: the mean of the others.
    assert board.scores.tables["pos_loss"].tolist() == pytest.approx([8.0, 2.0, 5.0, 5.0])
