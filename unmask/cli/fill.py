"""`unmask fill`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.cli.progress import console
from unmask.inference.filled import Filled
from unmask.inference.model import Model, load
from unmask.pretraining.predictions import shown

Cells = Sequence[tuple[str, str]]  # of a mask: what stands there, and how likely it is


def run_fill(model: str, text: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Fills the masks and shows the candidates.

    Args:
        model: Its folder, or its name on the hub.
        text: With masks.
        settings: Of `unmask.inference.fill.FillSettings`.

    Raises:
        UnmaskError: As `unmask.load` and `Model.fill`.
    """
    loaded = load(model)
    filled = loaded.fill(text, **settings)
    out = console()
    out.print(_table(_words(filled) if filled.words is not None else _tokens(loaded, filled)))
    if len(filled.masks) > 1 and filled.fillings:
        out.print("\ntogether:")
        for filling in filled.fillings:
            out.print(f"{filling.probability:7.2%}  {filling.text}", markup=False, soft_wrap=True)
    result: dict[str, Any] = {
        "masks": [{"candidates": [asdict(candidate) for candidate in candidates]} for candidates in filled.masks],
        "fillings": [asdict(filling) for filling in filled.fillings],
    }
    if filled.words is not None:
        result["words"] = [[asdict(word) for word in words] for words in filled.words]
    return result


def _tokens(model: Model, filled: Filled) -> list[Cells]:
    return [[(shown(model.tokenizer.text(c.token_id)), f"{c.probability:.1%}") for c in mask] for mask in filled.masks]


def _words(filled: Filled) -> list[Cells]:
    return [[(shown(word.text), f"{word.probability:.1%}") for word in words] for words in filled.words or ()]


def _table(masks: Sequence[Cells]) -> Table:
    """A line a rank; masks may have unequal numbers of candidates."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for number in range(1, len(masks) + 1):
        table.add_column(f"mask {number}" if len(masks) > 1 else "mask")
        table.add_column("", justify="right")
    for rank, line in enumerate(zip_longest(*masks, fillvalue=("", "")), 1):
        table.add_row(f"{rank}", *(Text(cell) for cells in line for cell in cells))
    return table
