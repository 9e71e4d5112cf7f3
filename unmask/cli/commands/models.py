"""Using a model: filling and measuring."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from unmask.cli.options import JsonFlag, ModelName, print_json


class Joint(Enum):
    """Names of `unmask.inference.fill.Joint`, which would load torch."""

    beam = "beam"
    confidence = "confidence"
    none = "none"


def fill(
    model: ModelName,
    text: Annotated[str, typer.Argument(help="A text with one or several [MASK].")],
    top_k: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    joint: Annotated[
        Joint, typer.Option(help="Several masks together: from left to right, the surest first, or not at all.")
    ] = Joint.beam,
    candidates: Annotated[
        str | None, typer.Option(help="The words that may stand there, with commas between them. [default: any]")
    ] = None,
    max_pieces: Annotated[int, typer.Option(help="Also words of several tokens, up to so many.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Predict what stands at every [MASK].

    Example: unmask fill runs/mine/model "The capital of France is [MASK]."
    """
    from unmask.cli.fill import run_fill

    given = None if candidates is None else candidates.split(",")
    settings = {"top_k": top_k, "joint": joint.value, "candidates": given, "max_pieces": max_pieces}
    result = run_fill(model, text, settings)
    if as_json:
        print_json(result)


def evaluate(  # noqa: PLR0913, PLR0917  (one parameter an option)
    model: ModelName,
    data: Annotated[list[str], typer.Argument(help="Files, folders or patterns of text, or a prepared folder.")],
    rates: Annotated[str, typer.Option(help="Shares of hidden tokens, with commas between them.")] = "0.15",
    masks: Annotated[int, typer.Option(help="Masks of each passage of text.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="At most about this many tokens are used.")] = 200_000,
    length: Annotated[
        int | None, typer.Option(help="Positions shown at once. [default: the model's, at most 512]")
    ] = None,
    pseudo_tokens: Annotated[int, typer.Option(help="Tokens hidden one at a time; 0: none.")] = 1_000,
    column: Annotated[str | None, typer.Option(help="Column of the text in tables. [default: found]")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure any masked language model on text: loss, accuracy, perplexity, bits per byte, pseudo-perplexity.

    Example: unmask evaluate runs/mine/model other.txt --rates 0.15,0.3
    """
    from unmask.cli.evaluate import run_evaluate

    result = run_evaluate(
        model,
        data,
        rates,
        masks=masks,
        max_tokens=max_tokens,
        length=length,
        pseudo_tokens=pseudo_tokens,
        column=column,
    )
    if as_json:
        print_json(result)
