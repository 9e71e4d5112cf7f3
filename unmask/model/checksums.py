"""Checksums of a model folder's files, by which `unmask verify` knows whether they are what training wrote."""

from __future__ import annotations

import json
from pathlib import Path

from unmask.errors import ModelError
from unmask.files import file_sha256, write_atomically

CHECKSUMS = "checksums.json"
_FILES = ("config.json", "model*.safetensors", "tokenizer.json")  # what decides the result, and nothing else


def write_checksums(folder: Path) -> None:
    """Writes `checksums.json` over the files that decide what the model says; call it when they are all there."""
    found = sorted(path for pattern in _FILES for path in folder.glob(pattern))  # transformers shares large weights out
    content = {path.name: file_sha256(path) for path in found}
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
        content = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): str(value) for name, value in content.items()}
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{file}: damaged ({error}); remove it to go without checksums") from error
