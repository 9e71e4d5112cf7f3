"""What a mask depends on, bit for bit; rows from a GPU; replacements of chosen tokens; where spans end; mixtures, and
rates of each piece."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.masking.helpers import assert_share, make_rows, masker_of
from tests.tokenizer.families import bare_characters
from unmask.core.errors import SettingsError
from unmask.core.hashing import mix
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.draw import random_tokens, replace_tokens
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings
from unmask.tokenizer.tokenizer import Tokenizer

ALL = sorted(STRATEGIES)


@pytest.mark.parametrize("strategy", ALL)
def test_a_mask_depends_on_seed_epoch_and_content_alone(tokenizer: Tokenizer, strategy: str) -> None:
    """The same segment has the same mask in any batch, row, order and company."""
    rows = make_rows(tokenizer, 40, [20, 9])
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3, seed=3)
    whole = masker(rows, epoch=2)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    shuffled = masker(rows.map(lambda tensor: tensor[order]), epoch=2)
    assert torch.equal(shuffled.input_ids, whole.input_ids[order])
    alone = masker(rows.part(7, 8), epoch=2)
    assert torch.equal(alone.labels, whole.labels[7:8])
    # the second segment of each row, moved to the front of a row of its own
    second = rows.map(lambda tensor: tensor[:, 22:33])
    assert torch.equal(masker(second, epoch=2).input_ids, whole.input_ids[:, 22:33])
    for other in (masker(rows, epoch=3), masker_of(tokenizer, strategy=strategy, rate=0.3, seed=4)(rows)):
        assert not torch.equal(other.labels, whole.labels)


def test_plain_rows_are_keyed_by_their_content_whatever_the_padding(tokenizer: Tokenizer) -> None:
    row = [2, *range(10, 40), 3]
    masker = Masker.from_tokenizer(tokenizer, rate=0.4)
    alone = masker([row]).input_ids[0]
    padded = masker([row + [0] * 9, list(range(10, 51))]).input_ids[0]
    tensor = masker(torch.tensor([row])).input_ids[0]
    assert torch.equal(alone, padded[:32])
    assert torch.equal(alone, tensor)
    other = masker([[2, *range(11, 41), 3]])
    assert not torch.equal(other.labels[0] == -100, masker([row]).labels[0] == -100)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[2, -1, 3]], "id -1"),
        ([["a"]], "feature 0"),
        ([2, 50, 3], "feature 0"),
        ([[2, 3], [[2], [50, 3]]], "feature 1"),
        (torch.zeros(2, 3), "torch.float32"),
    ],
)
def test_rows_that_cannot_be_masked(tokenizer: Tokenizer, rows: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Masker.from_tokenizer(tokenizer)(rows)  # type: ignore[arg-type]


STATIC = [name for name in ALL if not hasattr(STRATEGIES[name]["weights"], "score")]  # that follow no model


# The first half of the sha256 of the model's input and labels; more hashes are in `tests/contract`.
AS_EVER: dict[str, tuple[dict[str, Any], str]] = {
    "adaptive": ({"strategy": "adaptive", "rate": 0.3}, "0129d807209b255a"),
    "semantic": ({"strategy": "semantic", "rate": 0.3}, "e5e9dac592e8e704"),
    "shown by unit": (
        {"rate": 0.3, "replacement": {"per": "unit", "random_from": "unigram", "shares": [0.5, 0.4, 0.1]}},
        "3832ac7b54f670b7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_EVER)
def test_masks_are_what_they_were(tokenizer: Tokenizer, name: str) -> None:
    """Bit for bit, since models were trained and measured with these masks: the use of random bits must not change."""
    settings, expected = AS_EVER[name]
    masked = masker_of(tokenizer, **settings)(make_rows(tokenizer, 8, [40, 7]), epoch=3)
    content = masked.input_ids.numpy().tobytes() + masked.labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("strategy", STATIC)
def test_a_gpu_masks_as_a_cpu_does(tokenizer: Tokenizer, strategy: str) -> None:
    """Rows from a GPU are masked on the host, and the result is on the GPU again."""
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3)
    for lengths in ([50, 9, 1], [400], [1, 1]):
        rows = make_rows(tokenizer, 64, lengths)
        for epoch in range(5):
            here, there = masker(rows, epoch=epoch), masker(rows.to(torch.device("cuda")), epoch=epoch)
            assert torch.equal(here.input_ids, there.input_ids.cpu())
            assert torch.equal(here.labels, there.labels.cpu())


def test_unigram_replacement_follows_the_frequencies(tokenizer: Tokenizer) -> None:
    frequencies = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    frequencies[[0, 4, 20, 21, 22]] = [10**6, 10**6, 600, 300, 100]
    masker = Masker.from_tokenizer(
        tokenizer, rate=0.5, replacement=(0.0, 1.0, 0.0), random_from="unigram", frequencies=frequencies
    )
    rows = make_rows(tokenizer, 2000, [120])
    masked = masker(rows)
    target = masked.labels != -100
    foreign = target & ~torch.isin(masked.labels, torch.tensor([20, 21, 22]))
    counts = torch.bincount(masked.input_ids[foreign], minlength=tokenizer.vocab_size)
    assert set(counts.nonzero()[:, 0].tolist()) == {20, 21, 22}
    assert (counts[[20, 21, 22]] / counts.sum()).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.01)


@pytest.mark.parametrize(("original", "shares"), [(1, {2: 0.5, 4: 0.5}), (4, {1: 2 / 3, 2: 1 / 3})])
def test_without_the_original_the_others_keep_their_proportions(original: int, shares: dict[int, float]) -> None:
    """Counts of 2, 1 and 1 for the ids 1, 2 and 4."""
    draws = 20_000
    seen = replace_tokens(
        torch.full((draws,), original),
        torch.ones(draws, dtype=torch.bool),
        mix(torch.arange(draws)),
        unit_begin_T=torch.arange(draws),
        shares=(0.0, 1.0, 0.0),
        per_unit=False,
        mask_id=9,
        tokens=random_tokens(np.array([0, 2, 1, 0, 1])),
    )
    counts = torch.bincount(seen, minlength=5)
    assert set(counts.nonzero()[:, 0].tolist()) == set(shares)
    for id_, share in shares.items():
        assert_share(seen == id_, share)


class Even:
    """Weights of a user, who may look at any table."""

    def log2(self, rows: object, units: object, tables: object) -> None:
        return None


def test_documents_are_counted_for_weights_of_users(tokenizer: Tokenizer, data_folder: Path) -> None:
    counted = Masker.from_tokenizer(tokenizer, weights=Even(), tables=data_folder).tables
    assert counted.num_documents > 0
    assert Masker.from_tokenizer(tokenizer, tables=data_folder).tables.documents_V is None


SPANS = MaskingSettings.model_validate({"strategy": "span", "rate": 0.4})


@pytest.mark.parametrize("pairs", [None, "next_sentence"])
def test_boundaries_enclose_units_in_their_segment(store: TokenStore, tokenizer: Tokenizer, pairs: str | None) -> None:
    stream = RowStream(store, tokenizer, length=64, seed=0, pairs=pairs)  # type: ignore[arg-type]
    masker = Masker(SPANS, tokenizer, with_boundaries=True)
    spans = at_edges = 0
    for batch in islice(stream.batches(Cursor(), 8), 5):
        rows, masked = batch.rows, masker(batch.rows)
        for r, s in torch.nonzero(masked.labels >= 0).tolist():
            before, behind = int(masked.boundaries.before[r, s]), int(masked.boundaries.behind[r, s])
            inside = range(before + 1, behind)
            assert s in inside
            assert len(set(rows.segment_ids[r, before : behind + 1].tolist())) == 1
            assert rows.maskable[r, before + 1 : behind].all()
            assert (masked.labels[r, before + 1 : behind] >= 0).all(), "a span is masked as a whole"
            assert rows.word_starts[r, before + 1]
            assert rows.word_starts[r, behind] or not rows.maskable[r, behind]
            spans += s == before + 1
            at_edges += not rows.maskable[r, before] or not rows.maskable[r, behind]
    assert spans > 100
    assert at_edges > 20


def test_masks_are_the_same_with_boundaries(store: TokenStore, tokenizer: Tokenizer) -> None:
    rows = RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), 8).rows
    without, with_them = Masker(SPANS, tokenizer)(rows), Masker(SPANS, tokenizer, with_boundaries=True)(rows)
    assert without.boundaries is None
    assert without.part(1, 3).boundaries is None
    assert torch.equal(without.input_ids, with_them.input_ids)
    part = with_them.part(2, 5).to(torch.device("cpu"))
    assert torch.equal(part.boundaries.before, with_them.boundaries.before[2:5])


def test_a_tokenizer_that_puts_nothing_around_a_text() -> None:
    with pytest.raises(SettingsError, match=r"\[CLS\]"):
        Masker(SPANS, bare_characters(), with_boundaries=True)


def words_whole(rows: Rows, masked: MaskedRows) -> torch.Tensor:
    """[B]: whether all of a row's words of several pieces are masked as a whole or not at all."""
    target = masked.labels >= 0
    inside = rows.maskable & ~rows.word_starts
    split = inside[:, 1:] & (target[:, 1:] != target[:, :-1])
    return ~split.any(1)


