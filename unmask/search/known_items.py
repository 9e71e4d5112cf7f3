"""Queries whose right documents are known without labels: crops and titles of held-out documents.

    document                A title                 The first sentence. The second one, longer. The third.
    crop task    query                                                  The second one, longer.
                 text searched                      The first sentence.                         The third.
    title task   query      A title
                 text searched                      The first sentence. The second one, longer. The third.

A crop is removed from its document before the search. Left inside, word matching finds it at once (BM25 hardly errs),
so the task would measure only whether a model remembers words. Without the crop, the rest of the document is about the
same subject in other words, which is what search by meaning is for. This is not known to predict what real users look
for: that needs their judgements (`read_beir`).

Among documents with equal texts or equal titles, no single one is right: only the first of equal texts is searched, and
equal titles are not used as queries.

Held-out documents follow the rule of pretraining (`CorpusSettings`) of the run or embedder that made the model, or the
default rule if its folder names none. Equal text falls on the same side, wherever it is stored, if both hold out
documents, or both parts of them (up to 100 documents). A document longer than about 16,000 characters (a book) is
searched in chunks of about that size, each an item; intervals are over documents.

Source: Lee, Chang and Toutanova 2019 (Latent retrieval for weakly supervised open domain question answering), section
4, which introduces this inverse cloze task for training; Izacard et al. 2022 (Unsupervised dense information retrieval
with contrastive learning), section 3.1, for crops.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, DataError, SettingsError, listed, parse_json, shown
from unmask.core.settings import validated
from unmask.data.columns import ColumnNames
from unmask.data.corpus import Corpus
from unmask.data.data_folder import MANIFEST, load_manifest
from unmask.data.json_rows import json_rows
from unmask.data.reading import BadInput, broken_character, whole_lines
from unmask.data.settings import CorpusSettings
from unmask.data.sources import TABLES, find_sources, find_split
from unmask.data.survey import text_hash
from unmask.search.passages import split_title

log = logging.getLogger(__name__)

QUERIES = 1000
DOCUMENTS = 10_000
CROP_CHARS = 120  # about twenty words of English; three eighths of a shorter document
CORPUS_FILE, QUERY_FILE, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"  # of a BEIR folder
HELD_OUT = "held_out"  # in settings.json of an embedder: the settings of its text; None: it had pairs alone
CHUNK_CHARS = 16_384  # chunks of a long document: about the 4,096 tokens that an embedder is trained on
_OF_ITS_FILES = {"encoding": None, "label": None}  # of a run's settings: these apply to its own files only
_FOR_ALL = "query for all documents of a text the model was not trained on"
_HIGHEST_GRADE = 1_000_000
_ROOM = 40  # maximum letters that a crop's ends move to reach the beginning of a word
_LEAST_CROP = 20  # letters; documents too short for such a crop make no query
_LEAST_QUERIES = 5  # fewer crops are an error


@dataclass(frozen=True, kw_only=True)
class ItemSettings:
    """Which documents of a text are searched, and which queries are made from them; see `evaluate_search`.

    If there are more than `max_documents`, a hash of their text chooses, those that may be queried for first. A
    document without its crop is at least as long as the crop. Crops have 120 characters, or as many as their documents
    allow.
    """

    queries: int = QUERIES
    max_documents: int = DOCUMENTS
    every: bool = False
    among_all: bool = False
    column: ColumnNames = None
    title_column: str | None = None
    documents: str | None = None
    encoding: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("queries", 1), ("max_documents", 2), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise SettingsError(f"{name} must be at least {least}, not {value}", options=(name,))


class ItemDocument(NamedTuple):
    text: str  # a document or a chunk of a long one, without its title
    title: str | None
    draw: int  # number of the source document: the independent draw for intervals
    is_held_out: bool  # whether queries may be made from it; otherwise it is only searched
    begins: bool = True  # whether it is the beginning of its document, which may have a title


@dataclass(frozen=True)
class SearchTask:
    name: str  # `crop`, `title` or `judged`
    documents: Sequence[str]  # texts
    queries: Sequence[str]
    relevant: Sequence[dict[int, int]]  # for each query, the grades of documents, by number
    draws: NDArray[np.int64]  # [queries]: the independent draw of each; queries of the same draw are dependent
    not_asked: Counter[str]  # reasons why documents made no query, with the number of documents
    excluded: NDArray[np.int64] | None = None  # for each query, a document left out of its hits; -1: none


def ways_to_more(*, every: bool) -> tuple[str, list[str]]:
    """How to get more documents for queries, and the options for it. With `every`, all documents are used already."""
    ways = "give more text, or make smaller documents with line or block"
    return (ways, ["documents"]) if every else (f"{ways}, or {_FOR_ALL}", ["documents", "all"])


def crop_task(documents: Sequence[ItemDocument], settings: ItemSettings) -> SearchTask:
    """A task with crops as queries. Hashes of their text and the seed choose the documents."""
    seed = settings.seed
    not_asked: Counter[str] = Counter()

    def size_of(text: str) -> tuple[int, int]:
        """Characters of a document's crop, and how far its ends may move; (0, 0) if the document is too short."""
        crop = min(CROP_CHARS, 3 * len(text) // 8)
        return (crop, min(_ROOM, crop // 3)) if crop >= _LEAST_CROP else (0, 0)

    def next_word(text: str, place: int, room: int) -> int:
        for near in range(place, min(place + room, len(text))):
            if text[near - 1].isspace() and not text[near].isspace():
                return near
        return place

    held = [n for n, each in enumerate(documents) if each.is_held_out]
    long = [n for n in held if size_of(documents[n].text)[0]]
    if len(long) < len(held):
        not_asked["documents too short to crop"] = len(held) - len(long)
    if len(long) < min(_LEAST_QUERIES, settings.queries):
        what = f"{len(held)} documents for queries are too few"
        way_out, options = ways_to_more(every=settings.every)
        if len(long) < len(held):
            room = f"room for crops of {_LEAST_CROP} characters"
            what = f"only {len(long)} of {len(held):,} documents for queries have {room}"
            way_out, options = "give more or longer ones, or judged queries (BEIR's format)", []
        raise DataError(f"{what}; {way_out}", options=options)
    texts = [each.text for each in documents]
    queries, numbers = [], []
    for number in _chosen(long, texts, settings):
        text = texts[number]
        # Crop at a random place, from the beginning of one word to that of another if spaces are near.
        crop, slack = size_of(text)
        begin = text_hash(f"crop {seed} {text}") % (len(text) - crop - 2 * slack + 1)
        begin = next_word(text, begin, slack) if begin else 0
        end = next_word(text, begin + crop, slack)
        if not (query := text[begin:end].strip()):
            not_asked["documents whose crop is white space"] += 1
            continue
        queries.append(query)
        numbers.append(number)
        texts[number] = f"{text[:begin]} {text[end:]}"
    if not queries:
        raise DataError("all crops are white space; give other text")
    draws = np.array([documents[number].draw for number in numbers])
    return SearchTask("crop", texts, queries, [{number: 1} for number in numbers], draws, not_asked)


def title_task(documents: Sequence[ItemDocument], settings: ItemSettings) -> SearchTask | None:
    """A task with titles as queries; None if fewer than two held-out documents have a unique title."""
    counts = Counter(each.title.lower() for each in documents if each.title is not None)
    titles = {n: each.title for n, each in enumerate(documents) if each.is_held_out and each.title is not None}
    own = {n: title for n, title in titles.items() if counts[title.lower()] == 1}
    if len(own) < 2:
        return None
    not_asked: Counter[str] = Counter()
    if len(own) < len(titles):
        not_asked["documents that share their title"] = len(titles) - len(own)
    texts = [each.text for each in documents]
    chosen = _chosen(list(own), texts, settings)
    draws = np.array([documents[number].draw for number in chosen])
    relevant = [{number: 1} for number in chosen]
    return SearchTask("title", texts, [own[number] for number in chosen], relevant, draws, not_asked)


def _chosen(numbers: Sequence[int], texts: Sequence[str], settings: ItemSettings) -> list[int]:
    """At most `settings.queries` documents, chosen by hashes of their texts, in their order."""
    ordered = sorted(numbers, key=lambda number: (text_hash(f"{settings.seed} {texts[number]}"), number))
    return sorted(ordered[: settings.queries])


def read_items(
    paths: Sequence[str | Path], model: Path, settings: ItemSettings
) -> tuple[list[ItemDocument], list[str], Counter[str]]:
    """Returns the documents to search, in the order of the text; how they were read, in lines; and the number skipped
    for each reason. Memory grows with these documents, and by a hash for each other one."""
    run, rule = held_out_rule(model)
    rule = rule if settings.column is not None else rule_for(paths, rule, run)
    held, are_all = _held_files(paths, run, rule) if rule.validation and not settings.every else ([], False)
    every, most = settings.every or are_all, settings.max_documents
    changes = {name: getattr(settings, name) for name in ("column", "documents", "encoding")}
    values = rule.model_dump() | {name: value for name, value in changes.items() if value is not None}
    values["validation"] = () if are_all else held
    rule = validated(CorpusSettings, values, where="evaluate-search")
    corpus = _corpus_by(rule, paths, run, hold_out=not every, titles=settings.title_column or True)
    passed_over: Counter[str] = Counter()
    # A heap of the documents with the lowest hashes, held-out ones preferred, without duplicates.
    lowest: list[tuple[bool, int, int, ItemDocument]] = []
    seen: set[bytes] = set()
    for item in _items(corpus):
        if not (every or item.is_held_out or settings.among_all):
            continue
        key = hashlib.blake2b(item.text.encode(), digest_size=16).digest()
        if key in seen:
            passed_over["documents that repeat another's text"] += 1
            continue
        seen.add(key)
        is_held_out = every or item.is_held_out
        order = -text_hash(f"{settings.seed} {item.text}")
        push = heapq.heappush if len(lowest) < most else heapq.heappushpop
        push(lowest, (is_held_out, order, len(seen), item._replace(is_held_out=is_held_out)))
    items = [item for *_, item in sorted(lowest, key=lambda entry: entry[2])]
    if len(seen) > most:
        passed_over["documents beyond --max-documents"] = len(seen) - most
    passed_over += corpus.skipped
    if len(items) < 2 or not any(item.is_held_out for item in items):
        kind = "documents" if every else "held-out documents"
        way_out, options = ways_to_more(every=every)
        what = f"{', '.join(map(str, paths))}: {len(items)} {kind} are too few to search"
        raise DataError(f"{what}; {way_out}", options=options)
    items, where = _with_titles(corpus, items)
    described = corpus.describe(corpus.decided())
    if held:
        names = listed([Path(path).name for path in held], 3)
        described = f"a document is {corpus.plan.reason}; held out: {names} (as in {run})"
    elif not every:
        known = f"by the rule of {run}: what it held out, if it was trained on this text"
        unknown = "the default rule: the model's run is unknown, so it may have trained on these documents"
        described += f" ({unknown if run is None else known})"
    documents: dict[str, ItemDocument] = {}
    for item in items:
        if item.text in documents:  # texts may become equal once titles are removed
            passed_over["documents that repeat another's text"] += 1
        elif item.text.strip():
            documents[item.text] = item
    return list(documents.values()), [described, where], passed_over


def _corpus_by(
    rule: CorpusSettings, paths: Sequence[str | Path], run: Path | None, *, hold_out: bool, titles: str | bool
) -> Corpus:
    try:
        return Corpus(paths, rule, hold_out=hold_out, titles=titles, way_out=None)
    except CorpusError as error:
        if "corpus.holdout_groups" not in str(error):  # a setting that evaluate-search lacks
            raise
        what = f"no column {str(rule.holdout_groups)!r}, by which {run} held out documents"
        what = f"{', '.join(map(str, paths))}: {what}; give tables with it, or {_FOR_ALL}"
        raise CorpusError(what, options=("all",)) from error


def _held_files(paths: Sequence[str | Path], run: Path | None, rule: CorpusSettings) -> tuple[list[str], bool]:
    """Those of the files to read that a run held out by name, and whether these are all of them."""
    by_name = set[Path]()
    for name in rule.validation:
        with suppress(CorpusError):  # it may have been moved or removed since
            by_name.update(source.path.resolve() for source in find_sources([name], announce=False))
    files = [source.path for source in find_split(paths, by_name=False, announce=False).train]
    held = [str(path) for path in files if path.resolve() in by_name]
    if not held:
        what = f"{', '.join(map(str, paths))}: none of the files that {run} held out ({', '.join(rule.validation)})"
        raise DataError(f"{what}; name these, or {_FOR_ALL}", options=("all",))
    return held, len(held) == len(files)


def held_out_rule(model: Path) -> tuple[Path | None, CorpusSettings]:
    """The run or embedder that made a model, and its rule for holding out text; the default rule if it is unknown."""
    run = model.parent
    settings = _read(run / "settings.json", "copy the model out of the folder")
    if isinstance(settings, dict) and settings.get(HELD_OUT) is not None:
        rule = validated(CorpusSettings, settings[HELD_OUT], where=str(run / "settings.json"))
        return run, rule.model_copy(update=_OF_ITS_FILES)
    sources = _read(run / "sources.json", "copy the model out of the run") or []
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        raise DataError(f"{run / 'sources.json'}: damaged (no paths); fix it, or copy the model out of the run")
    data = [run / "data", *map(Path, sources[:1])]
    prepared = next((folder for folder in data if (folder / MANIFEST).is_file()), None)
    if not (run / "recipe.toml").is_file() or prepared is None:
        return None, CorpusSettings()
    return run, prepared_rule(prepared).model_copy(update=_OF_ITS_FILES)


def rule_for(paths: Sequence[str | Path], rule: CorpusSettings, run: Path | None) -> CorpusSettings:
    """A run's rule for other files: without its column of text if they have no columns."""
    if rule.column is None or any(each.by_suffix in TABLES for each in find_sources(paths, announce=False)):
        return rule
    names = ", ".join(map(str, paths))
    log.warning("%s: text has no columns, so corpus.column = %r of %s does not apply", names, rule.column, run)
    return rule.model_copy(update={"column": None})


def prepared_rule(data: Path) -> CorpusSettings:
    return validated(CorpusSettings, load_manifest(data).settings["corpus"], where=str(data / MANIFEST))


def _read(file: Path, way_out: str) -> Any:
    try:
        return parse_json(file) if file.is_file() else None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error}); fix it, or {way_out}") from error


def _items(corpus: Corpus) -> Iterator[ItemDocument]:
    """Documents, long ones in chunks, in the order of the text; first-line titles are still in it."""
    in_parts = corpus.plan.holdout_unit in ("part", "end")
    text, title, draw, is_held, begins = "", None, -1, False, True
    for piece, held in corpus.pieces():
        if text and (in_parts or piece.document != draw):
            yield ItemDocument(text, title if begins else None, draw, is_held, begins)
            text = ""
        if not text:
            begins = piece.offset == 0
        text, title, draw, is_held = text + piece.text, piece.title, piece.document, held
        # A chunk ends with a line, else with a word. The last one has from half to one and a half times the size.
        while len(text) >= 3 * CHUNK_CHARS // 2:
            ends = (text.rfind(mark, CHUNK_CHARS // 2, CHUNK_CHARS) + 1 for mark in ("\n", " "))
            end = next(filter(None, ends), CHUNK_CHARS)
            yield ItemDocument(text[:end], title if begins else None, draw, is_held, begins)
            text, begins = text[end:], False
    if text:
        yield ItemDocument(text, title if begins else None, draw, is_held, begins)


def _with_titles(corpus: Corpus, items: Sequence[ItemDocument]) -> tuple[list[ItemDocument], str]:
    """Moves titles that are first lines out of the texts. Returns the documents, and the titles' source in words."""
    if any(source.is_table for source in corpus.all_sources()):
        names = sorted({source.title for source in corpus.all_sources() if source.title is not None})
        if not names:
            return list(items), "no titles: the table has no column called title (name another with title_column)"
        count = sum(item.title is not None for item in items)
        return list(items), f"titles: column {' or '.join(map(repr, names))}, {count:,} of {len(items):,}"
    titled = []
    for item in items:
        title, body = split_title(item.text) if item.begins else (None, item.text)
        titled.append(item._replace(title=title, text=body))
    count, whole = sum(item.title is not None for item in titled), sum(item.begins for item in items)
    if 2 * count < whole:
        return list(items), "no titles: few documents start with a line that looks like one"
    return titled, f"titles: first lines, of {count:,} of {whole:,} documents"


# ----------------------------------------
# Folders in the format of BEIR, with human judgements of what is relevant.
#
#     corpus.jsonl      {"_id": "d1", "title": "...", "text": "..."}      a document a line
#     queries.jsonl     {"_id": "q1", "text": "..."}
#     qrels/test.tsv    query-id <tab> corpus-id <tab> score              with a header; the score is a grade
#
# As in BEIR, a document is its title and its text with a space between them, and is no hit of a query with its own id.
# Judged documents missing from the corpus count as not found, as in trec_eval, and are reported. Queries without a
# relevant document are skipped.
#
# Source: Thakur et al. 2021 (BEIR), and the format of its repository.


def is_beir(path: str | Path) -> bool:
    """Whether a path is a folder in this format, or one that lacks a single part of it."""
    root = Path(path)
    there = ((root / CORPUS_FILE).is_file(), (root / QUERY_FILE).is_file(), (root / QRELS).is_dir())
    return root.is_dir() and sum(there) >= 2


def read_beir(root: Path, *, split: str, num_queries: int, seed: int) -> SearchTask:
    """Reads a folder into memory, with the judgements of a split of `qrels`; the seed chooses `num_queries` queries."""
    corpus = dict(_records(root / CORPUS_FILE, title=True))
    if not corpus:
        raise CorpusError(f"{root / CORPUS_FILE}: contains no documents")
    queries = dict(_records(root / QUERY_FILE, title=False))
    number_of = {id_: number for number, id_ in enumerate(corpus)}
    passed: Counter[str] = Counter()
    chosen: list[tuple[str, dict[int, int]]] = []
    missing = len(corpus)  # judged documents that are missing get numbers after the existing ones
    for query, grades in _judgements(root, split).items():
        if query not in queries:
            passed[f"judged queries missing from {QUERY_FILE}"] += 1
        elif not any(grade > 0 and id_ in number_of for id_, grade in grades.items()):
            passed["judged queries without a relevant document in the corpus"] += 1
        elif not queries[query].strip():
            passed["queries without text"] += 1
        else:
            numbered = {}
            for id_, grade in grades.items():
                if id_ not in number_of:
                    missing += 1
                    passed[f"judged documents missing from {CORPUS_FILE}, counted as not found"] += 1
                numbered[number_of.get(id_, missing)] = grade
            chosen.append((query, numbered))
    if not chosen:
        why = ", ".join(f"{count:,} {reason}" for reason, count in passed.items()) or "it is empty"
        what = f"no judgement names a query in {QUERY_FILE} and a relevant document in {CORPUS_FILE} ({why})"
        raise CorpusError(f"{root / QRELS / split}.tsv: {what}; check that ids are those of `_id`")
    if len(chosen) > num_queries:
        numbers = np.random.default_rng(seed).choice(len(chosen), num_queries, replace=False)
        chosen = [chosen[number] for number in np.sort(numbers).tolist()]
    return SearchTask(
        name="judged",
        documents=list(corpus.values()),
        queries=[queries[query] for query, _ in chosen],
        relevant=[grades for _, grades in chosen],
        draws=np.arange(len(chosen)),
        not_asked=passed,
        excluded=np.array([number_of.get(query, -1) for query, _ in chosen], dtype=np.int64),
    )


def _records(file: Path, *, title: bool) -> Iterator[tuple[str, str]]:
    """Ids and texts of a file; with `title`, each text starts with its title."""
    if not file.is_file():
        raise CorpusError(f"{file}: no such file; a BEIR folder has {CORPUS_FILE}, {QUERY_FILE} and {QRELS}/test.tsv")
    seen = set()
    for number, row in json_rows(file, BadInput(skip=False, way_out=None)):
        id_, text = row.get("_id"), row.get("text")
        if isinstance(id_, bool) or not isinstance(id_, str | int) or not isinstance(text, str):
            raise CorpusError(f"{file}: row {number} has _id {shown(id_)} and text {shown(text)}; both must be texts")
        head = row.get("title") if title else None
        whole = f"{head} {text}".strip() if isinstance(head, str) and head else text
        if broken := broken_character(f"{id_} {whole}"):
            raise CorpusError(f"{file}: row {number} holds {broken}, which is not a character; remove it")
        if str(id_) in seen:
            raise CorpusError(f"{file}: row {number} repeats the _id {shown(id_)}; make ids unique")
        seen.add(str(id_))
        yield str(id_), whole


def _judgements(root: Path, split: str) -> dict[str, dict[str, int]]:
    file = root / QRELS / f"{split}.tsv"
    if not file.is_file():
        others = sorted(path.stem for path in (root / QRELS).glob("*.tsv"))
        way_out = f"name one with --split: {', '.join(others)}" if others else f"put judgements in {QRELS}/test.tsv"
        raise CorpusError(f"{file}: no such file; {way_out}")
    judgements: dict[str, dict[str, int]] = {}
    for number, line in enumerate(whole_lines(file, BadInput(skip=False, way_out=None)), 1):
        cells = line.rstrip("\r\n").split("\t")
        if not line.strip() or (number == 1 and cells[0] == "query-id"):
            continue
        try:
            query, document, grade = cells
            judgements.setdefault(query, {})[document] = value = int(grade)
            if abs(value) > _HIGHEST_GRADE:
                raise ValueError(f"{value} is not a grade")
        except ValueError as error:
            form = f"a query, a document and an integer up to {_HIGHEST_GRADE:,}, separated by tabs"
            raise CorpusError(f"{file}: line {number} is {shown(line)}; expected {form}") from error
    return judgements
