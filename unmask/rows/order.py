"""In which order an epoch takes the pieces of a split: a function of seed and epoch.

Up to `MIXED_PIECES` pieces and `MIXED_TOKENS` tokens all pieces are shuffled, and cut into windows of about a million
tokens. A larger split would need gigabytes for that, and all of its shards before the first window. There, shards are
shuffled and dealt into blocks of a few dozen; the pieces of a block are shuffled and cut into windows:

    shards   7 2 9 | 4 0 5 | 1 8 ...       blocks of at most 2^28 tokens or 2^22 pieces
    windows  0 1 2   3 4 5   6 7 ...       each of pieces from all shards of its block

So memory is that of a block, whatever the corpus, and what is not on this machine yet can come while the block before
it is trained on. Where the windows of a block begin follows from the counts of the manifest alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.hashing import permutation
from unmask.shards.mapped import ShardCounts
from unmask.shards.store import TokenStore

WINDOW_TOKENS = 1 << 20
MIXED_PIECES, MIXED_TOKENS = 1 << 24, 1 << 34
BLOCK_PIECES, BLOCK_TOKENS = 1 << 22, 1 << 28
ORDER = 1  # sets these hashes apart from others of the same seed
_SHARDS, _BLOCK = 6, 7


class WindowOrder(Protocol):
    """The windows of each epoch."""

    def num_windows(self, epoch: int) -> int:
        """How many there are."""

    def pieces(self, epoch: int, window: int) -> NDArray[np.int64]:
        """The pieces of one, in order."""

    def ahead(self, epoch: int, window: int) -> list[int]:
        """Shards that windows behind this one will need, in the order in which they will."""


def order_of(store: TokenStore, *, seed: int, shuffle: bool) -> WindowOrder:
    """The order that a split of this size has.

    Args:
        store: The split.
        seed: Of the order.
        shuffle: False keeps the order of the corpus.
    """
    if is_mixed(len(store), store.num_tokens):
        return MixedOrder(store, seed=seed, shuffle=shuffle)
    return BlockOrder(store.counts, seed=seed, shuffle=shuffle)


def is_mixed(num_pieces: int, num_tokens: int) -> bool:
    """Whether the first window of a split of this size has pieces of all of it."""
    return num_pieces <= MIXED_PIECES and num_tokens <= MIXED_TOKENS


class MixedOrder:
    """All pieces shuffled."""

    def __init__(self, store: TokenStore, *, seed: int, shuffle: bool) -> None:
        self._store, self._seed, self._shuffle = store, seed, shuffle
        self._epochs: dict[int, list[NDArray[np.int64]]] = {}

    def num_windows(self, epoch: int) -> int:
        """See `WindowOrder`."""
        return len(self._windows(epoch))

    def pieces(self, epoch: int, window: int) -> NDArray[np.int64]:
        """See `WindowOrder`."""
        return self._windows(epoch)[window]

    def ahead(self, epoch: int, window: int) -> list[int]:
        """None: the first window has pieces of all shards, so that all are there."""
        return []

    def _windows(self, epoch: int) -> list[NDArray[np.int64]]:
        found = self._epochs.get(epoch)
        if found is None:
            size, lengths = len(self._store), self._store.lengths
            order = permutation(size, ORDER, self._seed, epoch) if self._shuffle else np.arange(size)
            window = np.zeros(size, dtype=np.int64)  # that each piece begins in; in place, since there may be many
            np.cumsum(lengths[order][:-1], out=window[1:])
            window //= WINDOW_TOKENS
            found = np.split(order, np.flatnonzero(window[1:] != window[:-1]) + 1)
            self._epochs = {number: each for number, each in self._epochs.items() if abs(number - epoch) == 1}
            self._epochs[epoch] = found
        return found


class _Plan:
    """The blocks of an epoch.

    Attributes:
        shards: [num_shards]: in the order in which they are taken.
        blocks: Where each block's shards begin in that, and where the last one's end.
        windows: [num_blocks + 1]: the first window of each, and how many there are in all.
    """

    def __init__(self, counts: ShardCounts, *, key: tuple[int, ...] | None) -> None:
        every = np.arange(len(counts.pieces)) if key is None else permutation(len(counts.pieces), *key)
        self.shards: list[int] = every[counts.pieces[every] > 0].tolist()
        self.blocks, windows = [0], [0]
        pieces = tokens = 0
        for place, shard in enumerate(self.shards):
            pieces, tokens = pieces + int(counts.pieces[shard]), tokens + int(counts.tokens[shard])
            if pieces >= BLOCK_PIECES or tokens >= BLOCK_TOKENS or place + 1 == len(self.shards):
                self.blocks.append(place + 1)
                windows.append(windows[-1] + min(max(round(tokens / WINDOW_TOKENS), 1), pieces))
                pieces = tokens = 0
        self.windows = np.array(windows)

    def of_block(self, block: int) -> list[int]:
        """The shards of a block."""
        return self.shards[self.blocks[block] : self.blocks[block + 1]]


class BlockOrder:
    """Shards shuffled, and the pieces of some at a time; see the module's docstring.

    Args:
        counts: Of the split's shards.
        seed: Of the order.
        shuffle: False keeps the order of the corpus.
    """

    def __init__(self, counts: ShardCounts, *, seed: int, shuffle: bool) -> None:
        self._counts, self._seed, self._shuffle = counts, seed, shuffle
        self._before = np.cumsum(counts.pieces) - counts.pieces
        self._plans: dict[int, _Plan] = {}
        self._block: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def num_windows(self, epoch: int) -> int:
        """See `WindowOrder`."""
        return int(self._plan(epoch).windows[-1])

    def pieces(self, epoch: int, window: int) -> NDArray[np.int64]:
        """See `WindowOrder`. All windows of a block have equally many pieces, and so about equally many tokens."""
        plan = self._plan(epoch)
        block = int(np.searchsorted(plan.windows, window, side="right")) - 1
        pieces = self._pieces_of(epoch, block)
        number, of = window - plan.windows[block], plan.windows[block + 1] - plan.windows[block]
        return pieces[len(pieces) * number // of : len(pieces) * (number + 1) // of]

    def ahead(self, epoch: int, window: int) -> list[int]:
        """The shards of the next block, which may be the first of the next epoch."""
        plan = self._plan(epoch)
        block = int(np.searchsorted(plan.windows, window, side="right"))
        return plan.of_block(block) if block + 1 < len(plan.blocks) else self._plan(epoch + 1).of_block(0)

    def _plan(self, epoch: int) -> _Plan:
        found = self._plans.get(epoch)
        if found is None:
            found = _Plan(self._counts, key=(_SHARDS, self._seed, epoch) if self._shuffle else None)
            self._plans = {number: each for number, each in self._plans.items() if abs(number - epoch) == 1}
            self._plans[epoch] = found
        return found

    def _pieces_of(self, epoch: int, block: int) -> NDArray[np.int64]:
        """The pieces of a block, in order; those of the last one that was asked for are kept."""
        kept = self._block
        if kept is None or kept[0] != (epoch, block):
            pieces = np.concatenate(
                [self._before[n] + np.arange(self._counts.pieces[n]) for n in self._plan(epoch).of_block(block)]
            )
            if self._shuffle:
                pieces = pieces[permutation(len(pieces), _BLOCK, self._seed, epoch, block)]
            kept = self._block = (epoch, block), pieces
        return kept[1]
