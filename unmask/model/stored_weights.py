"""Weights in a folder: one file of safetensors, or several that an index names; and checksums of a model's files.

A file begins with the name, type and shape of every tensor. These are compared with what config.json asks for before a
network is made or a number is read, so that no configuration allocates more than the file holds. What is missing or
damaged is a ModelError.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from unmask.core.errors import ModelError, load_json, shown
from unmask.core.files import file_sha256, write_atomically
from unmask.core.hub import CONFIG, INDEX, WEIGHTS

log = logging.getLogger("unmask")
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's entry in the beginning of a file: its shape, and the kind of its numbers, such as `F32`."""

    shape: tuple[int, ...]
    kind: str


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights in files that are read here."""
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights: one, or several that an index names."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ModelError(f"{folder}: there is no {WEIGHTS}")
    try:
        files = [folder / Path(name).name for name in sorted(set(load_json(folder / INDEX)["weight_map"].values()))]
        missing = [file for file in files if not file.is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / INDEX}: damaged ({error!r})") from error
    if missing:
        raise ModelError(f"{missing[0]}: no such file, but {INDEX} names it")
    return files


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The entries of a folder's tensors, by name; no number is read."""
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        with _damaged(file), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                tensor = opened.get_slice(name)
                tensors[name] = StoredTensor(tuple(tensor.get_shape()), str(tensor.get_dtype()))
    return tensors


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a folder, by the names they have there."""
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with _damaged(file):
            weights |= load_file(file)
    return weights


def check_kinds(stored: Mapping[str, StoredTensor], where: str) -> None:
    """Makes sure that tensors hold what a network calculates with."""
    for name, tensor in stored.items():
        if tensor.kind not in _FLOATS:
            raise ModelError(
                f"{where}: {shown(name)} holds numbers of type {tensor.kind}, but weights are of {', '.join(_FLOATS)}; "
                "if the model was quantised, give the one that it was made from"
            )


@contextmanager
def _damaged(file: Path) -> Iterator[None]:
    try:
        yield
    # Beside the library's own: types that torch lacks, and sizes that no memory has.
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{file}: damaged ({reason})") from error


# ----------------------------------------
# checksums.json    {"config.json": SHA-256, "model.safetensors": ..., "tokenizer.json": ..., ...}
#
# `pretrain` and `finetune` write it; transformers and the hub ignore it. A file that differs was damaged, or written
# anew on purpose: by `save_pretrained` into the same folder, by merging, by hand. These cannot be told apart, so that
# loading warns of both. Files that are not in it (README.md, files of sentence-transformers) may change freely.

CHECKSUMS = "checksums.json"
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_FILES = (
    CONFIG, *_WEIGHTS, INDEX, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
)  # fmt: skip


def write_checksums(folder: Path) -> None:
    """Writes the checksums of a folder's files; call it when they are all there."""
    content = {path.name: file_sha256(path) for path in _checked_files(folder)}
    write_atomically(folder / CHECKSUMS, json.dumps(content, indent=2) + "\n")


def read_checksums(folder: Path) -> dict[str, str] | None:
    """File to SHA-256, or None where there are none (transformers writes none)."""
    file = folder / CHECKSUMS
    if not file.is_file():
        return None
    try:
        return {str(name): str(value) for name, value in load_json(file).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{file}: damaged ({error}); remove it to go without checksums") from error


def weights_fingerprint(folder: Path) -> str:
    """SHA-256 of a folder's configuration and weights together: where it is equal, so are hidden states."""
    files = {path.name: file_sha256(path) for pattern in (CONFIG, *_WEIGHTS) for path in folder.glob(pattern)}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


@contextmanager
def files_checked(folder: Path, *, strict: bool = False) -> Iterator[None]:
    """Compares a model's files with their checksums while it is loaded, on another core where one is free.

    A folder without checksums is taken as it is; if the loading fails, its own error is raised. A file that was changed
    is a warning in the log, and an error where it is `strict`.
    """
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(_complaint, folder)
        yield
        if (complaint := pending.result()) is None:
            return
        if strict:
            raise ModelError(complaint)
        log.warning("%s", complaint)


def _complaint(folder: Path) -> str | None:
    try:
        checksums = read_checksums(folder)
    except ModelError as error:
        return str(error)
    if checksums is None:
        return None
    changed = []
    for path in _checked_files(folder):
        if path.name in checksums:
            if file_sha256(path) != checksums[path.name]:
                changed.append(path.name)
        elif any(fnmatchcase(path.name, pattern) for pattern in _WEIGHTS):
            changed.append(path.name)
    if not changed:
        return None
    are, them = ("are", "them") if len(changed) > 1 else ("is", "it")
    return (
        f"{folder}: {', '.join(shown(name)[1:-1] for name in changed[:4])} {are} not what {CHECKSUMS} was written for: "
        f"damaged, or saved anew since. If you changed {them} on purpose (save_pretrained, merging, an edit), remove "
        f"{CHECKSUMS}; else take another copy of the model"
    )


def _checked_files(folder: Path) -> list[Path]:
    return sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()})
