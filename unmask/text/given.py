"""Texts that are in memory: lists, iterators, tables and datasets, kept as files that can be read again.

A corpus is read more than once, by several processes, and again when a run goes on. So what is no file becomes one:

    given/rows.jsonl            strings, or rows as dicts
    given/rows.parquet          a table of pandas, polars or pyarrow
    given/...                   a `datasets.Dataset` or `DatasetDict`, as its `save_to_disk` writes it
    given/train/..., given/validation/...    a dict of any of these: its parts, which their names tell apart
"""

from __future__ import annotations

import glob
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.addresses import address_of, with_local_copies
from unmask.errors import CorpusError
from unmask.files import whole_folder, writing
from unmask.progress import Notify, Progress, ignore
from unmask.text.pipes import STDIN, StreamNames, is_stream, keep_stream
from unmask.text.reading import bare_suffix
from unmask.text.sources import SUFFIXES, part_named

GIVEN = "given"
ROWS_AT_ONCE = 1000
_LOOK = 100  # strings of a list that are looked at
_LONG_NAME = 255  # longer ones are no name of a file


class InMemory:
    """Texts that a user has in memory.

    Args:
        content: Strings; rows (dicts); a `Dataset`, `IterableDataset` or `DatasetDict` of datasets; a table of pandas,
            polars or pyarrow; or a dict of such things by the names of parts (`train`, `validation`).
    """

    def __init__(self, content: Any) -> None:
        self.content = content

    def __str__(self) -> str:
        return "texts in memory"

    def keep(self, folder: Path, *, notify: Notify = ignore) -> Path:
        """Writes them into a folder, which is there only once all of them came.

        Args:
            folder: Replaced where it is there.
            notify: Told of the progress, in texts.

        Returns:
            The folder.

        Raises:
            CorpusError: There is none among them, or something is neither a text nor a row.
            WriteError: The disk is full, or the folder cannot be made.
        """
        with whole_folder(folder) as partial:
            _write(self.content, partial, notify)
        return folder


Named = str | Path | InMemory
Texts = str | Path | Sequence[str | Path] | Iterable[str] | Iterable[Mapping[str, Any]] | Mapping[str, Any]


def told_apart(texts: Texts | None) -> list[Named] | None:
    """What a user gives as text: paths, or texts that are in memory.

    A list of strings is of paths, if one of them is there or ends like a file that can be read, and of texts, if none
    does and there is white space in one. Whatever else can be gone through is texts or rows. What an address names
    (`s3://bucket/corpus`) is fetched, see `unmask.addresses`.

    Raises:
        CorpusError: There is nothing in it, it is neither, or an address cannot be read.

    Example: `["a.txt", "b.txt"]` are paths; `["Some words.", "Others."]` and `iter(["word"])` are texts.
    """
    if texts is None:
        return None
    if isinstance(texts, str | os.PathLike):
        if isinstance(texts, str) and (len(texts) > _LONG_NAME or "\n" in texts):
            raise CorpusError(f"{texts[:30]!r}...: that is a text, where a path is taken; give texts as a list")
        return with_local_copies([texts if isinstance(texts, str) else Path(texts)])
    if isinstance(texts, list | tuple) and all(isinstance(text, str | os.PathLike | InMemory) for text in texts):
        if not texts:
            raise CorpusError("the list that was given is empty; give texts, or paths")
        return [InMemory(texts)] if _are_texts(texts) else with_local_copies(texts)
    return [InMemory(texts)]


def _are_texts(strings: Sequence[Any]) -> bool:
    """Whether a list holds texts. Of a long one the first say it."""
    look = strings[:_LOOK]
    if any(not isinstance(string, str) or _names_file(string) for string in look):
        return False
    if all(_ends_like_file(string) for string in look):
        return False
    if any(len(string) > _LONG_NAME or any(map(str.isspace, string)) for string in look):
        return True
    raise CorpusError(
        f"{look[0]!r}: no such file; and if these are texts, there is no white space in them: give them by an iterator "
        "then, as in iter(texts)"
    )


def _names_file(string: str) -> bool:
    if len(string) > _LONG_NAME and "/" not in string:
        return False
    if string == STDIN or os.path.exists(string) or address_of(string) is not None:
        return True
    if any(map(str.isspace, string)):
        return False
    return _ends_like_file(string) or (glob.has_magic(string) and bool(glob.glob(string, recursive=True)))


def _ends_like_file(string: str) -> bool:
    return bare_suffix(Path(string)) in SUFFIXES


