"""Text to token shards: one pass over the corpus, in bounded memory.

The folder that comes out:

    manifest.json           written last: a folder with a manifest is complete
    tokenizer/              tokenizer.json and what transformers wants beside it
    train/00000.arrow ...   token shards (see `unmask.tokens.shards`)
    validation/00000.arrow ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from unmask.corpus.documents import TextPiece, read_documents
from unmask.corpus.settings import CorpusSettings
from unmask.corpus.survey import Plan, plan_corpus, split_validation
from unmask.tokens.bpe import train_bpe
from unmask.tokens.chars import train_chars
from unmask.tokens.letters import Texts
from unmask.tokens.manifest import Manifest, Split
from unmask.tokens.settings import TokenizerSettings
from unmask.tokens.shards import ShardWriter, TokenPiece
from unmask.tokens.tokenizer import Tokenizer, load_tokenizer
from unmask.tokens.unigram import train_unigram
from unmask.tokens.wordpiece import default_vocab_size, train_wordpiece
from unmask.tokens.words import WordCensus

log = logging.getLogger(__name__)

BATCH_CHARS = 1 << 20
# Written into the tokenizer that stands beside the data; a model writes its own length.
ANY_LENGTH = int(1e9)

Notify = Callable[[str, int, int | None], None]
"""Called with what is being done, bytes of text done, and bytes of text there are (None where it is not known)."""


def prepare(
    paths: Sequence[Path],
    out: Path,
    *,
    corpus: CorpusSettings,
    tokenizer: TokenizerSettings,
    notify: Notify = lambda what, done, total: None,
) -> Manifest:
    """Tokenizes a corpus into shards.

    Args:
        paths: Text files.
        out: The data folder; made where missing, files of an earlier try are replaced.
        corpus: What a document is and how much is held out.
        tokenizer: Which tokenizer is used or trained.
        notify: Told of the progress.

    Raises:
        CorpusError: A file cannot be read, or there is too little text.
        TokenizerError: The tokenizer cannot be used, or not be trained with these settings.
    """
    plan = plan_corpus(paths, corpus)
    log.info("corpus: %s", plan.describe())
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
    total = None if any(path.suffix == ".gz" for path in paths) else sum(path.stat().st_size for path in paths)
    ready = _obtain_tokenizer(paths, plan, tokenizer, lambda what, done: notify(what, done, total))
    folder = out / "tokenizer"
    folder.mkdir(exist_ok=True)
    ready.save(folder, max_length=ANY_LENGTH)
    settings = {"corpus": corpus.model_dump(), "tokenizer": tokenizer.model_dump()}
    manifest = _write_shards(
        paths,
        out,
        plan=plan,
        tokenizer=ready,
        settings=settings,
        notify=lambda what, done: notify(what, done, total),
    )
    manifest.save(out)
    log.info(
        "prepared %s documents, %s bytes, %s tokens (%.2f bytes a token)",
        f"{manifest.documents:,}",
        f"{manifest.bytes:,}",
        f"{manifest.tokens:,}",
        manifest.bytes / manifest.tokens,
    )
    return manifest


def _obtain_tokenizer(
    paths: Sequence[Path], plan: Plan, settings: TokenizerSettings, notify: Callable[[str, int], None]
) -> Tokenizer:
    """Loads the tokenizer, or trains it on the training text alone."""
    if settings.path is not None:
        return load_tokenizer(Path(settings.path))
    num_bytes = 0

    def texts() -> Iterator[str]:
        nonlocal num_bytes
        num_bytes = 0
        for piece, held in split_validation(_read(paths, plan), plan):
            if not held:
                num_bytes += len(piece.text.encode())
                notify("reading words for the tokenizer", num_bytes)
                yield piece.text

    vocab_size = settings.vocab_size
    if vocab_size is None and settings.kind != "char":
        for _ in texts():
            pass
        vocab_size = default_vocab_size(num_bytes)
        log.info("tokenizer: a vocabulary of %s entries for %s bytes of text", f"{vocab_size:,}", f"{num_bytes:,}")
    return Tokenizer(_TRAINERS[settings.kind](texts, vocab_size, settings))


def _sized(vocab_size: int | None) -> int:
    assert vocab_size is not None  # the size is chosen above for all kinds that need one
    return vocab_size


_TRAINERS: dict[str, Callable[[Texts, int | None, TokenizerSettings], tokenizers.Tokenizer]] = {
    "wordpiece": lambda texts, size, s: train_wordpiece(texts, vocab_size=_sized(size), lowercase=s.lowercase),
    "bpe": lambda texts, size, s: train_bpe(
        texts, vocab_size=_sized(size), lowercase=s.lowercase, add_prefix_space=bool(s.add_prefix_space)
    ),
    "unigram": lambda texts, size, s: train_unigram(texts, vocab_size=_sized(size), lowercase=s.lowercase),
    "char": lambda texts, size, s: train_chars(texts, vocab_size=size, lowercase=s.lowercase),
}


def _read(paths: Sequence[Path], plan: Plan) -> Iterator[TextPiece]:
    return read_documents(paths, plan.unit, piece_chars=plan.piece_chars)


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
            unknown_tokens=int(self.frequencies[self.unknown_id]),
            files=tuple(self.writer.files),
        )


def _write_shards(
    paths: Sequence[Path],
    out: Path,
    *,
    plan: Plan,
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    notify: Callable[[str, int], None],
) -> Manifest:
    num_bytes = documents = without_tokens = 0
    census = WordCensus()
    with (
        ShardWriter(out, "train", vocab_size=tokenizer.vocab_size) as train_writer,
        ShardWriter(out, "validation", vocab_size=tokenizer.vocab_size) as validation_writer,
    ):
        train, validation = (_SplitCounter(w, tokenizer) for w in (train_writer, validation_writer))
        for batch in _batches(split_validation(_read(paths, plan), plan)):
            encoded = tokenizer.encode_corpus([piece.text for piece, _ in batch])
            rows: dict[bool, list[TokenPiece]] = {False: [], True: []}
            for (piece, held), tokens in zip(batch, encoded, strict=True):
                size = len(piece.text.encode())
                num_bytes += size
                documents = piece.document + 1
                if len(tokens.input_ids) == 0:
                    without_tokens += 1
                    continue
                census.add(tokens.word_starts)
                row = TokenPiece(tokens.input_ids, tokens.word_starts, piece.document, piece.offset, size)
                rows[held].append(row)
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
        sources=tuple({"path": str(path), "bytes": path.stat().st_size} for path in paths),
        settings=settings,
        plan=plan.describe(),
        tokenizer_sha256=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        documents=documents,
        bytes=num_bytes,
        tokens=sum(part.tokens for part in parts),
        skipped={"without tokens": without_tokens} if without_tokens else {},
        train=parts[0],
        validation=parts[1],
        token_frequencies=tuple(train.frequencies.tolist()),
    )


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
