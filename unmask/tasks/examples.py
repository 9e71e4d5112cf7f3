"""Inputs of the network, packed into rows: no time goes into padding.

Examples of any lengths share rows as segments, which do not see each other; so what comes out for an example does not
depend on what stands beside it. Networks that do not keep segments apart get rows of one example each, padded.

Shape suffixes: B = rows, S = positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.packing.pack import Fragment, pack_pieces
from unmask.packing.rows import Rows

ROW = 128  # positions of a row, where no example is longer
_STEP = 32  # longer rows are multiples of it, since each new shape costs time


@dataclass(frozen=True)
class Example:
    """An input of the network: a text, a pair, a piece of a sentence, or a question with a window of its text.

    Attributes:
        record: Number of the record it was made of.
        input_ids: [S], int64, with special tokens.
        type_ids: [S], int64: 1 in the second text; None where the model has no token types.
        places: [N], int64: positions whose outputs are asked for.
        items: [N, ...], int64: what stands there: for tags the word's number in the sentence, for answers the
            characters [begin, end) of the context (-1 at `[CLS]`, which stands for no answer).
        targets: By name, an entry a place: what is right there; -1 or NaN where that is not known. For answers an
            entry alone: the positions of begin and end.
    """

    record: int
    input_ids: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None
    places: NDArray[np.int64]
    items: NDArray[np.int64]
    targets: Mapping[str, NDArray[np.int64] | NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Encoded:
    """Records as inputs.

    Attributes:
        examples: In the order of the records; a record may have several.
        truncated: Records that were cut since they are longer than the model: their ends are not seen.
        split: Records that were shared out over several examples, of which nothing is lost.
        lost: Records whose answer no example holds as a whole: for the network they have none.
    """

    examples: list[Example]
    truncated: int = 0
    split: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Packed:
    """Examples in rows.

    Attributes:
        rows: The rows; targets stand in `classes`, by name, at their places.
        begins: For each example its first place in the flattened batch.
    """

    rows: Rows
    begins: NDArray[np.int64]


def pack_examples(examples: Sequence[Example], *, pad_id: int, max_length: int, alone: bool = False) -> Packed:
    """Puts examples into as few rows as possible, or into a row each.

    Args:
        examples: None is longer than `max_length`.
        pad_id: Stands in what is left of the rows.
        max_length: Positions that the model has: no row is longer.
        alone: Whether each has a row of its own, in the order in which they are given; rows are as long as the longest.
    """
    lengths = np.array([len(example) for example in examples], dtype=np.int64)
    longest = int(lengths.max())
    if alone:
        length = longest  # no longer: some networks (with convolutions) let a little of the padding through
        packed = [[Fragment(number, 0, len(example))] for number, example in enumerate(examples)]
    else:
        length = min(max(ROW, -(-longest // _STEP) * _STEP), max_length)
        packed = pack_pieces(lengths, row_length=length, overhead=0)
    shape = len(packed), length
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    segment_ids = np.full(shape, -1, dtype=np.int32)
    position_ids = np.zeros(shape, dtype=np.int64)
    type_ids = np.zeros(shape, dtype=np.int64)
    targets = {
        name: np.full(shape, np.nan if column.dtype == np.float32 else -1, dtype=column.dtype)
        for name, column in examples[0].targets.items()
    }
    begins = np.zeros(len(examples), dtype=np.int64)
    for r, fragments in enumerate(packed):
        begin = 0
        for number, fragment in enumerate(fragments):
            example = examples[fragment.piece]
            end = begin + len(example)
            begins[fragment.piece] = r * length + begin
            input_ids[r, begin:end] = example.input_ids
            segment_ids[r, begin:end] = number
            position_ids[r, begin:end] = np.arange(len(example))
            if example.type_ids is not None:
                type_ids[r, begin:end] = example.type_ids
            for name, column in targets.items():
                found = example.targets[name]
                places = example.places if len(found) == len(example.places) else np.zeros(1, dtype=np.int64)
                column[r, begin + places] = found
            begin = end
    rows = _rows(input_ids, segment_ids, position_ids, targets, None if examples[0].type_ids is None else type_ids)
    return Packed(rows, begins)


def batches_by_length(examples: Sequence[Example], tokens: int, *, padded: bool = False) -> Iterator[list[int]]:
    """Numbers of examples, those of like length together, with at most so many tokens a batch (or one example).

    Args:
        examples: Inputs.
        tokens: Of a batch.
        padded: Whether each takes as many as the longest of its batch.
    """
    batch: list[int] = []
    held = 0
    for number in sorted(range(len(examples)), key=lambda number: len(examples[number])):
        length = len(examples[number])
        if batch and (length * (len(batch) + 1) if padded else held + length) > tokens:
            yield batch
            batch, held = [], 0
        batch.append(number)
        held += length
    if batch:
        yield batch


def _rows(
    input_ids: NDArray[np.int64],
    segment_ids: NDArray[np.int32],
    position_ids: NDArray[np.int64],
    targets: Mapping[str, NDArray[np.int64] | NDArray[np.float32]],
    type_ids: NDArray[np.int64] | None,
) -> Rows:
    """Rows that are not masked: what masking would ask for is empty."""
    nothing = torch.zeros(input_ids.shape, dtype=torch.bool)
    return Rows(
        input_ids=torch.from_numpy(input_ids),
        segment_ids=torch.from_numpy(segment_ids),
        position_ids=torch.from_numpy(position_ids),
        word_starts=nothing,
        maskable=nothing,
        segment_keys=torch.zeros(input_ids.shape, dtype=torch.int64),
        classes={name: torch.from_numpy(column) for name, column in targets.items()},
        token_type_ids=None if type_ids is None else torch.from_numpy(type_ids),
    )
