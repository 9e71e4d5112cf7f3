"""Objectives beside masked tokens: their losses, their gradients, in parts, learned, and resumed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch.nn import functional

from tests.conftest import rich_model
from tests.train.helpers import MakeModel, settings_of
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import MaskedRows, Masker
from unmask.masking.settings import MaskingSettings
from unmask.model.encoder import MaskedLM, initialise
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.objectives import PREDICT_MASKED, Objective, extra_objectives
from unmask.train.optimizer import build_optimizer
from unmask.train.settings import ObjectivesSettings
from unmask.train.step import Figures, TrainState, training_step

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


def step_of(model: MaskedLM, rows: Rows, masked: MaskedRows, objectives: Sequence[Objective]) -> Figures:
    """A step that changes nothing."""
    settings = settings_of()
    state = TrainState(model, build_optimizer(model, settings))
    return training_step(
        state, settings, rows, masked, objectives=(PREDICT_MASKED, *objectives), learning_rate_scale=0.0
    )


def gradients(
    model: MaskedLM, rows: Rows, masked: MaskedRows, objectives: Sequence[Objective], micro_rows: int | None = None
) -> tuple[Figures, dict[str, torch.Tensor]]:
    settings = settings_of(optimizer={"kind": "adamw"}, clip_norm=math.inf)
    optimizer = build_optimizer(model, settings)
    saved: dict[str, torch.Tensor] = {}

    def keep() -> None:
        saved.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    optimizer.step = keep  # type: ignore[method-assign]
    state = TrainState(model, optimizer, micro_tokens=micro_rows and micro_rows * rows.shape[1])
    result = training_step(state, settings, rows, masked, objectives=(PREDICT_MASKED, *objectives))
    return result, saved


@pytest.fixture
def batch(store: TokenStore, tokenizer: Tokenizer) -> tuple[Rows, MaskedRows]:
    rows = RowStream(store, tokenizer, length=64, seed=0, pairs="next_sentence").batch(Cursor(), 8).rows
    return rows, Masker(SPANS, tokenizer, with_boundaries=True)(rows)


def naive_losses(model: MaskedLM, rows: Rows, masked: MaskedRows) -> dict[str, torch.Tensor]:
    """One target after another, from the description in the paper."""
    assert masked.boundaries is not None
    assert model.boundary_head is not None
    assert model.pair_head is not None
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


def test_losses_are_the_naive_ones(make_model: MakeModel, batch: tuple[Rows, MaskedRows]) -> None:
    model = model_of(make_model)
    with torch.no_grad():
        expected = naive_losses(model, *batch)
    result = step_of(model, *batch, extra_objectives(BOTH))
    assert result.read().loss == pytest.approx(float(expected["masked_tokens"]), rel=1e-5)
    assert set(result.read().objectives) == {"next_sentence", "span_boundary"}
    for name, mean in result.read().objectives.items():
        assert mean.loss == pytest.approx(float(expected[name]), rel=1e-5), name
    assert result.read().objectives["span_boundary"].count == result.predicted_tokens
    assert result.predicted_tokens == int((batch[1].labels >= 0).sum())
    assert result.read().objectives["next_sentence"].count == int((batch[0].classes["next_sentence"] >= 0).sum()) > 8


def test_the_gradient_is_that_of_the_weighted_sum(make_model: MakeModel, batch: tuple[Rows, MaskedRows]) -> None:
    """And it reaches every parameter of every head."""
    model = model_of(make_model)
    _, actual = gradients(model, *batch, extra_objectives(BOTH))
    losses = naive_losses(model, *batch)
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
    result, whole = gradients(model, rows, masked, extra_objectives(BOTH))
    again, in_parts = gradients(model, rows, masked, extra_objectives(BOTH), micro_rows)
    assert again.micro_batches == -(-8 // micro_rows)
    for name, mean in result.read().objectives.items():
        assert again.read().objectives[name].loss == pytest.approx(mean.loss, rel=1e-5)
        assert again.read().objectives[name].count == mean.count
    for name, gradient in whole.items():
        torch.testing.assert_close(in_parts[name], gradient, rtol=1e-3, atol=1e-6, msg=name)
