"""Settles what is annotated, before the text is tokenized: where each column comes from, and its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from unmask.errors import DataError
from unmask.text.annotation_plan import AnnotationPlan, Origin
from unmask.text.annotators import SpacyPipeline, read_gazetteer
from unmask.text.conll import offered_columns
from unmask.text.corpus import Corpus
from unmask.text.reading import BadInput
from unmask.text.settings import AnnotationSettings
from unmask.text.sources import Source
from unmask.text.table_rows import LOOK_ROWS, rows_of


def choose_origins(settings: AnnotationSettings, sources: Sequence[Source]) -> dict[str, Origin]:
    """Where each column comes from.

    Raises:
        DataError: Some of the files hold a column and others do not, or it was to be taken from the data and is
            not there.
    """
    in_data: list[str] = []
    if settings.source != "pipeline":
        in_data += [column for column in settings.columns if column != "entities" or settings.gazetteer is None]
    held = [_held(source, in_data, settings.fields) for source in sources]
    found: dict[str, Origin] = {}
    for column in settings.columns:
        if column == "entities" and settings.gazetteer is not None:
            found[column] = "gazetteer"
            continue
        having = [source for source, columns in zip(sources, held, strict=True) if column in columns]
        wanted = settings.source == "data" or column in settings.fields
        lacking = [source for source in sources if source not in having]
        if lacking and (having or wanted):
            others = f", but {having[0].path} does" if having else ""
            where = f" in its first {LOOK_ROWS} rows" if lacking[0].is_json else ""
            looked_for = f"{settings.fields.get(column, column)!r}{where}"
            raise DataError(
                f"{lacking[0].path} holds no {column} (looked for {looked_for}){others}; "
                f"name the field with --set annotation.fields.{column}=NAME, or let a pipeline annotate all of the "
                'text: --set annotation.source="pipeline"'
            )
        found[column] = "data" if having else "pipeline"
    return found


def _held(source: Source, columns: Sequence[str], fields: Mapping[str, str]) -> set[str]:
    """Those of some columns that a file holds.

    In JSON a row may leave out what it has not, so a column is held where one of the first rows has it. Reading the
    text will then tell of the rows that lack it.
    """
    if source.kind in ("conll", "conllu"):
        return {column for column in columns if column in fields or column in offered_columns(source.kind)}
    found: set[str] = set()
    if source.kind not in ("jsonl", "json", "parquet", "arrow"):
        return found
    num_rows = LOOK_ROWS if source.is_json else 1
    for _, row in islice(rows_of(source, BadInput(skip=True), None, nested=True), num_rows if columns else 0):
        found.update(column for column in columns if fields.get(column, column) in row)
        if len(found) == len(columns):
            break
    return found


def data_fields(settings: AnnotationSettings, origins: Mapping[str, Origin]) -> dict[str, str] | None:
    """The fields that are read with the text; None where there are none."""
    return {
        column: settings.fields.get(column, column) for column, origin in origins.items() if origin == "data"
    } or None


def plan_annotation(settings: AnnotationSettings, origins: Mapping[str, Origin], corpus: Corpus) -> AnnotationPlan:
    """Settles the labels: those that a pipeline or gazetteer can give, and those that stand in the data.

    Args:
        settings: What the user asked for.
        origins: Of `choose_origins`.
        corpus: Opened with `data_fields`; gone through once where annotations are those of the data.

    Raises:
        SettingsError: As `SpacyPipeline`.
        DataError: The gazetteer cannot be used, or the data holds no span of a column.
        CorpusError: As `Corpus.pieces`.
    """
    plan = AnnotationPlan(origins, {})
    labels: dict[str, tuple[str, ...]] = {}
    if columns := plan.of_origin("pipeline"):
        pipeline = SpacyPipeline(settings.pipeline, columns)
        labels |= {column: pipeline.labels(column) for column in columns}
        plan = replace(plan, pipeline=settings.pipeline, version=pipeline.version)
    if plan.of_origin("gazetteer"):
        assert settings.gazetteer is not None, "it was chosen"
        plan = replace(plan, phrases=read_gazetteer(Path(settings.gazetteer)))
        labels["entities"] = tuple(sorted({label for _, label in plan.phrases}))
    if columns := plan.of_origin("data"):
        labels |= _labels_in(corpus, columns)
    return replace(plan, labels={column: labels[column] for column in origins})


def _labels_in(corpus: Corpus, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    seen: dict[str, set[str]] = {column: set() for column in columns}
    with closing(corpus.pieces()) as pieces:
        for piece, _ in pieces:
            for column, spans in (piece.spans or {}).items():
                seen[column].update(span.label for span in spans)
    for column, labels in seen.items():
        if not labels:
            raise DataError(f"the data holds no {column}: every list of them is empty; leave {column} out")
    return {column: tuple(sorted(labels)) for column, labels in seen.items()}
