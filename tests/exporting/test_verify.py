"""Every check passes on a sound model, also of a task and its graph, and fails where its promise is broken."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.commands.checkpoints import released
from tests.hostile_models import change_json
from tests.model.helpers import MakeModel
from tests.model.test_layouts import make_theirs
from tests.model.test_task_parity import INFOS, model_for
from tests.tokenizer.families import trained
from unmask.exporting.graphs import compare
from unmask.model.encoder import Encoder
from unmask.model.folder import save_task_model
from unmask.tasks.classify import Classify
from unmask.tasks.task import Task
from unmask.tokenizer.tokenizer import Tokenizer

pytest.importorskip("transformers")


def failed(folder: Path, **options: Any) -> dict[str, str]:
    """Names and details of failed checks."""
    result = unmask.verify(folder, **options)
    assert result.passed == all(check.passed for check in result.checks.values())
    return {name: check.detail for name, check in result.checks.items() if not check.passed}


@pytest.mark.parametrize("kind", ["ForMaskedLM", "Model"])
def test_folders_that_transformers_wrote_pass(tokenizer: Tokenizer, tmp_path: Path, kind: str) -> None:
    """A masked language model in half precision, and a bare encoder, whose hidden states are compared."""
    theirs = make_theirs("bert", kind)
    (theirs.to(torch.bfloat16) if kind == "ForMaskedLM" else theirs).save_pretrained(tmp_path)
    tokenizer.save(tmp_path, max_length=66, with_types=True)
    change_json(tmp_path, "config.json", bos_token_id=0, eos_token_id=0)  # as transformers 2 wrote them
    result = unmask.verify(tmp_path)
    assert result.passed, result.to_dict()
    assert result.checks["transformers_equals_ours"].largest_difference > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("file", "change", "check"),
    [
        ("config.json", {"sep_token_id": 9}, "special_ids"),
        ("config.json", {"vocab_size": 199}, "special_ids"),
        ("tokenizer.json", {"post_processor": None}, "special_ids"),
        ("config.json", {"tie_word_embeddings": False}, "transformers_equals_ours"),
    ],
)
def test_a_change_is_found_by_its_check(model_copy: Path, file: str, change: dict[str, object], check: str) -> None:
    change_json(model_copy, file, **change)
    assert check in failed(model_copy)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "char"])
def test_trained_tokenizers_of_every_kind_pass(make_model: MakeModel, tmp_path: Path, kind: str) -> None:
    tokenizer = trained(kind)
    names = {f"{role}_id": id_ for role, id_ in vars(tokenizer.special).items() if role != "unk"}
    result = unmask.verify(released(make_model(vocab_size=tokenizer.vocab_size, **names), tokenizer, tmp_path))
    assert result.passed, result.to_dict()


def test_a_network_whose_documents_see_each_other(run: unmask.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Encoder.forward

    def leaky(self: Encoder, input_ids_BS: torch.Tensor, **rows: Any) -> torch.Tensor:
        rows.pop("segment_ids_BS", None)
        return forward(self, input_ids_BS, **rows)

    monkeypatch.setattr(Encoder, "forward", leaky)
    assert failed(run.folder).keys() == {
        "packed_equals_alone", "padded_equals_unpadded", "transformers_equals_ours",
    }  # fmt: skip


def test_compare_by_hand() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.25])
    assert compare(a, b, "x").largest_difference == 0.25
    assert not compare(a, b, "x").passed
    assert compare(a, b, "x", tolerance=0.25).passed
    assert compare(a, a[:1], "x").detail == "x: of shapes (2,) and (1,)"
    assert not compare(a, torch.tensor([1.0, float("nan")]), "x", tolerance=float("inf")).passed


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
    given = ("Who?", text) if info.kind == "answer" else text
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
