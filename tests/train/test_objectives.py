"""Objectives beside masked tokens: losses, gradients, in parts; classes of documents; boundaries in mixtures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.conftest import rich_model
from tests.masking.helpers import make_rows
from tests.model.helpers import LAYOUTS, segments
from tests.train.helpers import MakeModel, gradients_of_a_step
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import MaskingSettings
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.layers import PairHead
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.objectives import PREDICT_MASKED, extra_objectives
from unmask.train.settings import ObjectivesSettings

SPANS = MaskingSettings.model_validate({"strategy": "span", "rate": 0.3})
BOTH = ObjectivesSettings.model_validate(
    {"pairs": {"kind": "next_sentence", "weight": 0.5}, "span_boundary": {"weight": 0.7, "max_length": 6}}
)


def model_of(make_model: MakeModel, objectives: ObjectivesSettings = BOTH, **changes: object) -> MaskedLM:
    model = rich_model(
        make_model(**({"layout": "bert", "initializer_range": 0.05} | changes)).config,
        pairs=objectives.pairs is not None,
        boundary_length=None if objectives.span_boundary is None else objectives.span_boundary.max_length,
    )
    initialise(model, seed=0)
    return model


@pytest.fixture
def batch(store: TokenStore, tokenizer: Tokenizer) -> tuple[Rows, MaskedRows]:
    rows = RowStream(store, tokenizer, length=64, seed=0, pairs="next_sentence").batch(Cursor(), 8).rows
    return rows, Masker(SPANS, tokenizer, with_boundaries=True)(rows)


def naive_losses(model: MaskedLM, rows: Rows, masked: MaskedRows) -> dict[str, torch.Tensor]:
    """One target after another, from the description in the paper."""
    hidden = model.encoder(
        masked.input_ids,
        segment_ids_BS=rows.segment_ids,
        position_ids_BS=rows.position_ids,
        token_type_ids_BS=rows.token_type_ids,
    )
    head, tokens = model.boundary_head, model.encoder.tokens
    plain, spans, pairs = [], [], []
    for r, s in torch.nonzero(masked.labels >= 0).tolist():
        before, behind = int(masked.boundaries.before[r, s]), int(masked.boundaries.behind[r, s])
        x = torch.cat([hidden[r, before], hidden[r, behind], head.places[min(s - before - 1, 5)]])
        for dense, norm in ((head.into, head.into_norm), (head.dense, head.norm)):
            x = functional.gelu(dense.weight @ x + dense.bias)
            x = (x - x.mean()) / (x.var(unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias
        target = masked.labels[r, s]
        spans.append(functional.cross_entropy(tokens @ x + model.head.bias, target))
        plain.append(functional.cross_entropy(model.head(hidden[r, s][None], tokens)[0], target))
    for r, s in torch.nonzero(rows.classes["next_sentence"] >= 0).tolist():
        pooled = torch.tanh(model.pair_head.pooler.weight @ hidden[r, s] + model.pair_head.pooler.bias)
        logits = model.pair_head.classifier.weight @ pooled + model.pair_head.classifier.bias
        pairs.append(functional.cross_entropy(logits, rows.classes["next_sentence"][r, s]))
    named = {"masked_tokens": plain, "span_boundary": spans, "next_sentence": pairs}
    return {name: torch.stack(losses).mean() for name, losses in named.items()}


def test_losses_and_gradients_are_the_naive_ones(make_model: MakeModel, batch: tuple[Rows, MaskedRows]) -> None:
    """The gradient is that of the weighted sum, and reaches every parameter of every head."""
    model = model_of(make_model)
    result, actual = gradients_of_a_step(model, *batch, PREDICT_MASKED, *extra_objectives(BOTH))
    losses, figures = naive_losses(model, *batch), result.read()
    assert figures.loss == pytest.approx(losses["masked_tokens"].item(), rel=1e-5)
    assert set(figures.objectives) == {"next_sentence", "span_boundary"}
    for name, mean in figures.objectives.items():
        assert mean.loss == pytest.approx(losses[name].item(), rel=1e-5), name
    assert result.predicted_tokens == figures.objectives["span_boundary"].count == int((batch[1].labels >= 0).sum())
    assert figures.objectives["next_sentence"].count == int((batch[0].classes["next_sentence"] >= 0).sum()) > 8
    (losses["masked_tokens"] + 0.5 * losses["next_sentence"] + 0.7 * losses["span_boundary"]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(actual[name], parameter.grad, rtol=1e-3, atol=1e-6, msg=name)
        assert actual[name].abs().max() > 0, name
    assert sum(name.startswith("boundary_head.") for name in actual) == 9
    assert sum(name.startswith("pair_head.") for name in actual) == 4


@pytest.mark.parametrize("micro_rows", [1, 3])
def test_parts_give_the_gradient_of_the_whole(
    make_model: MakeModel, batch: tuple[Rows, MaskedRows], micro_rows: int
) -> None:
    """With very unequal numbers of targets of each objective in the parts, and a part without any."""
    rows, masked = batch
    masked.labels[1:, :40] = -100
    masked.labels[5] = -100
    rows.classes["next_sentence"][2] = -1
    assert len(set((rows.classes["next_sentence"] >= 0).sum(1).tolist())) > 2
    model = model_of(make_model)
    objectives = (PREDICT_MASKED, *extra_objectives(BOTH))
    result, whole = gradients_of_a_step(model, rows, masked, *objectives)
    again, in_parts = gradients_of_a_step(model, rows, masked, *objectives, micro_rows=micro_rows)
    assert again.micro_batches == -(-8 // micro_rows)
    for name, mean in result.read().objectives.items():
        assert again.read().objectives[name].loss == pytest.approx(mean.loss, rel=1e-5)
        assert again.read().objectives[name].count == mean.count
    for name, gradient in whole.items():
        torch.testing.assert_close(in_parts[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


LABEL = ObjectivesSettings.model_validate({"label": {"weight": 0.5}})
NAMES = ("a", "b", "c")


def labelled(tokenizer: Tokenizer) -> tuple[Rows, MaskedRows]:
    """Two rows with two and one segments, of which one has no class: the classes are 2, 0, none, 1."""
    rows = make_rows(tokenizer, 2, [9, 7])
    classes = torch.full(rows.shape, -1)
    begins = torch.nonzero((rows.position_ids == 0) & (rows.segment_ids >= 0))
    assert len(begins) == 4
    for (r, s), number in zip(begins.tolist(), (2, 0, -1, 1), strict=True):
        classes[r, s] = number
    rows = replace(rows, classes={"label": classes})
    return rows, Masker.from_tokenizer(tokenizer, rate=0.3)(rows)


def naive_label_loss(model: MaskedLM, rows: Rows, masked: MaskedRows) -> torch.Tensor:
    """One document after another, by the formulas of each layout's classifier."""
    hidden = model.encoder(masked.input_ids, segment_ids_BS=rows.segment_ids, position_ids_BS=rows.position_ids)
    losses = []
    for r, s in torch.nonzero(rows.classes["label"] >= 0).tolist():
        x = hidden[r, s]
        if model.config.layout == "modernbert":
            x = functional.gelu(model.head.dense.weight @ x)
            x = (x - x.mean()) / (x.var(unbiased=False) + model.config.norm_eps).sqrt() * model.head.norm.weight
        else:
            dense = model.label_head.dense if model.find_head(PairHead) is None else model.pair_head.pooler
            x = torch.tanh(dense.weight @ x + dense.bias)
        logits = model.label_head.classifier.weight @ x + model.label_head.classifier.bias
        losses.append(-logits.log_softmax(0)[rows.classes["label"][r, s]])
    assert len(losses) == 3
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("layout", "pairs"), [*((layout, False) for layout in LAYOUTS), ("bert", True)])
def test_the_loss_of_classes_is_the_naive_one(
    make_model: MakeModel, tokenizer: Tokenizer, layout: str, pairs: bool
) -> None:
    """Also where the pooler is that of pairs, though none are in the batch."""
    config = make_model(layout=layout, initializer_range=0.05).config
    model = rich_model(config, pairs=pairs, label_names=NAMES)
    initialise(model, seed=0)
    rows, masked = labelled(tokenizer)
    result, _ = gradients_of_a_step(model, rows, masked, PREDICT_MASKED, *extra_objectives(LABEL))
    with torch.no_grad():
        expected = naive_label_loss(model, rows, masked)
    assert set(result.read().objectives) == {"label"}
    assert result.read().objectives["label"].loss == pytest.approx(float(expected), rel=1e-5)
    assert result.read().objectives["label"].count == 3
    assert float(expected) == pytest.approx(np.log(3), abs=0.4)


