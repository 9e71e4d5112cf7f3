"""The loss of the decoder against the plain one, in compiled loops and in tensor operations of other devices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.model.helpers import MakeModel
from tests.model.on_gpu import tensor_operations
from unmask.model import fused
from unmask.model.fused import IGNORED, losses_of, losses_of_decoder, predicted_positions, sampled_classes


@pytest.fixture(params=["loops", "tensor operations"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tensor operations":
        tensor_operations(monkeypatch)


def parts(count: int = 37, *, hidden: int = 8, vocab: int = 50) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, hidden, generator=generator).requires_grad_()
    tokens = torch.randn(vocab, hidden, generator=generator).requires_grad_()
    bias = torch.randn(vocab, generator=generator).requires_grad_()
    return x, tokens, bias, torch.randint(0, vocab, (count,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 500, 1 << 19])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradients_are_those_of_the_plain_loss(
    chunk: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_CHUNK", chunk)
    x, tokens, bias, targets = parts()
    weights = torch.rand(len(targets), generator=torch.Generator().manual_seed(1)) if weighted else None
    logits = functional.linear(x, tokens, bias)
    each = functional.cross_entropy(logits, targets, reduction="none")
    expected = (each if weights is None else each * weights).sum()
    gradients = torch.autograd.grad(expected / 3.0, (x, tokens, bias))

    actual = losses_of_decoder(x, tokens, bias, targets, weights)
    torch.testing.assert_close(actual.total, expected)
    torch.testing.assert_close(actual.each_N, each.detach())
    assert torch.equal(actual.wrong_N, logits.argmax(1) != targets)
    for ours, theirs in zip(torch.autograd.grad(actual.total / 3.0, (x, tokens, bias)), gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_ignored_rows_have_no_loss_and_pass_no_gradient_on() -> None:
    x, tokens, bias, targets = parts(6)
    alone = losses_of_decoder(x[:4], tokens, bias, targets[:4])
    expected = torch.autograd.grad(alone.total, (x, tokens, bias))
    targets[4:] = IGNORED
    actual = losses_of_decoder(x, tokens, bias, targets)
    assert actual.each_N[4:].tolist() == [0.0, 0.0]
    torch.testing.assert_close(actual.total, alone.total)
    for ours, theirs in zip(torch.autograd.grad(actual.total, (x, tokens, bias)), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_id_0_can_be_predicted_and_no_target_is_no_loss() -> None:
    assert predicted_positions(torch.tensor([[-100, 0, -100], [3, -100, 0]])).tolist() == [1, 3, 5]
    assert losses_of(torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64)).total == 0.0


def test_a_sampled_softmax_is_that_of_the_vocabulary_in_expectation() -> None:
    generator, vocab_size = torch.Generator().manual_seed(0), 6000
    logits = torch.randn(vocab_size, generator=generator)
    classes, frequent = torch.tensor([5, 5999, 5]), torch.arange(100, 1124)
    sums = []
    for seed in range(50):
        ids, log_weights, places = sampled_classes(classes, frequent, vocab_size, seed=seed)
        assert len(ids.unique()) == len(ids) == 2 + 1024 + 1024
        assert ids[places[classes]].tolist() == [5, 5999, 5]
        assert (places == IGNORED).sum() == vocab_size - len(ids)
        assert (log_weights == 0.0).sum() == 2 + 1024, "what is always there counts once"
        assert set(frequent.tolist()) <= set(ids.tolist())
        sums.append((logits[ids] + log_weights).exp().sum())
    again = sampled_classes(classes, frequent, vocab_size, seed=49)
    assert torch.equal(again.ids_C, ids)
    assert torch.stack(sums).mean() == pytest.approx(float(logits.exp().sum()), rel=0.02)
    assert torch.stack(sums).std() > 0.0


def test_a_sampled_softmax_of_few_classes_is_the_whole_one(make_model: MakeModel) -> None:
    model = make_model()
    x = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([3, 7, 7, IGNORED, 0])
    whole = model.head.losses(x, model.encoder.tokens, targets)
    model.head.sample_softmax(torch.ones(model.config.vocab_size))
    model.head.draw_sample(targets[targets >= 0], seed=3)
    sampled = model.head.losses(x, model.encoder.tokens, targets, sampled=True)
    torch.testing.assert_close(sampled.each_N, whole.each_N)
    weights = model.encoder.tokens, model.head.bias
    ours, theirs = (torch.autograd.grad(each.total, weights) for each in (sampled, whole))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_losses_and_hits_of_a_few_classes() -> None:
    logits, targets = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1, 1])
    actual = losses_of(logits, targets, torch.tensor([1.0, 0.5]))
    each = functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(actual.each_N, each)
    torch.testing.assert_close(actual.total, each[0] + each[1] / 2)
    assert actual.wrong_N.tolist() == [False, True]


def test_in_bf16_the_loss_is_computed_in_float32() -> None:
    x, tokens, bias, targets = (tensor.detach() for tensor in parts(20, hidden=64, vocab=1000))
    half = [x.bfloat16().requires_grad_(), tokens.bfloat16().requires_grad_(), bias.requires_grad_()]
    actual = losses_of_decoder(*half, targets)
    logits = half[0] @ half[1].T + half[2]
    torch.testing.assert_close(actual.total, functional.cross_entropy(logits.float(), targets, reduction="sum"))
    expected = torch.autograd.grad(functional.cross_entropy(logits.float(), targets, reduction="sum"), half)
    for ours, theirs in zip(torch.autograd.grad(actual.total, half), expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.05, atol=0.05)
