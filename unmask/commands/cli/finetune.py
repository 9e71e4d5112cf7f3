"""`unmask finetune`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.commands.cli.options import DryRunFlag, JsonFlag

Text = Annotated[
    str | None, typer.Option(help="Column of the text; a number, counted from 0, where there are no names.")
]
Second = Annotated[str | None, typer.Option(help="Column of the other text of a pair.")]


def finetune(  # noqa: PLR0913, PLR0917  (one parameter an option)
    model: Annotated[str, typer.Argument(help="Folder of any encoder, such as RUN/model, or its name on the hub.")],
    task: Annotated[str, typer.Option(help="classify, multi_label, regress, pairs, tag or answer.")] = ...,  # type: ignore[assignment]
    train: Annotated[Path, typer.Option(help="CSV, TSV, JSON, Parquet, CoNLL, CoNLL-U, or SQuAD's JSON.")] = ...,  # type: ignore[assignment]
    validation: Annotated[
        Path | None,
        typer.Option(help="The best model is told by it. \\[default: the part for validation of a folder in --train]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the result, or an address (s3://...).")] = ...,  # type: ignore[assignment]
    test: Annotated[Path | None, typer.Option(help="The best model is measured on it besides.")] = None,
    text: Text = None,
    second: Second = None,
    label: Annotated[str | None, typer.Option(help="Column of the class, the number or the tags.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs, each with the next seed. \\[default: 1]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first run. \\[default: 0]")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="finetune.KEY=VALUE", help="Change one setting; may be repeated."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last seed that was finished in --out.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the result in --out.")] = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Fine-tune a model for a task, with early stopping and several seeds.

    Example: unmask finetune runs/mine/model --task classify --train train.csv --validation dev.csv --out runs/mood
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.finetune import forecast_finetune
    from unmask.commands.training_run import Interruption
    from unmask.train.distributed import join_group

    asked: dict[str, Any] = {
        "task": task,
        "train": train,
        "validation": validation,
        "test": test,
        "text": text,
        "second": second,
        "label": label,
        "seeds": seeds,
        "seed": seed,
        "settings": settings or (),
    }
    group = join_group()
    shown = ConsoleReporter() if group.is_first else nullcontext()
    if dry_run:
        with shown as reporter:
            forecast = forecast_finetune(model, **asked, reporter=reporter)
        if group.is_first:
            show(forecast, as_json=as_json)
        return
    with Interruption(), shown as reporter:
        found = unmask.finetune(model, out=out, resume=resume, overwrite=overwrite, **asked, reporter=reporter)
    if group.is_first:
        show(found, as_json=as_json)
