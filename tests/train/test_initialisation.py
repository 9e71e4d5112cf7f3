"""Embeddings from the corpus: what is counted, factorised and replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import small_config
from unmask.data.store import TokenChunk
from unmask.model.config import Layout
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.fused import heads_of
from unmask.model.layers import Attention
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train import initialisation
from unmask.train.initialisation import (
    STD,
    attend_nearby,
    begin_from_corpus,
    corpus_embeddings,
    count_neighbours,
    words_from_corpus,
)

# Tokens 0 and 1 stand between 4 and 5, 2 and 3 between 6 and 7; 8 stands alone, and 9 nowhere.
TEXT = [[4, 0, 5], [4, 0, 5], [4, 1, 5], [6, 2, 7], [6, 3, 7], [6, 3, 7], [8]]
VOCAB = 10


def chunk_of(pieces: list[list[int]]) -> TokenChunk:
    ids = np.concatenate([np.array(piece, dtype=np.uint16) for piece in pieces])
    return TokenChunk(ids, np.ones(len(ids), dtype=np.uint8), np.array([len(piece) for piece in pieces]))


def embeddings(pieces: list[list[int]], size: int = 8, seed: int = 0) -> tuple[list[int], torch.Tensor]:
    chunk = chunk_of(pieces)
    frequencies = np.bincount(chunk.input_ids, minlength=VOCAB)
    token_ids, rows = corpus_embeddings([chunk], frequencies, size=size, seed=seed)
    return token_ids.tolist(), rows


def test_neighbours_count_by_their_distance_within_a_piece() -> None:
    counts = np.zeros((3, 2), dtype=np.float32)
    chunk = chunk_of([[0, 1, 2, 0], [1]])
    column = np.array([0, -1, 1], dtype=np.int32)  # 1 is no context
    count_neighbours(chunk.input_ids, chunk.lengths, column, counts)
    third = 1 / 3
    # 0 meets itself three places away, from either end, and 2 at distances of two and one; 1 meets 0 at one and two.
    assert counts == pytest.approx(np.array([[2 * third, 1.5], [1.5, 1.0], [1.5, 0.0]]))
    far = chunk_of([[0, 1, 1, 1, 1, 1, 2]])
    counts[:] = 0
    count_neighbours(far.input_ids, far.lengths, column, counts)
    assert counts[0, 1] == 0.0, "six places are beyond the window"


def test_tokens_of_equal_neighbours_begin_alike() -> None:
    token_ids, rows = embeddings(TEXT)
    assert token_ids == [0, 1, 2, 3, 4, 5, 6, 7], "without neighbours there is nothing to begin with"
    assert float(rows.square().mean()) == pytest.approx(STD**2)
    torch.testing.assert_close(rows[0], rows[1])  # however often each of them stands there
    torch.testing.assert_close(rows[2], rows[3])
    assert float(torch.cosine_similarity(rows[0], rows[2], dim=0)) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("text", [[[0], [1], [2]], [[3, 3, 3, 3]]])
def test_text_without_neighbours_says_nothing(text: list[list[int]]) -> None:
    token_ids, rows = embeddings(text)
    assert token_ids == []
    assert rows.shape == (0, 8)


def test_rows_are_the_factors_of_positive_pmi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialisation, "_LONGEST", 100.0)  # none is cut
    text = [[0, 1, 2], [1, 2, 3], [0, 3], [2, 2, 0]]
    token_ids, rows = embeddings(text)
    chunk, counts = chunk_of(text), np.zeros((4, 4), dtype=np.float32)
    count_neighbours(chunk.input_ids, chunk.lengths, np.arange(4, dtype=np.int32), counts)
    chance = counts.sum(0) ** 0.75
    ppmi = np.log(np.maximum(counts / counts.sum(1, keepdims=True) / (chance / chance.sum()), 1.0))
    # With P = U S V', rows are U S^1/2 R c, whose Gram matrix is c^2 (P P')^1/2.
    gram = (rows @ rows.T).numpy().astype(float)
    expected = ppmi @ ppmi.T
    assert token_ids == [0, 1, 2, 3]
    assert gram @ gram / np.trace(gram @ gram) == pytest.approx(expected / np.trace(expected), abs=1e-5)


def test_a_seed_rotates_and_long_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = embeddings(TEXT)
    _, again = embeddings(TEXT)
    _, other = embeddings(TEXT, seed=1)
    torch.testing.assert_close(rows, again, rtol=0, atol=0)
    assert not torch.allclose(rows, other)
    torch.testing.assert_close(rows @ rows.T, other @ other.T, rtol=1e-3, atol=1e-4)
    # Token 9 is only beside a rare token, which makes their rows the longest.
    text = [*TEXT * 50, [9, 8]]
    for longest, expected in ((100.0, 1.9309), (1.5, 1.5)):
        monkeypatch.setattr(initialisation, "_LONGEST", longest)
        lengths = embeddings(text)[1].norm(dim=1)
        assert float(lengths.max() / lengths.median()) == pytest.approx(expected, rel=1e-3)


def test_in_directions_that_the_corpus_leaves_empty_what_was_drawn_stays() -> None:
    chunk = chunk_of(TEXT)
    store: Any = SimpleNamespace(chunks=lambda: [chunk])
    drawn = 0.02 * torch.randn(VOCAB, 8, generator=torch.Generator().manual_seed(0))
    tokens = drawn.clone()
    config = SimpleNamespace(hidden_size=8, num_heads=2)
    model: Any = SimpleNamespace(encoder=SimpleNamespace(tokens=tokens), config=config)
    frequencies = np.bincount(chunk.input_ids, minlength=VOCAB)
    begin_from_corpus(model, store, frequencies, seed=0)
    _, rows = corpus_embeddings([chunk], frequencies, size=8, seed=0)
    of_rows = torch.linalg.svd(rows).Vh[: int(torch.linalg.matrix_rank(rows, rtol=1e-3))]
    assert len(of_rows) == 6, "of eight tokens 0 and 1 have the same neighbours, and so have 2 and 3"
    torch.testing.assert_close(tokens[:8] @ of_rows.T, rows @ of_rows.T, rtol=0, atol=1e-5)
    rest = torch.eye(8) - of_rows.T @ of_rows
    torch.testing.assert_close(tokens[:8] @ rest, drawn[:8] @ rest, rtol=0, atol=1e-5)
    assert torch.equal(tokens[8:], drawn[8:]), "without neighbours"


def test_a_new_word_begins_as_what_stands_near_the_same() -> None:
    # 8 is new and stands where 0 and 1 do; 9 is new as well, and stands nowhere.
    chunk = chunk_of([*TEXT[:-1], [4, 8, 5]] * 60)
    store: Any = SimpleNamespace(chunks=lambda: [chunk])
    tokens, bias = torch.randn(VOCAB, 8, generator=torch.Generator().manual_seed(0)), torch.arange(float(VOCAB))
    old, old_bias = tokens.clone(), bias.clone()
    model: Any = SimpleNamespace(
        encoder=SimpleNamespace(tokens=tokens), head=SimpleNamespace(bias=bias), config=SimpleNamespace(hidden_size=8)
    )
    frequencies = np.bincount(chunk.input_ids, minlength=VOCAB)
    words_from_corpus(model, store, frequencies, range(8, 10), seed=0)
    torch.testing.assert_close(tokens[8], (old[0] + old[1]) / 2, rtol=0.0, atol=0.01)
    assert float(bias[8]) == pytest.approx(0.5, abs=0.01)
    others = [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert torch.equal(tokens[others], old[others])
    assert torch.equal(bias[others], old_bias[others])

    tokens.copy_(old)
    words_from_corpus(model, store, frequencies // 60, range(8, 10), seed=0)
    assert torch.equal(tokens, old), "what was seen a few times says little"


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("layout", ["modernbert", "bert", "roberta-prelayernorm"])
def test_heads_begin_by_attending_to_what_stands_near(tokenizer: Tokenizer, layout: Layout, size: int) -> None:
    model = MaskedLM(small_config(tokenizer, layout=layout, hidden_size=size, initializer_range=0.02))
    initialise(model, seed=0)
    lengths = model.encoder.tokens.norm(dim=1).detach()
    first = model.config.first_position
    rows = None if model.encoder.positions is None else model.encoder.positions[: first + 1].detach().clone()
    attend_nearby(model, seed=0)
    if rows is None:
        torch.testing.assert_close(model.encoder.tokens.norm(dim=1), lengths)
    else:
        assert torch.equal(model.encoder.positions[: first + 1], rows), "those of padding and [CLS] stay"
        learned = model.encoder.positions[first + 1 :]
        assert (model.encoder.tokens @ learned.T).abs().max() < 1e-5, "tokens leave these directions"
    distances: list[torch.Tensor] = []

    def look(module: Attention, inputs: Any) -> None:
        x_BSD, plan = inputs
        query, key, _ = heads_of(module.project(x_BSD), plan)
        p_BHSS = torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, -1)
        distances.append(torch.stack([p_BHSS[..., 20, 20 + n] for n in (-9, -6, -3, -1, 0, 1, 3, 6, 9)], -1).mean(0))

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(look)
    ids = torch.randint(5, model.config.vocab_size, (64, 41), generator=torch.Generator().manual_seed(0))
    model.eval().encoder(ids)
    assert len(distances) == model.config.num_layers
    for p_HN in distances:
        assert (p_HN[:, 4] > p_HN[:, 3]).all(), "at itself most of all"
        assert (p_HN[:, [1, 2, 6, 7]] < 0.5 * p_HN[:, [3, 3, 5, 5]]).all()
        assert (p_HN[:, [0, 8]] < 0.2 * p_HN[:, [3, 5]]).all()
