"""Folders from untrusted sources: one clear error in bounded time and memory, for our encoder and transformers."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import unmask
from tests.commands.finetune_helpers import save_encoder
from tests.hostile_models import CONFIGS, DEEP, FILES, WEIGHTS, Break, write_text
from tests.model.helpers import MakeModel
from unmask.core.errors import UnmaskError
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("transformers")
MORE = 2 << 30  # bytes of address space for loading, beyond what the process already uses


@contextmanager
def bounded() -> Iterator[None]:
    """Limits memory: a reader that allocates gigabytes fails with another error than the expected one."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def said_of(folder: Path) -> str:
    """The error of loading the model."""
    with bounded(), pytest.raises(UnmaskError) as caught:
        unmask.load(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


@pytest.fixture(params=["modernbert", "bert"])
def folder(request: pytest.FixtureRequest, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A sound model of ours."""
    return save_encoder(make_model, tokenizer, tmp_path / "sound", layout=request.param)


def broken(folder: Path, how: Break) -> Path:
    copy = folder.with_name("broken")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    how(copy)
    return copy


def test_every_configuration_and_file(folder: Path) -> None:
    unmask.load(folder)
    for name, how in (CONFIGS | FILES).items():
        assert said_of(broken(folder, how)), name


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "adapter" in said_of(tmp_path)


def test_a_sharded_model_whose_index_is_damaged(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save_encoder(make_model, tokenizer, tmp_path / "sound")
    (folder / WEIGHTS).unlink()
    for text in (DEEP, '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "%s"}}' % ("a" * 500), "[]"):
        write_text(folder, "model.safetensors.index.json", text)
        assert "model.safetensors.index.json" in said_of(folder)
