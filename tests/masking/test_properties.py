"""Properties of all units and weights: the exact rate, the minimum, whole units, shares of replacement; and of any
batch: ragged, empty, of only special tokens, of endless words; in vocabularies of 10 and of 70,000 entries."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import WordPiece

from tests.masking.helpers import annotated, assert_mean, make_rows, masker_of
from unmask.data.rows import Rows
from unmask.masking.features import rows_from_ids
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import STRATEGIES
from unmask.masking.units import PlainUnits
from unmask.masking.weights import AnyWeights
from unmask.tokenizer.tokenizer import Tokenizer


def kinds_of(union: object) -> list[str]:
    """The kinds of a tagged union of settings."""
    return [member.model_fields["kind"].default for member in get_args(get_args(union)[0])]


UNITS, WEIGHTS = kinds_of(PlainUnits), kinds_of(AnyWeights)
STRATEGY_NAMES = sorted(STRATEGIES)


def pair(units: str, weights: str, **others: object) -> dict[str, object]:
    extra = {"background": "anywhere"} if weights == "anchors" else {}
    return {"units": {"kind": units}, "weights": {"kind": weights, **extra}, **others}


@pytest.mark.parametrize(
    ("units", "weights"), sorted({*product(UNITS, ("uniform", "frequency")), *product(("words", "entity"), WEIGHTS)})
)
def test_the_expected_rate_is_exact(tokenizer: Tokenizer, units: str, weights: str) -> None:
    """Segments of 1 to 30 tokens, words of 2.5 tokens on average."""
    rows = make_rows(tokenizer, 1500, [1, 4, 9, 30], mean_word=2.5)
    assert_mean((masker_of(tokenizer, seed=2, **pair(units, weights, rate=0.2))(rows).labels >= 0).sum(1), 0.2 * 44)


@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
def test_the_floor_of_one_target(tokenizer: Tokenizer, strategy: str) -> None:
    """If it is on, every piece with text has a target; if it is off, some have none."""
    rows = make_rows(tokenizer, 300, [1, 3, 0, 12], mean_word=2.0)
    for floor in (True, False):
        target = masker_of(tokenizer, strategy=strategy, rate=0.05, least_one=floor)(rows).labels >= 0
        for number, length in enumerate([1, 3, 0, 12]):
            has_one = (target & (rows.segment_ids == number)).any(1)
            assert bool(has_one.all()) == (floor and length > 0), (floor, length)
        assert not (target & ~rows.maskable).any()


def draws(rows: Rows, masked: MaskedRows, tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """For each target: its unit, and its replacement (0: mask, 1: random token, 2: unchanged)."""
    target = masked.labels >= 0
    unit = torch.arange(len(target))[:, None] * rows.shape[1] + masked.boundaries.before
    kind = torch.where(masked.input_ids == tokenizer.special.mask, 0, 1 + (masked.input_ids == rows.input_ids).long())
    return unit[target], kind[target]


@pytest.mark.parametrize("per", ["token", "unit"])
@pytest.mark.parametrize("units", UNITS)
def test_shares_of_tokens_and_of_units(tokenizer: Tokenizer, units: str, per: str) -> None:
    """80 / 10 / 10 of the draws; with a draw per unit, no unit has two kinds of replacement."""
    rows = make_rows(tokenizer, 1500, [120], mean_word=2.0)
    values = pair(units, "uniform", rate=0.3, replacement={"per": per})
    unit, kind = draws(rows, masker_of(tokenizer, seed=2, with_boundaries=True, **values)(rows), tokenizer)
    _, number, sizes = torch.unique(unit, return_inverse=True, return_counts=True)
    one_hot = torch.zeros(len(sizes), 3).index_put_((number, kind), torch.ones(len(kind)), accumulate=True)
    mixed = ((one_hot > 0).sum(1) > 1).double().mean()
    if per == "unit":
        assert mixed == 0
    elif units != "tokens":
        assert mixed > 0.02, "units of several tokens have several draws"
    shares = (one_hot > 0).double().mean(0) if per == "unit" else torch.bincount(kind).double() / len(kind)
    count = len(sizes) if per == "unit" else len(kind)
    for share, expected in zip(shares.tolist(), (0.8, 0.1, 0.1), strict=True):
        assert abs(share - expected) < 4 * (expected * (1 - expected) / count) ** 0.5


def test_chosen_spans_are_as_long_as_the_papers(tokenizer: Tokenizer) -> None:
    """Joshi et al. 2020: geometric, p = 0.2, cut at 10, each length in its share among the spans that are *chosen*.

    In a document of 4,000 tokens with a budget of 600, the budget's preference for short units is below 1 %.
    """
    rows = make_rows(tokenizer, 60, [4000], mean_word=1.0)
    masked = masker_of(tokenizer, strategy="span", rate=0.15, seed=2, with_boundaries=True)(rows)
    unit, _ = draws(rows, masked, tokenizer)
    sizes = torch.unique(unit, return_counts=True)[1]
    assert len(sizes) > 8000
    weights = torch.tensor([0.2 * 0.8**k for k in range(10)])
    for length, expected in enumerate((weights / weights.sum()).tolist(), start=1):
        share = float((sizes == length).double().mean())
        assert abs(share - expected) < 4 * (expected * (1 - expected) / len(sizes)) ** 0.5, length
    assert sizes.max() == 10
    assert abs(float(sizes.double().mean()) - 3.797) < 4 * float(sizes.double().std()) / len(sizes) ** 0.5


SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = (10, 70_000)  # one of more than 16 bits


@functools.cache
def tokenizer_of(size: int) -> Tokenizer:
    """Every second ordinary entry continues a word; the first two hundred of these give words of any length."""
    words = [f"##w{n}" if n % 2 else f"w{n}" for n in range(size - len(SPECIALS))]
    vocabulary = {token: id_ for id_, token in enumerate([*SPECIALS, *words])}
    return Tokenizer(tokenizers.Tokenizer(WordPiece(vocabulary, unk_token="[UNK]")))


@functools.cache
def masker_for(size: int, strategy: str, rate: float, random_from: str) -> Masker:
    replacement = {"shares": (0.4, 0.4, 0.2), "random_from": random_from}
    return masker_of(tokenizer_of(size), strategy=strategy, rate=rate, replacement=replacement, seed=1)


def ids(size: int) -> st.SearchStrategy[int]:
    """Special and ordinary ids, the first and the last among them."""
    return st.one_of(st.integers(0, min(size, 40) - 1), st.integers(0, size - 1), st.just(size - 1))


def row(size: int) -> st.SearchStrategy[list[int]]:
    """Rows of anything; empty, of one token, of only special tokens; one word that exceeds any budget."""
    going_on = [id_ for id_ in range(6, min(size, 40), 2) if id_ % 2 == 0]
    return st.one_of(
        st.lists(ids(size), max_size=30),
        st.just([]),
        st.lists(ids(size), min_size=1, max_size=1),
        st.lists(st.integers(0, 4), max_size=12),
        st.lists(st.sampled_from(going_on), min_size=1, max_size=60).map(lambda tail: [2, 5, *tail, 3]),
    )


@settings(max_examples=100)
@given(data=st.data())
def test_any_batch_of_any_vocabulary(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(SIZES))
    batch = data.draw(st.lists(row(size), max_size=6))
    strategy = data.draw(st.sampled_from(sorted(STRATEGIES)))
    rate = data.draw(st.sampled_from([0.15, 0.99]))
    masker = masker_for(size, strategy, rate, data.draw(st.sampled_from(["uniform", "unigram"])))
    rows = annotated(rows_from_ids(batch, masker.tokenizer), seed=data.draw(st.integers(0, 5)))
    epoch = data.draw(st.integers(0, 3))
    before = rows.map(torch.clone)
    masked = masker(rows, epoch=epoch)

    columns = {**vars(before), **before.annotations}
    for name, now in {**vars(rows), **rows.annotations}.items():
        assert not isinstance(now, torch.Tensor) or torch.equal(now, columns[name]), "the input is as it was"
    target, ordinary = masked.labels != -100, torch.from_numpy(masker.tokenizer.ordinary)
    original = rows.input_ids
    assert masked.input_ids.shape == original.shape == (len(batch), max(map(len, batch), default=0))
    assert not (target & ~rows.maskable).any(), "special tokens and padding are no targets"
    assert torch.equal(masked.labels[target], original[target])
    assert torch.equal(masked.input_ids[~target], original[~target])
    seen = masked.input_ids[target]
    assert (ordinary[seen] | (seen == masker.tokenizer.special.mask)).all(), "nor do they stand for one"
    again = masker(replace(rows), epoch=epoch)
    assert torch.equal(again.input_ids, masked.input_ids)
    for number in range(len(batch)):
        alone = masker(rows.part(number, number + 1), epoch=epoch)
        assert torch.equal(alone.labels[0], masked.labels[number])
        length = int(rows.maskable[number].sum())
        assert int(target[number].sum()) < rate * length + max(1, length)


@pytest.mark.parametrize("size", SIZES)
def test_the_rate_is_exact_in_any_vocabulary(size: int) -> None:
    """And in the smallest vocabulary, random tokens cover all other entries."""
    rng = np.random.default_rng(0)
    batch = [[2, *rng.integers(5, size, 40).tolist(), 3] for _ in range(3000)]
    masker = masker_for(size, "whole_word", 0.15, "uniform")
    masked = masker(batch)
    assert_mean((masked.labels >= 0).sum(1), 6.0)
    replaced = (masked.labels >= 0) & (masked.input_ids != masker.tokenizer.special.mask)
    replaced &= masked.input_ids != masked.labels
    drawn = torch.bincount(masked.input_ids[replaced], minlength=size)
    assert drawn[:5].sum() == 0
    if size == 10:
        assert (drawn[5:] / drawn.sum()).tolist() == pytest.approx([0.2] * 5, abs=0.02)
    else:
        assert drawn.max() <= 3
        assert drawn[size // 2 :].sum() > 0.45 * drawn.sum()
