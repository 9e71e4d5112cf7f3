"""A hub without a network: the cache's own layout, and a download that takes files from a folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_in_cache(model: Path, cache: Path, name: str, *, commit: str = COMMIT, ref: str = "main") -> Path:
    """A copy of a model as huggingface_hub keeps it; returns its folder."""
    root = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(model, root / "snapshots" / commit)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / ref).write_text(commit)
    return root / "snapshots" / commit


def denied(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    """An answer of the hub that is an error."""
    response: Any = type("Response", (), {"headers": {}, "request": None, "status_code": status})()
    return kind("the hub says no\non several lines", response=response)


OFFLINE = errors.LocalEntryNotFoundError("not found\nnor reached")
OFFLINE.__cause__ = ConnectionError("no route to the hub\nat all")


@dataclass
class FakeHub:
    """Stands for `snapshot_download`."""

    models: dict[str, Path]  # folders by name
    cache: Path
    failure: Exception | None = None  # what the network raises
    asked: list[str] = field(default_factory=list)  # names that were asked for over the network

    def __call__(self, repo_id: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool) -> str:
        folder = self.cache / f"models--{repo_id.replace('/', '--')}" / "snapshots" / COMMIT
        if local_files_only:
            if not folder.is_dir():
                raise errors.LocalEntryNotFoundError("not in the cache")
            return str(folder)
        self.asked.append(repo_id)
        if self.failure is not None:
            raise self.failure
        source = self.models[repo_id]
        for file in (path for path in source.rglob("*") if path.is_file()):
            name = file.relative_to(source).as_posix()
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, folder / name)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub; the folder that commands start in is an empty one too."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


@pytest.fixture
def hub(cache: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A hub with one model."""
    fake = FakeHub({"owner/name": model_folder}, cache)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return fake
