"""`unmask fill`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from unmask.commands.cli.options import JsonFlag, ModelName, StrictFlag, text_of


class Joint(Enum):
    """Names of `unmask.tasks.fill.Joint`, which would load torch."""

    beam = "beam"
    confidence = "confidence"
    none = "none"


def fill(
    model: ModelName,
    text: Annotated[str, typer.Argument(help="A text with one or several [MASK]; - reads it from standard input.")],
    top_k: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    joint: Annotated[
        Joint, typer.Option(help="Several masks together: from left to right, the surest first, or not at all.")
    ] = Joint.beam,
    candidates: Annotated[
        str | None, typer.Option(help="The words that may stand there, with commas between them. \\[default: any]")
    ] = None,
    max_pieces: Annotated[int, typer.Option(help="Also words of several tokens, up to so many.")] = 1,
    strict: StrictFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Predict what stands at every [MASK].

    Example: unmask fill runs/mine/model "The capital of France is [MASK]."
    """
    import unmask
    from unmask.commands.cli.show import show

    given = None if candidates is None else candidates.split(",")
    found = unmask.fill(
        model,
        text_of(text),
        top_k=top_k,
        joint=joint.value,
        candidates=given,
        max_pieces=max_pieces,
        strict=strict,
    )
    show(found, as_json=as_json)
