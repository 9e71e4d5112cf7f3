"""Sparse vectors out of the head for masked tokens: by hand, and as sentence-transformers makes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

import unmask
from tests.command_line import Main
from tests.commands.test_contrast import texts
from tests.commands.test_embedder import FAST, base, corpus, passages
from unmask.core.errors import ModelError, SettingsError
from unmask.model.encoder import MaskedLM
from unmask.tasks.embed import sparse_texts
from unmask.train import contrast as splade
from unmask.train.contrast import contrast_losses, pair_objective, splade_vectors

__all__ = ["base", "corpus"]  # fixtures
SPARSE = FAST | {
    "embedder.micro_batch_tokens": 128,
    "embedder.hard_negatives.after": 0.5,
    "embedder.checkpoint.every_steps": 3,
    "embedder.sparse.first_weight": 1e-3,
}


def encoded(folder: Path, some: list[str]) -> NDArray[np.float32]:
    """Vectors by sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    actual = library.SparseEncoder(str(folder), device="cpu").encode(some, convert_to_sparse_tensor=False)
    return np.asarray(actual)


@pytest.fixture(scope="module")
def sparse(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> unmask.Embedder:
    """In parts of steps, with masked tokens and hard negatives."""
    return unmask.embedder(base, [corpus], out=tmp_path_factory.mktemp("sparse") / "e", steps=9, settings=SPARSE)


@pytest.mark.parametrize("most", [1, 1 << 25])
def test_vectors_by_hand(make_model: Callable[..., MaskedLM], monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Of two texts of 2 and 3 tokens, text by text and at once."""
    monkeypatch.setattr(splade, "LOGITS", most)
    model = make_model()
    hidden = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0)) * 5
    vectors = splade_vectors(model, hidden, (2, 3))
    logits = model.head(hidden, model.encoder.tokens)
    for vector, rows in zip(vectors, (logits[:2], logits[2:]), strict=True):
        expected = [math.log(1 + max(0.0, *column)) for column in rows.T.tolist()]
        np.testing.assert_allclose(vector.tolist(), expected, atol=1e-5)
        assert 0 < sum(number == 0 for number in expected) < len(expected)


@pytest.mark.parametrize(("logits", "places", "least"), [(1, 1, 0.0), (1 << 25, 1 << 22, 0.0), (1 << 25, 64, -2.5)])
def test_gradients_are_those_of_the_expression(
    make_model: Callable[..., MaskedLM], monkeypatch: pytest.MonkeyPatch, logits: int, places: int, least: float
) -> None:
    """Of hidden states, the embedding matrix, the bias and the layers before it: of texts one by one and all at once,
    and of ones that have few numbers.
    """
    monkeypatch.setattr(splade, "LOGITS", logits)
    monkeypatch.setattr(splade, "_PLACES", places)
    model = make_model()
    with torch.no_grad():
        model.head.bias.normal_(mean=least, generator=torch.Generator().manual_seed(1))
    lengths = (2, 5, 1)
    hidden = torch.randn(8, model.config.hidden_size, generator=torch.Generator().manual_seed(0)) * 3
    weights = torch.randn(3, model.config.vocab_size, generator=torch.Generator().manual_seed(2))

    def plain(x: torch.Tensor) -> torch.Tensor:
        texts = model.head(x, model.encoder.tokens).split(list(lengths))
        return torch.stack([each.max(0).values for each in texts]).relu().log1p()

    actual = []
    for make in (plain, lambda x: splade_vectors(model, x, lengths)):
        model.zero_grad()
        x = hidden.clone().requires_grad_()
        vectors = make(x)
        assert bool((vectors > 0).float().mean() < 0.2) == (least < 0)
        (vectors * weights).sum().backward()
        learned = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        actual.append({"x": x.grad, **learned})
    assert actual[0].keys() == actual[1].keys() > {"x", "head.bias", "head.dense.weight"}
    for name, gradient in actual[0].items():
        assert gradient is not None
        assert gradient.abs().sum() > 0, name
        torch.testing.assert_close(actual[1][name], gradient, atol=1e-5, rtol=1e-4)


def test_the_loss_is_that_of_products_and_the_regulariser(make_model: Callable[..., MaskedLM]) -> None:
    """At a sixth of the training, of two pairs and a wrong answer."""
    vectors = torch.tensor([[1.0, 0.0], [2.0, 0.5], [0.0, 1.0], [0.5, 3.0], [1.0, 1.0]])
    of = texts([0, 0, 1, 1, 1], [0, 1, 0, 1, 2], [0, 0, 1, 1, 2], [0, 1, 2, 3, 4])
    objective = pair_objective(splade.SPARSE, temperature=2.0, sparse_weights=(0.1, 0.01), progress=lambda: 1 / 6)
    assert objective.joint is not None
    actual = objective.joint.losses(make_model(), vectors, of.columns_EK, of.num_pairs)

    def entropy(right: float, *others: float) -> float:
        return math.log(sum(math.exp(score / 2) for score in (right, *others))) - right / 2

    # Products: first texts (1, 0) and (0, 1) with (2, 0.5), (0.5, 3) and (1, 1).
    pairs = [(entropy(2, 0.5, 1) + entropy(2, 0.5)) / 2, (entropy(3, 0.5, 1) + entropy(3, 0.5)) / 2]
    assert actual.each_N.tolist() == pytest.approx(pairs, abs=1e-6)
    first, second = 0.5**2 + 0.5**2, (3.5 / 3) ** 2 + (4.5 / 3) ** 2
    assert float(actual.total) == pytest.approx(sum(pairs) + 2 * 0.25 * (0.1 * first + 0.01 * second), abs=1e-6)
    dense = contrast_losses(vectors, of, temperature=2.0)
    assert dense.each_N.tolist() != pytest.approx(pairs, abs=1e-2)


def test_a_file_of_sparse_vectors(sparse: unmask.Embedder, tmp_path: Path, main: Main) -> None:
    """They are those of sentence-transformers; of a text in several parts as `sparse_texts` makes them."""
    folder, some = sparse.folder / "model", [*passages(3), " ".join(passages(6))]
    (tmp_path / "t.txt").write_text("\n".join(each.replace("\n", " ") for each in some))
    command = ("embed", folder, tmp_path / "t.txt", "--long-texts", "split", "--out")
    code, printed, err = main(*command, tmp_path / "v.parquet", "--json")
    assert code == 0, err
    figures = json.loads(printed)
    assert (figures["pooling"], figures["dimension"], figures["long_texts"]) == ("splade", sparse.dimension, 1)
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    dense = np.zeros((4, sparse.dimension), dtype=np.float32)
    for row, tokens, values in zip(dense, table["indices"], table["values"], strict=True):
        row[tokens] = values
    np.testing.assert_allclose(dense[:3], encoded(folder, some[:3]), atol=1e-4)
    together = sparse_texts(sparse.model.predictor, sparse.model.tokenizer, some[3:], "split").vectors
    np.testing.assert_allclose(dense[3:], together.toarray(), atol=1e-4)
    assert main(*command, tmp_path / "u.parquet", "--normalize")[0] == 0
    values = pq.read_table(tmp_path / "u.parquet").column("values").to_pylist()
    np.testing.assert_allclose([np.linalg.norm(each) for each in values], 1.0, rtol=1e-6)
    assert main(*command, tmp_path / "v.npy")[0] == 2, "sparse vectors are written as .parquet"
    with pytest.raises(ModelError, match="vectors are sparse"):
        sparse.model.embed(some[:1])


def test_an_index_of_sparse_vectors(sparse: unmask.Embedder, tmp_path: Path) -> None:
    """Its scores are products of the vectors of sentence-transformers."""
    folder, out, some = sparse.folder / "model", tmp_path / "i", passages(20)
    (tmp_path / "t.txt").write_text("\n\n".join(some))
    index = unmask.Index.build(folder, tmp_path / "t.txt", documents="block", out=out)
    queries = [some[7][:40], "the king"]
    vectors = encoded(folder, [*some, *queries])
    scores = vectors[20:] @ vectors[:20].T
    for query, row in zip(index.query(queries, top_k=20).queries, scores, strict=True):
        hits = query["hits"]
        assert len(hits) == (row > 0).sum() > 1
        np.testing.assert_allclose([hit["score"] for hit in hits], np.sort(row)[::-1][: len(hits)], rtol=1e-4)
        np.testing.assert_allclose([row[hit["document"]] for hit in hits], [hit["score"] for hit in hits], rtol=1e-4)
    with pytest.raises(SettingsError, match="approximate"):
        unmask.Index.build(folder, tmp_path / "t.txt", documents="block", out=out, overwrite=True, approximate=True)
