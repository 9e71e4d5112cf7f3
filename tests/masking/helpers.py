"""Rows made by hand, for tests of masking."""

from __future__ import annotations

import numpy as np
import torch

from unmask.hashing import mix
from unmask.masking.engine import Masker
from unmask.masking.tables import Scores, Tables
from unmask.packing.rows import Rows
from unmask.tokens.tokenizer import Tokenizer


def make_rows(
    tokenizer: Tokenizer, num_rows: int, segment_lengths: list[int], *, mean_word: float = 1.6, seed: int = 0
) -> Rows:
    """Rows that all hold segments of the same lengths (in tokens of text), with random words and ids."""
    rng = np.random.default_rng(seed)
    ordinary = np.flatnonzero(tokenizer.ordinary)
    width = sum(n + 2 for n in segment_lengths) + 3  # and some padding
    ids = np.zeros((num_rows, width), dtype=np.int64)
    segments = np.full((num_rows, width), -1, dtype=np.int32)
    positions = np.zeros_like(ids)
    starts = np.zeros((num_rows, width), dtype=bool)
    keys = np.zeros_like(ids)
    begin = 0
    for number, length in enumerate(segment_lengths):
        end = begin + length + 2
        ids[:, begin], ids[:, end - 1] = 2, 3
        ids[:, begin + 1 : end - 1] = rng.choice(ordinary, (num_rows, length))
        segments[:, begin:end] = number
        positions[:, begin:end] = np.arange(length + 2)
        starts[:, begin + 1 : end - 1] = rng.random((num_rows, length)) < 1 / mean_word
        if length:
            starts[:, begin + 1] = True
        keys[:, begin:end] = rng.integers(0, 2**62, (num_rows, 1))
        begin = end
    maskable = tokenizer.ordinary[ids]
    arrays = (ids, segments, positions, starts, maskable, mix(keys))
    return Rows(*(torch.from_numpy(array) for array in arrays))  # type: ignore[arg-type]


def masker_of(tokenizer: Tokenizer, **options: object) -> Masker:
    """A masker of any strategy, with all tables that one may need."""
    masker = Masker.from_tokenizer(tokenizer, **({"frequencies": frequencies_of(tokenizer)} | options))  # type: ignore[arg-type]
    masker.tables = tables_of(tokenizer)
    return masker


def tables_of(tokenizer: Tokenizer) -> Tables:
    """Every table, with made-up content."""
    size = tokenizer.vocab_size
    generator = torch.Generator().manual_seed(9)
    frequencies = torch.from_numpy(frequencies_of(tokenizer))
    names = ("loss", "accuracy", "attention", "anchors")
    scores = {name: torch.rand(size, generator=generator) + 0.1 for name in names}
    scores["embedding"] = torch.randn(size, 8, generator=generator)
    return Tables(size, frequencies, frequencies.clamp(max=500), 600, Scores(1, scores))


def frequencies_of(tokenizer: Tokenizer) -> np.ndarray:
    """Some frequencies: Zipf's, in a random order."""
    order = np.random.default_rng(5).permutation(tokenizer.vocab_size)
    return 1 + 10_000 // (1 + order)


def word_numbers(rows: Rows) -> torch.Tensor:
    """[B, S]: a number for each word, -1 outside."""
    numbers = torch.cumsum(rows.word_starts.flatten(), 0).view(rows.shape)
    return torch.where(rows.maskable, numbers, -1)
