"""Annotations of a text: labelled spans of characters by column, and their form in the rows of a table.

    text          Anna Lee lives in New York.
    entities      (0, 8, "PER")  (18, 26, "LOC")
    chunks        (0, 8, "NP")   (18, 26, "NP")
    pos           (0, 4, "PROPN") (5, 8, "PROPN") (9, 14, "VERB") ...       one span per word
    dependencies  (0, 4, "nsubj", +2) (5, 8, "flat", -1) (9, 14, "root", 0)  one span per word, with the head's offset

The spans of a column are sorted and do not overlap: of nested ones only the outermost are kept. A word is empty (begin
= end) if several words of a treebank share the letters of one (French `du` for `de le`).

In a row, annotations are lists beside the text, which are checked and converted to this form:

    {"text": "Anna sleeps.", "entities": [[0, 4, "PER"]], "dependencies": [[0, 4, "nsubj", 1], [5, 11, "root", 1]]}

There a span is `[start, end, label]` or `{"start": 0, "end": 4, "label": "PER"}`. In `dependencies` the index of the
head in the list follows, counted from 0 (`"head"`); a root names itself. Annotated tokens: see `TokenPlaces` below.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import DataError, shown

Column = Literal["entities", "pos", "dependencies", "chunks"]
# Other names of a span's start, end and label, in doccano, Label Studio and pipelines of transformers.
_ALSO = {
    "start": ("start", "start_offset", "begin"),
    "end": ("end", "end_offset", "stop"),
    "label": ("label", "labels", "type", "tag", "entity_group", "entity"),
}


class Span(NamedTuple):
    begin: int  # first character
    end: int  # behind the last character
    label: str
    head: int = 0  # for `dependencies`: how many spans after this one (negative: before) its head is; 0 for a root


Spans = Mapping[str, tuple[Span, ...]]


def outermost(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sorts spans and drops those that begin within another: `University of Bonn` is masked as one."""
    outer: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        if not outer or span.begin >= outer[-1].end:
            outer.append(span)
    return tuple(outer)


def cut_spans(spans: Spans, begin: int, end: int) -> Spans:
    """The annotations of `text[begin:end]`, counted from its first character. A span across a cut is in both parts."""
    cut: dict[str, tuple[Span, ...]] = {}
    for column, entries in spans.items():
        first = bisect_right(entries, begin, key=lambda s: s.end)
        last = max(bisect_left(entries, end, key=lambda s: s.begin), first)
        cut[column] = tuple(
            span._replace(begin=max(span.begin - begin, 0), end=min(span.end, end) - begin)
            for span in entries[first:last]
        )
    return cut


def join_spans(parts: Iterable[tuple[int, Spans]]) -> Spans:
    """Joins the annotations of consecutive parts of a text; each part comes with the number of characters before it."""
    joined: dict[str, list[Span]] = {}
    for offset, part in parts:
        for column, entries in part.items():
            moved = (span._replace(begin=span.begin + offset, end=span.end + offset) for span in entries)
            joined.setdefault(column, []).extend(moved)
    return {column: tuple(entries) for column, entries in joined.items()}


def closed_loop(heads: list[int]) -> bool:
    """Whether the heads of words form a cycle; `heads` has the index of each word's head, its own for a root."""
    above = own = np.array(heads, dtype=np.int64)
    for _ in range(len(heads).bit_length()):
        above = above[above]  # twice as far up
    return bool((own[above] != above).any())


def read_fields(row: Mapping[str, Any], text: str, fields: Mapping[str, str]) -> Spans:
    """The annotations of a row's text, read from each column's field. A ValueError says which is malformed, and how."""
    annotations: dict[str, tuple[Span, ...]] = {}
    for column, field in fields.items():
        if not isinstance(entries := row.get(field), list):
            raise ValueError(f"has {shown(entries)} in {field!r}, not a list (it may be empty) of [start, end, label]")
        spans = [_span(entry, column, field, len(text)) for entry in entries]
        if column in ("entities", "chunks"):
            annotations[column] = outermost(spans)
            continue
        if column == "dependencies":
            if (outside := next((s.head for s in spans if not 0 <= s.head < len(spans)), None)) is not None:
                raise ValueError(
                    f"names the head {shown(outside)} in {field!r}, but has {len(spans)} words, counted from 0"
                )
            if closed_loop([span.head for span in spans]):
                raise ValueError(f"has heads in {field!r} that form a cycle")
            spans = [span._replace(head=span.head - number) for number, span in enumerate(spans)]
        for before, after in pairwise(spans):
            if after.begin < before.end:
                raise ValueError(
                    f"has {list(after[:3])} in {field!r} after {list(before[:3])}; give words in text order, "
                    "without overlaps"
                )
        annotations[column] = tuple(spans)
    return annotations


