"""From text to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.commands.starting import ExtendVocab, From, OldData
from unmask.cli.options import DryRunFlag, JsonFlag, Settings, TokenizerKind, TokenizerName, print_json


def pretrain(  # noqa: PLR0913, PLR0917  (one parameter an option)
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders or patterns of text, - for stdin, or a prepared folder. [default: Tiny Shakespeare]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = ...,  # type: ignore[assignment]
    minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training, instead of minutes.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of text to train on, instead of minutes.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Name of a recipe (see unmask recipes), or a .toml file. [default: tiny; continue]"),
    ] = None,
    from_: From = None,
    extend_vocab: ExtendVocab = None,
    old_data: OldData = None,
    strategy: Annotated[
        str | None, typer.Option(help="Masking, such as whole_word or span (see unmask masks).")
    ] = None,
    tokenizer: TokenizerName = None,
    tokenizer_kind: TokenizerKind = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the trained tokenizer. [default: fits the text]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and masks.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove the run in --out and start anew.")] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a model on raw text or prepared shards.

    Example: unmask pretrain corpus.txt --minutes 10 --out runs/mine
    """
    from unmask.cli.progress import ConsoleReporter, show_summary
    from unmask.pretraining.pretrain import pretrain as run_pretraining
    from unmask.pretraining.request import Request

    request = Request(
        recipe=recipe,
        minutes=minutes,
        steps=steps,
        tokens=tokens,
        strategy=strategy,
        tokenizer=tokenizer,
        tokenizer_kind=tokenizer_kind,
        vocab_size=vocab_size,
        seed=seed,
        settings=tuple(settings or ()),
        from_=from_,
        extend_vocab=extend_vocab,
        old_data=tuple(old_data) if old_data else None,
    )
    if dry_run:
        from unmask.cli.dry_run import show_run_forecast

        forecast = show_run_forecast(paths or None, request.load())
        if as_json:
            print_json(forecast)
        return
    with ConsoleReporter() as reporter:
        run = run_pretraining(
            paths or None, out=out, **vars(request), resume=resume, overwrite=overwrite, reporter=reporter
        )
    show_summary(run)
    if as_json:
        print_json(run.summary)


def recipes(as_json: JsonFlag = False) -> None:
    """List the packaged recipes.

    Example: unmask recipes
    """
    from unmask.cli.recipes import show_recipes

    result = show_recipes()
    if as_json:
        print_json(result)
