"""`unmask export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from unmask.cli.progress import console
from unmask.exporting.export import export


def run_export(model: str, out: Path, *, format: str, int8: bool, overwrite: bool) -> dict[str, Any]:  # noqa: A002
    """Exports and shows the graphs.

    Raises:
        UnmaskError: As `unmask.export`.
    """
    console().print("writing graphs and comparing them with the model, half a minute or more", style="dim")
    result = export(model, out, format=format, int8=int8, overwrite=overwrite)
    table = Table(box=None, pad_edge=False)
    table.add_column("graph")
    table.add_column("MB", justify="right")
    table.add_column("largest difference", justify="right")
    table.add_column("outputs")
    for name, graph in result.graphs.items():
        table.add_row(name, f"{graph.bytes / 1e6:.1f}", f"{graph.largest_difference:.1e}", ", ".join(graph.outputs))
    console().print(table)
    told = f"in {out}, with a README for onnxruntime and TensorRT; check them again with"
    console().print(told, markup=False, soft_wrap=True)
    console().print(f"unmask verify {model} --onnx {out}", markup=False, soft_wrap=True)
    return result.plain()
