"""What the user names, as files that can be read: files, folders, patterns, folders that `datasets` wrote.

A folder may hold a dataset whose files say by their names what they are for, as on the hub:

    README.md                            the card, which is no text
    data/train-00000-of-00002.parquet    trained on
    data/validation-00000-of-00001.parquet    held out
    data/test-00000-of-00001.parquet     not read
"""

from __future__ import annotations

import glob
import itertools
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.core.errors import CorpusError, parse_json
from unmask.core.files import absence, whole_folder, writing
from unmask.core.remote import address_of, lasting_source, source_named, with_local_copies
from unmask.core.results import Notify, Progress, ignore
from unmask.data.reading import CHUNK_BYTES, COMPRESSIONS, Stretch, bare_suffix, holds_rows

log = logging.getLogger(__name__)

Kind = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "fasta", "arrow", "conll", "conllu"]
SUFFIXES: dict[str, Kind] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".log": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".fasta": "fasta",
    ".fa": "fasta",
    ".conll": "conll",
    ".conllu": "conllu",
}
TextColumn = str | tuple[str, ...]  # a column, or several
# Files that stand beside data, by whatever program, and hold none, though some are lists of objects.
NO_TEXT = {
    "added_tokens.json", "adapter_config.json", "all_results.json", "composer.json", "config.json",
    "config_sentence_transformers.json", "croissant.json", "dataset_dict.json", "dataset_info.json",
    "dataset_infos.json", "generation_config.json", "manifest.json", "modules.json", "package-lock.json",
    "package.json", "preprocessor_config.json", "processor_config.json", "sentence_bert_config.json",
    "special_tokens_map.json", "state.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json",
    "tsconfig.json", "vocab.json",
}  # fmt: skip
_CARD = "README.md"
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_PART_OF_WORD = {word: part for part, words in _WORDS.items() for word in words}
_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Source:
    """A file and how it is read.

    Attributes:
        path: The file.
        kind: Of its content.
        column: Where the text of a table stands, once that is found (`text_columns.py`); several together are it.
        label: Where the class of a table's documents stands; None where none is read.
        group: Where it stands which documents stay together when text is held out; None where none is read.
        stretch: What of the file is read, where that is not all of it (`read_plan.py`).
    """

    path: Path
    kind: Kind
    column: TextColumn | None = None
    label: str | None = None
    group: str | None = None
    stretch: Stretch | None = None

    def row(self, number: int) -> str:
        """A row in the words of an error; of a stretch of lines, its number is counted from there."""
        behind = self.is_json and self.stretch is not None and self.stretch.begin
        return f"{self.path}: row {number}{f' behind byte {behind:,}' if behind else ''}"

    @property
    def is_table(self) -> bool:
        """Whether it has columns."""
        return self.is_json or self.kind in ("csv", "tsv", "parquet", "arrow")

    @property
    def is_json(self) -> bool:
        """Whether each of its rows has columns of its own."""
        return self.kind in ("jsonl", "json")

    @property
    def has_lines(self) -> bool:
        """Whether what a document is must be told from its lines (a sentence of a treebank is a line)."""
        return self.kind in ("text", "conll", "conllu")


class SourceSplit(NamedTuple):
    """The files of a corpus by what they are for.

    Attributes:
        train: To train on.
        validation: Held out by their names; none where no file says so.
    """

    train: list[Source]
    validation: list[Source]


def find_sources(names: Sequence[str | Path], *, announce: bool = True) -> list[Source]:
    """The files to train on, as `find_split` tells them from others."""
    return find_split(names, announce=announce).train


def find_split(names: Sequence[str | Path], *, by_name: bool = True, announce: bool = True) -> SourceSplit:
    """Expands folders and patterns into files, in a fixed order.

    Within a folder, what files are for is taken from their names, by the words that `datasets` knows (`train`,
    `validation`, `valid`, `dev`, `val`, `test`, `eval` ...), if most of its text is in files that have one and there is
    something beside `train`. Files that are named one by one, or by a pattern, are trained on whatever they are called.

    Args:
        names: Files, folders (all files below them that can be read), patterns such as `data/**/*.txt`, or folders
            written by `datasets`' `save_to_disk`.
        by_name: Whether names of files say what they are for; else all are trained on.
        announce: Whether the log says what is read for what, and what is not read.

    Raises:
        CorpusError: Nothing is there, or it cannot be read; the text says what can.
    """
    if not names:
        raise CorpusError("no files were given")
    found = [_expand(name, by_name, announce) for name in names]
    return SourceSplit([s for split in found for s in split.train], [s for split in found for s in split.validation])


