"""The epoch and the progress of a training, for collators that work in other processes than the training does."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

log = logging.getLogger("unmask")


class Clock:
    """The epoch and the progress, in memory that a data loader's workers share.

    It is set once an epoch, when no worker is at work. Within the epoch, batches are counted where they are made: a
    loader deals them out to its workers in turn, so each worker knows the number of its batch, and the progress is the
    same for any number of workers, however far they work ahead.

    The memory is a torch tensor: workers that are forked inherit it, and for workers that are spawned torch's own
    pickling hands over the memory instead of a copy.
    """

    def __init__(self) -> None:
        self._state = torch.zeros(4, dtype=torch.float64).share_memory_()  # times set, epoch, progress, that of a batch
        self._first_key = torch.zeros(2, dtype=torch.int64).share_memory_()  # of all rows; whether it was said
        self._times_set = 0.0
        self._batches = 0

    def set(self, epoch: int, progress: float, progress_a_batch: float) -> None:
        """Begins an epoch."""
        times = float(self._state[0]) + 1.0
        self._state.copy_(torch.tensor([times, epoch, progress, progress_a_batch], dtype=torch.float64))

    def next_batch(self) -> tuple[int, float, int]:
        """Counts a batch.

        Returns:
            Its epoch, its progress in [0, 1], and its number in the epoch where the progress does not move with each
            batch, else 0: a training that is resumed amid an epoch knows the progress and not the number.
        """
        times, epoch, begin, a_batch = self._state.tolist()
        if times != self._times_set:
            self._times_set, self._batches = times, 0
        worker = get_worker_info()
        number = self._batches if worker is None else self._batches * worker.num_workers + worker.id
        self._batches += 1
        return int(epoch), min(1.0, begin + number * a_batch), 0 if a_batch else number

    @property
    def batches(self) -> int:
        """How many batches of this epoch were counted in this process."""
        return self._batches if float(self._state[0]) == self._times_set else 0

    @batches.setter
    def batches(self, number: int) -> None:
        self._times_set, self._batches = float(self._state[0]), number

    def watch(self, keys_B: Tensor) -> None:
        """Warns once where the first row of all comes again although no epoch was ever set."""
        if self._state[0] > 0 or self._first_key[1] or not len(keys_B):
            return
        if not self._first_key[0]:
            self._first_key[0] = keys_B[0]
        elif (keys_B == self._first_key[0]).any():
            self._first_key[1] = 1
            log.warning(
                "a row came a second time, but the collator was told of no epoch, so its mask is the same: give the "
                "Trainer callbacks=[collator.callback], or call collator.set_epoch in a loop of your own; for masks "
                "that never change, say static=true in the masking settings"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Shares again what plain pickling copied."""
        self.__dict__.update(state)
        for tensor in (self._state, self._first_key):
            if not tensor.is_shared():
                tensor.share_memory_()
