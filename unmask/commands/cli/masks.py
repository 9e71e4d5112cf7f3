"""`unmask masks`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unmask.commands.cli.options import JsonFlag, text_of

if TYPE_CHECKING:
    from unmask.masking.settings import Strategy


def masks(
    text: Annotated[str, typer.Argument(help="A text to mask; - reads it from standard input.")],
    strategy: Annotated[str | None, typer.Option(help="Only this strategy. \\[default: all]")] = None,
    rate: Annotated[float, typer.Option(help="Expected share of masked tokens.")] = 0.15,
    tokenizer: Annotated[str | None, typer.Option(help="Folder with a tokenizer.json, or a name on the hub.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other masks.")] = 0,
    lexicon_file: Annotated[
        Path | None,
        typer.Option("--lexicon", help="For pmi, what unmask lexicon has made. \\[default: one of Tiny Shakespeare]"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what each strategy would mask, in colour.

    Example: unmask masks "The quick brown fox jumps over the lazy dog." --rate 0.3
    """
    import unmask
    from unmask.commands.cli.show import note, show

    if tokenizer is None:
        note("no --tokenizer: one of 4,096 entries is trained on Tiny Shakespeare and this text")
    text = text_of(text)
    found = unmask.masks(
        text,
        strategy=cast("Strategy | None", strategy),
        rate=rate,
        tokenizer=tokenizer,
        seed=seed,
        lexicon=lexicon_file,
    )
    show(found, as_json=as_json)
