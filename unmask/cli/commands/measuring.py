"""Measuring models beyond held-out text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import JsonFlag, print_json


def score(
    model: Annotated[Path, typer.Argument(help="Folder of any masked language model.")],
    pairs: Annotated[Path, typer.Argument(help="Minimal pairs: a file of JSON lines, a folder or a tar of such.")],
    form: Annotated[
        str, typer.Option(help="Pseudo-log-likelihood: plain, or word_l2r (pieces behind in the word hidden too).")
    ] = "plain",
    pairs_per_paradigm: Annotated[int | None, typer.Option(help="Take the first so many of each paradigm.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Test a model's grammar on minimal pairs (BLiMP's format): accuracy by phenomenon.

    Example: unmask score runs/mine/model blimp/data
    """
    from unmask.cli.score import run_score

    result = run_score(model, pairs, form=form, pairs_per_paradigm=pairs_per_paradigm)
    if as_json:
        print_json(result)
