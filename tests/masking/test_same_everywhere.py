"""Masks stay what they are, bit for bit, and rows from a GPU have the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
import torch

from tests.masking.helpers import make_rows, masker_of, masker_with
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import STRATEGIES, needed_annotations
from unmask.tokenizer.tokenizer import Tokenizer

ALL = sorted(STRATEGIES)
STATIC = [name for name in ALL if not hasattr(STRATEGIES[name]["weights"], "score")]  # that follow no model


# The first half of the sha256 of what the model sees and what it is to predict; others stand in `tests/contract`.
AS_EVER: dict[str, tuple[dict[str, Any], str]] = {
    "adaptive": ({"strategy": "adaptive", "rate": 0.3}, "0129d807209b255a"),
    "semantic": ({"strategy": "semantic", "rate": 0.3}, "e5e9dac592e8e704"),
    "fewer predicted": (
        {"rate": 0.4, "prediction_rate": 0.2, "weights": {"kind": "frequency"}}, "f62d4d7823c01544",
    ),
    "sampled rates": ({"rate": {"kind": "beta"}}, "26ede5e5dd47282f"),
    "shown by unit": (
        {"rate": 0.3, "replacement": {"per": "unit", "random_from": "unigram", "shares": [0.5, 0.4, 0.1]}},
        "3832ac7b54f670b7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_EVER)
def test_masks_are_what_they_were(tokenizer: Tokenizer, name: str) -> None:
    """Bit for bit, since models were trained with them and measured on them: which bits draw what may not change."""
    settings, expected = AS_EVER[name]
    masked = masker_with(tokenizer, **settings)(make_rows(tokenizer, 8, [40, 7]), epoch=3)
    content = masked.input_ids.numpy().tobytes() + masked.labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("strategy", STATIC)
def test_a_gpu_masks_as_a_cpu_does(tokenizer: Tokenizer, strategy: str) -> None:
    """Rows that come from a GPU are masked on the host, and what is made of them is there again."""
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3)
    for lengths in ([50, 9, 1], [400], [1, 1]):
        rows = make_rows(tokenizer, 64, lengths)
        for epoch in range(5):
            here, there = masker(rows, epoch=epoch), masker(rows.to(torch.device("cuda")), epoch=epoch)
            assert torch.equal(here.input_ids, there.input_ids.cpu())
            assert torch.equal(here.labels, there.labels.cpu())


UNANNOTATED = [name for name in ALL if not needed_annotations(list(STRATEGIES[name].values()))]


def pieces(rows: Rows, masked: MaskedRows) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """What became of each document piece, by its key and length."""
    found = {}
    for ids, labels, numbers, keys in zip(
        masked.input_ids, masked.labels, rows.segment_ids, rows.segment_keys, strict=True
    ):
        for number in range(int(numbers.max()) + 1):
            inside = numbers == number
            name = int(keys[inside][0]), int(inside.sum())
            found[name] = ids[inside].tolist(), labels[inside].tolist()
    return found


def masked_by(masker: Masker, batches: Iterable[Any]) -> dict[Any, Any]:
    """Pieces of batches of a stream, by epoch."""
    found: dict[Any, Any] = {}
    for batch in batches:
        masked = pieces(batch.rows, masker(batch.rows, epoch=batch.epoch))
        found |= {(batch.epoch, name): content for name, content in masked.items()}
    return found


@pytest.mark.parametrize("strategy", UNANNOTATED)
def test_batches_of_any_size_and_a_resumed_stream(store: TokenStore, tokenizer: Tokenizer, strategy: str) -> None:
    """One stream read by 3, by 16 and from a cursor amid the second epoch on: the pieces that both have are equal."""
    masker = masker_of(tokenizer, strategy=strategy, rate=0.3)
    rows_an_epoch = sum(len(b.rows.input_ids) for b in _epoch(RowStream(store, tokenizer, length=48, seed=1)))
    small = list(islice(RowStream(store, tokenizer, length=48, seed=1).batches(Cursor(), 3), rows_an_epoch // 2))
    large = islice(RowStream(store, tokenizer, length=48, seed=1).batches(Cursor(), 16), rows_an_epoch // 10)
    one, two = masked_by(masker, small), masked_by(masker, large)
    assert {epoch for epoch, _ in one} == {epoch for epoch, _ in two} == {0, 1}
    both = one.keys() & two.keys()
    assert len(both) > 0.9 * min(len(one), len(two)) > 300
    assert all(one[name] == two[name] for name in both)
    stop = len(small) - 20
    resumed = islice(RowStream(store, tokenizer, length=48, seed=1).batches(small[stop].cursor, 3), 19)
    again = masked_by(masker_of(tokenizer, strategy=strategy, rate=0.3), resumed)
    assert again == masked_by(masker, small[stop + 1 :])


def _epoch(stream: RowStream) -> Iterable[Any]:
    for batch in stream.batches(Cursor(), 16):
        if batch.epoch:
            return
        yield batch


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_shared_out_over_ranks(tokenizer: Tokenizer, strategy: str, ranks: int) -> None:
    """Each rank with a masker of its own takes every n-th row; together they make the batch of one."""
    rows = make_rows(tokenizer, 30, [20, 9])
    whole = masker_of(tokenizer, strategy=strategy, rate=0.3)(rows, epoch=1)
    for rank in range(ranks):
        part = rows.map(lambda tensor, rank=rank: tensor[rank::ranks])  # type: ignore[misc]
        masked = masker_of(tokenizer, strategy=strategy, rate=0.3)(part, epoch=1)
        assert torch.equal(masked.input_ids, whole.input_ids[rank::ranks])
        assert torch.equal(masked.labels, whole.labels[rank::ranks])
