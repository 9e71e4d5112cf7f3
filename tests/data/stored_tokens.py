"""A store of known tokens; and the segments of rows, as packed and as drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.data.data_folder import save_shard, token_rows
from unmask.data.packing import PackedRows
from unmask.data.rows import Cursor, RowBatch, Rows, RowStream
from unmask.data.store import TokenStore


def store_of(
    folder: Path,
    ids: Sequence[NDArray[np.int64]],
    *,
    starts: Sequence[NDArray[Any]],
    documents: Sequence[int],
    labels: Sequence[int] | None = None,
) -> TokenStore:
    """The only shard of a folder: for each piece its tokens, whether words begin there, its document and class."""
    numbers = {"document": np.array(documents), "offset": np.zeros(len(ids), dtype=np.int64)}
    numbers |= {} if labels is None else {"label": np.array(labels)}
    lengths = np.array([len(each) for each in ids])
    rows = token_rows(np.concatenate(ids).astype(np.uint16), np.concatenate(starts).astype(bool), lengths, numbers)
    save_shard(folder, "known.arrow", [rows])
    return TokenStore([folder / "known.arrow"])


def segments_of(rows: PackedRows) -> list[list[tuple[list[tuple[int, int, int]], int]]]:
    """For each row its segments: (piece, start, length) of their one or two parts, and the class, -1 for none."""
    parts = list(zip(rows.piece.tolist(), rows.start.tolist(), rows.length.tolist(), strict=True))
    second = [*(rows.half[1:] == 1).tolist(), False]
    return [
        [(parts[f : f + 1 + second[f]], int(rows.label[f])) for f in range(begin, end) if not rows.half[f]]
        for begin, end in zip(rows.begins[:-1].tolist(), rows.begins[1:].tolist(), strict=True)
    ]


def epoch_of(stream: RowStream, epoch: int = 0) -> list[RowBatch]:
    return list(takewhile(lambda batch: batch.epoch == epoch, stream.batches(Cursor(epoch), 4)))


def drawn_segments(batches: list[RowBatch]) -> Iterator[tuple[Rows, int, torch.Tensor]]:
    """Each segment of some batches: its rows, its row, and its places there."""
    for rows in (batch.rows for batch in batches):
        for r, numbers in enumerate(rows.segment_ids):
            for n in range(int(numbers.max()) + 1):
                yield rows, r, torch.nonzero(numbers == n).flatten()
