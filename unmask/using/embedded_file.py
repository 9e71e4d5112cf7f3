"""Embedding all texts of a file, of any size, into a file of vectors; as a verb, too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from unmask.addresses import address_of
from unmask.errors import CorpusError, ModelError, RunError
from unmask.folders.layout_names import Pooling
from unmask.folders.sentence_files import SPLADE
from unmask.notebook import usual_notify
from unmask.progress import Notify, Progress
from unmask.results import Result, Shown
from unmask.staged import staged_file
from unmask.text.pipes import readable
from unmask.text.sources import TextColumn
from unmask.text.table_rows import AskedColumn
from unmask.text.text_file import NamedText, TextFile, in_groups
from unmask.training.hardware import choose_device, keep_freed_memory
from unmask.using.embedding import Embedded, EmbedSettings, LongTexts, embed_texts
from unmask.using.loaded_model import Model, Precision, load
from unmask.using.sparse_embedding import sparse_texts
from unmask.using.vector_files import TAKES_SPARSE, Writing, check_out

log = logging.getLogger("unmask")
PART_TEXTS = 8192  # at once: they fit into memory, and are enough to be packed well
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


class Embed(Protocol):
    """Makes vectors of texts."""

    def __call__(self, texts: Sequence[str], *, names: Sequence[str]) -> Embedded[Any]:
        """As `embed_texts`, or `sparse_texts`."""


@dataclass(frozen=True)
class TextEmbedding:
    """How the texts of a file become vectors.

    Attributes:
        embed: Does it.
        pooling, normalize, long_texts: As for `EmbedSettings`; or `splade`, for sparse vectors.
        dimension: Numbers of a vector.
        longest: Tokens of a text that the model takes.
    """

    embed: Embed
    pooling: Pooling | Literal["splade"]
    normalize: bool
    long_texts: LongTexts
    dimension: int
    longest: int

    def describe(self) -> str:
        """In words."""
        if self.pooling == SPLADE:
            taken = "sparse, a number for each token of the vocabulary (SPLADE)"
        else:
            taken = "the mean of its tokens" if self.pooling == "mean" else "its first token"
        return f"a text's vector is {taken}{', divided by its length' if self.normalize else ''}"


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
    pooling: Pooling | Literal["splade"]
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
        out: A .npy file; or .parquet, which holds ids, and sparse vectors. Also at an address.
        pooling, normalize, long_texts: As for `Model.embed_settings`. Where the folder asks for sparse vectors and no
            pooling is asked for, they are made; of a text in several parts the maximum is taken.
        column, id_column: Of a table; None: found. The text may be in several columns, or within one (`content.text`).
        precision, strict: As for `load`.
        overwrite: Whether `out` is replaced.
        note: Told what was decided, in lines.
        notify: Told of the progress (`Progress`: what is done, how much, of how much, in which unit).

    Raises:
        UnmaskError: As `load`, `Model.embed_settings`, `TextFile`, `check_out` and `embed_file`; or vectors are
            sparse, and `out` is a .npy file.
    """
    with staged_file(out, overwrite=overwrite) as target:
        check_out(target, overwrite=overwrite)
        loaded = model if isinstance(model, Model) else load(model, precision=precision, strict=strict)
        how = embedding_of(loaded, pooling, normalize, long_texts)
        if how.pooling == SPLADE and target.suffix not in TAKES_SPARSE:
            raise RunError(
                f"{out}: the vectors of {loaded.folder} are sparse, and are written as {' or '.join(TAKES_SPARSE)}; "
                "give --out this ending, or ask for --pooling mean"
            )
        loaded.to(choose_device())
        with readable(file) as here:
            texts = TextFile(here, column=column, id_column=id_column)
            keep_freed_memory()
            size = texts.source.path.stat().st_size if texts.source.kind == "text" else None
            tell = notify or usual_notify()
            done, begin = 0, time.perf_counter()
            note(texts.describe())
            note(how.describe())

            def count(chars: int) -> None:
                nonlocal done
                done += chars
                tell(Progress("embedding", done, size if size is not None and size > done else None, "characters"))

            report = embed_file(how, texts, target, count=count)
    for reason, number in texts.skipped.items():
        note(f"passed over: {number:,} {reason}")
    if report.long_texts:
        what = "split into parts" if how.long_texts == "split" else "cut off"
        note(f"longer than the model's {how.longest} tokens, and {what}: {report.long_texts:,} texts")
    figures: dict[str, Any] = {
        "out": address_of(out) or str(out),
        "dimension": how.dimension,
        "pooling": how.pooling,
        "normalize": how.normalize,
        **asdict(report),
        "skipped": dict(texts.skipped),
        "seconds": time.perf_counter() - begin,
        "column": texts.source.column,
        "id_column": texts.id_column,
    }
    return EmbeddedFile(figures)


def embedding_of(
    model: Model, pooling: Pooling | None = None, normalize: bool | None = None, long_texts: LongTexts = "error"
) -> TextEmbedding:
    """As asked for, and else as the model's folder says.

    Raises:
        ModelError: As `Model.embed_settings`, or `Model.makes_sparse`.
        SettingsError: Something is asked for that there is not.
    """
    if pooling is None and model.makes_sparse:
        try:
            model.check_head()
        except ModelError as error:
            raise ModelError(
                f"{model.folder}: its files ask for sparse vectors, which are made by a head for masked tokens, and it "
                "has none; ask for --pooling mean"
            ) from error
        how = EmbedSettings(normalize=bool(normalize), long_texts=long_texts)
        config = model.predictor.config
        embed: Embed = partial(
            sparse_texts, model.predictor, model.tokenizer, long_texts=how.long_texts, unit=how.normalize
        )
        return TextEmbedding(
            embed, SPLADE, how.normalize, how.long_texts, config.vocab_size, config.max_position_embeddings
        )
    how = model.embed_settings(pooling=pooling, normalize=normalize, long_texts=long_texts)
    config = model.embedder.config
    embed = partial(embed_texts, model.embedder, model.tokenizer, settings=how)
    return TextEmbedding(
        embed, how.pooling, how.normalize, how.long_texts, config.hidden_size, config.max_position_embeddings
    )


def embed_file(how: TextEmbedding, file: TextFile, out: Path, *, count: Callable[[int], None]) -> EmbedReport:
    """Embeds the texts of a file, some thousands at a time.

    Args:
        how: Embeddings are made.
        file: The texts.
        out: A .npy or .parquet file; replaced where it is there.
        count: Is told the characters of each part of the texts that is done.

    Raises:
        UnmaskError: As `TextFile.read`, `embed_texts` and the writer; or a text follows an empty one, and `out` keeps
            no ids, so that its rows would not be those of the file. Nothing is left behind then.
    """
    num_texts = num_tokens = num_long = 0
    with Writing(out, how.dimension) as writer:
        texts = file.read() if writer.keeps_ids else _without_gaps(file)
        for part in in_groups(texts, most=PART_TEXTS, most_chars=PART_CHARS):
            names = [f"{file.source.path}: text {text.id!r}" for text in part]
            done = how.embed([text.text for text in part], names=names)
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
