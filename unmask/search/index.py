"""An index as users see it: built from documents, opened, queried, changed.

index = unmask.Index.build("runs/mine/model", ["docs/"], out="runs/docs")
hits = unmask.Index("runs/docs").query(["how memory is allocated"], top_k=3)
hits.queries[0]["hits"][0]["title"]
index.add(["docs/new.txt"]), index.remove(["docs/old.txt"])

    DocumentFiles ──▶ passages ──▶ groups of 4,096, without those written before ──▶ vectors ──▶ blocks/NAME.npy
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, DataError, ModelError, RunError, SettingsError, listed, shown
from unmask.core.files import typed
from unmask.core.public import public
from unmask.core.remote import refused
from unmask.core.results import Notify, Progress, Readable, Result, Shown, Styled, usual_note, usual_reporter
from unmask.data.columns import ColumnNames
from unmask.data.settings import DocumentUnit
from unmask.data.sources import Texts, is_stream, keep_as_files, paths_or_texts
from unmask.model.pooling import SPLADE
from unmask.search import blocks
from unmask.search.blocks import (
    IndexBlock,
    IndexFolder,
    IndexSettings,
    IndexState,
    StoredIndex,
    damaged,
    hash_of,
    read_state,
    why_no_graph,
)
from unmask.search.changes import Names, changed_state, own_ids
from unmask.search.encoder import SearchEncoder, Similarity, open_encoder
from unmask.search.exact import Ranking, search_exactly, stacked
from unmask.search.passages import DocumentFiles, DocumentPart, TextPassage, find_snippet
from unmask.search.words import FUSED, WORDS_WEIGHT, fused
from unmask.tasks.loaded_model import Model, Precision

APPROXIMATE_FROM = 1_000_000  # passages
_PASSAGES_AT_ONCE = 512  # embedded between two progress reports
_STATES_TRIED = 5  # attempts of a query if the index keeps changing
Rank = Literal["vectors", "words", "both"]
log = logging.getLogger("unmask")
_loading = threading.Lock()  # threads that share an index load its model once


class Hits(Result):
    """Hits of queries.

    Attributes:
        index, model, rank: As used for the queries.
        approximate: Whether the search followed a graph, which may miss a hit, or scanned all passages.
        queries: For each `query` its `hits`, best first: `rank` (from 1), `score` (cosine or inner product; BM25 for
            words; a sum for both), `scores` of `vectors` and `words` (if among the first hundred), `document` (number
            in the index, from 0), `file`, `id`, `is_counted` (whether the id is the document's number in the file),
            `title` (or None); and of the nearest passage `begin` (character in the document), `passage` (text),
            `snippet` and `marks` (positions of the query's words in the snippet).
        seconds: Time for embedding and searching.
    """

    index: str
    model: str
    rank: Rank
    approximate: bool
    queries: list[dict[str, Any]]
    seconds: float

    def shown(self) -> Iterator[Shown]:
        for number, query in enumerate(self.queries):
            if len(self.queries) > 1:
                yield from [""] * (number > 0)
                yield Styled(query["query"], "bold underline")
            if not query["hits"]:
                yield Styled("    no hits: no document shares a token or word with the query", "dim")
            for hit in query["hits"]:
                title = [Styled(f"  {hit['title']}", "bold")] if hit["title"] else []
                id_, file = hit["id"], hit["file"]
                where = f"row {id_:,} of {file}" if hit["is_counted"] else f"{file}, {id_}"
                place = Styled(f"  {where}, character {hit['begin']:,}", "dim")
                yield (Styled(f"{hit['rank']:>2}  {hit['score']:.3f}", "cyan"), *title, place)
                snippet, parts, end = hit["snippet"], list[Styled | str](["    "]), 0
                for begin, mark_end in hit["marks"]:
                    parts += [snippet[end:begin], Styled(snippet[begin:mark_end], "bold yellow")]
                    end = mark_end
                yield (*parts, snippet[end:])


class IndexChange(Result):
    """A change of an index: the number of documents `added` and `removed` (replaced ones count in both), the
    `documents` and `passages` it holds now, its folder `index`, and the `seconds` it took."""

    added: int
    removed: int
    documents: int

    def shown(self) -> Iterator[Shown]:
        yield f"{self.added:,} documents added, {self.removed:,} removed; the index now holds {self.documents:,}"


class Index(Readable):
    """An index of documents.

    If the index changes after it was opened, the next query reads the new state. Each answer comes from a single state.

    Args:
        folder: Folder of the index.
        model: The index's model, if it has moved.

    Raises:
        DataError: The index is missing, incomplete or damaged.
    """

    @public
    def __init__(self, folder: str | Path, *, model: str | Path | Model | None = None) -> None:
        self.folder = Path(folder)
        # One tuple, since threads may share an index: a state, and the model once it was loaded for that state.
        self._opened: tuple[StoredIndex, SearchEncoder | None] = (StoredIndex(self.folder), None)
        self._model = model

    @classmethod
    @public
    def build(  # noqa: PLR0913  (the options of the command line)
        cls,
        model: str | Path | Model,
        texts: Texts,
        *,
        out: str | Path,
        column: ColumnNames = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str = "auto",
        encoding: str | None = None,
        passage_tokens: int | None = None,
        overlap_tokens: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        pooling: str | None = None,
        similarity: Similarity | None = None,
        precision: Precision = "float32",
        strict: bool = False,
        approximate: bool | None = None,
        resume: bool = False,
        overwrite: bool = False,
        note: Callable[[str], None] = usual_note,
        notify: Notify | None = None,
    ) -> Index:
        """Indexes documents, cutting long ones into passages. Memory grows with their ids, and with the graph of
        approximate search.

        Args:
            model: Folder of a model, such as RUN/model, or its name on the hub.
            texts: Files, folders or patterns of documents, or - for standard input; in Python also texts in memory (see
                `unmask.data.sources`).
            out: The index's folder.
            column: Text column of a table: a name, a path within a column (doc.text), or several (a,b). By default it
                is detected.
            id_column: Id column of a table. By default id, or a column like doc_id whose values are unique; otherwise,
                and with '', rows are numbered.
            title_column: Title column of a table. By default title, if there is one.
            documents: What counts as a document in text files: line, block, file, or auto, which decides by their
                content.
            encoding: Encoding of text that is not Unicode, such as cp1252.
            passage_tokens: Tokens per passage of a long document; the model reads passages beyond its limit in windows.
                By default the model's limit, at most 512.
            overlap_tokens: Tokens that a passage shares with the previous one. By default an eighth.
            query_prompt: Text put before each query. By default as the model's folder says.
            document_prompt: Text put before each passage. By default as the model's folder says.
            pooling: How token vectors become a passage's vector. By default as the model's folder says.
            similarity: By default as the model's folder says, otherwise cosine; dot for sparse vectors.
            precision: Type of the activations; bf16 is several times faster on hardware that supports it, and auto uses
                it there.
            strict: Refuse a model whose files differ from its checksums.json.
            approximate: Build a graph of near passages, so that a query need not scan all of them (needs usearch). By
                default above a million passages.
            resume: Continue an interrupted index; a finished one only gets a graph (approximate), and no new text.
            overwrite: Replace an existing index.
            note: Called with each decision, a line.
            notify: Called with the progress.

        Raises:
            UnmaskError: As `open_encoder` and `DocumentFiles`; two documents have the same id; the folder holds
                something else; the text of an interrupted index has changed; or approximate search is chosen but
                usearch is missing or vectors are sparse.
        """
        refused(out, "an index")
        encoder = open_encoder(
            model, pooling=pooling, similarity=similarity, query_prompt=query_prompt, document_prompt=document_prompt,
            passage_tokens=passage_tokens, overlap_tokens=overlap_tokens, precision=precision, strict=strict,
        )  # fmt: skip
        fingerprint = encoder.fingerprint()
        if approximate and encoder.is_sparse:
            raise SettingsError("approximate: only dense vectors have a graph; omit this", options=("approximate",))
        if approximate and (no_graph := why_no_graph()) is not None:
            raise RunError(f"approximate: {no_graph}", options=("approximate",))
        folder, notify = IndexFolder(Path(out)), notify or usual_reporter().notify
        named = paths_or_texts(texts)
        inputs = [Path(name) for name in named if isinstance(name, str | Path) and not is_stream(name)]
        # While an index is replaced, readers keep seeing its old state until the new one is complete.
        with folder.claimed.entered(resume=resume, overwrite=overwrite, clears=folder.inputs, inputs=inputs):
            paths = list(keep_as_files(named, folder.root, reuse=resume, notify=notify))
            columns = column if column is None or isinstance(column, str | int) else list(column)
            reading = {"column": columns, "id_column": id_column, "title_column": title_column, "documents": documents}
            files = DocumentFiles(paths, **reading, encoding=encoding, within=folder.root)  # type: ignore[arg-type]
            loaded = encoder.model
            settings = IndexSettings(
                model=str(loaded.hub or loaded.folder.absolute()),
                fingerprint=fingerprint,
                dimension=encoder.width,
                files=[files.name_of(source) for source in files.sources],
                folder=os.getcwd(),
                reading=reading,
                tables=files.tables,
                unit=files.unit,
                encoding=encoder.settings,
                precision=loaded.precision,
            )
            state, is_whole = IndexState(settings=settings), False
            if folder.claimed.is_claimed and not overwrite:
                state = read_state(folder.begun)
                if state.changes and folder.whole.is_file():  # index.json is more up to date
                    state = read_state(folder.whole)
                # The two files are equal only if the index is finished. index.json may be damaged, so it is not parsed.
                is_same = folder.whole.is_file() and folder.whole.read_bytes() == folder.begun.read_bytes()
                is_whole = (is_same or state.changes > 0) and folder.has(*state.names)
                # The model may have moved: its fingerprint identifies it. A changed unit changes the passages.
                before, may_differ = state.settings, ["folder", "model", "unit"]
                if is_whole and (state.changes or set(before.files) <= set(settings.files)):
                    may_differ += ["files", "tables"]  # no text is read here; the note below points to `add`
                folder.claimed.check_same(before.model_dump(), settings.model_dump(), but_for=may_differ)
            if is_whole:
                note(f"{out}: the index is already complete; unmask search add takes in changed or new files")
                needs_graph = bool(approximate) and state.graph is None
            else:
                if state.changes:
                    what = "documents were added or removed after it was built, so it cannot be restored from its text"
                    raise damaged(folder.root, what)
                note(files.describe())
                own_ids(files)
                folder.write_state(folder.begun, state)  # only now, since `add` and `remove` refuse an unfinished index
                if state.blocks:
                    note(f"resuming after {len(state.blocks):,} blocks of {blocks.BLOCK_PASSAGES:,} passages")
                written, documents_P = _write_blocks(folder, files, encoder, state, note, notify)
                update = {"blocks": written, "documents": int(documents_P[-1]) + 1, "skipped": dict(files.skipped)}
                state = state.model_copy(update=update | {"numbers": folder.write_array(documents_P)})
                is_large = state.passages > APPROXIMATE_FROM and not encoder.is_sparse
                needs_graph = (is_large or state.graph is not None) if approximate is None else approximate
            folder.finish(_linked(folder, state, note) if needs_graph else state)
            folder.claimed.clear(folder.inputs, marker=False)  # the blocks hold all passages
        index = cls(out, model=encoder.model)
        index._opened = (index._opened[0], encoder)
        return index

    def to_dict(self) -> dict[str, Any]:
        """The contents (`documents`, `passages`, `approximate`) and how it was built (`skipped`: what was left out)."""
        state = self._opened[0].state
        return {
            "folder": str(self.folder),
            **{name: getattr(state.settings, name) for name in ("model", "fingerprint", "files", "dimension")},
            **state.settings.encoding.model_dump(),
            "documents": state.documents,
            "passages": state.passages - state.removed,
            "skipped": state.skipped,
            "bytes": sum(block.bytes for block in state.blocks),
            "approximate": state.graph is not None,
        }

    def shown(self) -> Iterator[Shown]:
        facts = self.to_dict()
        prompt = f", after {facts['document_prompt']!r}" if facts["document_prompt"] else ""
        yield (
            f"{facts['documents']:,} documents in {facts['passages']:,} passages of up to {facts['passage_tokens']} "
            f"tokens{prompt}; vectors of {facts['dimension']} dimensions from {facts['model']}; "
            f"{facts['bytes'] / 1e6:,.1f} MB"
        )
        yield Styled(f'Search it: unmask search query {typed(self.folder)} "..."', "dim")

    @public
    def add(
        self,
        texts: Texts,
        *,
        column: ColumnNames = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str | None = None,
        encoding: str | None = None,
        note: Callable[[str], None] = usual_note,
        notify: Notify | None = None,
    ) -> IndexChange:
        """Adds documents to an index, replacing those with the same id or, without ids, from the same file.

        Texts in memory without ids are always new and are numbered onwards.

        Args:
            texts: As for `build`: files, folders, patterns, - for standard input.
            column: Text column of a table. By default the index's, if the table has it; otherwise it is detected.
            id_column: Id column of a table. By default likewise.
            title_column: Title column of a table. By default likewise.
            documents: What counts as a document in text files: line, block, file, or auto. By default as in the index.
            encoding: Encoding of text that is not Unicode, such as cp1252.
            note: Called with each decision, a line.
            notify: Called with the progress.

        Raises:
            UnmaskError: As `build`; two of the documents have the same id; or another process is writing the index.
        """
        start, notify = time.perf_counter(), notify or usual_reporter().notify
        named = paths_or_texts(texts)
        with self._changing() as old:
            settings, folder = old.state.settings, old.folder
            encoder = self._encoder(old, settings.precision)
            root = folder.root.absolute()
            paths = list(keep_as_files(named, root, notify=notify))
            if os.getcwd() != settings.base:  # relative names would be taken to start there
                paths = [Path(path).absolute() for path in paths]
            files = DocumentFiles(
                paths, column=column, id_column=id_column, title_column=title_column, encoding=encoding,
                documents=documents or settings.unit or settings.reading["documents"], within=root,
                usual=settings.tables,
            )  # fmt: skip
            note(files.describe())
            # Texts from memory are in temporary files of the index, not in files of the user.
            in_memory = [files.name_of(each) for each in files.sources if each.path.is_relative_to(root)]
            without = next((each for each in files.sources if each.column is not None and each.id is None), None)
            id_columns = [each.id for each in settings.tables]
            if without is not None and id_column != "" and id_columns and all(id_columns) and not in_memory:
                what = f"{without.path} has no column {listed(sorted({*filter(None, id_columns)}), 3)}"
                ways = "name the column that holds them here, or none ('')"
                raise CorpusError(f"{what}, which holds the ids of this index; {ways}", options=("id_column",))
            ids, names = own_ids(files), Names(old)
            user_files = {files.name_of(each) for each in files.sources}.difference(in_memory)
            gone_P = names.replaced(ids, sorted(user_files))
            counted = dict.fromkeys(in_memory, names.last_number(in_memory))
            new, added_P = _write_blocks(folder, files, encoder, None, note, notify, counted)
            return self._finish(old, changed_state(old, gone_P, new, added_P), gone_P, note, start)

    @public
    def remove(self, ids: Sequence[str | int], *, note: Callable[[str], None] = usual_note) -> IndexChange:
        """Removes documents from an index.

        Args:
            ids: Ids of documents as hits show them, from the id column, the name of a sequence or the number in the
                file; or file names, for all documents in a file.
            note: Called with each decision, a line.

        Raises:
            UnmaskError: There is no such document, or several have that number; the index is damaged; or another
                process is writing it.
        """
        start = time.perf_counter()
        with self._changing() as old:
            gone_P = Names(old).of_ids([ids] if isinstance(ids, str | int) else list(ids))
            state = changed_state(old, gone_P, [], np.zeros(0, dtype=np.int64))
            return self._finish(old, state, gone_P, note, start)

    @contextmanager
    def _changing(self) -> Iterator[StoredIndex]:
        """The state to change, with the folder locked against other writers."""
        refused(self.folder, "an index")
        folder = StoredIndex(self.folder).folder
        with folder.claimed.entered(resume=True):
            if read_state(folder.begun).numbers is None:
                text = "replacing this index was interrupted; run that command again, with resume instead of overwrite"
                raise DataError(f"{self.folder}: {text}", options=("resume", "overwrite"))
            try:
                yield StoredIndex(self.folder, before=self._opened[0])
            except FileNotFoundError as error:
                raise damaged(self.folder, f"{error.filename} is missing") from error
            finally:
                folder.claimed.clear(folder.inputs, marker=False)

    def _finish(
        self, old: StoredIndex, state: IndexState, gone_P: NDArray[np.bool_], note: Callable[[str], None], start: float
    ) -> IndexChange:
        # A large index without a graph was built with `approximate=False`, or without usearch.
        becomes_large = old.state.passages <= APPROXIMATE_FROM < state.passages
        needs_graph = old.state.graph is not None or (becomes_large and state.settings.encoding.pooling != SPLADE)
        if needs_graph and state.graph is None and state.passages:
            state = _linked(old.folder, state, note)
        old.folder.finish(state)
        self._reopen()
        removed = len(np.unique(old.documents[gone_P]))
        return IndexChange(
            {
                "index": str(self.folder),
                "added": state.documents + removed - old.state.documents,
                "removed": removed,
                "documents": state.documents,
                "passages": state.passages - state.removed,
                "seconds": time.perf_counter() - start,
            }
        )

    def _reopen(self) -> None:
        """Opens the current state; keeps the opened one if the current one cannot be read."""
        stored, encoder = self._opened
        with suppress(DataError):
            newer = StoredIndex(self.folder, before=stored)
            self._opened = newer, encoder if newer.state.settings == stored.state.settings else None

    @public
    def query(
        self,
        texts: str | Sequence[str],
        *,
        top_k: int = 10,
        exact: bool = False,
        rank: Rank = "vectors",
        words_weight: float | None = None,
    ) -> Hits:
        """Finds the documents nearest to each text.

        Args:
            texts: Queries, or a single one.
            top_k: Maximum number of documents per query.
            exact: Scan all passages even if there is a graph.
            rank: Rank by `vectors`, by `words` (BM25, which needs no model) or by `both`.
            words_weight: Weight of words when both rank, from 0 to 1. By default 0.5.

        Raises:
            SettingsError: There is no query, one is empty, `top_k` is below 1, or another argument is out of range.
            ModelError: The model is not that of the index.
            DataError: A file of the index is damaged.
        """
        queries = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
        for text in queries:
            if not isinstance(text, str):
                raise SettingsError(f"a query must be a text, not {shown(text)}")
        if not queries or not all(text.strip() for text in queries):
            raise SettingsError("the query is empty; give a text to search for")
        if top_k < 1:
            raise SettingsError(f"top_k must be at least 1, not {top_k}", options=("top_k",))
        if rank not in get_args(Rank):
            raise SettingsError(f"rank must be vectors, words or both, not {shown(rank)}", options=("rank",))
        if words_weight is not None and rank != "both":
            what = f"words_weight has no effect on rank {rank}; leave it out, or rank by both"
            raise SettingsError(what, options=("words_weight", "rank"))
        words_weight = WORDS_WEIGHT if words_weight is None else words_weight
        if not 0.0 <= words_weight <= 1.0:
            raise SettingsError(f"words_weight must be between 0 and 1, not {words_weight}", options=("words_weight",))
        begin = time.perf_counter()
        if self._opened[0].written != self._opened[0].folder.written():
            self._reopen()
        for _ in range(_STATES_TRIED):
            stored = self._opened[0]
            try:
                hits = self._query(stored, queries, top_k, exact, rank, words_weight)
                return Hits(hits | {"seconds": time.perf_counter() - begin})
            except FileNotFoundError as error:
                missing = error
            self._reopen()  # the index may have changed meanwhile
            if self._opened[0].state == stored.state:
                break
        raise damaged(self.folder, f"{missing.filename} is missing") from missing

    def _query(
        self, stored: StoredIndex, queries: list[str], top_k: int, exact: bool, rank: Rank, words_weight: float
    ) -> dict[str, Any]:
        """Fields of `Hits`, except the time, from one state; raises `FileNotFoundError` if a file is missing."""
        encoder = self._opened[1] if rank == "words" else self._encoder(stored, "float32")
        top_k = min(top_k, max(1, stored.state.documents))
        depth = max(top_k, FUSED) if rank == "both" else top_k
        has_graph = rank != "words" and not exact and stored.state.linked > 0
        if has_graph and (reason := why_no_graph()) is not None:
            log.warning("%s: searching all passages, since %s", self.folder, reason)
            has_graph = False
        rankings: dict[str, Ranking] = {}
        if encoder is not None and rank != "words":
            vectors_QD = encoder.embed_queries(queries)
            if has_graph:
                rankings["vectors"] = stored.search_by_graph(vectors_QD, depth)
            else:
                rankings["vectors"] = search_exactly(vectors_QD, stored.blocks(), depth)
        if rank != "vectors":
            rankings["words"] = stored.by_words.rank(queries, depth)
        ranking, *others = rankings.values()
        if others:
            ranking = fused(ranking, others[0], top_k, words_weight=words_weight)

        results = []
        for query, text in enumerate(queries):
            scores_by = {
                name: dict(zip(r.documents_QK[query].tolist(), r.scores_QK[query].tolist(), strict=True))
                for name, r in rankings.items()
            }
            hits: list[dict[str, Any]] = []
            passages = ranking.passages_QK[query]
            for number, score in zip(passages[passages >= 0].tolist(), ranking.scores_QK[query].tolist(), strict=False):
                passage = stored.passage(number)
                content, document = passage.pop("text"), passage["document"]
                scores = {name: score_of[document] for name, score_of in scores_by.items() if document in score_of}
                snippet, marks = find_snippet(content, text)
                facts = {"passage": content, "snippet": snippet, "marks": [list(mark) for mark in marks]}
                hits.append({"rank": len(hits) + 1, "score": score, "scores": scores, **passage, **facts})
            results.append({"query": text, "hits": hits})
        return {
            "index": str(self.folder),
            "model": stored.state.settings.model if encoder is None else str(encoder.model.folder),
            "rank": rank,
            "approximate": has_graph,
            "queries": results,
        }

    def _encoder(self, stored: StoredIndex, precision: Any) -> SearchEncoder:
        """The model that a state was built with, loaded once, while other threads wait; `precision` applies to a model
        that is loaded here."""
        with _loading:
            (opened, encoder), settings = self._opened, stored.state.settings
            is_loaded, is_same = isinstance(self._model, Model), opened.state.settings == settings
            if encoder is not None and is_same and (is_loaded or encoder.model.precision == precision):
                return encoder
            model, encoding = self._model or settings.model, settings.encoding.model_dump()
            try:
                encoder = open_encoder(model, **encoding, precision=precision)
            except ModelError as error:
                if self._model is not None:
                    raise
                text = f"{self.folder} was made with {model}: {error.args[0]}; if the model has moved, name its folder"
                raise ModelError(text, options=("model",)) from error
            if encoder.fingerprint() != settings.fingerprint:
                what = f"{self.folder} was made with {settings.model} as it was then, not with {encoder.model.folder}"
                raise ModelError(f"{what} as it is now; use that model, or index the documents again")
            self._opened = stored, encoder
            return encoder


def _write_blocks(
    folder: IndexFolder,
    files: DocumentFiles,
    encoder: SearchEncoder,
    begun: IndexState | None,
    note: Callable[[str], None],
    notify: Notify,
    counted: Mapping[str, int] | None = None,
) -> tuple[list[IndexBlock], NDArray[np.int64]]:
    """Cuts documents into passages, embeds them and writes blocks. Blocks of the state `begun` are not written again,
    and the state is saved after each new one. Numeric ids continue after the last number `counted` for their file.
    Returns all blocks, and the document of each passage."""
    done, total = 0, files.num_bytes

    def parts() -> Iterator[DocumentPart]:
        for part in files.read():
            before = counted.get(part.file, 0) if counted and part.is_counted else 0
            yield part._replace(id=int(part.id) + before) if before else part

    def show(passages: Sequence[TextPassage]) -> None:
        nonlocal done
        done += sum(len(passage.part.text[passage.new : passage.end].encode()) for passage in passages)
        notify(Progress("embedding", done, total if total is not None and total > done else None, "bytes"))

    show([])
    written, numbers = [] if begun is None else begun.blocks.copy(), [np.zeros(0, dtype=np.int64)]
    cut = encoder.passages(parts())
    for number in count():
        passages = list(islice(cut, blocks.BLOCK_PASSAGES))
        if not passages:
            break
        if number < len(written) and written[number].hash != hash_of(passages):
            raise folder.claimed.changed(f"started on other text: its block {number} holds other passages")
        if number < len(written) and folder.has(*written[number].names):
            show(passages)
        else:
            vectors = []
            for begin in range(0, len(passages), _PASSAGES_AT_ONCE):
                group = passages[begin : begin + _PASSAGES_AT_ONCE]
                names = [f"{passage.part.file}: document {passage.part.id!r}" for passage in group]
                vectors.append(encoder.embed_documents([passage.embedded for passage in group], names))
                show(group)
            block = folder.write_block(passages, stacked(vectors))
            written[number : number + 1] = [block]
            if begun is not None:
                folder.write_state(folder.begun, begun.model_copy(update={"blocks": written}))
        numbers.append(np.array([passage.part.document for passage in passages], dtype=np.int64))
    if number < len(written):
        raise folder.claimed.changed("started on more text")
    for reason, rows in files.skipped.items():
        note(f"skipped: {rows:,} {reason}")
    return written, np.concatenate(numbers)


def _linked(folder: IndexFolder, state: IndexState, note: Callable[[str], None]) -> IndexState:
    if (reason := why_no_graph()) is not None:
        note(f"each query will scan all {state.passages:,} passages: {reason}")
        return state
    note(f"building the graph for approximate search: {state.passages:,} passages")
    return state.model_copy(update={"graph": folder.write_graph(state), "linked": len(state.blocks)})


@public
def query_index(
    index: str | Path,
    text: str,
    *,
    top_k: int = 10,
    exact: bool = False,
    rank: Rank = "vectors",
    words_weight: float | None = None,
    model: str | Path | None = None,
) -> Hits:
    """Finds the documents of an index nearest to a text, each with its nearest passage.

    Args:
        index: Folder made by `unmask search index`.
        text: A query, or several, one per line; - reads standard input.
        top_k: Number of documents to show.
        exact: Scan all passages even if there is a graph.
        rank: Rank by vectors, by words (BM25) or by both.
        words_weight: Weight of words when both rank, from 0 to 1. By default 0.5.
        model: The index's model, if it has moved.
    """
    opened, queries = Index(index, model=model), [line for line in text.splitlines() if line.strip()]
    return opened.query(queries or text, top_k=top_k, exact=exact, rank=rank, words_weight=words_weight)
