"""Embedding all texts of a file, of any size, into a file of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.corpus.texts import NamedText, TextFile
from unmask.errors import CorpusError
from unmask.inference.embed import EmbedSettings, embed_texts
from unmask.inference.model import Model
from unmask.inference.vector_files import Writing

PART_TEXTS = 8192
PART_CHARS = 1 << 22


@dataclass(frozen=True)
class EmbedReport:
    """What was done.

    Attributes:
        texts: How many vectors there are.
        tokens: Of the texts, without special tokens and without what was cut off.
        long_texts: Texts that were longer than the model.
    """

    texts: int
    tokens: int
    long_texts: int


def embed_file(
    model: Model, file: TextFile, out: Path, settings: EmbedSettings, *, notify: Callable[[int], None]
) -> EmbedReport:
    """Embeds the texts of a file, some thousands at a time.

    Args:
        model: Any.
        file: The texts.
        out: A .npy or .parquet file; replaced where it is there.
        settings: How embeddings are made.
        notify: Is told the characters of each part of the texts that is done.

    Raises:
        UnmaskError: As `TextFile.read`, `embed_texts` and the writer; or a text follows an empty one, and `out` keeps
            no ids, so that its rows would not be those of the file. Nothing is left behind then.
    """
    num_texts = num_tokens = num_long = 0
    with Writing(out, model.network.config.hidden_size) as writer:
        for part in parts(file.read() if writer.keeps_ids else _without_gaps(file)):
            names = [f"{file.source.path}: text {text.id!r}" for text in part]
            done = embed_texts(model.network, model.tokenizer, [text.text for text in part], settings, names=names)
            try:
                writer.add([text.id for text in part], done.vectors)
            except CorpusError as error:
                raise CorpusError(f"{file.source.path}: {error}") from error
            num_texts += len(part)
            num_tokens += done.num_tokens
            num_long += done.num_long
            notify(sum(len(text.text) for text in part))
    return EmbedReport(num_texts, num_tokens, num_long)


def _without_gaps(file: TextFile) -> Iterator[NamedText]:
    """The texts, as long as none was passed over before one; at the end of the file some may be."""
    for text in file.read():
        if file.first_skipped is not None:
            raise CorpusError(
                f"{file.source.path}: {file.first_skipped} has no text, and others follow it, so rows of a .npy file, "
                "which keeps no ids, would not be those of this file; give --out a .parquet file, which keeps them, or "
                "take the empty ones out"
            )
        yield text


def parts(texts: Iterable[NamedText]) -> Iterator[list[NamedText]]:
    """Groups of texts that fit into memory and are enough to be packed well."""
    part: list[NamedText] = []
    num_chars = 0
    for text in texts:
        part.append(text)
        num_chars += len(text.text)
        if len(part) >= PART_TEXTS or num_chars >= PART_CHARS:
            yield part
            part, num_chars = [], 0
    if part:
        yield part
