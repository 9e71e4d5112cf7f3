"""Documents to search, cut into passages that a model reads at once, and snippets of passages.

A document is the same as in a corpus: a line, a block between empty lines or a file; a row of a table; a sequence. Its
id is the number in its file, counted from 1, or the value of the table's id column. Its title is the value of a column
of the table, or the first line of a block or a file if that looks like a title.

    tokens of a document    ................................................
    passages                |..............|
                                        |..............|                      `overlap_tokens` are in both
                                                    |......................

Passages begin and end at white space, else at a word boundary, else anywhere. A title from a column is put before each
of them, so that a passage from the middle of a document still says what it is about.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError
from unmask.core.settings import validated
from unmask.data.columns import ColumnNames
from unmask.data.documents import LINES, Documents, in_groups, names_of
from unmask.data.settings import CorpusSettings, DocumentUnit, Reading
from unmask.data.sources import Source
from unmask.data.tables import TableColumns
from unmask.tokenizer.spans import QUOTE_ENDS, SENTENCE_ENDS, UNSPACED_RANGES
from unmask.tokenizer.tokenizer import Tokenizer

LONGEST_TITLE = 120  # letters
BROKEN_CHARS = 50  # a line at least this long that ends within a sentence may be broken to fit a page
_NO_TITLE = (*SENTENCE_ENDS, *QUOTE_ENDS, *",;:，；：、،؛")  # or ends of clauses
_TITLE_BEFORE = 300  # maximum letters of a title put before a passage
_PARTS_AT_ONCE, _CHARS_AT_ONCE = 256, 1 << 20  # token offsets take many times the memory of the text
Flags = NDArray[np.bool_]


class DocumentPart(NamedTuple):
    """A document, or a part of a long one. Parts of a document are consecutive and join to its text."""

    document: int  # number of the document, counted from 0
    file: str  # the file's name, as the user gave it
    id: str | int  # a number counted from 1, or the value of the id column
    title: str | None
    begin: int  # character of the document at which the part begins
    text: str  # the characters, without a title from a column
    title_before: str = ""  # the title put before each of its passages, if it is not part of the text
    is_counted: bool = True  # whether the id is a number counted in the file


class DocumentFiles:
    """Files of documents, read by `Documents`. Files `within` a folder are named relative to it."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        column: ColumnNames = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str = "auto",
        encoding: str | None = None,
        within: Path | None = None,
        usual: Sequence[TableColumns] = (),
    ) -> None:
        self._within = within
        unit = validated(CorpusSettings, {"documents": documents}, where="search").documents
        how = validated(Reading, {"encoding": encoding}, where="search")
        self._documents = Documents(
            paths, column, id_column=id_column, title_column=title_column, unit=unit, reading=how, usual=usual
        )
        self.sources, self.num_bytes = self._documents.sources, self._documents.num_bytes
        self.skipped = self._documents.skipped
        has_lines = any(source.kind in LINES for source in self.sources)
        self.unit = self._documents.unit if has_lines else None  # what a document is in text files

    @property
    def tables(self) -> list[TableColumns]:
        columns = [
            TableColumns((each.column,) if isinstance(each.column, str) else each.column, each.id, each.title)
            for each in self.sources
            if each.column is not None
        ]
        return list(dict.fromkeys(columns))

    def describe(self) -> str:
        facts = [self._documents.unit_in_words]
        for what, columns in (("id", {s.id for s in self.sources}), ("title", {s.title for s in self.sources})):
            names = sorted(name for name in columns if name is not None)
            facts += [f"its {what} in column {' or '.join(map(repr, names))}"] if names else []
        return ", ".join(facts)

    def read(self) -> Iterator[DocumentPart]:
        self.skipped.clear()
        number, begin, title = -1, 0, None
        for source in self.sources:
            file = self.name_of(source)
            for piece in self._documents.read(source):
                if piece.offset == 0:
                    number, begin = number + 1, 0
                    has_line = self._documents.unit != "line" and not source.is_table
                    title = split_title(piece.text)[0] if has_line else piece.title
                is_before = source.is_table and title != piece.text  # a row without text has its title as text
                before = title[:_TITLE_BEFORE] if title and is_before else ""
                is_counted = source.id is None and not isinstance(piece.id, str)
                yield DocumentPart(number, file, piece.id, title, begin, piece.text, before, is_counted)
                begin += len(piece.text)
        if number < 0:
            raise CorpusError(f"{names_of(self.sources)}: contains no text")

    def name_of(self, source: Source) -> str:
        path = source.path
        if self._within is not None and path.is_relative_to(self._within):
            path = path.relative_to(self._within)
        return os.fsencode(path).decode("utf-8", "backslashreplace")  # a name may hold bytes that are not UTF-8


