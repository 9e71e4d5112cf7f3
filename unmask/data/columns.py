"""Columns of tables: which column holds what, and what its values say about a document.

    column                      row                                                         text
    "text"                      {"text": "One."}                                            One.
    "content.text"              {"content": {"text": "One.", "url": "..."}}                 One.
    "paragraphs.text"           {"paragraphs": [{"text": "One."}, {"text": "Two."}]}        One.\nTwo.
    ["title", "body"]           {"title": "One", "body": "Two."}                            One\n\nTwo.
    "messages"                  {"messages": [{"role": "user", "content": "One?"}, ...]}    One?\n\n...

A column whose own name is `content.text` has precedence, and so has one named `title,body`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import CorpusError, listed, shown, whole_number
from unmask.data.reading import Row, broken_character

ColumnNames = str | int | Sequence[str | int] | None  # as a user names columns: one, several, or none
LINE, PARAGRAPH = "\n", "\n\n"
NOTHING: Any = object()  # no value; null is a value
_SPEAKERS = (("role", "content"), ("from", "value"))  # fields of a message: speaker and content
_FEW = 10  # rows: too few to tell classes from texts
# Addresses, hexadecimal numbers, and words with a number, such as `user_17`
_CODE = re.compile(
    r"(https?://|www\.)\S+|[\da-fA-F-]{8,}|[^\W\d]{0,12}(?:[-_:#./]|[:#] )?\d[\d.,:/ -]*|\d[\d.,:/T+ -]*[A-Za-z%]{0,3}"
)
_INDEX = re.compile(r"__index_level_\d+__")
_ROW_NAME = re.compile(r"|unnamed: \d+|(.*[\W_])?(ids?|uid|uuid|nr|no|idx|index|key)", re.I)
_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}([T ].*)?|(19|20)\d\d[01]\d[0-3]\d|\d{1,2}:\d\d(:\d\d.*)?")
# Numbers by their decimal sign, with or without separators of thousands
NUMBERS = {
    sign: re.compile(
        rf"[-+]?(\d+([{sign}]\d*)?|[{sign}]\d+|\d{{1,3}}([{other}\s'])\d{{3}}(\3\d{{3}})*([{sign}]\d*)?)(e[-+]?\d+)?"
    )
    for sign, other in (".,", ",.")
}
NO_LABEL = {"", "nan", "null", "<na>"}
_MOST_CLASSES, _LONGEST_CLASS = 20, 60  # most numbers that may be classes; longest name
_ID_NAME = re.compile(r"([\W_][iI][dD]|(?<=[^\WA-Z_])I[dD])\s*$")
_FRACTION = re.compile(r"[+-]?\d*\.\d*")
_WHOLE = re.compile(r"-?[0-9]+\.0")

# ----------------------------------------
# Usual names of columns by role, the likeliest first. Every command finds columns by this table.

# Two texts that are compared, or belong together
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("first", "second"), ("question", "sentence"), ("query", "passage"),
)  # fmt: skip
Role = Literal[
    "text", "chat", "id", "title", "label", "score", "tags", "words", "query", "answer", "negative", "match"
]  # fmt: skip
USUAL: Mapping[Role, tuple[str, ...]] = {
    "text": (
        "text", "content", "sentence", "document", "body", "abstract", "article", "review", "sequence", "tweet",
        "comment", "message", "post", "description", "utterance", "paragraph", "story", "smiles",
    ),
    "chat": ("messages", "conversations", "conversation"),
    "id": ("id", "_id", "doc_id", "docid", "document_id", "uid", "uuid"),
    "title": ("title", "headline", "heading", "subject"),
    "label": ("label", "labels", "gold_label", "class", "category", "target", "y"),
    "score": ("score", "label", "similarity_score", "value", "rating", "target", "y"),
    "tags": ("tags", "ner_tags", "pos_tags", "upos", "upos_tags", "labels"),
    "words": ("tokens", "words"),
    "query": ("query", "question", "anchor", *(first for first, _ in PAIRS), "title"),
    "answer": ("text", "passage", "positive", "document", "answer", *(second for _, second in PAIRS), "body"),
    "negative": ("negative", "hard_negative", "negative_1"),
    "match": (
        "label", "score", "similarity", "similarity_score", "relevance", "relevant", "is_relevant", "match", "is_match",
        "duplicate", "is_duplicate",
    ),
}  # fmt: skip
# These names, too, indicate a header of CSV.
USUAL_NAMES = {name for names in USUAL.values() for name in names} | {
    "idx", "index", "source", "url", "date", "lang", "split", "context", "name", "word", "term", "author", "summary",
    "sentiment", "line", "type",
}  # fmt: skip


Label = Literal["classes", "lists", "numbers"]


def find_column(
    rows: Sequence[Row],
    role: Role,
    named: str | None = None,
    *,
    where: str | Path,
    taken: Collection[str | None] = (),
) -> str | None:
    """The column of a table with a role, found in its first rows: the `named` one (a name, the path of a field, or a
    number, counted from 0), or a CorpusError if there is none; else the first with a usual name in any case (for ids
    also one that ends in `ID`, such as `CompoundID`) and without another role; None if no column has one."""
    if named is not None:
        if (column := named_column(rows, named)) is not None:
            return column
        matches = difflib.get_close_matches(named, names_in(rows), n=1)
        hint = f" (did you mean {matches[0]!r}?)" if matches else ""
        raise CorpusError(f"{where}: there is no column {named!r}; columns are {listed(names_in(rows))}{hint}")
    by_name = {name.strip().lower(): name for row in reversed(rows) for name in reversed(row) if name not in taken}
    usual = [by_name[name] for name in USUAL[role] if name in by_name]
    if role == "id":  # repeated values under other names are ids of something else, such as a chunk's document
        exact = [name for name in usual if name.strip().lower() in ("id", "_id")]
        id_names = [*usual, *filter(_ID_NAME.search, by_name.values())]
        usual = exact or [name for name in id_names if _are_ids([row.get(name) for row in rows])]
        if exact and any(isinstance(row.get(exact[0]), dict) and "$oid" in row[exact[0]] for row in rows):  # MongoDB's
            return f"{exact[0]}.$oid"
    return usual[0] if usual else None


def _are_ids(values: Sequence[Any]) -> bool:
    """Whether values are texts or whole numbers, all of them different."""
    texts = [str(value).strip() for value in values if isinstance(value, str | int) and not isinstance(value, bool)]
    return all(text and not _FRACTION.fullmatch(text) for text in texts) and len({*texts}) == len(values) > 0


def named_column(rows: Sequence[Row], named: str) -> str | None:
    """The column that a user means: the one of this name, else of this number, counted from 0; None if none is."""
    columns, number = columns_in(rows), whole_number(named)
    numbered = columns[number] if number is not None and number < len(columns) else None
    return named if has_column(rows, named) else numbered


def columns_in(rows: Sequence[Row]) -> list[str]:
    """The names of all columns, in order, without the index of rows that pandas writes to Parquet."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if not _INDEX.fullmatch(name)]


