"""Dropout, initial weights, gradient checkpointing, and that every layout learns."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from tests.masking.helpers import assert_share
from tests.model.helpers import MakeModel, some_ids
from unmask.core.errors import ModelError
from unmask.model.config import PARTS, Initialisation
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.layers import Linear, dropout

WIDE = {"hidden_size": 128, "num_heads": 4, "intermediate_size": 384, "initializer_range": 0.02}


def hidden_of(model: MaskedLM, seed: int | None) -> torch.Tensor:
    with torch.no_grad():
        return model.encoder(some_ids(), dropout_seed=seed)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_dropout_drops_its_share_and_keeps_the_expectation(as_tensor: bool) -> None:
    """By a seed that is a number, or a tensor as compiled blocks take it."""
    x = torch.ones(400, 500)
    seeds: list[Any] = [torch.tensor(seed) if as_tensor else seed for seed in (5, 6, -(2**63))]
    dropped = [dropout(x, 0.2, seed=seed) == 0 for seed in seeds]
    assert set(dropout(x, 0.2, seed=seeds[0]).unique().tolist()) == {0.0, 1.25}
    for zeros in dropped:
        assert_share(zeros, 0.2)
    assert_share(dropped[0] & dropped[1], 0.04)  # seeds are independent
    assert torch.equal(dropped[0], dropout(x, 0.2, seed=seeds[0]) == 0)
    assert dropout(x.bfloat16(), 0.2, seed=seeds[0]).dtype == torch.bfloat16
    assert dropout(x, 0.2, seed=None) is x


@pytest.mark.parametrize("layout", PARTS)
def test_dropout_is_of_training_alone_and_a_function_of_its_seed(make_model: MakeModel, layout: str) -> None:
    model = make_model(layout=layout, dropout=0.3)
    plain = make_model(layout=layout)
    assert torch.equal(hidden_of(model, 1), hidden_of(plain, None)), "off in evaluation"
    model.train()
    state = torch.get_rng_state()
    first = hidden_of(model, 1)
    assert torch.equal(first, hidden_of(model, 1))
    assert (first - hidden_of(model, 2)).abs().max() > 0.1
    assert (first - hidden_of(plain, None)).abs().max() > 0.1
    assert torch.equal(torch.get_rng_state(), state), "the global generator is not touched"
    with pytest.raises(ModelError, match="needs a dropout_seed"):
        hidden_of(model, None)


@pytest.mark.parametrize("layout", PARTS)
def test_checkpointed_gradients_are_the_same(make_model: MakeModel, layout: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = make_model(layout=layout, dropout=0.2).train()
        model.encoder.gradient_checkpointing = checkpointing
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        model.encoder.blocks[0].register_forward_pre_hook(count)
        model(some_ids(), positions_N=torch.arange(60), dropout_seed=3).square().mean().backward()
        assert calls == (2 if checkpointing else 1), "the block is computed again"
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.parametrize("method", get_args(Initialisation))
def test_initial_weights(make_model: MakeModel, layout: str, method: Initialisation) -> None:
    model = make_model(layout=layout, **WIDE)
    initialise(model, seed=3, method=method)
    std = 0.02
    cut = std * 0.8796  # a normal distribution cut at two standard deviations
    encoder = model.encoder
    for table in (encoder.tokens, encoder.positions):
        if table is not None:
            assert float(table.detach().std()) == pytest.approx(cut, rel=0.02)
            assert float(table.detach().abs().max()) <= 2 * std
    for name, module in model.named_modules():
        if not isinstance(module, Linear):
            continue
        weight = module.weight.detach()
        rows, columns = weight.shape
        writes = name.endswith(".out") or name.startswith("head.")
        expected = cut / math.sqrt(2 * 4) if writes and method != "truncated_normal" else cut
        assert float(weight.std()) == pytest.approx(expected, rel=0.03), name
        assert abs(float(weight.mean())) < 4 * expected / math.sqrt(rows * columns), name
    again = make_model(layout=layout, **WIDE)
    initialise(again, seed=3, method=method)
    for a, b in zip(model.encoder.parameters(), again.encoder.parameters(), strict=True):
        assert torch.equal(a, b)
    initialise(again, seed=4, method=method)
    assert not torch.equal(model.encoder.tokens, again.encoder.tokens)
