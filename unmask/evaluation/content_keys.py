"""Keys of held-out segments by their text, so that masks do not depend on the corpus around it.

Training rows are keyed by document and place (`unmask.packing.stream`), which one more document in front moves.
Held-out figures of two runs compare only where equal text is masked alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.hashing import GOLDEN, mix
from unmask.packing.rows import Rows


def keyed_by_content(rows: Rows, seen: Counter[int]) -> Rows:
    """The rows with keys that are hashes of what their segments hold.

    Args:
        rows: On the CPU; halves of a pair share a key.
        seen: How often segments stood in earlier rows, by their hash; these are added. Equal segments have keys, and so
            masks, of their own.
    """
    segments = rows.segment_ids.numpy()
    row_begins = np.zeros(segments.shape, dtype=bool)
    row_begins[:, 0] = True
    begins = np.flatnonzero(row_begins.reshape(-1) | (np.diff(segments.reshape(-1), prepend=-2) != 0))
    ids: NDArray[np.int64] = rows.input_ids.numpy().reshape(-1)
    places: NDArray[np.int64] = rows.position_ids.numpy().reshape(-1)
    hashes: NDArray[np.int64] = np.add.reduceat(mix(mix(ids + np.int64(1)) + places * np.int64(GOLDEN)), begins)
    count = np.zeros(len(begins), dtype=np.int64)
    for number in np.flatnonzero(segments.reshape(-1)[begins] >= 0).tolist():
        key = int(hashes[number])
        count[number] = seen[key]
        seen[key] += 1
    keys = np.repeat(mix(mix(hashes) + count), np.diff(begins, append=segments.size))
    return replace(rows, segment_keys=torch.from_numpy(keys.reshape(segments.shape)))
