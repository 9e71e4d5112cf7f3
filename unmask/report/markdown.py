"""Parts of cards in Markdown, which hold whatever a user's files and labels are called: names, tables, settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from unmask.folders.card_head import Origin, encodable, name_of_folder

_BREAKS = re.compile(r"[\x00-\x1f\x7f]")


def as_code(text: str) -> str:
    """A name as Markdown shows it letter by letter, on one line, whatever signs are in it."""
    plain = _BREAKS.sub(" ", encodable(text))
    fence = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    space = " " if plain[:1] in "` " or plain[-1:] in "` " else ""
    return f"{fence}{space}{plain}{space}{fence}" if plain.strip() else "(empty)"


def called(origin: Origin) -> str:
    """What a model is called: its name and commit on the hub, or its folder and the beginning of its hash."""
    checkpoint = Path(origin.checkpoint)
    if not checkpoint.is_absolute():
        return as_code(origin.checkpoint)
    return f"{as_code(name_of_folder(checkpoint))} (sha256 `{origin.sha256[:12]}`)"


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose other columns are numbers."""
    lines = [names, ["---"] + ["---:"] * (len(names) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def toml(content: Mapping[str, Any]) -> str:
    """Settings as TOML; those without a value are left out, and of paths the name stays."""
    return f"```toml\n{tomli_w.dumps(_plain(content)).strip()}\n```"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name  # a card travels, and whose machine this was is nobody's business
    return value
