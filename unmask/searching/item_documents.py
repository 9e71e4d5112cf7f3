"""Held-out documents of a text, to be searched among and asked for.

What is held out goes by the rule that pretraining has (`CorpusSettings`): that of the run or the embedder which made
the model, where its folder says one, and else the default. Equal text always falls on the same side, so documents that
a run has held out are held out here, wherever the text lies now.

A document of more than some 16,000 characters (a book) is searched in stretches of about so many, each of which is an
item, as embedding models are trained on stretches (`unmask.embedding.token_texts`). Figures are drawn from documents.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unmask.errors import CorpusError, DataError
from unmask.pretraining.run_folder import RunFolder
from unmask.searching.document_reading import TITLES, first_line_title
from unmask.searching.search_tasks import ItemDocument
from unmask.settings import validated
from unmask.shards.manifest import MANIFEST, load_manifest
from unmask.text.corpus import Corpus
from unmask.text.reading import BadInput
from unmask.text.settings import CorpusSettings
from unmask.text.sources import Source
from unmask.text.survey import text_hash
from unmask.text.table_rows import AskedColumn, rows_of
from unmask.text.text_columns import columns_of, text_of, value_or_none
from unmask.text.text_file import naming_column
from unmask.values import parse_json

HELD_OUT = "held_out"  # in settings.json of an embedder: the settings of its text
STRETCH_CHARS = 16_384  # of a long document: about the 4,096 tokens of `unmask.embedding`


@dataclass(frozen=True)
class ItemsRead:
    """What was read.

    Attributes:
        documents: Those that are searched, in the order of the text.
        described: How, in lines.
        passed_over: Reason to number.
    """

    documents: list[ItemDocument]
    described: list[str]
    passed_over: Counter[str]


@dataclass(frozen=True, kw_only=True)
class ItemSettings:
    """Which documents of a text are searched.

    Attributes:
        column: Where the text of tables stands; None: as the run has it, or found.
        title_column: Where titles of tables stand; None: in `title`, if it is there.
        documents: What a document is in text files; None: as the run has it, or found.
        every: Whether all documents may be asked for, since the model was trained on none.
        among_all: Whether all documents are searched among, and not those that may be asked for alone.
        most: Documents at most; of more, some are taken by a hash of their text, those that may be asked for first.
        seed: Of that hash.
    """

    column: AskedColumn = None
    title_column: str | None = None
    documents: str | None = None
    every: bool = False
    among_all: bool = False
    most: int = 10_000
    seed: int = 0


def read_items(paths: Sequence[str | Path], model: Path, asked: ItemSettings) -> ItemsRead:
    """Reads the documents of a text that are searched; memory grows with these, and by a hash for each other document.

    Args:
        paths: Files, folders or patterns.
        model: Folder of the model, which may be that of a run.
        asked: Which of them.

    Raises:
        UnmaskError: The text cannot be read; there are fewer than two documents, or no title column of this name.
    """
    run, settings = held_out_rule(model)
    changes = {"column": asked.column, "documents": asked.documents}
    values = settings.model_dump() | {name: value for name, value in changes.items() if value is not None}
    passed_over: Counter[str] = Counter()
    with naming_column():
        corpus = Corpus(paths, validated(CorpusSettings, values, where="evaluate-search"), hold_out=not asked.every)
        kept = _Kept(asked.most, asked.seed, passed_over)
        for item in _items(corpus):
            if asked.every or item.is_held_out or asked.among_all:
                kept.add(item._replace(is_held_out=asked.every or item.is_held_out))
        found = kept.documents()
        passed_over.update(corpus.skipped)
        _check_several(paths, found, every=asked.every)
        titles, where = _titles(corpus, found, asked.title_column)
    items = [
        ItemDocument(body, title, item.draw, item.is_held_out)
        for (body, title), item in zip(titles, found, strict=True)
    ]
    described = corpus.describe(corpus.decided())
    if not asked.every:
        unknown = "by the default rule: no run is known that made the model, which may have seen them"
        described += f" ({unknown if run is None else f'as in {run}'})"
    return ItemsRead(_without_equal(items, passed_over), [described, where], passed_over)


def _check_several(paths: Sequence[str | Path], found: Sequence[_Item], *, every: bool) -> None:
    if len(found) >= 2 and any(item.is_held_out for item in found):
        return
    raise DataError(
        f"{', '.join(map(str, paths))}: {len(found)} {'' if every else 'held-out '}document{'s' * (len(found) != 1)}, "
        "which is too few to search among; give more text, --documents line or block for smaller documents"
        f"{'' if every else ', or --all for a text that the model was not trained on'}"
    )


def held_out_rule(model: Path) -> tuple[Path | None, CorpusSettings]:
    """The run or embedder that made a model, and by which rule it held text out; the default one where none is known.

    Raises:
        DataError: What the run keeps of its data is damaged.
    """
    if (found := _rule_of_embedder(model.parent)) is not None:
        return model.parent, found
    run = RunFolder(model.parent)
    data = [run.data]
    if run.sources.is_file():
        try:
            data += [Path(source) for source in parse_json(run.sources.read_text(encoding="utf-8"))][:1]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{run.sources}: damaged ({error}); mend it, or copy the model out of the run") from error
    if not run.holds_run or not (prepared := [root for root in data if (root / MANIFEST).is_file()]):
        return None, CorpusSettings()
    manifest = load_manifest(prepared[0])
    return run.root, validated(CorpusSettings, manifest.settings["corpus"], where=str(prepared[0] / MANIFEST))


def _rule_of_embedder(folder: Path) -> CorpusSettings | None:
    file = folder / "settings.json"
    if not file.is_file():
        return None
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error}); mend it, or copy the model out of the folder") from error
    if not isinstance(content, dict) or HELD_OUT not in content:
        return None
    return validated(CorpusSettings, content[HELD_OUT], where=str(file))


class _Item(NamedTuple):
    """A text that may be searched.

    Attributes:
        text: A document, or a stretch of a long one.
        draw: Number of the source document.
        is_held_out: Whether it may be asked for.
        begins: Whether the document begins with it, so that there may be a title.
    """

    text: str
    draw: int
    is_held_out: bool
    begins: bool


def _items(corpus: Corpus) -> Iterator[_Item]:
    """Documents, long ones in stretches, in the order of the text."""
    in_parts = corpus.plan.holdout_unit in ("part", "end")
    text, draw, is_held, begins = "", -1, False, True

    def rest() -> list[_Item]:
        return [_Item(each, draw, is_held, begins and not n) for n, each in enumerate(_halves(text))]

    for piece, held in corpus.pieces():
        if text and (in_parts or piece.document != draw):
            yield from rest()
            text = ""
        if not text:
            begins = piece.offset == 0
        text, draw, is_held = text + piece.text, piece.document, held
        while len(text) >= 2 * STRETCH_CHARS:
            end = _good_end(text, STRETCH_CHARS)
            yield _Item(text[:end], draw, is_held, begins)
            text, begins = text[end:], False
    if text:
        yield from rest()


def _halves(text: str) -> list[str]:
    """The rest of a document: whole, or in two where it is much longer than a stretch."""
    if len(text) < 3 * STRETCH_CHARS // 2:
        return [text]
    end = _good_end(text, len(text) // 2)
    return [text[:end], text[end:]]


def _good_end(text: str, near: int) -> int:
    """Behind the last line that ends before a place, or the last word, if either is not far before it."""
    for mark in ("\n", " "):
        if (found := text.rfind(mark, near // 2, near)) >= 0:
            return found + 1
    return near


class _Kept:
    """Some of the documents: those with the lowest hashes, held-out ones first, without equal ones."""

    def __init__(self, most: int, seed: int, passed_over: Counter[str]) -> None:
        self.most, self.seed, self.passed_over = most, seed, passed_over
        self.heap: list[tuple[bool, int, int, _Item]] = []
        self.seen: set[bytes] = set()
        self.count = 0

    def add(self, item: _Item) -> None:
        """Takes a document, if it is among them so far."""
        key = hashlib.blake2b(item.text.encode(), digest_size=16).digest()
        if key in self.seen:
            self.passed_over["documents with the text of another"] += 1
            return
        self.seen.add(key)
        self.count += 1
        entry = (item.is_held_out, -text_hash(f"{self.seed} {item.text}"), self.count, item)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heappushpop(self.heap, entry)

    def documents(self) -> list[_Item]:
        """In the order of reading."""
        if self.count > self.most:
            self.passed_over["documents more than --max-documents"] = self.count - self.most
        return [item for *_, item in sorted(self.heap, key=lambda entry: entry[2])]


def _titles(
    corpus: Corpus, found: Sequence[_Item], title_column: str | None
) -> tuple[list[tuple[str, str | None]], str]:
    """Body and title of each document, and where titles are, in words."""
    texts = [item.text for item in found]
    tables = [source for source in corpus.all_sources() if source.is_table]
    if tables:
        by_text, name = _titles_in_tables(tables, title_column, set(map(text_hash, texts)))
        titled = [(text, by_text.get(text_hash(text))) for text in texts]
        if name is None:
            return titled, "no titles: the table has no column title (--title-column names another)"
        return titled, f"titles: column {name!r}, {sum(title is not None for _, title in titled):,} of {len(texts):,}"
    if title_column is not None:
        raise CorpusError(f"--title-column {title_column}: there are no columns in a text file")
    firsts = [first_line_title(item.text) if item.begins else None for item in found]
    count, whole = sum(title is not None for title in firsts), sum(item.begins for item in found)
    if 2 * count < whole:
        return [(text, None) for text in texts], "no titles: few documents begin with a line that looks like one"
    bodies = [
        text if title is None else text.lstrip().partition("\n")[2] for text, title in zip(texts, firsts, strict=True)
    ]
    return list(zip(bodies, firsts, strict=True)), f"titles: first lines, of {count:,} of {whole:,} documents"


def _titles_in_tables(
    tables: Sequence[Source], asked: str | None, wanted: set[int]
) -> tuple[dict[int, str], str | None]:
    """Titles by the hash of the text that they stand beside, and the column. A document that is a stretch of a long
    row, or that cleaning has changed, has none.
    """
    found: dict[int, str] = {}
    name = None
    for source in tables:
        assert source.column is not None, "tables have one"
        names = [asked] if asked is not None else [each for each in TITLES if each not in columns_of(source.column)]
        bad, titles = BadInput(skip=True), Counter[str]()
        only = [*columns_of(source.column), *names]
        for number, row in rows_of(source, bad, source.column, known=names, only=only):
            text = text_of(source, number, row, source.column, bad)
            title = next(((each, row_title) for each in names if (row_title := value_or_none(row, each))), None)
            if title is not None and isinstance(title[1], str):
                titles[title[0]] += 1
                said = " ".join(title[1].split())
                if said and text is not None and (key := text_hash(text.rstrip("\n"))) in wanted:
                    found[key] = said
        if titles:
            name = titles.most_common(1)[0][0]
        elif asked is not None:
            raise CorpusError(f"{source.path}: there is no title in column {asked!r}")
    return found, name


def _without_equal(items: Sequence[ItemDocument], passed_over: Counter[str]) -> list[ItemDocument]:
    """Bodies that are equal although titles are not."""
    seen: set[str] = set()
    kept = []
    for item in items:
        if item.text in seen:
            passed_over["documents with the text of another"] += 1
        elif item.text.strip():
            kept.append(item)
            seen.add(item.text)
    return kept
