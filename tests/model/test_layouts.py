"""Every layout: the same weights give the same logits in transformers, in both directions, alone and packed; and so do
heads for pairs and for classes of texts, and models with more words or positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.helpers import (
    LAYOUTS,
    MakeModel,
    all_logits,
    segments,
    some_ids,
    their_logits,
    theirs_of,
    with_biases,
    with_heads,
)
from unmask.core.errors import ModelError
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.model.config import Layout
from unmask.model.encoder import MaskedLM, extended, retokenized
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


@pytest.mark.parametrize(
    ("layout", "activation", "pad_id"),
    [
        *((layout, "gelu", pad_id) for layout in ALL for pad_id in (0, 1)),
        *((layout, each, 0) for layout in ("modernbert", "bert") for each in ("gelu_pytorch_tanh", "silu", "relu2")),
    ],
)
def test_transformers_gives_the_same_logits(
    make_model: MakeModel,
    store: TokenStore,
    tokenizer: Tokenizer,
    tmp_path: Path,
    layout: str,
    activation: str,
    pad_id: int,
) -> None:
    """Of each text: in a row of several, and alone."""
    model = make_model(layout=layout, activation=activation, pad_id=pad_id)
    theirs = theirs_of(model, tmp_path)
    assert type(theirs).__name__ == f"{ALL[layout]}ForMaskedLM"
    rows = RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), 12).rows
    packed = all_logits(model, rows.input_ids, segment_ids_BS=rows.segment_ids, position_ids_BS=rows.position_ids)
    assert packed.std() > 0.5
    for row, inside in segments(rows):
        text = rows.input_ids[row][inside][None]
        expected = their_logits(theirs, text)[0]
        assert (packed[row][inside] - expected).abs().max() < 1e-4
        assert (all_logits(model, text)[0] - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("layout", "activation"), [*((layout, "gelu") for layout in FAMILY), ("bert", "gelu_new"), ("bert", "silu")]
)
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
    with pytest.raises(ModelError, match="'modernbert'.*token_type_ids"):
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
        ("modernbert", {"num_attention_heads": 3}, "hidden_size 32 .*num_heads"),
        ("modernbert", {"num_hidden_layers": 6, "layer_types": None}, r"model\.layers\.4"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder = True"),
        ("roberta", {"add_cross_attention": True}, "add_cross_attention = True"),
        ("bert", {"max_position_embeddings": 60}, r"position_embeddings.weight .* \(64, 32\), .*60"),
        ("roberta", {"pad_token_id": None}, "pad_id = None"),
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


NAMES = ("bored", "glad", "sad")


@torch.no_grad()
def pair_logits(model: MaskedLM, ids: torch.Tensor, **rows: torch.Tensor | None) -> torch.Tensor:
    """[B, S, 2]: of pairs that begin there."""
    return model.pair_head(model.encoder(ids, **rows))


def test_packed_pairs(make_model: MakeModel, tmp_path: Path, store: TokenStore, tokenizer: Tokenizer) -> None:
    """Each pair by itself, as transformers' BertForPreTraining sees it."""
    ours = with_heads(make_model, "bert", pairs=True)
    save_model(ours, tmp_path)
    theirs, loading = transformers.BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    theirs.eval()
    rows = RowStream(store, tokenizer, length=64, seed=0, pairs="next_sentence").batch(Cursor(), 8).rows
    columns = {f"{name}_BS": getattr(rows, name) for name in ("segment_ids", "position_ids", "token_type_ids")}
    tokens, pairs = all_logits(ours, rows.input_ids, **columns), pair_logits(ours, rows.input_ids, **columns)
    for row, inside in segments(rows):
        ids, types = rows.input_ids[row][inside][None], rows.token_type_ids[row][inside][None]
        with torch.no_grad():
            expected = theirs(input_ids=ids, token_type_ids=types)
        assert (tokens[row][inside] - expected.prediction_logits[0]).abs().max() < 1e-4
        assert (pairs[row][inside][0] - expected.seq_relationship_logits[0]).abs().max() < 1e-4


def test_a_model_of_pairs_is_also_a_masked_language_model(make_model: MakeModel, tmp_path: Path) -> None:
    model = with_heads(make_model, "bert", pairs=True, boundary_length=8)
    save_model(model, tmp_path / "model")
    ids = some_ids(2, 30)
    tokens = all_logits(model, ids)
    for kind in (transformers.BertForMaskedLM, transformers.AutoModelForMaskedLM):
        assert (tokens - their_logits(kind.from_pretrained(tmp_path / "model").eval(), ids)).abs().max() < 1e-4
    automatic = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model")
    assert type(automatic).__name__ == "BertForPreTraining"

    again = load_model(tmp_path / "model", mask_id=4).eval()
    assert torch.equal(all_logits(again, ids), tokens)
    save_model(again, tmp_path / "again")
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        pairs = theirs(input_ids=ids).seq_relationship_logits
    assert (pairs - pair_logits(model, ids)[:, 0]).abs().max() < 1e-4, "a head that is not used is written back"


