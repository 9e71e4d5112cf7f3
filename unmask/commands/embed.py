"""Embeds all texts of a file, of any size, into a file of vectors."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from unmask.core.errors import CorpusError, RunError, without_secrets
from unmask.core.files import check_file, output_file, whole_file, writing
from unmask.core.public import public
from unmask.core.remote import address_of, output_at
from unmask.core.results import Notify, Progress, Result, Shown, amount, counted, usual_note, usual_reporter
from unmask.core.settings import validated
from unmask.data.columns import ColumnNames
from unmask.data.documents import Documents, in_groups, names_of
from unmask.data.reading import LONGEST_ROW
from unmask.data.settings import Reading
from unmask.data.sources import TextColumn, is_saved_dataset, readable
from unmask.data.tables import in_words
from unmask.model.pooling import POOLINGS, SPLADE
from unmask.search.exact import blocks_of, search_exactly
from unmask.tasks.embed import (
    PART_CHARS,
    PART_TEXTS,
    Embedded,
    EmbedSettings,
    LongTexts,
    embed_texts,
    notes_on,
    sparse_texts,
    whole_texts,
)
from unmask.tasks.loaded_model import Model, Precision, as_model
from unmask.train.hardware import keep_freed_memory
from unmask.train.scores import main_directions

_UNITS = {"fasta": "sequence", "conll": "sentence", "conllu": "sentence"}


class EmbeddedFile(Result):
    """A file of vectors."""

    out: str
    dimension: int
    pooling: str
    normalize: bool
    texts: int  # as many as vectors
    tokens: int  # without special tokens and truncated text
    long_texts: int  # texts longer than the model's positions
    skipped: dict[str, int]  # counts by reason
    seconds: float
    column: TextColumn | None  # of texts and ids; None if the file has no columns
    id_column: str | None

    def shown(self) -> Iterator[Shown]:
        yield (
            f"{self.texts:,} texts, {self.tokens:,} tokens, {amount(self.texts / self.seconds, 'texts')} a second; "
            f"vectors of {self.dimension} in {self.out}"
        )


@public
def embed(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path | Model,
    file: str | Path | Iterable[Any],
    *,
    out: str | Path,
    pooling: str | None = None,
    normalize: bool | None = None,
    long_texts: LongTexts = "split",
    column: ColumnNames = None,
    id_column: str | None = None,
    encoding: str | None = None,
    precision: Precision = "float32",
    strict: bool = False,
    map: bool = False,  # noqa: A002
    overwrite: bool = False,
    note: Callable[[str], None] = usual_note,
    notify: Notify | None = None,
) -> EmbeddedFile:
    """Embeds the texts of a file, for search and clustering. Memory use does not grow with the file.

    Args:
        model: Folder of a model, such as RUN/model, or its name on the hub.
        file: One text per line, or a table; - or a pipe gives lines. In Python also a list or column of texts, a pandas
            table, or a dataset; rows without an id are numbered from 0.
        out: A .npy file, with a vector for each line or row; or a .parquet file, which also stores ids, can hold sparse
            vectors, and skips empty lines.
        pooling: How token vectors become a text's vector. By default as the model's folder says.
        normalize: Scale each vector to length 1. By default as the model's folder says.
        long_texts: Texts longer than the model: split and combine the parts, truncate, or raise an error.
        column: Text column of a table: a name, a path within a column (doc.text), or several (a,b). By default it is
            detected.
        id_column: Id column of a table. By default id, or a column like doc_id whose first values are unique;
            otherwise, and with '', rows are numbered.
        encoding: Encoding of text that is not Unicode, such as cp1252.
        precision: Type of the activations; bf16 is several times faster on hardware that supports it, and auto uses it
            there.
        strict: Refuse a model whose files differ from its checksums.json.
        map: Also write the texts, their positions x and y on a map, and the nearest texts into the .parquet file, for
            embedding-atlas and unmask studio; texts and vectors are held in memory.
        overwrite: Replace an existing file.
        note: Called with a line on each decision.
        notify: Called with the progress.

    Raises:
        UnmaskError: The model or a text cannot be read; an option does not fit the model; or vectors cannot be written.
    """
    with output_at(out, overwrite=overwrite) as output:
        target = output.path
        check_file(target, overwrite=overwrite)
        if target.suffix not in (".npy", ".parquet"):
            raise RunError(f"{out}: vectors are written as .npy or .parquet; use one of these", options=["out"])
        is_array = target.suffix == ".npy"
        if is_array and id_column:
            what = f"{out}: .npy stores no ids; write .parquet, or leave the column of ids out"
            raise RunError(what, options=["out", "id_column"])
        loaded = as_model(model, precision=precision, strict=strict)
        is_sparse = pooling is None and loaded.makes_sparse
        if (is_sparse or map) and is_array:
            raise RunError(f"{out}: maps and sparse vectors are .parquet; give this ending", options=["out", "pooling"])
        if is_sparse and map:
            raise RunError("a map is made of dense vectors; give a pooling", options=["map", "pooling"])
        vectors_of: Callable[..., Embedded]
        if is_sparse:
            network, how = loaded.predictor, EmbedSettings(normalize=bool(normalize), long_texts=long_texts)
            pooling, dimension = SPLADE, network.config.vocab_size
            vectors_of = partial(sparse_texts, network, loaded.tokenizer, long_texts=long_texts, unit=how.normalize)
            description = "sparse, a number for each token of the vocabulary (SPLADE)"
        else:
            how = loaded.embed_settings(pooling=pooling, normalize=normalize, long_texts=long_texts)
            network, pooling, dimension = loaded.embedder, how.pooling, loaded.embedder.config.hidden_size
            vectors_of = partial(embed_texts, network, loaded.tokenizer, settings=how)
            description = POOLINGS[pooling].description
        is_file = isinstance(file, str | os.PathLike)
        with readable(file) as here:
            if is_file and here.is_dir() and not is_saved_dataset(here):
                raise CorpusError(f"{here}: this is a folder; name one of its files")
            texts = Documents(
                here,
                column,
                id_column="" if is_array else id_column,
                title_column=False,
                blank_lines=is_array,  # which has no ids: its rows are the lines
                unit="line",
                piece_chars=LONGEST_ROW,
                reading=validated(Reading, {"encoding": encoding}, where="embed"),
            )
            keep_freed_memory()
            source, begin = texts.sources[0], time.perf_counter()
            is_named = source.kind in ("fasta", "smiles") and id_column != "" and not is_array
            if source.column is None:
                note(f"each text is a {_UNITS.get(source.kind, 'line')}{', its id is its name' * is_named}")
            else:
                ids = f"row numbers from {int(is_file)}" if source.id is None else f"in column {source.id!r}"
                note(f"texts are in {in_words(source.column)}{'' if is_array else f', ids are {ids}'}")
            note(f"a text's vector is {description}{', scaled to length 1' if how.normalize else ''}")
            notify = notify or usual_reporter().notify
            with (
                output_file(target, overwrite=overwrite),
                vector_file(target, dimension) if not map else map_file(target, note) as add,
            ):
                shift = None if is_named else int(not is_file)
                counts = _embed_texts(texts, vectors_of, add, notify, with_ids=not is_array, shift=shift)
    for reason, number in texts.skipped.items():
        note(f"skipped: {number:,} {reason}")
    longest = network.config.max_position_embeddings
    for line in notes_on(counts["texts"], counts["blank"], counts["long"], longest, long_texts):
        note(line)
    return EmbeddedFile(
        {
            "out": without_secrets(address_of(out) or str(out)),
            "dimension": dimension,
            "pooling": pooling,
            "normalize": how.normalize,
            "texts": counts["texts"],
            "tokens": counts["tokens"],
            "long_texts": counts["long"],
            "skipped": dict(texts.skipped),
            "seconds": time.perf_counter() - begin,
            "column": source.column,
            "id_column": source.id,
        }
    )


def _embed_texts(
    file: Documents, vectors_of: Callable[..., Embedded], add: Add, notify: Notify, *, with_ids: bool, shift: int | None
) -> Counter[str]:
    """Embeds the texts of a file in batches of some thousands; returns `texts`, `tokens`, `long`, `blank` and `bytes`.
    Rows without ids get their numbers, minus `shift`; None: ids are names, or numbers as text."""
    source, where, counts = file.sources[0], names_of(file.sources), Counter[str]()
    with_rows = [each for each in file.sources if each.column is not None or not each.is_table]
    numbered = [each for each in with_rows if each.id is None and each.kind != "arrow"]
    if shift is not None and with_ids and numbered and len(with_rows) > 1:
        what = f"{where}: rows without ids would have the same numbers in each of these files"
        raise CorpusError(f"{what}; give one file, or a column of ids", options=["id_column"])
    num_bytes = file.num_bytes if source.kind == "text" else None
    if with_ids and any(each.id is not None for each in file.sources):
        _check_ids(file, notify)
    for part in in_groups(whole_texts(file), most=PART_TEXTS, most_chars=PART_CHARS):
        embedded = vectors_of([text.text for text in part], names=[f"{where}: text {text.id!r}" for text in part])
        if shift is None:
            ids: list[str | int] = [str(text.id) for text in part]
        else:
            ids = [text.id - shift if source.id is None and isinstance(text.id, int) else text.id for text in part]
        add(ids, embedded.vectors, [text.text for text in part])
        counts.update(texts=len(part), tokens=embedded.num_tokens, long=embedded.num_long)
        counts.update(blank=sum(not t.text.strip() for t in part), bytes=sum(len(t.text.encode()) for t in part))
        total = num_bytes if num_bytes is not None and num_bytes > counts["bytes"] else None
        notify(Progress("embedding", counts["bytes"], total, "bytes"))
    return counts


def _check_ids(file: Documents, notify: Notify) -> None:
    """Reads all ids first; otherwise a missing or unusable one would stop the command after hours."""
    count = counted(notify, "reading ids", None, "texts")
    schema: Any = None
    for part in in_groups(whole_texts(file), most=PART_TEXTS, most_chars=PART_CHARS):
        try:
            schema = _table([text.id for text in part], {}, schema).schema
        except CorpusError as error:
            raise CorpusError(f"{names_of(file.sources)}: {error}", options=["id_column"]) from error
        count(len(part))


# ----------------------------------------
# Files of vectors, written part by part.

Add = Callable[[Sequence[str | int], Any, Sequence[str]], None]
"""Appends vectors [texts, dimension], float32 or a `csr_array`, with their ids; only maps use the texts."""


def _table(ids: Sequence[str | int], columns: dict[str, Any], schema: Any = None) -> Any:
    try:
        return pa.table({"id": ids, **columns}, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        reason = f"ids are whole numbers of 64 bits, or texts, and not both ({error})"
        raise CorpusError(reason, options=["id_column"]) from error


@contextmanager
def vector_file(out: Path, dimension: int) -> Iterator[Add]:
    """Opens a file of vectors for writing; it gets its name once it is complete.

    `.npy` is one array [texts, dimension], float32, in the order of the texts, without ids. `.parquet` has the columns
    `id` (whole numbers or texts) and `embedding` (lists of one length, float32); for sparse vectors `indices` (int32,
    ascending) and `values` (float32) instead, and the `dimension` in the file's metadata.
    """
    is_array, num_texts, writer = out.suffix == ".npy", 0, None

    def write_header() -> None:  # padded by numpy, so that it fits any number of rows
        header = {"descr": "<f4", "fortran_order": False, "shape": (num_texts, dimension)}
        np.lib.format.write_array_header_1_0(file, header)

    def add(ids: Sequence[str | int], vectors: Any, texts: Sequence[str] = ()) -> None:
        nonlocal num_texts, writer
        num_texts += len(ids)
        if is_array:
            assert isinstance(vectors, np.ndarray), "an array of sparse vectors would be mostly zeros"
            with writing(out):
                file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
            return
        if isinstance(vectors, np.ndarray):
            columns = {"embedding": _lists(vectors)}
        else:
            begins = pa.array(vectors.indptr.astype(np.int32))
            numbers = {"indices": vectors.indices.astype(np.int32), "values": vectors.data}
            columns = {name: pa.ListArray.from_arrays(begins, pa.array(each)) for name, each in numbers.items()}
        table = _table(ids, columns, None if writer is None else writer.schema)
        with writing(out):
            if writer is None:
                writer = pq.ParquetWriter(file, table.schema.with_metadata({"dimension": str(dimension)}))
            writer.write_table(table)

    with whole_file(out) as partial:
        with writing(out):
            file = partial.open("wb")
        try:
            if is_array:
                write_header()
            yield add
            with writing(out):
                if is_array:
                    file.seek(0)
                    write_header()
                if writer is not None:
                    writer.close()
                file.close()
        finally:
            if writer is not None:
                writer.is_open = False  # a failed writer would write again when garbage-collected
            with suppress(OSError):  # unwritten data may still be in its buffer
                file.close()


def _lists(vectors_ND: NDArray[np.float32]) -> Any:
    return pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(vectors_ND).reshape(-1)), vectors_ND.shape[1]
    )


# ----------------------------------------
# Maps.

NEIGHBOURS = 15  # of each text


@contextmanager
def map_file(out: Path, note: Callable[[str], None]) -> Iterator[Add]:
    """Opens a Parquet file of texts on a map: `id`, `text`, `x`, `y`, `neighbors` (row numbers from 0 and cosine
    distances, nearest first) and `embedding`; all is written at the end."""
    all_ids, all_texts, parts = list[str | int](), list[str](), list[Any]()

    def add(ids: Sequence[str | int], vectors: Any, texts: Sequence[str] = ()) -> None:
        all_ids.extend(ids)
        all_texts.extend(texts)
        parts.append(vectors)

    with whole_file(out) as partial:
        yield add
        if not parts:
            raise CorpusError(f"{out}: there is no text to put on a map")
        vectors_ND = np.concatenate(parts)
        nearest_NK, distance_NK = nearest(vectors_ND, NEIGHBOURS)
        places_N2, how = places_of(vectors_ND, nearest_NK, distance_NK)
        note(f"positions on the map are {how}")
        near = zip(nearest_NK.tolist(), distance_NK.tolist(), strict=True)
        columns = {
            "text": all_texts, "x": places_N2[:, 0], "y": places_N2[:, 1],
            "neighbors": [{"ids": ids, "distances": distances} for ids, distances in near],
            "embedding": _lists(vectors_ND),
        }  # fmt: skip
        with writing(out):
            pq.write_table(_table(all_ids, columns), partial)


def nearest(vectors_ND: NDArray[np.float32], most: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Nearest other rows of each row [N, K], and their cosine distances [N, K]; compares all pairs."""
    unit_ND = vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)
    own_N, most = np.arange(len(unit_ND)), min(most, len(unit_ND) - 1)
    ranking = search_exactly(unit_ND, blocks_of(unit_ND, own_N), most + 1)
    others = np.argsort(ranking.documents_QK == own_N[:, None], axis=1, kind="stable")[:, :most]  # itself last
    cosine = np.take_along_axis(ranking.scores_QK, others, axis=1)
    return np.take_along_axis(ranking.documents_QK, others, axis=1), (1.0 - cosine).astype(np.float32)