BOUNDARIES = ObjectivesSettings.model_validate({"span_boundary": {"max_length": 6}})
PARTS = [{"strategy": "whole_word", "share": 0.5}, {"strategy": "span", "share": 0.5}]
MIXTURE = MaskingSettings.model_validate({"units": {"kind": "mixture", "parts": PARTS}, "rate": 0.3})


def masked_by(settings: MaskingSettings, tokenizer: Tokenizer, rows: Rows) -> MaskedRows:
    return Masker(settings, tokenizer, seed=3, with_boundaries=True)(rows)


@pytest.fixture
def rows(store: TokenStore, tokenizer: Tokenizer) -> Rows:
    return RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), 100).rows


def test_in_a_mixture_a_text_is_that_of_spans_or_has_no_boundaries(rows: Rows, tokenizer: Tokenizer) -> None:
    mixed, alone = (masked_by(settings, tokenizer, rows) for settings in (MIXTURE, SPANS))
    known = mixed.boundaries.before >= 0
    of_texts = [known[row][inside & rows.maskable[row]] for row, inside in segments(rows)]
    assert all(each.all() or not each.any() for each in of_texts)
    assert 50 < sum(bool(each.all()) for each in of_texts) < len(of_texts) - 50
    assert torch.equal(mixed.labels[known], alone.labels[known])
    assert torch.equal(mixed.boundaries.before[known], alone.boundaries.before[known])
    assert torch.equal(mixed.boundaries.behind[known], alone.boundaries.behind[known])


def test_targets_of_boundaries_are_those_in_spans(rows: Rows, tokenizer: Tokenizer) -> None:
    masked = masked_by(MIXTURE, tokenizer, rows)
    targets = extra_objectives(BOUNDARIES)[0].targets(rows, masked)
    expected = [
        (r * 64 + s, int(masked.labels[r, s]), r * 64 + int(masked.boundaries.before[r, s]))
        for r, s in torch.nonzero(masked.labels >= 0).tolist()
        if masked.boundaries.before[r, s] >= 0
    ]
    assert targets.boundaries_N is not None
    actual = zip(
        targets.positions_N.tolist(), targets.classes_N.tolist(), targets.boundaries_N[0].tolist(), strict=True
    )
    assert list(actual) == expected
    assert 0.3 < len(expected) / int((masked.labels >= 0).sum()) < 0.7
