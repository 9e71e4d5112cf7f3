"""An index as users hold it: made of documents, opened, asked.

index = unmask.Index.build("runs/mine/model", ["docs/"], out="runs/docs")
found = unmask.Index("runs/docs").query(["how memory is allocated"], top_k=3)
found.queries[0]["hits"][0]["title"]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import DataError, ModelError, SettingsError, UnmaskError
from unmask.folders.layout_names import Pooling
from unmask.hub import hub_name
from unmask.notebook import usual_notify
from unmask.progress import Notify
from unmask.results import Readable, Result, Shown, Styled
from unmask.searching.approximate_search import search_by_graph, why_missing
from unmask.searching.exact_search import Ranking, Vectors, search_exactly
from unmask.searching.index_building import BuildOptions, build_index
from unmask.searching.index_folder import StoredIndex, StoredPassage, damaged
from unmask.searching.search_encoder import AskedEncoding, SearchEncoder, Similarity, open_encoder
from unmask.searching.snippets import Snippet, find_snippet
from unmask.text.given import Texts
from unmask.text.settings import DocumentUnit
from unmask.text.table_rows import AskedColumn
from unmask.using.loaded_model import Model, Precision
from unmask.using.sparse_vectors import SparseVectors
from unmask.values import shown

log = logging.getLogger("unmask")


class Hits(Result):
    """What queries found.

    Attributes:
        index, model: That were asked.
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
        """Of each hit its score and name, and below it the snippet."""
        for number, found in enumerate(self.queries):
            if len(self.queries) > 1:
                yield from [""] * (number > 0)
                yield Styled(found["query"], "bold underline")
            if not found["hits"]:
                yield Styled("    nothing is found: no text shares a token with it", "dim")
            for hit in found["hits"]:
                yield _head(hit)
                yield _marked(hit["snippet"], hit["marks"])


def _head(hit: dict[str, Any]) -> tuple[Styled | str, ...]:
    title = (Styled(f"  {hit['title']}", "bold"),) if hit["title"] else ()
    where = f"  {hit['file']}, {_called(hit['id'])}, character {hit['begin']:,}"
    return (Styled(f"{hit['rank']:>2}  {hit['score']:.3f}", "cyan"), *title, Styled(where, "dim"))


def _called(id_: str | int) -> str:
    return f"document {id_:,}" if isinstance(id_, int) else id_


def _marked(snippet: str, marks: Sequence[Sequence[int]]) -> tuple[Styled | str, ...]:
    parts: list[Styled | str] = ["    "]
    place = 0
    for begin, end in marks:
        parts += [snippet[place:begin], Styled(snippet[begin:end], "bold yellow")]
        place = end
    return (*parts, snippet[place:])


