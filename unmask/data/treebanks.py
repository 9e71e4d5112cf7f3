"""Treebanks and tagged text: CoNLL (a token a line with its tags) and CoNLL-U (Universal Dependencies).

    .conll                          .conllu
    Anna<TAB>B-person               1<TAB>Anna<TAB>Anna<TAB>PROPN<TAB>NNP<TAB>_<TAB>2<TAB>nsubj<TAB>_<TAB>_
    sleeps<TAB>O                    2<TAB>sleeps<TAB>sleep<TAB>VERB<TAB>VBZ<TAB>_<TAB>0<TAB>root<TAB>_<TAB>SpaceAfter=No
    <empty line>                    <empty line>

In `.conllu` every line that begins with `#` is a comment; in `.conll` a line such as `# sent_id = 3` is, and one that
begins with `#` and has not as many columns as words have.

The text is put together again: a space between tokens, none behind `SpaceAfter=No`. A sentence comes as a line, and
an empty line where a document begins (`# newdoc`, `-DOCSTART-`), so what a document is can be chosen as for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from unmask.core.errors import CorpusError, shortened, shown, whole_number
from unmask.data.reading import BadInput, LinePart, read_lines
from unmask.data.sources import Source
from unmask.tokenizer.spans import Span, Spans, closed_loop

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
    for lines in read_sentences(source, bad):
        if lines is None:
            yield DOCUMENT_BEGIN
            continue
        try:
            text, spans = build(lines, fields or {})
        except ValueError as error:
            bad.report("sentences that cannot be read", f"{source.path}: line {error}")
            continue
        if not bad.is_broken(text):
            yield LinePart(text, True, True, None if fields is None else spans)


def read_sentences(source: Source, bad: BadInput) -> Iterator[list[TaggedLine] | None]:
    """Yields the lines of each sentence, and None where a document begins.

    Raises:
        CorpusError: The file cannot be read, a line is far too long, or a sentence: it has more than 100,000 words, or
            8 million characters.
    """
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
            spans[column] = tuple(Span(*p, w.cells[cell]) for w, p in zip(words, places, strict=True))
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
