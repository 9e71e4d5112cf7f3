"""Models of transformers that are not of our layouts, and ours, through one door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from unmask.commands.evaluate import evaluate
from unmask.core.errors import ModelError, TokenizerError
from unmask.measure.questions import pseudo_log_likelihoods
from unmask.model.transformers import TransformersNetwork
from unmask.tasks.loaded_model import Model, as_predictor
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

SENTENCES = ["The mountaineer misunderstands the queen in Constantinople.", "The cat sees the dog.", "Embroidery"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
IDS = {"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}


def save(name: str, kind: str, settings: dict[str, Any], folder: Path, tokenizer: Tokenizer) -> Any:
    config = getattr(transformers, f"{name}Config")(
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=66,
        pad_token_id=tokenizer.special.pad,
        initializer_range=0.2,
        **settings,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    model.save_pretrained(folder)
    tokenizer.save(folder, max_length=64)
    return model


def check_totals(loaded: Model, theirs: Any) -> None:
    """Each token hidden in turn, by transformers alone, is the oracle."""
    tokenizer = loaded.tokenizer
    totals = pseudo_log_likelihoods(loaded.predictor, loaded.tokenizer, SENTENCES)
    for sentence, total in zip(SENTENCES, totals, strict=True):
        ids = torch.tensor([[2, *tokenizer.encode_corpus([sentence])[0].input_ids.tolist(), 3]])
        expected = 0.0
        for place in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, place] = tokenizer.special.mask
            with torch.no_grad():
                logits = theirs(input_ids=hidden).logits[0, place]
            expected += float(torch.log_softmax(logits, -1)[ids[0, place]])
        assert total == pytest.approx(expected, rel=1e-4)
    assert len({round(float(total), 3) for total in totals}) == 3


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Bert", {"hidden_act": "relu"}),
        ("Bert", {"tie_word_embeddings": False}),
        ("ModernBert", {**IDS, "decoder_bias": False}),
        ("ModernBert", {**IDS, "attention_bias": True}),
    ],
)
def test_layouts_of_ours_with_parts_that_we_lack(
    name: str, part: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    theirs = save(name, "ForMaskedLM", {**SIZES, **part}, tmp_path, tokenizer)
    loaded = as_predictor(tmp_path)
    assert isinstance(loaded.predictor, TransformersNetwork)
    check_totals(loaded, theirs)
    with pytest.raises(ModelError, match=r"config\.json"):
        _ = unmask.load(tmp_path).network


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_figures_on_a_gpu_are_those_on_the_cpu(run: unmask.Run, corpus_file: Path) -> None:
    scorable = as_predictor(run.folder / "model")
    here = evaluate(scorable, [corpus_file], pseudo_tokens=50)
    scorable.to(torch.device("cuda"))
    there = evaluate(scorable, [corpus_file], pseudo_tokens=50)
    for name in ("loss", "bits_per_byte", "pseudo_log_loss"):
        assert there[name] == pytest.approx(here[name], rel=1e-2)
    assert there["predicted_tokens"] == here["predicted_tokens"]


def test_code_of_a_folder_is_neither_run_nor_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model and of a tokenizer; transformers would ask whoever sits at the terminal."""
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "n")
    (tmp_path / "config.json").write_text('{"model_type": "x", "auto_map": {"AutoConfig": "code.Config"}}')
    with pytest.raises(ModelError, match="the code that the folder brings is never run"):
        as_predictor(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    (tmp_path / "spiece.model").write_text("no tokenizer")
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["code.Slow", "code.Fast"]}}')
    with pytest.raises(TokenizerError, match="custom code"):
        load_tokenizer(tmp_path)
    assert not asked
