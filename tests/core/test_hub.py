"""Which strings name a model on the hub, what is fetched or taken from the cache, and a line for every failure.

Sentence encoders in copies by other libraries lack the files that name the pooling.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, errors

import unmask
from tests.core.conftest import COMMIT, OFFLINE, FakeHub, denied, put_in_cache
from unmask.core.errors import ModelError, TokenizerError, UnmaskError
from unmask.core.hub import LIMITS, MODULES, POOLING, PROMPTS, SPARSE_POOLING, HubName, hub_name, lasting_name
from unmask.model.folder import find_model, find_weights
from unmask.search.encoder import open_encoder
from unmask.tasks.loaded_model import as_predictor
from unmask.tokenizer.loading import load_tokenizer

TEXT = "The cat sees the [MASK]."


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_only_what_is_read_is_fetched_and_only_once(hub: FakeHub, model_folder: Path) -> None:
    wanted = names_in(model_folder) | {"modules.json", "1_Pooling/config.json"}
    strangers = ("pytorch_model.bin", "model.fp16.safetensors", "onnx/model.onnx", "2/model.safetensors", "README.md")
    for name in (*strangers, "modules.json", "1_Pooling/config.json"):
        (model_folder / name).parent.mkdir(exist_ok=True)
        (model_folder / name).write_text("{}")
    model = unmask.load("owner/name")
    assert names_in(model.folder) == wanted
    assert model.folder == hub.cache / "models--owner--name" / "snapshots" / COMMIT
    assert model.fill(TEXT).masks == unmask.load(model_folder).fill(TEXT).masks
    hub.failure = OFFLINE
    assert unmask.load("owner/name").fill(TEXT).masks == model.fill(TEXT).masks
    assert hub.asked == ["owner/name"], "the second time the copy serves"


def test_a_tokenizer_alone_brings_no_weights_and_the_model_brings_the_rest(hub: FakeHub, model_folder: Path) -> None:
    assert load_tokenizer("owner/name").fingerprint == load_tokenizer(model_folder).fingerprint
    folder = hub.cache / "models--owner--name" / "snapshots" / COMMIT
    assert names_in(folder) == {name for name in names_in(model_folder) if "token" in name} | {"config.json"}
    load_tokenizer("owner/name")
    assert len(hub.asked) == 1
    unmask.load("owner/name")
    assert len(hub.asked) == 2, "the copy is not whole yet"
    assert names_in(folder) == names_in(model_folder)


@pytest.mark.parametrize("name", ["owner/name", "owner/name@main", f"owner/name@{COMMIT}"])
def test_the_library_itself_finds_what_lies_in_its_cache(
    cache: Path, model_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fake: the real function on a cache of its layout, without a network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = put_in_cache(model_folder, cache, "owner/name")
    assert find_model(name) == folder
    assert lasting_name(name, folder) == f"owner/name@{COMMIT}"
    for unknown in ("owner/other", "owner/name@v2"):
        with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
            find_model(unknown)
    assert lasting_name(str(model_folder), model_folder) == str(model_folder)
    assert lasting_name("../model", Path("../model")) == str(model_folder)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (denied(errors.RepositoryNotFoundError, 404), "HF_TOKEN"),
        (denied(errors.GatedRepoError, 403), "gated.*HF_TOKEN"),
        (denied(errors.RevisionNotFoundError, 404), "'main'"),
        (denied(errors.HfHubHTTPError, 401), "HF_TOKEN"),
        (OFFLINE, "no route to the hub.*hf download owner/none"),
        (OSError("no space left"), "no space left"),
        (RuntimeError(""), "RuntimeError"),
    ],
)
def test_each_failure_is_one_line_that_names_the_model(hub: FakeHub, failure: Exception, message: str) -> None:
    hub.failure = failure
    for find in (unmask.load, as_predictor, load_tokenizer):
        with pytest.raises(UnmaskError, match=f"^owner/none: .*{message}") as caught:
            find("owner/none")  # type: ignore[operator]
        assert isinstance(caught.value, TokenizerError if find is load_tokenizer else ModelError)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is failure


def test_a_copy_without_what_is_merely_useful_serves_where_the_hub_cannot_be_reached(
    hub: FakeHub, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library knows that it would fetch further files, for instance if another library fetched only some."""
    folder = put_in_cache(model_folder, hub.cache, "owner/name")

    def incomplete(repo_id: str, *, local_files_only: bool, **_: object) -> str:
        if not local_files_only:
            return hub(repo_id, revision=None, allow_patterns=["vocab.txt"], local_files_only=False)
        raise errors.IncompleteSnapshotError("vocab.txt is missing", snapshot_path=str(folder))

    monkeypatch.setattr("huggingface_hub.snapshot_download", incomplete)
    hub.failure = OFFLINE
    assert find_model("owner/name") == folder
    assert hub.asked == ["owner/name"]
    hub.failure = denied(errors.RepositoryNotFoundError, 404)
    with pytest.raises(ModelError, match="no such model on the hub"):
        find_model("owner/name")


