"""Words with tags: CoNLL, CoNLL-U, and tables with a list of words and a list of tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.corpus.conll import TaggedLine, read_sentences
from unmask.corpus.reading import BadInput
from unmask.corpus.sources import Source
from unmask.errors import CorpusError
from unmask.finetuning.settings import Columns
from unmask.finetuning.values import class_of
from unmask.tasks.records import WordsRecord

_CONLLU = {"upos": 3, "xpos": 4}


def read_treebank(source: Source, bad: BadInput, label: str | None, *, with_tags: bool) -> list[WordsRecord]:
    """The sentences of a CoNLL or CoNLL-U file. Words of a multiword token are taken one by one, as they are tagged.

    Args:
        source: The file.
        bad: What is done about lines that cannot be read.
        label: The tags' column: its number, counted from 0; in CoNLL-U also `upos` or `xpos`. None: the last one, or
            `upos`.
        with_tags: Whether tags are read.

    Raises:
        CorpusError: A line has no such column, or no tag; with file and line.
    """
    is_conllu = source.kind == "conllu"
    if label is not None and not label.isdigit() and not (is_conllu and label in _CONLLU):
        ways = "upos, xpos or the column's number" if is_conllu else "its number"
        raise CorpusError(f"{source.path}: there is no column {label!r}; a column is named by {ways}, counted from 0")
    index = -1 if label is None else int(label) if label.isdigit() else _CONLLU[label]
    if is_conllu and label is None:
        index = _CONLLU["upos"]
    records = []
    for lines in read_sentences(source, bad):
        if lines is None:
            continue
        kept = [line for line in lines if not is_conllu or line.cells[0].isdigit()]
        if not kept:
            continue
        words = tuple(_cell(source.path, line, 1 if is_conllu else 0) for line in kept)
        tags = tuple(_tag(source.path, line, index) for line in kept) if with_tags else None
        records.append(WordsRecord(kept[0].number, words, tags))
    return records


def _cell(path: Path, line: TaggedLine, index: int) -> str:
    if index >= len(line.cells):
        raise CorpusError(f"{path}: line {line.number} has no column {index}, only {len(line.cells)} columns")
    return line.cells[index].strip()


def _tag(path: Path, line: TaggedLine, index: int) -> str:
    if index == -1 and len(line.cells) < 2:
        raise CorpusError(f"{path}: line {line.number} has a word without a tag")
    tag = _cell(path, line, index)
    if not tag or tag == "_":
        raise CorpusError(f"{path}: line {line.number} has no tag in column {index}")
    return tag


def read_tagged_rows(
    path: Path, rows: Sequence[tuple[int, dict[str, Any]]], columns: Columns, names: Sequence[str] | None = None
) -> Iterator[WordsRecord]:
    """Sentences of a table: lists of words, and lists of tags as long.

    Args:
        path: The file, for errors.
        rows: With their numbers.
        columns: Of words and tags.
        names: Of the tags by number, where the file says them.

    Raises:
        CorpusError: A row has something else, or lists of unequal length.
    """
    for number, row in rows:
        where = f"{path}: row {number}"
        words = _list(row, columns.text, where)
        if not all(isinstance(word, str) for word in words):
            raise CorpusError(f"{where} has {words!r} in column {columns.text!r}, not a list of words")
        if not words:
            raise CorpusError(f"{where} has no words in column {columns.text!r}")
        tags = None
        if columns.label is not None:
            tags = tuple(class_of(tag, where, columns.label, names) for tag in _list(row, columns.label, where))
            if len(tags) != len(words):
                raise CorpusError(f"{where} has {len(words)} words but {len(tags)} tags")
        yield WordsRecord(number, tuple(words), tags)


def _list(row: dict[str, Any], column: str | None, where: str) -> list[Any]:
    value = row.get(column or "")
    if not isinstance(value, list):
        raise CorpusError(f"{where} has {type(value).__name__} in column {column!r}, not a list")
    return value
