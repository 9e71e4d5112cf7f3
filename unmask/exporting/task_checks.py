"""The head of a task: what unmask computes of it, and what transformers' own class does.

Shape suffixes: B = texts, S = positions, N = places of a text, C = outputs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.exporting.check import TOLERANCE, Check, compare, worst
from unmask.exporting.probes import Probe, make_probe
from unmask.exporting.subject import Subject
from unmask.exporting.transformers_side import loaded
from unmask.model.encoder import MaskedLM
from unmask.model.task_folder import KEY, TaskHead
from unmask.tasks.inputs import Example
from unmask.tasks.known import task_of
from unmask.tasks.task_model import open_fine_tuned, outputs_of


def task_head_equals_ours(subject: Subject) -> Check | str:
    """The same logits of a fine-tuned model's task, of texts that share rows here and are padded there.

    Returns:
        What came of it; why it is not made where transformers has no such class, or where others than unmask
        fine-tuned the model, with a head that is not read here.

    Raises:
        ModelError: The head that unmask wrote cannot be loaded.
    """
    import transformers

    architecture = next(iter(subject.config.get("architectures") or []), "")
    if architecture and not hasattr(transformers, architecture):
        return f"transformers {transformers.__version__} has no {architecture}"
    try:
        head = task_of(subject.config, subject.folder).task_head
        ours = open_fine_tuned(subject.folder, subject.tokenizer)
    except ModelError as error:
        if KEY in subject.config:
            raise
        return str(error)
    theirs = loaded(subject.folder, f"AutoModelFor{head.architecture}")
    assert isinstance(ours.network, MaskedLM), "transformers runs all others"
    probe = make_probe(ours.network.config, subject.tokenizer)
    rows = probe.padded(subject.tokenizer.special.pad)
    types_BS = rows["token_type_ids"] if ours.network.config.num_types > 1 else None
    found = outputs_of(ours.network, ours.task, _examples(probe, head, types_BS))
    expected = _theirs(theirs, {name: rows[name] for name in rows if types_BS is not None or name != "token_type_ids"})
    checks = []
    for row, output in enumerate(found):
        ours_NC = torch.from_numpy(output)
        theirs_NC = expected[row][None] if head.pooling is not None else expected[row][: len(output)]
        tolerance = TOLERANCE * max(1.0, ours_NC.abs().max().item())  # a regression's numbers may be thousands
        checks.append(compare(ours_NC, theirs_NC, f"logits of {type(theirs).__name__}", tolerance=tolerance))
    return worst(checks)


def _examples(probe: Probe, head: TaskHead, types_BS: Tensor | None) -> list[Example]:
    """The texts as inputs of the task: outputs are asked for where its head looks."""
    examples = []
    for number, ids in enumerate(probe.texts):
        places = np.arange(1 if head.pooling == "first" else len(ids))
        types = None if types_BS is None else types_BS[number, : len(ids)].numpy()
        examples.append(Example(number, ids.numpy(), types, places, places))
    return examples


@torch.no_grad()
def _theirs(model: torch.nn.Module, rows: dict[str, Tensor]) -> Tensor:
    """Logits [B, C] of texts, or [B, S, C] of their positions."""
    found = model(**rows)
    return torch.stack([found.start_logits, found.end_logits], -1) if "start_logits" in found else found.logits
