"""The lexicon of a corpus: its collocations, counted, ranked and spelled out, and how much each token tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.progress import Notify, counted, ignore
from unmask.shards.key_counter import RUN_KEYS, Counter
from unmask.shards.lexicon_file import Lexicon, LexiconSettings
from unmask.shards.pieces import TokenChunk
from unmask.shards.token_words import TokenWords, WordReader
from unmask.shards.word_ngrams import Census, gather, pmi_of, take_census
from unmask.tokenizer.tokenizer import Tokenizer

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
    """How much each token of the vocabulary tells of its neighbours: the mean of their pointwise mutual information.

        informativeness(w) = sum over c of p(c | w) log( p(c | w) / p(c) )

    where c goes over what stands up to five tokens before or behind w, in other words than w's own. The word `Highness`
    tells much (`Royal` is near), `the` tells nothing.

    Args:
        chunks: The corpus, gone through once.
        tokenizer: Whose tokens they are.
        frequencies: [vocab_size]: how often each id stands in it.
        scratch: Folder for temporary files.
        run_keys: Keys that are counted in memory at a time.

    Returns:
        [vocab_size], in nats; at least 0.

    Source: Sadeq et al. 2022 (InforMask), section 3, where a token's relevance is the sum of its mutual information
    with the tokens that stay visible. Approximations here, so that counts stay few and no estimate rests on nothing:
    the 1,024 most frequent tokens are told apart as neighbours and all others are one; the bias of counts that are few,
    (number of different neighbours - 1) / (2 x neighbours) to first order (Miller 1955), is taken off; tokens that
    stand ten times or less get the median.
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


_ROUNDING = 1e-12  # of a sum of logarithms: words that stand together as often as chance has it are no collocation
CHUNK_TOKENS = 1 << 19

Chunks = Callable[[], Iterator[TokenChunk]]
"""Begins to go through the corpus."""


def build_lexicon(
    chunks: Chunks,
    tokenizer: Tokenizer,
    settings: LexiconSettings,
    *,
    frequencies: NDArray[np.int64],
    data_sha256: str,
    scratch: Path,
    notify: Notify = ignore,
    run_keys: int = RUN_KEYS,
) -> Lexicon:
    """Finds the collocations of a corpus. The same corpus gives the same lexicon, however it is cut into chunks.

    Args:
        chunks: The corpus, gone through `max_words` + 2 times.
        tokenizer: Whose tokens it has.
        settings: What a collocation is, and how many are kept.
        frequencies: [vocab_size]: how often each id stands in it.
        data_sha256: Its fingerprint.
        scratch: An existing folder for temporary files.
        notify: Told of the progress.
        run_keys: Keys that are counted in memory at a time.
    """
    reader = WordReader(tokenizer)

    num_tokens = int(frequencies.sum())

    def told(what: str) -> Iterator[TokenChunk]:
        count = counted(notify, what, num_tokens)
        for chunk in chunks():
            yield chunk
            count(len(chunk.input_ids))

    def words(what: str) -> Iterator[tuple[NDArray[np.int64], TokenWords]]:
        for chunk in told(what):
            ids = chunk.input_ids.astype(np.int64)
            yield ids, reader.read(ids, chunk.word_starts, chunk.lengths)

    census = take_census(
        words, most_words=settings.max_words, min_count=settings.min_count, scratch=scratch, run_keys=run_keys
    )
    informativeness = informativeness_of(
        told("counting neighbours"), tokenizer, frequencies, scratch=scratch, run_keys=run_keys
    )
    facts = {
        "tokenizer_sha256": tokenizer.fingerprint,
        "data_sha256": data_sha256,
        "settings": settings.model_dump(),
        "num_words": census.num_words,
    }
    return _lexicon(census, settings, informativeness, facts)


def _lexicon(
    census: Census, settings: LexiconSettings, informativeness: NDArray[np.float32], facts: dict[str, object]
) -> Lexicon:
    """Ranks what was counted, over all lengths together, and keeps the strongest.

    The minimum over all cuts makes the PMI of long and short ones comparable: a longer one is no stronger than what its
    weakest cut says. What begins or ends with a sign that joins words is none, nor what chance makes more often.
    """
    spell, pmi = census.spellings, pmi_of(census)
    scores, counts, keys, words = [], [], [], []
    for level, score in list(zip(census.levels, pmi, strict=True))[1:]:
        good = spell.whole[level.words[:, 0]] & spell.whole[level.words[:, -1]] & (score > _ROUNDING)
        padded = np.full((int(good.sum()), settings.max_words), -1, dtype=np.int64)
        padded[:, : level.words.shape[1]] = level.words[good]
        scores.append(score[good])
        counts.append(level.counts[good])
        keys.append(level.keys[good])
        words.append(padded)
    score = np.concatenate([np.zeros(0), *scores])
    count = np.concatenate([np.zeros(0, dtype=np.int64), *counts])
    key = np.concatenate([np.zeros(0, dtype=np.int64), *keys])
    table = np.concatenate([np.zeros((0, settings.max_words), dtype=np.int64), *words])
    order = np.lexsort((key, -count, -score))[: settings.size_for(census.num_words)]
    table = table[order]
    each = table[table >= 0]  # the words of all collocations, one behind another
    sizes = np.diff(spell.begins)[each]
    starts = np.zeros(int(sizes.sum()), dtype=np.uint8)
    starts[np.cumsum(sizes) - sizes] = 1
    ends = np.cumsum(np.concatenate([[0], sizes]))[np.cumsum(np.concatenate([[0], (table >= 0).sum(1)]))]
    return Lexicon(
        input_ids=gather(spell.input_ids, spell.begins[each], sizes),
        word_starts=starts,
        lengths=np.diff(ends).astype(np.int32),
        pmi=score[order].astype(np.float32),
        counts=count[order],
        informativeness=informativeness,
        facts={**facts, "candidates": len(score)},
    )
