"""`unmask fill`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from unmask.cli.progress import console
from unmask.inference.model import load
from unmask.pretraining.predictions import shown


def run_fill(model: Path, text: str, *, top_k: int) -> dict[str, Any]:
    """Fills the masks and shows the candidates.

    Raises:
        UnmaskError: As `unmask.load` and `Model.fill`.
    """
    loaded = load(model)
    filled = loaded.fill(text, top_k=top_k)
    out = console()
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for number in range(1, len(filled.masks) + 1):
        table.add_column(f"mask {number}" if len(filled.masks) > 1 else "mask")
        table.add_column("", justify="right")
    for rank in range(top_k):
        cells = [f"{rank + 1}"]
        for candidates in filled.masks:
            cells += [shown(loaded.tokenizer.text(candidates[rank].token_id)), f"{candidates[rank].probability:.1%}"]
        table.add_row(*cells)
    out.print(table)
    if len(filled.masks) > 1:
        out.print("\ntogether:")
        for filling in filled.fillings:
            out.print(f"{filling.probability:7.2%}  {filling.text}", markup=False, soft_wrap=True)
    return {
        "masks": [{"candidates": [asdict(candidate) for candidate in candidates]} for candidates in filled.masks],
        "fillings": [asdict(filling) for filling in filled.fillings],
    }
