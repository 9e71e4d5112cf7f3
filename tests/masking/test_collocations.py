"""Tiling by collocations, against a greedy walk in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_lexicon import letter_ids
from tests.masking.helpers import collocation_set, make_rows, masker_of
from unmask.core.hashing import mix
from unmask.data.rows import Rows
from unmask.masking.draw import flatten, partition
from unmask.masking.draw_loops import hash_set
from unmask.masking.tables import Tables
from unmask.masking.units import CollocationUnits
from unmask.tokenizer.tokenizer import Tokenizer

Collocation = tuple[tuple[int, ...], ...]


def starts_of(rows: Rows, lexicon: set[Collocation], vocab_size: int) -> torch.Tensor:
    """[B, S]: where units begin, of the tokens that can be masked."""
    flat = flatten(rows, 0)
    units = partition(
        flat, CollocationUnits().starts(flat, Tables(vocab_size, collocations_P=collocation_set(lexicon)))
    )
    return (units.size_T > 0).view(rows.shape)


def naive_starts(rows: Rows, lexicon: set[Collocation]) -> list[list[int]]:
    """Walks each row from left to right: at each word the longest entry within the run of words."""
    actual = []
    for ids, segments, starts, maskable in zip(
        rows.input_ids.tolist(), rows.segment_ids.tolist(), rows.word_starts.tolist(), rows.maskable.tolist(),
        strict=True,
    ):  # fmt: skip
        runs: list[list[tuple[int, list[int]]]] = []
        for place, id_ in enumerate(ids):
            if not maskable[place]:
                continue
            if place == 0 or not maskable[place - 1] or segments[place] != segments[place - 1]:
                runs.append([])
            if starts[place] or not runs[-1]:
                runs[-1].append((place, []))
            runs[-1][-1][1].append(id_)
        places = []
        for run in runs:
            word = 0
            while word < len(run):
                places.append(run[word][0])
                longest = 1
                for n in range(2, 6):
                    if word + n <= len(run) and tuple(tuple(ids_) for _, ids_ in run[word : word + n]) in lexicon:
                        longest = n
                word += longest
        actual.append(places)
    return actual


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_rows_and_any_lexicon(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Several segments a row, words of several tokens, unknown tokens, overlapping entries, empty rows."""
    a, b = letter_ids(tokenizer, 2)
    lengths = data.draw(st.lists(st.integers(0, 24), min_size=1, max_size=3))
    seed = data.draw(st.integers(0, 1000))
    rows = make_rows(tokenizer, data.draw(st.integers(1, 4)), lengths, mean_word=data.draw(st.sampled_from([1.0, 1.5])))
    rng = np.random.default_rng(seed)
    drawn = torch.from_numpy(rng.choice([a, b, tokenizer.special.unk], rows.shape, p=[0.5, 0.45, 0.05]))
    ids = torch.where(rows.maskable, drawn, rows.input_ids)
    rows = Rows(**{**vars(rows), "input_ids": ids, "maskable": rows.maskable & (ids != tokenizer.special.unk)})
    words = st.sampled_from([(a,), (b,), (a, b), (b, a), (a, a)])
    entries = st.lists(words, min_size=2, max_size=5).map(tuple)
    lexicon = set(data.draw(st.lists(entries, max_size=12)))
    actual = starts_of(rows, lexicon, tokenizer.vocab_size)
    assert [row.nonzero()[:, 0].tolist() for row in actual] == naive_starts(rows, lexicon)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([[0, 0, 0, 0]], [[1, 0, 1, 0]]),
        ([[0, 1, 1, 1]], [[1, 1, 1, 0]]),
        ([[0, 0, 0, 1]], [[1, 0, 1, 1]]),
        ([[0], [0], [0], [0]], [[1]] * 4),
    ],
)
def test_collocations_stay_within_their_segment_and_row(
    tokenizer: Tokenizer, segments: list[list[int]], expected: list[list[int]]
) -> None:
    """Also without special tokens between segments, where only the segment's number tells them apart."""
    a, b = letter_ids(tokenizer, 2)
    ids = torch.tensor([a, b, a, b]).view(len(segments), -1)
    true, zero = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    rows = Rows(ids, torch.tensor(segments, dtype=torch.int32), zero, true, true, zero)
    assert starts_of(rows, {((a,), (b,))}, tokenizer.vocab_size).int().tolist() == expected


def test_an_empty_lexicon_is_whole_word_masking(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 20, [30, 9], mean_word=2.0)
    tables = Tables(tokenizer.vocab_size, collocations_P=torch.from_numpy(hash_set(np.zeros(0, dtype=np.int64))))
    empty = masker_of(tokenizer, strategy="pmi", tables=tables, rate=0.3)(rows).labels
    words = masker_of(tokenizer, strategy="whole_word", rate=0.3)(rows).labels
    assert torch.equal(empty, words)
    assert not torch.equal(masker_of(tokenizer, strategy="pmi", rate=0.3)(rows).labels, words)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 100_000])
def test_a_set_holds_what_it_was_made_of(size: int) -> None:
    hashes = mix(torch.arange(1, size + 1)).numpy()
    set_P = hash_set(np.random.default_rng(0).permutation(np.concatenate([hashes, hashes[:2]])))
    assert len(set_P) <= max(8, 8 * (size + 2))
    assert set(set_P.tolist()) - {0} == set(hashes.tolist())
