"""`unmask evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import JsonFlag, ModelName, StrictFlag, rates_of


def evaluate(  # noqa: PLR0913, PLR0917  (one parameter an option)
    model: ModelName,
    data: Annotated[list[Path], typer.Argument(help="Files, folders or patterns of text, or a prepared folder.")],
    rates: Annotated[str, typer.Option(help="Shares of hidden tokens, with commas between them.")] = "0.15",
    masks: Annotated[int, typer.Option(help="Masks of each passage of text.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="At most about this many tokens are used.")] = 200_000,
    length: Annotated[
        int | None, typer.Option(help="Positions shown at once. \\[default: the model's, at most 512]")
    ] = None,
    pseudo_tokens: Annotated[int, typer.Option(help="Tokens hidden one at a time; 0: none.")] = 1_000,
    column: Annotated[
        str | None,
        typer.Option(help="Column of the text in tables; doc.text is within one, a,b are two. \\[default: found]"),
    ] = None,
    strict: StrictFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure any masked language model on text: loss, accuracy, perplexity, bits per byte, pseudo-perplexity.

    Example: unmask evaluate runs/mine/model corpus.txt --rates 0.15,0.3
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleBar
    from unmask.commands.cli.show import show

    asked = rates_of(rates)
    with ConsoleBar("loading the model") as bar:
        found = unmask.evaluate(
            model,
            data,
            rates=asked,
            masks=masks,
            max_tokens=max_tokens,
            length=length,
            pseudo_tokens=pseudo_tokens,
            column=column,
            strict=strict,
            notify=bar.notify,
        )
    show(found, as_json=as_json)
