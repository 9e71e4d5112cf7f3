"""Checks of our own network: what stands beside a text in a batch must not change what is said of it."""

from __future__ import annotations

import torch

from unmask.exporting.check import Check, compare, count, worst
from unmask.exporting.subject import Subject


def packed_equals_alone(subject: Subject) -> Check:
    """Texts one behind another in a row, and each in a row of its own."""
    together = subject.run(**subject.probe.packed)[0].split([len(ids) for ids in subject.probe.texts])
    alone = [subject.run(ids[None])[0] for ids in subject.probe.texts]
    return worst([compare(a, b, "three texts in one row") for a, b in zip(together, alone, strict=True)])


def padded_equals_unpadded(subject: Subject) -> Check:
    """Texts filled up to the longest, and each without padding."""
    rows = subject.probe.padded(subject.tokenizer.special.pad)
    padded = subject.run(rows["input_ids"], segment_ids_BS=rows["attention_mask"] - 1)
    checks = []
    for row, ids in zip(padded, subject.probe.texts, strict=True):
        checks.append(compare(row[: len(ids)], subject.run(ids[None])[0], "rows filled up to the longest"))
    return worst(checks)


def finite_weights(subject: Subject) -> Check:
    """No stored weight is NaN or infinite."""
    wrong = [
        f"{name} holds {int((~tensor.isfinite()).sum()):,} values that are not finite"
        for name, tensor in subject.raw_weights.items()
        if torch.is_floating_point(tensor) and not tensor.isfinite().all()
    ]
    return count(wrong, f"{len(subject.raw_weights)} tensors")
