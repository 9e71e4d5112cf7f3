"""User input as readable files: files, folders, patterns, streams, and objects in memory.

A folder may hold a dataset whose file names say what the files are for, as on the hub:

    README.md                            the card, which is not read
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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from unmask.core.errors import CorpusError, listed, parse_json, shortened
from unmask.core.files import LOCK, absence, file_sha256, say_once, whole_file, whole_folder, writing
from unmask.core.plugins import entry_points
from unmask.core.remote import address_of, lasting_source, local_copies, source_named
from unmask.core.results import Notify, Progress, ignore
from unmask.data.columns import without_gaps
from unmask.data.json_rows import holds_rows
from unmask.data.reading import COMPRESSIONS, Stretch, bare_suffix, open_bytes, pieces_of, wide_encoding
from unmask.data.treebanks import first_lines, form_of

log = logging.getLogger(__name__)

# Also plain text, but skipped in a folder that holds more tables, which it describes.
CODE = (
    ".adoc", ".c", ".cc", ".cpp", ".cs", ".cxx", ".go", ".h", ".hpp", ".htm", ".html", ".java", ".js", ".jsx", ".kt",
    ".lua", ".org", ".php", ".pl", ".py", ".r", ".rb", ".rs", ".rst", ".scala", ".sh", ".smi", ".sql", ".srt", ".swift",
    ".tex", ".ts", ".tsx", ".vue", ".xhtml", ".xml",
)  # fmt: skip
# What to do first with files of other kinds
_FIRST_STEPS = {
    **dict.fromkeys((".doc", ".docx", ".epub", ".ipynb", ".odt", ".pdf", ".rtf"), "extract its text"),
    **dict.fromkeys((".ods", ".xls", ".xlsx"), "save it as CSV"),
    **dict.fromkeys((".7z", ".rar", ".tar", ".tgz", ".zip"), "unpack it"),
}
# Kinds of files by suffix; a plug-in's kind is the suffix without its dot. `documents.READERS` has the reader of each.
SUFFIXES: dict[str, str] = {
    **dict.fromkeys((".txt", ".text", ".md", ".log", *CODE), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **{f".{kind}": kind for kind in ("json", "csv", "tsv", "parquet")},
    **dict.fromkeys((".fasta", ".fa", ".faa", ".ffn", ".fna", ".fas"), "fasta"),
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2", ".bmes"), "conll"),
    ".conllu": "conllu",
    ".spacy": "spacy",
}
_SUPPORTED = (
    f"supported are {', '.join(each for each in SUFFIXES if each not in CODE)} and plain text, each also with "
    f"{', '.join(COMPRESSIONS)} (of unknown suffixes if a pattern names them, such as 'texts/*.yaml')"
)
TABLES = {"jsonl", "json", "csv", "tsv", "parquet", "arrow", "spacy"}
# JSON files that various programs write beside data. They hold no text, though some are lists of objects.
NO_TEXT = {
    "added_tokens.json", "adapter_config.json", "all_results.json", "composer.json", "config.json",
    "config_sentence_transformers.json", "croissant.json", "dataset_dict.json", "dataset_info.json",
    "dataset_infos.json", "generation_config.json", "manifest.json", "modules.json", "package-lock.json",
    "package.json", "preprocessor_config.json", "processor_config.json", "sentence_bert_config.json",
    "special_tokens_map.json", "state.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json",
    "tsconfig.json", "vocab.json",
}  # fmt: skip
_CARD = "README.md"
_VALIDATION = ("validation", "valid", "dev", "val")
_PART_OF_WORD = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(_VALIDATION, "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_LETTERS = re.compile(r"[^\W\d_]+")
_POINTER = b"version https://git-lfs.github.com/"
_JSON = re.compile(r'\s*\[?\s*\{\s*"[^"\n]*"\s*:')  # how rows of JSON begin
_SMILES = re.compile(r"(Br|Cl|[BCNOFPSIbcnops*]|\[[^]]+\]|%\d\d|[\d().=#$:/\\~>-])+")  # of a molecule


class Layout(NamedTuple):
    """How the rows of CSV and TSV are cut into cells; see `delimited.py`."""

    delimiter: str
    is_quoted: bool  # whether quotes enclose cells; else they are plain characters
    has_header: bool
    names: tuple[str, ...]  # column names from the header, or column numbers
    skips_spaces: bool = False  # whether a space comes between a delimiter and a quote


def kind_of(path: Path) -> str | None:
    """The kind of a file by its name; None if there is no reader for it."""
    suffix = bare_suffix(path)
    return SUFFIXES.get(suffix) or (suffix[1:] if suffix[1:] in entry_points("readers") else None)


TextColumn = str | tuple[str, ...]  # a column, or several


@dataclass(frozen=True)
class Source:
    path: Path  # the file
    kind: str  # kind of content: a value of `SUFFIXES`, or `arrow`
    column: TextColumn | None = None  # column of text in a table; several are joined
    label: str | None = None  # column of classes; None: not read
    group: str | None = None  # column of groups that stay in one split; None: not read
    stretch: Stretch | None = None  # the part to read; None: all
    id: str | None = None  # column of ids; None: documents are numbered
    title: str | None = None  # column of titles; None: not read
    layout: Layout | None = None  # of CSV and TSV, how rows are cut into cells

    @property
    def by_suffix(self) -> str:
        """The kind by the suffix: a file of one tagged word per line (`conll`) may have that of a text or a table."""
        return kind_of(self.path) or self.kind

    @property
    def is_table(self) -> bool:
        return self.kind in TABLES

    @property
    def is_json(self) -> bool:
        """Whether each row has its own columns."""
        return self.kind in ("jsonl", "json")


class SourceSplit(NamedTuple):
    train: list[Source]
    validation: list[Source]


def find_sources(names: Sequence[str | Path], *, announce: bool = True) -> list[Source]:
    """The files to train on, as separated from others by `find_split`."""
    return find_split(names, announce=announce).train


def has_match(name: str) -> bool:
    """Whether a path exists, or a pattern matches one."""
    return os.path.exists(name) or bool(glob.glob(name, recursive=True))


def find_split(names: Sequence[str | Path], *, by_name: bool = True, announce: bool = True) -> SourceSplit:
    """Expands folders and patterns into files, in a fixed order.

    In a folder, file names decide what files are for, by the words that `datasets` knows (`train`, `validation`,
    `valid`, `dev`, `val`, `test`, `eval` ...), if most of its text is in files with such a name, and not all of these
    are `train`. Files named one by one or by a pattern are trained on, whatever their names.

    Args:
        names: Files, folders, patterns such as `data/**/*.txt`, or folders written by `datasets`' `save_to_disk`.
        by_name: Whether file names decide what files are for; otherwise all are trained on.
        announce: Whether to log which files are used for what, and which are not read.
    """
    if not names:
        raise CorpusError("there are no files to read")
    split = SourceSplit([], [])
    for name in names:
        path = Path(name)
        try:
            if path.is_dir():
                inside = _in_folder(path, by_name, announce)
                split.train.extend(inside.train)
                split.validation.extend(inside.validation)
            elif path.is_file():
                split.train.append(_source(path))
            elif address := address_of(name):
                raise CorpusError(f"{address}: addresses are not fetched here; download the file and give its path")
            elif glob.has_magic(str(name)) and not path.exists():
                matches = sorted(match for match in map(Path, glob.glob(str(name), recursive=True)) if match.is_file())
                if not matches:
                    raise CorpusError(f"{name}: no file matches this pattern")
                split.train.extend(map(_source, matches))
            else:
                raise CorpusError(f"{path}: {absence(path)}")
        except OSError as error:
            what = f"{error.filename or name}: cannot be accessed ({error.strerror or error})"
            raise CorpusError(f"{what}; check its name and permissions") from error
    counts = Counter(os.path.abspath(source.path) for source in split.train)
    if announce and (repeated := [path for path, count in counts.items() if count > 1]):
        log.warning("named more than once, and read as often: %s", listed(repeated, 3))
    return split


def _in_folder(folder: Path, by_name: bool, announce: bool) -> SourceSplit:
    if is_saved_dataset(folder):
        return SourceSplit(_saved_files(folder), [])
    if (folder / "dataset_dict.json").is_file():  # its splits are folders
        what, names = "parts", sorted(path.name for path in folder.iterdir() if (path / "state.json").is_file())
        if not by_name:
            return SourceSplit([source for part in names for source in _saved_files(folder / part)], [])
        # As for files, but a part of exactly that name comes before `train_sft` or `validation_matched`.
        part_of = {name: _part_of(Path(name, "x")) for name in names}
        train = ["train"] if "train" in names else [name for name in names if part_of[name] == "train"]
        held = [name for name in _VALIDATION if name in names][:1]
        held = held or [name for name in names if part_of[name] == "validation"]
        if not train:
            raise CorpusError(f"{folder}: this dataset has no train split; give one of its parts: {listed(names)}")
        files = ([each for part in parts for each in _saved_files(folder / part)] for parts in (train, held))
    else:
        paths = _readable_files(folder, announce)
        what, names = "files", [str(path.relative_to(folder)) for path in paths]
        part_of = dict(zip(names, map(_part_of, map(Path, names)), strict=True))
        train, held = ([name for name in names if part_of[name] == part] for part in ("train", "validation"))
        others = [name for name in names if part_of[name] is None]
        has_parts = by_name and bool(train) and len(train) + len(others) < len(names)
        size = {name: path.stat().st_size for name, path in zip(names, paths, strict=True)}
        if has_parts and 2 * sum(size[name] for name in others) > sum(size.values()):
            has_parts = False
            if announce:
                what = "most of the text is in files that are not named like splits, so all are trained on"
                log.warning("%s: %s; in corpus.validation, name the files to hold out", folder, what)
        if not has_parts:
            return SourceSplit(list(map(_source, paths)), [])
        files = ([_source(folder / name) for name in part] for part in (train, held))
    if announce:
        unread = [name for name in names if name not in {*train, *held}]
        log.warning(
            '%s: %s by name: for training %s; for validation %s; not read %s (corpus.splits = "ignore" trains on all)',
            folder, what, *(listed(part, 3) for part in (train, held, unread)),
        )  # fmt: skip
    return SourceSplit(*files)


def _below(folder: Path) -> Iterator[Path]:
    """What is in a folder and those below it, then in folders that links lead to; each folder once. Raises an OSError
    if one cannot be read, unless it is hidden or the `lost+found` of a file system."""

    def failed(error: OSError) -> None:
        parts = Path(error.filename).relative_to(folder).parts
        if not any(part.startswith(".") or part == "lost+found" for part in parts):
            raise error

    seen, begins = set[tuple[int, int]](), [folder]
    for begin in begins:
        for place, folders, names in os.walk(begin, onerror=failed):
            status = os.stat(place)
            if (key := (status.st_dev, status.st_ino)) in seen:
                folders.clear()
                continue
            seen.add(key)
            folders.sort()
            linked = (Path(place, name) for name in folders if not name.startswith("."))
            begins += [path for path in linked if path.is_symlink()]
            yield from (Path(place, name) for name in names)


def _readable_files(folder: Path, announce: bool) -> list[Path]:
    """The files in a folder that hold text, judged by their names and the first rows of JSON."""
    inside, lost = list[Path](), list[Path]()
    for path in sorted(_below(folder)):
        if path.is_file():
            inside.append(path)
        elif not path.exists() and kind_of(path) is not None and not path.name.startswith("."):
            lost.append(path)
    if announce and lost:
        links = "link to no file is" if len(lost) == 1 else "links to no file are"
        log.warning("%s: %d %s left out, such as %s", folder, len(lost), links, lost[0])
    outputs = {path.parent for path in inside if path.name == LOCK} - {folder}  # such as the run that reads this
    files: list[Path] = []
    for path in inside:
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or kind_of(path) is None or not outputs.isdisjoint(path.parents):
            continue
        name = path.name.lower()
        bare = name.removesuffix(path.suffix.lower()) if path.suffix.lower() in COMPRESSIONS else name
        if bare_suffix(path) != ".json" or (bare not in NO_TEXT and (holds_rows(path) or _is_pointer(path))):
            files.append(path)
    if tables := sum(path.stat().st_size for path in files if kind_of(path) in TABLES):
        code = {path for path in files if bare_suffix(path) in CODE}
        if tables > sum(path.stat().st_size for path in code):
            files = [path for path in files if path not in code]
    trees = {path.parent for path in files if kind_of(path) == "conllu"}
    files = [path for path in files if path.parent not in trees or kind_of(path) != "text"]  # it describes them
    card = folder / _CARD
    if card in files and any(path.suffix.lower() != card.suffix for path in files):
        files.remove(card)
    if announce and (others := set(inside) - set(files)):
        by_name = {path for path in others if path == card or not path.suffix or bare_suffix(path) == ".json"}
        kinds = listed(sorted({path.name if path in by_name else path.suffix for path in others}))
        what = (
            "other kinds, code beside more tables, text beside .conllu, JSON without rows, cards, hidden files and "
            "outputs are skipped"
        )
        log.warning("%s: %s: %d (%s)", folder, what, len(others), kinds)
    if not files:
        raise CorpusError(f"{folder}: no file in this folder can be read; {_SUPPORTED}; of .json files those with rows")
    return files


def _part_of(path: Path) -> str | None:
    """`train`, `validation` or `test`, by a folder of that name, else by the file's name, else by a word in a folder's
    name; None if these give none, or two."""
    folders = [name.lower() for name in path.parts[:-1]]
    for words in (folders, _LETTERS.findall(path.name.lower()), _LETTERS.findall(" ".join(folders))):
        if parts := {_PART_OF_WORD[word] for word in words if word in _PART_OF_WORD}:
            return parts.pop() if len(parts) == 1 else None
    return None


def is_saved_dataset(folder: Path) -> bool:
    """Whether a single `Dataset` of `datasets` was saved here."""
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def _saved_files(folder: Path) -> list[Source]:
    """The files of a saved dataset; the folder may also hold `datasets`' cache of changed copies."""
    try:
        content = parse_json(folder / "state.json")
        files = [folder / file["filename"] for file in content["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"{folder / 'state.json'}: not as the datasets library writes it ({error!r}); save it again"
        ) from error
    if missing := [file for file in files if not file.is_file()]:
        raise CorpusError(
            f"{missing[0]}: no such file, although {folder / 'state.json'} names it; save the dataset again"
        )
    return [Source(file, "arrow") for file in files]


def _is_pointer(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:  # reading reports a file that cannot be opened
        return file.read(len(_POINTER)) == _POINTER
    return False


def _source(path: Path) -> Source:
    suffix, kind = bare_suffix(path), kind_of(path)
    if _is_pointer(path):
        raise CorpusError(f"{path}: only a pointer to the file, which Git LFS stores; get it with `git lfs pull`")
    if kind is None:  # an unknown suffix, which a text file may have
        with open_bytes(path) as file:
            begin = next(pieces_of(file), b"")
        if not begin:
            raise CorpusError(f"{path}: is empty")
        if suffix in _FIRST_STEPS or (b"\0" in begin and not wide_encoding(begin)):
            first = f", so {_FIRST_STEPS[suffix]} first" if suffix in _FIRST_STEPS else ""
            raise CorpusError(f"{path}: this kind of file cannot be read{first}; {_SUPPORTED}")
        kind = "text"
    if suffix == ".parquet" and path.suffix.lower() != suffix:
        raise CorpusError(f"{path}: decompress it first; Parquet is compressed internally")
    lines = first_lines(path) if kind == "text" else []
    if suffix == ".smi":
        has_header = "".join(lines[0].split()[:1]).lower().endswith("smiles")
        fields = [fields for line in lines[has_header:100] if (fields := line.split())]
        has_more = has_header or any(len(line) > 1 for line in fields)
        if has_more and all(_SMILES.fullmatch(line[0]) for line in fields[:-1] or fields):
            say_once(
                f"{path}: each text is a line up to its first blank, and the rest is its id (rename to .txt for "
                "whole lines)"
            )
            return Source(path, "smiles")
    form = form_of(path, kind, lines)
    if form is None and kind == "text":
        called = f"*{suffix}" if suffix else str(path)
        if _JSON.match("\n".join(lines)):
            way_out = "name the file .jsonl or .json to read its rows"
            say_once(f"{path}: read as plain text, JSON syntax included; {way_out}")
        elif len(lines) > 4 and len(tabs := {line.count("\t") for line in lines}) == 1 and tabs != {0}:
            say_once(f"{called}: read as plain text, tabs included; name such files .tsv to read their columns")
        elif kind_of(path) is None:
            say_once(f"{called}: read as plain text")
    return Source(path, kind if form is None else form.kind)


# ----------------------------------------
# Streams: standard input, and pipes such as `<(zcat a.gz)`. They can be read only once, so they are copied to files:
#
#     unmask prepare - <(zcat a.gz) <(zcat b.gz) --out data     data/stdin.txt, data/pipes/1.txt, data/pipes/2.txt
#
# They are plain text, unless the name of a pipe has another suffix, as after `mkfifo rows.jsonl`.

STDIN, STDIN_FILE, PIPES = "-", "stdin.txt", "pipes"
_ALSO_STDIN = (STDIN, "/dev/stdin", "/dev/fd/0")
_AS_PIPE, _PIPE_END = "<(", ")"  # as shells write it


def is_stream(name: object) -> bool:
    """Whether a name denotes standard input or a pipe, which can be read only once."""
    if not isinstance(name, str | Path):
        return False
    try:
        return str(name) in _ALSO_STDIN or Path(name).is_fifo()
    except (OSError, ValueError):  # opening the file will report the invalid name
        return False


def _stream_files(names: Iterable[Any]) -> Iterator[tuple[Any, str | None]]:
    """Each name with the file for its content, a path within a folder; None if it is not a stream."""
    num_pipes = 0
    for name in names:
        if not is_stream(name):
            yield name, None
        elif str(name) in _ALSO_STDIN:
            yield name, STDIN_FILE
        else:
            num_pipes += 1
            path = Path(name)
            packed = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
            suffix = bare_suffix(path) + packed if kind_of(path) else ".txt"
            yield name, f"{PIPES}/{num_pipes}{suffix}"


def names_to_keep(names: Sequence[object]) -> list[str]:
    """Sources as named in the settings of prepared data: a pipe by its file, `<(pipes/1.txt)`, since the shell gives it
    another number (/dev/fd/63) each time."""
    lasting = []
    for name, file in _stream_files(names):
        if file is None:
            path = Path(name) if isinstance(name, str) and not address_of(name) else name  # without a slash at its end
            lasting.append(lasting_source(path) if isinstance(path, str | Path) else "texts in memory")
        else:
            lasting.append(STDIN if file == STDIN_FILE else f"{_AS_PIPE}{file}{_PIPE_END}")
    return lasting


def kept_source(folder: Path, name: str) -> str:
    """The current location of a source named by `names_to_keep`, for data that was prepared in a folder."""
    name = source_named(name)
    if name == STDIN:
        return str(folder / STDIN_FILE)
    is_pipe = name.startswith(f"{_AS_PIPE}{PIPES}/")
    return str(folder / name.removeprefix(_AS_PIPE).removesuffix(_PIPE_END)) if is_pipe else name


def stream_pieces(name: str | Path = STDIN) -> Iterator[bytes]:
    """The content of standard input or of a pipe; raises a CorpusError if it cannot be read."""
    is_stdin = str(name) in _ALSO_STDIN
    if is_stdin and (sys.stdin is None or sys.stdin.isatty()):
        what = "closed" if sys.stdin is None else "a terminal"
        raise CorpusError(f"- reads standard input, but that is {what}; pipe a text into the command")
    try:
        with nullcontext(sys.stdin.buffer) if is_stdin else Path(name).open("rb") as stream:
            yield from pieces_of(stream)
    except OSError as error:
        what = "standard input" if is_stdin else f"{name}: this pipe"
        raise CorpusError(f"{what} cannot be read ({error.strerror or error}); pipe a text in") from error


def keep_stream(name: str | Path, file: Path, *, reuse: bool) -> Path:
    """Writes the content of standard input or a pipe to a file, which gets its name only when complete. With `reuse`,
    an existing file is used if nothing comes; otherwise that is a CorpusError."""
    reuse, is_stdin = reuse and file.is_file(), str(name) in _ALSO_STDIN
    if is_stdin and reuse and (sys.stdin is None or sys.stdin.isatty()):
        return file
    pieces = stream_pieces(name)
    if (first := next(pieces, None)) is None:
        if reuse:
            return file
        raise CorpusError("standard input is empty" if is_stdin else f"{name}: this pipe is empty")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as partial, writing(file):
        with partial.open("xb") as out:
            out.writelines(itertools.chain([first], pieces))
        _date_by_content(partial)
    return file


def _date_by_content(file: Path) -> None:
    """Sets the time of a file by its content, to one of 2001 to 2003. Tasks are recognised by the times of their files,
    so if the same text comes again, its preparation resumes."""
    time = 10**18 + int(file_sha256(file)[:14], 16)  # nanoseconds; FAT begins in 1980
    os.utime(file, ns=(time, time))


@contextmanager
def readable(path: str | Path | Iterable[Any]) -> Iterator[Path]:
    """Yields a file that can be read repeatedly: the path, or a temporary copy of a stream or of objects in memory."""
    ((_, name),) = _stream_files([path])
    if isinstance(path, str | os.PathLike) and name is None:
        yield Path(path)
        return
    first = path[0] if isinstance(path, list | tuple) and path else None
    if isinstance(first, str) and len(first) <= _LONG_NAME and os.path.isfile(first):
        raise CorpusError(f"{first!r} in the list is a file; give its path by itself, or a list of texts")
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        copy = Path(scratch) / (name or GIVEN)
        file = InMemory(path).keep(copy) if name is None else keep_stream(cast(Any, path), copy, reuse=False)
        try:
            yield file
        except CorpusError as error:
            called = str(path) if isinstance(path, str | os.PathLike) else "texts in memory"
            error.args = (str(error.args[0]).replace(str(file), called),)
            raise


# ----------------------------------------
# Objects in memory: lists, iterators, tables and datasets. A corpus is read several times, by several processes, and
# again when a run is resumed, so they are written to files:
#
#     given/rows.jsonl            strings, or rows as dicts
#     given/rows.parquet          a table of pandas, polars or pyarrow
#     given/...                   a `datasets.Dataset` or `DatasetDict`, as its `save_to_disk` writes it
#     given/train/..., given/validation/...    a dict of any of these: its parts by their names

GIVEN = "given"
ROWS_AT_ONCE = 1000
_LOOK = 100  # strings to check in a list
_LONG_NAME = 255  # longer texts are not file names


@dataclass(frozen=True)
class InMemory:
    """Texts in memory: strings; rows (dicts); a `Dataset`, `IterableDataset` or `DatasetDict` of datasets; a table of
    pandas, polars or pyarrow; or a dict of these by the names of splits (`train`, `validation`)."""

    content: Any

    def keep(self, folder: Path, *, notify: Notify = ignore) -> Path:
        """Writes the texts to a folder, and replaces the folder once all are written. Raises a CorpusError if there are
        none, or one is neither a text nor a row."""
        with whole_folder(folder) as partial:
            _write(self.content, partial, notify)
            with writing(folder):
                for file in filter(Path.is_file, partial.rglob("*")):
                    _date_by_content(file)
        return folder


Named = str | Path | InMemory
Texts = str | Path | Sequence[str | Path] | Iterable[str] | Iterable[Mapping[str, Any]] | Mapping[str, Any]


def paths_or_texts(texts: Texts | None) -> list[Named]:
    """Distinguishes paths from texts in memory; None is an empty list. Raises a CorpusError for anything else, or for
    an empty list.

    Strings in a list are paths if one of them exists or has the suffix of a readable file; they are texts if none does
    and one contains white space. Any other iterable holds texts or rows. Addresses (`s3://bucket/corpus`) are fetched,
    see `unmask.core.remote`.

    Example: `["a.txt", "b.txt"]` are paths; `["Some words.", "Others."]` and `iter(["word"])` are texts.
    """
    if texts is None:
        return []
    if isinstance(texts, str | os.PathLike):
        if isinstance(texts, str) and (len(texts) > _LONG_NAME or "\n" in texts):
            raise CorpusError(f"{texts[:30]!r}...: this is a text, but a path is expected; give texts as a list")
        return local_copies(texts if isinstance(texts, str) else Path(texts))
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str | os.PathLike | InMemory) for each in texts):
        return [InMemory(texts)]
    if not texts:
        raise CorpusError("the list is empty; give texts, or paths")
    look = texts[:_LOOK]
    has_space = [isinstance(each, str) and (len(each) > _LONG_NAME or any(map(str.isspace, each))) for each in look]
    are_paths = all(isinstance(each, str) and kind_of(Path(each)) for each in look)
    for each, is_spaced in zip(look, has_space, strict=True):
        if not isinstance(each, str) or each == STDIN or address_of(each) is not None:
            are_paths = True
            continue
        is_there = (len(each) <= _LONG_NAME or "/" in each) and os.path.exists(each)
        is_pattern = not is_spaced and glob.has_magic(each) and bool(glob.glob(each, recursive=True))
        are_paths |= is_there or is_pattern or (not is_spaced and kind_of(Path(each)) is not None)
    if not are_paths and not any(has_space):
        raise CorpusError(
            f"{look[0]!r}: no such file; if these are texts without white space, pass an iterator: iter(texts)"
        )
    return local_copies(*texts) if are_paths else [InMemory(texts)]


