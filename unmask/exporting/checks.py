"""Checks of a model, and what each came to: here those of its network by itself, and of its folder.

Comparisons with transformers stand in `unmask.exporting.transformers_checks`, those with ONNX graphs in
`unmask.exporting.onnx_checks`.

Shape suffixes: B = texts, S = positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.exporting.checked_model import CheckedModel
from unmask.files import file_sha256
from unmask.folders.checksums import CHECKSUMS, read_checksums
from unmask.values import shown

TOLERANCE = 1e-3  # of logits and hidden states in float32, between two ways to compute them


@dataclass(frozen=True)
class Check:
    """A result.

    Attributes:
        passed: Whether the promise holds.
        largest_difference: Between the two things that were compared: of numbers the largest absolute one, of ids or
            files how many differ; None where it is no number (NaN, infinity, or the comparison broke off).
        detail: What was compared, or what is wrong and the way out.
        smallest_cosine: Of 8-bit graphs that make vectors: between one of theirs and ours of the same text; else None.
    """

    passed: bool
    largest_difference: float | None
    detail: str
    smallest_cosine: float | None = None


def compare(ours: Tensor, theirs: Tensor, detail: str, *, tolerance: float = TOLERANCE) -> Check:
    """Compares numbers; other shapes, and what is not finite, pass nothing."""
    if ours.shape != theirs.shape:
        return Check(False, None, f"{detail}: of shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    difference = (ours.double() - theirs.double()).abs().max().item()
    if not math.isfinite(difference):
        return Check(False, None, f"{detail}: not finite")
    return Check(difference <= tolerance, difference, detail)


def count(wrong: list[str], detail: str) -> Check:
    """Passes where nothing is wrong; else says all that is.

    Args:
        wrong: A sentence for each thing.
        detail: What was compared.
    """
    return Check(not wrong, float(len(wrong)), "; ".join(wrong) or detail)


def at_least(cosine: float) -> str:
    """A cosine to four digits, never rounded up: 0.99996 is 0.9999."""
    return f"{math.floor(cosine * 1e4) / 1e4:.4f}"


def worst(checks: list[Check]) -> Check:
    """The first that failed, or the one with the largest difference."""
    failed = [check for check in checks if not check.passed]
    return failed[0] if failed else max(checks, key=lambda check: check.largest_difference or 0.0)


# Of the network: what stands beside a text in a batch must not change what is said of it.
def packed_equals_alone(subject: CheckedModel) -> Check:
    """Texts one behind another in a row, and each in a row of its own."""
    together = subject.run(**subject.probe.packed)[0].split([len(ids) for ids in subject.probe.texts])
    alone = [subject.run(ids[None])[0] for ids in subject.probe.texts]
    return worst([compare(a, b, "three texts in one row") for a, b in zip(together, alone, strict=True)])


def padded_equals_unpadded(subject: CheckedModel) -> Check:
    """Texts filled up to the longest, and each without padding."""
    rows = subject.probe.padded(subject.tokenizer.special.pad)
    padded = subject.run(rows["input_ids"], segment_ids_BS=rows["attention_mask"] - 1)
    checks = []
    for row, ids in zip(padded, subject.probe.texts, strict=True):
        checks.append(compare(row[: len(ids)], subject.run(ids[None])[0], "rows filled up to the longest"))
    return worst(checks)


def finite_weights(subject: CheckedModel) -> Check:
    """No stored weight is NaN or infinite."""
    wrong = [
        f"{name} holds {int((~tensor.isfinite()).sum()):,} values that are not finite"
        for name, tensor in subject.raw_weights.items()
        if torch.is_floating_point(tensor) and not tensor.isfinite().all()
    ]
    return count(wrong, f"{len(subject.raw_weights)} tensors")


# Of the folder: its files, its special ids, and the tie of decoder and embedding.

# Keys of config.json, and the role whose id they hold.
_ROLES = {
    "pad_token_id": "pad",
    "cls_token_id": "cls",
    "bos_token_id": "cls",
    "sep_token_id": "sep",
    "eos_token_id": "sep",
    "mask_token_id": "mask",
}


def files_unchanged(subject: CheckedModel) -> Check | str:
    """The files have the checksums that were written with them; a reason where there are none."""
    wanted = read_checksums(subject.folder)
    if wanted is None:
        return f"the folder has no {CHECKSUMS}, which pretrain and finetune write beside their models"
    wrong = []
    for name, checksum in wanted.items():
        file = subject.folder / name
        if not file.is_file():
            wrong.append(f"{name} is missing")
        elif file_sha256(file) != checksum:
            wrong.append(f"{name} is not what was written; if you changed it on purpose, remove {CHECKSUMS}")
    return count(wrong, f"checksums of {len(wanted)} files")


def special_ids(subject: CheckedModel) -> Check:
    """config.json and the tokenizer name the same ids, the model has them, and they stand around each text."""
    tokenizer = subject.tokenizer
    ids = {role: id_ for role, id_ in vars(tokenizer.special).items() if id_ is not None}
    wrong = [
        f"config.json says {key} = {shown(found)}, the tokenizer {ids.get(role)}"
        for key, role in _ROLES.items()
        if (found := subject.config.get(key)) is not None and found != ids.get(role)
    ]
    vocab_size = subject.config.get("vocab_size", 0)
    if not isinstance(vocab_size, int) or tokenizer.vocab_size > vocab_size:
        wrong.append(f"the tokenizer has {tokenizer.vocab_size:,} ids, the model only {shown(vocab_size)}")
    if len(set(ids.values())) < len(ids):
        wrong.append(f"special tokens share an id: {ids}")
    around = tokenizer.encode_prompt("").tolist()
    if around != tokenizer.special.around:
        wrong.append(f"the tokenizer puts {around} around texts, not {tokenizer.special.around}")
    return count(wrong, "config.json and tokenizer")


def tied_weights(subject: CheckedModel) -> Check | str:
    """A decoder that is stored beside the embedding (and a bias under two names) holds the same numbers."""
    if not subject.has_head:
        return "the folder holds no masked-language-model head"
    if subject.config.get("tie_word_embeddings", True) is not True:
        return Check(False, None, "config.json says tie_word_embeddings = false; these layouts tie them")
    names = subject.layout.names
    embedding = names.theirs("encoder.tokens")[0]
    stored = subject.weights
    checks = [Check(True, 0.0, "the decoder is the embedding, stored once")]
    decoders = [name for name in names.known if name in stored and name.endswith("decoder.weight")]
    checks += [_same(stored[name], stored[embedding], f"{name} and {embedding}") for name in decoders]
    raw = subject.raw_weights
    twice = [(other, name) for other, name in names.aliases.items() if other in raw and name in raw]
    checks += [_same(raw[other], raw[name], f"{other} and {name}") for other, name in twice]
    return worst(checks)


def _same(tensor: torch.Tensor, other: torch.Tensor, detail: str) -> Check:
    return compare(tensor, other, detail, tolerance=0.0)
