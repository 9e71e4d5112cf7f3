"""Graphs in onnxruntime: equal to the model, usable alone, with dynamic axes; and errors."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask
from tests.command_line import Main
from tests.commands.checkpoints import released
from tests.docs.test_pages import GRAPHS, commands
from tests.model.helpers import MakeModel
from unmask.core.errors import ModelError, RunError
from unmask.exporting import graphs as onnx_writer
from unmask.exporting.graphs import Graph
from unmask.tokenizer.tokenizer import Tokenizer

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
FILES = {
    "onnx/model.onnx", "onnx/model_quantized.onnx", "README.md", "config.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json",
}  # fmt: skip
FILL, EMBED, SMALL = "fill-mask/onnx/model.onnx", "feature-extraction/onnx/model.onnx", "onnx/model_quantized.onnx"


@pytest.fixture(scope="module")
def onnx_folder(run: unmask.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs of the short run, with 8-bit weights, too. They take long to make, so their tests are all in this file."""
    return unmask.export(run.folder, tmp_path_factory.mktemp("onnx") / "graphs", int8=True).folder


def copies(folder: Path) -> Callable[[Graph, Path], Path]:
    """In the place of `write_onnx`: copies graphs of the same model, which take long to trace."""

    def written(graph: Graph, out: Path) -> Path:
        return Path(shutil.copy(folder / graph.kind.task / "onnx" / "model.onnx", out))

    return written


def test_the_folder_holds_what_is_promised(onnx_folder: Path) -> None:
    files = {str(path.relative_to(onnx_folder)) for path in onnx_folder.rglob("*") if path.is_file()}
    assert files == {f"{task}/{file}" for task in ("fill-mask", "feature-extraction") for file in FILES}
    for task, architecture in (("fill-mask", "ModernBertForMaskedLM"), ("feature-extraction", "ModernBertModel")):
        config = json.loads((onnx_folder / task / "config.json").read_text())
        assert (config["model_type"], config["architectures"]) == ("modernbert", [architecture])
    assert not list(onnx_folder.parent.glob(".*")), "nothing is left of the making"
    for name in (FILL, EMBED):
        graph = onnx.load(onnx_folder / name)
        onnx.checker.check_model(graph, full_check=True)
        assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 18)]
        for value in [*graph.graph.input, *graph.graph.output]:
            axes = [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
            assert axes[0] == "batch"
            assert axes[1:2] == ["length"] or value.name == "sentence_embedding"


@pytest.mark.parametrize(
    ("task", "output", "num_axes"), [("feature-extraction", "sentence_embedding", 2), ("fill-mask", "logits", 3)]
)
def test_the_readme_runs(
    onnx_folder: Path, monkeypatch: pytest.MonkeyPatch, task: str, output: str, num_axes: int
) -> None:
    readme = (onnx_folder / task / "README.md").read_text()
    monkeypatch.chdir(onnx_folder / task)
    scope: dict[str, np.ndarray] = {}
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(snippet, "README.md", "exec"), scope)
    assert (len(scope[output]), scope[output].ndim) == (2, num_axes)
    assert ("sentence-transformers:" in readme) == (task == "feature-extraction")


def test_graphs_run_without_unmask_as_the_page_shows(
    run: unmask.Run, onnx_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "using.md").read_text(encoding="utf-8")
    [snippet] = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import onnxruntime" in each]
    assert not re.search("import (unmask|torch|transformers)", snippet)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "onnx").symlink_to(onnx_folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(snippet, "using.md", "exec"), names)
    vectors = run.model.embed(["The king was here.", "The old man looked at her."])
    np.testing.assert_allclose(names["vectors"], vectors, atol=1e-4)
    [candidates] = run.model.fill("The old man looked at [MASK].", top_k=20).masks
    theirs = names["probabilities"][0, [each.token_id for each in candidates]]
    np.testing.assert_allclose(theirs, [each.probability for each in candidates], atol=1e-4)
    assert theirs[0] == names["probabilities"].max()


