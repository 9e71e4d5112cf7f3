"""What a document is made of, as far as its text says it: a title, and paragraphs.

Vectors and arrays                        a first line that is short and no sentence: the title
An array has a fixed number of ...        paragraphs: between empty lines, where there are any, else lines;
A vector grows as elements ...            lines that were broken to fit a page are joined again
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from unmask.text.sources import Source, TextColumn
from unmask.text.text_columns import columns_of

TITLE_WORDS = 16
BROKEN_CHARS = 50  # a line that is as long and ends within a sentence was broken to fit a page
TITLE_NAMES = ("title", "headline", "heading", "subject")
_BETWEEN = re.compile(r"\n[^\S\n]*\n\s*")
_ENDS = tuple(".!?:;…。！？\"”’')]")
_NO_TITLE = tuple(".!?,;:…。！？")
_MARK = re.compile(r"#{1,6}\s+")


@dataclass(frozen=True)
class DocumentParts:
    """The parts of a document, or of a piece of a long one.

    Attributes:
        title: None where there is none.
        paragraphs: None of them is empty.
        marked: Whether the title is marked as such: by its column, or as a heading.
    """

    title: str | None
    paragraphs: list[str] = field(default_factory=list)
    marked: bool = False


def parts_of_text(text: str, *, begins: bool = True, titled: bool = False) -> DocumentParts:
    """Tells the parts of a document apart.

    Args:
        text: The document, or a piece of it.
        begins: Whether the document begins here, so that there may be a title.
        titled: Whether its first paragraph is known to be the title.
    """
    found = [part for part in (_joined(part) for part in _BETWEEN.split(text)) if part]
    if len(found) == 1:
        found = _lines(text)
    if begins and not titled and len(found) > 1 and "\n" in text and not _is_title(found[0]):
        first, _, rest = text.strip().partition("\n")  # a title with nothing between it and its first paragraph
        if _is_title(first.strip()) and len(_lines(text)) > 1:
            found = [first.strip(), *parts_of_text(rest, begins=False).paragraphs]
    if begins and len(found) > 1 and (titled or _is_title(found[0])):
        marked = titled or _MARK.match(found[0]) is not None
        return DocumentParts(_MARK.sub("", found[0]), found[1:], marked)
    return DocumentParts(None, found)


def _joined(block: str) -> str:
    return " ".join(block.split())


def _lines(text: str) -> list[str]:
    """Lines, those that were broken within a sentence joined."""
    found: list[str] = []
    goes_on = False
    for raw in text.split("\n"):
        line = _joined(raw)
        if not line:
            goes_on = False
            continue
        if goes_on:
            found[-1] += " " + line
        else:
            found.append(line)
        goes_on = len(line) >= BROKEN_CHARS and not line.endswith(_ENDS)
    return found


def _is_title(line: str) -> bool:
    bare = _MARK.sub("", line)
    return bool(bare) and len(bare.split()) <= TITLE_WORDS and len(bare) < 200 and not bare.endswith(_NO_TITLE)


def with_title_column(source: Source, names: list[str]) -> Source:
    """A table with the column of titles before that of the text, where it has one and no other column was asked for.

    Args:
        source: With the column of its text.
        names: Of its columns.
    """
    column: TextColumn | None = source.column
    if column is None or len(columns_of(column)) > 1:
        return source
    title = next((name for name in names if name.strip().lower() in TITLE_NAMES and name != column), None)
    if title is None:
        return source
    return Source(source.path, source.kind, (title, *columns_of(column)), source.label, source.group)
