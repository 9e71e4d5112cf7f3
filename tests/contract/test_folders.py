"""Written folders open in transformers, sentence-transformers and ONNX, with the same outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.contract.conftest import SMALL

TEXT = "Anna Lee sees the [MASK] near York ."
TEXTS = ["Anna Lee sees the ship near York .", "Clara follows the winter .", "the old lighthouse in Lima"]
LAYOUTS = {
    "modernbert": "ModernBertForMaskedLM",
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "roberta-prelayernorm": "RobertaPreLayerNormForMaskedLM",
}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(layout: str, run: unmask.Run, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a layout that has learned a little."""
    if layout == "modernbert":
        return run.folder / "model"
    out = tmp_path_factory.mktemp(layout) / "run"
    unmask.pretrain(data, out=out, steps=10, settings=[*SMALL, f"model.layout={layout}"])
    return out / "model"


def probabilities(folder: Path) -> np.ndarray:
    """Probabilities of all vocabulary entries at the text's mask, as from `fill`."""
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    (mask,) = unmask.load(folder).fill(TEXT, top_k=size).masks
    found = np.zeros(size)
    found[[candidate.token_id for candidate in mask]] = [candidate.probability for candidate in mask]
    return found


def in_transformers(folder: Path) -> np.ndarray:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    inputs = tokenizer(TEXT, return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    with torch.no_grad():
        return model(**inputs).logits[0, place].softmax(-1).double().numpy()


def test_a_layout_predicts_in_transformers_what_it_predicts_here(layout: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [LAYOUTS[layout]]
    assert "auto_map" not in config, "no remote code"
    here, there = probabilities(folder), in_transformers(folder)
    assert here.sum() == pytest.approx(1.0)
    assert np.abs(np.log(here) - np.log(there)).max() < 1e-4


def test_a_layout_is_verified(folder: Path) -> None:
    verified = unmask.verify(folder).to_dict()
    assert verified["passed"]
    assert {"packed_equals_alone", "padded_equals_unpadded", "transformers_equals_ours"} <= verified["checks"].keys()


def test_a_model_and_an_embedder_are_sentence_transformers(run: unmask.Run, samples: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    settings = ["embedder.batch_size=16"]
    model, files = run.folder / "model", [samples / "corpus.txt"]
    made = unmask.embedder(model, files, out=tmp_path / "made", steps=2, settings=settings)
    for folder in (model, made.to_dict()["model"]):
        there = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        assert np.allclose(unmask.load(folder).embed(TEXTS), there, atol=1e-4)
