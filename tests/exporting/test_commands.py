"""`unmask export` and `unmask verify`: one JSON object, exit codes, tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main, call

pytest.importorskip("transformers")


def test_verify(main: Main, run: unmask.Run, copy: Path) -> None:
    code, out, err = main("verify", run.folder / "model", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["passed"]
    assert set(result["checks"]) >= {"packed_equals_alone", "transformers_equals_ours", "tied_weights", "special_ids"}
    assert all(set(check) >= {"passed", "largest_difference"} for check in result["checks"].values())
    made, left_out = len(result["checks"]), len(result["skipped"])
    assert f"all {made} checks passed, {left_out} not made" in err
    assert "onnx equals ours" in err
    assert "not made" in err
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"pad_token_id": 9}))
    code, out, err = main("verify", copy, "--json")
    assert code == 1
    assert not json.loads(out)["passed"]
    assert "2 of 9 checks failed" in err
    assert "config.json says pad_token_id = 9, the tokenizer 0" in " ".join(err.split())
    code, out, err = main("verify", copy / "nowhere", "--json")
    assert (code, out) == (2, "")
    assert "no such folder" in err


@pytest.mark.slow
def test_export_then_verify(run: unmask.Run, tmp_path: Path) -> None:
    """In processes of their own: nothing but the object is on stdout, and no chatter of other libraries on stderr."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    for command in ("export", "verify"):
        assert f"Example: unmask {command}" in call(command, "--help")[0]
    out, err = call("export", run.folder / "model", "--format", "onnx", "--out", tmp_path / "onnx", "--json")
    result = json.loads(out)
    assert set(result["graphs"]) == {"model.onnx", "embed.onnx"}
    assert result["opset"] == 18
    assert all(graph["largest_difference"] < 1e-3 for graph in result["graphs"].values())
    assert f"unmask verify {run.folder / 'model'} --onnx {tmp_path / 'onnx'}" in err
    assert "torchvision" not in err
    assert "Warning" not in err
    out, err = call("verify", run.folder / "model", "--onnx", tmp_path / "onnx", "--json")
    assert json.loads(out)["checks"]["onnx_fill_equals_ours"]["passed"]
    assert "Warning" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "nowhere", "--out", "x"), "unmask: nowhere: no such folder"),
        (("export", "nowhere"), "Missing option '--out'"),
        (("export", "nowhere", "--out", "x", "--format", "tf"), "unmask: unknown format 'tf'; known is 'onnx'"),
    ],
)
def test_mistakes(
    main: Main,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = main(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"
