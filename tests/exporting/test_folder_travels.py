"""A folder that `unmask.pretrain` wrote, in the libraries that people use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from tests.conftest import SMALL
from unmask.core.errors import ModelError

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
