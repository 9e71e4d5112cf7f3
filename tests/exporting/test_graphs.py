"""Vectors of the exported graph are those of `Model.embed`, whatever a folder says of pooling."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import unmask
from tests.tasks.test_embed import ask_for, sentence_folder  # noqa: F401  (a fixture)
from unmask.exporting import checks as onnx_checks
from unmask.exporting import graphs
from unmask.exporting.graphs import EMBED, Graph, open_checked_model
from unmask.model.pooling import Pooling
from unmask.tasks.loaded_model import Model

TEXTS = ["The king sees the dog at sea.", "Winter.", "A philosopher and the mountaineer."]
FIRST, MEAN, MAX = ({"pooling_mode": mode} for mode in ("cls", "mean", "max"))


def padded(model: Model, texts: list[str]) -> dict[str, torch.Tensor]:
    sequences = [torch.from_numpy(ids).long() for ids in model.tokenizer.encode_prompts(texts)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=model.tokenizer.special.pad)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in sequences], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


@pytest.mark.parametrize("pooling", [FIRST, MEAN, MAX])
@pytest.mark.parametrize("modules", [(), ("Normalize",)])
def test_a_folder_says_how_its_graph_pools(
    sentence_folder: Path,  # noqa: F811
    pooling: dict[str, object],
    modules: tuple[str, ...],
) -> None:
    ask_for(sentence_folder, pooling, *modules)
    model = unmask.load(sentence_folder)
    graph = Graph(open_checked_model(sentence_folder), EMBED)
    feeds = padded(model, TEXTS)
    with torch.no_grad():
        hidden, vectors = graph(**feeds)
    assert hidden.shape == (*feeds["input_ids"].shape, 32)
    np.testing.assert_allclose(vectors.numpy(), model.embed(TEXTS), atol=2e-5)
    assert np.allclose(np.linalg.norm(vectors.numpy(), axis=1), 1.0, atol=1e-5) == bool(modules)


class Session:
    """A graph that runs here as if onnxruntime had it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def get_inputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.graph.inputs]

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.graph.kind.outputs]

    def run(self, outputs: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return [found.numpy() for found in self.graph(**{n: torch.from_numpy(a) for n, a in feeds.items()})]


def test_a_graph_is_compared_with_what_embed_gives(
    sentence_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with itself alone: here both ways to run it pool in the same wrong way."""
    subject = open_checked_model(sentence_folder)
    monkeypatch.setattr(onnx_checks, "_session", lambda file: Session(Graph(subject, EMBED)))
    assert onnx_checks.onnx_equals_ours(subject, Path("embed.onnx"), EMBED).passed
    second = Pooling(lambda hidden, mask: hidden[:, 1], "second", "")
    monkeypatch.setattr(graphs, "POOLINGS", {"mean": second})
    check = onnx_checks.onnx_equals_ours(subject, Path("embed.onnx"), EMBED)
    assert not check.passed
    assert check.largest_difference is not None
    assert check.largest_difference > 0.01