def mixture(*parts: tuple[str, object], per: str = "row") -> dict[str, object]:
    """Units of strategies and their shares."""
    return {"kind": "mixture", "per": per, "parts": [{"strategy": name, "share": share} for name, share in parts]}


def test_each_piece_has_one_strategy_of_the_mixture(tokenizer: Tokenizer) -> None:
    """Rows with only whole words come from the first part; single tokens rarely give such rows by chance."""
    rows = make_rows(tokenizer, 4000, [60], mean_word=3.0)
    masker = masker_of(tokenizer, units=mixture(("whole_word", 0.7), ("random", 0.3)), rate=0.3, seed=1)
    assert_share(words_whole(rows, masker(rows)), 0.7)
    assert float(words_whole(rows, masker_of(tokenizer, rate=0.3)(rows)).double().mean()) < 1e-3


def test_shares_move_with_progress(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 2000, [60], mean_word=3.0)
    rising, falling = ({"kind": "linear", "start": start, "end": 1.0 - start} for start in (0.0, 1.0))
    masker = masker_of(tokenizer, units=mixture(("whole_word", rising), ("random", falling)), rate=0.3)
    shares = [float(words_whole(rows, masker(rows, progress=p)).double().mean()) for p in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.0, 0.5, 1.0], abs=0.05)


