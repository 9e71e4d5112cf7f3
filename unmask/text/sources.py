"""What the user names, as files that can be read: files, folders, patterns, folders that `datasets` wrote.

A folder may hold a dataset whose files say by their names what they are for, as on the hub:

    README.md                            the card, which is no text
    data/train-00000-of-00002.parquet    trained on
    data/validation-00000-of-00001.parquet    held out
    data/test-00000-of-00001.parquet     not read
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from unmask.errors import CorpusError
from unmask.files import absence
from unmask.text.json_rows import holds_rows
from unmask.text.reading import COMPRESSIONS, Stretch, bare_suffix
from unmask.values import parse_json

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
