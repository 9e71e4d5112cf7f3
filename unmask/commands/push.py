"""Uploads a model's folder to the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unmask.core.hub import upload
from unmask.core.public import public
from unmask.core.results import Result, Shown
from unmask.model.folder import find_weights
from unmask.model.pooling import sentence_modules
from unmask.tasks.loaded_model import load


class Pushed(Result):
    """What was uploaded."""

    folder: str
    url: str  # of the repository
    files: list[str]

    def shown(self) -> Iterator[Shown]:
        yield f"{self.url}: {', '.join(self.files)}"


@public
def push(model: str | Path, name: str, *, private: bool | None = None) -> Pushed:
    """Uploads a model to the hub. Weights, configuration, tokenizer, card and exported graphs belong to it.

    Checkpoints, data, reports and other files are never uploaded. Weights, tokenizer, pooling files and `onnx/` in
    the repository become those of the folder: what it lacks is deleted there. All others stay.

    Args:
        model: Folder of a model, such as RUN/model.
        name: Name of the repository, which is created if it does not exist.
        private: Make a new repository private. By default it is public, unless the organization's default is private.

    Raises:
        ModelError: The folder is not a complete model: a file is missing, damaged, not safetensors or different from
            its checksum.
        SettingsError: The name is not a repository's.
        RunError: The hub refuses, or cannot be reached.
    """
    path = find_weights(Path(model))
    load(path, strict=True)
    url, files = upload(path, name, [part for _, part in sentence_modules(path) if part], private=private)
    return Pushed({"folder": str(path), "url": url, "files": files})
