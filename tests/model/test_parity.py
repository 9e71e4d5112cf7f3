"""The same weights give the same logits in transformers, alone and packed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unmask.core.errors import ModelError
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_model, save_model

transformers = pytest.importorskip("transformers")
ACTIVATIONS = ["gelu", "gelu_pytorch_tanh", "silu", "relu2"]
MakeModel = Callable[..., MaskedLM]


def all_logits(model: MaskedLM, input_ids: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids, positions_N=torch.arange(input_ids.numel()), **rows)
    return logits.view(*input_ids.shape, -1)


def theirs_of(model: MaskedLM, folder: Path) -> torch.nn.Module:
    save_model(model, folder)
    return transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()


def test_a_change_in_one_document_does_not_reach_its_neighbour(make_model: MakeModel) -> None:
    model = make_model()
    ids = torch.randint(5, 190, (1, 30), generator=torch.Generator().manual_seed(0))
    segments = torch.tensor([[0] * 14 + [1] * 16])
    other = ids.clone()
    other[0, 3] = 7
    with_segments = [all_logits(model, x, segment_ids_BS=segments) for x in (ids, other)]
    without = [all_logits(model, x) for x in (ids, other)]
    assert torch.equal(with_segments[0][0, 14:], with_segments[1][0, 14:])
    assert not torch.equal(without[0][0, 14:], without[1][0, 14:]), "the test can see a leak"


def test_padding_changes_nothing(make_model: MakeModel) -> None:
    model = make_model()
    ids = torch.randint(5, 190, (1, 20), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([ids, torch.zeros(1, 9, dtype=torch.int64)], 1)
    segments = torch.tensor([[0] * 20 + [-1] * 9])
    found = all_logits(model, padded, segment_ids_BS=segments)
    assert (found[:, :20] - all_logits(model, ids)).abs().max() < 1e-5
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "t5"},
            "'t5' is not supported; supported are 'modernbert', 'bert', 'roberta', 'xlm-roberta', 'camembert', 'robert",
        ),
        ({"norm_bias": True}, "norm_bias = True is not supported, only False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ({"vocab_size": 300}, r"tok_embeddings.weight has the shape \(200, 32\), but config.json says \(300, 32\)"),
        ({"layer_types": ["sliding_attention"] * 4}, "is not 'every n-th layer is global'"),
        ({"hidden_activation": "spam"}, "config.json: activation = 'spam' is not supported, only 'gelu', "),
        ({"num_attention_heads": 3}, "config.json: hidden_size 32 must be a multiple of 2 x num_heads"),
        ({"max_position_embeddings": None}, "config.json: max_position_embeddings = None: input should be"),
        (
            {"num_hidden_layers": 6, "layer_types": None, "global_attn_every_n_layers": 3},
            "the weights lack model.layers.4",
        ),
    ],
)
def test_folders_that_cannot_be_loaded(
    make_model: MakeModel, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    save_model(make_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path, mask_id=4)


def test_a_text_longer_than_the_model(make_model: MakeModel) -> None:
    with pytest.raises(ModelError, match="65 tokens are more than the model's 64 positions"):
        all_logits(make_model(), torch.full((1, 65), 7))
