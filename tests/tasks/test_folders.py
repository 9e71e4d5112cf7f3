"""Folders from untrusted sources: one clear error in bounded time and memory, for our encoder and transformers. And
files that do not match the folder's checksums: loading warns, or raises an error."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import unmask
from tests.commands.finetune_helpers import save_encoder
from tests.hostile_models import CONFIG, CONFIGS, DEEP, FILES, WEIGHTS, Break, flip, write_text
from tests.model.helpers import MakeModel
from unmask.core.errors import ModelError, UnmaskError
from unmask.model.folder import CHECKSUMS
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("transformers")
MORE = 2 << 30  # bytes of address space for loading, beyond what the process already uses


@contextmanager
def bounded() -> Iterator[None]:
    """Limits memory: a reader that allocates gigabytes fails with another error than the expected one."""
    if sys.platform != "linux":
        yield
        return
    import resource

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


def test_a_sharded_model_whose_index_is_damaged(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save_encoder(make_model, tokenizer, tmp_path / "sound")
    (folder / WEIGHTS).unlink()
    for text in (DEEP, '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "%s"}}' % ("a" * 500), "[]"):
        write_text(folder, "model.safetensors.index.json", text)
        assert "model.safetensors.index.json" in said_of(folder)


def test_a_flipped_bit_is_told_or_refused(model_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    unmask.load(model_copy, strict=True)
    assert not caplog.messages
    flip(model_copy)
    unmask.load(model_copy)
    (message,) = caplog.messages
    assert WEIGHTS in message
    assert f"remove {CHECKSUMS}" in message
    with pytest.raises(ModelError, match=f"copy: {WEIGHTS}"):
        unmask.load(model_copy, strict=True)
    (model_copy / CHECKSUMS).unlink()
    unmask.load(model_copy, strict=True)


@pytest.mark.parametrize("name", [CONFIG, "tokenizer.json", "tokenizer_config.json"])
def test_every_file_that_decides(model_copy: Path, name: str) -> None:
    write_text(model_copy, name, (model_copy / name).read_text() + "\n")
    with pytest.raises(ModelError, match=f"copy: {name} is not as {CHECKSUMS}"):
        unmask.load(model_copy, strict=True)


def test_what_people_do_on_purpose_is_not_told(model_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("README.md", "notes.txt"):
        write_text(model_copy, name, "mine")
    write_text(model_copy, "modules.json", '[{"type": "sentence_transformers.models.Transformer", "path": ""}]')
    (model_copy / "special_tokens_map.json").unlink()  # which transformers 5 does not write
    unmask.load(model_copy, strict=True)
    assert not caplog.messages
