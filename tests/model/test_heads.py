"""Heads for pairs and for classes of texts: as in transformers, alone and packed; saved folders load everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import rich_model
from tests.model.helpers import LAYOUTS, MakeModel, all_logits, segments, some_ids, their_logits, with_heads
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.folder import load_model, save_model
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
NAMES = ("bored", "glad", "sad")


@torch.no_grad()
def pair_logits(model: MaskedLM, ids: torch.Tensor, **rows: torch.Tensor | None) -> torch.Tensor:
    """[B, S, 2]: of pairs that begin there."""
    return model.pair_head(model.encoder(ids, **rows))


@pytest.mark.parametrize("kind", ["next_sentence", "sentence_order"])
def test_packed_pairs(
    make_model: MakeModel, tmp_path: Path, store: TokenStore, tokenizer: Tokenizer, kind: str
) -> None:
    """Each pair by itself, as transformers' BertForPreTraining sees it."""
    ours = with_heads(make_model, "bert", pairs=True)
    save_model(ours, tmp_path)
    theirs, loading = transformers.BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    theirs.eval()
    stream = RowStream(store, tokenizer, length=64, seed=0, pairs=kind)  # type: ignore[arg-type]
    rows = stream.batch(Cursor(), 8).rows
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_head_changes_nothing_of_the_others(make_model: MakeModel, tmp_path: Path, layout: str) -> None:
    """Neither the encoder's initial weights change, nor the config.json of a folder without classes."""
    config = make_model(layout=layout).config
    plain, labelled = MaskedLM(config), rich_model(config, label_names=NAMES)
    for model in (plain, labelled):
        initialise(model, seed=3)
    theirs = dict(labelled.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, theirs.pop(name)), name
    assert theirs
    assert all(name.startswith("label_head.") for name in theirs)
    save_model(plain, tmp_path)
    assert not {"id2label", "label2id"} & set(json.loads((tmp_path / "config.json").read_text()))
