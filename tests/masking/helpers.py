"""Rows made by hand, texts as features, and tokenizers as transformers has them, for tests of masking."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests.tokenizer.families import TEXT, trained
from unmask.core.hashing import mix
from unmask.core.settings import validated
from unmask.data.lexicon import Lexicon
from unmask.data.rows import Rows
from unmask.masking.draw_loops import hash_set
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Scores, Tables
from unmask.tokenizer.tokenizer import Tokenizer


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
    return annotated(Rows(*(torch.from_numpy(array) for array in arrays)), seed=seed)  # type: ignore[arg-type]


LABELS = {"entities": ("LOC", "PER"), "chunks": ("NP",), "pos": ("DET", "NOUN", "VERB"), "dependencies": ("det", "obj")}


def annotated(rows: Rows, *, seed: int = 0) -> Rows:
    """The rows with random annotations: a third of the words in entities, half of them in chunks, random parses."""
    rng = np.random.default_rng(seed + 1)
    word = (torch.cumsum(rows.word_starts.flatten(), 0).view(rows.shape) * rows.maskable).numpy()
    num_words = int(word.max(initial=0)) + 1
    columns = {name: np.zeros(rows.shape, dtype=np.int64) for name in LABELS}
    begins = rows.word_starts.numpy() & rows.maskable.numpy()
    for name, share in (("entities", 0.33), ("chunks", 0.5)):
        inside = (rng.random(num_words) < share)[word] & (word > 0)
        opens = begins & ((rng.random(num_words) < 0.4)[word] | ~np.roll(inside, 1))
        labels = rng.integers(1, len(LABELS[name]) + 1, num_words)[word]
        columns[name] = np.where(inside, 2 * labels + opens, 0)
    columns["pos"] = np.where(word > 0, rng.integers(0, 4, num_words)[word], 0)
    role = rng.integers(1, 3, num_words)[word] << 25 | rng.integers(0, 2, num_words)[word] << 24
    reach = [rng.geometric(0.4, rows.shape) - 1 for _ in range(2)]  # not trees, but units must cope with any input
    columns["dependencies"] = np.where(begins, role | reach[0] << 12 | reach[1], 0)
    return replace(rows, annotations={name: torch.from_numpy(column) for name, column in columns.items()})


def rows_of(starts: str, **columns: list[int]) -> Rows:
    """One row: `#` a special token, `w` a token that begins a word, `-` one that goes on, `?` an unknown one.

    A new segment begins at every second `#` (as [CLS] x x [SEP] [CLS] x [SEP] does); columns are those of annotation.
    """
    special = torch.tensor([[c == "#" for c in starts]])
    segments = (torch.cumsum(special.int(), 1) - special.int()) // 2
    first = torch.diff(segments, prepend=torch.tensor([[-1]]), dim=1) != 0
    places = torch.arange(len(starts))[None]
    begin = torch.cummax(torch.where(first, places, 0), 1).values
    return Rows(
        input_ids=torch.full((1, len(starts)), 10),
        segment_ids=segments.to(torch.int32),
        position_ids=places - begin,
        word_starts=torch.tensor([[c in "w?" for c in starts]]),
        maskable=torch.tensor([[c not in "#?" for c in starts]]),
        segment_keys=segments.to(torch.int64) + 5,
        annotations={name: torch.tensor([values]) for name, values in columns.items()},
    )


def copies_of(rows: Rows, number: int) -> Rows:
    """Copies of the rows, each with different keys, so that each copy is an independent draw."""
    rows = rows.map(lambda tensor: tensor.repeat(number, 1))
    return replace(rows, segment_keys=mix(rows.segment_keys + torch.arange(len(rows.input_ids))[:, None]))


def parse(role: int, before: int, behind: int, heads: int = 0) -> int:
    """A word's annotation of dependencies: its role, the extent of its subtree, and whether it has one."""
    return role << 25 | heads << 24 | before << 12 | behind


def assert_share(hits: torch.Tensor, expected: float) -> None:
    """Of independent draws, within four standard deviations."""
    assert abs(float(hits.double().mean()) - expected) < 4 * (expected * (1 - expected) / hits.numel()) ** 0.5


