"""Any batch: ragged, empty, of only special tokens, of endless words; vocabularies of 10 and of 250,000 entries."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import WordPiece

from tests.masking.helpers import annotated, assert_mean, masker_with
from unmask.masking.features import rows_from_ids
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES
from unmask.tokenizer.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = (10, 250_000)


@functools.cache
def tokenizer_of(size: int) -> Tokenizer:
    """Every second ordinary entry continues a word; the first two hundred of these give words of any length."""
    words = [f"##w{n}" if n % 2 else f"w{n}" for n in range(size - len(SPECIALS))]
    vocabulary = {token: id_ for id_, token in enumerate([*SPECIALS, *words])}
    return Tokenizer(tokenizers.Tokenizer(WordPiece(vocabulary, unk_token="[UNK]")))


@functools.cache
def masker_of(size: int, strategy: str, rate: float, random_from: str) -> Masker:
    replacement = {"shares": (0.4, 0.4, 0.2), "random_from": random_from}
    return masker_with(tokenizer_of(size), strategy=strategy, rate=rate, replacement=replacement, seed=1)


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


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_batch_of_any_vocabulary(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(SIZES))
    batch = data.draw(st.lists(row(size), max_size=6))
    strategy = data.draw(st.sampled_from(sorted(STRATEGIES)))
    rate = data.draw(st.sampled_from([0.01, 0.15, 0.5, 0.99]))
    masker = masker_of(size, strategy, rate, data.draw(st.sampled_from(["uniform", "unigram"])))
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
    masker = masker_of(size, "whole_word", 0.15, "uniform")
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