def split_title(text: str) -> tuple[str | None, str]:
    """The first line of a text if it is a title, and the text below it; else None and the text.

    A title is short, has a letter, and does not end like a sentence or a quotation. It is followed by more text, and
    is not the first line of a paragraph that was broken to fit a page.

    Example: `On whales\\nThere are many.` has the title `On whales`; `There are many.\\nNo.` has none.
    """
    line, _, rest = text.lstrip().partition("\n")
    title = re.sub(r"^#+\s+", "", line.strip())
    is_short = len(title) <= min(LONGEST_TITLE, len(rest.strip()) // 2)
    if not is_short or not any(map(str.isalpha, title)) or title.endswith(_NO_TITLE):
        return None, text
    next_words = rest.partition("\n")[0].split()
    if next_words and len(line) >= BROKEN_CHARS and len(line) + len(next_words[0]) >= max(map(len, rest.split("\n"))):
        return None, text
    return title, rest


class TextPassage(NamedTuple):
    """A passage: characters `begin` to `end` of a part of a document."""

    part: DocumentPart
    begin: int
    end: int
    new: int  # character of the part from which on the text is in no earlier passage

    @property
    def text(self) -> str:
        return self.part.text[self.begin : self.end]

    @property
    def embedded(self) -> str:
        """The text that the model sees, without the prompt."""
        title = self.part.title_before
        return f"{title}\n{self.text}" if title else self.text

    @property
    def counted(self) -> str:
        """The text whose words BM25 counts: without the overlap with the previous passage."""
        title = self.part.title_before if self.part.begin + self.begin == 0 else ""
        return f"{title}\n{self.part.text[self.new : self.end]}"


def cut_passages(
    parts: Iterable[DocumentPart], tokenizer: Tokenizer, *, passage_tokens: int, overlap_tokens: int, prompt: str
) -> Iterator[TextPassage]:
    """The passages of documents, in order; a text without tokens has one, too. Each has at most `passage_tokens`,
    special tokens, prompt and title included, and shares `overlap_tokens` with the previous one."""
    room = passage_tokens - len(tokenizer.encode_prompt(prompt))
    for group in in_groups(parts, most=_PARTS_AT_ONCE, most_chars=_CHARS_AT_ONCE):
        titles = [part.title_before for part in group]
        places = tokenizer.encode_placed([part.text for part in group])[1]
        title_tokens = tokenizer.encode_placed(titles)[1].lengths if any(titles) else np.zeros(len(group), int)
        # Some tokenizers count the white space before a token as its first character.
        text = "".join(part.text for part in group)
        is_space = np.array([sign.isspace() for sign in text] or [False], dtype=np.bool_)
        token_begins = np.minimum(places.begin, len(is_space) - 1)
        after_space: Flags = is_space[token_begins] | is_space[np.maximum(token_begins - 1, 0)]
        ends, chars = np.cumsum(places.lengths), np.cumsum([0, *(len(part.text) for part in group)])
        for number, part in enumerate(group):
            tokens = slice(int(ends[number] - places.lengths[number]), int(ends[number]))
            length = max(room // 2, room - int(title_tokens[number]) - 1)
            seen = 0
            for begin, end in _windows(tokens, length, overlap_tokens, (after_space, places.word_starts)):
                first = int(places.begin[begin] - chars[number]) if begin > tokens.start else 0
                last = int(places.begin[end] - chars[number]) if end < tokens.stop else len(part.text)
                yield TextPassage(part, first, last, seen)
                seen = last


def _windows(tokens: slice, length: int, overlap: int, breaks: Sequence[Flags]) -> Iterator[tuple[int, int]]:
    """Begin and end of each passage, in tokens. `breaks` are in order of preference: after white space, at a word.

    Example: cut to four tokens, `a b-c` becomes `a ` and `b-c`.
    """

    def last_break(least: int, place: int) -> int:
        for flags in breaks:
            if len(back := np.flatnonzero(flags[least : place + 1])):
                return least + int(back[-1])
        return place

    begin = tokens.start
    while tokens.stop - begin > length:
        end = last_break(begin + length // 2, begin + length)
        yield begin, end
        least = begin + max(1, length // 4)  # minimum advance from one passage to the next
        begin = last_break(least, max(least, end - overlap)) if overlap else end
    yield begin, tokens.stop


# ----------------------------------------
# Snippets: the part of a passage that shares most with a query, i.e. the span of whole words with most letters of the
# query's words. Each word counts once, and long words, which are mostly rare, count more. Without a common word the
# snippet is the beginning.

SNIPPET_CHARS = 200
# Words are runs of letters, digits and combining marks, as `_folded` spells them; `get_user` is two. In scripts without
# spaces each letter with its marks is a word. The lookahead is for speed: marks are sought only before non-ASCII.
_MARKS = "".join(sign for sign in map(chr, range(0x300, 0x1F000)) if category(sign) in ("Mn", "Mc"))
WORD = re.compile(
    rf"[{UNSPACED_RANGES}](?<=\w)[{_MARKS}]*"
    rf"|[^\W_{UNSPACED_RANGES}]++(?:(?=[^\x00-\u02ff])[{_MARKS}]+[^\W_{UNSPACED_RANGES}]*)*+"
)
_ASCII_WORD = re.compile("[a-z0-9]+")
_SOFT_HYPHEN = "\u00ad"


def _folded(text: str) -> str:
    """In lower case and composed (NFC), without soft hyphens, and without the combining dot that Python leaves of
    `İ`, so that `istanbul` finds `İstanbul`."""
    return normalize("NFC", text.lower().replace("i\u0307", "i").replace(_SOFT_HYPHEN, ""))


def words_of(text: str) -> list[str]:
    text = _folded(text)
    return (_ASCII_WORD if text.isascii() else WORD).findall(text)


class Snippet(NamedTuple):
    text: str  # on one line: each run of white space is one space
    marks: tuple[tuple[int, int], ...]  # begin and end of each of the query's words in it, sorted


def find_snippet(passage: str, query: str, size: int = SNIPPET_CHARS) -> Snippet:
    """The first of the spans that share most with a query: at most `size` characters, or one longer word."""
    text = " ".join(passage.replace(_SOFT_HYPHEN, "").split())
    query_words = set(words_of(query))
    words = [(m.start(), m.end(), _folded(m[0])) for m in WORD.finditer(text)]
    shared = [match for match in words if match[2] in query_words]
    # Find the best span from one shared word to another, then add equal context on both sides.
    inside: Counter[str] = Counter()
    best, span = -1, (0, 0)
    first = weight = 0
    for begin, end, word in shared:
        weight += len(word) * (inside[word] == 0)
        inside[word] += 1
        while end - shared[first][0] > size and shared[first][0] < begin:
            leaving = shared[first][2]
            inside[leaving] -= 1
            weight -= len(leaving) * (inside[leaving] == 0)
            first += 1
        if weight > best:
            best, span = weight, (shared[first][0], end)
    room = max(0, size - (span[1] - span[0])) // 2
    begin = max(0, min(span[0] - room, len(text) - size))
    end = min(len(text), begin + size)
    # Drop cut-off words at both ends if a space is near.
    if begin > 0 and not text[begin - 1].isspace() and (space := text.find(" ", begin, begin + size // 4)) >= 0:
        begin = space + 1
    if end < len(text) and not text[end].isspace() and (space := text.rfind(" ", end - size // 4, end)) > begin:
        end = space
    before, after = "… " if begin > 0 else "", " …" if end < len(text) else ""
    shift = len(before) - begin
    marks = tuple((b + shift, e + shift) for b, e, _ in shared if begin <= b and e <= end)
    return Snippet(before + text[begin:end] + after, marks)
