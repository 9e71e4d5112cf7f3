"""Packed rows as one line of sequences."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.model.fused import MOST, Sequences


def test_the_capacity_is_rounded_up_and_what_is_over_is_empty() -> None:
    rows = torch.arange(1, 18).repeat_interleave(2)[None]
    assert Sequences.of(rows).cu_seqlens.tolist() == [*range(0, 34, 2), 34, 34, 34, 34]
    capacities = [len(Sequences.of(torch.arange(count)[None]).cu_seqlens) - 1 for count in (8, 9, 65, 4400, 8192)]
    assert capacities == [8, 10, 80, 5120, 8192]
    assert len(Sequences.of(torch.arange(57_345)[None]).cu_seqlens) - 1 == MOST, "no more than a kernel takes"


def test_the_longest_is_told_by_its_bucket_and_padding_is_cut() -> None:
    """The row of 700 has 60 + 130 tokens and 510 of padding, cut where multiples of 256 stand."""
    marks = torch.tensor([0] * 60 + [1] * 130 + [-1] * 510)
    actual = Sequences.of(marks[None])
    assert actual.max_length == 256
    assert actual.cu_seqlens.diff().tolist()[:5] == [60, 130, 66, 256, 188]
    for longest, bucket in ((5, 128), (128, 128), (129, 256), (257, 512), (520, 700)):
        rows = torch.tensor([0] * longest + [-1] * (700 - longest))[None]
        assert Sequences.of(rows).max_length == bucket
        assert int(Sequences.of(rows).cu_seqlens.diff().max()) <= bucket
    assert Sequences.of(torch.full((2, 700), -1)).max_length == 128


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=9), st.integers(0, 4))
def test_lengths_come_back(rows: list[list[int]], padding: int) -> None:
    """An oracle that walks over the rows."""
    length = max(map(sum, rows)) + padding
    segments = torch.full((len(rows), length), -1)
    expected = []
    for number, lengths in enumerate(rows):
        marks = [segment for segment, size in enumerate(lengths) for _ in range(size)]
        segments[number, : len(marks)] = torch.tensor(marks)
        expected += [*lengths, length - len(marks)] if len(marks) < length else lengths
    lengths_found = Sequences.of(segments).cu_seqlens.diff()
    capacity = len(lengths_found)
    assert lengths_found.tolist() == expected + [0] * (capacity - len(expected))
    assert len(expected) <= capacity <= 1.25 * len(expected)
