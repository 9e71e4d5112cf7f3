"""Every layout: the same weights give the same logits in transformers, in both directions, alone and packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.helpers import MakeModel, all_logits, segments, some_ids, their_logits, theirs_of, with_biases
from unmask.core.errors import ModelError
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.model.config import Layout
from unmask.model.folder import has_prediction_head, load_model, save_model
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
FAMILY = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "roberta-prelayernorm": "RobertaPreLayerNorm",
}
ALL = {**FAMILY, "modernbert": "ModernBert"}
ACTIVATIONS = ["gelu", "gelu_pytorch_tanh", "silu", "relu2"]


def make_theirs(layout: str, kind: str = "ForMaskedLM", **changes: object) -> torch.nn.Module:
    """A model made by transformers, with weights large enough to reveal differences."""
    name = FAMILY[layout]
    config = getattr(transformers, f"{name}Config")(
        **{
            "vocab_size": 200, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3,
            "num_attention_heads": 2, "max_position_embeddings": 66, "initializer_range": 0.2,
        } | changes
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    with_biases(model)
    return model


@pytest.mark.parametrize("layout", ALL)
@pytest.mark.parametrize(("activation", "pad_id"), [*((each, 0) for each in ACTIVATIONS), ("gelu", 1)])
def test_transformers_gives_the_same_logits(
    make_model: MakeModel, tmp_path: Path, layout: str, activation: str, pad_id: int
) -> None:
    model = make_model(layout=layout, activation=activation, pad_id=pad_id)
    theirs = theirs_of(model, tmp_path)
    assert type(theirs).__name__ == f"{ALL[layout]}ForMaskedLM"
    ours = all_logits(model, some_ids(length=64))
    assert ours.std() > 0.5
    assert (ours - their_logits(theirs, some_ids(length=64))).abs().max() < 1e-4


@pytest.mark.parametrize("layout", ALL)
def test_packed_equals_alone_and_transformers(
    make_model: MakeModel, tmp_path: Path, store: TokenStore, tokenizer: Tokenizer, layout: str
) -> None:
    model = make_model(layout=layout)
    theirs = theirs_of(model, tmp_path)
    rows = RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), 12).rows
    packed = all_logits(model, rows.input_ids, segment_ids_BS=rows.segment_ids, position_ids_BS=rows.position_ids)
    for row, inside in segments(rows):
        alone = rows.input_ids[row][inside][None]
        assert (packed[row][inside] - their_logits(theirs, alone)[0]).abs().max() < 1e-4
        assert (packed[row][inside] - all_logits(model, alone)[0]).abs().max() < 1e-4


@pytest.mark.parametrize("layout", FAMILY)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "silu"])
def test_a_model_of_transformers_loads_here(tmp_path: Path, layout: str, activation: str) -> None:
    theirs = make_theirs(layout, hidden_act=activation)
    theirs.save_pretrained(tmp_path)
    model = load_model(tmp_path, mask_id=4).eval()
    longest = 66 if layout == "bert" else 64
    assert model.config.max_position_embeddings == longest
    ids = some_ids(2, longest)
    assert (their_logits(theirs, ids) - all_logits(model, ids)).abs().max() < 1e-4
    save_model(model, tmp_path / "again")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again").eval()
    assert again.config.hidden_dropout_prob == again.config.attention_probs_dropout_prob == 0.1
    assert (their_logits(theirs, ids) - their_logits(again, ids)).abs().max() < 1e-4


def test_token_types_are_berts(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(layout="bert")
    theirs = theirs_of(model, tmp_path)
    types = (torch.arange(40) >= 17).long().expand(3, 40)
    ours = all_logits(model, some_ids(), token_type_ids_BS=types)
    assert (ours - their_logits(theirs, some_ids(), token_type_ids=types)).abs().max() < 1e-4
    assert (ours - all_logits(model, some_ids())).abs().max() > 0.1
    with pytest.raises(ModelError, match="the layout 'modernbert' has no token types"):
        all_logits(make_model(), some_ids(), token_type_ids_BS=types)


@pytest.mark.parametrize("layout", FAMILY)
def test_a_bare_encoder_gets_a_new_head_and_keeps_its_pooler(tmp_path: Path, layout: Layout) -> None:
    """As sentence encoders are saved: no prefix, no head, a pooler."""
    theirs = make_theirs(layout, "Model")
    theirs.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "pooler.dense.weight" in stored
    assert "embeddings.word_embeddings.weight" in stored
    assert not has_prediction_head(tmp_path, layout)
    model = load_model(tmp_path, mask_id=4).eval()
    with torch.no_grad():
        hidden = model.encoder(some_ids())
        assert (hidden - theirs(input_ids=some_ids()).last_hidden_state).abs().max() < 1e-4
    assert model.head.dense.weight.std() > 0.1, "drawn"
    assert all_logits(model, some_ids()).isfinite().all()

    save_model(model, tmp_path / "again")
    again = getattr(transformers, f"{FAMILY[layout]}Model").from_pretrained(tmp_path / "again").eval()
    for kind in ("weight", "bias"):
        assert torch.equal(getattr(again.pooler.dense, kind), stored[f"pooler.dense.{kind}"])
    with torch.no_grad():
        ours, expected = (m(input_ids=some_ids()).pooler_output for m in (again, theirs))
    assert (ours - expected).abs().max() < 1e-4


def test_old_folders_with_tensorflows_names_and_tied_copies(make_model: MakeModel, tmp_path: Path) -> None:
    """The first released BERTs use the names gamma and beta, store the output bias twice, and store buffers."""
    model = make_model(layout="bert")
    save_model(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {}
    for name, tensor in weights.items():
        renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[renamed.replace("predictions.bias", "predictions.decoder.bias")] = tensor
    assert len(set(old) & set(weights)) < len(weights)
    old["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(old, tmp_path / "model.safetensors")
    again = load_model(tmp_path, mask_id=4).eval()
    assert not again.unused_weights
    assert torch.equal(all_logits(model, some_ids()), all_logits(again, some_ids()))


def test_a_modernbert_folder_may_name_its_positions_as_in_mmbert(make_model: MakeModel, tmp_path: Path) -> None:
    save_model(model := make_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"position_embedding_type": "sans_pos"}))
    assert torch.equal(all_logits(model, some_ids()), all_logits(load_model(tmp_path, mask_id=4), some_ids()))


def test_a_text_longer_than_the_model(make_model: MakeModel) -> None:
    with pytest.raises(ModelError, match="65 tokens.* 64 positions"):
        all_logits(make_model(), torch.full((1, 65), 7))


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        ("modernbert", {"model_type": "t5"}, "'t5'"),
        ("modernbert", {"norm_bias": True}, "norm_bias = True"),
        ("modernbert", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling = "),
        ("modernbert", {"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ("modernbert", {"vocab_size": 300}, r"tok_embeddings.weight .* \(200, 32\), .* \(300, 32\)"),
        ("modernbert", {"layer_types": ["sliding_attention"] * 4}, "global"),
        ("modernbert", {"hidden_activation": "spam"}, "activation = 'spam'"),
        ("modernbert", {"num_attention_heads": 3}, "hidden_size 32 .*num_heads"),
        ("modernbert", {"num_hidden_layers": 6, "layer_types": None}, r"model\.layers\.4"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder = True"),
        ("roberta", {"add_cross_attention": True}, "add_cross_attention = True"),
        ("bert", {"max_position_embeddings": 60}, r"position_embeddings.weight .* \(64, 32\), .*60"),
        ("roberta", {"pad_token_id": None}, "pad_id = None"),
        ("roberta", {"max_position_embeddings": None}, "max_position_embeddings = None"),
        ("roberta-prelayernorm", {"model_type": "roberta"}, "roberta.embeddings.word_emb"),
    ],
)
def test_folders_that_cannot_be_loaded(
    make_model: MakeModel, tmp_path: Path, layout: str, change: dict[str, Any], message: str
) -> None:
    save_model(make_model(layout=layout), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path, mask_id=4)
