"""`unmask evaluate-search`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from unmask.commands.cli.options import (
    ColumnOption,
    DocumentPromptOption,
    Documents,
    JsonFlag,
    ModelName,
    PassageTokensOption,
    Precision,
    PrecisionOption,
    QueryPromptOption,
    SimilarityOption,
    StrictFlag,
    TitleColumnOption,
)


class CropsOption(Enum):
    """Names of `unmask.search.evaluate.Crops`."""

    removed = "removed"
    inside = "inside"


def evaluate_search(  # noqa: PLR0913, PLR0917  (options)
    model: ModelName,
    corpus: Annotated[
        list[str], typer.Argument(help="Files, folders or patterns of text; or a folder in BEIR's format.")
    ],
    against: Annotated[list[str] | None, typer.Option(help="Another model to compare with; may be repeated.")] = None,
    baselines: Annotated[
        str, typer.Option(help="bm25, tfidf, both with a comma between them, or none.")
    ] = "bm25,tfidf",
    queries: Annotated[int, typer.Option(help="Queries of each kind at most.")] = 1000,
    max_documents: Annotated[int, typer.Option(help="Documents of a text that are searched at most.")] = 10_000,
    crops: Annotated[
        CropsOption,
        typer.Option(help="Whether crops are taken out of the documents that are searched, or left inside."),
    ] = CropsOption.removed,
    crop_chars: Annotated[int, typer.Option(help="Characters of a crop, about.")] = 120,
    every: Annotated[
        bool, typer.Option("--all", help="Ask for all documents: a text that no model was trained on.")
    ] = False,
    among_all: Annotated[
        bool, typer.Option("--among-all", help="Search among all documents, and not among held-out ones alone.")
    ] = False,
    split: Annotated[str, typer.Option(help="Of the judgements in a BEIR folder.")] = "test",
    documents: Annotated[
        Documents | None, typer.Option(help="What a document is in text files. \\[default: as the model's run has it]")
    ] = None,
    column: ColumnOption = None,
    title_column: TitleColumnOption = None,
    passage_tokens: PassageTokensOption = None,
    query_prompt: QueryPromptOption = None,
    document_prompt: DocumentPromptOption = None,
    similarity: SimilarityOption = None,
    seed: Annotated[int, typer.Option(help="Another one chooses other queries and crops.")] = 0,
    precision: PrecisionOption = Precision.float32,
    strict: StrictFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure how well a model searches, without labels: crops and titles of held-out documents find their documents.

    Example: unmask evaluate-search runs/mine/model corpus.txt --against other/model
    """
    import unmask
    from unmask.commands.cli.progress_bars import ConsoleBar
    from unmask.commands.cli.show import show

    names = [name.strip() for name in baselines.split(",")]
    with ConsoleBar("reading the text") as bar:
        found = unmask.evaluate_search(
            model,
            corpus,
            against=against or (),
            baselines=() if names == ["none"] else names,
            queries=queries,
            max_documents=max_documents,
            crops=crops.value,
            crop_chars=crop_chars,
            every=every,
            among_all=among_all,
            split=split,
            documents=None if documents is None else documents.value,
            column=column,
            title_column=title_column,
            passage_tokens=passage_tokens,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            similarity=None if similarity is None else similarity.value,
            seed=seed,
            precision=precision.value,
            strict=strict,
            notify=bar.notify,
        )
    show(found, as_json=as_json)
