"""Batches of examples for the training loop: an endless stream whose place is a small cursor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unmask.hashing import permutation
from unmask.packing.stream import Batch, Cursor
from unmask.tasks.inputs import Example, pack_examples

_ORDER = 11  # sets this order apart from those of pretraining


class ExampleStream:
    """Examples in an order of their own each epoch, so many a batch, packed into rows.

    Args:
        examples: All of them.
        batch_size: Examples of a batch. The epoch's batches have about equally many: a step on a few examples would
            move the weights as far as one on many.
        pad_id, max_length, alone: As for `pack_examples`.
        seed: Of the order.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        batch_size: int,
        pad_id: int,
        max_length: int,
        seed: int,
        alone: bool = False,
    ) -> None:
        self.examples = examples
        self.batches = math.ceil(len(examples) / batch_size)
        self._pad_id = pad_id
        self._max_length = max_length
        self._seed = seed
        self._alone = alone

    def batch(self, cursor: Cursor, num_rows: int, length: int | None = None) -> Batch:
        """The batch at a place, and the place after it.

        Rows and their length are what the examples need, whatever is asked for; special tokens count as tokens here.
        """
        order = permutation(len(self.examples), _ORDER, self._seed, cursor.epoch)
        begin, end = (n * len(order) // self.batches for n in (cursor.window, cursor.window + 1))
        examples = [self.examples[number] for number in order[begin:end]]
        packed = pack_examples(examples, pad_id=self._pad_id, max_length=self._max_length, alone=self._alone)
        is_last = cursor.window + 1 == self.batches
        after = Cursor(cursor.epoch + 1) if is_last else Cursor(cursor.epoch, cursor.window + 1)
        return Batch(packed.rows, cursor.epoch, sum(map(len, examples)), after)
