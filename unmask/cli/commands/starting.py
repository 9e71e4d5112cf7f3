"""Options of a training that begins with a model that is there."""

from __future__ import annotations

from typing import Annotated

import typer

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="CHECKPOINT",
        help="Begin with this model (or run, or name on the hub). [default: new weights]",
    ),
]
ExtendVocab = Annotated[
    int | None, typer.Option(metavar="N", help="With --from: the N most telling new words get their own entries.")
]
OldData = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="With --from: text of its old domain, evaluated too; may be repeated."),
]
