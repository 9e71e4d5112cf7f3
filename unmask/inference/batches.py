"""Texts of mixed length in batches: sorted by length, so that hardly anything is computed for padding.

    lengths 3 9 8 4, at most 20 positions a batch:    [9 8] [4 3]    one place of padding in each

Packed rows, as training has them, would need no padding at all, but attention would compare all tokens of a row, and
hide most of what it found. Texts of like length cost no more than their own attention (docs/benchmarks.md).

Shape suffixes: B = texts of a batch, S = positions, T = B x S in a line, D = hidden size, N = places, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.model.encoder import MaskedLM

BATCH_POSITIONS = 4096
HEAD_LOGITS = 1 << 25  # computed at once at most: 128 MB in float32


@dataclass(frozen=True)
class Batch:
    """Some of the sequences, padded to the longest of them.

    Attributes:
        numbers: [B]: which of the sequences they are.
        lengths: [B], int64: tokens of each, special tokens included.
        input_ids_BS: int64.
        segment_ids_BS: int32: 0, and -1 at padding.
    """

    numbers: NDArray[np.int64]
    lengths: NDArray[np.int64]
    input_ids_BS: Tensor
    segment_ids_BS: Tensor


def batches(sequences: Sequence[NDArray[np.int32]], *, pad_id: int, positions: int | None = None) -> Iterator[Batch]:
    """Puts sequences of like length together, the longest first: what needs most memory fails at once or never.

    Args:
        sequences: Token ids with special tokens, none of them empty.
        pad_id: What fills up.
        positions: Of a batch at most, `BATCH_POSITIONS` unless given; a longer sequence is a batch of its own.
    """
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        longest = int(lengths[order[begin]])
        numbers = order[begin : begin + max(1, (positions or BATCH_POSITIONS) // longest)]
        begin += len(numbers)
        real_BS = np.arange(longest) < lengths[numbers, None]
        input_ids_BS = np.full(real_BS.shape, pad_id, dtype=np.int64)
        input_ids_BS[real_BS] = np.concatenate([sequences[number] for number in numbers])
        segment_ids_BS = np.where(real_BS, np.int32(0), np.int32(-1))
        yield Batch(numbers, lengths[numbers], torch.from_numpy(input_ids_BS), torch.from_numpy(segment_ids_BS))


def hidden_states(model: MaskedLM, batch: Batch) -> Tensor:
    """What the encoder makes of a batch: [B, S, D] in its compute type; at padding the values mean nothing."""
    device = model.encoder.tokens.device
    return model.encoder(batch.input_ids_BS.to(device), segment_ids_BS=batch.segment_ids_BS.to(device))


def logits_at(model: MaskedLM, hidden_BSD: Tensor, places_N: Tensor) -> Iterator[Tensor]:
    """Logits at some places of the batch in a line, a bounded number at a time: [some of N, V], float32."""
    hidden_TD = hidden_BSD.flatten(0, 1)
    for part_N in places_N.to(hidden_BSD.device).split(max(1, HEAD_LOGITS // model.config.vocab_size)):
        yield model.predict(hidden_TD, part_N).float()
