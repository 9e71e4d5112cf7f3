"""Measuring models beyond held-out text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import JsonFlag, Settings, print_json, rates_of


def score(
    model: Annotated[str, typer.Argument(help="Folder of any masked language model, or its name on the hub.")],
    pairs: Annotated[Path, typer.Argument(help="Minimal pairs: a file of JSON lines, a folder or a tar of such.")],
    form: Annotated[
        str, typer.Option(help="Pseudo-log-likelihood: plain, or word_l2r (pieces behind in the word hidden too).")
    ] = "plain",
    pairs_per_paradigm: Annotated[int | None, typer.Option(help="Take the first so many of each paradigm.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Test a model's grammar on minimal pairs (BLiMP's format): accuracy by phenomenon.

    Example: unmask score runs/mine/model blimp/data
    """
    from unmask.cli.score import run_score

    result = run_score(model, pairs, form=form, pairs_per_paradigm=pairs_per_paradigm)
    if as_json:
        print_json(result)


def compare(  # noqa: PLR0913, PLR0917  (one parameter an option)
    recipes: Annotated[list[str], typer.Argument(help="Recipes (names or .toml files) or masking strategies.")],
    data: Annotated[list[str], typer.Option(help="Text or a prepared folder; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Folder of the comparison; the same command goes on in it.")] = Path(
        "runs/compared"
    ),
    minutes: Annotated[float | None, typer.Option(help="Minutes of training of each run.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each run, instead of minutes.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each recipe. [default: 3]")] = None,
    base: Annotated[str | None, typer.Option(help="Recipe under strategies. [default: tiny]")] = None,
    rates: Annotated[str, typer.Option(help="Shares of hidden tokens; the loss is that of the first.")] = "0.15",
    primary: Annotated[
        str | None,
        typer.Option(
            help="What decides: loss, bits_per_byte, pairs_error or task_error; unless given, the task or the loss."
        ),
    ] = None,
    pairs: Annotated[str | None, typer.Option(help="Minimal pairs (BLiMP's format).")] = None,
    task: Annotated[str | None, typer.Option(help="Fine-tune for: classify, regress, pairs, tag, answer.")] = None,
    train: Annotated[str | None, typer.Option(help="What the task is learned from.")] = None,
    validation: Annotated[str | None, typer.Option(help="What the best epoch is told by.")] = None,
    test: Annotated[
        str | None, typer.Option(help="What the task is measured on; unless given, the validation file.")
    ] = None,
    tune: Annotated[bool, typer.Option("--tune", help="Search a recipe's numbers instead, with Optuna.")] = False,
    trials: Annotated[int | None, typer.Option(help="With --tune: runs, of all processes. [default: 20]")] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=LOW..HIGH", help="With --tune: a number, or KEY=A,B,...; may be repeated."),
    ] = None,
    settings: Settings = None,
    as_json: JsonFlag = False,
) -> None:
    """Find out which recipe or strategy is better on a text, with intervals over seeds; or which numbers are.

    Example: unmask compare random span --data corpus.txt --minutes 10
    """
    from unmask.cli.compare import Asked, run_compare, run_tune
    from unmask.comparing.trials import Protocol, task_files

    protocol = Protocol(
        minutes=minutes,
        steps=steps,
        rates=rates_of(rates),
        pairs=pairs,
        task=task_files(task, train, validation, test),
        base=base,
        settings=tuple(settings or ()),
    )
    asked = Asked(
        tuple(recipes),
        tuple(data),
        protocol,
        out,
        seeds=seeds,
        primary=primary,
        trials=trials,
        search=tuple(search or ()),
    )
    result = run_tune(asked) if tune else run_compare(asked)
    if as_json:
        print_json(result)
