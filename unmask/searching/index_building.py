"""Making an index: documents are cut into passages, embedded block by block, and written as each block is done.

DocumentFiles ──▶ PassageCutter ──▶ blocks of passages ──skip those that are there──▶ vectors ──▶ blocks/00000.npy
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.errors import RunError, SettingsError
from unmask.files import write_atomically
from unmask.progress import Notify, Progress
from unmask.searching import index_folder
from unmask.searching.approximate_search import why_missing, write_neighbours
from unmask.searching.document_reading import DocumentFiles, DocumentPart
from unmask.searching.index_folder import VERSION, IndexFiles, hash_of, read_facts
from unmask.searching.passage_cutting import PassageCutter, TextPassage
from unmask.searching.search_encoder import SearchEncoder
from unmask.text.given import keep_given, told_apart
from unmask.text.pipes import is_stream
from unmask.text.table_rows import AskedColumn

APPROXIMATE_FROM = 1_000_000  # passages
_MAY_DIFFER = ("model",)  # where it lies; what it is is compared by its fingerprint


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How an index is made.

    Attributes:
        name: By which the model is found again.
        reading: Options of `DocumentFiles`.
        resume, overwrite: Go on with what is there, or replace it.
        approximate: Whether a graph for approximate search is made; None: above a million passages, if usearch is
            there.
    """

    name: str
    reading: dict[str, Any]
    resume: bool = False
    overwrite: bool = False
    approximate: bool | None = None


def build_index(
    encoder: SearchEncoder,
    texts: Any,
    out: Path,
    *,
    options: BuildOptions,
    note: Callable[[str], None],
    notify: Notify,
) -> None:
    """Makes an index in a folder, or goes on with one.

    Args:
        encoder: What embeds.
        texts: As a user gives them; see `told_apart`.
        out: The folder.
        options: How.
        note, notify: Told of decisions and of progress.

    Raises:
        UnmaskError: As `ClaimedFolder`, `DocumentFiles`; the text has changed since the index was begun; or the graph
            is asked for and usearch is not installed, or vectors are sparse.
    """
    files = IndexFiles(out)
    if options.approximate and encoder.is_sparse:
        raise SettingsError("--approximate: a graph is made of dense vectors; sparse ones have posting lists instead")
    if options.approximate and (missing := why_missing()) is not None:
        raise RunError(f"--approximate: {missing}")
    named = told_apart(texts) or []
    inputs = [path for path in named if isinstance(path, str | Path) and not is_stream(path)]
    files.claimed.check(resume=options.resume, overwrite=options.overwrite, inputs=map(Path, inputs))
    with files.claimed.held():
        if options.overwrite:
            files.claimed.clear(files.ours)
        paths = list(keep_given(named, files.root, kept=options.resume, notify=notify))
        documents = DocumentFiles(paths, **options.reading, within=files.root)
        _claim(files, encoder, documents, options)
        if files.whole.is_file():
            note(f"{out}: the index is complete already")
            if options.approximate and not files.neighbours.is_file():
                _write_graph(files, read_facts(files.whole), True, note)
            files.remove_given()
            return
        note(documents.describe())
        if there := files.num_whole_blocks():
            note(f"goes on behind {there:,} blocks of {index_folder.BLOCK_PASSAGES:,} passages, which are there")
        facts = _write_blocks(files, encoder, documents, notify)
        if not encoder.is_sparse:
            _write_graph(files, facts, options.approximate, note)
        write_atomically(files.whole, json.dumps({"version": VERSION, **facts}, indent=1) + "\n")
        files.remove_given()
    for reason, count in documents.skipped.items():
        note(f"passed over: {count:,} {reason}")


def _claim(files: IndexFiles, encoder: SearchEncoder, documents: DocumentFiles, options: BuildOptions) -> None:
    """Writes what the index is begun with, or compares it."""
    wanted = {
        "version": VERSION,
        "model": options.name,
        "fingerprint": encoder.fingerprint(),
        "dimension": encoder.width,
        "files": [documents.name_of(source) for source in documents.sources],
        "reading": {**options.reading, "column": _plain(options.reading["column"])},
        "encoding": asdict(encoder.settings),
        "precision": encoder.model.precision,
    }
    if files.claimed.is_claimed:
        files.claimed.check_same(read_facts(files.begun), wanted, but_for=_MAY_DIFFER)
    else:
        files.claimed.claim(json.dumps(wanted, indent=1) + "\n")


def _plain(column: AskedColumn) -> Any:
    return column if column is None or isinstance(column, str | int) else list(column)


def _write_blocks(
    files: IndexFiles, encoder: SearchEncoder, documents: DocumentFiles, notify: Notify
) -> dict[str, Any]:
    there = files.num_whole_blocks()
    counts: dict[str, Any] = {"documents": 0, "passages": 0, "blocks": []}
    done, total = 0, documents.num_bytes

    def counted() -> Iterator[DocumentPart]:
        nonlocal done
        for part in documents.read():
            counts["documents"] = part.document + 1
            done += len(part.text)
            yield part

    notify(Progress("embedding", 0, total, "characters"))
    cutter = PassageCutter(encoder.model.tokenizer, encoder.settings)
    for number, passages in enumerate(_in_blocks(cutter.cut(counted()))):
        if number < there:
            if files.hash_of_block(number) != hash_of(passages):
                raise files.claimed.changed(f"begun on other text: block {number} of it holds other passages")
        else:
            names = [passage.part.name for passage in passages]
            vectors = encoder.embed_documents([passage.embedded for passage in passages], names)
            files.write_block(number, passages, vectors)
        sizes = [path(number).stat().st_size for path in (files.vectors, files.passages)]
        counts["blocks"].append({"name": f"{number:05d}", "passages": len(passages), "bytes": sizes})
        counts["passages"] += len(passages)
        notify(Progress("embedding", done, total if total is not None and total > done else None, "characters"))
    if there > len(counts["blocks"]):
        raise files.claimed.changed("begun on more text")
    return {**counts, "skipped": dict(documents.skipped)}


def _in_blocks(passages: Iterable[TextPassage]) -> Iterator[list[TextPassage]]:
    rest = iter(passages)
    while block := list(islice(rest, index_folder.BLOCK_PASSAGES)):
        yield block


def _write_graph(
    files: IndexFiles, facts: dict[str, Any], approximate: bool | None, note: Callable[[str], None]
) -> None:
    """Makes what approximate search needs, where it is asked for or worth it."""
    if approximate is False or (approximate is None and facts["passages"] <= APPROXIMATE_FROM):
        return
    if (missing := why_missing()) is not None:
        note(f"every query goes through all of the {facts['passages']:,} passages: {missing}")
        return
    note(f"approximate search: linking {facts['passages']:,} passages")
    write_neighbours(files, facts)
