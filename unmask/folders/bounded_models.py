"""Models of transformers, kept from being made larger than their files: its classes make whatever config.json says.

numbers of layers, labels, ...    against the tensors in the files, before transformers reads the configuration,
                                  since it writes lists of them
parts of the network              counted while it is made, once, where tensors have shapes and no numbers
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from unmask.errors import ModelError
from unmask.folders.stored_weights import check_kinds, has_weights, stored_tensors
from unmask.hub import CONFIG
from unmask.values import shown, too_high

_TABLES = re.compile(r"(_ids|index|tracked|mask|buckets?)$")  # integers, and no weights
USUAL = 10_000  # of layers, labels, ..., where the files hold little
# Of parts and numbers of a network beside those in its files: heads that are missing are drawn, and tables computed.
_MORE_PARTS, _MORE_NUMBERS, _FACTOR = 2_000, 1 << 26, 2
_PARTS_OF_PICKLE = 100_000  # which only reading it would tell


class _TooLargeError(Exception):
    """Breaks off the making of a network."""


def check_size(auto: Any, folder: Path, content: Mapping[str, Any]) -> None:
    """Makes sure that the files of a model hold about as much as its configuration asks for.

    Args:
        auto: One of transformers' `AutoModel` classes.
        folder: Of the model.
        content: Of its config.json.

    Raises:
        ModelError: It asks for more; or weights are of no type that a network calculates with.
    """
    if has_weights(folder):
        stored = {name: tensor for name, tensor in stored_tensors(folder).items() if not _TABLES.search(name)}
        check_kinds(stored, str(folder))
        parts = len(stored)
        numbers = sum(torch.Size(tensor.shape).numel() for tensor in stored.values())
        longest = max((size for tensor in stored.values() for size in tensor.shape), default=0)
    else:
        parts, longest = _PARTS_OF_PICKLE, USUAL
        numbers = sum(file.stat().st_size for file in folder.glob("*.bin"))
    check_counts(folder, content, max(USUAL, parts, longest))
    try:
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with _bounded(_FACTOR * parts + _MORE_PARTS, _FACTOR * numbers + _MORE_NUMBERS), torch.device("meta"):
            auto.from_config(config, trust_remote_code=False)
    except _TooLargeError as error:
        raise ModelError(
            f"{folder / CONFIG}: asks for a network of {error}, but the weights beside it hold {parts:,} tensors with "
            f"{numbers:,} numbers in all; give the configuration that belongs to them"
        ) from error
    except Exception:
        pass


def check_counts(folder: Path, content: Mapping[str, Any], most: int = USUAL) -> None:
    """Makes sure that a configuration counts no further than a network can have, before transformers reads it at all.

    Args:
        folder: Of the model.
        content: Of its config.json.
        most: Layers, labels, ... that there may be.

    Raises:
        ModelError: There are more.
    """
    if (found := too_high(content, most)) is not None:
        key, value = found
        raise ModelError(
            f"{folder / CONFIG}: {shown(key)} = {shown(value)} is no number of anything that the weights beside it "
            "have; give the configuration that belongs to them"
        )


def check_finite(model: nn.Module, folder: Path) -> None:
    """Makes sure that a loaded network says something.

    Raises:
        ModelError: A weight is NaN or infinite.
    """
    for name, weight in model.named_parameters():
        if not weight.sum().isfinite() and not weight.isfinite().all():
            raise ModelError(
                f"{folder}: {shown(name)} holds values that are not finite (NaN or infinity), so the model says "
                "nothing: its training has diverged, or the file is damaged; give another copy"
            )


@contextmanager
def _bounded(most_parts: int, most_numbers: int) -> Iterator[None]:
    """While it is entered, a network of more tensors or numbers is broken off."""
    parts = numbers = 0

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal parts, numbers
        if tensor is not None:
            parts, numbers = parts + 1, numbers + tensor.numel()
        if parts > most_parts:
            raise _TooLargeError(f"more than {most_parts:,} tensors")
        if numbers > most_numbers:
            raise _TooLargeError(f"more than {most_numbers:,} numbers")

    handles = (
        hooks.register_module_parameter_registration_hook(count),
        hooks.register_module_buffer_registration_hook(count),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
