"""Embedding all texts of a file, of any size, into a file of vectors."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unmask.core.errors import CorpusError, ModelError, RunError
from unmask.core.files import check_file, held_file
from unmask.core.remote import address_of, output_file
from unmask.core.results import Notify, Progress, Result, Shown, usual_reporter
from unmask.data.documents import EMPTY, Document, Documents, in_groups
from unmask.data.reading import LONGEST_ROW, broken_character
from unmask.data.sources import TextColumn, is_saved_dataset, readable
from unmask.data.tables import ColumnNames, in_words
from unmask.model.pooling import POOLINGS, SPLADE
from unmask.tasks.embed import Embedded, LongTexts, embed_texts, sparse_texts
from unmask.tasks.loaded_model import Model, Precision, load
from unmask.train.hardware import choose_device, keep_freed_memory

log = logging.getLogger("unmask")
PART_TEXTS = 8192  # at once: they fit into memory, and are enough to be packed well
PART_CHARS = 1 << 22
_UNITS = {"fasta": "sequence", "conll": "sentence", "conllu": "sentence"}


class EmbeddedFile(Result):
    """A file of vectors.

    Attributes:
        out: The file.
        dimension: Of a vector.
        pooling, normalize: How they were made.
        texts: How many vectors there are.
        tokens: Of the texts, without special tokens and without what was cut off.
        long_texts: Texts that were longer than the model.
        skipped: What was passed over, and how often.
        seconds: That it took.
        column, id_column: Where texts and their ids stood; None where the file has no columns.
    """

    out: str
    dimension: int
    pooling: str
    normalize: bool
    texts: int
    tokens: int
    long_texts: int
    skipped: dict[str, int]
    seconds: float
    column: TextColumn | None
    id_column: str | None

    def shown(self) -> Iterator[Shown]:
        """A line."""
        yield (
            f"{self.texts:,} texts, {self.tokens:,} tokens, {self.texts / self.seconds:,.0f} texts a second; "
            f"vectors of {self.dimension} in {self.out}"
        )


def embed(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path | Model,
    file: str | Path,
    *,
    out: str | Path,
    pooling: str | None = None,
    normalize: bool | None = None,
    long_texts: LongTexts = "error",
    column: ColumnNames = None,
    id_column: str | None = None,
    precision: Precision = "float32",
    strict: bool = False,
    overwrite: bool = False,
    note: Callable[[str], None] = log.info,
    notify: Notify | None = None,
) -> EmbeddedFile:
    """Turns the texts of a file into vectors, for search and clustering; memory does not grow with the file.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        file: Text, a text a line; or a table. Also - or a pipe, of lines.
        out: A .npy file; or .parquet, which holds ids, as empty texts among others need, and sparse vectors.
        pooling: Of a text's tokens: mean, max or first. By default what the model's folder says.
        normalize: Divide each vector by its length. By default what the model's folder says.
        long_texts: Texts longer than the model: an error, split into parts that are taken together, or truncated.
        column: Of the text in tables: a name, a path within a column (doc.text), or several (a,b). By default it is
            found.
        id_column: Of the ids in tables. By default id, else the number of the row.
        precision: Of the activations; bf16 is several times faster on hardware made for it, and auto takes it there.
        strict: Refuse a model whose files differ from its checksums.json.
        overwrite: Replace the file that is there.
        note: Called with each decision, a line.
        notify: Called with the progress.

    Raises:
        UnmaskError: The model or a text cannot be read, or an option does not fit the model; vectors
            cannot be written, are sparse, or a text follows an empty one, and `out` is a .npy file.
    """
    with output_file(out, overwrite=overwrite) as target:
        check_out(target, overwrite=overwrite)
        loaded = model if isinstance(model, Model) else load(model, precision=precision, strict=strict)
        is_sparse = pooling is None and loaded.makes_sparse
        if is_sparse and target.suffix != ".parquet":
            reason = f"the vectors of {loaded.folder} are sparse, and are written as .parquet"
            raise RunError(f"{out}: {reason}; give this ending, or another pooling", options=["out", "pooling"])
        vectors_of: Callable[..., Embedded]
        if is_sparse:
            try:
                loaded.check_head()
            except ModelError as error:
                raise ModelError(
                    f"{loaded.folder}: its files ask for sparse vectors, which are made by a head for masked tokens, "
                    "and it has none; give another pooling",
                    options=["pooling"],
                ) from error
            network, pooling, normalize = loaded.predictor, SPLADE, bool(normalize)
            config, dimension = network.config, network.config.vocab_size
            vectors_of = partial(sparse_texts, network, loaded.tokenizer, long_texts=long_texts, unit=normalize)
            made = "sparse, a number for each token of the vocabulary (SPLADE)"
        else:
            how = loaded.embed_settings(pooling=pooling, normalize=normalize, long_texts=long_texts)
            config, pooling, normalize = loaded.embedder.config, how.pooling, how.normalize
            dimension = config.hidden_size
            vectors_of = partial(embed_texts, loaded.embedder, loaded.tokenizer, settings=how)
            made = POOLINGS[pooling].description
        loaded.to(choose_device())
        with readable(file) as here:
            texts = read_file(here, column, id_column)
            keep_freed_memory()
            source, begin = texts.sources[0], time.perf_counter()
            if source.column is None:
                note(f"a text is a {_UNITS.get(source.kind, 'line')}")
            else:
                ids = "the number of the row" if source.id is None else f"column {source.id!r}"
                note(f"a text is a row, its text in {in_words(source.column)}, its id {ids}")
            note(f"a text's vector is {made}{', divided by its length' if normalize else ''}")
            notify = notify or usual_reporter().notify
            with VectorFile(target, dimension) as writer:
                num_texts, num_tokens, num_long = _embed_texts(texts, vectors_of, writer, notify)
    for reason, number in texts.skipped.items():
        note(f"passed over: {number:,} {reason}")
    if num_long:
        what = "split into parts" if long_texts == "split" else "cut off"
        note(f"longer than the model's {config.max_position_embeddings} tokens, and {what}: {num_long:,} texts")
    return EmbeddedFile(
        {
            "out": address_of(out) or str(out),
            "dimension": dimension,
            "pooling": pooling,
            "normalize": normalize,
            "texts": num_texts,
            "tokens": num_tokens,
            "long_texts": num_long,
            "skipped": dict(texts.skipped),
            "seconds": time.perf_counter() - begin,
            "column": source.column,
            "id_column": source.id,
        }
    )


def _embed_texts(
    file: Documents, vectors_of: Callable[..., Embedded], writer: VectorFile, notify: Notify
) -> tuple[int, int, int]:
    """Embeds the texts of a file, some thousands at a time: how many there are, their tokens, and the long ones."""
    source = file.sources[0]
    num_bytes = source.path.stat().st_size if source.kind == "text" else None
    num_texts = num_tokens = num_long = num_chars = 0
    for part in in_groups(_whole_texts(file, gaps=writer.keeps_ids), most=PART_TEXTS, most_chars=PART_CHARS):
        names = [f"{source.path}: text {text.id!r}" for text in part]
        embedded = vectors_of([text.text for text in part], names=names)
        try:
            writer.add([text.id for text in part], embedded.vectors)
        except CorpusError as error:
            raise CorpusError(f"{source.path}: {error}") from error
        num_texts += len(part)
        num_tokens += embedded.num_tokens
        num_long += embedded.num_long
        num_chars += sum(len(text.text) for text in part)
        total = num_bytes if num_bytes is not None and num_bytes > num_chars else None
        notify(Progress("embedding", num_chars, total, "characters"))
    return num_texts, num_tokens, num_long


def read_file(file: Path, column: ColumnNames = None, id_column: str | None = None) -> Documents:
    """The texts of one file, or of a saved dataset: a line, a row, a sequence, a sentence."""
    if file.is_dir() and not is_saved_dataset(file):
        raise CorpusError(f"{file}: this is a folder; name one of its files")
    return Documents(file, column, id_column=id_column, title_column=False, unit="line", piece_chars=LONGEST_ROW)


def _whole_texts(file: Documents, *, gaps: bool) -> Iterator[Document]:
    """The texts. Without `gaps` none may follow an empty one, so that numbers of rows are those of texts."""
    source = file.sources[0]
    unit = "row" if source.is_table else _UNITS.get(source.kind, "line")
    for number, text in enumerate(file, 1):
        path = file.sources[0].path
        if not text.last:
            raise CorpusError(f"{path}: a text is longer than {LONGEST_ROW:,} characters; cut it")
        if not gaps and file.skipped[EMPTY]:
            raise CorpusError(
                f"{path}: {unit} {number} has no text, and others follow it, so rows of a .npy file, which keeps no "
                "ids, would not be those of this file; write a .parquet file, which keeps them, or take the empty ones "
                "out",
                options=["out"],
            )
        yield text


# --------------------------------------------------------------------------------------------------------------------
# Files of vectors, written part by part


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuses, before any work is done, a file that cannot be written."""
    with _as_run_error(out):
        check_file(out, overwrite=overwrite)
        if out.suffix not in (".npy", ".parquet"):
            raise RunError(
                f"{out}: vectors are written as .npy or .parquet; give one of these endings", options=["out"]
            )
        if not out.parent.is_dir():
            raise RunError(f"{out}: there is no folder {out.parent}; make it first")


