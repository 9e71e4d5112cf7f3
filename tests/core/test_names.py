"""Which strings name a model of the hub; huggingface_hub's own check is the oracle of what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from tests.core.conftest import COMMIT
from unmask.core.hub import HubName, hub_name

BASE = "answerdotai/ModernBERT-base"


@pytest.mark.parametrize(
    "text", [BASE, "bert-base-uncased", *(f"{BASE}@{revision}" for revision in ("main", "v1.0", COMMIT, "refs/pr/1"))]
)
def test_names(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, revision = text.partition("@")
    monkeypatch.chdir(tmp_path)
    assert hub_name(text) == HubName(name, revision or None)
    assert str(hub_name(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "./name", "../name", "~/name", "~", "/name", "/runs/name", "runs/mine/model", "owner/name/",
        "owner/name@a/b", "owner/name@", "@main", "owner/name@a@b", "owner/na me", "owner/näme", "C:\\runs\\mine",
        "a--b/name", "owner/na..me", "owner/name.git", "owner/-name", "owner/name.", "model.safetensors",
        "a/config.json", "recipe.TOML", "tokenizer.json", "x" * 97, "x" * 5000, "name\0",
    ],
)  # fmt: skip
def test_paths(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_name(text) is None


def test_what_is_there_is_a_path_and_so_is_what_would_stand_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_name("runs/mine") is not None
    assert hub_name("mine") is not None
    assert hub_name(Path("runs/mine")) is None, "who gives a Path means one"
    (tmp_path / "runs").mkdir()
    assert hub_name("runs/mine") is None, "a typing error in a folder that is there"
    assert hub_name("runs/mine@main") is None
    assert hub_name("runs") is None
    (tmp_path / "mine").write_text("")
    assert hub_name("mine") is None


@given(st.text("ab-._/@A0~ ", min_size=1, max_size=12))
def test_no_name_is_found_that_the_library_refuses(text: str) -> None:
    if (name := hub_name(text)) is not None:
        validate_repo_id(name.name)
        assert str(name) == text
