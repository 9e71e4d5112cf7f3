"""Checks of what stands in a model's folder: its files, special ids and the tie of decoder and embedding."""

from __future__ import annotations

import torch

from unmask.exporting.check import Check, compare, count, worst
from unmask.exporting.subject import Subject
from unmask.files import file_sha256
from unmask.model.checksums import CHECKSUMS, read_checksums

# Keys of config.json, and the role whose id they hold.
_ROLES = {
    "pad_token_id": "pad",
    "cls_token_id": "cls",
    "bos_token_id": "cls",
    "sep_token_id": "sep",
    "eos_token_id": "sep",
    "mask_token_id": "mask",
}


def files_unchanged(subject: Subject) -> Check | str:
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


def special_ids(subject: Subject) -> Check:
    """config.json and the tokenizer name the same ids, the model has them, and they stand around each text."""
    tokenizer = subject.tokenizer
    ids = {role: id_ for role, id_ in vars(tokenizer.special).items() if id_ is not None}
    wrong = [
        f"config.json says {key} = {found}, the tokenizer {ids.get(role)}"
        for key, role in _ROLES.items()
        if (found := subject.config.get(key)) is not None and found != ids.get(role)
    ]
    vocab_size = subject.config.get("vocab_size", 0)
    if tokenizer.vocab_size > vocab_size:
        wrong.append(f"the tokenizer has {tokenizer.vocab_size:,} ids, the model only {vocab_size:,}")
    if len(set(ids.values())) < len(ids):
        wrong.append(f"special tokens share an id: {ids}")
    around = tokenizer.encode_prompt("").tolist()
    if around != tokenizer.special.around:
        wrong.append(f"the tokenizer puts {around} around texts, not {tokenizer.special.around}")
    return count(wrong, "config.json and tokenizer")


def tied_weights(subject: Subject) -> Check | str:
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
