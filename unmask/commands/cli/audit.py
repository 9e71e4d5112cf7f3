"""`unmask audit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unmask.commands.cli.options import JsonFlag, Settings

if TYPE_CHECKING:
    from unmask.masking.settings import Strategy


def audit(
    data: Annotated[list[str], typer.Argument(help="A prepared folder, or files, folders or patterns of text.")],
    recipe: Annotated[str | None, typer.Option(help="Whose masking is audited. \\[default: every strategy]")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only this strategy. \\[default: every strategy]")] = None,
    settings: Settings = None,
    max_tokens: Annotated[int, typer.Option(help="At most about this many tokens are masked.")] = 500_000,
    out: Annotated[Path | None, typer.Option(help="An HTML file with plots.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Mask a text as a training would, and check rates, shares and special tokens. Exit code 1 where a promise breaks.

    A setting of masking.strategy, masking.units or masking.weights is a choice of one, too.

    Example: unmask audit data/mine --recipe tiny --out audit.html
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show

    with ConsoleReporter() as reporter:
        found = unmask.audit(
            data,
            recipe=recipe,
            strategy=cast("Strategy | None", strategy),
            settings=settings or (),
            max_tokens=max_tokens,
            out=out,
            reporter=reporter,
        )
    show(found, as_json=as_json)
    if not found.passed:
        sys.exit(1)