def text_columns(rows: Sequence[Row], named: ColumnNames, *, where: Path, taken: Collection[str]) -> list[str]:
    """The named columns of a table's text; else the one most likely to be text. Empty if no column is likely."""
    if named is not None:
        names = [str(named)] if isinstance(named, str | int) else [str(name) for name in named]
        if len(names) == 1 and "," in names[0] and not has_column(rows, names[0]):
            names = [part.strip() for part in names[0].split(",")]
        if not names:
            raise CorpusError(f"{where}: the list of columns is empty; name a column, or leave the setting out")
        return [str(find_column(rows, "text", name, where=where)) for name in names]
    column = likeliest_text(rows, taken)
    return [] if column is None else [column]


def likeliest_text(rows: Sequence[Row], taken: Collection[str | None], *, clear: bool = False) -> str | None:
    """The column most likely to hold text. None if none does; if a field of an object holds far more, beside a column
    of another name than is usual; or, if `clear`, if another one has over half of its weight."""
    weights = text_weights(rows, taken)
    first, second, *_ = [*weights, None, None]
    if first is not None and first.lower() not in (*USUAL["text"], *USUAL["chat"]):
        # As in Elasticsearch's {"_index": "news", "_source": {"text": "..."}} and SQuAD's {"title": "The sea",
        # "paragraphs": [{"context": "..."}]}: which field, only the user knows
        objects = [{f"{name}.{field}": text for name, value in row.items()
                    for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)
                    for field, text in each.items() if isinstance(text, str)} for row in rows]  # fmt: skip
        if max(text_weights(objects, taken).values(), default=0.0) > 10 * weights[first]:
            return None
    is_clear = first is not None and weights[first] >= max(1e-6, 2 * weights.get(second or "", 0.0))
    return first if is_clear or not clear else None


