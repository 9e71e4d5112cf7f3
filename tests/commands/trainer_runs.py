"""Transformers' Trainer on the folder, the files and the settings that a fine-tuning of ours has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.tasks.inputs import Example
from unmask.tasks.task import Task

AUTO = {
    "classify": "AutoModelForSequenceClassification",
    "multi_label": "AutoModelForSequenceClassification",
    "pairs": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
}
NO_LABEL = -100


def their_model(folder: Path, info: Task) -> Any:
    """Transformers' class for the task, with what it takes from the folder."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    labels: dict[str, Any] = {"num_labels": len(info.names)} if info.names else {}
    if info.problem_type is not None:
        labels["problem_type"] = info.problem_type
    return getattr(transformers, AUTO[info.kind]).from_pretrained(folder, **labels)


def features(example: Example, info: Task) -> dict[str, Any]:
    """An example as `Trainer` is given it."""
    row: dict[str, Any] = {"input_ids": example.input_ids.tolist()}
    if example.type_ids is not None:
        row["token_type_ids"] = example.type_ids.tolist()
    targets = {name: column.tolist() for name, column in example.targets.items()}
    if info.kind == "tag":
        row["labels"] = [NO_LABEL] * len(example.input_ids)
        for place, tag in zip(example.places, targets["target"], strict=True):
            row["labels"][place] = tag
    elif info.kind == "answer":
        row["start_positions"], row["end_positions"] = targets["begin"][0], targets["end"][0]
    elif info.kind == "multi_label" and targets:
        row["labels"] = [float(targets["labels0"][0] >> number & 1) for number in range(len(info.names))]
    elif targets:
        row["labels"] = targets["target"][0]
    return row


def padded(rows: Sequence[dict[str, Any]], pad_id: int) -> dict[str, Tensor]:
    """Rows as long as the longest, as transformers' collators make them."""
    length = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": pad_id, "labels": NO_LABEL, "token_type_ids": 0}
    batch: dict[str, Any] = {}
    for name, first in rows[0].items():
        column = [row[name] for row in rows]
        lists = isinstance(first, list) and len(first) == len(rows[0]["input_ids"])
        batch[name] = [each + [fill[name]] * (length - len(each)) for each in column] if lists else column
    batch["attention_mask"] = [[n < len(row["input_ids"]) for n in range(length)] for row in rows]
    tensors = {name: torch.tensor(column) for name, column in batch.items()}
    return {name: tensor if tensor.is_floating_point() else tensor.long() for name, tensor in tensors.items()}
