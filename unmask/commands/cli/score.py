"""`unmask score`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import JsonFlag, StrictFlag


def score(
    model: Annotated[str, typer.Argument(help="Folder of any masked language model, or its name on the hub.")],
    pairs: Annotated[Path, typer.Argument(help="Minimal pairs: a file of JSON lines, a folder or a tar of such.")],
    form: Annotated[
        str, typer.Option(help="Pseudo-log-likelihood: plain, or word_l2r (later pieces of the word hidden too).")
    ] = "plain",
    pairs_per_paradigm: Annotated[int | None, typer.Option(help="Take the first so many of each paradigm.")] = None,
    strict: StrictFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Test a model's grammar on minimal pairs (BLiMP's format): accuracy by phenomenon.

    Example: unmask score runs/mine/model blimp/data
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleBar
    from unmask.commands.cli.show import show

    with ConsoleBar("loading the model") as bar:
        found = unmask.score(
            model, pairs, form=form, pairs_per_paradigm=pairs_per_paradigm, strict=strict, notify=bar.notify
        )
    show(found, as_json=as_json)
