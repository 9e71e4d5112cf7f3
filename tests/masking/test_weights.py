"""Weights: what they prefer, and by how much."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.masking.helpers import frequencies_of, make_rows, masker_of
from unmask.core.hashing import mix
from unmask.core.settings import validated
from unmask.masking.draw import POINT, flatten, partition
from unmask.masking.draw_loops import counts_in_segment
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Scores, Tables
from unmask.masking.units import WordUnits
from unmask.masking.weights import BandWeights, CentralityWeights, FrequencyWeights, TfIdfWeights
from unmask.tokenizer.tokenizer import Tokenizer


def random_bits(count: int, seed: int = 0) -> torch.Tensor:
    return mix(torch.arange(count, dtype=torch.int64) + (seed << 40))


@pytest.mark.parametrize(("exponent", "prefers"), [(-0.5, "rare"), (0.5, "common"), (0.0, "none")])
def test_frequency_prefers_what_it_says(tokenizer: Tokenizer, exponent: float, prefers: str) -> None:
    rows = make_rows(tokenizer, 2000, [40], mean_word=1.0)
    frequencies = frequencies_of(tokenizer)
    settings = masker_of(tokenizer, strategy="frequency").settings
    weights = FrequencyWeights(exponent=exponent, floor=1)
    masker = Masker(settings.model_copy(update={"weights": weights}), tokenizer, frequencies=frequencies)
    chosen = (masker(rows).labels >= 0)[rows.maskable]
    counts = torch.from_numpy(frequencies)[rows.input_ids[rows.maskable]]
    rare = counts < counts.median()
    shares = float(chosen[rare].double().mean()), float(chosen[~rare].double().mean())
    if prefers == "none":
        assert shares[0] == pytest.approx(shares[1], abs=0.01)
    else:
        assert (shares[0] > 1.3 * shares[1]) == (prefers == "rare")
        assert (shares[1] > 1.3 * shares[0]) == (prefers == "common")


def test_tf_idf_by_hand(tokenizer: Tokenizer) -> None:
    """Counts in the segment, and rarity, multiplied; a word has the largest of its tokens."""
    rows = make_rows(tokenizer, 1, [6])
    ids = [20, 21, 20, 22, 20, 23]
    rows.input_ids[0, 1:7] = torch.tensor(ids)
    rows.word_starts[0, 1:7] = torch.tensor([True, True, True, True, True, False])
    flat = flatten(rows, 0)
    documents = torch.full((tokenizer.vocab_size,), 3)
    documents[20], documents[21], documents[23] = 900, 10, 1
    tables = Tables(tokenizer.vocab_size, documents_V=documents, num_documents=1000)
    weights = TfIdfWeights()
    units = partition(flat, WordUnits().starts(flat, tables))
    found = weights.log2(flat, units, tables).double() / 2**POINT

    def log2_of(token: int, count: int) -> float:
        return float(np.log2(count) + np.log2(-np.log2((float(documents[token]) + 1) / 1002)))

    expected = [log2_of(20, 3), log2_of(21, 1), log2_of(20, 3), log2_of(22, 1), max(log2_of(20, 3), log2_of(23, 1))]
    assert found[1:6].tolist() == pytest.approx(expected, abs=1e-4)


def test_counts_stay_within_a_segment(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 30, [12, 25])
    flat = flatten(rows, 0)
    counts_T = counts_in_segment(tokenizer.vocab_size, flat.input_ids_T.numpy(), flat.segment_begin_T.numpy())
    found = torch.from_numpy(counts_T).view(rows.shape)
    for r in range(30):
        for number in (0, 1):
            inside = rows.segment_ids[r] == number
            ids = rows.input_ids[r][inside].tolist()
            assert found[r][inside].tolist() == [ids.count(i) for i in ids]


def test_centrality_prefers_what_resembles_the_document(tokenizer: Tokenizer) -> None:
    """Three words point the same way and one the other: it is drawn last, or first with a negative strength."""
    rows = make_rows(tokenizer, 400, [4], mean_word=1.0)
    rows.input_ids[:, 1:5] = torch.tensor([20, 21, 22, 23])
    rows.word_starts[:, 1:5] = True
    table = torch.zeros(tokenizer.vocab_size, 3)
    table[20:23] = torch.tensor([1.0, 0.1, 0.0])
    table[23] = torch.tensor([-1.0, 0.1, 0.0])
    for strength, rare in ((12.0, True), (-12.0, False)):
        settings = masker_of(tokenizer, rate=0.25).settings
        weights = CentralityWeights(strength=strength)
        masker = Masker(settings.model_copy(update={"units": WordUnits(), "weights": weights}), tokenizer)
        chosen = masker(rows, scores=Scores(1, {"embedding": table})).labels >= 0
        share = float(chosen[:, 4].double().mean())
        assert share < 0.02 if rare else share > 0.98


def test_a_band_that_holds_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="low 5 is not below high 3"):
        BandWeights(low=5.0, high=3.0)


def test_a_band_is_masked_before_all_others(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 200, [100])
    frequencies = torch.from_numpy(frequencies_of(tokenizer))
    low = float(frequencies.sort(descending=True).values[40] / frequencies.sum() * 1e6)
    settings = validated(
        MaskingSettings,
        {"weights": {"kind": "band", "low": low, "high": 1e6, "outside": 1e-6}, "rate": 0.1},
        where="x",
    )
    labels = Masker(settings, tokenizer, tables=Tables(tokenizer.vocab_size, frequencies))(rows).labels
    common = frequencies >= frequencies.sort(descending=True).values[40]
    assert common[labels[labels >= 0]].double().mean() > 0.99, "a fifth of the text is in the band, and a tenth masked"


def test_the_floor_bounds_the_preference(tokenizer: Tokenizer) -> None:
    """With a floor above every count all units are equally likely: the masks are those of exponent 0."""
    rows = make_rows(tokenizer, 50, [40])
    settings = masker_of(tokenizer, strategy="frequency").settings
    masks = [
        Masker(settings.model_copy(update={"weights": weights}), tokenizer, frequencies=frequencies_of(tokenizer))(rows)
        for weights in (FrequencyWeights(exponent=-2.0, floor=10**6), FrequencyWeights(exponent=0.0))
    ]
    assert torch.equal(masks[0].labels, masks[1].labels)
