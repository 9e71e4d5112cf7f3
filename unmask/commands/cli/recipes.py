"""`unmask recipes`."""

from __future__ import annotations

from unmask.commands.cli.options import JsonFlag


def recipes(as_json: JsonFlag = False) -> None:
    """List the packaged recipes.

    Example: unmask recipes
    """
    import unmask
    from unmask.commands.cli.show import show

    show(unmask.recipes(), as_json=as_json)
