"""Packed rows as objects, to look at."""

from __future__ import annotations

from typing import NamedTuple

from unmask.data.packing import PackedRows


class Fragment(NamedTuple):
    """Some consecutive tokens of a piece: a segment of a row without its special tokens."""

    piece: int
    start: int
    length: int


class Segment(NamedTuple):
    """One fragment, or the two halves of a pair with the pair's class."""

    parts: tuple[Fragment, ...]
    label: int | None = None


def segments_of(rows: PackedRows) -> list[list[Segment]]:
    """The segments of each row."""
    columns = zip(rows.piece.tolist(), rows.start.tolist(), rows.length.tolist(), strict=True)
    fragments = [Fragment(*each) for each in columns]
    second = [*(rows.half[1:] == 1).tolist(), False]
    return [
        [
            Segment(tuple(fragments[f : f + 1 + second[f]]), None if rows.label[f] < 0 else int(rows.label[f]))
            for f in range(begin, end)
            if not rows.half[f]
        ]
        for begin, end in zip(rows.begins[:-1].tolist(), rows.begins[1:].tolist(), strict=True)
    ]