def test_the_commands_of_the_pages(
    run: unmask.Run, onnx_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    monkeypatch.setattr(onnx_writer, "write_onnx", copies(onnx_folder))
    monkeypatch.chdir(tmp_path)
    to_run = sorted(command for command in commands() if command[0] in GRAPHS)
    assert [command[0] for command in to_run] == ["export", "export", "verify", "verify"]
    for command in to_run:
        model = Path(command[1])  # runs/NAME/model
        model.parent.mkdir(parents=True, exist_ok=True)
        if not model.exists():
            model.symlink_to(run.folder / "model")
        code, _, err = main(*command)
        assert code == 0, f"{command}\n{err}"


def test_graphs_are_loaded_in_the_place_of_weights(run: unmask.Run, onnx_folder: Path) -> None:
    texts = ["The king was here.", "The old man looked at [MASK], and at [MASK]."]
    theirs = unmask.load(onnx_folder / "feature-extraction", backend="onnx")
    np.testing.assert_allclose(theirs.embed(texts), run.model.embed(texts), atol=1e-4)
    small = unmask.load(onnx_folder / "feature-extraction", backend="onnx-int8").embed(texts)
    assert 1e-4 < np.abs(small - run.model.embed(texts)).max() < 1.0
    with pytest.raises(ModelError, match="fill-mask"):
        theirs.fill(texts[1])
    with pytest.raises(ModelError, match="feature-extraction"):
        theirs.predict(texts)
    filled, ours = (m.fill(texts[1]) for m in (unmask.load(onnx_folder / "fill-mask", backend="onnx"), run.model))
    assert [f.text for f in filled.fillings] == [f.text for f in ours.fillings]
    np.testing.assert_allclose([f.probability for f in filled.fillings], [f.probability for f in ours.fillings], 1e-3)
    with pytest.raises(ModelError, match="feature-extraction"):
        unmask.load(onnx_folder / "fill-mask", backend="onnx").embed(texts)
    with pytest.raises(ModelError, match="give .*feature-extraction, .*fill-mask"):
        unmask.load(onnx_folder, backend="onnx")
    with pytest.raises(ModelError, match="give .*graphs.feature-extraction"):
        unmask.load(onnx_folder.parent, backend="onnx")
    with pytest.raises(ModelError, match="unmask export"):
        unmask.load(run.folder, backend="onnx")


def test_a_graph_stays_one_in_pickles_and_makes_no_index(run: unmask.Run, onnx_folder: Path, tmp_path: Path) -> None:
    """An index knows its model by the weights, which a graph's folder does not have."""
    base = pytest.importorskip("sklearn.base")
    graph, texts = unmask.load(onnx_folder / "feature-extraction", backend="onnx"), ["The king was here."]
    pickled = pickle.loads(pickle.dumps(unmask.TextEncoder(graph)))
    for encoder in (pickled, base.clone(pickled)):
        np.testing.assert_array_equal(encoder.fit_transform(texts), graph.embed(texts))
    np.testing.assert_array_equal(pickled.set_params(model=run.folder).transform(texts), run.model.embed(texts))
    with pytest.raises(ModelError, match="feature-extraction"):
        unmask.Index.build(graph, texts, out=tmp_path / "index")


@pytest.mark.slow
def test_a_layout_with_token_types(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token types are an input, distinct from padding. Weights are in a file beside the graph here."""
    model = make_model(layout="bert", num_layers=2)
    released(model, tokenizer, tmp_path / "model")
    monkeypatch.setattr(onnx_writer, "_LARGEST_FILE", 0)
    task = "feature-extraction"  # one is enough here, and takes seconds
    result = unmask.export(tmp_path / "model", tmp_path / "model" / "onnx", int8=True, task=task)
    out = result.folder
    weights = out / "onnx" / "model.onnx_data"
    assert weights.stat().st_size > 4 * model.encoder.tokens.numel()
    assert result.graphs["onnx/model.onnx"].bytes > weights.stat().st_size
    ids = torch.randint(5, 190, (2, 9), generator=torch.Generator().manual_seed(0))
    types, mask = (torch.arange(9) > 4).long().expand(2, 9), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    with torch.no_grad():
        ours = model.encoder(ids, segment_ids_BS=mask - 1, token_type_ids_BS=types)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    session = ort.InferenceSession(str(out / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    hidden, mean = session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})
    real = mask.bool()
    assert np.abs(hidden[real] - ours[real].numpy()).max() < 1e-3
    assert np.abs(mean[1] - ours[1, :6].mean(0).numpy()).max() < 1e-3
    assert '"token_type_ids": np.array' in (out / "README.md").read_text()
    checks = unmask.verify(tmp_path / "model").checks
    assert checks["onnx_embed_equals_ours"].passed, "graphs within the model's folder are found"
    assert checks["onnx_embed_int8_follows_ours"].largest_difference == (
        result.graphs["onnx/model_quantized.onnx"].largest_difference
    )
    assert "onnx_fill_equals_ours" not in checks


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="current"):
        unmask.export("model", out=".")


def test_no_eight_bits_where_they_fail(
    run: unmask.Run, onnx_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of onnxruntime the float32 graph stays; an export of before leaves nothing."""

    def fail(file: Path) -> Path:
        file.with_name(onnx_writer.INT8_FILE).write_bytes(b"half of it")
        raise RuntimeError("no shape")

    monkeypatch.setattr(onnx_writer, "write_onnx", copies(onnx_folder))
    options: dict[str, Any] = {"int8": True, "task": "feature-extraction", "overwrite": True}
    unmask.export(run.folder, tmp_path / "out", **options)
    assert (tmp_path / "out" / SMALL).exists()
    monkeypatch.setattr(onnx_writer, "write_int8", fail)
    assert [*unmask.export(run.folder, tmp_path / "out", **options).graphs] == ["onnx/model.onnx"]
    assert [file.name for file in (tmp_path / "out" / "onnx").iterdir()] == ["model.onnx"]


def test_a_broken_graph_is_found(run: unmask.Run, onnx_folder: Path, tmp_path: Path) -> None:
    """A changed weight, a tokenizer of another model, a truncated file."""
    shutil.copytree(onnx_folder, tmp_path, dirs_exist_ok=True)
    graph = onnx.load(tmp_path / FILL)
    weight = max(graph.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = onnx.numpy_helper.to_array(weight).copy()
    values[5] += 0.5
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(graph, tmp_path / FILL)
    tokenizer = tmp_path / "fill-mask" / "tokenizer.json"
    text = tokenizer.read_text()
    tokenizer.write_text(text.replace('"single_word":false', '"single_word":true').replace(
        '"single_word": false', '"single_word": true'))  # fmt: skip
    (tmp_path / EMBED).write_bytes((tmp_path / EMBED).read_bytes()[:5000])
    shutil.copyfile(tmp_path / "fill-mask" / SMALL, tmp_path / "feature-extraction" / SMALL)
    checks = unmask.verify(run.folder, onnx=tmp_path).checks
    failed = {name for name, check in checks.items() if not check.passed}
    assert failed == {
        "onnx_fill_equals_ours", "onnx_embed_equals_ours", "onnx_embed_int8_follows_ours", "onnx_tokenizer_equals_ours",
    }  # fmt: skip
    assert checks["onnx_fill_equals_ours"].largest_difference > 1e-3  # type: ignore[operator]


def test_a_graph_that_differs_is_not_kept(
    run: unmask.Run, onnx_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(graph: Graph, folder: Path) -> Path:
        if graph.kind.task == "fill-mask":
            with torch.no_grad():
                graph.model.head.bias.add_(0.25)  # after the graph was written
        return copies(onnx_folder)(graph, folder)

    monkeypatch.setattr(onnx_writer, "write_onnx", write)
    with pytest.raises(ModelError, match=r"fill-mask/onnx/model\.onnx .* 0\.2"):
        unmask.export(run.folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
