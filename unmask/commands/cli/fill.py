"""`unmask fill`."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.commands.cli.options import JsonFlag, ModelName, StrictFlag, text_of


def fill(
    model: ModelName,
    text: Annotated[str, typer.Argument(help="A text with one or several [MASK]; - reads it from standard input.")],
    top_k: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    candidates: Annotated[
        str | None,
        typer.Option(help="Words that may stand there, each of one token, with commas between them. \\[default: any]"),
    ] = None,
    strict: StrictFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Predict what stands at every [MASK].

    Example: unmask fill runs/mine/model "The capital of France is [MASK]."
    """
    import unmask
    from unmask.commands.cli.show import show

    words = None if candidates is None else candidates.split(",")
    filled = unmask.fill(model, text_of(text), top_k=top_k, candidates=words, strict=strict)
    show(filled, as_json=as_json)
