"""Examples through the network.

Shape suffixes: T = positions of all rows in a line, D = hidden size, N = places, C = outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.model.task_network import TaskNetwork
from unmask.tasks.examples import Example, batches_by_length, pack_examples
from unmask.tasks.task import Task

BATCH_TOKENS = 8192

Notify = Callable[[int, int], None]


@torch.no_grad()
def outputs_of(
    model: TaskNetwork, task: Task, examples: Sequence[Example], *, notify: Notify | None = None
) -> list[NDArray[np.float32]]:
    """What the network says at the places of each example.

    Args:
        model: In evaluation mode, with the task's head.
        task: The task.
        examples: Inputs.
        notify: Told after every batch how many tokens are done, of how many.

    Returns:
        For each example [N, C]; N is 1 where the task pools.
    """
    assert not model.training
    device, alone = model.encoder.device, not model.encoder.shares_rows
    outputs: list[NDArray[np.float32]] = [np.zeros((0, 0), dtype=np.float32)] * len(examples)
    asked = [number for number, example in enumerate(examples) if len(example.places)]
    done, total = 0, sum(len(examples[number].input_ids) for number in asked)
    for places_of_asked in batches_by_length([examples[n] for n in asked], BATCH_TOKENS, padded=alone):
        numbers = [asked[place] for place in places_of_asked]
        batch = [examples[number] for number in numbers]
        longest = model.config.max_position_embeddings
        packed = pack_examples(batch, pad_id=model.pad_id, max_length=longest, alone=alone)
        rows = packed.rows.to(device)
        hidden_TD = model.encoder(
            rows.input_ids,
            segment_ids_BS=rows.segment_ids,
            position_ids_BS=rows.position_ids,
            token_type_ids_BS=rows.token_type_ids,
        ).flatten(0, 1)
        places = np.concatenate([begin + e.places for begin, e in zip(packed.begins, batch, strict=True)])
        sizes = [len(example.places) for example in batch]
        logits_NC = task.logits(model, hidden_TD.index_select(0, torch.from_numpy(places).to(device)), sizes)
        cuts = np.cumsum(sizes if len(logits_NC) == sum(sizes) else np.ones_like(sizes))[:-1]
        for number, output in zip(numbers, np.split(logits_NC.float().cpu().numpy(), cuts), strict=True):
            outputs[number] = output
        if notify is not None:
            done += sum(len(example.input_ids) for example in batch)
            notify(done, total)
    return outputs