@pytest.mark.parametrize("name", ["random", "whole_word", "span"])
def test_a_part_masks_as_it_would_alone(tokenizer: Tokenizer, name: str) -> None:
    """Where the mixture is all of one strategy, the masks are those of the strategy."""
    rows = make_rows(tokenizer, 50, [30, 20])
    mixed = masker_of(tokenizer, units=mixture((name, 1.0), ("random", 0.0)))(rows)
    alone = masker_of(tokenizer, strategy=name)(rows)
    assert torch.equal(mixed.labels, alone.labels)
    assert torch.equal(mixed.input_ids, alone.input_ids)


@pytest.mark.parametrize("moves", ["epoch", "step"])
def test_steps_differ_where_the_progress_stands_still(tokenizer: Tokenizer, moves: str) -> None:
    """Also in single epochs, and the same place always has the same strategy."""
    rows = make_rows(tokenizer, 200, [60], mean_word=3.0)
    units = mixture(("whole_word", 1.0), ("random", 1.0), per="step")
    masker = masker_of(tokenizer, units=units, rate=0.3, seed=1)

    def shares(count: int) -> list[float]:
        return [float(words_whole(rows, masker(rows, **{moves: n})).double().mean()) for n in range(count)]  # type: ignore[arg-type]

    first = shares(200)
    assert all(share == 1.0 or share < 0.05 for share in first)
    assert_share(torch.tensor(first) > 0.5, 0.5)
    assert shares(20) == first[:20]


def test_each_piece_draws_its_rate(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 4000, [200])
    masker = masker_of(tokenizer, rate={"kind": "uniform", "low": 0.1, "high": 0.5})
    share = ((masker(rows).labels >= 0).sum(1).double() / 200).numpy()
    deviation = 0.4 / 12**0.5
    assert 0.1 - 0.006 <= share.min() <= share.max() <= 0.5 + 0.006
    assert share.mean() == pytest.approx(0.3, abs=4 * deviation / 4000**0.5)
    assert np.std(share) == pytest.approx(deviation, rel=0.05)


def test_losses_are_weighed_by_the_inverse_of_the_rate(tokenizer: Tokenizer) -> None:
    """The sum of the weights of a row's targets is then its number of tokens, whatever its rate."""
    rows = make_rows(tokenizer, 500, [400])
    masked = masker_of(tokenizer, rate={"kind": "uniform", "low": 0.1, "high": 0.9, "loss_weight": "inverse"}, seed=1)(
        rows
    )
    sums = torch.where(masked.labels >= 0, masked.loss_weights, 0.0).sum(1)
    assert float((sums / 400 - 1).abs().max()) < 0.03
    assert masker_of(tokenizer)(rows).loss_weights is None
