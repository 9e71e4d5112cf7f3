"""`unmask verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import JsonFlag, ModelName


def verify(
    model: ModelName,
    onnx: Annotated[
        Path | None, typer.Option(help="What export wrote of it. \\[default: `onnx` in the model's folder]")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check that every form of a model says the same, and that its folder is whole. Exit code 1 where a check fails.

    Example: unmask verify runs/mine/model --onnx runs/mine/onnx
    """
    import unmask
    from unmask.commands.cli.show import note, show

    note("loading the model in each of its forms")
    found = unmask.verify(model, onnx=onnx)
    show(found, as_json=as_json)
    if not found.passed:
        sys.exit(1)