def assert_mean(counts: torch.Tensor, expected: float) -> None:
    """Of independent counts, within four standard deviations."""
    assert abs(float(counts.double().mean()) - expected) < 4 * float(counts.double().std()) / len(counts) ** 0.5


def masker_of(
    tokenizer: Tokenizer,
    *,
    seed: int = 0,
    tables: Tables | None = None,
    with_boundaries: bool = False,
    **values: object,
) -> Masker:
    """A masker of these settings, with all tables that a strategy may need."""
    settings = validated(MaskingSettings, values, where="masking")
    tables = tables or tables_of(tokenizer)
    return Masker(settings, tokenizer, seed=seed, tables=tables, with_boundaries=with_boundaries)


@functools.cache
def tables_of(tokenizer: Tokenizer) -> Tables:
    """Every table, with made-up content."""
    size = tokenizer.vocab_size
    generator = torch.Generator().manual_seed(9)
    frequencies = torch.from_numpy(frequencies_of(tokenizer))
    names = ("loss", "accuracy", "attention", "anchors")
    scores = {name: torch.rand(size, generator=generator) + 0.1 for name in names}
    scores["pos_loss"] = torch.tensor([2.0, 1.0, 4.0, 3.0])
    scores["embedding"] = torch.randn(size, 8, generator=generator)
    return Tables(
        size,
        frequencies,
        documents_V=frequencies.clamp(max=500),
        num_documents=600,
        scores=Scores(1, scores),
        collocations_P=_some_collocations(tokenizer),
        informativeness_V=torch.rand(size, generator=generator),
        labels=LABELS,
    )


def _some_collocations(tokenizer: Tokenizer) -> torch.Tensor:
    """A third of all pairs of one-token words, and many triples: random rows hold them."""
    ids = [int(id_) for id_ in np.flatnonzero(tokenizer.ordinary)[:200]]
    pairs = {((a,), (b,)) for a in ids for b in ids if (a + b) % 3 == 0}
    few = [id_ for id_ in ids if id_ % 8 == 0]
    return collocation_set(pairs | {((a,), (b,), (c,)) for a in few for b in few for c in few})


def collocation_set(collocations: set[tuple[tuple[int, ...], ...]]) -> torch.Tensor:
    """Hashes of collocations, which are words, which are tokens."""
    entries = sorted(collocations)
    words = [word for entry in entries for word in entry]
    num_words = [len(entry) for entry in entries]
    starts = [place == 0 for word in words for place in range(len(word))]
    lexicon = Lexicon(
        input_ids=np.array([id_ for word in words for id_ in word], dtype=np.int32),
        word_starts=np.array(starts, dtype=np.uint8),
        lengths=np.array([sum(map(len, entry)) for entry in entries], dtype=np.int32),
        pmi=np.zeros(len(entries), dtype=np.float32),
        counts=np.zeros(len(entries), dtype=np.int64),
        informativeness=np.zeros(0, dtype=np.float32),
        facts={},
    )
    assert lexicon.num_words.tolist() == num_words
    return torch.from_numpy(hash_set(lexicon.hashes()))


def frequencies_of(tokenizer: Tokenizer) -> np.ndarray:
    """Some frequencies: Zipf's, in a random order."""
    order = np.random.default_rng(5).permutation(tokenizer.vocab_size)
    return 1 + 10_000 // (1 + order)


FAMILIES = ("wordpiece", "bpe", "unigram")


def wrapped(family: str) -> Any:
    """A transformers fast tokenizer."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = trained(family)
    names = {f"{role}_token": tokenizer.token(id_) for role, id_ in vars(tokenizer.special).items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **names)


def features_of(family: str, count: int = 24) -> list[dict[str, Any]]:
    """Features of different texts and lengths."""
    lines = [line for line in dict.fromkeys(TEXT.split("\n")) if 30 < len(line) < 110]
    texts = [" ".join(lines[n : n + 1 + n % 3]) for n in range(count)]
    return [dict(wrapped(family)(text, truncation=True, max_length=48, return_token_type_ids=True)) for text in texts]
