"""How much each token of the vocabulary tells of its neighbours: the mean of their pointwise mutual information.

    informativeness(w) = sum over c of p(c | w) log( p(c | w) / p(c) )

where c goes over what stands up to five tokens before or behind w, in other words than w's own. The word `Highness`
tells much (`Royal` is near), `the` tells nothing.

Source: Sadeq et al. 2022 (InforMask), section 3, where a token's relevance is the sum of its mutual information with
the tokens that stay visible. Approximations here, so that counts stay few and no estimate rests on nothing: the 1,024
most frequent tokens are told apart as neighbours and all others are one; the bias of counts that are few, (number of
different neighbours - 1) / (2 x neighbours) to first order (Miller 1955), is taken off; tokens that stand ten times or
less get the median.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.collocations.counts import RUN_KEYS, Counter
from unmask.tokens.shards import TokenChunk
from unmask.tokens.tokenizer import Tokenizer

NEIGHBOURS = 1024
WINDOW = 5
RARE = 10


def informativeness_of(
    chunks: Iterable[TokenChunk],
    tokenizer: Tokenizer,
    frequencies: NDArray[np.int64],
    *,
    scratch: Path,
    run_keys: int = RUN_KEYS,
) -> NDArray[np.float32]:
    """Goes through a corpus once.

    Args:
        chunks: The corpus.
        tokenizer: Whose tokens they are.
        frequencies: [vocab_size]: how often each id stands in it.
        scratch: Folder for temporary files.
        run_keys: Keys that are counted in memory at a time.

    Returns:
        [vocab_size], in nats; at least 0.
    """
    kinds = _kinds(frequencies * tokenizer.ordinary)
    with Counter(scratch, run_keys=run_keys) as counter:
        for chunk in chunks:
            for token, neighbour in _pairs(chunk, tokenizer.ordinary):
                counter.add(token * (NEIGHBOURS + 1) + kinds[neighbour])
                counter.add(neighbour * (NEIGHBOURS + 1) + kinds[token])
        return _from_counts(counter, frequencies * tokenizer.ordinary)


def _kinds(frequencies: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the most frequent tokens; all others have the number behind them."""
    kinds = np.full(len(frequencies), NEIGHBOURS, dtype=np.int64)
    frequent = np.argsort(-frequencies, kind="stable")[:NEIGHBOURS]
    kinds[frequent] = np.arange(len(frequent))
    return kinds


def _pairs(chunk: TokenChunk, ordinary: NDArray[np.bool_]) -> Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Tokens and those 1, 2, ... places behind them, in the same piece but not in the same word."""
    ids = chunk.input_ids.astype(np.int64)
    piece = np.repeat(np.arange(len(chunk.lengths)), chunk.lengths)
    word = np.cumsum(chunk.word_starts, dtype=np.int64)
    usable = ordinary[ids]
    for distance in range(1, min(WINDOW, len(ids) - 1) + 1):
        near, far = slice(None, -distance), slice(distance, None)
        pair = usable[near] & usable[far] & (piece[near] == piece[far]) & (word[near] != word[far])
        yield ids[near][pair], ids[far][pair]


def _from_counts(counter: Counter, frequencies: NDArray[np.int64]) -> NDArray[np.float32]:
    """The estimate from counts of (token, kind of its neighbour)."""
    size = len(frequencies)
    by_kind = np.zeros(NEIGHBOURS + 1, dtype=np.int64)
    for keys, counts in counter.merged():
        by_kind += np.bincount(keys % (NEIGHBOURS + 1), counts, NEIGHBOURS + 1).astype(np.int64)
    total = by_kind.sum()
    by_token, different, logs = np.zeros(size), np.zeros(size), np.zeros(size)
    for keys, counts in counter.merged():
        token, kind = np.divmod(keys, NEIGHBOURS + 1)
        by_token += np.bincount(token, counts, size)
        different += np.bincount(token, minlength=size)
        logs += np.bincount(token, counts * np.log(counts / by_kind[kind]), size)
    known = (frequencies > RARE) & (by_token > 0)
    found = np.zeros(size)
    n = by_token[known]
    found[known] = logs[known] / n + np.log(total / n) - (different[known] - 1) / (2 * n)
    if known.any():
        found[~known] = np.median(found[known])
    return np.maximum(found, 0.0).astype(np.float32)
