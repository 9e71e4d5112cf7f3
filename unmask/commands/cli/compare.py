"""`unmask compare`, and with `--tune` the search for a recipe's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.commands.cli.options import JsonFlag, Settings, rates_of


def compare(  # noqa: PLR0913, PLR0917  (one parameter an option)
    recipes: Annotated[list[str], typer.Argument(help="Recipes (names or .toml files) or masking strategies.")],
    data: Annotated[list[str], typer.Option(help="Text or a prepared folder; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Folder of the comparison; the same command goes on in it.")] = Path(
        "runs/compared"
    ),
    minutes: Annotated[float | None, typer.Option(help="Minutes of training of each run.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each run, instead of minutes.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each recipe. \\[default: 3]")] = None,
    base: Annotated[str | None, typer.Option(help="Recipe under strategies. \\[default: tiny]")] = None,
    rates: Annotated[str, typer.Option(help="Shares of hidden tokens; the loss is that of the first.")] = "0.15",
    primary: Annotated[
        str | None,
        typer.Option(
            help="What decides: loss, bits_per_byte, pairs_error or task_error; unless given, the task or the loss."
        ),
    ] = None,
    pairs: Annotated[str | None, typer.Option(help="Minimal pairs (BLiMP's format).")] = None,
    task: Annotated[str | None, typer.Option(help="Fine-tune for it; see unmask finetune.")] = None,
    train: Annotated[str | None, typer.Option(help="What the task is learned from.")] = None,
    validation: Annotated[str | None, typer.Option(help="What the best epoch is told by.")] = None,
    test: Annotated[
        str | None, typer.Option(help="What the task is measured on; unless given, the validation file.")
    ] = None,
    tune: Annotated[bool, typer.Option("--tune", help="Search a recipe's numbers instead, with Optuna.")] = False,
    trials: Annotated[int | None, typer.Option(help="With --tune: runs, of all processes. \\[default: 20]")] = None,
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
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.training_run import GOES_ON, Interruption
    from unmask.core.results import Readable

    shared: dict[str, Any] = {
        "data": data,
        "out": out,
        "minutes": minutes,
        "steps": steps,
        "base": base,
        "rates": rates_of(rates),
        "pairs": pairs,
        "task": task,
        "train": train,
        "validation": validation,
        "test": test,
        "settings": settings or (),
    }
    own = _checked(
        recipes, {"seeds": seeds, "primary": primary}, {"trials": trials, "search": search or None}, tune=tune
    )
    found: Readable
    with Interruption(GOES_ON), ConsoleReporter() as reporter:
        if tune:
            found = unmask.tune(recipes[0], **shared, **own, reporter=reporter)
        else:
            found = unmask.compare(recipes, **shared, **own, reporter=reporter)
    show(found, as_json=as_json)


def _checked(recipes: list[str], comparing: dict[str, Any], searching: dict[str, Any], *, tune: bool) -> dict[str, Any]:
    """The options that are for one of both, as far as they were given.

    Raises:
        SettingsError: One is for the other.
    """
    from unmask.core.errors import SettingsError

    given = {name: value for name, value in (searching if tune else comparing).items() if value is not None}
    if not tune:
        if any(value is not None for value in searching.values()):
            raise SettingsError("--trials and --search are for searching a recipe's numbers; add --tune")
        return given
    if len(recipes) != 1:
        raise SettingsError("--tune searches the numbers of one recipe; name one")
    if comparing["seeds"] is not None:
        raise SettingsError("--seeds is for comparing; a search gives every trial the same seed")
    if comparing["primary"] is not None:
        raise SettingsError("--primary is for comparing; a search goes by the loss")
    return given