@contextmanager
def _as_run_error(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{out}: vectors cannot be written there ({error.strerror or error})"
        raise RunError(f"{reason}; mend that, or give another file", options=["out"]) from error


class VectorFile:
    """A file of vectors, which has its name only once all is written.

    `.npy` is one array [texts, dimension], float32, in the order of the texts, without ids. `.parquet` has the columns
    `id` (whole numbers or texts) and `embedding` (lists of one length, float32); for sparse vectors `indices` (int32,
    ascending) and `values` (float32) in its place, and the `dimension` in the file's metadata.
    """

    def __init__(self, out: Path, dimension: int) -> None:
        self.out, self.keeps_ids = out, out.suffix == ".parquet"
        self._partial = out.with_name(out.name + ".partial")
        self._dimension, self._num_texts = dimension, 0
        self._writer: pq.ParquetWriter | None = None
        self._kind: type[str] | type[int] = int

    def __enter__(self) -> Self:
        with ExitStack() as held, _as_run_error(self.out):
            held.enter_context(held_file(self.out))
            self._file = self._partial.open("wb")
            self._write_header()
            self._held = held.pop_all()
        return self

    def _write_header(self) -> None:
        if not self.keeps_ids:  # the format leaves room for the number of rows to grow: it is as long at the end
            header = {"descr": "<f4", "fortran_order": False, "shape": (self._num_texts, self._dimension)}
            np.lib.format.write_array_header_1_0(self._file, header)

    def add(self, ids: Sequence[str | int], vectors: Any) -> None:
        """Writes some more vectors [texts, dimension], float32, or a `csr_array` of them, with their ids."""
        with _as_run_error(self.out):
            if self.keeps_ids:
                self._add_table(ids, vectors)
            else:
                assert isinstance(vectors, np.ndarray), "an array of sparse vectors would be mostly zeros"
                self._num_texts += len(ids)
                self._file.write(np.ascontiguousarray(vectors, dtype="<f4").data)

    def _add_table(self, ids: Sequence[str | int], vectors: Any) -> None:
        if not isinstance(vectors, np.ndarray):
            begins = pa.array(vectors.indptr.astype(np.int32))
            numbers = {"indices": vectors.indices.astype(np.int32), "values": vectors.data}
            columns = {name: pa.ListArray.from_arrays(begins, pa.array(each)) for name, each in numbers.items()}
        else:
            values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
            columns = {"embedding": pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])}
        if self._writer is None:
            self._kind = type(ids[0])
            kinds = {"id": pa.string() if self._kind is str else pa.int64()}
            kinds |= {name: column.type for name, column in columns.items()}
            self._writer = pq.ParquetWriter(self._file, pa.schema(kinds, {"dimension": str(self._dimension)}))
        for id_ in ids:
            if type(id_) is not self._kind:
                raise CorpusError(f"the id {id_!r} is {type(id_).__name__}, but the first was {self._kind.__name__}")
            if isinstance(id_, str):
                if (broken := broken_character(id_)) is not None:
                    raise CorpusError(f"the id {id_!r} holds {broken}, which is no character; take it out")
            elif not -(2**63) <= id_ < 2**63:
                reason = f"the id {id_} does not fit into 64 bits"
                raise CorpusError(f"{reason}; give ids as texts (in quotes), or other ones", options=["id_column"])
        self._writer.write_table(pa.table({"id": ids, **columns}, schema=self._writer.schema))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with _as_run_error(self.out), self._file:
                if self._writer is not None:
                    try:
                        self._writer.close()
                    finally:
                        self._writer.is_open = False  # where that failed, it would try again when it is collected
                elif not self.keeps_ids:
                    self._file.seek(0)
                    self._write_header()
            if kind is None:
                with _as_run_error(self.out):
                    os.replace(self._partial, self.out)
        except RunError:
            if kind is None:  # else another error is on its way
                raise
        finally:
            with self._held, suppress(OSError):
                self._partial.unlink(missing_ok=True)
