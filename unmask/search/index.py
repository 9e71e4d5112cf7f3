"""An index as users hold it: made of documents, opened, queried.

index = unmask.Index.build("runs/mine/model", ["docs/"], out="runs/docs")
hits = unmask.Index("runs/docs").query(["how memory is allocated"], top_k=3)
hits.queries[0]["hits"][0]["title"]

    DocumentFiles ──▶ passages ──▶ blocks, but for those that are there ──▶ vectors ──▶ blocks/00000.npy
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.errors import ModelError, RunError, SettingsError, UnmaskError, shown
from unmask.core.hub import hub_name
from unmask.core.public import public
from unmask.core.remote import refused
from unmask.core.results import Notify, Progress, Readable, Result, Shown, Styled, usual_reporter
from unmask.data.columns import ColumnNames
from unmask.data.settings import DocumentUnit
from unmask.data.sources import Texts, is_stream, keep_as_files, paths_or_texts
from unmask.search import blocks
from unmask.search.blocks import (
    IndexFolder,
    IndexSettings,
    IndexState,
    StoredIndex,
    damaged,
    hash_of,
    read_state,
    why_no_graph,
)
from unmask.search.encoder import SearchEncoder, Similarity, open_encoder
from unmask.search.exact import search_exactly
from unmask.search.passages import DocumentFiles, DocumentPart, find_snippet
from unmask.tasks.loaded_model import Model, Precision

APPROXIMATE_FROM = 1_000_000  # passages
_STATES_TRIED = 5  # by a query, of an index that is made anew again and again
log = logging.getLogger("unmask")


class Hits(Result):
    """What queries find.

    Attributes:
        index, model: That were used.
        approximate: Whether a graph was followed, which may miss something, or all passages were looked at.
        queries: Of each `query` its `hits`, the nearest first: `rank` from 1 on, `score` (cosine or inner product),
            `document` (number in the index, from 0), `file`, `id`, `title` (None: it has none), and of its nearest
            passage `begin` (character of the document), `passage` (the text), `snippet` and `marks` (where words of the
            query stand in the snippet).
        seconds: That embedding and searching took.
    """

    index: str
    model: str
    approximate: bool
    queries: list[dict[str, Any]]
    seconds: float

    def shown(self) -> Iterator[Shown]:
        for number, query in enumerate(self.queries):
            if len(self.queries) > 1:
                yield from [""] * (number > 0)
                yield Styled(query["query"], "bold underline")
            if not query["hits"]:
                yield Styled("    no hit: no text shares a token with it", "dim")
            for hit in query["hits"]:
                title = [Styled(f"  {hit['title']}", "bold")] if hit["title"] else []
                where = (
                    f"row {hit['id']:,} of {hit['file']}"
                    if isinstance(hit["id"], int)
                    else f"{hit['file']}, {hit['id']}"
                )
                place = Styled(f"  {where}, character {hit['begin']:,}", "dim")
                yield (Styled(f"{hit['rank']:>2}  {hit['score']:.3f}", "cyan"), *title, place)
                snippet, parts, end = hit["snippet"], list[Styled | str](["    "]), 0
                for begin, mark_end in hit["marks"]:
                    parts += [snippet[end:begin], Styled(snippet[begin:mark_end], "bold yellow")]
                    end = mark_end
                yield (*parts, snippet[end:])


class Index(Readable):
    """An index of documents.

    It is opened as it stands. Where it has been made anew meanwhile, and files of the old state are gone, a query opens
    the new one; what it answers is of one state.

    Args:
        folder: That `Index.build` or `unmask search index` has made.
        model: The model that it was made with, where that lies elsewhere now; None: as the index says.
        precision, strict: Of a model that is loaded here; see `unmask.load`.

    Raises:
        DataError: There is no index, it is not whole, or it is damaged.
    """

    @public
    def __init__(
        self,
        folder: str | Path,
        *,
        model: str | Path | Model | None = None,
        precision: Precision = "float32",
        strict: bool = False,
    ) -> None:
        self.folder = Path(folder)
        # One value, since threads may share an index: a state, and the model where it was loaded for that state.
        self._opened: tuple[StoredIndex, SearchEncoder | None] = (StoredIndex(self.folder), None)
        self._model, self._precision, self._strict = model, precision, strict

    @classmethod
    @public
    def build(  # noqa: PLR0913  (the options of the command line, each a name that users know)
        cls,
        model: str | Path | Model,
        texts: Texts,
        *,
        out: str | Path,
        column: ColumnNames = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str = "auto",
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
        note: Callable[[str], None] = log.info,
        notify: Notify | None = None,
    ) -> Index:
        """Makes an index of documents, long ones in passages. Memory does not grow with them, but for the graph of
        approximate search.

        Args:
            model: Folder of a model, such as RUN/model, or its name on the hub.
            texts: Files, folders or patterns of documents, or - for standard input; in Python also texts in memory (see
                `unmask.data.sources`).
            out: The index's folder.
            column: Of the text in tables: a name, a path within a column (doc.text), or several (a,b). By default it is
                found.
            id_column: Of the ids in tables. By default id or _id, else the number of the row.
            title_column: Of the titles in tables. By default title, if it is there.
            documents: A document of text files: line, block, file, or auto, which looks at them.
            passage_tokens: Tokens of a passage of a long document; longer ones than the model takes are seen in
                windows. By default what the model takes, at most 512.
            overlap_tokens: Tokens that a passage shares with the one before it. By default an eighth.
            query_prompt: Text before each query. By default what the model's folder says.
            document_prompt: Text before each passage. By default what the model's folder says.
            pooling: Of a passage's tokens. By default what the model's folder says.
            similarity: By default what the model's folder says, else cosine; dot for sparse vectors.
            precision: Of the activations; bf16 is several times faster on hardware made for it, and auto takes it
                there.
            strict: Refuse a model whose files differ from its checksums.json.
            approximate: Make a graph of near passages, so that a query need not go through all (takes usearch). By
                default above a million passages.
            resume: Go on with an index that was stopped.
            overwrite: Replace the index that is there.
            note: Called with each decision, a line.
            notify: Called with the progress.

        Raises:
            UnmaskError: As `open_encoder` and `DocumentFiles`; the folder holds something else; the text has changed
                since the index was begun; or approximate search is chosen and usearch is not installed, or vectors are
                sparse.
        """
        refused(out, "an index")
        encoder = open_encoder(
            model,
            pooling=pooling,
            similarity=similarity,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            passage_tokens=passage_tokens,
            overlap_tokens=overlap_tokens,
            precision=precision,
            strict=strict,
        )
        if approximate and encoder.is_sparse:
            raise SettingsError(
                "approximate: a graph is made of dense vectors; sparse ones have posting lists instead",
                options=("approximate",),
            )
        no_graph = why_no_graph()
        if approximate and no_graph is not None:
            raise RunError(f"approximate: {no_graph}", options=("approximate",))
        folder, notify = IndexFolder(Path(out)), notify or usual_reporter().notify
        named = paths_or_texts(texts) or []
        inputs = [Path(name) for name in named if isinstance(name, str | Path) and not is_stream(name)]
        # Where it is replaced, the state that is read there now stays until the new one is whole.
        ways = {"resume": resume, "overwrite": overwrite, "clears": folder.inputs}
        with folder.claimed.entered(**ways, inputs=inputs):  # type: ignore[arg-type]
            paths = list(keep_as_files(named, folder.root, reuse=resume, notify=notify))
            reading = {"column": column, "id_column": id_column, "title_column": title_column, "documents": documents}
            files = DocumentFiles(paths, **reading, within=folder.root)  # type: ignore[arg-type]
            is_plain = column is None or isinstance(column, str | int)
            lasting = str(model)  # by which the model is found again: its name on the hub, or its absolute path
            if isinstance(model, Model):
                lasting = str(model.folder.absolute()) if model.hub is None else str(model.hub)
            elif hub_name(model) is None:
                lasting = str(Path(model).absolute())
            state = IndexState(
                settings=IndexSettings(
                    model=lasting,
                    fingerprint=encoder.fingerprint(),
                    dimension=encoder.width,
                    files=[files.name_of(source) for source in files.sources],
                    reading=reading | {"column": column if is_plain else list(column)},  # type: ignore[arg-type]
                    encoding=encoder.settings,
                    precision=encoder.model.precision,
                )
            )
            if folder.claimed.is_claimed and not overwrite:
                begun = read_state(folder.begun)
                # The model may have moved: what it is goes by its fingerprint.
                before, now = begun.settings.model_dump(), state.settings.model_dump()
                folder.claimed.check_same(before, now, but_for=("model",))
                state = begun
            else:
                folder.write_state(folder.begun, state)
            # Both files are the same only when an index is finished; the old one may be damaged, and is not parsed.
            is_finished = folder.whole.is_file() and folder.whole.read_bytes() == folder.begun.read_bytes()
            had_graph = state.graph is not None
            if is_finished and folder.has(*state.names):
                note(f"{out}: the index is complete already")
                wants_graph = bool(approximate) and not had_graph
            else:
                note(files.describe())
                state = _write_blocks(folder, state, encoder, files, note, notify)
                is_large = state.passages > APPROXIMATE_FROM and not encoder.is_sparse
                wants_graph = (had_graph or is_large) if approximate is None else approximate
            if wants_graph and no_graph is not None:
                note(f"every query goes through all of the {state.passages:,} passages: {no_graph}")
            elif wants_graph:
                note(f"approximate search: linking {state.passages:,} passages")
                state = state.model_copy(update={"graph": folder.write_graph(state)})
            folder.finish(state)
            for path in (folder.root / name for name in folder.inputs):  # its passages are in the blocks
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for reason, number in files.skipped.items():
            note(f"passed over: {number:,} {reason}")
        index = cls(out, model=encoder.model)
        index._opened = (index._opened[0], encoder)
        return index

    def to_dict(self) -> dict[str, Any]:
        """What it holds: `documents`, `passages`, `skipped`, `approximate`, and what it was made with."""
        state = self._opened[0].state
        return {
            "folder": str(self.folder),
            **{name: getattr(state.settings, name) for name in ("model", "fingerprint", "files", "dimension")},
            **state.settings.encoding.model_dump(),
            **{name: getattr(state, name) for name in ("documents", "passages", "skipped")},
            "bytes": sum(block.bytes for block in state.blocks),
            "approximate": state.graph is not None,
        }

    def shown(self) -> Iterator[Shown]:
        facts = self.to_dict()
        prompt = f", after {facts['document_prompt']!r}" if facts["document_prompt"] else ""
        yield (
            f"{facts['documents']:,} documents in {facts['passages']:,} passages of up to {facts['passage_tokens']} "
            f"tokens{prompt}; vectors of {facts['dimension']} by {facts['model']}; {facts['bytes'] / 1e6:,.1f} MB"
        )
        yield Styled(f'Ask it: unmask search query {self.folder} "..."', "dim")

    @public
    def query(self, texts: str | Sequence[str], *, top_k: int = 10, exact: bool = False) -> Hits:
        """The documents that are nearest to each text.

        Args:
            texts: Queries, or a single one.
            top_k: Documents of each at most.
            exact: Whether all passages are looked at, although there is a graph.

        Raises:
            SettingsError: There is no query, one is empty, or `top_k` is below 1.
            ModelError: The model is not that of the index.
            DataError: A file of the index is damaged.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        for text in queries:
            if not isinstance(text, str):
                raise SettingsError(f"a query is a text, and not {shown(text)}")
        if not queries or not any(text.strip() for text in queries):
            raise SettingsError("the query is empty; say what is looked for")
        if top_k < 1:
            raise SettingsError(f"top_k takes a number from 1 on, not {top_k}", options=("top_k",))
        begin = time.perf_counter()
        for _ in range(_STATES_TRIED):
            stored, encoder = self._opened
            if encoder is None:
                encoder = self._load(stored.state.settings)
                self._opened = stored, encoder
            try:
                return self._query(stored, encoder, queries, top_k, exact, begin)
            except FileNotFoundError as error:
                missing = error
            newer = StoredIndex(self.folder)  # made anew meanwhile
            if newer.state == stored.state:
                break
            self._opened = newer, encoder if newer.state.settings == stored.state.settings else None
        raise damaged(self.folder, f"{missing.filename} is not there") from missing

    def _query(
        self,
        stored: StoredIndex,
        encoder: SearchEncoder,
        queries: list[str],
        top_k: int,
        exact: bool,
        begin: float,
    ) -> Hits:
        """Hits of one state; raises `FileNotFoundError` where a file of it is gone."""
        vectors_QD = encoder.embed_queries(queries)
        top_k, has_graph = min(top_k, stored.state.documents), not exact and stored.state.graph is not None
        if has_graph and (reason := why_no_graph()) is not None:
            log.warning("%s: all passages are searched, since %s", self.folder, reason)
            has_graph = False
        try:
            if has_graph:
                ranking = stored.search_by_graph(vectors_QD, top_k)
            else:
                ranking = search_exactly(vectors_QD, stored.blocks(), top_k)
        except UnmaskError:
            raise
        except ValueError as error:
            raise damaged(stored.folder.blocks, error) from error
        results = []
        for text, passages, scores in zip(queries, ranking.passages_QK, ranking.scores_QK, strict=True):
            hits: list[dict[str, Any]] = []
            for number, score in zip(passages[passages >= 0].tolist(), scores.tolist(), strict=False):
                passage = stored.passage(number)
                content = passage.pop("text")
                snippet, marks = find_snippet(content, text)
                facts = {"passage": content, "snippet": snippet, "marks": [list(mark) for mark in marks]}
                hits.append({"rank": len(hits) + 1, "score": score, **passage, **facts})
            results.append({"query": text, "hits": hits})
        return Hits(
            {
                "index": str(self.folder),
                "model": str(encoder.model.folder),
                "approximate": has_graph,
                "queries": results,
                "seconds": time.perf_counter() - begin,
            }
        )

    def _load(self, settings: IndexSettings) -> SearchEncoder:
        """The model, compared with the one that the index was made with.

        Raises:
            UnmaskError: It is not there, or is another.
        """
        made_with = settings.model
        model, encoding = made_with if self._model is None else self._model, settings.encoding.model_dump()
        try:
            encoder = open_encoder(model, **encoding, precision=self._precision, strict=self._strict)
        except ModelError as error:
            if self._model is not None:
                raise
            way_out = "where the model lies elsewhere now, name its folder"
            text = f"{self.folder} was made with {made_with}: {error.args[0]}; {way_out}"
            raise ModelError(text, options=("model",)) from error
        folder = encoder.model.folder
        if encoder.width != settings.dimension:
            raise ModelError(
                f"{self.folder} holds vectors of {settings.dimension} numbers, but {folder} makes {encoder.width}; "
                f"ask it with the model that it was made with ({made_with}), or index the documents anew"
            )
        if encoder.fingerprint() != settings.fingerprint:
            raise ModelError(
                f"{self.folder} was made with another model than {folder} is now ({made_with}, whose weights, "
                "configuration or tokenizer have changed since, perhaps); ask it with that one, or index the documents "
                "anew"
            )
        return encoder


