"""Text to token shards: one pass over the corpus, in bounded memory.

The folder that comes out:

    manifest.json           written last: a folder with a manifest is complete
    tokenizer/              tokenizer.json and what transformers wants beside it
    train/00000.arrow ...   token shards (see `unmask.tokens.shards`)
    validation/00000.arrow ...
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.corpus.corpus import Corpus
from unmask.corpus.documents import TextPiece
from unmask.corpus.settings import CorpusSettings
from unmask.corpus.sources import keep_stdin
from unmask.errors import DataError
from unmask.tokens.manifest import MANIFEST, Manifest, Split
from unmask.tokens.settings import TokenizerSettings
from unmask.tokens.shards import ShardWriter, TokenPiece
from unmask.tokens.tokenizer import Tokenizer, load_tokenizer
from unmask.tokens.training import train_tokenizer
from unmask.tokens.words import WordCensus

log = logging.getLogger(__name__)

BATCH_CHARS = 1 << 20
TRAIN, VALIDATION = "train", "validation"
MOST_UNKNOWN = 0.5
# Written into the tokenizer that stands beside the data; a model writes its own length.
ANY_LENGTH = int(1e9)

Notify = Callable[[str, int, int | None], None]
"""Called with what is being done, bytes of text done, and bytes of text there are (None where it is not known)."""


def prepare(
    paths: Sequence[str | Path],
    out: Path,
    *,
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    notify: Notify = lambda what, done, total: None,
) -> Manifest:
    """Tokenizes a corpus into shards.

    Args:
        paths: Files, folders or patterns; `-` is standard input.
        out: The data folder; made where missing, files of an earlier try are replaced.
        corpus: What a document is, what is cleaned, and how much is held out.
        tokenizer: Which tokenizer is used or trained.
        notify: Told of the progress.

    Raises:
        CorpusError: A file cannot be read, or there is too little text.
        TokenizerError: The tokenizer cannot be used, or not be trained with these settings.
        DataError: The tokenizer does not know most of the text, or the folder is a file.
    """
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; --out takes a folder")
    settings = preparation_settings(paths, corpus, tokenizer)
    opened = Corpus(list(keep_stdin(paths, out)), corpus)
    log.info("corpus: %s", opened.plan.describe())
    total = opened.num_bytes
    ready = _obtain_tokenizer(opened, tokenizer, lambda what, done: notify(what, done, total))
    # Only now is anything touched that an earlier try has left.
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)
    for name in (TRAIN, VALIDATION):
        shutil.rmtree(out / name, ignore_errors=True)
    folder = out / "tokenizer"
    folder.mkdir(exist_ok=True)
    ready.save(folder, max_length=ANY_LENGTH)
    manifest = _write_shards(
        opened,
        out,
        tokenizer=ready,
        settings=settings,
        notify=lambda what, done: notify(what, done, total),
    )
    unknown = manifest.train.unknown_tokens + manifest.validation.unknown_tokens
    if manifest.tokens == 0 or unknown > MOST_UNKNOWN * manifest.tokens:
        raise DataError(
            f"{unknown:,} of {manifest.tokens:,} tokens are unknown to the tokenizer: it does not fit this text "
            "(a WordPiece tokenizer takes no words of over 100 letters); give another with --tokenizer"
        )
    manifest.save(out)
    return manifest


def preparation_settings(
    paths: Sequence[str | Path], corpus: CorpusSettings, tokenizer: TokenizerSettings
) -> dict[str, Any]:
    """What shapes the data, as the manifest keeps it: sources and settings."""
    return {
        "sources": [str(path) for path in paths],
        "corpus": corpus.model_dump(mode="json"),
        "tokenizer": tokenizer.model_dump(mode="json"),
    }


def _obtain_tokenizer(corpus: Corpus, settings: TokenizerSettings, notify: Callable[[str, int], None]) -> Tokenizer:
    """Loads the tokenizer, or trains it on the training text alone."""
    if settings.path is not None:
        return load_tokenizer(Path(settings.path))
    num_bytes = 0

    def texts() -> Iterator[str]:
        nonlocal num_bytes
        num_bytes = 0
        for piece, held in corpus.pieces():
            if not held or settings.bare:
                num_bytes += len(piece.text.encode())
                notify("reading words for the tokenizer", num_bytes)
                yield piece.text

    return train_tokenizer(texts, settings)


class _SplitCounter:
    """Counts what goes into one split."""

    def __init__(self, writer: ShardWriter, tokenizer: Tokenizer) -> None:
        self.writer = writer
        self.unknown_id = tokenizer.special.unk
        self.frequencies = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self.documents = self.pieces = self.bytes = 0
        self._last_document = -1

    def write(self, pieces: Sequence[TokenPiece]) -> None:
        self.writer.write(pieces)
        for piece in pieces:
            self.documents += piece.document != self._last_document
            self._last_document = piece.document
            self.bytes += piece.num_bytes
            self.pieces += 1
        if pieces:
            ids = np.concatenate([piece.input_ids for piece in pieces])
            self.frequencies += np.bincount(ids, minlength=len(self.frequencies))

    def split(self) -> Split:
        return Split(
            documents=self.documents,
            pieces=self.pieces,
            bytes=self.bytes,
            tokens=int(self.frequencies.sum()),
            unknown_tokens=0 if self.unknown_id is None else int(self.frequencies[self.unknown_id]),
            files=tuple(self.writer.files),
        )


def _write_shards(
    corpus: Corpus,
    out: Path,
    *,
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    notify: Callable[[str, int], None],
) -> Manifest:
    num_bytes = documents = 0
    census = WordCensus()
    with (
        ShardWriter(out, TRAIN, vocab_size=tokenizer.vocab_size) as train_writer,
        ShardWriter(out, VALIDATION, vocab_size=tokenizer.vocab_size) as validation_writer,
    ):
        train, validation = (_SplitCounter(w, tokenizer) for w in (train_writer, validation_writer))
        for batch in _batches(corpus.pieces()):
            rows: dict[bool, list[TokenPiece]] = {False: [], True: []}
            tokenized = _tokenize([piece for piece, _ in batch], tokenizer)
            for (piece, held), row in zip(batch, tokenized, strict=True):
                num_bytes += row.num_bytes
                documents = piece.document + 1
                if len(row.input_ids):
                    rows[held].append(row)
                    census.add(row.word_starts)
                else:
                    corpus.skipped["documents without tokens"] += 1
            train.write(rows[False])
            validation.write(rows[True])
            notify("tokenizing", num_bytes)
    if census.without_words:
        log.warning(
            "%s of %s texts are a single word each, so masking by words would hide whole texts: use --strategy random",
            f"{census.single_words:,}",
            f"{census.texts:,}",
        )
    parts = train.split(), validation.split()
    return Manifest(
        sources=tuple({"path": str(s.path), "bytes": s.path.stat().st_size} for s in corpus.all_sources()),
        settings=settings,
        plan=corpus.plan.describe(),
        tokenizer_sha256=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        documents=documents,
        bytes=num_bytes,
        tokens=sum(part.tokens for part in parts),
        skipped=dict(corpus.skipped),
        overlap=corpus.overlap,
        train=parts[0],
        validation=parts[1],
        token_frequencies=tuple(train.frequencies.tolist()),
    )


def _tokenize(pieces: Sequence[TextPiece], tokenizer: Tokenizer) -> list[TokenPiece]:
    encoded = tokenizer.encode_corpus([piece.text for piece in pieces])
    return [
        TokenPiece(tokens.input_ids, tokens.word_starts, piece.document, piece.offset, len(piece.text.encode()))
        for piece, tokens in zip(pieces, encoded, strict=True)
    ]


def write_split(corpus: Corpus, out: Path, tokenizer: Tokenizer) -> list[Path]:
    """Tokenizes a corpus into shards without a manifest, for something that is thrown away.

    Returns:
        The shards.

    Raises:
        DataError: There is no text in it.
    """
    with ShardWriter(out, TRAIN, vocab_size=tokenizer.vocab_size) as writer:
        for batch in _batches(corpus.pieces()):
            writer.write([row for row in _tokenize([piece for piece, _ in batch], tokenizer) if len(row.input_ids)])
    if not writer.files:
        raise DataError(f"{', '.join(str(source.path) for source in corpus.sources)}: there is no text in it")
    return [out / file.name for file in writer.files]


def _batches(pieces: Iterable[tuple[TextPiece, bool]]) -> Iterator[list[tuple[TextPiece, bool]]]:
    group: list[tuple[TextPiece, bool]] = []
    num_chars = 0
    for piece, held in pieces:
        group.append((piece, held))
        num_chars += len(piece.text)
        if num_chars >= BATCH_CHARS:
            yield group
            group, num_chars = [], 0
    if group:
        yield group
