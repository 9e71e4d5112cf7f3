"""`unmask search index` and `unmask search query`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.commands.cli.options import (
    ColumnOption,
    DocumentPromptOption,
    Documents,
    JsonFlag,
    ModelName,
    PassageTokensOption,
    PoolingOption,
    Precision,
    PrecisionOption,
    QueryPromptOption,
    SimilarityOption,
    StrictFlag,
    TitleColumnOption,
)


def search_index(  # noqa: PLR0913, PLR0917  (options)
    model: ModelName,
    files: Annotated[list[str], typer.Argument(help="Files, folders or patterns of documents; - is standard input.")],
    out: Annotated[Path, typer.Option(help="The index's folder.")] = ...,  # type: ignore[assignment]
    documents: Annotated[
        Documents, typer.Option(help="What a document is in text files; auto looks at them.")
    ] = Documents.auto,
    column: ColumnOption = None,
    id_column: Annotated[
        str | None, typer.Option(help="Where a table's ids stand. \\[default: id or _id, else the number of the row]")
    ] = None,
    title_column: TitleColumnOption = None,
    passage_tokens: PassageTokensOption = None,
    overlap_tokens: Annotated[
        int | None, typer.Option(help="Tokens that a passage shares with the one before it. \\[default: an eighth]")
    ] = None,
    query_prompt: QueryPromptOption = None,
    document_prompt: DocumentPromptOption = None,
    pooling: PoolingOption = None,
    similarity: SimilarityOption = None,
    approximate: Annotated[
        bool | None,
        typer.Option(
            "--approximate/--no-approximate",
            help="Link near passages, so that a query need not go through all. \\[default: above a million passages]",
            show_default=False,
        ),
    ] = None,
    precision: PrecisionOption = Precision.float32,
    strict: StrictFlag = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an index that was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the index that is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make an index of documents, long ones in passages. Memory does not grow with them, but for the
    graph of approximate search.

    Example: unmask search index runs/mine/model docs/ --out runs/docs
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleReporter
    from unmask.commands.cli.show import show
    from unmask.commands.training_run import Interruption

    with Interruption(), ConsoleReporter() as reporter:
        found = unmask.Index.build(
            model,
            files,
            out=out,
            documents=documents.value,
            column=column,
            id_column=id_column,
            title_column=title_column,
            passage_tokens=passage_tokens,
            overlap_tokens=overlap_tokens,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            pooling=pooling,
            similarity=None if similarity is None else similarity.value,
            approximate=approximate,
            precision=precision.value,
            strict=strict,
            resume=resume,
            overwrite=overwrite,
            note=reporter.note,
            notify=reporter.notify,
        )
    show(found, as_json=as_json)


def search_query(
    index: Annotated[Path, typer.Argument(help="Folder that unmask search index has made.")],
    text: Annotated[str, typer.Argument(help="What is looked for; - is standard input, a query a line.")],
    top_k: Annotated[int, typer.Option(help="Documents that are shown.")] = 10,
    exact: Annotated[bool, typer.Option("--exact", help="Go through all passages, although they are linked.")] = False,
    model: Annotated[
        str | None, typer.Option(help="The model of the index, where it lies elsewhere now. \\[default: as it was]")
    ] = None,
    precision: PrecisionOption = Precision.float32,
    strict: StrictFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Find the documents of an index that are nearest to a text, each with its passage that is.

    Example: unmask search query runs/docs "how is memory allocated" --top-k 3
    """
    import unmask
    from unmask.commands.cli.options import text_of
    from unmask.commands.cli.progress_bars import ConsoleBar
    from unmask.commands.cli.show import show

    opened = unmask.Index(index, model=model, precision=precision.value, strict=strict)
    queries = [line for line in text_of(text).splitlines() if line.strip()] if text == "-" else [text]
    with ConsoleBar("searching"):
        found = opened.query(queries, top_k=top_k, exact=exact)
    show(found, as_json=as_json)
