"""Where a model lies: what users call a model, to a folder."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import ModelError
from unmask.hub.fetch import local_path
from unmask.hub.needs import MODEL
from unmask.model.folder import CONFIG, WEIGHTS

_WAY_OUT = "give the folder of a model, such as RUN/model"


def find_model(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """The folder of a model.

    Args:
        model: It, the folder of a run, or the name of a model on the hub; see `unmask.hub.names`.
        way_out: What errors advise.

    Raises:
        ModelError: There is none.
    """
    path = local_path(model, MODEL)
    if not path.is_dir():
        raise ModelError(f"{path}: no such folder; {way_out}, or the name of a model on the hub")
    if not (path / CONFIG).is_file() and (path / "model" / CONFIG).is_file():
        path /= "model"
    return path


def find_weights(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """The same, where configuration and weights must be there, in the files that our encoder reads.

    Raises:
        ModelError: There is no such folder, or it lacks a file.
    """
    path = find_model(model, way_out=way_out)
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise ModelError(f"{path}: there is no {name}; {way_out}")
    return path
