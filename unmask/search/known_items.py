"""Queries whose right documents are known without labels: crops and titles of held-out documents.

    document                A title                 The first sentence. The second one, longer. The third.
    crop task    query                                                  The second one, longer.
                 text searched                      The first sentence.                         The third.
    title task   query      A title
                 text searched                      The first sentence. The second one, longer. The third.

A crop is taken out of its document before that is searched. Left inside, comparing words retrieves it at once (BM25
makes hardly an error), so all that is measured of a model is whether it remembers words. Taken out, what is left is
about the same matter in other words, which is what a search by meaning is for; so that is the default. `inside` leaves
it, to measure how well a model remembers. Neither is known to be what real users ask for: that takes their judgements
(`read_beir`).

Of documents with equal texts or equal titles one could not say which is right: the first of equal texts stays, and
equal titles are no queries.

What is held out goes by the rule of pretraining (`CorpusSettings`): that of the run or the embedder which made the
model, where its folder says one, and else the default. Equal text always falls on the same side, so documents that a
run has held out are held out here, wherever the text lies now. A document of more than some 16,000 characters (a book)
is searched in chunks of about so many, each of which is an item; figures are drawn from documents.

Source: Lee, Chang and Toutanova 2019 (Latent retrieval for weakly supervised open domain question answering), section
4, whose inverse cloze task this is, there for training; Izacard et al. 2022 (Unsupervised dense information retrieval
with contrastive learning), section 3.1, for crops.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, DataError, SettingsError, parse_json, shown
from unmask.core.settings import validated
from unmask.data.columns import ColumnNames
from unmask.data.corpus import Corpus
from unmask.data.data_folder import MANIFEST, load_manifest
from unmask.data.json_rows import json_rows
from unmask.data.reading import BadInput, broken_character, whole_lines
from unmask.data.settings import CorpusSettings
from unmask.data.survey import text_hash
from unmask.search.passages import first_line_title

Crops = Literal["removed", "inside"]
QUERIES = 1000
DOCUMENTS = 10_000
CROP_CHARS = 120  # about twenty words of English; three eighths of a shorter document
CORPUS_FILE, QUERY_FILE, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"  # of a BEIR folder
HELD_OUT = "held_out"  # in settings.json of an embedder: the settings of its text
CHUNK_CHARS = 16_384  # of a long document: about the 4,096 tokens that an embedder is trained on
_HIGHEST_GRADE = 1_000_000
_ROOM = 40  # letters that a crop's ends move, at most, to the beginning of a word
_LEAST_CROP = 20  # letters; of shorter documents none is taken
_LEAST_QUERIES = 5  # say nothing, if they are fewer


@dataclass(frozen=True, kw_only=True)
class ItemSettings:
    """Which documents of a text are searched, and which queries are made of them; see `evaluate_search`.

    Of more documents than `max_documents` some are taken by a hash of their text, those that may be queried for first.
    What is left of a document without its crop is at least as long as that. Without `crop_chars` crops have 120
    characters, or as many as their documents allow.
    """

    queries: int = QUERIES
    max_documents: int = DOCUMENTS
    crops: Crops = "removed"
    crop_chars: int | None = None
    every: bool = False
    among_all: bool = False
    column: ColumnNames = None
    title_column: str | None = None
    documents: str | None = None
    encoding: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("queries", 1), ("max_documents", 2), ("crop_chars", 8)):
            if (value := getattr(self, name)) is not None and value < least:
                raise SettingsError(f"{name} must be at least {least}, not {value}", options=(name,))
        if self.crops not in ("removed", "inside"):
            raise SettingsError(f"crops must be removed or inside, not {self.crops!r}", options=("crops",))


class ItemDocument(NamedTuple):
    text: str  # a document or a chunk of a long one, without its title
    title: str | None
    draw: int  # number of the source document: what figures are drawn from
    is_held_out: bool  # whether it may be queried for, or is only searched among
    begins: bool = True  # whether the document begins with it, so that there may be a title


@dataclass(frozen=True)
class SearchTask:
    """Queries, the documents that are searched, and which are right."""

    name: str  # `crop`, `title` or `judged`
    documents: Sequence[str]  # texts
    queries: Sequence[str]
    relevant: Sequence[dict[int, int]]  # of each query the grades of documents, by number
    draws: NDArray[np.int64]  # [queries]: what each is drawn from; those of one are dependent
    # Of each query, the right document, and the character of it that the query is next to.
    pairs: Sequence[tuple[int, int]]
    not_asked: Counter[str]  # why documents are no queries: reason to number
    excluded: NDArray[np.int64] | None = None  # of each query a document that is not shown; -1: none


def crop_task(documents: Sequence[ItemDocument], settings: ItemSettings) -> SearchTask:
    """Crops as queries, of documents that hashes of their text and the seed choose."""
    seed = settings.seed
    not_asked: Counter[str] = Counter()

    def size_of(text: str) -> tuple[int, int]:
        """The characters of a document's crop, and how far its ends move; none where it is too short."""
        crop = settings.crop_chars or min(CROP_CHARS, 3 * len(text) // 8)
        room = _ROOM if settings.crop_chars else min(_ROOM, crop // 3)
        is_long = len(text) >= 2 * (crop + room) if settings.crop_chars else crop >= _LEAST_CROP
        return (crop, room) if is_long else (0, 0)

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
        crop = settings.crop_chars or _LEAST_CROP
        what = f"only {len(long)} of {len(held):,} documents for queries are long enough for crops of {crop} characters"
        way_out = "give more or longer ones, or judged queries (BEIR's format)"
        raise DataError(f"{what}; {way_out}", options=("crop_chars",))
    texts = [each.text for each in documents]
    queries, pairs = [], []
    for number in _chosen(long, texts, settings):
        text = texts[number]
        # Anywhere, from the beginning of a word to that of another where spaces are near.
        crop, room = size_of(text)
        begin = text_hash(f"crop {seed} {text}") % (len(text) - crop - 2 * room + 1)
        begin = next_word(text, begin, room) if begin else 0
        end = next_word(text, begin + crop, room)
        if not (query := text[begin:end].strip()):
            not_asked["documents whose crop is white space"] += 1
            continue
        queries.append(query)
        pairs.append((number, begin))
        if settings.crops == "removed":
            texts[number] = f"{text[:begin]} {text[end:]}"
    if not queries:
        raise DataError("all crops are white space; give other text or longer crops", options=("crop_chars",))
    relevant = [{number: 1} for number, _ in pairs]
    draws = np.array([documents[number].draw for number, _ in pairs])
    return SearchTask("crop", texts, queries, relevant, draws, pairs, not_asked)


def title_task(documents: Sequence[ItemDocument], settings: ItemSettings) -> SearchTask | None:
    """Titles as queries; None where fewer than two held-out documents have one of their own."""
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
    relevant, pairs = [{number: 1} for number in chosen], [(number, 0) for number in chosen]
    return SearchTask("title", texts, [own[number] for number in chosen], relevant, draws, pairs, not_asked)


def _chosen(numbers: Sequence[int], texts: Sequence[str], settings: ItemSettings) -> list[int]:
    """Some of the documents, by hashes of their texts, in their order."""
    ordered = sorted(numbers, key=lambda number: (text_hash(f"{settings.seed} {texts[number]}"), number))
    return sorted(ordered[: settings.queries])


def read_items(
    paths: Sequence[str | Path], model: Path, settings: ItemSettings
) -> tuple[list[ItemDocument], list[str], Counter[str]]:
    """The documents of a text that are searched, in its order; how they were read, in lines; and what was passed over:
    reason to number. Memory grows with these documents, and by a hash for each other one."""
    run, rule = held_out_rule(model)
    changes = {name: getattr(settings, name) for name in ("column", "documents", "encoding")}
    values = rule.model_dump() | {name: value for name, value in changes.items() if value is not None}
    every, most = settings.every, settings.max_documents
    rule = validated(CorpusSettings, values, where="evaluate-search")
    corpus = Corpus(paths, rule, hold_out=not every, titles=settings.title_column or True)
    passed_over: Counter[str] = Counter()
    # The documents with the lowest hashes, held-out ones first, without equal ones.
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
        way_out = "give more text, or make smaller documents with line or block"
        kind, options = "documents", ["documents"]
        if not every:
            kind, options = "held-out documents", ["documents", "all"]
            way_out += ", or query for all documents of a text the model was not trained on"
        what = f"{', '.join(map(str, paths))}: {len(items)} {kind} are too few to search"
        raise DataError(f"{what}; {way_out}", options=options)
    items, where = _with_titles(corpus, items, settings.title_column)
    described = corpus.describe(corpus.decided())
    if not every:
        unknown = "the default rule: the model's run is unknown, so it may have trained on these documents"
        described += f" ({unknown if run is None else f'as in {run}'})"
    documents: dict[str, ItemDocument] = {}
    for item in items:
        if item.text in documents:  # bodies may be equal although titles are not
            passed_over["documents that repeat another's text"] += 1
        elif item.text.strip():
            documents[item.text] = item
    return list(documents.values()), [described, where], passed_over


def held_out_rule(model: Path) -> tuple[Path | None, CorpusSettings]:
    """The run or embedder that made a model, and its rule of holding text out; the default where none is known."""
    run = model.parent
    settings = _read(run / "settings.json", "copy the model out of the folder")
    if isinstance(settings, dict) and HELD_OUT in settings:
        rule = validated(CorpusSettings, settings[HELD_OUT], where=str(run / "settings.json"))
        return run, rule.model_copy(update={"encoding": None})  # which says nothing of other files
    sources = _read(run / "sources.json", "copy the model out of the run") or []
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        raise DataError(f"{run / 'sources.json'}: damaged (no paths); fix it, or copy the model out of the run")
    data = [run / "data", *map(Path, sources[:1])]
    prepared = next((folder for folder in data if (folder / MANIFEST).is_file()), None)
    if not (run / "recipe.toml").is_file() or prepared is None:
        return None, CorpusSettings()
    return run, prepared_rule(prepared).model_copy(update={"encoding": None})


def prepared_rule(data: Path) -> CorpusSettings:
    return validated(CorpusSettings, load_manifest(data).settings["corpus"], where=str(data / MANIFEST))


def _read(file: Path, way_out: str) -> Any:
    """The content of a JSON file; None where there is none."""
    try:
        return parse_json(file) if file.is_file() else None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error}); fix it, or {way_out}") from error


