"""A folder that `unmask.pretrain` wrote, in the libraries that people use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from tests.conftest import SMALL
from unmask.core.errors import ModelError
from unmask.core.files import file_sha256
from unmask.model.stored_weights import CHECKSUMS, read_checksums

TEXTS = ["The king sees the dog at sea.", "Winter.", "A philosopher and the mountaineer remember Constantinople."]


@pytest.fixture(scope="module", params=["modernbert", "bert", "roberta"])
def travelled(request: pytest.FixtureRequest, run: unmask.Run, corpus_file, tmp_path_factory) -> unmask.Run:  # type: ignore[no-untyped-def]
    if request.param == "modernbert":
        return run
    out = tmp_path_factory.mktemp("runs") / request.param
    settings = (*SMALL, f"model.layout={request.param}")
    return unmask.pretrain([corpus_file], out=out, steps=10, vocab_size=200, settings=settings)


def hidden_states(run: unmask.Run, text: str) -> torch.Tensor:
    ids = torch.from_numpy(run.model.tokenizer.encode_prompt(text)).long()[None]
    with torch.no_grad():
        return run.model.network.encoder(ids)[0]


def test_automodel_gives_the_encoder(travelled: unmask.Run) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(travelled.folder / "model")
    theirs = transformers.AutoModel.from_pretrained(travelled.folder / "model").eval()
    with torch.no_grad():
        found = theirs(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state
    for row, text in zip(found, TEXTS, strict=True):
        ours = hidden_states(travelled, text)
        assert ours.std() > 0.1
        assert (row[: len(ours)] - ours).abs().max() < 1e-4


def test_automodelformaskedlm_and_the_pipeline(travelled: unmask.Run) -> None:
    transformers = pytest.importorskip("transformers")
    folder = str(travelled.folder / "model")
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert model.num_parameters() == travelled.summary["num_parameters"]
    found = transformers.pipeline("fill-mask", folder)("The king [MASK] the queen.", top_k=3)
    ours = travelled.model.fill("The king [MASK] the queen.", top_k=3).masks[0]
    assert [candidate["token"] for candidate in found] == [candidate.token_id for candidate in ours]
    assert [candidate["score"] for candidate in found] == pytest.approx([c.probability for c in ours], rel=1e-3)


def test_sentence_transformers_takes_the_mean_over_all_tokens(travelled: unmask.Run) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(travelled.folder / "model"), device="cpu")
    assert model.max_seq_length == 64
    found = model.encode(TEXTS)
    wanted = np.stack([hidden_states(travelled, text).mean(0).numpy() for text in TEXTS])
    assert found.shape == (3, 64)
    assert np.abs(found - wanted).max() < 1e-4
    assert np.abs(found[0] - found[1]).max() > 1e-2, "vectors differ"
    long = model.encode(["dog " * 300])
    assert np.isfinite(long).all(), "what is too long is cut"


def test_sparse_encoder_makes_splade_of_the_trained_head(travelled: unmask.Run) -> None:
    """Formal et al. 2021 (SPLADE v2), equation 6: the largest log(1 + relu(logit)) of each word over the positions."""
    library = pytest.importorskip("sentence_transformers")
    model = library.SparseEncoder(str(travelled.folder / "model"), device="cpu")
    assert [type(module).__name__ for module in model][-1] == "SpladePooling"
    found = model.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    network = travelled.model.network
    for row, text in zip(found, TEXTS, strict=True):
        with torch.no_grad():
            logits = network.head(hidden_states(travelled, text), network.encoder.tokens)
        wanted = logits.relu().log1p().amax(0).numpy()
        assert wanted.max() > 0.5
        np.testing.assert_allclose(row, wanted, atol=1e-3)


def test_weights_in_several_files(travelled: unmask.Run, tmp_path: Path) -> None:
    """As transformers shares large ones out."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(travelled.folder / "model")
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    transformers.AutoTokenizer.from_pretrained(travelled.folder / "model").save_pretrained(tmp_path)
    parts = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(parts) > 1
    text = "The king [MASK] the queen."
    assert unmask.load(tmp_path).fill(text).masks == travelled.model.fill(text).masks
    assert unmask.verify(tmp_path).passed
    parts[0].unlink()
    with pytest.raises(ModelError, match=r"model-00001-of-.*: no such file, but model\.safetensors\.index\.json"):
        unmask.load(tmp_path)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="this is an adapter of PEFT, without the model that it changes; merge it fir"):
        unmask.load(tmp_path)


def test_checksums_are_those_of_the_files(travelled: unmask.Run) -> None:
    folder = travelled.folder / "model"
    found = read_checksums(folder)
    decisive = [
        "config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert found == {name: file_sha256(folder / name) for name in decisive}


def test_damaged_checksums(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert read_checksums(tmp_path) is None
    for content in ("{", json.dumps([1])):
        (tmp_path / CHECKSUMS).write_text(content)
        with pytest.raises(ModelError, match=r"checksums\.json: damaged .*; remove it to go without checksums"):
            read_checksums(tmp_path)
