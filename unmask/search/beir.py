"""Folders in the format of BEIR, with human judgements of what is relevant.

    corpus.jsonl      {"_id": "d1", "title": "...", "text": "..."}      a document a line
    queries.jsonl     {"_id": "q1", "text": "..."}
    qrels/test.tsv    query-id <tab> corpus-id <tab> score              with a header; the score is a grade

As in BEIR, a document is its title and its text with a space between them, and is not shown for a query with its own
id. Judged documents that the corpus lacks count as relevant and not found, as in trec_eval, and are reported. Queries
without a relevant document are passed over.

Source: Thakur et al. 2021 (BEIR), and the format of its repository.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from unmask.core.errors import CorpusError, shown
from unmask.data.json_rows import json_rows
from unmask.data.reading import BadInput, whole_lines
from unmask.search.known_items import SearchTask

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"


def is_beir(path: str | Path) -> bool:
    """Whether a path names a folder in this format, or one that lacks a single part of it."""
    root = Path(path)
    there = ((root / CORPUS).is_file(), (root / QUERIES).is_file(), (root / QRELS).is_dir())
    return root.is_dir() and sum(there) >= 2


def read_beir(root: Path, *, split: str, num_queries: int | None, seed: int) -> SearchTask:
    """Reads a folder. The corpus is held in memory.

    Args:
        root: The folder.
        split: Of `qrels`, such as `test`.
        num_queries: At most; None takes all.
        seed: Chooses them, where there are more.

    Raises:
        CorpusError: A file is missing or cannot be read, an id is there twice, or no judgement is of a query and a
            document that are there.
    """
    corpus = dict(_records(root / CORPUS, title=True))
    if not corpus:
        raise CorpusError(f"{root / CORPUS}: there is no document in it")
    queries = dict(_records(root / QUERIES, title=False))
    number_of = {id_: number for number, id_ in enumerate(corpus)}
    passed: Counter[str] = Counter()
    chosen: list[tuple[str, dict[int, int]]] = []
    missing = len(corpus)  # documents that are judged and not there are numbered behind those that are
    for query, grades in _judgements(root, split).items():
        if query not in queries:
            passed[f"judged queries that {QUERIES} lacks"] += 1
        elif not any(grade > 0 and id_ in number_of for id_, grade in grades.items()):
            passed["judged queries without a relevant document in the corpus"] += 1
        elif not queries[query].strip():
            passed["queries without text"] += 1
        else:
            numbered = {}
            for id_, grade in grades.items():
                if id_ not in number_of:
                    missing += 1
                    passed[f"judged documents that {CORPUS} lacks, counted as not found"] += 1
                numbered[number_of.get(id_, missing)] = grade
            chosen.append((query, numbered))
    if not chosen:
        why = ", ".join(f"{count:,} {reason}" for reason, count in passed.items()) or "it is empty"
        raise CorpusError(
            f"{root / QRELS / split}.tsv: none of its judgements is of a query in {QUERIES} and a document in "
            f"{CORPUS} that is relevant to it ({why}); mind that ids are those of `_id`"
        )
    if num_queries is not None and len(chosen) > num_queries:
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
        raise CorpusError(
            f"{file}: there is no such file; a folder of BEIR has {CORPUS}, {QUERIES} and {QRELS}/test.tsv"
        )
    seen = set()
    for number, row in json_rows(file, BadInput(skip=False, way_out=None)):
        id_, text = row.get("_id"), row.get("text")
        if isinstance(id_, bool) or not isinstance(id_, str | int) or not isinstance(text, str):
            raise CorpusError(
                f"{file}: row {number} has {shown(id_)} as _id and {shown(text)} as text; both must be texts"
            )
        if str(id_) in seen:
            raise CorpusError(f"{file}: row {number} has the _id {shown(id_)}, which stood before; make ids unique")
        seen.add(str(id_))
        head = row.get("title") if title else None
        yield str(id_), f"{head} {text}".strip() if isinstance(head, str) and head else text


def _judgements(root: Path, split: str) -> dict[str, dict[str, int]]:
    """Grades by query and document."""
    file = root / QRELS / f"{split}.tsv"
    if not file.is_file():
        others = sorted(path.stem for path in (root / QRELS).glob("*.tsv"))
        way_out = f"name one with --split: {', '.join(others)}" if others else f"put judgements into {QRELS}/test.tsv"
        raise CorpusError(f"{file}: there is no such file; {way_out}")
    judgements: dict[str, dict[str, int]] = {}
    for number, line in enumerate(whole_lines(file, BadInput(skip=False, way_out=None)), 1):
        cells = line.rstrip("\r\n").split("\t")
        if not line.strip() or (number == 1 and cells[0] == "query-id"):
            continue
        try:
            query, document, grade = cells
            judgements.setdefault(query, {})[document] = int(grade)
        except ValueError as error:
            raise CorpusError(
                f"{file}: line {number} is {shown(line)}, not a query, a document and a whole number with tabs between"
            ) from error
    return judgements