def holds_spans(value: Any) -> bool:
    """Whether a value is a list of spans of characters, as lists or as objects with a start and an end."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, dict):
        return all(isinstance(number, int) for number in values_of(first, ("start", "end")))
    return isinstance(first, list | tuple) and [type(part) for part in first[:3]] == [int, int, str]


def values_of(entry: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """Values of an object's fields, under the first name that it has for each; a list of one gives its element."""
    values = [next((entry[also] for also in _ALSO.get(name, (name,)) if also in entry), None) for name in names]
    return [value[0] if isinstance(value, list) and len(value) == 1 else value for value in values]


def _span(entry: Any, column: str, field: str, num_chars: int) -> Span:
    names = ("start", "end", "label", *(("head",) if column == "dependencies" else ()))
    values = values_of(entry, names) if isinstance(entry, dict) else entry
    what, shape = f"has {shown(entry)} in {field!r}", f"[{', '.join(names)}]"
    if not isinstance(values, list | tuple) or len(values) != len(names):
        raise ValueError(f"{what}, not {shape}")
    begin, end, label, *head = values
    are_numbers = all(isinstance(n, int) and not isinstance(n, bool) for n in (begin, end, *head))
    if not are_numbers or not isinstance(label, str) or not label:
        raise ValueError(f"{what}, not {shape} with whole numbers and a text as label")
    if not 0 <= begin < end <= num_chars:
        raise ValueError(f"{what}, but its text has the characters 0 to {num_chars}")
    return Span(begin, end, label, *head)


def without_returns(text: str, spans: Spans) -> Spans:
    """The annotations, counted in the text after its `\\r\\n` became `\\n`."""

    def moved(place: int) -> int:
        return place - text.count("\r\n", 0, place)

    return {
        column: tuple(span._replace(begin=moved(span.begin), end=moved(span.end)) for span in entries)
        for column, entries in spans.items()
    }


def written_fields(spans: Spans) -> dict[str, list[list[Any]]]:
    """Annotations in the form that `read_fields` reads. A word whose head was cut away is a root; empty words are
    dropped."""
    rows: dict[str, list[list[Any]]] = {}
    for column, entries in spans.items():
        filled = [number for number, span in enumerate(entries) if span.begin < span.end]
        rows[column] = [list(entries[number][:3]) for number in filled]
        if column == "dependencies":
            place = {number: own for own, number in enumerate(filled)}
            for (number, own), row in zip(place.items(), rows[column], strict=True):
                row.append(place.get(number + entries[number].head, own))
    return rows


# Entities from the tags of words, in any scheme: BIO, IOB1, BIOES, BILOU, BMES, with or without labels.

TAG = re.compile(r"([BIMELSU])(?:-(.+))?")  # all tags other than `O`


def entities_of(tags: tuple[str | None, ...], *, in_scheme: bool = True) -> tuple[tuple[str, int, int], ...]:
    """The entities of a sentence, [begin, end) in words: (label, begin, end).

    All schemes are read at once. An entity begins at `B-`, `S-`, `U-`, where the label changes, and after `O`, `E-`,
    `L-`, `S-` and `U-`. Bare `B`, `I` ... have the label `entity`. Tags without a prefix, and all tags if not
    `in_scheme` (parts of speech), are labels; equal neighbours form one entity. Words without a tag do not interrupt an
    entity.

    Source: seqeval's default mode, which is that of conlleval (Tjong Kim Sang and De Meulder 2003).
    """
    entities: list[tuple[str, int, int]] = []
    is_open = False
    for place, tag in enumerate(tags):
        if tag is None:
            continue
        match = TAG.fullmatch(tag) if in_scheme else None
        prefix, label = (match[1], match[2] or "entity") if match else ("I", tag)
        if is_open and prefix not in "BSU" and entities[-1][0] == label:
            entities[-1] = (label, entities[-1][1], place + 1)
        elif tag != "O":
            entities.append((label, place, place + 1))
        is_open = tag != "O" and prefix not in "ELSU"
    return tuple(entities)


# Words of raw text, before tokenization.