def _items(corpus: Corpus) -> Iterator[ItemDocument]:
    """Documents, long ones in chunks, in the order of the text; titles are still within."""
    in_parts = corpus.plan.holdout_unit in ("part", "end")
    text, title, draw, is_held, begins = "", None, -1, False, True
    for piece, held in corpus.pieces():
        if text and (in_parts or piece.document != draw):
            yield ItemDocument(text, title if begins else None, draw, is_held, begins)
            text = ""
        if not text:
            begins = piece.offset == 0
        text, title, draw, is_held = text + piece.text, piece.title, piece.document, held
        # A chunk ends with a line, else with a word; the last one is from half as long to half as long again.
        while len(text) >= 3 * CHUNK_CHARS // 2:
            ends = (text.rfind(mark, CHUNK_CHARS // 2, CHUNK_CHARS) + 1 for mark in ("\n", " "))
            end = next(filter(None, ends), CHUNK_CHARS)
            yield ItemDocument(text[:end], title if begins else None, draw, is_held, begins)
            text, begins = text[end:], False
    if text:
        yield ItemDocument(text, title if begins else None, draw, is_held, begins)


def _with_titles(
    corpus: Corpus, items: Sequence[ItemDocument], title_column: str | None
) -> tuple[list[ItemDocument], str]:
    """The documents with their titles, which first lines are taken out for; and where these are, in words."""
    if any(source.is_table for source in corpus.all_sources()):
        names = sorted({source.title for source in corpus.all_sources() if source.title is not None})
        if not names:
            return list(items), "no titles: the table has no column called title (name another with title_column)"
        count = sum(item.title is not None for item in items)
        return list(items), f"titles: column {' or '.join(map(repr, names))}, {count:,} of {len(items):,}"
    if title_column is not None:
        raise CorpusError(f"title_column={title_column!r}: text files have no columns", options=("title_column",))
    titled = []
    for item in items:
        title = first_line_title(item.text) if item.begins else None
        body = item.text if title is None else item.text.lstrip().partition("\n")[2]
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
# As in BEIR, a document is its title and its text with a space between them, and is not shown for a query with its own
# id. Judged documents that the corpus lacks count as relevant and not found, as in trec_eval, and are reported. Queries
# without a relevant document are passed over.
#
# Source: Thakur et al. 2021 (BEIR), and the format of its repository.


def is_beir(path: str | Path) -> bool:
    """Whether a path names a folder in this format, or one that lacks a single part of it."""
    root = Path(path)
    there = ((root / CORPUS_FILE).is_file(), (root / QUERY_FILE).is_file(), (root / QRELS).is_dir())
    return root.is_dir() and sum(there) >= 2


def read_beir(root: Path, *, split: str, num_queries: int, seed: int) -> SearchTask:
    """Reads a folder into memory, with the judgements of a split of `qrels`; of too many queries the seed chooses."""
    corpus = dict(_records(root / CORPUS_FILE, title=True))
    if not corpus:
        raise CorpusError(f"{root / CORPUS_FILE}: contains no documents")
    queries = dict(_records(root / QUERY_FILE, title=False))
    number_of = {id_: number for number, id_ in enumerate(corpus)}
    passed: Counter[str] = Counter()
    chosen: list[tuple[str, dict[int, int]]] = []
    missing = len(corpus)  # documents that are judged and not there are numbered behind those that are
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
        some = np.random.default_rng(seed).choice(len(chosen), num_queries, replace=False)
        chosen = [chosen[number] for number in np.sort(some).tolist()]
    best = [max(grades, key=lambda n: (grades[n] * (n < len(corpus)), -n)) for _, grades in chosen]
    return SearchTask(
        name="judged",
        documents=list(corpus.values()),
        queries=[queries[query] for query, _ in chosen],
        relevant=[grades for _, grades in chosen],
        draws=np.arange(len(chosen)),
        pairs=[(number, 0) for number in best],
        not_asked=passed,
        excluded=np.array([number_of.get(query, -1) for query, _ in chosen], dtype=np.int64),
    )


def _records(file: Path, *, title: bool) -> Iterator[tuple[str, str]]:
    """Ids and texts of a file, with titles before these."""
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
    """Grades by query and document."""
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