def text_weights(rows: Sequence[Row], taken: Collection[str | None]) -> dict[str, float]:
    """The columns that hold text, the likeliest first, by weight: the number of characters, times three under a usual
    name. `text` comes before all others, unusual columns of few different values after. Numbers, dates, codes and
    addresses do not count."""
    weights: dict[str, float] = {}
    for name in columns_in(rows):
        values = [row[name] for row in rows if row.get(name)]
        if name in taken or not values:
            continue
        is_usual, is_chat = name.lower() in USUAL["text"], name.lower() in USUAL["chat"]
        texts = [value for value in values if isinstance(value, str)]
        chats = [contents for value in values if is_chat and (contents := contents_of(value)) is not None]
        with_letters = sum(any(map(str.isalpha, text)) for text in texts)
        codes = 0 if is_usual else sum(_CODE.fullmatch(text.strip()) is not None for text in texts)
        if 2 * (with_letters - codes) >= len(values):
            weight = float(sum(map(len, texts)))
            # In more rows, fewer different values than a tenth are classes.
            if name.lower() == "text":
                weight *= 1e9
            elif not is_usual and len(texts) > _FEW and len(set(texts)) <= max(2, len(texts) / 10):
                weight *= 1e-6
            weights[name] = weight * (3 if is_usual else 1)
        elif 2 * len(chats) >= len(values):
            weights[name] = float(sum(len(str(content)) for contents in chats for content in contents))
    return dict(sorted(weights.items(), key=lambda each: -each[1]))


def likely_labels(rows: Sequence[Row], taken: Collection[str | None], *, of: Label) -> dict[str, list[str]]:
    """The columns that may hold labels, with their values, the commonest first: `classes` or `lists` of them (few short
    values, each in several rows), or `numbers`. Ids, dates and texts are excluded."""
    likely: dict[str, list[str]] = {}
    for name in columns_in(rows):
        cells = [row.get(name) for row in rows]
        every = [part for cell in cells for part in (cell if isinstance(cell, list) and of == "lists" else [cell])]
        values = [str(without_gaps(value)).strip() for value in every if value is not None]
        if of == "lists":
            values = [part.strip() for value in values for part in re.split("[;,|#]", value)]
        counts = Counter(value for value in values if value.lower() not in NO_LABEL)
        is_date = any(isinstance(each, date | datetime | time) for each in every) or all(map(_DATE.fullmatch, counts))
        if name in taken or len(counts) < 2 or is_date or _ROW_NAME.fullmatch(name.strip()) or _ID_NAME.search(name):
            continue
        numbers = [value for value in counts if any(each.fullmatch(value.lower()) for each in NUMBERS.values())]
        whole = sorted(int(value) for value in numbers if whole_number(value) is not None)
        if of == "numbers":
            is_id = len(whole) == counts.total() > _FEW and whole[-1] - whole[0] < len(whole)  # numbered rows
            is_label = len(numbers) == len(counts) and not is_id and not any(re.match("0[0-9]", n) for n in numbers)
        else:
            # Classes are few and short, each three times on average; numbers among them are few and whole.
            few = counts.keys() <= {"0", "1", "-1", "0.0", "1.0"} or 3 * len(counts) <= counts.total()
            are_whole = len(numbers) <= _MOST_CLASSES and all(re.fullmatch(r"-?\d+(\.0)?", n) for n in numbers)
            is_label = few and are_whole and max(map(len, counts)) <= _LONGEST_CLASS
        if is_label:
            likely[name] = [value for value, _ in counts.most_common()]
    return likely


