"""What the user names, as files that can be read: files, folders, patterns, folders that `datasets` wrote."""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unmask.errors import CorpusError
from unmask.files import writing
from unmask.text.reading import COMPRESSIONS, bare_suffix

log = logging.getLogger(__name__)

Kind = Literal["text", "jsonl", "csv", "tsv", "parquet", "fasta", "arrow", "conll", "conllu"]
SUFFIXES: dict[str, Kind] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".log": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".fasta": "fasta",
    ".fa": "fasta",
    ".conll": "conll",
    ".conllu": "conllu",
}
STDIN, STDIN_FILE = "-", "stdin.txt"


@dataclass(frozen=True)
class Source:
    """A file and how it is read.

    Attributes:
        path: The file.
        kind: Of its content.
        column: Where the text of a table stands, once that is found.
        label: Where the class of a table's documents stands; None where none is read.
        group: Where it stands which documents stay together when text is held out; None where none is read.
    """

    path: Path
    kind: Kind
    column: str | None = None
    label: str | None = None
    group: str | None = None

    @property
    def is_table(self) -> bool:
        """Whether it has columns."""
        return self.kind in ("jsonl", "csv", "tsv", "parquet", "arrow")

    @property
    def has_lines(self) -> bool:
        """Whether what a document is must be told from its lines (a sentence of a treebank is a line)."""
        return self.kind in ("text", "conll", "conllu")


def find_sources(names: Sequence[str | Path], *, announce: bool = True) -> list[Source]:
    """Expands folders and patterns into files, in a fixed order.

    Args:
        names: Files, folders (all files below them that can be read), patterns such as `data/**/*.txt`, or folders
            written by `datasets`' `save_to_disk`.
        announce: Whether files of a folder that cannot be read are named in the log.

    Raises:
        CorpusError: Nothing is there, or it cannot be read; the text says what can.
    """
    if not names:
        raise CorpusError("no files were given")
    return [source for name in names for source in _expand(name, announce)]


def _expand(name: str | Path, announce: bool) -> list[Source]:
    path = Path(name)
    if path.is_dir():
        return _in_folder(path, announce)
    if path.is_file():
        return [Source(path, _kind_of(path))]
    if glob.has_magic(str(name)):
        found = sorted(Path(match) for match in glob.glob(str(name), recursive=True) if Path(match).is_file())
        if not found:
            raise CorpusError(f"{name}: no file fits this pattern")
        return [Source(file, _kind_of(file)) for file in found]
    raise CorpusError(f"{path}: no such file")


def _in_folder(folder: Path, announce: bool) -> list[Source]:
    if (folder / "dataset_dict.json").is_file():
        if not (folder / "train").is_dir():
            parts = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir()))
            raise CorpusError(f"{folder}: this dataset has no part called train; name one of its folders: {parts}")
        return _in_folder(folder / "train", announce)
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        return [Source(file, "arrow") for file in _saved_files(folder)]
    inside = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in inside if bare_suffix(path) in SUFFIXES and not _is_hidden(path, folder)]
    if announce and len(files) < len(inside):
        others = sorted({path.suffix or path.name for path in set(inside) - set(files)})
        log.warning(
            "%s: files of other kinds and hidden ones are passed over: %d (%s)",
            folder,
            len(inside) - len(files),
            ", ".join(others),
        )
    if not files:
        raise CorpusError(f"{folder}: no file in this folder can be read; {_supported()}")
    return [Source(file, _kind_of(file)) for file in files]


def _is_hidden(path: Path, folder: Path) -> bool:
    """Whether a part of the path within the folder begins with a dot, as what programs keep for themselves does."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _saved_files(folder: Path) -> list[Path]:
    """The files of a dataset that was saved; beside them may lie what `datasets` keeps of changed copies of it."""
    try:
        content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / file["filename"] for file in content["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{folder / 'state.json'}: not as datasets writes it ({error!r}); save it again") from error
    if missing := [file for file in files if not file.is_file()]:
        raise CorpusError(f"{missing[0]}: no such file, but {folder / 'state.json'} names it; save the dataset again")
    return files


def _kind_of(path: Path) -> Kind:
    suffix = bare_suffix(path)
    if suffix not in SUFFIXES:
        raise CorpusError(f"{path}: cannot read this kind of file; {_supported()}")
    if suffix == ".parquet" and path.suffix != ".parquet":
        raise CorpusError(f"{path}: unpack it first; a Parquet file is compressed within")
    return SUFFIXES[suffix]


def _supported() -> str:
    return f"supported are {', '.join(SUFFIXES)}, each also with {', '.join(COMPRESSIONS)}"


def keep_stdin(names: Sequence[str | Path], folder: Path, *, kept: bool = False) -> Iterator[str | Path]:
    """Replaces `-` by a file with what came on standard input, since a corpus is read more than once.

    The file has its name only once standard input has ended, so one that is there is whole.

    Args:
        names: As the user gave them.
        folder: Where the file is put.
        kept: Whether the file of an earlier try stands in where nothing comes now.

    Raises:
        CorpusError: Standard input is a terminal, or empty.
    """
    for name in names:
        yield _read_stdin(folder / STDIN_FILE, kept=kept) if str(name) == STDIN else name


def _read_stdin(file: Path, *, kept: bool) -> Path:
    kept = kept and file.is_file()
    if sys.stdin.isatty():
        if kept:
            return file
        raise CorpusError("- reads standard input, but that is a terminal; pipe a text into the command")
    partial = file.with_name(file.name + ".partial")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
            out.flush()
            os.fsync(out.fileno())
    if partial.stat().st_size == 0:
        partial.unlink()
        if kept:
            return file
        raise CorpusError("standard input is empty")
    os.replace(partial, file)
    return file