def _expand(name: str | Path, by_name: bool, announce: bool) -> SourceSplit:
    try:
        return _found(name, by_name, announce)
    except OSError as error:
        raise CorpusError(
            f"{name}: cannot be looked at ({error.strerror or error}); mind its name and rights"
        ) from error


def _found(name: str | Path, by_name: bool, announce: bool) -> SourceSplit:
    path = Path(name)
    if path.is_dir():
        return _in_folder(path, by_name, announce)
    if path.is_file():
        return SourceSplit([Source(path, _kind_of(path))], [])
    if glob.has_magic(str(name)) and not path.exists():
        found = sorted(Path(match) for match in glob.glob(str(name), recursive=True) if Path(match).is_file())
        if not found:
            raise CorpusError(f"{name}: no file fits this pattern")
        return SourceSplit([Source(file, _kind_of(file)) for file in found], [])
    raise CorpusError(f"{path}: {absence(path)}")


def _in_folder(folder: Path, by_name: bool, announce: bool) -> SourceSplit:
    if (folder / "dataset_dict.json").is_file():
        return _saved_parts(folder, by_name, announce)
    if is_saved_dataset(folder):
        return SourceSplit([Source(file, "arrow") for file in _saved_files(folder)], [])
    inside = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in inside if bare_suffix(path) in SUFFIXES and not _is_hidden(path, folder)]
    files, without = _with_rows(files)
    card = folder / _CARD
    if card in files and any(path.suffix.lower() != card.suffix for path in files):
        files.remove(card)
    passed_over = set(inside) - set(files) - set(without)
    if announce and passed_over:
        others = sorted({_CARD if path == card else path.suffix or path.name for path in passed_over})
        log.warning(
            "%s: files of other kinds, cards and hidden ones are passed over: %d (%s)",
            folder,
            len(passed_over),
            ", ".join(others),
        )
    if announce and without:
        log.warning("%s: .json files without rows are passed over: %d (%s)", folder, len(without), _names_of(without))
    if not files:
        rows = f"; of .json files those with rows, which {_names_of(without)} is not" if without else ""
        raise CorpusError(f"{folder}: no file in this folder can be read; {_supported()}{rows}")
    return _by_name(folder, files, announce) if by_name else SourceSplit(_sources(files), [])


