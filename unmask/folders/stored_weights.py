"""Weights as they lie in a folder: in one file of safetensors, or in several that an index names.

A file begins with the name, type and shape of every tensor. These are compared with what config.json asks for before a
network is made or a number is read, so that no configuration makes anybody allocate more than the file holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from unmask.errors import ModelError
from unmask.hub import INDEX, WEIGHTS
from unmask.values import load_json, shown

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
