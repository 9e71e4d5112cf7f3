"""What came of the jobs, and the manifest that they add up to.

What came of a job: counts and shards, kept in a small file until the manifest is put together from all of them.

A part's file is written last, so a part that can be read is complete. It says which text, settings and tokenizer it
was made of, so that a preparation that goes on knows what it may keep.

The manifest, put together from the parts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import DataError
from unmask.files import file_sha256, write_atomically
from unmask.shards.manifest import Manifest, Split
from unmask.shards.store import ShardFile
from unmask.text.corpus import Corpus
from unmask.text.near_duplicates import NearDuplicates
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.word_starts import WordCensus

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
        content = json.loads(part_file(root, number).read_text(encoding="utf-8"))
        for name in ("train", "validation"):
            split = content[name]
            split["shard"] = None if split["shard"] is None else ShardFile(**split["shard"])
            content[name] = SplitPart(**split)
        return JobPart(**{**content, "frequencies": tuple(content["frequencies"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


log = logging.getLogger(__name__)


class _SplitLedger:
    """Adds up one split."""

    def __init__(self) -> None:
        self.documents = self.bytes = self.unknown_tokens = 0
        self.files: list[ShardFile] = []
        self._last_document: int | None = None

    def add(self, part: SplitPart) -> None:
        if part.shard is None:
            return
        self.documents += part.documents - (part.first_document == self._last_document)  # it spans two jobs
        self._last_document = part.last_document
        self.bytes += part.bytes
        self.unknown_tokens += part.unknown_tokens
        self.files.append(part.shard)

    def split(self) -> Split:
        return Split(
            documents=self.documents,
            pieces=sum(file.pieces for file in self.files),
            bytes=self.bytes,
            tokens=sum(file.tokens for file in self.files),
            unknown_tokens=self.unknown_tokens,
            files=tuple(self.files),
        )


def put_together(
    root: Path,
    num_parts: int,
    *,
    corpus: Corpus,
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    labels: Mapping[str, tuple[str, ...]],
    classes: Sequence[str] | None = None,
    near_duplicates: NearDuplicates | None = None,
) -> Manifest:
    """Adds up the parts of a corpus that was gone through to its end.

    Args:
        root: The data folder.
        num_parts: How many jobs there were; the part of each is there.
        corpus: For its sources, its plan, and what its last pass left out.
        tokenizer: The one the parts were made with.
        settings: For the manifest.
        labels: Of each column of annotation.
        classes: Names of the documents' classes; None where none are read.
        near_duplicates: What of the held-out text nearly stands in the training text.

    Raises:
        DataError: A part is missing or damaged, because somebody else changed the folder.
    """
    train, validation = _SplitLedger(), _SplitLedger()
    frequencies = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    census = WordCensus()
    documents = num_bytes = without_tokens = 0
    spans = dict.fromkeys(labels, (0, 0))
    per_class = np.zeros(1 + len(classes or ()), dtype=np.int64)
    for number in range(num_parts):
        part = load_part(root, number)
        if part is None:
            raise DataError(f"{part_file(root, number)}: was changed by somebody else; run the same command again")
        train.add(part.train)
        validation.add(part.validation)
        # Of their type also where a job is all held out, and the lists are empty.
        ids, counts = (np.array(values, dtype=np.int64) for values in part.frequencies)
        frequencies[ids] += counts
        census.texts += part.texts
        census.single_words += part.single_words
        documents = part.last_document + 1
        num_bytes += part.bytes
        without_tokens += part.without_tokens
        per_class[: len(part.labels)] += np.array(part.labels, dtype=np.int64)
        spans = {c: (all_ + part.spans[c][0], lost + part.spans[c][1]) for c, (all_, lost) in spans.items()}
    _tell_of_words(census)
    skipped = dict(corpus.skipped) | ({"documents without tokens": without_tokens} if without_tokens else {})
    splits = train.split(), validation.split()
    return Manifest(
        sources=tuple({"path": str(s.path), "bytes": s.path.stat().st_size} for s in corpus.all_sources()),
        settings=settings,
        plan=corpus.describe(),
        tokenizer_sha256=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        documents=documents,
        bytes=num_bytes,
        tokens=sum(split.tokens for split in splits),
        skipped=skipped,
        overlap=0 if near_duplicates is None else near_duplicates.equal,
        train=splits[0],
        validation=splits[1],
        token_frequencies=tuple(frequencies.tolist()),
        annotations=dict(labels),
        spans=dict(spans),
        labels=dict(zip(classes or (), per_class[1:].tolist(), strict=True)),
        unlabelled=int(per_class[0]),
        near_duplicates=near_duplicates,
    )


def _tell_of_words(census: WordCensus) -> None:
    if census.without_words:
        log.warning(
            "%s of %s texts are a single word each, so masking by words would hide whole texts: use --strategy random",
            f"{census.single_words:,}",
            f"{census.texts:,}",
        )
