"""Words with tags, one word per line or row: recognises such files, cuts their columns, and reads their sentences.

    one word per line            CoNLL-U                                  one word per row of a table
    Anna<TAB>B-person            1<TAB>Anna<TAB>Anna<TAB>PROPN<TAB>...    Sentence #,Word,POS,Tag
    sleeps<TAB>O                 2<TAB>sleeps<TAB>sleep<TAB>VERB...       Sentence: 1,Anna,NNP,B-person
    <empty line>                 <empty line>                             ,sleeps,VBZ,O

Columns are separated by tabs, or by ASCII white space: a no-break or an ideographic space is part of its word. In
CoNLL-U every line that begins with `#` is a comment. Elsewhere `#` may be a word, and a comment is a line such as `#
sent_id = 3`, or one with another number of columns than words have.

The text is rebuilt with a space between words, but none after `SpaceAfter=No`. Each sentence is a line, and an empty
line marks where a document begins (`# newdoc`, `-DOCSTART-`), so documents are chosen as in any text.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from unmask.core.errors import CorpusError, listed, shortened, shown, whole_number
from unmask.data.reading import BadInput, LinePart, Row, Stretch, cut_rows, read_lines, read_text
from unmask.data.settings import AS_FOUND, Reading
from unmask.tokenizer.spans import SENTENCE_ENDS, TAG, Span, Spans, closed_loop, entities_of

_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_UPOS, _HEAD, _ROLE, _MISC = 3, 6, 7, 9
_OF_DOCUMENTS = re.compile(r"#\s*((newdoc|newpar|begin document|end document)\b|\w[\w.:-]*\s*=\s)")
_SENTENCE_ID = re.compile(r"#\s*(?:sent_)?id\s*=\s*(.*\S)")
DOCUMENT_BEGIN = LinePart("", True, True)
# Annotations of such files, unless `annotation.fields` names others.
OFFERED = {"conllu": {"pos", "dependencies"}, "conll": {"entities"}}
MOST_WORDS = 100_000  # of a sentence
_MOST_CHARS = 1 << 23
_LOOK_BYTES = 1 << 17
_BLANKS = " \t\r\f\v"
_CELL = re.compile(rf"[^{_BLANKS}]+")
_WORD_COLUMNS = {"word", "token", "form", "words", "tokens", "surface"}
_SENTENCE = re.compile(r"sent(ence)?s?(id|n|[\W\d_]|$)")  # such as `Sentence #` and `sent_id`, not `sentiment`
_NUMBER = re.compile(r"\d+([-.]\d+)?")


class WordForm(NamedTuple):
    """How a file with one word per line is read; columns are counted from 0."""

    title: str
    kind: str = "conll"  # or `conllu`
    word: int = 0
    tag: int = -1
    width: int = 1  # columns of most words
    sentence: int | None = None  # a column that changes, or is filled, where one begins; None: empty lines
    names: tuple[str, ...] = ()  # column names in the first row; empty: none
    delimiter: str | None = None  # of a table
    stops: bool = False  # whether only full stops end sentences
    has_brackets: bool = False  # tags as in CoNLL-2012

    def column(self, name: str, where: str | Path) -> int:
        """The number of a column, given its name or number; if it is missing, raises a CorpusError beginning with
        `where`."""
        names = _CONLLU if self.kind == "conllu" else self.names
        number = names.index(name) if name in names else whole_number(name)
        if number is None:
            ways = f"{listed(names)}, or its number" if names else f"its number, of {self.width}"
            raise CorpusError(f"{where}: there is no column {shown(name)}; name it by {ways}, counted from 0")
        return number


def form_of(path: Path, kind: str, lines: Sequence[str] = ()) -> WordForm | None:
    """How a file's words and tags are read, judged by its first lines, which may be given; None if it has none.

    `kind` is the kind by its suffix. A text or a table must look tagged in every line: by tags of entities in a column,
    or, in tables, by a column named `word` or `token` and something that ends sentences.
    """
    if kind not in ("text", "csv", "tsv", "conll", "conllu"):
        return None
    lines = lines or first_lines(path)
    gaps, is_table = any(not line.strip(_BLANKS) for line in lines), kind in ("csv", "tsv")
    lines = [line for line in lines if line.strip(_BLANKS) and not line.startswith("-DOCSTART-")]
    if kind != "csv":  # the first line of a table may hold names
        lines = [*lines[:is_table], *(line for line in lines[is_table:] if not line.startswith("#"))] or lines
    form = WordForm("a word a line") if kind == "conll" else None
    for delimiter in {"csv": ",;\t|", "tsv": "\t"}.get(kind, " "):
        try:
            rows = [cells_of(line) for line in lines] if kind != "csv" else list(csv.reader(lines, delimiter=delimiter))
        except csv.Error:
            continue
        rows = [row for row in rows if any(row)]
        width, count = next(iter(Counter(map(len, rows)).most_common(1)), (0, 0))
        # 1. Forms recognised by their lines
        if rows and len(rows[0]) > 10 and rows[0][2].isdigit() and "*" in rows[0][5]:
            return WordForm("CoNLL-2012 (OntoNotes)", word=3, tag=10, width=width, has_brackets=True)
        if kind == "conllu" or (not is_table and rows and all(map(_is_conllu, rows))):
            return WordForm("CoNLL-U", "conllu", 1, _UPOS, 10)
        form = form and form._replace(width=width)
        if width < 2 or count < 0.95 * len(rows):
            continue
        # 2. Columns with tags of entities; a first row without such tags holds names
        full = [row for row in rows if len(row) == width]
        for body in (full[1:] or full, full):
            columns = list(zip(*body, strict=True))
            if tagged := [n for n, cells in enumerate(columns) if {"O", "_"} & {*cells} and _are_tags({*cells})]:
                break
        lower = [name.strip().lower() for name in full[0]]
        has_tags = bool(tagged) or not is_table or lower[-1] not in _WORD_COLUMNS
        tag = tagged[-1] if tagged else width - has_tags  # beyond the last column if that holds the words
        has_names = is_table and not (
            _WORD_COLUMNS.isdisjoint(lower) and (not tagged or _are_tags({full[0][tag], "B"}))
        )
        # 3. The column that marks where sentences begin, and the column of words
        number_columns = [n for n in range(width) if all(_NUMBER.fullmatch(cell) for cell in columns[n])]
        starts = [n for n in range(width) if has_names and _SENTENCE.match(lower[n])]
        if is_table and not (starts or gaps):
            starts = [n for n in number_columns if any(a == b for a, b in pairwise(columns[n]))]
        rest = [n for n in range(width) if n not in {*number_columns, *starts, tag}]
        word = next((n for n in rest if lower[n] in _WORD_COLUMNS), (rest or [0])[0])
        ends, bare = bool(starts or gaps), not any(" " in cell for cell in columns[word])
        bare = bare and all(cell.count(" ") < 2 for cells in columns for cell in cells)  # otherwise the cells are texts
        if kind == "conll" or (kind == "text" and len(rows) > 1 and tagged and tag == width - 1):
            word = word if number_columns[:1] == [0] else 0
            return WordForm(f"one word per line, its tag in the last of {width} columns", word=word, width=width)
        if is_table and rest and bare and (tagged or (ends and (has_names or (kind == "tsv" and gaps)))):
            names = tuple(name.strip() for name in full[0]) if has_names else ()
            called = names or range(width)
            title = f"one word per row, in column {called[word]}" + (f", its tag in {called[tag]}" if has_tags else "")
            sentence = starts[0] if starts else None
            return WordForm(title, "conll", word, tag, width, sentence, names, delimiter, stops=not ends)
    return form


def has_word_per_line(path: Path, tags: Collection[str], reading: Reading) -> bool:
    """Whether a text has one word per line, in sentences with empty lines between them: each line ends in one of a
    model's `tags`, or is a single word, and some of these end sentences (lines of Chinese text have no blanks
    either)."""
    lines = [line for line in first_lines(path, reading) if not line.startswith(("-DOCSTART-", "# "))]
    rows = [cells_of(line) for line in lines if line.strip(_BLANKS)]
    last = [cells[-1] for cells in rows if len(cells) > 1]
    # Lines of tokenised text end in a stop, which is a tag of some models, and differ in their number of words.
    is_table = len({*map(len, rows)}) == 1 and not {*last} <= {*SENTENCE_ENDS}
    are_tagged = is_table and sum(tag in tags for tag in last) >= 0.95 * len(rows)
    are_words = all(len(cells) == 1 for cells in rows) and any(cells[0] in SENTENCE_ENDS for cells in rows)
    return 0 < len(rows) < len(lines) and (are_tagged or are_words)


def first_lines(path: Path, reading: Reading = AS_FOUND) -> list[str]:
    """The lines at the beginning of a file; bytes that cannot be decoded are lone surrogates."""
    bad = BadInput(skip=True, reading=reading)
    lines = "".join(read_text(path, bad, Stretch(0, _LOOK_BYTES))).rstrip("\n").split("\n")
    return lines[:-1] if len(lines) > 100 else lines  # the last may be cut off


def _is_conllu(row: list[str]) -> bool:
    return (
        len(row) == 10
        and all(cell == "_" or _NUMBER.fullmatch(cell) for cell in (row[0], row[_HEAD]))
        and (row[_UPOS] == "_" or row[_UPOS].isalpha())
    )


def _are_tags(cells: set[str]) -> bool:
    """Whether cells are tags of entities: at least one is, and all others are `O`."""
    return bool(cells := cells - {"O", "_"}) and all(TAG.fullmatch(cell) for cell in cells)


class TaggedLine(NamedTuple):
    number: int  # in the file, counted from 1
    cells: list[str]
    id: str | None = None  # of the sentence, on its first line

    def cell(self, column: int) -> str:
        """A cell; -1 is the last one, of tags. If it is missing, raises a ValueError that begins with the line."""
        if column >= len(self.cells) or (column < 0 and len(self.cells) < 2):
            which = f"column {column + 1} (number {column} from 0)" if column >= 0 else "column of tags"
            raise ValueError(f"{self.number}: there is no {which}; there are only {len(self.cells)} columns")
        return self.cells[column].strip(_BLANKS)


def read_sentences(path: Path, form: WordForm, bad: BadInput) -> Iterator[list[TaggedLine] | None]:
    """Yields the lines of each sentence, and None where a document begins."""
    lines: list[TaggedLine] = []
    num_chars, before, label, name = 0, "", None, None
    for number, text, cells in _lines_of(path, form, bad):
        # 1. Whether a sentence or a document begins here
        marks = cells[form.sentence] if form.sentence is not None and form.sentence < len(cells) else ""
        is_comment = text.startswith("#") and form.delimiter in (None, "\t")
        if is_comment and form.kind == "conll":  # it may also be a word, such as `#` or `#unmask`
            is_marked = form.delimiter == "\t" or _OF_DOCUMENTS.match(text) is not None
            is_comment = ("\t" not in text and is_marked) or len(cells) != form.width
        begins = cells[:1] == ["-DOCSTART-"] or (is_comment and text[1:].split()[:1] in (["newdoc"], ["begin"]))
        is_word = any(cells) and not (is_comment or begins)
        match = _SENTENCE_ID.match(text) if is_comment else None
        name = match[1] if match else name if any(cells) else None
        if lines and (not any(cells) or begins or (marks and marks != before)):
            yield lines
            lines, num_chars, label = [], 0, None
        before = marks or before
        if begins:
            yield None
        if not is_word:
            continue
        # 2. A word; OntoNotes' brackets, (PERSON* * *), are converted to tags
        if form.has_brackets and len(cells) > form.tag:
            opens, closes = re.match(r"\(([^()*]+)", cells[form.tag]), ")" in cells[form.tag]
            label = opens[1] if opens else label
            cells[form.tag] = "O" if label is None else f"{'B' if opens else 'I'}-{label}"
            label = None if closes else label
        lines.append(TaggedLine(number, cells, name))
        name = None
        num_chars += len(text)
        if len(lines) > MOST_WORDS or num_chars > _MOST_CHARS:
            what = f"the sentence that begins in line {lines[0].number} has more than {MOST_WORDS:,} words"
            raise CorpusError(f"{path}: {what} or {_MOST_CHARS:,} characters; put an empty line after each sentence")
        if form.stops and cells[form.word] in SENTENCE_ENDS:
            yield lines
            lines, num_chars = [], 0
    if lines:
        yield lines


def _lines_of(path: Path, form: WordForm, bad: BadInput) -> Iterator[tuple[int, str, list[str]]]:
    """The lines of a file, without a row of names: number, counted from 1, text, and cells (none for a blank line)."""
    if form.delimiter is not None and form.delimiter != "\t":
        rows = ((end, "", cells) for _, end, cells in cut_rows(path, bad, one_line=True, delimiter=form.delimiter))
        yield from islice(rows, bool(form.names), None)
        return
    for number, part in enumerate(read_lines(path, bad), 1):
        if not (part.starts and part.ends):
            raise CorpusError(f"{path}: a line is longer than a million characters; this is not a CoNLL file")
        if number > 1 or not form.names:
            yield number, part.text, cells_of(part.text) if part.text.strip(_BLANKS) else []


def cells_of(line: str) -> list[str]:
    """The cells of a line: between tabs if it has any, else between white space."""
    return line.split("\t") if "\t" in line else line.split() if line.isascii() else _CELL.findall(line)


def word_number(line: TaggedLine) -> int | None:
    """The number of a word in CoNLL-U; None for a multiword token, `3-4`, and for an elided word, `5.1`. If it is not a
    number, raises a ValueError that begins with the line number."""
    first, sign, last = line.cells[0].replace(".", "-", 1).partition("-")
    numbers = [whole_number(part) for part in ((first, last) if sign else (first,))]
    if None in numbers:
        raise ValueError(f"{line.number}: {shown(line.cells[0])} is not a word number")
    return None if sign else numbers[0]


def places_of(words: Sequence[str]) -> list[tuple[int, int]]:
    """The characters [begin, end) of words joined by single spaces."""
    begins = accumulate((len(word) + 1 for word in words), initial=0)
    return [(begin, begin + len(word)) for begin, word in zip(begins, words, strict=False)]


def conll_sentence(lines: list[TaggedLine], form: WordForm, columns: Mapping[str, int]) -> tuple[str, Spans]:
    """The text of a sentence, and its annotations from their `columns`; a ValueError begins with the line number."""
    words = [line.cells[form.word] if form.word < len(line.cells) else "" for line in lines]
    places = places_of(words)
    spans: dict[str, tuple[Span, ...]] = {}
    for name, column in columns.items():
        tags = [line.cell(column) for line in lines]
        if name == "pos":
            spans[name] = tuple(Span(*place, tag) for place, tag in zip(places, tags, strict=True))
            continue
        for line, tag in zip(lines, tags, strict=True):
            if tag not in ("O", "_") and not TAG.fullmatch(tag):
                raise ValueError(f"{line.number}: {shown(tag)} is not a tag like O, B-person or I-person")
        entities = entities_of(tuple("O" if tag == "_" else tag for tag in tags))
        spans[name] = tuple(Span(places[begin][0], places[end - 1][1], label) for label, begin, end in entities)
    return " ".join(words), spans


def conllu_sentence(lines: list[TaggedLine], _: WordForm, columns: Mapping[str, int]) -> tuple[str, Spans]:
    """As `conll_sentence`. The words of a multiword token share its letters, in order if they spell it."""
    text, words, places = "", [], []
    shared_to, room = 0, (0, 0)  # last word of the current multiword token, and its remaining letters
    for line in lines:
        if len(line.cells) != 10:
            raise ValueError(f"{line.number}: {len(line.cells)} columns, but CoNLL-U has 10, separated by tabs")
        label, form = line.cells[:2]
        space = "" if "SpaceAfter=No" in line.cells[_MISC].split("|") else " "
        number = word_number(line)
        if "." in label:  # an elided word has no letters
            continue
        if number is None:
            shared_to, room = int(label.partition("-")[2]), (len(text), len(text) + len(form))
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
    for name, column in columns.items():
        if name == "pos":
            tagged = ((place, line.cells[column]) for line, place in zip(words, places, strict=True))
            spans[name] = tuple(Span(*place, tag) for place, tag in tagged if tag != "_")
            continue
        index = {line.cells[0]: place for place, line in enumerate(words)}
        index["0"] = -1  # the root
        if lost := next((line for line in words if line.cells[_HEAD] not in index), None):
            raise ValueError(f"{lost.number}: the head {shown(lost.cells[_HEAD])} is not a word of the sentence")
        heads = [index[line.cells[_HEAD]] for line in words]
        heads = [place if head < 0 else head for place, head in enumerate(heads)]
        if words and closed_loop(heads):
            raise ValueError(f"{words[0].number}: the heads of this sentence form a cycle")
        roles = (line.cells[_ROLE] for line in words)
        spans[name] = tuple(
            Span(*p, role, head - n) for n, (p, role, head) in enumerate(zip(places, roles, heads, strict=True))
        )
    return text.rstrip(), spans


def doc_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The texts of spaCy's `DocBin` with their words and entities, as rows."""
    try:
        import spacy
        from spacy.tokens import DocBin
    except ImportError as error:
        raise CorpusError(f"{path}: reading a .spacy file needs spaCy: pip install spacy") from error
    try:
        for number, doc in enumerate(DocBin().from_disk(path).get_docs(spacy.blank("xx").vocab), 1):
            words = [
                {"text": word.text, "start": word.idx, "end": word.idx + len(word)} for word in doc if word.text.strip()
            ]
            entities = [[each.start_char, each.end_char, each.label_] for each in doc.ents]
            yield number, {"text": doc.text, "tokens": words, "entities": entities}
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise CorpusError(f"{path}: spaCy cannot read it: {shortened(str(error))}") from error
