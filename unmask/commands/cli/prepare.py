"""`unmask prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from unmask.commands.cli.options import DryRunFlag, JsonFlag, Settings, TokenizerKind, TokenizerName, VocabSize

AUTO = "auto"


def prepare(  # noqa: PLR0913, PLR0917  (one parameter an option)
    paths: Annotated[list[Path], typer.Argument(help="Files, folders or patterns of text, or - for stdin.")],
    out: Annotated[Path, typer.Option(help="Folder of the shards, or an address (s3://...).")] = ...,  # type: ignore[assignment]
    tokenizer: TokenizerName = None,
    tokenizer_kind: TokenizerKind = None,
    vocab_size: VocabSize = None,
    annotate: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="entities, pos, dependencies, chunks, with commas: the data's own, or spaCy's."
        ),
    ] = None,
    settings: Settings = None,
    workers: Annotated[int | None, typer.Option(help="Processes that read. \\[default: one a core]")] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="[ADDRESS]", help="A Ray cluster does it: at an address, or the one around this machine."
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="I/N", help="One of several parts, each run where it suits; see --join.")
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="Put together what all parts have found so far.")] = False,
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
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.dry_run import forecast_preparation
    from unmask.commands.training_run import GOES_ON, Interruption

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
    sharing: dict[str, Any] = {"workers": workers, "ray": ray, "part": part, "join": join}
    with Interruption(GOES_ON), ConsoleReporter() as reporter:
        found = unmask.prepare(
            paths, out=out, **asked, **sharing, resume=resume, overwrite=overwrite, reporter=reporter
        )
    show(found, as_json=as_json)


class PrepareCommand(TyperCommand):
    """The command, whose `--ray` may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives `--ray` the address of the cluster around this machine where none follows it."""
        following = [*args[1:], "--"]
        named = [
            f"{arg}={AUTO}" if arg == "--ray" and next_.startswith("-") else arg
            for arg, next_ in zip(args, following, strict=False)
        ]
        return super().parse_args(ctx, named)
