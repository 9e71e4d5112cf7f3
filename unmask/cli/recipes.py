"""`unmask recipes`."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from unmask.cli.progress import console
from unmask.recipe.recipe import describe_recipes


def show_recipes() -> dict[str, Any]:
    """Shows a line a recipe."""
    recipes = describe_recipes()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, description in recipes.items():
        table.add_row(name, description)
    console().print(table)
    return {"recipes": recipes}
