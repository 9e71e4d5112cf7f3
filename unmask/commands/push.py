"""A model's folder to the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unmask.core.hub import upload
from unmask.core.public import public
from unmask.core.results import Result, Shown
from unmask.model.folder import find_weights
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
    """Uploads a model to the hub: weights, configuration, tokenizer, card and exported graphs.

    Checkpoints, data, reports and other files are never uploaded. What the repository has besides stays.

    Args:
        model: Folder of a model, such as RUN/model.
        name: Of the repository, which is made where there is none.
        private: Make a new repository private. By default the hub decides, as for push_to_hub: it is public, unless the
            organization's default is private.

    Raises:
        ModelError: The folder is no whole model: a file is missing, damaged, not safetensors or not that of its
            checksums.
        SettingsError: The name is none.
        RunError: The hub refuses, or cannot be reached.
    """
    path = find_weights(Path(model))
    load(path, strict=True)
    url, files = upload(path, name, private=private)
    return Pushed({"folder": str(path), "url": url, "files": files})
