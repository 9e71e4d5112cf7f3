"""Classes of documents beside masked tokens: the naive loss, its gradient, learned, in parts, and resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.conftest import rich_model
from tests.masking.helpers import make_rows
from tests.train.helpers import MakeModel
from tests.train.test_objectives import gradients
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows, Masker
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.layers import PairHead
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.objectives import extra_objectives
from unmask.train.settings import ObjectivesSettings

LABEL = ObjectivesSettings.model_validate({"label": {"weight": 0.5}})
LAYOUTS = ["modernbert", "bert", "roberta", "roberta-prelayernorm"]
NAMES = ("a", "b", "c")


def model_of(make_model: MakeModel, layout: str = "modernbert", *, pairs: bool = False, **changes: object) -> MaskedLM:
    config = make_model(layout=layout, initializer_range=0.05, **changes).config
    model = rich_model(config, pairs=pairs, label_names=NAMES)
    initialise(model, seed=0)
    return model


def batch_of(tokenizer: Tokenizer) -> tuple[Rows, MaskedRows]:
    """Two rows with two and one segments, of which one has no class: the classes are 2, 0, none, 1."""
    rows = make_rows(tokenizer, 2, [9, 7])
    classes = torch.full(rows.shape, -1)
    begins = torch.nonzero((rows.position_ids == 0) & (rows.segment_ids >= 0))
    assert len(begins) == 4
    for (r, s), number in zip(begins.tolist(), (2, 0, -1, 1), strict=True):
        classes[r, s] = number
    rows = replace(rows, classes={"label": classes})
    return rows, Masker.from_tokenizer(tokenizer, rate=0.3)(rows)


def naive_loss(model: MaskedLM, rows: Rows, masked: MaskedRows) -> torch.Tensor:
    """One document after another, by the formulas of each layout's classifier."""
    hidden = model.encoder(masked.input_ids, segment_ids_BS=rows.segment_ids, position_ids_BS=rows.position_ids)
    assert model.label_head is not None
    losses = []
    for r, s in torch.nonzero(rows.classes["label"] >= 0).tolist():
        x = hidden[r, s]
        if model.config.layout == "modernbert":
            x = functional.gelu(model.head.dense.weight @ x)
            x = (x - x.mean()) / (x.var(unbiased=False) + model.config.norm_eps).sqrt() * model.head.norm.weight
        else:
            dense = model.label_head.dense if model.find_head(PairHead) is None else model.pair_head.pooler
            assert dense is not None
            x = torch.tanh(dense.weight @ x + dense.bias)
        logits = model.label_head.classifier.weight @ x + model.label_head.classifier.bias
        losses.append(-logits.log_softmax(0)[rows.classes["label"][r, s]])
    assert len(losses) == 3
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("layout", "pairs"), [*((layout, False) for layout in LAYOUTS), ("bert", True)])
def test_the_loss_is_the_naive_one(make_model: MakeModel, tokenizer: Tokenizer, layout: str, pairs: bool) -> None:
    """Also where the pooler is that of pairs, though none are in the batch."""
    model = model_of(make_model, layout, pairs=pairs)
    rows, masked = batch_of(tokenizer)
    result, _ = gradients(model, rows, masked, extra_objectives(LABEL))
    with torch.no_grad():
        expected = naive_loss(model, rows, masked)
    assert set(result.read().objectives) == {"label"}
    assert result.read().objectives["label"].loss == pytest.approx(float(expected), rel=1e-5)
    assert result.read().objectives["label"].count == 3
    assert float(expected) == pytest.approx(np.log(3), abs=0.4)