@pytest.mark.parametrize(("layout", "pairs"), [*((layout, False) for layout in LAYOUTS), ("bert", True)])
def test_a_folder_with_classes_is_of_both_kinds(
    make_model: MakeModel, tmp_path: Path, layout: str, pairs: bool
) -> None:
    """A sequence classifier with all of its weights, with our logits and names; and a masked language model."""
    ours = with_heads(make_model, layout, pairs=pairs, label_names=NAMES)
    save_model(ours, tmp_path)
    ids = some_ids(4, 20, below=60)
    with torch.no_grad():
        classes = ours.outputs("label_head", ours.encoder(ids)[:, 0])
    assert classes.std() > 0.05
    expected = {"SequenceClassification": classes, "MaskedLM": all_logits(ours, ids)}
    for kind, logits in expected.items():
        automatic = getattr(transformers, f"AutoModelFor{kind}")
        theirs, loading = automatic.from_pretrained(tmp_path, output_loading_info=True)
        assert not loading["missing_keys"]
        actual = their_logits(theirs.eval(), ids, attention_mask=torch.ones_like(ids))
        torch.testing.assert_close(logits, actual, rtol=1e-4, atol=1e-5 if kind != "MaskedLM" else 1e-4)
        assert theirs.config.id2label == dict(enumerate(NAMES))
        assert theirs.config.label2id == {name: number for number, name in enumerate(NAMES)}


def logits_of(model: MaskedLM, ids: list[int]) -> torch.Tensor:
    return all_logits(model, torch.tensor([ids]))[0]


def test_a_word_is_the_mean_of_its_pieces(make_model: MakeModel) -> None:
    model = make_model(vocab_size=20)
    grown = extended(model, words=[(5, 6), (7, 7, 10)], first_id=20)
    old, new = model.encoder.tokens, grown.encoder.tokens
    assert grown.config.vocab_size == len(new) == len(grown.head.bias) == 22
    assert torch.equal(new[:20], old)
    torch.testing.assert_close(new[20], (old[5] + old[6]) / 2)
    torch.testing.assert_close(new[21], (2 * old[7] + old[10]) / 3)
    torch.testing.assert_close(grown.head.bias[21], (2 * model.head.bias[7] + model.head.bias[10]) / 3)
    before, after = logits_of(model, [2, 5, 9, 3]), logits_of(grown, [2, 5, 9, 3])
    torch.testing.assert_close(after[:, :20], before)
    torch.testing.assert_close(after[:, 20], before[:, [5, 6]].mean(1), msg="the decoder is the embedding")
    assert len(model.encoder.tokens) == 20, "the model that was given is left alone"


def test_another_vocabulary(make_model: MakeModel) -> None:
    model = make_model(vocab_size=20)
    new = retokenized(model, [[4], [5, 6], [], [7, 7, 10]], model.config.model_copy(update={"vocab_size": 4}))
    for old_rows, rows in ((model.encoder.tokens, new.encoder.tokens), (model.head.bias, new.head.bias)):
        expected = [old_rows[4], old_rows[5:7].mean(0), old_rows.mean(0), old_rows[[7, 7, 10]].mean(0)]
        torch.testing.assert_close(rows, torch.stack(expected))
    assert torch.equal(new.encoder.blocks[0].attention.qkv.weight, model.encoder.blocks[0].attention.qkv.weight)
    assert len(model.encoder.tokens) == 20, "the model that was given is left alone"


def test_rows_that_fill_the_table_up_are_used_first(make_model: MakeModel) -> None:
    """Released models have more rows than their tokenizer has ids."""
    model = make_model(vocab_size=64)
    grown = extended(model, words=[(5, 6)], first_id=50)
    assert len(grown.encoder.tokens) == 64
    torch.testing.assert_close(grown.encoder.tokens[50], model.encoder.tokens[[5, 6]].mean(0))
    kept = torch.arange(64) != 50
    assert torch.equal(grown.encoder.tokens[kept], model.encoder.tokens[kept])
    assert len(extended(model, words=[(5, 6)] * 3, first_id=63).encoder.tokens) == 66


@pytest.mark.parametrize(("layout", "first"), [("bert", 0), ("roberta", 1), ("roberta-prelayernorm", 1)])
def test_learned_positions_are_copied_in_turn(make_model: MakeModel, layout: str, first: int) -> None:
    """16 positions become 40; RoBERTa's rows for padding (ids 0 to the padding's) precede them once."""
    model = make_model(layout=layout, max_position_embeddings=16)
    longer = extended(model, num_positions=40)
    old, new = model.encoder.positions, longer.encoder.positions
    assert (len(old), len(new)) == (16 + first, 40 + first)
    assert torch.equal(new[: 16 + first], old)
    for position in (16, 17, 31, 32, 39):
        assert torch.equal(new[first + position], old[first + position % 16]), position
    ids = [2, *range(10, 24), 3]
    assert torch.equal(logits_of(longer, ids), logits_of(model, ids))
    assert torch.isfinite(logits_of(longer, [2, *range(10, 48), 3])).all()


@pytest.mark.parametrize("layout", ["bert", "roberta", "modernbert"])
def test_what_was_extended_is_the_same_in_transformers(make_model: MakeModel, tmp_path: Path, layout: str) -> None:
    model = make_model(layout=layout, vocab_size=30, max_position_embeddings=16)
    model.unused_weights = {"bert.pooler.dense.bias": torch.ones(32)} if layout == "bert" else {}
    grown = extended(model, words=[(5, 6), (7, 8, 9)], first_id=30, num_positions=24)
    assert grown.unused_weights == model.unused_weights
    theirs = theirs_of(grown, tmp_path)
    ids = [2, 30, 31, *range(10, 28), 3]
    expected = their_logits(theirs, torch.tensor([ids]))[0]
    assert expected.shape == (len(ids), 32)
    torch.testing.assert_close(logits_of(grown, ids), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits_of(load_model(tmp_path, mask_id=4).eval(), ids), logits_of(grown, ids))
