"""Our encoder as something that answers questions: texts share rows, and logits are made at hidden tokens only.

row 0   [CLS] the [MASK] sees [SEP]  [CLS] a dog [MASK] [SEP]
segment   0    0    0     0    0       1   1  1    1      1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.evaluation.questions import Answer, Question, chunk_of, judge, split_answers
from unmask.model.encoder import MaskedLM

BATCH_POSITIONS = 4096


class OwnNetwork:
    """A `MaskedLM`, which is in evaluation mode while it answers."""

    batch_positions = BATCH_POSITIONS

    def __init__(self, model: MaskedLM) -> None:
        self.model = model

    @property
    def longest(self) -> int:
        """Positions that it takes."""
        return self.model.config.max_position_embeddings

    def to(self, device: torch.device) -> None:
        """Moves it; activations keep their type."""
        self.model.to(device)

    @torch.no_grad()
    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions in one pass."""
        row, begin, num_rows, length = places_in_rows([len(question.input_ids) for question in questions])
        input_ids = np.full((num_rows, length), self.model.config.pad_id, dtype=np.int64)
        segment_ids = np.full((num_rows, length), -1, dtype=np.int32)
        position_ids = np.zeros((num_rows, length), dtype=np.int64)
        count = np.arange(length)
        flat = input_ids.reshape(-1)
        starts = row * length + begin
        for number, (question, start) in enumerate(zip(questions, starts.tolist(), strict=True)):
            stop = start + len(question.input_ids)
            flat[start:stop] = question.input_ids
            segment_ids.reshape(-1)[start:stop] = number
            position_ids.reshape(-1)[start:stop] = count[: stop - start]
        positions = np.concatenate([q.places + start for q, start in zip(questions, starts, strict=True)])
        targets = np.concatenate([question.targets for question in questions])
        losses, ranks = self._judged(input_ids, segment_ids, position_ids, positions, targets)
        return split_answers(questions, losses, ranks)

    def _judged(
        self,
        input_ids: NDArray[np.int64],
        segment_ids: NDArray[np.int32],
        position_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        model = self.model
        device = model.encoder.tokens.device
        was_training = model.training
        model.eval()
        ids, segments, places, at, right = (
            torch.from_numpy(array).to(device) for array in (input_ids, segment_ids, position_ids, positions, targets)
        )
        hidden_TD = model.encoder(ids, segment_ids_BS=segments, position_ids_BS=places).flatten(0, 1)
        size = chunk_of(model.config.vocab_size)
        parts = [
            judge(model.predict(hidden_TD, part), right_part)
            for part, right_part in zip(at.split(size), right.split(size), strict=True)
        ]
        model.train(was_training)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def places_in_rows(lengths: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Puts texts into rows that are as long as the longest of them; short ones share a row.

    Args:
        lengths: Of the texts, falling.

    Returns:
        The row and the first position of each text, the number of rows, and their length. Texts of the same length,
        such as the copies of a sentence, leave no padding.

    Example: lengths 5, 3, 2, 2 are the rows `aaaaa`, `bbbcc`, `dd...`.
    """
    longest, shortest = lengths[0], lengths[-1]
    row = np.zeros(len(lengths), dtype=np.int64)
    begin = np.zeros(len(lengths), dtype=np.int64)
    open_rows: list[tuple[int, int]] = []  # with room for the shortest: number, and positions taken
    num_rows = 0
    for number, length in enumerate(lengths):
        for index, (candidate, taken) in enumerate(open_rows):
            if taken + length <= longest:
                row[number], begin[number] = candidate, taken
                open_rows[index] = candidate, taken + length
                if taken + length + shortest > longest:
                    del open_rows[index]
                break
        else:
            row[number] = num_rows
            if length + shortest <= longest:
                open_rows.append((num_rows, length))
            num_rows += 1
    return row, begin, num_rows, longest
