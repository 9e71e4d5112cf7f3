"""`unmask lexicon`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import JsonFlag


def lexicon(
    data: Annotated[Path, typer.Argument(help="Folder that unmask prepare has made.")],
    out: Annotated[Path, typer.Option(help="File of the lexicon, such as lexicon.safetensors.")] = ...,  # type: ignore[assignment]
    size: Annotated[
        int | None, typer.Option(help="Most collocations. \\[default: one for 256 words of text, at most 800,000]")
    ] = None,
    min_count: Annotated[int, typer.Option(help="Collocations stand in the text more often than this.")] = 10,
    max_words: Annotated[int, typer.Option(help="Words of the longest, up to 5.")] = 5,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find the collocations of prepared text, for masking them as a whole (--strategy pmi).

    Example: unmask lexicon data/mine --out mine.lexicon
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.training_run import Interruption

    with Interruption("nothing was written"), ConsoleReporter() as reporter:
        found = unmask.lexicon(
            data, out=out, size=size, min_count=min_count, max_words=max_words, overwrite=overwrite, reporter=reporter
        )
    show(found, as_json=as_json)
