"""A folder that `unmask.pretrain` wrote, in the libraries that people use."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmask
from tests.conftest import SMALL
from unmask.core.errors import ModelError


@pytest.fixture(scope="module", params=["modernbert", "bert", "roberta"])
def travelled(request: pytest.FixtureRequest, run: unmask.Run, corpus_file, tmp_path_factory) -> unmask.Run:  # type: ignore[no-untyped-def]
    if request.param == "modernbert":
        return run
    out = tmp_path_factory.mktemp("runs") / request.param
    settings = (*SMALL, f"model.layout={request.param}")
    return unmask.pretrain([corpus_file], out=out, steps=10, vocab_size=200, settings=settings)


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
