"""`unmask pretrain`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import DryRunFlag, JsonFlag, Settings, TokenizerKind, TokenizerName, VocabSize

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="CHECKPOINT",
        help="Begin with this model (or run, or name on the hub). \\[default: new weights]",
    ),
]
ExtendVocab = Annotated[
    int | None, typer.Option(metavar="N", help="With --from: the N most telling new words get their own entries.")
]
OldData = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="With --from: text of its old domain, evaluated too; may be repeated."),
]


def pretrain(  # noqa: PLR0913, PLR0917  (one parameter an option)
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files, folders or patterns of text, - for stdin, or a prepared folder. \\[default: Tiny Shakespeare]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run, or an address (s3://...).")] = ...,  # type: ignore[assignment]
    minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training, instead of minutes.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of text to train on, instead of minutes.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Name of a recipe (see unmask recipes), or a .toml file. \\[default: tiny; continue]"),
    ] = None,
    from_: From = None,
    extend_vocab: ExtendVocab = None,
    old_data: OldData = None,
    strategy: Annotated[
        str | None, typer.Option(help="Masking, such as whole_word or span (see unmask masks).")
    ] = None,
    tokenizer: TokenizerName = None,
    tokenizer_kind: TokenizerKind = None,
    vocab_size: VocabSize = None,
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
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.pretrain import pretrain as run_pretraining
    from unmask.commands.run_folder import RunRequest
    from unmask.train.distributed import alike, join_group

    group = join_group()
    request = RunRequest(
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
        from unmask.commands.dry_run import forecast_run

        forecast = forecast_run(paths or None, alike(group, request.load), group)
        if group.is_first:
            show(forecast, as_json=as_json)
        return
    with ConsoleReporter() if group.is_first else nullcontext() as reporter:
        run = run_pretraining(
            paths or None, out=out, **vars(request), resume=resume, overwrite=overwrite, reporter=reporter
        )
    if group.is_first:
        show(run, as_json=as_json)