# Ranges of a pattern: kana and ideographs, with the marks that repeat these; all scripts without spaces between words,
# also Thai, Lao, Tibetan, Burmese and Khmer.
IDEOGRAPHS = (
    r"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
UNSPACED_RANGES = r"\u0e00-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f" + IDEOGRAPHS
UNSPACED = re.compile(f"[{UNSPACED_RANGES}]")
# What sentences and quotations end with, in most scripts; `“` and `«` are German
SENTENCE_ENDS = tuple(".!?…。！？．｡।॥۔؟։።။។")
QUOTE_ENDS = tuple("\"'”’“»«」』")

_RUN = re.compile(r"\w+|[^\w\s]")  # Python's \w lacks combining marks
# Joiners within Persian and Indian words and emoji; soft hyphens; colours of emoji, letters of flags
_JOINERS = re.compile("[\u200c\u200d\u00ad\u2060\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")


def is_mark(character: str) -> bool:
    """Whether it is an accent or vowel sign that combines with the character before it, or joins two characters."""
    return unicodedata.category(character)[0] == "M" or _JOINERS.match(character) is not None


def word_spans(text: str) -> list[tuple[int, int]]:
    """The words of a text, [begin, end) in characters: runs of letters and digits with their marks, and single other
    signs.

    Example: `Anna's` has three, and Hindi words, whose vowels are marks, are whole.
    """
    spans: list[tuple[int, int]] = []
    in_word = False
    for match in _RUN.finditer(text):
        begin, end = match.span()
        joins = bool(spans) and spans[-1][1] == begin
        is_run = text[begin].isalnum() or text[begin] == "_"
        if joins and (is_mark(text[begin]) or (in_word and is_run) or text[begin - 1] == "\u200d"):
            spans[-1] = spans[-1][0], end
        else:
            spans.append((begin, end))
            in_word = is_run
    return spans


# ----------------------------------------
# From annotations of characters to annotations of tokens, for any tokenizer.
#
# A token belongs to a span if it covers at least one of its characters other than white space: a byte-level ` New`
# belongs to `New York`, but the space after it does not. Tokens between a span's first and last token belong to it as
# well. A lone mark of a space (Unigram's `▁`) goes with the word that it begins. If two spans share a token, it belongs
# to the first.
#
# A token's annotation is one unsigned integer, 0 without annotation:
#
#     entities, chunks   2 x label + (1 where the span begins)
#     pos                label
#     dependencies       role << 25 | (1 if the word has dependents) << 24 | before << 12 | behind
#
# `label` and `role` are label numbers, counted from 1; the manifest lists their names. `before` and `behind` count the
# tokens of the word's subtree before and after this token, up to 4,095. If a subtree is not contiguous, only the word's
# own tokens count. So masking finds subtrees by addition and never walks a tree.

Ints = NDArray[np.int64]
ROLE_SHIFT, HEADS_SHIFT, BEFORE_SHIFT = 25, 24, 12
FARTHEST = (1 << BEFORE_SHIFT) - 1
MOST_ROLES = 127
_FAR = np.iinfo(np.int64).max
_SPACES = np.array([c for c in range(0x3001) if chr(c).isspace()], dtype=np.uint32)


@dataclass(frozen=True)
class TokenPlaces:
    """The characters that each token covers, for consecutive texts."""

    begin: Ints  # [num_tokens], int64, like `end`: characters, counted through all texts
    end: Ints
    lengths: Ints  # [num_texts], int64: tokens of each text
    word_starts: NDArray[np.bool_]  # [num_tokens], bool


@dataclass(frozen=True)
class Aligned:
    values: Ints  # [num_tokens], int64, written as above
    spans: int  # number of spans
    lost: int  # number of spans without a token


def column_types(labels: Mapping[str, Sequence[str]]) -> dict[str, type[np.unsignedinteger]]:
    """The smallest unsigned integer type for each column, given its labels; a DataError if there are too many."""
    types: dict[str, type[np.unsignedinteger]] = {}
    for column, names in labels.items():
        if column == "dependencies" and len(names) > MOST_ROLES:
            raise DataError(f"dependencies have {len(names)} roles, more than {MOST_ROLES}; drop the subtypes")
        largest = len(names) if column == "pos" else 2 * len(names) + 1
        if largest > 0xFFFF:
            raise DataError(f"{len(names):,} labels of {column} are too many to store; use fewer")
        types[column] = np.uint32 if column == "dependencies" else np.uint8 if largest <= 0xFF else np.uint16
    return types


def align(
    texts: Sequence[str], places: TokenPlaces, spans: Sequence[Spans], labels: Mapping[str, Sequence[str]]
) -> dict[str, Aligned]:
    """Annotates the tokens of texts, column by column, given the `spans` of each text. `labels` are each column's
    labels in the order of their numbers; a DataError names a label that is not among them."""
    text_begin = np.cumsum([0, *map(len, texts)])
    inked = ~np.isin(np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32), _SPACES)
    num_chars, columns = len(inked), {}
    for column, names in labels.items():
        of_texts = [each.get(column, ()) for each in spans]
        flat = [span for entries in of_texts for span in entries]
        number_of = {label: number for number, label in enumerate(names, 1)}
        try:
            numbers = np.fromiter((number_of[span.label] for span in flat), dtype=np.int64, count=len(flat))
        except KeyError as error:
            raise DataError(
                f"the label {error} of {column} is not among {', '.join(names)}; prepare the text again"
            ) from error

        # 1. For each token the number of its span, counted from 1 through all texts; 0 if it covers none.
        of_char = np.zeros(num_chars + 1, dtype=np.int64)
        number = 0
        for begin, end, entries in zip(text_begin, text_begin[1:], of_texts, strict=False):
            for span in entries:
                number += 1
                of_char[begin + span.begin : min(begin + span.end, end)] = number
        of_char[:-1] *= inked
        # For each character, the first one from there on that belongs to a span.
        nearest = np.where(of_char > 0, np.arange(num_chars + 1), num_chars + 1)
        nearest = np.minimum.accumulate(nearest[::-1])[::-1]
        first = nearest[np.minimum(places.begin, num_chars)]
        owner = np.where(first < places.end, of_char[np.minimum(first, num_chars)], 0)
        if len(owner) > 1:
            # A blank token that begins a word goes with the token after it, if the word continues there.
            ink = np.concatenate([[0], np.cumsum(inked)])
            blank = ink[places.end] == ink[places.begin]
            mark = blank[:-1] & places.word_starts[:-1] & ~places.word_starts[1:] & (owner[:-1] == 0)
            owner[:-1][mark] = owner[1:][mark]

        # 2. The nearest span at or before each token (0 if there is none), and at or after it; both increase.
        before = np.maximum.accumulate(owner)
        behind = np.minimum.accumulate(np.where(owner > 0, owner, _FAR)[::-1])[::-1]
        inside = (before == behind) & (before > 0)
        own = np.where(inside, before, 0)
        begins = inside & (np.diff(own, prepend=0) != 0)
        label = np.where(inside, numbers[own - 1] if flat else 0, 0)
        if column == "pos":
            values = label
        elif column == "dependencies":
            subtrees = _subtrees(flat, [len(entries) for entries in of_texts], own, before, behind)
            values = np.where(inside, label << ROLE_SHIFT | subtrees, 0)
        else:
            values = 2 * label + begins
        columns[column] = Aligned(values, len(flat), len(flat) - int(begins.sum()))
    return columns


