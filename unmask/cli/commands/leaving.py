"""Models that leave: export, and the proof that nothing was lost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import JsonFlag, ModelName, print_json


def export(
    model: ModelName,
    out: Annotated[Path, typer.Option(help="Folder of the graphs.")] = ...,  # type: ignore[assignment]
    format: Annotated[str, typer.Option(help="onnx is the only one.")] = "onnx",  # noqa: A002
    int8: Annotated[bool, typer.Option("--int8", help="Also write graphs with 8-bit weights, for CPUs.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write ONNX graphs that fill masks and embed texts, for onnxruntime and TensorRT, and compare them with the model.

    Example: unmask export runs/mine/model --format onnx --out runs/mine/onnx
    """
    from unmask.cli.export import run_export

    result = run_export(model, out, format=format, int8=int8, overwrite=overwrite)
    if as_json:
        print_json(result)


def verify(
    model: ModelName,
    onnx: Annotated[
        Path | None, typer.Option(help="What export wrote of it. [default: `onnx` in the model's folder]")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check that every form of a model says the same, and that its folder is whole. Exit code 1 where a check fails.

    Example: unmask verify runs/mine/model --onnx runs/mine/onnx
    """
    from unmask.cli.verify import run_verify

    result = run_verify(model, onnx)
    if as_json:
        print_json(result)
    if not result["passed"]:
        sys.exit(1)
