"""A corpus of tokens to a lexicon: count, rank, spell out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.collocations.counts import RUN_KEYS
from unmask.collocations.informative import informativeness_of
from unmask.collocations.levels import Census, gather, take_census
from unmask.collocations.lexicon import Lexicon
from unmask.collocations.pmi import pmi_of
from unmask.collocations.settings import LexiconSettings
from unmask.collocations.words import WordReader, Words
from unmask.progress import Notify, counted, ignore
from unmask.tokens.shards import TokenChunk
from unmask.tokens.tokenizer import Tokenizer

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

    def words(what: str) -> Iterator[tuple[NDArray[np.int64], Words]]:
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
        good = spell.whole[level.words[:, 0]] & spell.whole[level.words[:, -1]] & (score > 0)
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
