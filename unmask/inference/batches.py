"""Texts of mixed length in batches: packed into rows, as in training, so that hardly anything is computed for padding.

    lengths 3 9 8 4 12 in a model of 16 positions:    [12 4] [9 3 .] [8 ........]

Short texts share short rows and long ones long rows, since attention costs the square of a row. On paragraphs of novels
this is a tenth faster than batches of texts sorted by length and padded, since all batches have one of a few shapes
(docs/benchmarks.md).

Shape suffixes: B = rows of a batch, S = positions, T = B x S in a line, E = texts of a batch, D = hidden size,
N = places, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.model.encoder import MaskedLM
from unmask.packing.pack import Fragment, pack_pieces

Ids = NDArray[np.int32]
BATCH_POSITIONS = 8192
SHORT_ROW = 128  # positions; longer texts stand in rows of twice, four times ... as many
HEAD_LOGITS = 1 << 25  # computed at once at most: 128 MB in float32


@dataclass(frozen=True)
class Batch:
    """Some of the sequences in rows.

    Attributes:
        numbers: [E]: which of the sequences they are.
        begins: [E]: where each begins in the batch in a line.
        lengths: [E]: tokens of each, special tokens included.
        input_ids_BS, position_ids_BS: int64.
        segment_ids_BS: int32: counted within a row; -1 at padding.
    """

    numbers: NDArray[np.int64]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    input_ids_BS: Tensor
    position_ids_BS: Tensor
    segment_ids_BS: Tensor


def batches(sequences: Sequence[Ids], *, pad_id: int, longest: int, positions: int | None = None) -> Iterator[Batch]:
    """Packs sequences, the longest first: what needs most memory fails at once or never.

    Args:
        sequences: Token ids with special tokens, none of them empty or longer than the model.
        pad_id: What fills up.
        longest: Positions of the model.
        positions: Of a batch at most, `BATCH_POSITIONS` unless given; a longer row is a batch of its own.
    """
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    sizes = SHORT_ROW << np.ceil(np.log2(np.maximum(lengths / SHORT_ROW, 1.0))).astype(np.int64)
    for size in np.unique(sizes)[::-1].tolist():
        numbers = np.flatnonzero(sizes == size)
        # Few texts need no whole row; multiples of 8 keep the shapes of products few.
        row_length = min(size, longest, -(-int(lengths[numbers].sum()) // 8) * 8)
        rows = pack_pieces(lengths[numbers], row_length=row_length, overhead=0)
        num_rows = max(1, (positions or BATCH_POSITIONS) // row_length)
        for begin in range(0, len(rows), num_rows):
            yield _batch(sequences, numbers, rows[begin : begin + num_rows], row_length, pad_id)


def _batch(
    sequences: Sequence[Ids], numbers: NDArray[np.int64], rows: Sequence[Sequence[Fragment]], length: int, pad_id: int
) -> Batch:
    found, begins, segments = [], [], []
    for row, fragments in enumerate(rows):
        begin = row * length
        for segment, fragment in enumerate(fragments):
            found.append(numbers[fragment.piece])
            begins.append(begin)
            segments.append(segment)
            begin += fragment.length
    lengths_E = np.array([len(sequences[number]) for number in found])
    within = np.arange(lengths_E.sum()) - np.repeat(np.cumsum(lengths_E) - lengths_E, lengths_E)
    places = np.repeat(begins, lengths_E) + within
    input_ids_T = np.full(len(rows) * length, pad_id, dtype=np.int64)
    position_ids_T = np.zeros(len(input_ids_T), dtype=np.int64)
    segment_ids_T = np.full(len(input_ids_T), -1, dtype=np.int32)
    input_ids_T[places] = np.concatenate([sequences[number] for number in found])
    position_ids_T[places] = within
    segment_ids_T[places] = np.repeat(segments, lengths_E)
    tensors = (
        torch.from_numpy(array).view(len(rows), length) for array in (input_ids_T, position_ids_T, segment_ids_T)
    )
    return Batch(np.array(found), np.array(begins), lengths_E, *tensors)


def hidden_states(model: MaskedLM, batch: Batch) -> Tensor:
    """What the encoder makes of a batch in a line: [T, D] in its compute type; at padding the values mean nothing."""
    device = model.encoder.tokens.device
    hidden_BSD = model.encoder(
        batch.input_ids_BS.to(device),
        segment_ids_BS=batch.segment_ids_BS.to(device),
        position_ids_BS=batch.position_ids_BS.to(device),
    )
    return hidden_BSD.flatten(0, 1)


def logits_at(model: MaskedLM, hidden_TD: Tensor, places_N: Tensor) -> Iterator[Tensor]:
    """Logits at some places of a batch, a bounded number at a time: [some of N, V], float32."""
    for part_N in places_N.to(hidden_TD.device).split(max(1, HEAD_LOGITS // model.config.vocab_size)):
        yield model.predict(hidden_TD, part_N).float()
