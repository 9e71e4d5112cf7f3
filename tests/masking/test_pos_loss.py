"""Weights that follow the model's recent loss on each part of speech, on rows written by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.masking.helpers import LABELS, make_rows
from tests.masking.test_annotated import rows_of
from unmask.core.errors import DataError, SettingsError
from unmask.data.rows import Rows
from unmask.masking.draw import flatten, partition
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Scores, Tables
from unmask.masking.units import WordUnits
from unmask.masking.weights import PosLossWeights
from unmask.tokenizer.tokenizer import Tokenizer

EPOCHS = 3000
# Of no tag, DET, NOUN and VERB.
LOSSES = Scores(7, {"pos_loss": torch.tensor([2.0, 2.0, 6.0, 2.0])})


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def masker_with(tokenizer: Tokenizer, units: str = "words", rate: float = 0.5, **weights: object) -> Masker:
    settings = {"units": {"kind": units}, "weights": {"kind": "pos_loss", **weights}, "rate": rate}
    return Masker(
        MaskingSettings.model_validate(settings), tokenizer, tables=Tables(tokenizer.vocab_size, labels=LABELS)
    )


def share_of(masker: Masker, rows: Rows, place: int, scores: Scores = LOSSES) -> float:
    """How often the token at a place is masked."""
    found = torch.cat([masker(rows, epoch=epoch, scores=scores).labels for epoch in range(EPOCHS)]) >= 0
    return float(found[:, place].double().mean())


def test_weights_by_hand() -> None:
    """The mean is 3 and the deviation sqrt(3): nouns lie 3 of them over it, divided by sqrt(3), all others 1 below."""
    losses = torch.tensor([2.0, 2.0, 6.0, 2.0], dtype=torch.float64)
    step = 1.0 / math.sqrt(3.0) / 0.5
    assert PosLossWeights().weights_of(losses).tolist() == pytest.approx(
        [sigmoid(-step), sigmoid(-step), sigmoid(3 * step), sigmoid(-step)]
    )
    floored = PosLossWeights(temperature=2.0, floor=0.25).weights_of(losses)
    assert floored.tolist() == pytest.approx([0.25 + 0.75 * sigmoid(x * step / 4) for x in (-1, -1, 3, -1)])
    assert PosLossWeights(temperature=0.01).weights_of(losses).tolist() == pytest.approx([1e-6, 1e-6, 1.0, 1e-6])
    assert PosLossWeights().weights_of(torch.full((4,), 3.0, dtype=torch.float64)).tolist() == [0.5] * 4


@pytest.mark.parametrize("weights", [{}, {"temperature": 2.0}, {"floor": 0.5}])
def test_words_are_drawn_by_the_loss_of_their_tags(tokenizer: Tokenizer, weights: dict[str, float]) -> None:
    """A noun beside an article, one budget of one word: the noun comes first by the ratio of their weights."""
    rows = rows_of("#ww#", pos=[0, 2, 1, 0])
    expected = PosLossWeights.model_validate(weights).weights_of(LOSSES.tables["pos_loss"].double())
    wanted = float(expected[2] / (expected[1] + expected[2]))
    assert 0.55 < wanted < 0.95
    found = share_of(masker_with(tokenizer, **weights), rows, 1)
    assert abs(found - wanted) < 4 * (wanted * (1 - wanted) / EPOCHS) ** 0.5


def test_masks_follow_the_version_and_are_uniform_before_the_first(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 200, [60])
    masker = masker_with(tokenizer, rate=0.2)
    pos = rows.annotations["pos"]

    def shares(scores: Scores | None) -> list[float]:
        chosen = masker(rows, scores=scores).labels >= 0
        return [float(chosen[rows.maskable & (pos == label)].double().mean()) for label in range(4)]

    assert shares(Scores(0, {})) == pytest.approx([0.2] * 4, abs=0.03)
    first, second = shares(LOSSES), shares(Scores(8, {"pos_loss": torch.tensor([2.0, 6.0, 2.0, 2.0])}))
    assert first[2] > 2 * max(first[0], first[1], first[3])
    assert second[1] > 2 * max(second[0], second[2], second[3])
    flat = flatten(rows, 0)
    units = partition(flat, WordUnits().starts(flat, masker.tables))
    assert PosLossWeights().log2(flat, units, masker.tables.with_scores(Scores(0, {}))) is None


def test_what_is_missing_is_named(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 2, [9])
    bare = replace(rows, annotations={})
    with pytest.raises(DataError, match=r"weights of kind pos_loss needs the annotation 'pos'.*annotate pos"):
        masker_with(tokenizer)(bare, scores=Scores(0, {}))
    with pytest.raises(SettingsError, match="weights of kind pos_loss needs the score 'pos_loss', which a model makes"):
        masker_with(tokenizer)(rows)
    unlabelled = Masker(masker_with(tokenizer).settings, tokenizer)
    with pytest.raises(SettingsError, match="weights of kind pos_loss needs the labels of the annotation 'pos'"):
        unlabelled(rows, scores=LOSSES)
    with pytest.raises(SettingsError, match="score 'pos_loss' is of 1 parts of speech, but the data has 3; scores and"):
        masker_with(tokenizer)(rows, scores=Scores(2, {"pos_loss": torch.ones(2)}))


def test_untagged_tokens_have_their_own_loss_where_a_unit_has_no_tag(tokenizer: Tokenizer) -> None:
    """The second word has no tag, and its loss is the largest; within the first, an untagged token lifts nothing."""
    losses = Scores(1, {"pos_loss": torch.tensor([4.0, 2.0, 3.0, 3.0])})
    weights = PosLossWeights().weights_of(losses.tables["pos_loss"].double())
    wanted = float(weights[0] / (weights[0] + weights[1]))
    rows = rows_of("#w-w-#", pos=[0, 0, 1, 0, 0, 0])
    found = share_of(masker_with(tokenizer), rows, 3, losses)
    assert abs(found - wanted) < 4 * (wanted * (1 - wanted) / EPOCHS) ** 0.5
    assert wanted > 0.9
