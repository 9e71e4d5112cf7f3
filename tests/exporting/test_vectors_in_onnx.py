"""Embedding models as graphs: sparse vectors, cosines of 8-bit graphs, and sentence-transformers' ONNX backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from tests.exporting.test_graphs import TEXTS, Session, padded
from tests.exporting.test_verify import failed
from tests.hostile_models import change_json
from unmask.exporting import checks as onnx_checks
from unmask.exporting import graphs
from unmask.exporting.checks import at_least
from unmask.exporting.graphs import SPLADE, Graph, open_checked_model
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model
from unmask.model.pooling import write_sentence_files
from unmask.tokenizer.tokenizer import Tokenizer

library = pytest.importorskip("sentence_transformers")
SPARSE = "1_SpladePooling"


@pytest.fixture(params=["modernbert", "bert"])
def sparse(
    request: pytest.FixtureRequest, make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, tmp_path: Path
) -> Path:
    return sparse_folder(make_model(layout=request.param, num_layers=2), tokenizer, tmp_path / "sparse")


def sparse_folder(model: MaskedLM, tokenizer: Tokenizer, folder: Path, *, with_head: bool = True) -> Path:
    save_model(model, folder, with_head=with_head)
    tokenizer.save(folder, max_length=64, with_types=model.config.num_types > 1)
    write_sentence_files(folder, max_length=64, width=model.config.vocab_size, pooling="splade")
    return folder


def theirs(folder: Path, **backend: object) -> np.ndarray:
    """Vectors by sentence-transformers."""
    encoder = library.SparseEncoder(str(folder), device="cpu", **backend)
    return np.asarray(encoder.encode(TEXTS, convert_to_sparse_tensor=False, batch_size=2))


def test_the_graph_of_a_sparse_model_makes_the_vectors_of_sentence_transformers(sparse: Path) -> None:
    subject = open_checked_model(sparse)
    assert graphs.kinds_of(subject) == (SPLADE,)
    graph = Graph(subject, SPLADE)
    feeds = padded(subject.model, TEXTS)
    with torch.no_grad():
        logits, vectors = graph(**{name: feeds[name] for name in graph.inputs})
    assert logits.shape == (*feeds["input_ids"].shape, 200)
    np.testing.assert_allclose(vectors, theirs(sparse), atol=1e-4)
    assert 0 < (vectors == 0).sum() < vectors.numel()


def test_a_sparse_graph_is_compared_with_the_vectors_of_training(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with itself alone: here both ways to run it let padding count."""
    subject = open_checked_model(sparse)
    monkeypatch.setattr(onnx_checks, "_session", lambda file: Session(Graph(subject, SPLADE)))
    assert onnx_checks.onnx_equals_ours(subject, Path("model.onnx"), SPLADE).passed
    monkeypatch.setattr(graphs, "splade_of", lambda logits, mask: logits.amax(1).relu().log1p())
    check = onnx_checks.onnx_equals_ours(subject, Path("model.onnx"), SPLADE)
    assert not check.passed
    assert check.detail == "model.onnx, sparse vectors as in training"


def test_verify_compares_sparse_vectors(sparse: Path) -> None:
    check = unmask.verify(sparse).checks["sparse_vectors_equal_ours"]
    assert check.passed, check.detail
    change_json(sparse, f"{SPARSE}/config.json", pooling_strategy="sum")
    said = failed(sparse)
    assert set(said) == {"sparse_vectors_equal_ours"}
    assert "pooling_strategy = 'sum' is not offered, only 'max'; a copy of the folder without" in said.popitem()[1]


def test_cosines_of_an_eight_bit_graph_by_hand(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vector gets a number of its own size where it has none: the cosine is that of 45 degrees."""

    class Near(Session):
        def run(self, outputs: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            logits, vectors = super().run(outputs, feeds)
            for vector in vectors:
                vector[np.flatnonzero(vector == 0)[0]] = np.linalg.norm(vector)
            return [logits, vectors]

    subject = open_checked_model(sparse)
    for kind, cosine in ((Session, 1.0), (Near, 0.5**0.5)):
        monkeypatch.setattr(onnx_checks, "_session", lambda file, kind=kind: kind(Graph(subject, SPLADE)))
        check = onnx_checks.int8_follows_ours(subject, Path("model.onnx"), SPLADE)
        assert check.smallest_cosine is not None
        assert check.smallest_cosine == pytest.approx(cosine, abs=1e-6)
        assert check.detail.endswith(f", cosines of vectors {at_least(check.smallest_cosine)} and more")
    assert [at_least(cosine) for cosine in (1.0, 0.99996, 0.5**0.5)] == ["1.0000", "0.9999", "0.7071"]
