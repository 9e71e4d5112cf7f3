"""`unmask export` and `unmask verify`: one JSON object, exit codes, tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main, call

pytest.importorskip("transformers")


def test_verify(main: Main, run: unmask.Run, copy: Path) -> None:
    code, out, err = main("verify", run.folder / "model")
    assert code == 0
    assert "all 10 checks passed, 1 not made" in out
    assert "onnx equals ours" in out
    assert "passed" not in err
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"pad_token_id": 9}))
    code, out, err = main("verify", copy, "--json")
    assert code == 1
    result = json.loads(out)
    assert set(result["checks"]) >= {"packed_equals_alone", "transformers_equals_ours", "tied_weights", "special_ids"}
    assert all(set(check) >= {"passed", "largest_difference"} for check in result["checks"].values())
    assert not result["passed"]
    assert sum(not check["passed"] for check in result["checks"].values()) == 2
    assert "config.json says pad_token_id = 9, the tokenizer 0" in result["checks"]["special_ids"]["detail"]
    code, out, err = main("verify", copy / "nowhere", "--json")
    assert (code, out) == (2, "")
    assert "no such folder" in err


@pytest.mark.slow
def test_export_then_verify(run: unmask.Run, tmp_path: Path) -> None:
    """In processes of their own: nothing but the object is on stdout, and no chatter of other libraries on stderr."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out, err = call("export", run.folder / "model", "--format", "onnx", "--out", tmp_path / "onnx", "--json")
    result = json.loads(out)
    assert set(result["graphs"]) == {"fill-mask/onnx/model.onnx", "feature-extraction/onnx/model.onnx"}
    assert result["opset"] == 18
    assert all(graph["largest_difference"] < 1e-3 for graph in result["graphs"].values())
    assert "torchvision" not in err
    assert "Warning" not in err
    out, err = call("verify", run.folder / "model", "--onnx", tmp_path / "onnx", "--json")
    assert json.loads(out)["checks"]["onnx_fill_equals_ours"]["passed"]
    assert "Warning" not in err
