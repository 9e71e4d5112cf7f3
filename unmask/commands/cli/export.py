"""`unmask export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import JsonFlag, ModelName


def export(
    model: ModelName,
    out: Annotated[Path, typer.Option(help="Folder of the graphs.")] = ...,  # type: ignore[assignment]
    format: Annotated[str, typer.Option(help="onnx is the only one.")] = "onnx",  # noqa: A002
    task: Annotated[
        str | None,
        typer.Option(help="The only one that is written, such as feature-extraction or fill-mask; all unless set."),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write graphs with 8-bit weights, for CPUs.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write ONNX graphs that embed texts, fill masks or do a fine-tuned model's task, and compare them with the model.

    They lie where optimum, sentence-transformers and transformers.js look for them.

    Example: unmask export runs/mine/model --format onnx --out runs/mine/onnx
    """
    import unmask
    from unmask.commands.cli.show import note, show

    note("writing graphs and comparing them with the model, half a minute or more")
    show(unmask.export(model, out, format=format, task=task, int8=int8, overwrite=overwrite), as_json=as_json)