def _write_blocks(
    folder: IndexFolder,
    begun: IndexState,
    encoder: SearchEncoder,
    files: DocumentFiles,
    note: Callable[[str], None],
    notify: Notify,
) -> IndexState:
    """Cuts the documents into passages, and embeds and writes the blocks of them that are not there."""
    if begun.blocks:
        note(f"resumes after {len(begun.blocks):,} blocks of {blocks.BLOCK_PASSAGES:,} passages")
    num_documents = done = 0
    total = files.num_bytes

    def counted() -> Iterator[DocumentPart]:
        nonlocal num_documents, done
        for part in files.read():
            num_documents = part.document + 1
            done += len(part.text)
            yield part

    notify(Progress("embedding", 0, total, "characters"))
    written, numbers = begun.blocks.copy(), [np.zeros(0, dtype=np.int64)]
    cut = encoder.passages(counted())
    for number in count():
        passages = list(islice(cut, blocks.BLOCK_PASSAGES))
        if not passages:
            break
        if number < len(written) and written[number].hash != hash_of(passages):
            raise folder.claimed.changed(f"begun on other text: block {number} of it holds other passages")
        if number >= len(written) or not folder.has(written[number].vectors, written[number].table):
            names = [f"{passage.part.file}: document {passage.part.id!r}" for passage in passages]
            vectors = encoder.embed_documents([passage.embedded for passage in passages], names)
            written[number : number + 1] = [folder.write_block(passages, vectors)]
            folder.write_state(folder.begun, begun.model_copy(update={"blocks": written}))
        numbers.append(np.array([passage.part.document for passage in passages], dtype=np.int64))
        notify(Progress("embedding", done, total if total is not None and total > done else None, "characters"))
    if number < len(written):
        raise folder.claimed.changed("begun on more text")
    return IndexState(
        settings=begun.settings,
        blocks=written,
        documents=num_documents,
        skipped=dict(files.skipped),
        numbers=folder.write_array(np.concatenate(numbers)),
    )


@public
def query_index(
    index: str | Path,
    text: str,
    *,
    top_k: int = 10,
    exact: bool = False,
    model: str | Path | None = None,
    precision: Precision = "float32",
    strict: bool = False,
) -> Hits:
    """Finds the documents of an index that are nearest to a text, each with its nearest passage.

    Args:
        index: Folder that `unmask search index` has made.
        text: A query, or several, one a line; - reads standard input.
        top_k: Documents that are shown.
        exact: Go through all passages, although they are linked.
        model: The model of the index, where it is elsewhere now.
        precision: bf16 is several times faster on hardware made for it; auto takes it there.
        strict: Refuse a model whose files differ from its checksums.json.
    """
    opened = Index(index, model=model, precision=precision, strict=strict)
    queries = [line for line in text.splitlines() if line.strip()]
    return opened.query(queries or text, top_k=top_k, exact=exact)