def places_of(
    vectors_ND: NDArray[np.float32], nearest_NK: NDArray[np.int64], distance_NK: NDArray[np.float32]
) -> tuple[NDArray[np.float32], str]:
    """Positions [N, 2] and how they were made: by UMAP from the nearest rows, if it is installed and there are enough
    texts, else from the two main directions of the vectors."""
    if nearest_NK.shape[1] == NEIGHBOURS and find_spec("umap") is not None:
        own = np.arange(len(vectors_ND))[:, None]  # UMAP counts each row as its own nearest
        known = np.hstack([own, nearest_NK]), np.hstack([np.zeros_like(own, dtype=np.float32), distance_NK])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing TensorFlow and the single thread
            import umap

            reducer = umap.UMAP(
                n_neighbors=NEIGHBOURS + 1, metric="cosine", random_state=0, precomputed_knn=(*known, None), n_jobs=1
            )
            return np.asarray(reducer.fit_transform(vectors_ND), dtype=np.float32), "UMAP's, from the 15 nearest texts"
    places_N2 = main_directions(torch.from_numpy(vectors_ND)).numpy()[:, :-3:-1]
    return np.pad(places_N2, ((0, 0), (0, 2 - places_N2.shape[1]))), (
        "the two main directions of the vectors (for UMAP: pip install 'unmask[map]')"
    )
