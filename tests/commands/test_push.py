"""What is uploaded to the hub, as recorded by a fake client, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects

import unmask
from tests.command_line import Main
from tests.core.conftest import denied
from unmask.core.errors import ModelError, RunError, SettingsError


@dataclass
class FakeApi:
    """A fake `HfApi` that records uploads."""

    made: dict[str, Any] = field(default_factory=dict)  # repositories, with what they were made with
    sent: list[str] = field(default_factory=list)
    there: set[str] = field(default_factory=set)  # files of the repository
    failure: Exception | None = None

    def create_repo(self, repo_id: str, **options: Any) -> str:
        if self.failure is not None:
            raise self.failure
        self.made[repo_id] = options
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(
        self,
        *,
        repo_id: str,
        folder_path: Path,
        allow_patterns: list[str],
        delete_patterns: list[str],
        commit_message: str,
    ) -> None:
        assert repo_id in self.made
        assert commit_message
        present = [path.relative_to(folder_path).as_posix() for path in folder_path.rglob("*") if path.is_file()]
        self.sent = sorted(filter_repo_objects(present, allow_patterns=allow_patterns))
        self.there -= set(filter_repo_objects(self.there, allow_patterns=delete_patterns))
        self.there |= set(self.sent)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return fake


MODEL_FILES = {
    "README.md", "checksums.json", "config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip


def test_a_model_is_uploaded_and_nothing_beside_it(api: FakeApi, model_copy: Path) -> None:
    modules = [{"path": part, "type": f"x.{part}"} for part in ("", "1_Pooling", "2_Dense")]
    mine = ("1_Pooling/config.json", "2_Dense/model.safetensors", "LICENSE", "modules.json", "onnx/model.onnx")
    others = ("checkpoints/step-10/model.safetensors", "data/train-0.bin", "metrics.jsonl", "notes.txt", ".git/config",
              "optimizer.pt", "summary.json", "data/tokenizer.json", "3_Dense/model.safetensors")  # fmt: skip
    for name in (*mine, *others):
        (model_copy / name).parent.mkdir(parents=True, exist_ok=True)
        (model_copy / name).write_text(json.dumps(modules) if name == "modules.json" else "{}")
    pushed = unmask.push(model_copy, "owner/name")
    assert api.made == {"owner/name": {"private": None, "exist_ok": True}}
    assert set(api.sent) == set(pushed.files) == MODEL_FILES | set(mine)
    assert pushed.url == "https://huggingface.co/owner/name"


def test_a_run_is_uploaded_and_nothing_of_an_earlier_model_stays(api: FakeApi, run: unmask.Run, main: Main) -> None:
    earlier = {"1_Pooling/config.json", "modules.json", "onnx/model.onnx", "vocab.txt", "model-1-of-2.safetensors"}
    api.there = {*earlier, "config.json", "LICENSE", "notes/results.md"}
    code, out, err = main("push", run.folder, "owner/name", "--private")
    assert code == 0, err
    assert "huggingface.co/owner/name" in out
    assert api.made["owner/name"]["private"] is True
    assert set(api.sent) == MODEL_FILES
    assert api.there == {*MODEL_FILES, "LICENSE", "notes/results.md"}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_no_whole_model_is_uploaded(api: FakeApi, model_copy: Path, name: str) -> None:
    content = (model_copy / name).read_bytes()
    for damaged in (content.replace(b"a", b"b", 1) if name == "tokenizer.json" else content[:-9], None):
        (model_copy / name).unlink() if damaged is None else (model_copy / name).write_bytes(damaged)
        with pytest.raises(unmask.UnmaskError, match=r"config.json|model.safetensors|tokenizer.json"):
            unmask.push(model_copy, "owner/name")
    assert api.made == {}


@pytest.mark.usefixtures("api")
def test_names_that_are_none(run: unmask.Run) -> None:
    for name in ("name", "owner/a/b", "owner/a--b", "https://huggingface.co/owner/name", ""):
        with pytest.raises(SettingsError, match="owner/name"):
            unmask.push(run.folder, name)
    with pytest.raises(ModelError, match="owner/other"):
        unmask.push("owner/other", "owner/name")


@pytest.mark.parametrize(
    "failure",
    [
        errors.LocalTokenNotFoundError("no token"), denied(errors.HfHubHTTPError, 403),
        ConnectionError("no route to the hub"), errors.OfflineModeIsEnabled("offline"),
    ],
)  # fmt: skip
def test_without_token_or_network_one_error_says_so(api: FakeApi, run: unmask.Run, failure: Exception) -> None:
    api.failure = failure
    with pytest.raises(RunError, match=r"owner/name.*HF_TOKEN"):
        unmask.push(run.folder, "owner/name")