def _subtrees(words: Sequence[Span], counts: Sequence[int], own: Ints, before: Ints, behind: Ints) -> Ints:
    """For each token the bits of its word's subtree; `counts` has the number of words in each text."""
    if not words:
        return np.zeros_like(own)
    number = np.arange(len(words))
    text = np.repeat(np.arange(len(counts)), counts)
    head = number + np.array([word.head for word in words], dtype=np.int64)
    inside = (head >= 0) & (head < len(words))
    head = np.where(inside & (text[np.where(inside, head, 0)] == text), head, number)  # cut away: a root
    # Each word is counted at every word above it in the tree, one level at a time.
    low, high, size = number.copy(), number.copy(), np.ones(len(words), dtype=np.int64)
    source = np.flatnonzero(head != number)
    target = head[source]
    while len(source):
        np.minimum.at(low, target, source)
        np.maximum.at(high, target, source)
        np.add.at(size, target, 1)
        rises = head[target] != target
        source, target = source[rises], head[target][rises]
    contiguous = size == high - low + 1
    low, high = np.where(contiguous, low, number), np.where(contiguous, high, number)
    first = np.searchsorted(before, low + 1, side="left")
    last = np.searchsorted(behind, high + 1, side="right") - 1
    word, place = np.maximum(own - 1, 0), np.arange(len(own))
    to_first, to_last = (np.clip(n, 0, FARTHEST) for n in (place - first[word], last[word] - place))
    return (size > 1)[word].astype(np.int64) << HEADS_SHIFT | to_first << BEFORE_SHIFT | to_last
