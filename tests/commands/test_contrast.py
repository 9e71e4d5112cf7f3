"""The loss of pairs by hand, which answers it leaves out, and gradients through vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.helpers import MakeModel
from tests.train.helpers import gradients_of_a_step
from unmask.commands.embedder_pairs import NO_PAIRS, PairDrawer, PairParts, PairStream
from unmask.commands.embedder_run import measure
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.core.hashing import mix_ints
from unmask.masking.masker import Masker, unmasked
from unmask.model.fused import Losses
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.contrast import (
    FIRST,
    SECOND,
    SPARSE,
    WRONG,
    TextTargets,
    VectorKind,
    compared,
    contrast_losses,
    dense,
    pair_objective,
)
from unmask.train.objectives import PREDICT_MASKED, Objective
from unmask.train.step import parts_of

NOTHING = torch.zeros(0, dtype=torch.int64)


def texts(pairs: list[int], sides: list[int], documents: list[int], hashes: list[int]) -> TextTargets:
    return TextTargets(NOTHING, torch.tensor([pairs, sides, documents, hashes]).T, num_pairs=sides.count(FIRST))


def entropy(right: float, *others: float) -> float:
    return -math.log(math.exp(right) / sum(math.exp(score) for score in (right, *others)))


def angle(*degrees: float) -> torch.Tensor:
    """Vectors of unequal lengths."""
    turned = torch.tensor(degrees) * math.pi / 180
    return torch.stack([turned.cos(), turned.sin()], 1) * torch.arange(1, len(degrees) + 1)[:, None]


def score(one: float, other: float) -> float:
    return math.cos((one - other) * math.pi / 180) / 0.5


def test_the_loss_by_hand_with_what_is_left_out() -> None:
    """Pairs a, b, c; b and c are of one document; w is given as a wrong answer."""
    a1, a2, b1, b2, c1, c2, w = 0.0, 20.0, 90.0, 80.0, 200.0, 170.0, 10.0
    # In an order that is no order of sides or pairs.
    vectors = angle(b2, a1, w, c1, a2, b1, c2)
    actual = contrast_losses(
        vectors,
        texts([1, 0, 0, 2, 0, 1, 2], [SECOND, FIRST, WRONG, FIRST, SECOND, FIRST, SECOND],
              [7, 5, 9, 7, 5, 7, 7], [11, 12, 13, 14, 15, 16, 17]),
        temperature=0.5,
    )  # fmt: skip
    forth = [
        entropy(score(a1, a2), score(a1, b2), score(a1, c2), score(a1, w)),
        entropy(score(b1, b2), score(b1, a2), score(b1, w)),
        entropy(score(c1, c2), score(c1, a2), score(c1, w)),
    ]
    back = [
        entropy(score(a1, a2), score(a2, b1), score(a2, c1)),
        entropy(score(b1, b2), score(b2, a1)),
        entropy(score(c1, c2), score(c2, a1)),
    ]
    expected = [(one + other) / 2 for one, other in zip(forth, back, strict=True)]
    np.testing.assert_allclose(actual.each_N, expected, atol=1e-6)
    assert float(actual.total) == pytest.approx(sum(expected), abs=1e-5)
    assert actual.wrong_N.tolist() == [True, False, False], "w is nearer to a than its partner"


@pytest.mark.parametrize(
    ("hashes", "left_out"),
    [
        ([1, 2, 3, 4], False),
        ([1, 2, 1, 4], True),  # the same query: its texts are answers to both
        ([1, 2, 3, 2], True),  # the same text
        ([1, 2, 2, 4], True),  # a text that is another pair's query
    ],
)
def test_equal_texts_are_no_wrong_answers(hashes: list[int], left_out: bool) -> None:
    of = texts([0, 0, 1, 1], [FIRST, SECOND, FIRST, SECOND], [5, 5, 6, 6], hashes)
    loss = float(contrast_losses(angle(0.0, 50.0, 20.0, 120.0), of, temperature=0.5).each_N[0])
    plain = (entropy(score(0, 50), score(0, 120)) + entropy(score(0, 50), score(50, 20))) / 2
    assert loss < plain - 0.05 if left_out else loss == pytest.approx(plain, abs=1e-6)


def test_what_another_pair_says_is_right_is_no_wrong_answer() -> None:
    """(q, A), (q, B), (r, B), (s, C): B is right for q in any pair, and so are q and r for B. C is right only for s."""
    q, r, s, a, b, c = range(6)
    of = texts([*range(4), *range(4), 3], [FIRST] * 4 + [SECOND] * 4 + [WRONG], [1, 2, 2, 3, 1, 2, 2, 3, 2],
               [q, q, r, s, a, b, b, c, b])  # fmt: skip
    first, others, barred = compared(of)
    no, yes = False, True
    assert (first.tolist(), others.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7, 8])
    assert barred.tolist() == [
        [no, yes, yes, no, yes], [yes, no, yes, no, yes], [no, yes, no, no, yes], [no, no, no, no, no],
    ]  # fmt: skip


def test_beginnings_of_vectors_are_learned_too() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(6, 8, generator=generator)
    of = texts([0, 1, 2, 0, 1, 2], [FIRST] * 3 + [SECOND] * 3, [1, 2, 3] * 2, list(range(6)))
    whole, *some = (contrast_losses(vectors[:, :size], of, temperature=0.1).each_N for size in (8, 4, 2))
    actual = contrast_losses(vectors, of, temperature=0.1, dimensions=(4, 2)).each_N
    np.testing.assert_allclose(actual, (whole + some[0] + some[1]) / 3, atol=1e-6)


def stream_of(tokenizer: Tokenizer, settings: EmbedderSettings, *, num_texts: int = 24) -> PairStream:
    """Parts of 30 random tokens."""
    generator = np.random.default_rng(0)
    ordinary = np.flatnonzero(tokenizer.ordinary)
    ids = generator.choice(ordinary, size=30 * num_texts).astype(np.int32)
    begin = np.arange(num_texts, dtype=np.int64) * 30
    can = np.tile(np.array([True, False, False]), (num_texts, 1))
    parts = PairParts(begin, begin + 30, begin, begin, begin + 1000, can, begin * 0, begin * 0, begin[:0])
    drawer = PairDrawer(ids, np.ones(len(ids), dtype=np.uint8), parts, settings)
    return PairStream(drawer, NO_PAIRS, tokenizer, max_positions=64)


SETTINGS = EmbedderSettings(batch_size=24, first_lengths=(4, 12), second_lengths=(8, 20))


def test_the_reported_loss_is_without_the_regulariser(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    stream = stream_of(tokenizer, SETTINGS)
    rows, _ = stream.rows(stream.drawer.draw(np.arange(24), 3))
    both = (pair_objective(SPARSE, temperature=5.0, sparse_weights=each) for each in (None, (1.0, 1.0)))
    plain, costly = (gradients_of_a_step(make_model(), rows, unmasked(rows), each) for each in both)
    assert plain[0].read().loss == costly[0].read().loss
    assert any(not torch.equal(plain[1][name], costly[1][name]) for name in plain[1])


@pytest.mark.parametrize(("each", "unit", "recall"), [(0.0, False, 0.0), (1.0, False, 1.0), (1.0, True, 1.0)])
def test_equal_vectors_are_not_found_first(
    make_model: MakeModel, tokenizer: Tokenizer, each: float, unit: bool, recall: float
) -> None:
    """No text is first among equals, or found at all without a common token."""
    stream, equal = stream_of(tokenizer, SETTINGS), lambda _, __, lengths: torch.full((len(lengths), 1), each)
    held = {"crops": stream.drawer.draw(np.arange(5), 3)}
    crops = measure(make_model(), stream, held, VectorKind(equal, unit=unit), 1.0, None)["kinds"]["crops"]
    assert (crops["recall_at_1"], crops["recall_at_10"]) == (0.0, recall)


def at_once(pairs: Objective) -> Objective:
    """The same objective, its losses computed from the hidden states of a single part."""
    joint: Any = pairs.losses

    def losses(model: Any, hidden_TD: torch.Tensor, targets: TextTargets, _: object) -> Losses:
        return joint.losses(joint.vectors(model, hidden_TD, targets), targets.columns_EK, targets.num_pairs)

    return replace(pairs, losses=losses)


def test_gradients_by_way_of_vectors_are_those_of_all_at_once(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    """With masked tokens beside the pairs, and wrong answers."""
    stream = stream_of(tokenizer, SETTINGS)
    drawn = stream.drawer.draw(np.arange(24), 3)
    drawn.begin[WRONG, 10:15], drawn.length[WRONG, 10:15] = drawn.begin[SECOND, :5] + 1, drawn.length[SECOND, :5]
    drawn.document[WRONG, 10:15] = drawn.document[SECOND, :5]
    rows, _ = stream.rows(drawn)
    masked = Masker.from_tokenizer(tokenizer, rate=0.3)(rows)
    pairs = pair_objective(dense(), temperature=0.1, dimensions=(8,))
    objectives = (pairs, replace(PREDICT_MASKED, weight=0.2))
    figures, expected = gradients_of_a_step(make_model(), rows, masked, at_once(pairs), objectives[1])
    assert (figures.predicted_tokens, figures.micro_batches) == (24, 1)
    for micro_rows in (None, 2, 1):
        result, gradients = gradients_of_a_step(make_model(), rows, masked, *objectives, micro_rows=micro_rows)
        assert (result.micro_batches == 1) == (micro_rows is None)
        assert result.read().loss == pytest.approx(figures.read().loss, abs=1e-6)
        masked_tokens = (each.read().objectives["masked_tokens"].loss for each in (result, figures))
        assert next(masked_tokens) == pytest.approx(next(masked_tokens), abs=1e-6)
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)


def test_a_step_that_runs_out_of_memory_still_compares_all_its_texts(
    make_model: MakeModel, tokenizer: Tokenizer
) -> None:
    """In the backward pass of its only part."""
    stream, pairs, failures = stream_of(tokenizer, SETTINGS), pair_objective(dense(), temperature=0.1), [MemoryError()]
    rows, _ = stream.rows(stream.drawer.draw(np.arange(24), 3))

    def fail(gradient: torch.Tensor) -> None:
        if failures:
            raise failures.pop()

    model = make_model()
    model.encoder.tokens.register_hook(fail)
    result, gradients = gradients_of_a_step(model, rows, unmasked(rows), pairs)
    _, expected = gradients_of_a_step(make_model(), rows, unmasked(rows), at_once(pairs))
    assert result.micro_batches == 2
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)


def test_both_passes_of_a_part_drop_the_same(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    stream = stream_of(tokenizer, SETTINGS)
    rows, _ = stream.rows(stream.drawer.draw(np.arange(24), 3))
    objective = pair_objective(dense(), temperature=0.1)
    model = make_model(dropout=0.2)
    result, gradients = gradients_of_a_step(model, rows, unmasked(rows), objective, micro_rows=2, seed=5)
    model = make_model(dropout=0.2).train()
    parts = parts_of(rows, unmasked(rows), (objective,), micro_rows=2, device=torch.device("cpu"), width=32)
    step_seed = mix_ints(5, 1, 3)
    vectors = [
        dense().vectors(
            model,
            model.encoder(part.input_ids_BS, **part.inputs, dropout_seed=mix_ints(step_seed, number)).flatten(0, 1),
            part.targets[0],
        )
        for number, part in enumerate(parts)
    ]
    assert result.micro_batches == len(parts) > 1
    loss = contrast_losses(
        torch.cat(vectors), TextTargets.joined([part.targets[0] for part in parts]), temperature=0.1
    ).total / 24  # fmt: skip
    loss.backward()
    assert result.read().loss == pytest.approx(loss.item(), abs=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, atol=1e-5, rtol=1e-4)


def test_rows_tell_what_their_texts_are(tokenizer: Tokenizer) -> None:
    """Every text is in the rows once, whole; tokens are hidden only in second texts."""
    stream = stream_of(tokenizer, SETTINGS)
    drawer = stream.drawer
    drawn = drawer.draw(np.arange(24), 3)
    rows, num_tokens = stream.rows(drawn)
    targets = TextTargets.of(rows)
    assert num_tokens == int(drawn.length.sum())
    pairs, sides, documents, _ = targets.columns_EK.T.tolist()
    assert sorted(zip(pairs, sides, strict=True)) == [(pair, side) for pair in range(24) for side in (FIRST, SECOND)]
    ids = rows.input_ids.flatten()[targets.positions_N].split(list(targets.lengths))
    for text, pair, side, document in zip(ids, pairs, sides, documents, strict=True):
        begin, length = drawn.begin[side, pair], drawn.length[side, pair]
        assert text.tolist() == [tokenizer.special.cls, *drawer.ids[begin : begin + length], tokenizer.special.sep]
        assert document == drawn.document[side, pair]
    hidden = rows.maskable.flatten()[targets.positions_N].split(list(targets.lengths))
    assert [int(text.sum()) for text in hidden] == [
        0 if side == FIRST else int(drawn.length[side, pair]) for pair, side in zip(pairs, sides, strict=True)
    ]
