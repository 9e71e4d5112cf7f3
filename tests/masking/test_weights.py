"""Weights: what they prefer, and by how much."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.masking.helpers import (
    LABELS,
    assert_share,
    copies_of,
    frequencies_of,
    make_rows,
    masker_of,
    parse,
    rows_of,
    tables_of,
)
from unmask.core.errors import DataError, SettingsError
from unmask.data.rows import Rows
from unmask.masking.draw import POINT, flatten, partition
from unmask.masking.draw_loops import counts_in_segment
from unmask.masking.masker import Masker
from unmask.masking.tables import Scores, Tables
from unmask.masking.units import WordUnits
from unmask.masking.weights import PosLossWeights, RoleWeights, TfIdfWeights
from unmask.tokenizer.tokenizer import Tokenizer

DRAWS = 3000
WORDS = {"kind": "words"}


def pos_loss(*losses: float, version: int = 7) -> Scores:
    """Of no tag, DET, NOUN and VERB."""
    return Scores(version, {"pos_loss": torch.tensor(losses)})


LOSSES = pos_loss(2.0, 2.0, 6.0, 2.0)
UNTAGGED_LOSSES = pos_loss(4.0, 2.0, 3.0, 3.0)


def ratio(scores: Scores, first: int, second: int, **weights: float) -> float:
    """How often the first of two labels comes before the second."""
    of_labels = PosLossWeights.model_validate(weights).weights_of(scores.tables["pos_loss"].double())
    return float(of_labels[first] / (of_labels[first] + of_labels[second]))


# A row of two words, its annotation, weights, scores, a place in one of the words, and how often that word comes first.
RACES = {
    "a noun and an article": ("#ww#", {"pos": [0, 2, 1, 0]}, {"kind": "pos", "weights": {"NOUN": 3.0}}, None, 1, 3 / 4),
    # A space in a word of weight 1/8 does not lift it to the default, which a word without any tag has.
    "no tag": ("#w-w-#", {"pos": [0, 0, 1, 0, 0, 0]}, {"kind": "pos", "weights": {"DET": 0.125}}, None, 3, 8 / 9),
    "loss": (
        "#ww#", {"pos": [0, 2, 1, 0]}, {"kind": "pos_loss", "temperature": 2.0}, LOSSES, 1,
        ratio(LOSSES, 2, 1, temperature=2.0),
    ),
    # Within the first word, an untagged token lifts nothing; the second has no tag, and its loss is the largest.
    "loss of no tag": (
        "#w-w-#", {"pos": [0, 0, 1, 0, 0, 0]}, {"kind": "pos_loss"}, UNTAGGED_LOSSES, 3, ratio(UNTAGGED_LOSSES, 0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_of_two_words_one_is_drawn_by_the_ratio_of_their_weights(tokenizer: Tokenizer, name: str) -> None:
    starts, columns, weights, scores, place, expected = RACES[name]
    masker = masker_of(tokenizer, units=WORDS, weights=weights, rate=0.5)
    rows = rows_of(starts, **columns)
    chosen = masker(copies_of(rows, DRAWS), scores=scores).labels >= 0
    assert (chosen[:, rows.word_starts[0]].sum(1) == 1).all()
    assert 0.55 < expected < 0.99
    assert_share(chosen[:, place], expected)


def test_the_classes_of_roles() -> None:
    """A word of each role without dependents, and one with dependents."""
    labels = ("nsubj:pass", "det", "root", "amod", "punct")
    roles = [parse(number, 0, 0, heads) for number in range(1, 6) for heads in (0, 1)]
    flat = flatten(rows_of("#" + "w" * 10 + "#", dependencies=[0, *roles, 0]), 0)
    tables = Tables(0, labels={"dependencies": labels})
    units = partition(flat, WordUnits().starts(flat, tables))
    log2 = RoleWeights(arguments=8.0, function=2.0, heads=4.0, others=1.0).log2(flat, units, tables)[1:-1] / 2**POINT
    assert log2.view(5, 2).exp2().tolist() == [[8.0] * 2, [2.0] * 2, [1.0, 4.0], [1.0, 4.0], [2.0] * 2]


def test_weights_of_losses_by_hand() -> None:
    """The mean is 3 and the deviation sqrt(3): nouns lie 3 of them over it, divided by sqrt(3), all others 1 below."""
    losses = LOSSES.tables["pos_loss"].double()
    step = 1.0 / math.sqrt(3.0) / 0.5
    low, high = (1.0 / (1.0 + math.exp(-x)) for x in (-step, 3 * step))
    assert PosLossWeights().weights_of(losses).tolist() == pytest.approx([low, low, high, low])
    floored = [0.25 + 0.75 / (1.0 + math.exp(-x * step / 4)) for x in (-1, -1, 3, -1)]
    assert PosLossWeights(temperature=2.0, floor=0.25).weights_of(losses).tolist() == pytest.approx(floored)
    assert PosLossWeights(temperature=0.01).weights_of(losses).tolist() == pytest.approx([1e-6, 1e-6, 1.0, 1e-6])
    assert PosLossWeights().weights_of(torch.full((4,), 3.0).double()).tolist() == [0.5] * 4


def test_losses_of_the_latest_version_count_and_none_before_the_first(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 200, [60])
    masker = masker_of(tokenizer, units=WORDS, weights={"kind": "pos_loss"}, rate=0.2)

    def shares(scores: Scores) -> list[float]:
        chosen = masker(rows, scores=scores).labels >= 0
        return [float(chosen[rows.maskable & (rows.annotations["pos"] == n)].double().mean()) for n in range(4)]

    assert shares(Scores(0, {})) == pytest.approx([0.2] * 4, abs=0.03)
    for largest, scores in ((2, LOSSES), (1, pos_loss(2.0, 6.0, 2.0, 2.0, version=8))):
        actual = shares(scores)
        assert actual.pop(largest) > 2 * max(actual)


@pytest.mark.parametrize(("exponent", "prefers"), [(-0.5, "rare"), (0.5, "common"), (0.0, "none")])
def test_frequency_prefers_what_it_says(tokenizer: Tokenizer, exponent: float, prefers: str) -> None:
    rows = make_rows(tokenizer, 2000, [40], mean_word=1.0)
    weights = {"kind": "frequency", "exponent": exponent, "floor": 1}
    chosen = (masker_of(tokenizer, units=WORDS, weights=weights)(rows).labels >= 0)[rows.maskable].double()
    counts = torch.from_numpy(frequencies_of(tokenizer))[rows.input_ids[rows.maskable]]
    is_rare = counts < counts.median()
    rare, common = float(chosen[is_rare].mean()), float(chosen[~is_rare].mean())
    if prefers == "none":
        assert rare == pytest.approx(common, abs=0.01)
    assert (rare > 1.3 * common) == (prefers == "rare")
    assert (common > 1.3 * rare) == (prefers == "common")


def test_tokens_are_drawn_in_proportion_to_their_informativeness(tokenizer: Tokenizer) -> None:
    """At a low rate; the share of the whole stays exact."""
    rows = make_rows(tokenizer, 4000, [40], mean_word=1.0)
    values = torch.where(torch.arange(tokenizer.vocab_size) % 2 == 0, 0.3, 0.1)
    tables = replace(tables_of(tokenizer), informativeness_V=values)
    even = (rows.input_ids % 2 == 0)[rows.maskable]
    for exponent, expected in ((1.0, 3.0), (2.0, 9.0), (0.0, 1.0)):
        weights = {"kind": "informative", "exponent": exponent}
        masker = masker_of(tokenizer, tables=tables, units=WORDS, weights=weights, rate=0.025)
        chosen = (masker(rows).labels >= 0)[rows.maskable].double()
        assert float(chosen[even].mean() / chosen[~even].mean()) == pytest.approx(expected, rel=0.12)
        assert float(chosen.mean()) == pytest.approx(0.025, abs=1e-3)


@pytest.mark.parametrize(("kind", "exponent", "floor"), [("frequency", -2.0, 10**6), ("informative", 1.0, 1.0)])
def test_below_the_floor_all_are_alike(tokenizer: Tokenizer, kind: str, exponent: float, floor: float) -> None:
    rows = make_rows(tokenizer, 50, [40])
    floored, even, weighted = (
        masker_of(tokenizer, units=WORDS, weights={"kind": kind, **weights})(rows).labels
        for weights in ({"exponent": exponent, "floor": floor}, {"exponent": 0.0}, {"exponent": exponent})
    )
    assert torch.equal(floored, even)
    assert not torch.equal(floored, weighted)


def test_tf_idf_by_hand(tokenizer: Tokenizer) -> None:
    """Counts in the segment, and rarity, multiplied; a word has the largest of its tokens."""
    rows = rows_of("#wwwww-#")
    rows.input_ids[0, 1:7] = torch.tensor([20, 21, 20, 22, 20, 23])
    flat = flatten(rows, 0)
    documents = torch.full((tokenizer.vocab_size,), 3)
    documents[20], documents[21], documents[23] = 900, 10, 1
    tables = Tables(tokenizer.vocab_size, documents_V=documents, num_documents=1000)
    units = partition(flat, WordUnits().starts(flat, tables))
    actual = TfIdfWeights().log2(flat, units, tables).double() / 2**POINT

    def log2_of(token: int, count: int) -> float:
        return float(np.log2(count) + np.log2(-np.log2((float(documents[token]) + 1) / 1002)))

    expected = [log2_of(20, 3), log2_of(21, 1), log2_of(20, 3), log2_of(22, 1), max(log2_of(20, 3), log2_of(23, 1))]
    assert actual[1:6].tolist() == pytest.approx(expected, abs=1e-4)


def test_counts_stay_within_a_segment(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 30, [12, 25])
    flat = flatten(rows, 0)
    counts_T = counts_in_segment(tokenizer.vocab_size, flat.input_ids_T.numpy(), flat.segment_begin_T.numpy())
    actual = torch.from_numpy(counts_T).view(rows.shape)
    for r in range(30):
        for number in (0, 1):
            inside = rows.segment_ids[r] == number
            ids = rows.input_ids[r][inside].tolist()
            assert actual[r][inside].tolist() == [ids.count(i) for i in ids]


def test_centrality_prefers_what_resembles_the_document(tokenizer: Tokenizer) -> None:
    """Three words point the same way and one the other: it is drawn last, or first with a negative strength."""
    rows = make_rows(tokenizer, 400, [4], mean_word=1.0)
    rows.input_ids[:, 1:5] = torch.tensor([20, 21, 22, 23])
    rows.word_starts[:, 1:5] = True
    table = torch.zeros(tokenizer.vocab_size, 3)
    table[20:23] = torch.tensor([1.0, 0.1, 0.0])
    table[23] = torch.tensor([-1.0, 0.1, 0.0])
    for strength, rare in ((12.0, True), (-12.0, False)):
        masker = masker_of(tokenizer, units=WORDS, weights={"kind": "centrality", "strength": strength}, rate=0.25)
        chosen = masker(rows, scores=Scores(2, {"embedding": table})).labels >= 0
        share = float(chosen[:, 4].double().mean())
        assert share < 0.02 if rare else share > 0.98


@pytest.mark.parametrize(
    ("settings", "column"),
    [
        ({"strategy": "entity"}, "entities"),
        ({"units": WORDS, "weights": {"kind": "pos_loss"}}, "pos"),
    ],
)
def test_a_missing_annotation_is_named_with_the_way_to_get_it(
    tokenizer: Tokenizer, settings: dict[str, object], column: str
) -> None:
    masker = masker_of(tokenizer, **settings)
    with pytest.raises(DataError, match=rf"'{column}'.*unmask prepare \.\.\. --annotate {column}"):
        masker([[2, 10, 11, 3]])
    with pytest.raises(DataError, match=rf"annotation\.columns=\[\"{column}\"\]"):
        masker(replace(make_rows(tokenizer, 1, [5]), annotations={}), scores=Scores(0, {}))


PENN = ["NN", "VBD", *(f"T{number}" for number in range(20))]


@pytest.mark.parametrize(
    ("weights", "column", "labels", "message"),
    [
        ({"kind": "pos"}, "pos", None, "needs the labels of the annotation 'pos'"),
        ({"kind": "pos", "weights": {"NOUNS": 2.0}}, "pos", ["DET", "NOUN"], "'NOUNS', .*; it has DET"),
        # Weights of which no label occurs in the data (Penn's tags, TIGER's roles); one known label is enough.
        ({"kind": "pos"}, "pos", PENN, "has NN, VBD, .* and 2 more"),
        ({"kind": "role"}, "dependencies", ["sb", "oa", "nk"], "only sb, oa, nk"),
        ({"kind": "pos"}, "pos", [*PENN, "NOUN"], None),
        ({"kind": "pos", "weights": {"NN": 2.0}}, "pos", PENN, None),
        ({"kind": "role"}, "dependencies", ["sb", "nk", "CSUBJ:pass"], None),
    ],
)
def test_labels_that_the_weights_do_not_know(
    tokenizer: Tokenizer, weights: dict[str, object], column: str, labels: list[str] | None, message: str | None
) -> None:
    tables = Tables(tokenizer.vocab_size, labels={} if labels is None else {column: labels})
    masker = masker_of(tokenizer, tables=tables, units=WORDS, weights=weights)
    rows = rows_of("#ww#", **{column: [0, 1, 1, 0]})
    if message is None:
        assert masker(rows, scores=LOSSES).labels.shape == (1, 4)
    else:
        with pytest.raises(SettingsError, match=message):
            masker(rows, scores=LOSSES)


def test_tables_that_are_missing_or_do_not_fit(tokenizer: Tokenizer) -> None:
    rows: Rows = make_rows(tokenizer, 2, [9])
    by_loss: Masker = masker_of(
        tokenizer, tables=Tables(tokenizer.vocab_size, labels=LABELS), units=WORDS, weights={"kind": "pos_loss"}
    )
    with pytest.raises(SettingsError, match="'pos_loss'"):
        by_loss(rows)
    with pytest.raises(SettingsError, match="of 1 parts of speech, but the data has 3"):
        by_loss(rows, scores=pos_loss(1.0, 1.0))
    for table in (None, torch.ones(3)):
        tables = Tables(tokenizer.vocab_size, informativeness_V=table)
        with pytest.raises(SettingsError, match=r"how informative each of the \d+ ids"):
            masker_of(tokenizer, tables=tables, units=WORDS, weights={"kind": "informative"})(rows)