def test_pickles_are_not_fetched(hub: FakeHub, model_folder: Path) -> None:
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"^owner/name: .* no model\.safetensors.*pytorch_model\.bin"):
        unmask.load("owner/name")
    assert "pytorch_model.bin" not in {path.name for path in hub.cache.rglob("*")}
    with pytest.raises(ModelError, match="save_pretrained"):
        find_weights(model_folder)


def test_weights_in_several_files(hub: FakeHub, model_folder: Path) -> None:
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    (model_folder / "model.safetensors").rename(model_folder / parts[0])
    index = model_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": parts[0], "b": parts[1], "c": parts[0]}}))
    with pytest.raises(ModelError, match=parts[1]):
        find_model("owner/name")
    shutil.copyfile(model_folder / parts[0], model_folder / parts[1])
    folder = find_model("owner/name")
    assert {*parts, index.name} <= names_in(folder)
    assert find_weights("owner/name") == folder
    (folder / index.name).write_text("{}")
    with pytest.raises(ModelError, match=r"index\.json: damaged"):
        find_model("owner/name")


# huggingface_hub's own check of names is the oracle.
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


NAME = "owner/name"
TEXTS = ["The cat sees the dog.", "the king at sea"]


@dataclass
class FakeDownload:
    """A fake `hf_hub_download`, which records missing files in the cache."""

    model: Path  # what is on the hub
    cache: Path
    failure: Exception | None = None  # what the network raises
    asked: list[str] = field(default_factory=list)  # names of files

    def __call__(self, repo_id: str, filename: str, *, revision: str) -> str:
        assert (repo_id, revision) == (NAME, COMMIT), "of the copy, whatever the branch has become"
        self.asked.append(filename)
        if self.failure is not None:
            raise self.failure
        root = self.cache / f"models--{repo_id.replace('/', '--')}"
        is_there = (self.model / filename).is_file()
        target = root / ("snapshots" if is_there else ".no_exist") / revision / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        if not is_there:
            target.touch()
            raise denied(errors.RemoteEntryNotFoundError, 404)
        shutil.copyfile(self.model / filename, target)
        return str(target)


@pytest.fixture
def download(cache: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDownload:
    """A hub with one model, of which a copy is here."""
    put_in_cache(model_folder, cache, NAME)
    fake = FakeDownload(model_folder, cache)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return fake


def make_sentence_encoder(folder: Path, pooling: str, settings: dict[str, str], kinds: tuple[str, str]) -> None:
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, ("", str(Path(pooling).parent)), strict=True))
    ]
    (folder / MODULES).write_text(json.dumps(modules))
    (folder / pooling).parent.mkdir()
    (folder / pooling).write_text(json.dumps(settings))


def test_how_sparse_vectors_are_made_is_fetched(download: FakeDownload, model_folder: Path) -> None:
    sparse = ("MLMTransformer", "SpladePooling")
    make_sentence_encoder(model_folder, SPARSE_POOLING, {"pooling_strategy": "max"}, sparse)
    assert open_encoder(NAME).is_sparse
    assert download.asked == [MODULES, SPARSE_POOLING, PROMPTS, LIMITS]


def test_what_the_copy_lacks_is_fetched_once(
    download: FakeDownload, model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    means = unmask.load(model_folder).embed(TEXTS)
    make_sentence_encoder(model_folder, POOLING, {"pooling_mode": "cls"}, ("Transformer", "Pooling"))
    (model_folder / PROMPTS).write_text('{"prompts": {"query": "the king: "}}')
    expected = unmask.load(model_folder).embed(TEXTS)
    assert np.abs(expected - means).max() > 0.01
    model = unmask.load(NAME)
    assert download.asked == [], "nobody has asked for vectors yet"
    with caplog.at_level(logging.WARNING, logger="unmask"):
        assert np.array_equal(model.embed(TEXTS), expected)
        assert np.array_equal(model.embed(TEXTS), expected)
        assert np.array_equal(unmask.load(NAME).embed(TEXTS), expected)
    assert open_encoder(NAME).settings.query_prompt == "the king: "
    assert download.asked == [MODULES, POOLING, PROMPTS, LIMITS]
    assert not caplog.messages


@pytest.mark.parametrize("failure", [OFFLINE, PermissionError("no route"), denied(errors.GatedRepoError, 403)])
def test_where_the_hub_cannot_be_asked_the_pooling_is_a_guess(
    download: FakeDownload, model_folder: Path, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    download.failure = failure
    model = unmask.load(NAME)
    with caplog.at_level(logging.WARNING, logger="unmask"):
        named = model.embed(TEXTS, pooling="mean", normalize=False)
        assert download.asked == [], "nothing is open"
        for _ in range(2):
            assert np.array_equal(model.embed(TEXTS), named)
    assert download.asked == [MODULES], "a model asks once"
    (message,) = caplog.messages
    assert all(part in message for part in (NAME, MODULES, type(failure.__cause__ or failure).__name__))
    assert np.array_equal(named, unmask.load(model_folder).embed(TEXTS))
