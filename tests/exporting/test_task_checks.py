"""The head of a task is checked too: it passes where it is sound, also in a graph, and fails where it is destroyed."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import unmask
from tests.model.helpers import MakeModel
from tests.model.test_task_parity import INFOS, model_for
from unmask.core.errors import ModelError
from unmask.exporting import graphs
from unmask.model.folder import save_task_model
from unmask.tasks.classify import Classify
from unmask.tasks.task import Task
from unmask.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
ROW = "task_head_equals_ours"


def tuned(make_model: MakeModel, tokenizer: Tokenizer, folder: Path, info: Task, layout: str = "modernbert") -> Path:
    # A global and a local layer: every further one only adds seconds to each graph.
    model = model_for(partial(make_model, num_layers=2), layout, info)
    save_task_model(model, info.task_head, folder)
    tokenizer.save(folder, max_length=64, with_types=layout == "bert")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "info", "outputs"),
    [
        ("modernbert", Classify(("no", "yes"), pooling="mean"), ("logits",)),
        ("bert", INFOS[1], ("logits",)),
        ("roberta", INFOS[2], ("logits",)),
        ("modernbert", INFOS[3], ("logits",)),
        ("bert", INFOS[4], ("start_logits", "end_logits")),
    ],
)
def test_a_task_is_exported(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, layout: str, info: Task, outputs: tuple[str, ...]
) -> None:
    """The graph has the task's name, output names and labels that transformers' pipelines expect; and every check of a
    sound head passes. The head's weights of two classes are not square, and onnxruntime transposes them."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tuned(make_model, tokenizer, tmp_path / "model", info, layout)
    result = unmask.export(folder, tmp_path / "out", int8=True)
    assert [graph.outputs for graph in result.graphs.values()] == [outputs, outputs]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"][0].endswith(info.task_head.architecture)
    assert config.get("id2label", {}) == {str(number): name for number, name in enumerate(info.task_head.names)}
    text = "The old man looked at her."
    given = {"pairs": (text, text), "answer": ("Who?", text)}.get(info.kind, text)
    ours, theirs = unmask.load(folder), unmask.load(tmp_path / "out", backend="onnx")
    values = [re.split(r"(\d\.\d+(?:e-\d+)?)", str(model.predict([given]))) for model in (ours, theirs)]
    assert values[0][::2] == values[1][::2]
    assert [*map(float, values[1][1::2])] == pytest.approx([*map(float, values[0][1::2])], abs=1e-4)
    result = unmask.verify(folder, onnx=tmp_path / "out")
    assert result.passed, result.to_dict()
    of_graphs = {"onnx_task_equals_ours", "onnx_task_int8_follows_ours", "onnx_tokenizer_equals_ours"}
    assert {ROW, *of_graphs} <= result.checks.keys()
    assert result.checks[ROW].largest_difference < 1e-4  # type: ignore[operator]
    assert result.checks[ROW].detail.endswith(("Classification", "QuestionAnswering"))


def test_no_eight_bits_where_they_fail(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of onnxruntime the float32 graph stays. The graph gives the vectors of a fine-tuned
    model, without its task."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tuned(make_model, tokenizer, tmp_path / "model", INFOS[0])

    def fail(file: Path) -> Path:
        file.with_name(graphs.INT8_FILE).write_bytes(b"half of it")
        raise RuntimeError("no shape")

    monkeypatch.setattr(graphs, "write_int8", fail)
    options: dict[str, Any] = {"int8": True, "task": "feature-extraction"}
    assert [*unmask.export(folder, tmp_path / "out", **options).graphs] == ["onnx/model.onnx"]
    made = tmp_path / "out" / "onnx"
    assert [file.name for file in made.iterdir()] == ["model.onnx"]
    ours, theirs = unmask.load(folder), unmask.load(tmp_path / "out", backend="onnx")
    np.testing.assert_allclose(theirs.embed(["The old man."]), ours.embed(["The old man."]), atol=1e-4)
    with pytest.raises(ModelError, match="out"):
        theirs.predict(["The old man."])


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.kind)
def test_a_head_that_is_gone(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, info: Task) -> None:
    """Hidden states are still right, so the other checks pass."""
    folder = tuned(make_model, tokenizer, tmp_path, info)
    weights = load_file(folder / "model.safetensors")
    left = {name: weight for name, weight in weights.items() if "classifier" not in name and "qa_outputs" not in name}
    assert len(left) < len(weights)
    save_file(left, folder / "model.safetensors", metadata={"format": "pt"})
    result = unmask.verify(folder)
    assert [name for name, check in result.checks.items() if not check.passed] == [ROW]
    assert "the weights lack" in result.checks[ROW].detail
