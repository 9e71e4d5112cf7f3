"""The manifest, put together from the parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import DataError
from unmask.shards.job_parts import SplitPart, load_part, part_file
from unmask.shards.manifest import Manifest, Split
from unmask.shards.store import ShardFile
from unmask.text.corpus import Corpus
from unmask.text.near_duplicates import NearDuplicates
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.word_starts import WordCensus

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
