"""Runs texts through a network outside of training: our own, or one of transformers.

Texts of mixed length are packed into rows, as in training, so that there is hardly any padding to compute:

    lengths 3 9 8 4 12 in a model of 16 positions:    [12 4] [9 3 .] [8 ........]

Short texts share short rows and long ones long rows, since attention costs the square of a row. On paragraphs of novels
this is a tenth faster than batches of texts sorted by length and padded, since all batches have one of a few shapes
(docs/explanation/benchmarks.md). A network that cannot separate texts within a row gets one text in each row.

Shape suffixes: B = rows of a batch, S = positions, T = B x S in a line, E = texts of a batch, D = size of the encoder's
output, N = places, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.data.packing import pack_pieces
from unmask.data.rows import Rows, TextRows, moved, text_rows
from unmask.model.encoder import Trainable
from unmask.model.fused import Sequences

Ids = NDArray[np.integer[Any]]
Sharing = Literal["shared", "padded", "equal"]
BATCH_POSITIONS = 8192
SHORT_ROW = 128  # positions; longer texts are in rows of twice, four times ... as many
MOST_NUMBERS = 1 << 25  # size of an encoder's output for a batch: 128 MB in float32
HEAD_LOGITS = 1 << 24  # logits that a head computes at once


class Network(Trainable, Protocol):
    """A network that texts are run through: `MaskedLM`, or a `TransformersNetwork`."""

    training: bool

    @property  # has `max_position_embeddings` and `vocab_size`
    def config(self) -> Any: ...


class Predictor(Network, Protocol):
    def predict(self, hidden_TD: Tensor, positions_N: Tensor) -> Tensor:
        """Logits [N, V] at the given positions of its encoder's output for a flattened batch."""


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Puts the network into evaluation mode for the block, without gradients."""
    was_training = network.training
    network.train(False)
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was_training)


def run(
    network: Network, texts: Sequence[Ids], *, types: Sequence[Ids] | None = None
) -> Iterator[tuple[TextRows, Tensor]]:
    """Yields the encoder's output for texts, a batch at a time: the rows, and [T, D] in its compute type.

    The network must be in evaluation mode. Texts are token ids with special tokens, none of them empty or longer than
    the model; `types` are their token types, if the model has any. Values at padding are meaningless.
    """
    encoder = network.encoder
    sharing: Sharing = "shared" if encoder.shares_rows else "padded" if encoder.takes_padding else "equal"
    positions = max(1, min(BATCH_POSITIONS, MOST_NUMBERS // encoder.width))
    longest = network.config.max_position_embeddings
    for rows in in_rows(
        texts, pad_id=network.pad_id, longest=longest, positions=positions, sharing=sharing, types=types
    ):
        yield rows, hidden_states(network, rows.rows, rows.rows.input_ids)


def hidden_states(network: Network, rows: Rows, input_ids_BS: Tensor) -> Tensor:
    """The encoder's output for rows on any device, flattened: [T, D] in its compute type. The encoder reads
    `input_ids_BS`, which are the rows' own or masked."""
    encoder, device, types_BS = network.encoder, network.encoder.device, rows.token_type_ids
    sequences = None
    if encoder.shares_rows and device.type != "cpu" and encoder.compute_dtype != torch.float32:  # on the host: no sync
        sequences = moved(Sequences.of(rows.segment_ids), device)
    hidden_BSD = encoder(
        input_ids_BS.to(device),
        segment_ids_BS=rows.segment_ids.to(device),
        position_ids_BS=rows.position_ids.to(device),
        token_type_ids_BS=None if types_BS is None else types_BS.to(device),
        sequences=sequences,
    )
    return hidden_BSD.flatten(0, 1)


def logits_at(network: Predictor, hidden_TD: Tensor, places_N: Tensor) -> Iterator[Tensor]:
    """Yields logits at the given positions of a batch, a bounded number at a time: [part of N, V], float32."""
    size = max(64, HEAD_LOGITS // network.config.vocab_size // 64 * 64)
    for part_N in places_N.to(hidden_TD.device).split(size):
        yield network.predict(hidden_TD, part_N).float()


def in_rows(
    texts: Sequence[Ids],
    *,
    pad_id: int,
    longest: int,
    positions: int = BATCH_POSITIONS,
    sharing: Sharing = "shared",
    types: Sequence[Ids] | None = None,
) -> Iterator[TextRows]:
    """Packs texts as `run` takes them, the longest first, so that running out of memory happens at once or never.

    A batch has at most `positions` positions, unless it is a single longer row. Texts share rows as segments
    (`shared`), or each has its own row, `padded` to the longest of the batch or batched with texts of `equal` length.
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    batches: list[tuple[list[list[int]], int]] = []  # the texts of each row, and the rows' length
    if sharing == "shared":
        sizes = SHORT_ROW << np.ceil(np.log2(np.maximum(lengths / SHORT_ROW, 1.0))).astype(np.int64)
        for size in np.unique(sizes)[::-1].tolist():
            numbers = np.flatnonzero(sizes == size)
            # A few texts may need less than a whole row; multiples of 8 limit the number of shapes.
            row_length = min(size, longest, -(-int(lengths[numbers].sum()) // 8) * 8)
            if len(numbers) == 1:  # for a single text, loading numba, which takes a second, would not pay off
                batches.append(([numbers.tolist()], row_length))
                continue
            packed = pack_pieces(lengths[numbers], row_length=row_length, overhead=0)
            rows = [numbers[pieces].tolist() for pieces in packed.pieces()]
            num_rows = max(1, positions // row_length)
            batches += [(rows[begin : begin + num_rows], row_length) for begin in range(0, len(rows), num_rows)]
    else:
        order = np.argsort(-lengths, kind="stable").tolist()
        for _, group in groupby(order, key=lambda number: sharing == "equal" and lengths[number]):
            rows, begin = [[number] for number in group], 0
            while begin < len(rows):
                row_length = int(lengths[rows[begin][0]])
                num_rows = max(1, positions // row_length)
                batches.append((rows[begin : begin + num_rows], row_length))
                begin += num_rows
    for rows, row_length in batches:
        yield text_rows(texts, rows, row_length, pad_id=pad_id, types=types)
