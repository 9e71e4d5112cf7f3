"""Tags of words: entities, parts of speech. The tag of a word stands at its first piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.model.task_folder import label_numbers
from unmask.model.task_network import TaskNetwork
from unmask.tasks.encoding import InputEncoder, first_pieces, ids_of
from unmask.tasks.examples import Encoded, Example
from unmask.tasks.predictions import Prediction, TagsPrediction
from unmask.tasks.records import WordsRecord
from unmask.tasks.text import TARGET


@dataclass(frozen=True)
class TagTask:
    """A tag for each word, told from its first piece. Source: Devlin et al. 2018, section 5.3.

    Attributes:
        names: The tags.
    """

    names: tuple[str, ...]

    def encode(self, records: Sequence[WordsRecord], encoder: InputEncoder, *, with_targets: bool) -> Encoded:
        """See `unmask.tasks.task.Task`. Tags that the model does not know are no targets."""
        numbers = label_numbers(self.names)
        examples: list[Example] = []
        split = 0
        for number, (record, parts) in enumerate(
            zip(records, encoder.sentences([record.words for record in records]), strict=True)
        ):
            split += len(parts) > 1
            ends = [*(first for first, _ in parts[1:]), len(record.words)]
            for (first, encoding), end in zip(parts, ends, strict=True):
                places, words = first_pieces(record.words[first:end], encoding)
                tags = record.tags if with_targets else None
                right = [] if tags is None else [numbers.get(tags[first + word], -1) for word in words.tolist()]
                examples.append(
                    Example(
                        record=number,
                        input_ids=ids_of(encoding),
                        type_ids=encoder.type_ids(encoding),
                        places=places,
                        items=words + first,
                        targets={} if tags is None else {TARGET: np.array(right, dtype=np.int64)},
                    )
                )
        return Encoded(examples, split=split)

    def logits(self, model: TaskNetwork, hidden_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `unmask.tasks.task.Task`."""
        return model.tag(hidden_ND)

    def decode(
        self, records: Sequence[WordsRecord], examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """See `unmask.tasks.task.Task`."""
        tags: list[list[str | None]] = [[None] * len(record.words) for record in records]
        shares: list[list[float | None]] = [[None] * len(record.words) for record in records]
        for example, output in zip(examples, outputs, strict=True):
            if not len(example.places):  # of characters alone that the tokenizer leaves out
                continue
            best = torch.softmax(torch.from_numpy(output).double(), 1).max(1)
            for word, tag, share in zip(example.items, best.indices.tolist(), best.values.tolist(), strict=True):
                tags[example.record][word] = self.names[tag]
                shares[example.record][word] = share
        return [
            TagsPrediction(record.words, tuple(found), tuple(probabilities))
            for record, found, probabilities in zip(records, tags, shares, strict=True)
        ]