# ----------------------------------------
# Values of a column, or of a field within one


def value_at(row: Row, name: str, missing: Any = None) -> Any:
    """The value of a column, or of a field within one, whose path has dots; for a list on the path, all its values.
    `missing` if there is no such column or field.

    Example: `a.b` is 1 in `{"a.b": 1}` and in `{"a": {"b": 1}}`, and [1, 2] in `{"a": [{"b": 1}, {"b": 2}]}`.
    """
    if name in row:
        return row[name]
    for end in range(len(name) - 1, 0, -1):
        if name[end] != "." or name[:end] not in row:
            continue
        outer, rest = row[name[:end]], name[end + 1 :]
        if outer is None:
            return None
        value = NOTHING
        if isinstance(outer, dict):
            value = value_at(outer, rest, NOTHING)
        elif isinstance(outer, list):
            inner = [value_at(each, rest, NOTHING) for each in outer if isinstance(each, dict)]
            values = [each for each in inner if each is not NOTHING]
            flat = [part for each in values for part in (each if isinstance(each, list) else [each])]
            value = flat if values or not outer else NOTHING
        if value is not NOTHING:
            return value
    return missing


def has_column(rows: Sequence[Row], name: str) -> bool:
    """Whether any row has a column, or a field within one. Nulls on its path count only if no row lacks it."""
    if any(name in row for row in rows):
        return True
    values = [value_at(row, name, NOTHING) for row in rows]
    missing, nulls = (sum(each is what for each in values) for what in (NOTHING, None))
    return missing + nulls < len(values) or (nulls > 0 and not missing)


def names_in(rows: Sequence[Row]) -> list[str]:
    """The columns of rows, as users may name them: objects by their fields, up to three levels deep."""

    def paths(row: Row, levels: int) -> Iterator[str]:
        for name, value in row.items():
            inner = value[:1] if isinstance(value, list) else [value]
            if not inner or not isinstance(inner[0], dict) or levels == 1 or contents_of(value) is not None:
                yield name
            else:
                yield from (f"{name}.{path}" for path in paths(inner[0], levels - 1))

    return list(dict.fromkeys(name for row in rows for name in paths(row, 3)))


def contents_of(value: Any) -> list[Any] | None:
    """The contents of a chat's messages, each with `role` and `content`, or `from` and `value`; None if it is no
    chat."""
    for speaker, content in _SPEAKERS:
        if isinstance(value, dict):  # `datasets` may store a list of objects as columns
            who, what = value.get(speaker), value.get(content)
            if isinstance(who, list) and isinstance(what, list):
                return what
        elif (
            isinstance(value, list)
            and all(isinstance(each, dict) and speaker in each for each in value)
            and (contents := [each[content] for each in value if content in each])
        ):
            return contents
    return None


