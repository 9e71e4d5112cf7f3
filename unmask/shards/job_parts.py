"""What came of a job: counts and shards, kept in a small file until the manifest is put together from all of them.

A part's file is written last, so a part that can be read is complete. It says which text, settings and tokenizer it
was made of, so that a preparation that goes on knows what it may keep.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

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
        number: Of the job.
        content_hash: Of the job's content.
        made_by: Fingerprint of settings, tokenizer and libraries.
        last_document: Number of the last document, whether it has tokens or not.
        bytes: UTF-8 bytes of the text, that of pieces without tokens included.
        without_tokens: Pieces that the tokenizer made nothing of.
        texts: Pieces of more than one token.
        single_words: Those of them that are one word.
        train: The training split.
        validation: The held-out split.
        frequencies: Token ids of the training split, and how often each stands there.
        spans: By column of annotation: how many spans there were, and to how many of them no token belongs.
        labels: How many documents begin here without a class, and with each class; empty where none are read.
    """

    number: int
    content_hash: str
    made_by: str
    last_document: int
    bytes: int
    without_tokens: int
    texts: int
    single_words: int
    train: SplitPart
    validation: SplitPart
    frequencies: tuple[list[int], list[int]]
    spans: dict[str, list[int]] = field(default_factory=dict)
    labels: list[int] = field(default_factory=list)

    @property
    def shards(self) -> list[ShardFile]:
        """Of both splits."""
        return [split.shard for split in (self.train, self.validation) if split.shard is not None]

    def save(self, root: Path) -> None:
        """Writes the part's file; its shards must be there.

        Raises:
            OSError: It cannot be written.
        """
        # Not dataclasses.asdict, which copies the frequencies one by one.
        write_atomically(part_file(root, self.number), json.dumps(vars(self), default=vars))

    def is_whole(self, root: Path) -> bool:
        """Whether its shards are there and fit their checksums: a power failure may have cost a file its name."""
        return all((root / s.name).is_file() and file_sha256(root / s.name) == s.sha256 for s in self.shards)


def part_file(root: Path, number: int) -> Path:
    """Where the part of a job stands."""
    return root / PARTS / f"{number:05d}.json"


def load_part(root: Path, number: int) -> JobPart | None:
    """Reads a part; None where there is none, or none that this version can read (it is then made anew)."""
    try:
        content = parse_json(part_file(root, number).read_text(encoding="utf-8"))
        for name in ("train", "validation"):
            split = content[name]
            split["shard"] = None if split["shard"] is None else ShardFile(**split["shard"])
            content[name] = SplitPart(**split)
        return JobPart(**{**content, "frequencies": tuple(content["frequencies"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
