"""Texts rebuilt from their vectors: what the decoder sees, its loss, its gradient, learned and resumed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.conftest import rich_model
from tests.masking.helpers import make_rows
from tests.train.helpers import MakeModel, gradients_of_a_step
from unmask.core.hashing import REBUILT, SEEN
from unmask.data.rows import Rows
from unmask.masking.masker import MaskedRows, Masker
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.layers import RetroMAEHead
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.objectives import PREDICT_MASKED, Objective, TextsToRebuild, extra_objectives
from unmask.train.settings import ObjectivesSettings

LENGTHS = [11, 17, 4]  # of the texts of a row, without [CLS] and [SEP]


def objective_of(**settings: object) -> Objective:
    (objective,) = extra_objectives(ObjectivesSettings.model_validate({"retromae": settings}))
    return objective


def model_of(make_model: MakeModel, **changes: object) -> MaskedLM:
    model = rich_model(make_model(**({"initializer_range": 0.2} | changes)).config, retromae=True)
    initialise(model, seed=0)
    return model


@pytest.fixture
def rows(tokenizer: Tokenizer) -> Rows:
    return make_rows(tokenizer, 3, LENGTHS)


@pytest.fixture
def masked(rows: Rows, tokenizer: Tokenizer) -> MaskedRows:
    return Masker.from_tokenizer(tokenizer, rate=0.3, replacement=(1.0, 0.0, 0.0))(rows)


def hidden_of(model: MaskedLM, rows: Rows, masked: MaskedRows) -> Tensor:
    given = {"segment_ids_BS": rows.segment_ids, "position_ids_BS": rows.position_ids}
    hidden_TD: Tensor = model.encoder(masked.input_ids, **given).flatten(0, 1)
    return hidden_TD


def naive_loss(model: MaskedLM, rows: Rows, masked: MaskedRows, rate: float) -> float:
    """One token after another, from the description in the paper; visible tokens are read from the rows."""
    head, tokens = model.find_head(RetroMAEHead), model.encoder.tokens
    hidden = hidden_of(model, rows, masked).view(*rows.shape, -1)
    decoded = TextsToRebuild.of(rows, masked, rate=1.0).rows
    seen = decoded.seen(rate=rate)
    losses = []
    for r, s in torch.nonzero(rows.maskable).tolist():
        places = torch.nonzero(rows.segment_ids[r] == rows.segment_ids[r, s])[:, 0].tolist()
        vector = head.vector_norm(hidden[r, places].mean(0)[None])[0]
        query = head.query((vector + head.places[rows.position_ids[r, s]])[None])[0]
        streams = [vector]
        for j in places[1:]:
            if j != s and seen[r, s, j]:
                token = tokens[rows.input_ids[r, j]] + head.places[rows.position_ids[r, j]]
                streams.append(head.token_norm(token[None])[0])
        key, value = head.key_value(torch.stack(streams)).chunk(2, -1)
        mixed = []
        for q, k, v in zip(query.chunk(2), key.chunk(2, -1), value.chunk(2, -1), strict=True):
            mixed.append(torch.softmax(k @ q / len(q) ** 0.5, 0) @ v)
        x = head.attention_norm((vector + head.places[rows.position_ids[r, s]] + head.out(torch.cat(mixed)))[None])
        x = head.norm(x + head.mlp(x))
        losses.append(functional.cross_entropy(model.head(x, tokens), rows.input_ids[r, s][None]))
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("layout", ["modernbert", "bert", "roberta"])
def test_the_loss_is_the_naive_one(
    make_model: MakeModel, rows: Rows, masked: MaskedRows, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a row of several texts, row by row, too, and in bf16 about."""
    model = model_of(make_model, layout=layout)
    objective = objective_of(rate=0.6, prediction_rate=1.0)
    with torch.no_grad():
        wanted = naive_loss(model, rows, masked, 0.6)
    for most in (1 << 20, rows.shape[1] ** 2):
        monkeypatch.setattr("unmask.model.layers._PAIRS", most)
        result, _ = gradients_of_a_step(model, rows, masked, PREDICT_MASKED, objective)
        assert result.read().objectives["retromae"].loss == pytest.approx(wanted, rel=1e-4)
        assert result.read().objectives["retromae"].count == int(rows.maskable.sum()) > 80
    model.encoder.compute_dtype = torch.bfloat16
    rounded = gradients_of_a_step(model, rows, masked, PREDICT_MASKED, objective)[0].read()
    assert rounded.objectives["retromae"].loss == pytest.approx(wanted, rel=0.03)


