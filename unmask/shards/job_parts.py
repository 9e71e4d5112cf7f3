"""What came of a job: counts and shards, kept in small files until the manifest is put together from all of them.

    parts/00003-00012.npy     how often each token stands in the training text of job 12 of task 3
    parts/00003-00012.json    all else; written last, so a part that can be read is complete

It says which text, settings and tokenizer it was made of, so that a preparation that goes on knows what it may keep.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.files import file_sha256, write_atomically
from unmask.shards.store import ShardFile
from unmask.values import parse_json

PARTS = "parts"


@dataclass(frozen=True)
class SplitPart:
    """What of a job went into one split.

    Attributes:
        documents: Documents with tokens; one that spans jobs is counted in each, see `first_document`.
        first_document: Number of the first of them, None where there are none.
        last_document: Number of the last.
        bytes: UTF-8 bytes of the text.
        unknown_tokens: Tokens that stand for text outside the vocabulary.
        shard: None where there are no rows.
    """

    documents: int = 0
    first_document: int | None = None
    last_document: int | None = None
    bytes: int = 0
    unknown_tokens: int = 0
    shard: ShardFile | None = None


@dataclass(frozen=True)
class JobPart:
    """The result of a job.

    Attributes:
        name: Of the job.
        content_hash: Of the job's content.
        made_by: Fingerprint of settings, tokenizer and libraries.
        bytes: UTF-8 bytes of the text, that of pieces without tokens included.
        without_tokens: Pieces that the tokenizer made nothing of.
        texts: Pieces of more than one token.
        single_words: Those of them that are one word.
        train: The training split.
        validation: The held-out split.
        spans: By column of annotation: how many spans there were, and to how many of them no token belongs.
        labels: How many documents begin here without a class, and with each class; empty where none are read.
    """

    name: str
    content_hash: str
    made_by: str
    bytes: int
    without_tokens: int
    texts: int
    single_words: int
    train: SplitPart
    validation: SplitPart
    spans: dict[str, list[int]] = field(default_factory=dict)
    labels: list[int] = field(default_factory=list)

    @property
    def shards(self) -> list[ShardFile]:
        """Of both splits."""
        return [split.shard for split in (self.train, self.validation) if split.shard is not None]

    def save(self, root: Path, counts: NDArray[np.int64]) -> None:
        """Writes the part's files; its shards must be there.

        Args:
            root: The data folder.
            counts: [vocab_size]: how often each token stands in the training split.

        Raises:
            OSError: They cannot be written.
        """
        used = np.flatnonzero(counts)
        write_atomically(root / PARTS / f"{self.name}.npy", npy_bytes(np.stack([used, counts[used]])))
        write_atomically(part_file(root, self.name), json.dumps(vars(self), default=vars))

    def is_whole(self, root: Path) -> bool:
        """Whether its shards are there and fit their checksums: a power failure may have cost a file its name."""
        return all((root / s.name).is_file() and file_sha256(root / s.name) == s.sha256 for s in self.shards)


def part_file(root: Path, name: str) -> Path:
    """Where the part of a job stands."""
    return root / PARTS / f"{name}.json"


def load_part(root: Path, name: str) -> JobPart | None:
    """Reads a part; None where there is none, or none that this version can read (it is then made anew)."""
    try:
        content = parse_json(part_file(root, name).read_text(encoding="utf-8"))
        for split_name in ("train", "validation"):
            split = content[split_name]
            split["shard"] = None if split["shard"] is None else ShardFile(**split["shard"])
            content[split_name] = SplitPart(**split)
        return JobPart(**content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def add_frequencies(counts: NDArray[np.int64], root: Path, name: str) -> None:
    """Adds what a part, or a whole task, has counted.

    Args:
        counts: [vocab_size], changed in place.
        root: The data folder.
        name: Of the job or task.

    Raises:
        OSError, ValueError: The file is missing or damaged.
    """
    used, found = np.load(root / PARTS / f"{name}.npy", allow_pickle=False)
    counts[used] += found


def npy_bytes(array: NDArray[Any]) -> bytes:
    """An array as the bytes of a file of numpy's."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
