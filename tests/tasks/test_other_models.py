"""Filling and embedding with models that transformers runs, against transformers' pipeline and means by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.commands.transformers_models import SIZES, save_transformers
from unmask.commands.evaluate import evaluate
from unmask.core.errors import ModelError, TokenizerError
from unmask.tasks.loaded_model import as_predictor
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = ["The cat sees the dog.", "Embroidery", "The queen in the mountains sees the king, the dog and the cat."]
MASKED = "The cat [MASK] the [MASK]."
IDS = {"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
MASKED_LMS: dict[str, dict[str, Any]] = {
    "DistilBert": {},
    "Electra": {"head": "ForMaskedLM"},
    "DebertaV2": {},
    "MPNet": {},
    "Albert": {},
    "FNet": {"head": "ForMaskedLM"},  # takes no mask
    # Of our layouts, but with parts that our encoder lacks:
    "Bert": {"head": "ForMaskedLM", "hidden_act": "relu"},
    "Bert untied": {"head": "ForMaskedLM", "tie_word_embeddings": False},
    "ModernBert": {"head": "ForMaskedLM", **IDS, "decoder_bias": False},
    "ModernBert biased": {"head": "ForMaskedLM", **IDS, "attention_bias": True},
}


def hidden_by_hand(folder: Path, text: str) -> torch.Tensor:
    """[tokens, hidden_size], by the model that sentence-transformers loads from a folder."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        return model(input_ids=words["input_ids"]).last_hidden_state[0]


@pytest.mark.parametrize("name", MASKED_LMS)
def test_fills_embeds_and_scores_as_transformers_does(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    kind, *_ = name.split()
    folder = save_transformers(kind, tokenizer, tmp_path, **MASKED_LMS[name])
    model = unmask.load(folder)
    pipeline = transformers.pipeline("fill-mask", model=str(folder), tokenizer=str(folder), top_k=5)
    for ours, theirs in zip(model.fill(MASKED).masks, pipeline(MASKED), strict=True):
        assert [each.token_id for each in ours] == [each["token"] for each in theirs]
        assert [each.probability for each in ours] == pytest.approx([each["score"] for each in theirs], rel=1e-4)
    means, firsts = model.embed(TEXTS), model.embed(TEXTS, pooling="first", normalize=True)
    for text, mean, first in zip(TEXTS, means, firsts, strict=True):
        hidden = hidden_by_hand(folder, text)
        assert mean == pytest.approx(hidden.mean(0).numpy(), abs=1e-5)
        assert first == pytest.approx((hidden[0] / hidden[0].norm()).numpy(), abs=1e-5)
    assert np.abs(means[0] - means[1]).max() > 0.01
    ids = torch.from_numpy(tokenizer.encode_prompt(TEXTS[0])).long()
    hidden_NS = ids.repeat(len(ids) - 2, 1)  # each token hidden in turn
    hidden_NS[:, 1:-1].fill_diagonal_(tokenizer.special.mask)
    with torch.no_grad():
        shares_NSV = pipeline.model(input_ids=hidden_NS).logits.log_softmax(-1)
    expected = sum(float(shares_NSV[n, n + 1, ids[n + 1]]) for n in range(len(hidden_NS)))
    assert model.score(TEXTS)[0] == pytest.approx(expected, rel=1e-4)
    if kind in ("Bert", "ModernBert"):
        with pytest.raises(ModelError, match=r"config\.json"):
            _ = model.network


@pytest.mark.parametrize("head", ["ForPreTraining", "Model"])
def test_a_bare_encoder_or_a_discriminator_embeds(head: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = save_transformers("Electra", tokenizer, tmp_path, head=head)
    model = unmask.load(folder)
    assert model.embed(TEXTS[:1])[0] == pytest.approx(hidden_by_hand(folder, TEXTS[0]).mean(0).numpy(), abs=1e-5)
    for use in (lambda: model.fill(MASKED), lambda: model.score(TEXTS), lambda: unmask.evaluate(model, "x.txt")):
        with pytest.raises(ModelError, match="cannot predict tokens"):
            use()
    name = "encoder.layer.1.output.dense.weight" if head == "Model" else "electra.encoder.layer.1.output.dense.weight"
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"electra\.encoder\.layer\.1\.output\.dense\.weight"):
        unmask.load(folder)


def test_what_only_our_encoder_does(tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path) -> None:
    folder = save_transformers("DistilBert", tokenizer, tmp_path / "m")
    uses: tuple[Callable[[], object], ...] = (
        lambda: unmask.load(folder).network,
        lambda: unmask.verify(folder),
        lambda: unmask.export(folder, out=tmp_path / "out"),
        lambda: unmask.pretrain(corpus_file, from_=folder, out=tmp_path / "run"),
    )
    for use in uses:
        with pytest.raises(ModelError, match="'distilbert'"):
            use()


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
    """Code of a model and of a tokenizer is never run; transformers would ask the user at the terminal."""
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "n")
    (tmp_path / "config.json").write_text('{"model_type": "x", "auto_map": {"AutoConfig": "code.Config"}}')
    with pytest.raises(ModelError, match="code in the folder is never run"):
        as_predictor(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    (tmp_path / "spiece.model").write_text("no tokenizer")
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["code.Slow", "code.Fast"]}}')
    with pytest.raises(TokenizerError, match="custom code"):
        load_tokenizer(tmp_path)
    assert not asked


RESIDUES = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "MGLSDGEWQLVLNVWGKVEADIPGHGQEVLIRLFKGHPETLEKF", "MADQLTEEQIAEFKEAFSLF"]


@pytest.fixture
def esm(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(RESIDUES))
    config = transformers.EsmConfig(
        **SIZES, vocab_size=len(RESIDUES), pad_token_id=1, mask_token_id=32, max_position_embeddings=66,
        position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=False, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.EsmForMaskedLM(config).save_pretrained(tmp_path)
    transformers.EsmTokenizer(tmp_path / "vocab.txt").save_pretrained(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    return tmp_path


def test_esm(esm: Path, tmp_path: Path) -> None:
    model = unmask.load(esm)
    text = "MKTAYIA<mask>QRQIS<mask>"
    filled = model.fill(text, top_k=3)
    theirs = transformers.EsmForMaskedLM.from_pretrained(esm).eval()
    ids = transformers.AutoTokenizer.from_pretrained(esm)(text, return_tensors="pt")
    with torch.no_grad():
        shares = theirs(**ids).logits.softmax(-1)[0]
    places = (ids["input_ids"][0] == 32).nonzero().flatten().tolist()
    for place, mask in zip(places, filled.masks, strict=True):
        best = shares[place].topk(3)
        assert [each.token_id for each in mask] == best.indices.tolist()
        assert [each.probability for each in mask] == pytest.approx(best.values.tolist(), rel=1e-4)
    a, b = filled.fillings[0].tokens
    assert filled.fillings[0].text == f"MKTAYIA{a}QRQIS{b}", "no white space in a protein"
    assert model.embed(PROTEINS[:1])[0] == pytest.approx(hidden_by_hand(esm, PROTEINS[0]).mean(0).numpy(), abs=1e-5)
    (tmp_path / "proteins.txt").write_text("\n".join(PROTEINS * 8))
    found = unmask.evaluate(esm, tmp_path / "proteins.txt", pseudo_tokens=0)
    assert found.tokens == 8 * sum(map(len, PROTEINS))
    assert 2.0 < found.loss < 9.0
