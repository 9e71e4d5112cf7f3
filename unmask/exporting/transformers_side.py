"""The folder as transformers loads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.exporting.check import Check, compare, worst
from unmask.exporting.subject import Subject


def missing_transformers() -> str | None:
    """Why transformers cannot be asked; None where it can."""
    return None if find_spec("transformers") else "transformers is not installed: pip install 'unmask[transformers]'"


def transformers_equals_ours(subject: Subject) -> Check:
    """The same logits (hidden states, where there is no head), of texts alone, padded, and of two types."""
    theirs = _auto_model(subject.folder, has_head=subject.has_head)
    rows = subject.probe.padded(subject.tokenizer.special.pad)
    real = rows["attention_mask"].bool()
    types = {"token_type_ids": rows["token_type_ids"]} if subject.num_types > 1 else {}
    ours = subject.run(
        rows["input_ids"],
        segment_ids_BS=rows["attention_mask"] - 1,
        **{f"{name}_BS": tensor for name, tensor in types.items()},
    )
    found = _output(theirs, input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], **types)
    checks = [compare(ours[real], found[real], "padded texts")]
    alone = [ids[None] for ids in subject.probe.texts]
    checks += [compare(subject.run(ids), _output(theirs, input_ids=ids), "texts alone") for ids in alone]
    return worst(checks)


def auto_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer of a folder.

    Raises:
        ModelError: transformers cannot load it.
    """
    import transformers

    with _quiet(), _as_model_error(folder):
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _auto_model(folder: Path, *, has_head: bool) -> torch.nn.Module:
    """In evaluation mode and float32.

    Raises:
        ModelError: transformers cannot load it, or finds no value for a weight that it needs.
    """
    return loaded(folder, "AutoModelForMaskedLM" if has_head else "AutoModel", unneeded="pooler")


def loaded(folder: Path, auto: str, *, unneeded: str | None = None) -> torch.nn.Module:
    """A model of transformers in evaluation mode and float32.

    Args:
        folder: With config.json and weights.
        auto: Name of the class that loads it.
        unneeded: Part of the names of weights that may be missing, since no output that is compared needs them.

    Raises:
        ModelError: transformers cannot load it, or finds no value for a weight that it needs.
    """
    import transformers

    with _quiet(), _as_model_error(folder):
        model, report = getattr(transformers, auto).from_pretrained(
            folder, output_loading_info=True, local_files_only=True
        )
    missing = sorted(name for name in report["missing_keys"] if unneeded is None or unneeded not in name)
    if missing:
        raise ModelError(f"{folder}: transformers finds no value for {', '.join(missing[:3])}")
    return model.eval().float()


@torch.no_grad()
def _output(model: torch.nn.Module, **inputs: Tensor) -> Tensor:
    found = model(**inputs)
    return found.logits if "logits" in found else found.last_hidden_state


@contextlib.contextmanager
def _as_model_error(folder: Path) -> Iterator[None]:
    """transformers raises whatever its parts raise; here each of them means that it cannot load the folder."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{folder}: transformers cannot load it ({type(error).__name__}: {error})") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars and remarks, which would break into the table."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
