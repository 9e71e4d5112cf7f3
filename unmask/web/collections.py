"""The parts of the page about many texts: prepared data, searches, and maps of vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from unmask.commands.run_data import packaged_corpus
from unmask.core.errors import CorpusError, DataError, UnmaskError
from unmask.core.files import typed
from unmask.core.remote import address_of
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.settings import CorpusSettings
from unmask.data.sources import kept_source
from unmask.model.pooling import SPLADE
from unmask.search.index import Rank
from unmask.web.copying import copied
from unmask.web.text import Count, Text
from unmask.web.things import Library

PAGE = 20  # pieces of text to show at once
HITS = 10  # of each ranking
MOST_POINTS = 20_000  # of a map
_LONGEST = 600  # characters of a text in a list
_OF_HIT = ("rank", "score", "file", "title", "snippet", "marks")
Split = Literal["train", "validation"]

# ----------------------------------------
# Corpus.


def corpus(library: Library, *, data: str, split: Split = "validation", begin: Count = 0) -> dict[str, Any]:
    """The figures of a preparation, and a page of a split's texts, decoded from their tokens."""
    opened = library.data(data)
    manifest, store = opened.manifest, getattr(opened, split)
    numbers = np.arange(begin, min(begin + PAGE, len(store)))
    pieces = []
    if len(numbers):
        texts = store.gather(numbers)
        columns = (numbers, texts.document, texts.offset, texts.lengths, texts.begin)
        for number, document, offset, length, first in zip(*(each.tolist() for each in columns), strict=True):
            text = opened.tokenizer.decode(texts.input_ids[first : first + length][:300].tolist())
            pieces.append([number, document, offset, length, text[:_LONGEST]])
    near = manifest.near_duplicates
    return {
        "plan": manifest.plan,
        "sources": [source["path"] for source in manifest.sources],
        "splits": {
            name: {"documents": part.documents, "tokens": part.tokens}
            for name, part in (("train", manifest.train), ("validation", manifest.validation))
        },
        "vocab_size": manifest.vocab_size,
        "skipped": manifest.skipped,
        "unknown": {"share": manifest.unknown.share, "examples": list(manifest.unknown.examples)},
        "near": {"summary": near.summary, **near.plain()},
        "labels": manifest.labels,
        "split": split,
        "begin": begin,
        "total": len(store),
        "page": PAGE,
        "pieces": pieces,
    }


def why(library: Library, *, data: str, document: Count) -> dict[str, Any]:
    """Why a document is held out or not. The original text is read again, up to that document."""
    opened = library.data(data)
    names = opened.manifest.settings["sources"]
    # Sources at addresses are refused below, without being fetched.
    paths = [Path.cwd() / (name if address_of(name) else kept_source(opened.root, name)) for name in names]
    for path in paths:
        if path.resolve() != packaged_corpus().resolve():
            library.within(str(path))
    settings = validated(CorpusSettings, opened.manifest.settings["corpus"], where=f"{data}: corpus")
    try:
        reason = Corpus(paths, settings).why(document)
    except CorpusError as error:
        raise CorpusError(f"the original text cannot be read or has changed: {error}") from error
    return {"document": document, "reason": reason}


def tokens(library: Library, *, text: Text, data: str) -> dict[str, Any]:
    """The tokens of a text, and the share of its letters that the tokenizer does not know."""
    tokenizer = library.data(data).tokenizer
    encoded, places = tokenizer.encode_placed([text])
    rows = zip(encoded.input_ids.tolist(), places.begin.tolist(), places.end.tolist(), strict=True)
    return {
        "tokens": [
            [tokenizer.token(id_), id_, text[begin:end], id_ == tokenizer.special.unk] for id_, begin, end in rows
        ],
        "unknown": encoded.unknown.share,
    }


# ----------------------------------------
# Search.


def search(
    library: Library,
    *,
    indexes: Annotated[list[str], Field(min_length=1, max_length=2)],
    query: Annotated[str, Field(max_length=10_000)],
    words_weight: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5,
) -> dict[str, Any]:
    """The hits of each index, ranked by vectors, by words and by both; or the error instead."""
    columns = []
    for path in indexes:
        index = library.index(path)
        is_sparse = index.to_dict()["pooling"] == SPLADE
        names = {"vectors": "sparse vectors" if is_sparse else "dense vectors", "words": "words (BM25)", "both": "both"}
        for rank in get_args(Rank):
            column: dict[str, Any] = {"index": path, "name": names[rank], "hits": [], "seconds": None}
            try:
                weight = words_weight if rank == "both" else None
                hits = index.query([query], top_k=HITS, rank=rank, words_weight=weight)
                column |= {"hits": [_shown(hit) for hit in hits.queries[0]["hits"]], "seconds": hits.seconds}
            except UnmaskError as error:
                column["error"] = str(error)
            columns.append(column)
    options = {"top_k": HITS, "rank": "both", "words_weight": words_weight}
    python = f"unmask.Index({indexes[0]!r}).query({query!r}, top_k={HITS}, rank='both', words_weight={words_weight})"
    return {"columns": columns, "copy": copied("search query", [indexes[0], query], options, python=python)}


def _shown(hit: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a hit. Its id is a string there, since a browser would round a large number."""
    return {name: hit[name] for name in _OF_HIT} | {"id": str(hit["id"])}


# ----------------------------------------
# Space.


def space(library: Library, *, file: str) -> dict[str, Any]:
    """The points of a map made by `unmask embed --map`: at most 20,000 rows, spread over the file. Maps of other tools
    may have no `neighbors`."""
    path = library.within(file)
    try:
        table = pq.ParquetFile(path)
        if not (total := table.metadata.num_rows):
            raise ValueError("it has no rows")
        rows = np.unique(np.linspace(0, total - 1, min(total, MOST_POINTS)).astype(np.int64))
        parts, begin = [], 0
        for batch in table.iter_batches(columns=["x", "y", "text", "neighbors"]):  # the file may hold millions
            parts.append(batch.take(rows[(rows >= begin) & (rows < begin + len(batch))] - begin))
            begin += len(batch)
        taken = pa.Table.from_batches(parts).to_pydict()
        columns = {name: [round(float(value), 4) for value in taken[name]] for name in ("x", "y")}
        shown = {int(row): number for number, row in enumerate(rows)}
        ids = [each["ids"] if each else [] for each in taken.get("neighbors", [None] * len(rows))]
        near = [[shown[id_] for id_ in each[:10] if id_ in shown] for each in ids]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file}: not a map with x, y and text, as unmask embed --map makes ({error})") from error
    if not all(map(math.isfinite, columns["x"] + columns["y"])):
        raise DataError(f"{file}: some positions are not finite")
    texts = ["" if text is None else str(text)[:200] for text in taken["text"]]
    neighbors = " --neighbors neighbors" if "neighbors" in taken else ""
    return {
        **columns,
        "texts": texts,
        "near": near,
        "total": total,
        "atlas": f"embedding-atlas {typed(path)} --text text --x x --y y{neighbors}",
    }
