"""Graphs without onnxruntime: vectors as of `Model.embed`, and sparse vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from tests.hostile_models import change_json
from tests.model.helpers import MakeModel
from tests.tasks.test_embed import ask_for, sentence_folder  # noqa: F401  (a fixture)
from unmask.exporting import graphs
from unmask.exporting import onnx as onnx_checks
from unmask.exporting.graphs import EMBED, SPLADE, Graph, GraphKind, open_checked_model
from unmask.model.folder import save_model, save_task_model, with_task_head
from unmask.model.pooling import Pooling, write_sentence_files
from unmask.tasks.classify import Classify
from unmask.tasks.loaded_model import Model
from unmask.tokenizer.tokenizer import Tokenizer

TEXTS = ["The king sees the dog at sea.", "Winter.", "A philosopher and the mountaineer."]
FIRST, MEAN, MAX = ({"pooling_mode": mode} for mode in ("cls", "mean", "max"))


@torch.no_grad()
def outputs_of(graph: Graph, model: Model) -> list[torch.Tensor]:
    """Those of a padded batch: of tokens, and of texts."""
    sequences = [torch.from_numpy(ids).long() for ids in model.tokenizer.encode_prompts(TEXTS)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=model.tokenizer.special.pad)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in sequences], batch_first=True)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    of_tokens, of_texts = graph(**{name: feeds[name] for name in graph.inputs})
    assert of_tokens.shape[:2] == ids.shape
    return [of_tokens, of_texts]


@pytest.mark.parametrize("pooling", [FIRST, MEAN, MAX])
@pytest.mark.parametrize("modules", [(), ("Normalize",)])
def test_a_folder_says_how_its_graph_pools(
    sentence_folder: Path,  # noqa: F811
    pooling: dict[str, object],
    modules: tuple[str, ...],
) -> None:
    ask_for(sentence_folder, pooling, *modules)
    model = unmask.load(sentence_folder)
    hidden, vectors = outputs_of(Graph(open_checked_model(sentence_folder), EMBED), model)
    assert hidden.shape[2] == 32
    np.testing.assert_allclose(vectors.numpy(), model.embed(TEXTS), atol=2e-5)
    assert np.allclose(np.linalg.norm(vectors.numpy(), axis=1), 1.0, atol=1e-5) == bool(modules)


def test_a_fine_tuned_model_has_a_graph_of_its_vectors(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    head = Classify(("bored", "glad")).task_head
    save_task_model(with_task_head(make_model(num_layers=2), head, seed=0).eval(), head, tmp_path)
    tokenizer.save(tmp_path, max_length=64)
    model = unmask.load(tmp_path)
    _, vectors = outputs_of(Graph(open_checked_model(tmp_path), EMBED), model)
    np.testing.assert_allclose(vectors.numpy(), model.embed(TEXTS), atol=2e-5)


def in_torch(_: Path, graph: Graph) -> Callable[[dict[str, torch.Tensor]], list[torch.Tensor]]:
    """Runs a graph in torch in place of onnxruntime."""

    @torch.no_grad()
    def run(rows: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return list(graph(**{name: rows[name] for name in graph.inputs}))

    return run


@pytest.fixture(params=["modernbert", "bert"])
def sparse(request: pytest.FixtureRequest, make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    model, folder = make_model(layout=request.param, num_layers=2), tmp_path / "sparse"
    save_model(model, folder)
    tokenizer.save(folder, max_length=64, with_types=model.config.num_types > 1)
    write_sentence_files(folder, max_length=64, width=model.config.vocab_size, pooling="splade")
    return folder


def test_the_graph_of_a_sparse_model_makes_the_vectors_of_sentence_transformers(sparse: Path) -> None:
    subject = open_checked_model(sparse)
    assert graphs.kinds_of(subject) == (SPLADE,)
    logits, vectors = outputs_of(Graph(subject, SPLADE), subject.model)
    assert logits.shape[2] == 200
    encoder = pytest.importorskip("sentence_transformers").SparseEncoder(str(sparse), device="cpu")
    theirs = encoder.encode(TEXTS, convert_to_sparse_tensor=False, batch_size=2)
    np.testing.assert_allclose(vectors, theirs, atol=1e-4)
    assert 0 < (vectors == 0).sum() < vectors.numel()


def check_is_compared(folder: Path, kind: GraphKind, patch: pytest.MonkeyPatch, name: str, wrong: object) -> None:
    """The graph is not only compared with itself: here it is wrong in torch and in its file in the same way."""
    subject = open_checked_model(folder)
    patch.setattr(onnx_checks, "open_graph", in_torch)
    assert onnx_checks.onnx_equals_ours(subject, Path("model.onnx"), kind).passed
    patch.setattr(graphs, name, wrong)
    assert not onnx_checks.onnx_equals_ours(subject, Path("model.onnx"), kind).passed


def test_a_graph_is_compared_with_what_embed_gives(
    sentence_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = Pooling(lambda hidden, mask: hidden[:, 1], "lasttoken", "")
    check_is_compared(sentence_folder, EMBED, monkeypatch, "POOLINGS", {"mean": second})


def test_a_sparse_graph_is_compared_with_the_vectors_of_training(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a graph that wrongly includes padding."""
    check_is_compared(sparse, SPLADE, monkeypatch, "splade_of", lambda logits, mask: logits.amax(1).relu().log1p())


def test_verify_compares_sparse_vectors(sparse: Path) -> None:
    pytest.importorskip("transformers")
    assert unmask.verify(sparse).checks["sparse_vectors_equal_ours"].passed
    change_json(sparse, "1_SpladePooling/config.json", pooling_strategy="sum")
    checks = unmask.verify(sparse).checks
    assert [name for name, check in checks.items() if not check.passed] == ["sparse_vectors_equal_ours"]
