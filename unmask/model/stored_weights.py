"""Weights as they lie in a folder: in one file of safetensors, or in several that an index names.

A file begins with the name, type and shape of every tensor. These are compared with what config.json asks for before a
network is made or a number is read, so that no configuration makes anybody allocate more than the file holds.
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

_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredTensor:
    """What a file says of a tensor before its numbers.

    Attributes:
        shape: Its size in each dimension.
        kind: Of its numbers, such as `F32`, as safetensors calls them.
    """

    shape: tuple[int, ...]
    kind: str


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights in files that are read here."""
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights: one, or several that an index names.

    Raises:
        ModelError: One is missing, or the index is damaged.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ModelError(f"{folder}: there is no {WEIGHTS}")
    try:
        named = set(load_json(folder / INDEX)["weight_map"].values())
        files = [folder / Path(name).name for name in sorted(named)]
        missing = [file for file in files if not file.is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / INDEX}: damaged ({error!r})") from error
    if missing:
        raise ModelError(f"{missing[0]}: no such file, but {INDEX} names it")
    return files


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """What a folder's files say of their tensors, by name; no number is read.

    Raises:
        ModelError: A file is missing or damaged: cut off, or its tensors overlap or lie beyond its end.
    """
    found: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        with _damaged(file), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                tensor = opened.get_slice(name)
                found[name] = StoredTensor(tuple(tensor.get_shape()), str(tensor.get_dtype()))
    return found


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a folder, by the names they have there.

    Raises:
        ModelError: A file is missing or damaged.
    """
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with _damaged(file):
            weights |= load_file(file)
    return weights


def check_kinds(stored: Mapping[str, StoredTensor], where: str) -> None:
    """Makes sure that tensors hold what a network calculates with.

    Args:
        stored: Those that are used.
        where: The file, for the error's text.

    Raises:
        ModelError: One holds integers or numbers of 8 bits, which mean nothing without the scale that was taken out.
    """
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
    # What the library has no word for: types that torch lacks, and sizes that no memory has.
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{file}: damaged ({reason})") from error


# ----------------------------------------
# Checksums of the files of a model's folder that decide what it says: whether they are what was written there.
#
#     checksums.json    {"config.json": SHA-256, "model.safetensors": ..., "tokenizer.json": ..., ...}
#
# `pretrain` and `finetune` write the file; transformers and the hub pass over it. What is not in it may be changed and
# added by anybody (README.md, files of sentence-transformers). Where one of these files is another, it was damaged, or
# written anew on purpose: by `save_pretrained` into the same folder, by merging, by hand. Nobody can tell these apart,
# so
# whoever loads the model is warned of both.

log = logging.getLogger("unmask")
CHECKSUMS = "checksums.json"
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_FILES = (
    CONFIG, *_WEIGHTS, INDEX, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
)  # fmt: skip


def write_checksums(folder: Path) -> None:
    """Writes the checksums of a folder's files; call it when they are all there."""
    content = {path.name: file_sha256(path) for path in _deciding(folder)}
    write_atomically(folder / CHECKSUMS, json.dumps(content, indent=2) + "\n")


def read_checksums(folder: Path) -> dict[str, str] | None:
    """File to SHA-256, or None where nobody wrote any (transformers does not).

    Raises:
        ModelError: The file is damaged.
    """
    file = folder / CHECKSUMS
    if not file.is_file():
        return None
    try:
        content = load_json(file)
        return {str(name): str(value) for name, value in content.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{file}: damaged ({error}); remove it to go without checksums") from error


def weights_fingerprint(folder: Path) -> str:
    """SHA-256 of a folder's configuration and weights together: whoever has the same one makes the same hidden states.

    Of the tokenizer there is `Tokenizer.fingerprint`.
    """
    files = {path.name: file_sha256(path) for pattern in (CONFIG, *_WEIGHTS) for path in folder.glob(pattern)}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


@contextmanager
def files_checked(folder: Path, *, strict: bool = False) -> Iterator[None]:
    """While a model is loaded, its files are compared with their checksums, beside the loading where a core is free.

    A folder without checksums is taken as it is; so is one whose weights cannot be loaded, of which the loading tells.

    Args:
        folder: Of the model.
        strict: A file that was changed is an error, and no warning in the log.

    Raises:
        ModelError: A file was changed, or the checksums cannot be read, and that is an error.
    """
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(_complaint, folder)
        yield
        if (complaint := found.result()) is None:
            return
        if strict:
            raise ModelError(complaint)
        log.warning("%s", complaint)


def _complaint(folder: Path) -> str | None:
    """What is wrong, and the way out."""
    try:
        wanted = read_checksums(folder)
    except ModelError as error:
        return str(error)
    if wanted is None:
        return None
    found = {path.name: path for path in _deciding(folder)}
    changed = [name for name, path in found.items() if name in wanted and file_sha256(path) != wanted[name]]
    changed += [name for name in found if name not in wanted and any(fnmatchcase(name, each) for each in _WEIGHTS)]
    if not changed:
        return None
    several = len(changed) > 1
    return (
        f"{folder}: {', '.join(shown(name)[1:-1] for name in sorted(changed)[:4])} {'are' if several else 'is'} not "
        f"what {CHECKSUMS} was written for: damaged, or saved anew since. If you changed {'them' if several else 'it'} "
        f"on purpose (save_pretrained, merging, an edit), remove {CHECKSUMS}; else take another copy of the model"
    )


def _deciding(folder: Path) -> list[Path]:
    """The files that decide what the model says, and nothing else."""
    return sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()})
