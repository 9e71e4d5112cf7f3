"""The manifest of prepared data: a ledger of what went in, what came out, and how to check it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import DataError
from unmask.files import file_sha256, write_atomically
from unmask.shards.store import ShardFile
from unmask.text.near_duplicates import LeftOutPair, NearDuplicates, from_plain
from unmask.values import parse_json

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True)
class Split:
    """The training or the validation part.

    Attributes:
        documents: Documents with text in this split (a document that is held out in parts counts in both).
        pieces: Rows of the shards.
        bytes: UTF-8 bytes of the text.
        tokens: Tokens, without special tokens.
        unknown_tokens: Tokens that stand for text outside the vocabulary.
        files: The shards.
    """

    documents: int
    pieces: int
    bytes: int
    tokens: int
    unknown_tokens: int
    files: tuple[ShardFile, ...]


@dataclass(frozen=True)
class Manifest:
    """What a data folder holds.

    Attributes:
        sources: The files it was made from: path, size in bytes.
        settings: The settings that shaped it.
        plan: How documents were told apart and held out, in words.
        tokenizer_sha256: Fingerprint of the tokenizer, which stands beside it in `tokenizer/`.
        vocab_size: Number of ids.
        documents: Documents in the sources.
        bytes: UTF-8 bytes of their text.
        tokens: Tokens of both splits.
        skipped: What was left out: reason to number of documents. Empty when nothing was.
        overlap: Held-out documents, or parts, that are equal to a training text: `near_duplicates.equal`.
        train: The training split.
        validation: The held-out split.
        token_frequencies: [vocab_size]: how often each id stands in the training split.
        annotations: By column of annotation, its labels, in the order of their numbers from 1 on.
        spans: By column of annotation: how many spans there were, and to how many of them no token belongs.
        labels: Names of the documents' classes in the order of their numbers from 0 on, and how many documents each
            has; empty where none were asked for.
        unlabelled: Documents without a class, where classes were asked for.
        near_duplicates: What of the held-out text nearly stands in the training text; None in data that was made
            before this was looked at.
        left_out: Some near-duplicates that were left out, each with the earlier text that stays.
    """

    sources: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    plan: str
    tokenizer_sha256: str
    vocab_size: int
    documents: int
    bytes: int
    tokens: int
    skipped: dict[str, int]
    overlap: int
    train: Split
    validation: Split
    token_frequencies: tuple[int, ...]
    annotations: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)
    unlabelled: int = 0
    near_duplicates: NearDuplicates | None = None
    left_out: tuple[LeftOutPair, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal data has equal fingerprints, wherever it lies."""
        files = [file.sha256 for split in (self.train, self.validation) for file in split.files]
        # Numbers in the shards mean nothing without them.
        labels: list[Any] = [self.annotations] if self.annotations else []
        labels += [list(self.labels)] if self.labels else []
        return hashlib.sha256(json.dumps([VERSION, self.tokenizer_sha256, files, *labels]).encode()).hexdigest()

    def save(self, root: Path) -> None:
        """Writes `manifest.json`, last of all files: a folder with a manifest is complete."""
        content = {"version": VERSION, "fingerprint": self.fingerprint, **dataclasses.asdict(self)}
        content["near_duplicates"] = self.near_duplicates and self.near_duplicates.plain()
        write_atomically(root / MANIFEST, json.dumps(content, indent=1) + "\n")


def load_manifest(root: Path) -> Manifest:
    """Reads the manifest of a data folder.

    Raises:
        DataError: There is none, or it is damaged or of another version.
    """
    file = root / MANIFEST
    if not file.is_file():
        raise DataError(f"{root}: there is no {MANIFEST}; make the folder with `unmask prepare`")
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if content.pop("version") != VERSION:
            raise DataError(f"{file}: made by another version of unmask; prepare the data again")
        fingerprint = content.pop("fingerprint")
        for name in ("train", "validation"):
            split = content[name]
            split["files"] = tuple(ShardFile(**entry) for entry in split["files"])
            content[name] = Split(**split)
        for name in ("sources", "token_frequencies"):
            content[name] = tuple(content[name])
        for name in ("annotations", "spans"):
            content[name] = {column: tuple(values) for column, values in content.get(name, {}).items()}
        content["left_out"] = tuple(LeftOutPair(*pair) for pair in content.get("left_out", ()))
        if content.get("near_duplicates") is not None:
            content["near_duplicates"] = from_plain(content["near_duplicates"])
        manifest = Manifest(**content)
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{file}: damaged ({error!r}); prepare the data again") from error
    if manifest.fingerprint != fingerprint:
        raise DataError(f"{file}: its fingerprint does not fit its content; prepare the data again")
    return manifest


def verify_files(root: Path, manifest: Manifest) -> None:
    """Checks every shard against its checksum.

    Raises:
        DataError: A file is missing or changed.
    """
    for split in (manifest.train, manifest.validation):
        for entry in split.files:
            check_file(root, entry)


def check_file(root: Path, entry: ShardFile) -> None:
    """Checks a shard against its checksum.

    Raises:
        DataError: It is missing or changed.
    """
    check_is_there(root, entry)
    path = root / entry.name
    try:
        is_same = file_sha256(path) == entry.sha256
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); prepare the data again") from error
    if not is_same:
        raise DataError(f"{path}: its content does not fit the checksum; prepare the data again")


def check_is_there(root: Path, entry: ShardFile) -> None:
    """Makes sure that a shard is where the manifest says.

    Raises:
        DataError: It is not.
    """
    path = root / entry.name
    if not path.is_file():
        raise DataError(f"{path}: the manifest lists this file, but it is not there; prepare the data again")