class Index(Readable):
    """An index of documents.

    Args:
        folder: That `Index.build` or `unmask search index` has made.
        model: The model that it was made with, where that lies elsewhere now; None: as the index says.
        precision, strict: Of a model that is loaded here; see `unmask.load`.

    Raises:
        DataError: There is no index, it is not whole, or it is damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: str | Path | Model | None = None,
        precision: Precision = "float32",
        strict: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self._stored = StoredIndex(self.folder)
        self._model, self._precision, self._strict = model, precision, strict
        self._encoder: SearchEncoder | None = None

    @classmethod
    def build(  # noqa: PLR0913  (the options of the command line, each a name that users know)
        cls,
        model: str | Path | Model,
        texts: Texts,
        *,
        out: str | Path,
        column: AskedColumn = None,
        id_column: str | None = None,
        title_column: str | None = None,
        documents: DocumentUnit | str = "auto",
        passage_tokens: int | None = None,
        overlap_tokens: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        pooling: Pooling | None = None,
        similarity: Similarity | None = None,
        precision: Precision = "float32",
        strict: bool = False,
        approximate: bool | None = None,
        resume: bool = False,
        overwrite: bool = False,
        note: Callable[[str], None] = log.info,
        notify: Notify | None = None,
    ) -> Index:
        """Makes an index of documents. Memory does not grow with them, but for the graph of approximate search, of
        which it holds all while it is made (some 2 bytes a number, and 300 a passage).

        Args:
            model: A model, its folder, or its name on the hub.
            texts: Files, folders or patterns of documents; or texts in memory (see `unmask.text.given`).
            out: The index's folder.
            column, id_column, title_column, documents: As for `unmask.searching.document_reading.DocumentFiles`.
            passage_tokens: Of the passages that long documents are embedded in, with special tokens and the prompt;
                None: what the model takes, and sentence-transformers gives it, at most 512. Passages longer than the
                model are seen in windows.
            overlap_tokens: That a passage shares with the one before it; None: an eighth.
            query_prompt, document_prompt: What stands before queries and passages; None: what the model's folder says.
            pooling: As for `Model.embed_settings`.
            similarity: `cosine` or `dot`; None: what the model's folder says, and else `cosine` (of sparse
                vectors `dot`).
            precision, strict: As for `unmask.load`.
            approximate: Whether a graph for approximate search is made, which takes usearch; None: above a million
                passages, if it is there. Of sparse vectors none is made.
            resume: Go on with an index that was stopped, or say that it is complete (which is not compared with the
                text again).
            overwrite: Replace the one that is there.
            note: Told what was decided, in lines.
            notify: Told of the progress.

        Raises:
            UnmaskError: As `open_encoder` and `build_index`.
        """
        asked = AskedEncoding(
            pooling=pooling,
            similarity=similarity,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            passage_tokens=passage_tokens,
            overlap_tokens=overlap_tokens,
        )
        encoder = open_encoder(model, asked, precision=precision, strict=strict)
        reading = {
            "column": column,
            "id_column": id_column,
            "title_column": title_column,
            "documents": documents,
        }
        options = BuildOptions(
            name=_name_of(model), reading=reading, resume=resume, overwrite=overwrite, approximate=approximate
        )
        build_index(encoder, texts, Path(out), options=options, note=note, notify=notify or usual_notify())
        made = cls(out, model=encoder.model)
        made._encoder = encoder
        return made

    def to_dict(self) -> dict[str, Any]:
        """What it holds: `documents`, `passages`, `skipped`, `approximate`, and what it was made with."""
        begun, facts = self._stored.begun, self._stored.facts
        return {
            "folder": str(self.folder),
            **{name: begun[name] for name in ("model", "fingerprint", "files", "dimension")},
            **begun["encoding"],
            **{name: facts[name] for name in ("documents", "passages", "skipped")},
            "bytes": sum(size for block in facts["blocks"] for size in block["bytes"]),
            "approximate": self._stored.files.neighbours.is_file(),
        }

    def shown(self) -> Iterator[Shown]:
        """A line, and what to do with it."""
        facts = self.to_dict()
        prompt = f", after {facts['document_prompt']!r}" if facts["document_prompt"] else ""
        yield (
            f"{facts['documents']:,} documents in {facts['passages']:,} passages of up to {facts['passage_tokens']} "
            f"tokens{prompt}; vectors of {facts['dimension']} by {facts['model']}; {facts['bytes'] / 1e6:,.1f} MB"
        )
        yield Styled(f'Ask it: unmask search query {self.folder} "..."', "dim")

    def query(self, texts: str | Sequence[str], *, top_k: int = 10, exact: bool = False) -> Hits:
        """The documents that are nearest to each text.

        Args:
            texts: Queries, or a single one.
            top_k: Documents of each at most.
            exact: Whether all passages are looked at, although there is a graph.

        Raises:
            SettingsError: There is no query, one is empty, or `top_k` is none.
            ModelError: The model is not that of the index.
            DataError: A file of the index is damaged.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        for text in queries:
            if not isinstance(text, str):
                raise SettingsError(f"a query is a text, and not {shown(text)}")
        if not queries or not any(text.strip() for text in queries):
            raise SettingsError("the query is empty; say what is looked for")
        top_k = min(top_k, self._stored.num_documents)
        begin = time.perf_counter()
        vectors_QD = self.encoder.embed_queries(queries)
        has_graph = not exact and self._stored.files.neighbours.is_file()
        if has_graph and (missing := why_missing()) is not None:
            log.warning("%s: all passages are searched, since %s", self.folder, missing)
            has_graph = False
        if has_graph and not isinstance(vectors_QD, SparseVectors):
            ranking = search_by_graph(self._stored, vectors_QD, top_k)
        else:
            ranking = self._search_exactly(vectors_QD, top_k)
        found = [{"query": query, "hits": self._hits(query, ranking, n)} for n, query in enumerate(queries)]
        return Hits(
            {
                "index": str(self.folder),
                "model": str(self.encoder.model.folder),
                "approximate": has_graph,
                "queries": found,
                "seconds": time.perf_counter() - begin,
            }
        )

    def _search_exactly(self, vectors_QD: Vectors, top_k: int) -> Ranking:
        try:
            return search_exactly(vectors_QD, self._stored.blocks(), top_k)
        except UnmaskError:
            raise
        except ValueError as error:
            raise damaged(self._stored.files.blocks, error) from error

    def _hits(self, query: str, ranking: Ranking, number: int) -> list[dict[str, Any]]:
        hits = []
        for place, passage in enumerate(ranking.passages_QK[number].tolist()):
            if passage < 0:
                break
            stored = self._stored.passage(passage)
            score = float(ranking.scores_QK[number, place])
            hits.append({"rank": place + 1, "score": score} | _as_dict(stored, find_snippet(stored.text, query)))
        return hits

    @property
    def encoder(self) -> SearchEncoder:
        """The model, loaded when it is first used, and compared with the one that the index was made with.

        Raises:
            UnmaskError: It is not there, or is another.
        """
        if self._encoder is None:
            begun = self._stored.begun
            model = begun["model"] if self._model is None else self._model
            try:
                asked = AskedEncoding(**begun["encoding"])
            except TypeError as error:
                raise DataError(f"{self._stored.files.begun}: damaged ({error}); make the index anew") from error
            try:
                encoder = open_encoder(model, asked, precision=self._precision, strict=self._strict)
            except ModelError as error:
                if self._model is not None:
                    raise
                way_out = "where the model lies elsewhere now, name its folder with --model"
                raise ModelError(f"{self.folder} was made with {model}: {error.args[0]}; {way_out}") from error
            self._check_model(encoder)
            self._encoder = encoder
        return self._encoder

    def _check_model(self, encoder: SearchEncoder) -> None:
        begun, folder = self._stored.begun, encoder.model.folder
        if encoder.width != self._stored.dimension:
            raise ModelError(
                f"{self.folder} holds vectors of {self._stored.dimension} numbers, but {folder} makes {encoder.width}; "
                f"ask it with the model that it was made with ({begun['model']}), or index the documents anew"
            )
        if encoder.fingerprint() != begun["fingerprint"]:
            raise ModelError(
                f"{self.folder} was made with another model than {folder} is now ({begun['model']}, whose weights, "
                "configuration or tokenizer have changed since, perhaps); ask it with that one, or index the documents "
                "anew"
            )


def _as_dict(stored: StoredPassage, snippet: Snippet) -> dict[str, Any]:
    return {
        **{name: getattr(stored, name) for name in ("document", "file", "id", "title", "begin")},
        "passage": stored.text,
        "snippet": snippet.text,
        "marks": [list(mark) for mark in snippet.marks],
    }


def _name_of(model: str | Path | Model) -> str:
    """By which a model is found again: its name on the hub, or its whole path."""
    if isinstance(model, Model):
        return str(model.folder.absolute()) if model.hub is None else str(model.hub)
    return str(model) if hub_name(model) is not None else str(Path(model).absolute())
