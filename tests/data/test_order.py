"""The order of an epoch, above all of splits that are too large for all of their pieces to be shuffled at once."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unmask.data import packing as order_module
from unmask.data.packing import EpochOrder
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import ShardCounts, TokenStore
from unmask.tokenizer.tokenizer import Tokenizer

COUNTS = ShardCounts(np.array([7, 0, 40, 5, 3, 12, 1, 9]), np.array([700, 0, 400, 900, 3000, 120, 100, 2000]))


STORE: Any = SimpleNamespace(counts=COUNTS)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("MIXED_PIECES", 1), ("WINDOW_TOKENS", 300), ("BLOCK_PIECES", 30), ("BLOCK_TOKENS", 1500)):
        monkeypatch.setattr(order_module, name, number)


def windows(order: EpochOrder, epoch: int) -> list[list[int]]:
    return [order.pieces(epoch, window).tolist() for window in range(order.num_windows(epoch))]


@pytest.mark.usefixtures("small_blocks")
def test_an_epoch_of_blocks_has_every_piece_once() -> None:
    order = EpochOrder(STORE, seed=3, shuffle=True)
    epochs = [windows(order, epoch) for epoch in range(3)]
    for found in epochs:
        assert all(found), "no window is empty"
        assert sorted(piece for window in found for piece in window) == list(range(77))
    assert epochs[0] != epochs[1] != epochs[2]
    in_order = windows(EpochOrder(STORE, seed=3, shuffle=False), 0)
    assert [piece for window in in_order for piece in window] == list(range(77))
    assert windows(EpochOrder(STORE, seed=4, shuffle=True), 0) != epochs[0]
    again = EpochOrder(STORE, seed=3, shuffle=True)
    assert again.pieces(1, 4).tolist() == epochs[1][4], "a window is made without those before it"
    assert again.num_windows(1) == len(epochs[1])


@pytest.mark.usefixtures("small_blocks")
def test_windows_of_a_block_mix_its_shards() -> None:
    order = EpochOrder(STORE, seed=0, shuffle=True)
    begins = np.cumsum(COUNTS.pieces) - COUNTS.pieces

    def shards(window: list[int]) -> set[int]:
        return set((np.searchsorted(begins, window, side="right") - 1).tolist())

    found = windows(order, 0)
    blocks: list[set[int]] = []
    for window in found:
        if not blocks or not shards(window) <= blocks[-1]:
            blocks.append(shards(window))
        blocks[-1] |= shards(window)
    assert set().union(*blocks) == {0, 2, 3, 4, 5, 6, 7}
    assert any(len(shards(window)) > 1 for window in found)
    first = [piece for window in found for piece in window][: sum(map(len, found[:2]))]
    assert first != sorted(first)


def test_a_stream_of_blocks_has_every_token_once(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "MIXED_PIECES", 1)
    monkeypatch.setattr(order_module, "WINDOW_TOKENS", 500)
    stream = RowStream(store, tokenizer, length=64, seed=0, ahead=True)
    tokens = [0, 0]
    for batch in islice(stream.batches(Cursor(), 7), 10**4):
        if batch.epoch == 2:
            break
        tokens[batch.epoch] += batch.num_tokens
    assert tokens == [store.num_tokens] * 2