def test_what_is_seen_is_of_the_asked_share(tokenizer: Tokenizer) -> None:
    rows = make_rows(tokenizer, 40, [60, 30])
    masked = Masker.from_tokenizer(tokenizer)(rows)
    decoded = TextsToRebuild.of(rows, masked, rate=1.0).rows
    text, place = decoded.text_BS, decoded.place_BS
    inside = (text[:, :, None] == text[:, None]) & (rows.segment_ids >= 0)[:, None]
    others = inside & (place != 0)[:, None] & (place[:, :, None] != place[:, None])
    for rate in (0.5, 0.7):
        seen = decoded.seen(rate=rate)
        count = int(others.sum())
        share = float(seen[others].float().mean())
        assert share == pytest.approx(1.0 - rate, abs=4.5 * (rate * (1.0 - rate) / count) ** 0.5)
        columns = (seen & others).sum(1)[rows.segment_ids == 0].float()
        assert columns.std() < 6.0, "each place has a set of its own, so no token is seen by all or none"
    everything, nothing = (decoded.seen(rate=rate) for rate in (0.0, 1.0))
    first = inside & (place == 0)[:, None]
    assert torch.equal(everything & inside, others | first)
    assert torch.equal(nothing & inside, first)
    assert everything.any(-1).all(), "padding as well"
    assert SEEN.size == REBUILT.size == 31


def test_draws_belong_to_the_text(tokenizer: Tokenizer, rows: Rows) -> None:
    """They are the same in any batch, new in each epoch, and independent of the masks."""
    masker = Masker.from_tokenizer(tokenizer, rate=0.3, seed=5)

    def drawn(rows: Rows, epoch: int = 0, seed: int = 5) -> tuple[Tensor, set[int], Tensor]:
        of_seed = masker if seed == 5 else Masker.from_tokenizer(tokenizer, rate=0.3, seed=seed)
        masked = of_seed(rows, epoch=epoch)
        texts = TextsToRebuild.of(rows, masked, rate=0.4)
        return texts.rows.seen(rate=0.5), set(texts.positions_N.tolist()), masked.labels

    seen, rebuilt, labels = drawn(rows)
    turned, again, _ = drawn(rows.map(lambda tensor: tensor.flip(0)))
    width = rows.shape[1]
    assert torch.equal(turned.flip(0), seen)
    assert {(2 - at // width) * width + at % width for at in again} == rebuilt
    part, some, _ = drawn(rows.part(1, 3))
    assert torch.equal(part, seen[1:])
    assert {at + width for at in some} == {at for at in rebuilt if at >= width}
    for other in (drawn(rows, epoch=1), drawn(rows, seed=6)):
        assert not torch.equal(other[0], seen)
        assert other[1] != rebuilt
    many = make_rows(tokenizer, 200, LENGTHS)
    _, chosen, labels = drawn(many)
    count = int(many.maskable.sum())
    assert len(chosen) / count == pytest.approx(0.4, abs=4.5 * (0.24 / count) ** 0.5)
    hidden = (labels.flatten()[torch.tensor(sorted(chosen))] >= 0).float().mean()
    assert float(hidden) == pytest.approx(float((labels >= 0).sum()) / count, abs=0.04)


def test_the_gradient_goes_through_the_vector(make_model: MakeModel, rows: Rows, masked: MaskedRows) -> None:
    """And in no other way; it reaches every parameter."""
    model = model_of(make_model, layout="bert")
    objective = objective_of(prediction_rate=1.0)
    texts = objective.targets(rows, masked)
    hidden_TD = hidden_of(model, rows, masked)
    actual = objective.losses(model, hidden_TD, texts, None)
    named = dict(model.named_parameters())
    of_hidden_TD, *of_named = torch.autograd.grad(actual.total, [hidden_TD, *named.values()], allow_unused=True)
    for name, gradient in zip(named, of_named, strict=True):
        assert gradient is not None, name
        assert gradient.abs().max() > 0, name
    is_text_T = (rows.segment_ids >= 0).flatten()
    assert torch.equal(of_hidden_TD.abs().amax(1) > 0, is_text_T)
    for text in range(texts.num_texts):
        of_text = of_hidden_TD[(texts.rows.text_BS == text).flatten()]
        assert torch.allclose(of_text, of_text[:1].expand_as(of_text)), "a mean's"
