"""What a model's card says of the model that its training began with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.margins import margin


def base_model(start: Mapping[str, Any]) -> str | None:
    """The name that the hub knows it by; None of a folder."""
    checkpoint = str(start["checkpoint"])
    return None if Path(checkpoint).is_absolute() else checkpoint.partition("@")[0]


def called(start: Mapping[str, Any]) -> str:
    """What it is called: its name and commit on the hub, or its folder and the beginning of its hash."""
    checkpoint = Path(start["checkpoint"])
    if not checkpoint.is_absolute():
        return f"`{start['checkpoint']}`"
    folder = checkpoint.parent if checkpoint.name == "model" else checkpoint
    return f"`{folder.name}` (sha256 `{start['sha256'][:12]}`)"


def changed(start: Mapping[str, Any]) -> str:
    """What was done to it before the training, in sentences; empty where nothing was."""
    found = []
    if start["new_head"]:
        found.append("It had no head for masked tokens, so one was drawn.")
    if start["positions"] is not None:
        before, after = start["positions"]
        found.append(f"It was made longer, from {before:,} positions to {after:,}.")
    if start["new_words"]:
        found.append(f"{start['new_words']:,} words were added to its vocabulary.")
    return " ".join(found)


def domain_rows(domains: Mapping[str, Mapping[str, Mapping[str, Any]] | None]) -> list[list[str]]:
    """Bits per byte of hidden tokens before the training and after it, on the new text and on the old, where known."""
    return [
        [f"held-out text of {kind}", *(_bits(figures[when]) for when in ("before", "after"))]
        for name, kind in (("new", "the data above"), ("old", "the model's own domain"))
        if (figures := domains.get(name)) is not None
    ]


def _bits(figures: Mapping[str, Any]) -> str:
    bits = figures["bits_per_token_byte"]
    return "-" if bits is None else f"{bits:.3f}{margin(figures.get('bits_per_token_byte_interval'))}"
