"""`unmask embed`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import (
    ColumnOption,
    JsonFlag,
    ModelName,
    PoolingOption,
    Precision,
    PrecisionOption,
    StrictFlag,
)


class LongTexts(Enum):
    """Names of `unmask.tasks.embed.LongTexts`."""

    error = "error"
    split = "split"
    truncate = "truncate"


def embed(  # noqa: PLR0913, PLR0917  (options)
    model: ModelName,
    file: Annotated[str, typer.Argument(help="Text, a text a line; or a table.")],
    out: Annotated[
        Path,
        typer.Option(
            help="A .npy file; or .parquet, which holds ids, as empty texts among others need, and sparse vectors."
        ),
    ] = ...,  # type: ignore[assignment]
    pooling: PoolingOption = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Divide each vector by its length. \\[default: what the model's folder says]",
            show_default=False,
        ),
    ] = None,
    long_texts: Annotated[
        LongTexts, typer.Option(help="Texts longer than the model: an error, their parts taken together, or cut off.")
    ] = LongTexts.error,
    column: ColumnOption = None,
    id_column: Annotated[
        str | None, typer.Option(help="Where a table's ids stand. \\[default: id, else the number of the row]")
    ] = None,
    precision: PrecisionOption = Precision.float32,
    strict: StrictFlag = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn texts into vectors, one a text, for search and clustering. Memory does not grow with the file.

    Example: unmask embed runs/mine/model texts.csv --out vectors.parquet --normalize
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.training_run import Interruption

    with Interruption("nothing was written"), ConsoleReporter() as reporter:
        found = unmask.embed(
            model,
            file,
            out=out,
            pooling=pooling,
            normalize=normalize,
            long_texts=long_texts.value,
            column=column,
            id_column=id_column,
            precision=precision.value,
            strict=strict,
            overwrite=overwrite,
            note=reporter.note,
            notify=reporter.notify,
        )
    show(found, as_json=as_json)
