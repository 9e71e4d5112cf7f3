"""CSV and TSV: finds the delimiter, the quotes and the header of a file from the beginning of its content.

    id;datum;text                            delimiter ';', a header: words above numbers and dates
    0;2024-01-01;"It rained, and blew."

    post,The old stove waits.                delimiter ',', no header: `post` is a value of its column, and the
    comment,A lamp shines.                   columns are named by their numbers, 0 and 1
    post,The river moves on.

Source: van den Burg et al. 2019 (Wrangling messy CSV files by detecting row and type patterns): the right delimiter
gives rows of one pattern and cells of clean types. Here the pattern is the width of the first row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

from unmask.core.errors import CorpusError
from unmask.data.columns import USUAL, USUAL_NAMES
from unmask.data.reading import LONGEST_ROW, BadInput, Row, cut_rows, read_text
from unmask.data.sources import Layout, Source
from unmask.tokenizer.spans import SENTENCE_ENDS, UNSPACED

USUAL_DELIMITER = {"csv": ",", "tsv": "\t"}
_DELIMITERS = (",", ";", "\t", "|", "\x01")
_LOOK_CHARS, _LOOK_LINES, _LOOK_ROWS = 1 << 18, 20, 1000
_NUMBERS = (*USUAL["id"], "nr", "no", "index", "idx")
# A first line that is no row: it tells Excel the delimiter, or names the type of PowerShell's objects
_FIRST = re.compile(r'(?:"?(?i:sep)=(.)"?|#TYPE .*)\n?')
# A quoted cell after a delimiter and a space; earlier quotes in the line enclose whole cells.
_SPACED = r'^[^"\n]*(?:"[^"\n]*"[^"\n]*)*{0} +"(?:[^"\n]|"")*"(?:{0}|$)'
_INNER = re.compile(r"(?<=[^\s\d])[,;\t|](?=\S)|(?<=\S)[;\t|](?=\S)")  # without spaces around, mostly a delimiter


def find_layout(source: Source, bad: BadInput, named: Collection[str] | None = (), earlier: str = "") -> Layout | None:
    """The layout of a CSV or TSV file, as set in `bad.reading`, else as detected; None for other files. If the first
    row has one of the `named` columns, it is a header; None: columns of an earlier file had no names, so a short first
    text is no header. The delimiter of an `earlier` file is used if the first line has it."""
    if source.kind not in USUAL_DELIMITER:
        return None
    path, reading = source.path, bad.reading
    # 1. The beginning of the file, whose last row may be cut off
    text, is_cut = "", False
    for chunk in read_text(path, BadInput(skip=True, reading=reading)):
        text += chunk
        if is_cut := len(text) > _LOOK_CHARS and (text.count("\n") > _LOOK_LINES or len(text) > LONGEST_ROW):
            break
    intro = _FIRST.match(text)
    text = text[intro.end() :] if intro else text
    # 2. The delimiter: the usual one, unless another gives more rows of the first row's width, or cleaner cells
    usual, first_line = USUAL_DELIMITER[source.kind], text.lstrip("\n").partition("\n")[0]
    candidates = [usual, *(d for d in _DELIMITERS if d != usual and d in first_line)]
    if chosen := reading.delimiter or (intro and intro.group(1)) or earlier * (earlier in first_line):
        candidates = [chosen]
    spaced = {d: re.search(_SPACED.format(re.escape(d)), text, re.MULTILINE) is not None for d in candidates}
    rows_by = {d: _parsed(text, d, is_quoted=True, skips=spaced[d])[: -1 if is_cut else None] for d in candidates}
    best = max(candidates, key=lambda delimiter: _score(rows_by[delimiter]))  # ties: the first
    # 3. Quotes: between tabs they are mostly plain characters, unless they protect a tab or line end in a cell
    is_quoted = best != "\t" or _has_quotes(text, is_cut=is_cut)
    rows = rows_by[best] if is_quoted else _parsed(text, best, is_quoted=False)
    rows = [[cell.strip() for cell in row] for row in rows]
    if not rows:
        return Layout(best, is_quoted, False, ())
    # 4. The header
    first, rest = rows[0], rows[1:]
    has_header = reading.header if isinstance(reading.header, bool) else _is_header(first, rest, named, text)
    if has_header and any(row[-1] for row in rest) and all(len(row) == len(first) + 1 for row in rest):
        first = _with_missing_name(first, rest, text, best)
    width = len(first)
    if not has_header and reading.delimiter is None and 2 * sum(len(row) < width for row in rows) > len(rows):
        raise CorpusError(
            f"{path}: line 1 has {width} cells but most lines have fewer, so {best!r} seems to be part of the "
            "text; quote texts that contain it, or rename the file to .txt if each line is a text"
        )
    names = [first[n] if has_header and first[n] not in ("", *first[:n]) else str(n) for n in range(width)]
    return Layout(best, is_quoted, has_header, tuple(names), is_quoted and spaced[best])


def _with_missing_name(first: list[str], rest: Sequence[list[str]], text: str, delimiter: str) -> list[str]:
    """A header with an empty name added where rows have one more cell: first, as R writes it above names of rows; or
    last, as Windows' Event Viewer writes it above messages. Unchanged if neither is sure, since that cell may come from
    a delimiter in the texts."""
    heads = [row[0] for row in rest]
    are_numbers = all(map(str.isdigit, heads))
    are_quoted_names = text.lstrip().startswith('"') and len(set(heads)) == len(heads) <= text.count('\n"')
    if first[0].lower() not in _NUMBERS if are_numbers else are_quoted_names:
        return ["", *first]
    all_quoted = text.count('"\n') + text.endswith('"') >= len(rest)
    # Where one is quoted because it needs to be, so are all others that need it.
    some_quoted = any(delimiter in row[-1] or "\n" in row[-1] for row in rest)
    return [*first, ""] if all_quoted or some_quoted else first


def _parsed(text: str, delimiter: str, *, is_quoted: bool, skips: bool = False) -> list[list[str]]:
    csv.field_size_limit(LONGEST_ROW)
    reader = csv.reader(
        io.StringIO(text),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
        skipinitialspace=skips,
    )
    return list(islice(filter(None, reader), _LOOK_ROWS))


def _score(rows: Sequence[Sequence[str]]) -> tuple[float, float, bool]:
    """How well a delimiter fits: the share of rows as wide as the first one, rounded, and the share of cells with no
    other delimiter inside and no space in front. Zeros if it hardly fits. Last, whether the first row may be names."""
    width, cells = len(rows[0]) if rows else 0, [cell for row in rows for cell in row]
    share = sum(len(row) == width for row in rows) / max(len(rows), 1)
    clean = sum(not (cell.startswith(" ") or (len(cell) < 40 and _INNER.search(cell))) for cell in cells)
    cuts = width > 1 and share >= 0.9 and 2 * clean > len(cells)
    names = width > 1 and all(cell == cell.strip() and not _is_long(cell) for cell in rows[0])
    return (round(share, 1), clean / len(cells), True) if cuts else (0.0, 0.0, names)


def _has_quotes(text: str, *, is_cut: bool) -> bool:
    """Whether quotes in a TSV enclose cells. Either the whole text parses with quotes and a cell needs them (it holds a
    tab, a line end or a doubled quote), or all texts of a column have them."""
    if '"' not in text:
        return False
    quoted: list[list[str]] = []
    try:
        quoted.extend(filter(None, csv.reader(io.StringIO(text), delimiter="\t", strict=True)))
    except csv.Error as error:
        if not (is_cut and "unexpected end" in str(error)):
            return False
    as_is = _parsed(text, "\t", is_quoted=False)
    plain = set(re.split("[\t\n]", text))
    if any("\t" in cell or "\n" in cell or '"' in cell for row in quoted for cell in row if cell not in plain):
        return _score(quoted)[0] >= _score(as_is)[0]
    columns = list(zip(*as_is[1:], strict=False))
    return any(all(cell[:1] == '"' == cell[-1:] and len(cell) > 1 for cell in column) for column in columns)


def _num_words(cell: str) -> int:
    return len(cell.split()) + len(UNSPACED.findall(cell)) // 2


def _is_long(cell: str) -> bool:
    """Whether a cell is too long for a name, or a sentence."""
    return _num_words(cell) > 3 or cell.endswith(SENTENCE_ENDS)


def _has_digit(cell: str) -> bool:
    return any(map(str.isdigit, cell))


def _is_number(cell: str) -> bool:
    """Whether a cell is mostly digits: a number, a date or the like."""
    digits, letters = (sum(map(test, cell)) for test in (str.isdigit, str.isalpha))
    return digits > 2 * letters


def _is_header(first: Sequence[str], rest: Sequence[Sequence[str]], named: Collection[str] | None, text: str) -> bool:
    """Whether a first row holds names: whether its cells differ from the others in their columns."""
    lower = [cell.lower() for cell in first]
    if any(name.lower() in lower for name in named or () if not name.isdigit()):
        return True
    filled = [cell for cell in lower if cell]
    is_numbered = filled == [str(n) for n in range(len(filled))]
    score = 3.0 * is_numbered - (len(set(filled)) < len(filled))
    lines = text.split("\n", 200)[:-1]
    if len(lines) > 2 and '"' not in lines[0]:
        score += sum('"' in line for line in lines[1:]) > 0.8 * len(lines)
    scores = [
        _header_score(cell, [row[place] for row in rest if place < len(row) and row != first], place)
        for place, cell in enumerate(first)
    ]
    if named is None:  # only usual names, or words above numbers
        return is_numbered or 2.0 in scores or not USUAL_NAMES.isdisjoint(lower)
    return score + sum(scores) > 0


def _header_score(cell: str, column: Sequence[str], place: int) -> float:
    """How much a cell looks like its column's name (above 0), or like one of its values (below 0)."""
    values = [value for value in column if value]
    most = 0.9 * len(values)
    words, lengths = (sorted(map(size, values)) or [0] for size in (_num_words, len))
    median_words, median = words[len(words) // 2], lengths[len(lengths) // 2]
    usual = 1.5 if cell.lower() in USUAL_NAMES else 0.0
    is_long, is_number = _is_long(cell), _is_number(cell)
    # 1. An empty cell, as pandas writes it above its index; or an empty column
    if not cell:
        score = 1.0 if place == 0 and len(values) > 1 and all(map(str.isdigit, values)) else -0.5 * bool(values)
    elif not values:
        score = usual + 0.5 * bool(column) - 2.0 * (is_long or is_number)
    # 2. A cell that is one of the values; numbers, dates and codes, below one of their own or below a word
    elif sum(map(_is_number, values)) >= most:
        score = -2.0 if is_number else 2.0
    elif cell in values:
        score = -3.0
    elif is_number:
        score = 0.5 if cell == str(place) else -1.0
    # 3. Texts, below a text or below a word or two
    elif median_words >= 4:
        score = -4.0 if _num_words(cell) >= max(4, median_words / 3) else usual
        score += 1.5 * (not is_long and len(cell) <= median / 2)
    elif is_long:
        score = -1.5
    elif sum(_has_digit(value) for value in values) >= most:
        shapes = [re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", each)) for each in (cell, *values)]
        score = 2.0 if not _has_digit(cell) else -2.0 * (shapes[0] in shapes[1:])
    # 4. Classes, below a word that is not one of them; and pairs of letters that no value has
    else:
        score = usual + 1.5 * (len(values) >= 5 and len(set(values)) <= len(values) / 4)
        pairs, letters = {cell[n : n + 2] for n in range(len(cell) - 1)}, "\n".join(values)
        is_new = sum(pair not in letters for pair in pairs) >= 0.6 * len(pairs) > 0
        score += 1.5 * (len(letters) >= 100 and is_new) + 0.5 * ("_" in cell and "_" not in letters)
        score += 0.5 * (cell.islower() and not any(map(str.islower, values)))
        score += 2 * sum(value.endswith(SENTENCE_ENDS) for value in values) > len(values)
    return score


def delimited_rows(
    path: Path, layout: Layout, bad: BadInput, used: Collection[str] | None
) -> Iterator[tuple[int, Row]]:
    """Yields the rows of a file with their line numbers; rows that repeat the header are skipped. Each name in `used`
    must occur once in the header; None checks nothing."""
    quoting = csv.QUOTE_MINIMAL if layout.is_quoted else csv.QUOTE_NONE
    rows = cut_rows(path, bad, delimiter=layout.delimiter, quoting=quoting, skipinitialspace=layout.skips_spaces)
    names, header = layout.names, list[str]()
    is_first = True
    for begin, end, cells in rows:
        if not cells or cells == header:
            continue
        if is_first:
            if begin == end == 1 and _FIRST.fullmatch(layout.delimiter.join(cells)):
                continue
            is_first = False
            if layout.has_header:
                header = cells if len(cells) > 1 else []
                stripped = [cell.strip() for cell in cells]
                if twice := [name for name in used or () if stripped.count(name) > 1]:
                    raise CorpusError(f"{path}: several columns are called {twice[0]!r}; rename all but one")
                continue
        if any(cell.strip() for cell in cells[len(names) :]):
            around = f'quote texts that contain {layout.delimiter!r} ("..."), or name another delimiter'
            advice = around if layout.is_quoted else f"texts must not contain {layout.delimiter!r}"
            if len(names) == 1:
                advice = f"remove lines above the header; {advice}; or rename the file to .txt if each line is a text"
            elif layout.has_header and len(cells) == len(names) + 1:
                advice += "; or, if the header lacks the name of a column, add it"
            width = f"{len(cells)} cells, but the table has {len(names)} column{'s' if len(names) > 1 else ''}"
            bad.report("rows with too many cells", f"{path}: line {end} has {width}; {advice}")
            continue
        yield end, dict(zip(names, cells, strict=False))
