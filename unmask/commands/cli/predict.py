"""`unmask predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.finetune import Second, Text
from unmask.commands.cli.options import JsonFlag


def predict(
    model: Annotated[str, typer.Argument(help="Folder of a fine-tuned model, or its name on the hub.")],
    file: Annotated[Path, typer.Argument(help="As for training, without labels; or lines of text.")],
    out: Annotated[
        Path | None, typer.Option(help="JSONL or CSV file (lists in it are JSON). \\[default: JSON lines on stdout]")
    ] = None,
    text: Text = None,
    second: Second = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file --out.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write what a fine-tuned model says of each line of a file, with probabilities.

    Example: unmask predict runs/mood texts.csv --out predictions.csv
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleBar
    from unmask.commands.cli.show import show

    with ConsoleBar("loading the model") as bar:
        found = unmask.predict(
            model, file, out=out, text=text, second=second, overwrite=overwrite, note=bar.note, notify=bar.notify
        )
    show(found, as_json=as_json)
