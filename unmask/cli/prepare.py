"""`unmask prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.options import DryRunFlag, JsonFlag, Settings, TokenizerKind, TokenizerName


def prepare(  # noqa: PLR0913, PLR0917  (one parameter an option)
    paths: Annotated[list[Path], typer.Argument(help="Files, folders or patterns of text, or - for stdin.")],
    out: Annotated[Path, typer.Option(help="Folder of the shards, or an address (s3://...).")] = ...,  # type: ignore[assignment]
    tokenizer: TokenizerName = None,
    tokenizer_kind: TokenizerKind = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the trained tokenizer. \\[default: fits the text]")] = None,
    annotate: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="entities, pos, dependencies, chunks, with commas: the data's own, or spaCy's."
        ),
    ] = None,
    settings: Settings = None,
    workers: Annotated[int | None, typer.Option(help="Processes that tokenize. \\[default: one a core]")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep shards that are there, whole or in part, if made as asked now.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace shards that are there.")] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Tokenize text into shards, once, for any number of runs. After a stop, the same command goes on.

    Example: unmask prepare corpus.txt --out data/mine
    """
    import unmask
    from unmask.cli.progress_bars import ConsoleReporter
    from unmask.cli.show import show
    from unmask.pretraining.dry_run import forecast_preparation
    from unmask.pretraining.training_run import GOES_ON, Interruption

    columns = None if annotate is None else [name.strip() for name in annotate.split(",") if name.strip()]
    asked: dict[str, Any] = {
        "tokenizer": tokenizer,
        "tokenizer_kind": tokenizer_kind,
        "vocab_size": vocab_size,
        "annotate": columns,
        "settings": settings or (),
    }
    if dry_run:
        show(forecast_preparation(paths, **asked), as_json=as_json)
        return
    with Interruption(GOES_ON), ConsoleReporter() as reporter:
        found = unmask.prepare(
            paths, out=out, **asked, workers=workers, resume=resume, overwrite=overwrite, reporter=reporter
        )
    show(found, as_json=as_json)