def text_in(value: Any) -> str | None:
    """The text of a value: the value itself, the lines of a list, or a chat's messages as paragraphs; None: it has
    none.

    Parts of a message (`{"type": "text", "text": "..."}`) without text are left out.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):  # an empty cell in pandas
        return None
    contents = contents_of(value)
    what = "a message with" if contents is not None else "a list of" if isinstance(value, list) else ""
    paragraphs: list[str | None] = []
    for content in [value] if contents is None else contents:  # a list of parts, or None in a tool call
        lines: list[str | None] = []
        for part in content if isinstance(content, list) else [content]:
            text = part
            if what and isinstance(part, dict) and isinstance(part.get("type"), str):
                text = part.get("text") if isinstance(part.get("text"), str) else None  # a picture, a call of a tool
            if text is not None and not isinstance(text, str):
                fields = (
                    f"; name one of its fields after a dot: {listed(part)}" if isinstance(part, dict) and part else ""
                )
                kind = f"{what} {type(part).__name__}, not of texts" if what else f"{type(part).__name__}, not a text"
                raise ValueError(kind + fields)
            lines.append(text)
        paragraphs.append(joined(lines, LINE))
    return joined(paragraphs, PARAGRAPH)


def joined(parts: Iterable[str | None], between: str) -> str | None:
    """Joins the parts that are not empty; None if there are no parts."""
    texts = [part for part in parts if part is not None]
    return between.join(text for text in texts if text and not text.isspace()) if texts else None


def without_gaps(value: Any) -> Any:
    """A value from a column with gaps, where pandas turns whole numbers into floats: 3 for 3.0; None for NaN and
    pandas' NA."""
    if not isinstance(value, float):
        return None if type(value).__name__ == "NAType" else value
    return None if math.isnan(value) else int(value) if value.is_integer() else value


def _spelled(value: Any) -> str | None:
    """A text, number or boolean as the name that it has in files of every kind: `17.0`, as pandas writes 17 to CSV if
    the column has gaps, is `17`, and `True` is `true`; None if it is missing or blank."""
    text = "" if value is None else str(value).strip()
    if text in ("True", "TRUE", "False", "FALSE"):
        return text.lower()
    return text.removesuffix(".0") if _WHOLE.fullmatch(text) else text or None


def class_name(value: Any, names: Sequence[str] | None = None) -> str | None:
    """The name of a class; None for null, an empty text and not-a-number. `names` are those of numbered classes, if the
    table has them (`class_names`); then -1 is None too, which `datasets` writes for a missing label. A ValueError says
    what it is if it is no text, number or boolean, or a number without a name.

    Example: ` spam ` is `spam`; 3, 3.0 and `3.0` are `3`; 4.5 is `4.5`; True is `true`; with the names `ham`, `spam`, 1
    is `spam`.
    """
    value = without_gaps(value)
    if value is None or isinstance(value, str | bool):
        return _spelled(value)
    if not isinstance(value, int | float):
        raise ValueError(f"{type(value).__name__}, which is not a class (a text, a number or a boolean)")
    if names is None:
        import numpy as np  # not needed by commands without tables

        # A number of a float32 column has its shortest name: 4.1, not 4.099999904632568.
        return str(single if not isinstance(value, int) and (single := np.float32(value)) == value else value)
    if isinstance(value, float) or not -1 <= value < len(names):
        raise ValueError(f"the number {value}, where the file names {len(names)} classes, counted from 0,")
    return None if value == -1 else names[value].strip() or None


Fact = Literal["label", "group", "id", "title"]


def fact_of(role: Fact, value: Any, classes: Sequence[str] | None = None) -> str | int | None:
    """Converts a value to a class, group, id or title (on one line); None if it is missing. A ValueError says why it
    cannot be converted. `classes` as `names` of `class_name`."""
    if isinstance(value, str) and (broken := broken_character(value)):
        raise ValueError(f"{broken}, which is not a character,")
    if role == "label":
        return class_name(value, classes)
    value = without_gaps(value)
    if role == "group":
        if isinstance(value, list | dict | bytes):
            raise ValueError(f"{type(value).__name__}, which is not a group (a text, a number or a date)")
        return _spelled(value)
    if role == "id" and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ValueError(
            f"{shown(value)}, which is not an id (a text or an integer): set id_column to '' to number the rows"
        )
    if role == "title" and not (isinstance(value, str) and value.strip()):
        return None
    return " ".join(value.split()) if role == "title" else value


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of classes in the order of their numbers: whole numbers by size, else alphabetically.

    Example: `10`, `9` are 9, 10; `10`, `9`, `x` are 10, 9, x.
    """
    distinct = sorted(set(names))
    are_numbers = all(whole_number(name.removeprefix("-")) is not None for name in distinct)
    return tuple(sorted(distinct, key=int) if are_numbers else distinct)
