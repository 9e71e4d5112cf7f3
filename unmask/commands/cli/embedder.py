"""`unmask embedder`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.commands.cli.options import DryRunFlag, JsonFlag


def embedder(  # noqa: PLR0913, PLR0917  (one parameter an option)
    model: Annotated[str, typer.Argument(help="Folder of a masked language model, such as RUN/model, or its name.")],
    corpus: Annotated[
        list[Path] | None,
        typer.Argument(help="Files, folders or patterns of text, - for stdin, or data prepared with its tokenizer."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the result.")] = ...,  # type: ignore[assignment]
    minutes: Annotated[float | None, typer.Option(help="Minutes of training. \\[default: 10]")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training, instead of minutes.")] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Pairs of your own: CSV, JSONL or Parquet with query, text, perhaps negative or label."),
    ] = None,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Sparse vectors (SPLADE), a number a token of the vocabulary.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of order, crops and masks. \\[default: 0]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="embedder.KEY=VALUE", help="Change one setting; may be repeated."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in --out.")] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make an embedding model for search of a masked language model and text without labels.

    Example: unmask embedder runs/mine/model corpus.txt --minutes 10 --out runs/search
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.embedder_forecast import forecast_embedder
    from unmask.train.distributed import join_group

    asked: dict[str, Any] = {
        "minutes": minutes,
        "steps": steps,
        "pairs": pairs,
        "sparse": sparse,
        "seed": seed,
        "settings": settings or (),
    }
    group = join_group()
    shown = ConsoleReporter() if group.is_first else nullcontext()
    if dry_run:
        with shown as reporter:
            forecast = forecast_embedder(model, corpus or None, **asked, reporter=reporter)
        if group.is_first:
            show(forecast, as_json=as_json)
        return
    with shown as reporter:
        found = unmask.embedder(
            model,
            corpus or None,
            out=out,
            resume=resume,
            overwrite=overwrite,
            reporter=reporter,
            **asked,
        )
    if group.is_first:
        show(found, as_json=as_json)
