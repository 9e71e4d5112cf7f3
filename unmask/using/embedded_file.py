"""Embedding all texts of a file, of any size, into a file of vectors; as a verb, too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.addresses import address_of
from unmask.errors import CorpusError
from unmask.folders.layout_names import Pooling
from unmask.notebook import usual_notify
from unmask.progress import Notify, Progress
from unmask.results import Result, Shown
from unmask.staged import staged_file
from unmask.text.pipes import readable
from unmask.text.sources import TextColumn
from unmask.text.table_rows import AskedColumn
from unmask.text.text_file import NamedText, TextFile
from unmask.training.hardware import choose_device, keep_freed_memory
from unmask.using.embedding import EmbedSettings, LongTexts, embed_texts
from unmask.using.loaded_model import Model, Precision, load
from unmask.using.vector_files import Writing, check_out

log = logging.getLogger("unmask")
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


class EmbeddedFile(Result):
    """A file of vectors.

    Attributes:
        out: The file.
        dimension: Of a vector.
        pooling, normalize: How they were made.
        texts, tokens, long_texts: As in `EmbedReport`.
        skipped: What was passed over, and how often.
        seconds: That it took.
        column, id_column: Where texts and their ids stood; None where the file has no columns.
    """

    out: str
    dimension: int
    pooling: Pooling
    normalize: bool
    texts: int
    tokens: int
    long_texts: int
    skipped: dict[str, int]
    seconds: float
    column: TextColumn | None
    id_column: str | None

    def shown(self) -> Iterator[Shown]:
        """A line."""
        yield (
            f"{self.texts:,} texts, {self.tokens:,} tokens, {self.texts / self.seconds:,.0f} texts a second; "
            f"vectors of {self.dimension} in {self.out}"
        )


def embed(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path | Model,
    file: str | Path,
    *,
    out: str | Path,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    long_texts: LongTexts = "error",
    column: AskedColumn = None,
    id_column: str | None = None,
    precision: Precision = "float32",
    strict: bool = False,
    overwrite: bool = False,
    note: Callable[[str], None] = log.info,
    notify: Notify | None = None,
) -> EmbeddedFile:
    """Embeds the texts of a file; `Model.embed` does so for texts in memory.

    Args:
        model: A model, its folder, or its name on the hub.
        file: Text, a text a line; or a table, or any other kind that is read. Also `-`, standard input, or a pipe: of
            lines.
        out: A .npy file; or .parquet, which holds ids. Also at an address.
        pooling, normalize, long_texts: As for `Model.embed_settings`.
        column, id_column: Of a table; None: found. The text may be in several columns, or within one (`content.text`).
        precision, strict: As for `load`.
        overwrite: Whether `out` is replaced.
        note: Told what was decided, in lines.
        notify: Told of the progress (`Progress`: what is done, how much, of how much, in which unit).

    Raises:
        UnmaskError: As `load`, `Model.embed_settings`, `TextFile`, `check_out` and `embed_file`.
    """
    with staged_file(out, overwrite=overwrite) as target:
        check_out(target, overwrite=overwrite)
        loaded = model if isinstance(model, Model) else load(model, precision=precision, strict=strict)
        how = loaded.embed_settings(pooling=pooling, normalize=normalize, long_texts=long_texts)
        loaded.to(choose_device())
        with readable(file) as here:
            texts = TextFile(here, column=column, id_column=id_column)
            keep_freed_memory()
            size = texts.source.path.stat().st_size if texts.source.kind == "text" else None
            tell = notify or usual_notify()
            done, begin = 0, time.perf_counter()
            note(texts.describe())
            taken = "the mean of its tokens" if how.pooling == "mean" else "its first token"
            note(f"a text's vector is {taken}{', divided by its length' if how.normalize else ''}")

            def count(chars: int) -> None:
                nonlocal done
                done += chars
                tell(Progress("embedding", done, size if size is not None and size > done else None, "characters"))

            report = embed_file(loaded, texts, target, how, count=count)
    for reason, number in texts.skipped.items():
        note(f"passed over: {number:,} {reason}")
    if report.long_texts:
        what = "split into parts" if how.long_texts == "split" else "cut off"
        longest = loaded.embedder.config.max_position_embeddings
        note(f"longer than the model's {longest} tokens, and {what}: {report.long_texts:,} texts")
    figures: dict[str, Any] = {
        "out": address_of(out) or str(out),
        "dimension": loaded.embedder.config.hidden_size,
        "pooling": how.pooling,
        "normalize": how.normalize,
        **asdict(report),
        "skipped": dict(texts.skipped),
        "seconds": time.perf_counter() - begin,
        "column": texts.source.column,
        "id_column": texts.id_column,
    }
    return EmbeddedFile(figures)


def embed_file(
    model: Model, file: TextFile, out: Path, settings: EmbedSettings, *, count: Callable[[int], None]
) -> EmbedReport:
    """Embeds the texts of a file, some thousands at a time.

    Args:
        model: Any.
        file: The texts.
        out: A .npy or .parquet file; replaced where it is there.
        settings: How embeddings are made.
        count: Is told the characters of each part of the texts that is done.

    Raises:
        UnmaskError: As `TextFile.read`, `embed_texts` and the writer; or a text follows an empty one, and `out` keeps
            no ids, so that its rows would not be those of the file. Nothing is left behind then.
    """
    num_texts = num_tokens = num_long = 0
    with Writing(out, model.embedder.config.hidden_size) as writer:
        for part in parts(file.read() if writer.keeps_ids else _without_gaps(file)):
            names = [f"{file.source.path}: text {text.id!r}" for text in part]
            done = embed_texts(model.embedder, model.tokenizer, [text.text for text in part], settings, names=names)
            try:
                writer.add([text.id for text in part], done.vectors)
            except CorpusError as error:
                raise CorpusError(f"{file.source.path}: {error}") from error
            num_texts += len(part)
            num_tokens += done.num_tokens
            num_long += done.num_long
            count(sum(len(text.text) for text in part))
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
