"""Sentence encoders of the hub in copies by other libraries, which lack the files that name the pooling."""

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
from tests.core.conftest import COMMIT, OFFLINE, denied, put_in_cache
from unmask.commands.embedder import plan_embedder
from unmask.core.hub import LIMITS, MODULES, POOLING, PROMPTS, SPARSE_POOLING
from unmask.search.encoder import open_encoder

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


def test_an_embedder_begins_with_the_pooling_of_the_hub(download: FakeDownload, model_folder: Path) -> None:
    make_sentence_encoder(model_folder, POOLING, {"pooling_mode": "cls"}, ("Transformer", "Pooling"))
    Path("texts.txt").write_text("the king\n")
    assert plan_embedder(NAME, ["texts.txt"]).settings.pooling == "first"


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


def test_a_copy_that_lacks_only_prompts_has_its_pooling(
    download: FakeDownload, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = cache / f"models--{NAME.replace('/', '--')}" / "snapshots" / COMMIT
    make_sentence_encoder(copy, POOLING, {"pooling_mode": "cls"}, ("Transformer", "Pooling"))
    download.failure = OFFLINE
    with caplog.at_level(logging.WARNING, logger="unmask"):
        unmask.load(NAME).embed(TEXTS)
    (message,) = caplog.messages
    assert PROMPTS in message
    assert "pooling" not in message