def keep_given(
    names: Sequence[Named], folder: Path, *, kept: bool = False, notify: Notify = ignore
) -> Iterator[str | Path]:
    """Replaces what is no file by one: `-` and pipes by what comes out of them, texts in memory by a folder of them.

    A file has its name only once all has come, so one that is there is whole.

    Args:
        names: As the user gave them.
        folder: Where they are put.
        kept: Whether what came out of streams in an earlier try stands in where nothing comes now.
        notify: Told of the progress.

    Raises:
        CorpusError: As `keep_stream` and `InMemory.keep`.
        WriteError: As there.
    """
    streams = StreamNames()
    for name in names:
        if isinstance(name, InMemory):
            yield name.keep(folder / GIVEN, notify=notify)
        else:
            yield keep_stream(name, folder / streams.file_of(name), kept=kept) if is_stream(name) else name


def _write(content: Any, folder: Path, notify: Notify) -> None:
    if hasattr(content, "save_to_disk"):  # of datasets, which need not be installed
        _save_dataset(content, folder)
    elif isinstance(content, Mapping):
        _write_parts(content, folder, notify)
    elif hasattr(content, "__arrow_c_stream__") and hasattr(content, "columns"):
        _write_table(content, folder / "rows.parquet")
    elif isinstance(content, str | bytes) or not (isinstance(content, Iterable) or hasattr(content, "__getitem__")):
        raise CorpusError(
            f"{type(content).__name__} cannot be read as text; give paths, or texts: a list or an iterator of strings "
            "or of rows (dicts), a table, or a dataset of datasets"
        )
    else:
        _write_rows(content, folder / "rows.jsonl", notify)


def _save_dataset(dataset: Any, folder: Path) -> None:
    parts = dataset.values() if isinstance(dataset, Mapping) else [dataset]
    if not any(len(part) for part in parts):
        raise CorpusError("the dataset that was given is empty")
    with writing(folder):
        dataset.save_to_disk(folder)


def _write_parts(parts: Mapping[Any, Any], folder: Path, notify: Notify) -> None:
    if not any(part_named(str(name)) == "train" for name in parts):
        raise CorpusError(
            f"a dict is of parts by their names, as {{'train': texts, 'validation': texts}}, but there is no train "
            f"among {', '.join(map(repr, parts)) or 'none'}; give columns as a table, such as pandas.DataFrame(...)"
        )
    for name, part in parts.items():
        if isinstance(part, str | int | float) or not str(name).replace("_", "").isalnum():
            raise CorpusError(
                f"a dict is of parts by their names, as {{'train': texts, 'validation': texts}}, but {name!r} holds "
                f"{type(part).__name__}; give rows as a list of dicts"
            )
        with writing(inside := folder / str(name)):
            inside.mkdir()
        _write(part, inside, notify)


def _write_table(table: Any, file: Path) -> None:
    num_rows = 0
    with (
        writing(file),
        pa.RecordBatchReader.from_stream(table) as batches,
        pq.ParquetWriter(file, batches.schema) as out,
    ):
        for batch in batches:
            out.write_batch(batch)
            num_rows += batch.num_rows
    if not num_rows:
        raise CorpusError("the table that was given has no rows")


def _write_rows(rows: Iterable[Any], file: Path, notify: Notify) -> None:
    names = _class_names(rows)
    done = 0
    lines = (_line(_as_row(row, number, names)) for number, row in enumerate(rows, 1))
    while batch := list(itertools.islice(lines, ROWS_AT_ONCE)):  # an error of whoever makes them is none of writing
        with writing(file), file.open("ab") as out:
            out.writelines(batch)
        done += len(batch)
        notify(Progress("reading", done, None, "texts"))
    if not done:
        raise CorpusError("there is no text in what was given; an iterator gives its texts once")


def _class_names(rows: Any) -> dict[str, list[str]]:
    """Of an `IterableDataset`, whose rows hold numbers of classes: the names of the classes by column."""
    features = getattr(rows, "features", None)
    return {} if not isinstance(features, Mapping) else {c: f.names for c, f in features.items() if hasattr(f, "names")}


def _as_row(row: Any, number: int, names: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    if row is None or isinstance(row, str) or row != row:  # noqa: PLR0124  (not-a-number, in a column of pandas)
        return {"text": row if isinstance(row, str) else None}
    if not isinstance(row, Mapping):
        raise CorpusError(
            f"text {number} of those that were given is {type(row).__name__}, neither a string nor a row (a dict)"
        )
    classes = {c: row[c] for c in names if isinstance(row.get(c), int)}
    return {**row, **{c: names[c][value] if value >= 0 else None for c, value in classes.items()}}


def _line(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row, ensure_ascii=False, default=_plain)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # halves of characters, which whoever reads the row names by its number
        return json.dumps(row, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """What JSON has no form for: arrays and numbers of numpy, dates; other things, such as pictures, are no text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.isoformat() if hasattr(value, "isoformat") else None