def keep_as_files(
    names: Sequence[Named], folder: Path, *, reuse: bool = False, notify: Notify = ignore
) -> Iterator[str | Path]:
    """Replaces `-` and pipes by files of their content, and texts in memory by a folder of files."""
    for name, file in _stream_files(names):
        if isinstance(name, InMemory):
            yield name.keep(folder / GIVEN, notify=notify)
        else:
            yield name if file is None else keep_stream(name, folder / file, reuse=reuse)


def _write(content: Any, folder: Path, notify: Notify) -> None:  # noqa: PLR0912  (each kind of thing in memory)
    num_rows: int | None = None
    if hasattr(content, "save_to_disk"):  # of the library datasets, which need not be installed
        if not any(len(part) for part in (content.values() if isinstance(content, Mapping) else [content])):
            raise CorpusError("the dataset is empty")
        with writing(folder):
            content.save_to_disk(folder)
    elif isinstance(content, Mapping):
        parts = "a dict maps the names of splits to texts, as in {'train': texts, 'validation': texts}, but"
        if not any(_PART_OF_WORD.get(str(name).lower()) == "train" for name in content):
            names = ", ".join(map(repr, content)) or "none"
            advice = "give columns as a table, such as pandas.DataFrame(...)"
            raise CorpusError(f"{parts} there is no train among {names}; {advice}")
        for name, part in content.items():
            if isinstance(part, str | int | float) or not str(name).replace("_", "").isalnum():
                raise CorpusError(f"{parts} {name!r} holds {type(part).__name__}; give rows as a list of dicts")
            with writing(inside := folder / str(name)):
                inside.mkdir()
            _write(part, inside, notify)
    elif hasattr(content, "__arrow_c_stream__") and hasattr(content, "columns"):
        num_rows, columns = 0, list(map(str, getattr(content, "column_names", content.columns)))
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise CorpusError(f"several columns of the table are called {twice[0]!r}; rename all but one")
        try:
            with (
                writing(file := folder / "rows.parquet"),
                pa.RecordBatchReader.from_stream(content) as batches,
                pq.ParquetWriter(file, batches.schema) as out,
            ):
                for batch in batches:
                    out.write_batch(batch)
                    num_rows += batch.num_rows
        except (pa.ArrowException, OverflowError) as error:
            what = f"the table cannot be stored ({shortened('; '.join(map(str, error.args)))})"
            way_out = "give each column values of one type, only the columns needed, or rows (dicts)"
            raise CorpusError(f"{what}; {way_out}") from error
    elif isinstance(content, str | bytes) or not (isinstance(content, Iterable) or hasattr(content, "__getitem__")):
        raise CorpusError(
            f"{type(content).__name__} cannot be read as text; give paths, or texts: a list or an iterator of strings "
            "or of rows (dicts), a table, or a dataset of datasets"
        )
    else:
        # Rows of an `IterableDataset` hold class numbers, and its features the class names.
        features = getattr(content, "features", None)
        features = features if isinstance(features, Mapping) else {}
        of_items = {name: getattr(feature, "feature", feature) for name, feature in features.items()}  # of a list's
        classes: dict[str, Any] = {name: getattr(each, "names", None) for name, each in of_items.items()}
        classes = {name: of_class for name, of_class in classes.items() if of_class}
        num_rows, file = 0, folder / "rows.jsonl"
        lines = (_json_line(row, number, classes) for number, row in enumerate(content, 1))
        while batch := list(itertools.islice(lines, ROWS_AT_ONCE)):  # not in `writing`: the user's iterator may raise
            with writing(file), file.open("ab") as out:
                out.writelines(batch)
            num_rows += len(batch)
            notify(Progress("reading", num_rows, None, "texts"))
    if num_rows == 0:
        raise CorpusError("it holds no text or no rows; an iterator can be read only once")


def _json_line(row: Any, number: int, classes: Mapping[str, Sequence[str]]) -> bytes:
    def named(value: Any, names: Sequence[str]) -> Any:
        if isinstance(value, list):
            return [named(each, names) for each in value]
        return value if not isinstance(value, int) else names[value] if value >= 0 else None

    if isinstance(row, str) or without_gaps(row) is None:
        row = {"text": row if isinstance(row, str) else None}
    elif not isinstance(row, Mapping):
        raise CorpusError(f"text {number} is {type(row).__name__}, neither a string nor a row (a dict)")
    else:
        row = {**row, **{name: named(row[name], names) for name, names in classes.items() if name in row}}

    def plain(value: Any) -> Any:
        # Converts numpy's arrays and numbers, and dates; other types, such as pictures, are not text.
        if hasattr(value, "tolist"):
            return value.tolist()
        return value.isoformat() if hasattr(value, "isoformat") else None

    try:
        return json.dumps(row, ensure_ascii=False, default=plain).encode() + b"\n"
    except UnicodeEncodeError:  # lone surrogates, which reading reports with the row's number
        return json.dumps(row, default=plain).encode() + b"\n"