def _with_rows(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files that may hold text, and those of JSON that do not: of a known name, or not the rows of a table."""
    jsons = [path for path in files if bare_suffix(path) == ".json"]
    without = [path for path in jsons if _bare_name(path) in NO_TEXT or not holds_rows(path)]
    return [path for path in files if path not in set(without)], without


def _bare_name(path: Path) -> str:
    """In lower case, without the suffix of a compression."""
    name = path.name.lower()
    return name.removesuffix(path.suffix.lower()) if path.suffix.lower() in COMPRESSIONS else name


def _names_of(files: Sequence[Path]) -> str:
    return _few([path.name for path in files])


def _saved_parts(folder: Path, by_name: bool, announce: bool) -> SourceSplit:
    """The parts of a `DatasetDict`, each a folder."""
    parts = {path.name: path for path in sorted(folder.iterdir()) if (path / "state.json").is_file()}
    if not by_name:
        return SourceSplit([Source(file, "arrow") for part in parts.values() for file in _saved_files(part)], [])
    if "train" not in parts:
        raise CorpusError(
            f"{folder}: this dataset has no part called train; name one of its folders: {', '.join(parts) or 'none'}"
        )
    held = next((name for name in _WORDS["validation"] if name in parts), None)
    found = {name: _saved_files(path) for name, path in parts.items()}
    if announce:
        _announce(folder, {"train": ["train"], "validation": [held] if held else []}, [*parts], "parts")
    return SourceSplit(*([Source(file, "arrow") for file in found.get(name or "", [])] for name in ("train", held)))


def _by_name(folder: Path, files: Sequence[Path], announce: bool) -> SourceSplit:
    """What the files of a folder are for; all are for training where names do not say it of most of the text."""
    parts: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for file in files:
        if (part := _part_of(file.relative_to(folder))) is not None:
            parts[part].append(file)
    named = [file for part in parts.values() for file in part]
    if not parts["train"] or len(named) == len(parts["train"]):
        return SourceSplit(_sources(files), [])
    if 2 * _num_bytes(named) < _num_bytes(files):
        if announce:
            log.warning(
                "%s: names of some files say that they are parts of a dataset (%s), but most of the text is in others: "
                "all are trained on; name the files that are to be read, and those to hold out in corpus.validation",
                folder,
                _few([str(file.relative_to(folder)) for file in named]),
            )
        return SourceSplit(_sources(files), [])
    if announce:
        short = {part: [str(file.relative_to(folder)) for file in found] for part, found in parts.items()}
        _announce(folder, short, [str(file.relative_to(folder)) for file in files], "files")
    return SourceSplit(_sources(parts["train"]), _sources(parts["validation"]))


def _part_of(path: Path) -> str | None:
    """`train`, `validation` or `test`; None where a name says nothing, or two things.

    A folder that is called so says it of all that is in it; else the file's own name does; else a word of a folder's
    name.
    """
    folders = [name.lower() for name in path.parts[:-1]]
    for words in (folders, _LETTERS.findall(path.name.lower()), _LETTERS.findall(" ".join(folders))):
        if found := {_PART_OF_WORD[word] for word in words if word in _PART_OF_WORD}:
            return found.pop() if len(found) == 1 else None
    return None


def part_named(name: str) -> str | None:
    """`train`, `validation` or `test`, where a part of a dataset is called by a word for it; else None."""
    return _PART_OF_WORD.get(name.lower())


def _announce(folder: Path, parts: Mapping[str, list[str]], names: Sequence[str], what: str) -> None:
    read = {*parts["train"], *parts["validation"]}
    others = [name for name in names if name not in read]
    log.warning(
        '%s: %s by name: for training %s; for validation %s; not read %s (corpus.splits = "ignore" trains on all)',
        folder,
        what,
        _few(parts["train"]),
        _few(parts["validation"]),
        _few(others),
    )


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(names[:3]) or "none") + more


def _num_bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _sources(files: Sequence[Path]) -> list[Source]:
    return [Source(file, _kind_of(file)) for file in files]


def _is_hidden(path: Path, folder: Path) -> bool:
    """Whether a part of the path within the folder begins with a dot, as what programs keep for themselves does."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def is_saved_dataset(folder: Path) -> bool:
    """Whether a `Dataset` of `datasets` was saved here; not several of them."""
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def _saved_files(folder: Path) -> list[Path]:
    """The files of a dataset that was saved; beside them may lie what `datasets` keeps of changed copies of it."""
    try:
        content = parse_json((folder / "state.json").read_text(encoding="utf-8"))
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


# ----------------------------------------
# Text that is no file: standard input, and pipes such as `<(zcat a.gz)`. It can be read once, so it is kept as a file.
#
#     unmask prepare - <(zcat a.gz) <(zcat b.gz) --out data     data/stdin.txt, data/pipes/1.txt, data/pipes/2.txt
#
# What comes out of them is plain text, unless the name of a pipe says otherwise, as after `mkfifo rows.jsonl`.

STDIN, STDIN_FILE, PIPES = "-", "stdin.txt", "pipes"
_ALSO_STDIN = (STDIN, "/dev/stdin", "/dev/fd/0")
_MARK = "<({})"  # as shells write it


def is_stream(name: object) -> bool:
    """Whether what a user names can be read once: standard input or a pipe."""
    if not isinstance(name, str | Path):
        return False
    try:
        return str(name) in _ALSO_STDIN or Path(name).is_fifo()
    except (OSError, ValueError):  # whoever looks for a file says what is wrong with the name
        return False


class StreamNames:
    """The files that streams are kept in: one for standard input, one for each pipe in their order."""

    def __init__(self) -> None:
        self._num_pipes = 0

    def file_of(self, name: str | Path) -> str:
        """The file of the next stream, as a path within the folder that it is kept in."""
        if str(name) in _ALSO_STDIN:
            return STDIN_FILE
        self._num_pipes += 1
        return f"{PIPES}/{self._num_pipes}{_suffixes(Path(name))}"


def _suffixes(path: Path) -> str:
    if bare_suffix(path) not in SUFFIXES:
        return ".txt"
    return bare_suffix(path) + (path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else "")


def names_to_keep(names: Sequence[object]) -> list[str]:
    """Sources as the settings of prepared data name them: a pipe by its file, `<(pipes/1.txt)`.

    The number that a shell gives to a pipe (/dev/fd/63) says nothing the next time.
    """
    files, found = StreamNames(), []
    for name in names:
        if isinstance(name, str | Path) and is_stream(name):
            file = files.file_of(name)
            found.append(STDIN if file == STDIN_FILE else _MARK.format(file))
        else:
            found.append(lasting_source(name) if isinstance(name, str | Path) else str(name))
    return found


def kept_source(folder: Path, name: str) -> str:
    """Where what `names_to_keep` names lies now, for data that was prepared in a folder.

    Raises:
        CorpusError: It has an address, and cannot be fetched from there or has changed.
    """
    name = source_named(name)
    if name == STDIN:
        return str(folder / STDIN_FILE)
    before, after = _MARK.split("{}")
    return str(folder / name[len(before) : -len(after)]) if name.startswith(f"{before}{PIPES}/") else name


@contextmanager
def from_stdin() -> Iterator[IO[bytes]]:
    """Standard input.

    Raises:
        CorpusError: It is a terminal, or closed; or, while it is read, it cannot be.
    """
    if sys.stdin is None:
        raise CorpusError("- reads standard input, but that is closed; pipe a text into the command")
    if sys.stdin.isatty():
        raise CorpusError("- reads standard input, but that is a terminal; pipe a text into the command")
    try:
        yield sys.stdin.buffer
    except OSError as error:
        raise CorpusError(f"standard input cannot be read ({error.strerror or error}); pipe a text in") from error


def keep_stream(name: str | Path, file: Path, *, kept: bool) -> Path:
    """Writes what comes out of a stream into a file, which has its name only once all has come.

    Args:
        name: Of standard input or a pipe.
        file: Where.
        kept: Whether a file that is there stands in where nothing comes now.

    Raises:
        CorpusError: Standard input is a terminal or closed; nothing comes; or it cannot be read.
        WriteError: The file cannot be written.
    """
    kept = kept and file.is_file()
    is_stdin = str(name) in _ALSO_STDIN
    if is_stdin and kept and (sys.stdin is None or sys.stdin.isatty()):
        return file
    partial = file.with_name(file.name + ".partial")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            for chunk in _from_stdin() if is_stdin else _from_pipe(Path(name)):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if partial.stat().st_size:
            os.replace(partial, file)
            return file
        partial.unlink()
    if kept:
        return file
    raise CorpusError("standard input is empty" if is_stdin else f"{name}: nothing came out of this pipe")


def _from_stdin() -> Iterator[bytes]:
    with from_stdin() as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _from_pipe(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise CorpusError(f"{path}: this pipe cannot be read ({error.strerror or error})") from error


@contextmanager
def readable(path: str | Path) -> Iterator[Path]:
    """A file that can be read again and again: the path itself, or, of a stream, a temporary copy while it is entered.

    Raises:
        CorpusError: As `keep_stream`.
    """
    if not is_stream(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        file = keep_stream(path, Path(scratch) / StreamNames().file_of(path), kept=False)
        try:
            yield file
        except CorpusError as error:
            raise CorpusError(str(error.args[0]).replace(str(file), str(path))) from error


# ----------------------------------------
# Texts that are in memory: lists, iterators, tables and datasets, kept as files that can be read again.
#
# A corpus is read more than once, by several processes, and again when a run goes on. So what is no file becomes one:
#
#     given/rows.jsonl            strings, or rows as dicts
#     given/rows.parquet          a table of pandas, polars or pyarrow
#     given/...                   a `datasets.Dataset` or `DatasetDict`, as its `save_to_disk` writes it
#     given/train/..., given/validation/...    a dict of any of these: its parts, which their names tell apart

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
    (`s3://bucket/corpus`) is fetched, see `unmask.core.remote`.

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
