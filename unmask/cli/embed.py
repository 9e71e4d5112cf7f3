"""`unmask embed`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.cli.progress import ConsoleReporter
from unmask.corpus.texts import TextFile
from unmask.inference.embed_file import embed_file
from unmask.inference.model import Precision, load
from unmask.inference.vector_files import check_out
from unmask.pretraining.interrupt import Interruption
from unmask.training.hardware import choose_device, keep_freed_memory


def run_embed(
    model: str,
    file: str,
    out: Path,
    *,
    settings: dict[str, Any],
    columns: dict[str, str | None],
    precision: Precision,
    overwrite: bool,
) -> dict[str, Any]:
    """Embeds the texts of a file and tells what was done.

    Args:
        model: Its folder, or its name on the hub.
        file: Text lines, a table, or any other kind that is read.
        out: A .npy or .parquet file.
        settings: Of `Model.embed_settings`.
        columns: Of `TextFile`: `column` and `id_column`.
        precision: As for `load`.
        overwrite: Whether `out` is replaced.

    Raises:
        UnmaskError: As `load`, `Model.embed_settings`, `TextFile`, `check_out` and `embed_file`.
        Interrupted: SIGINT or SIGTERM; nothing was written.
    """
    check_out(out, overwrite=overwrite)
    loaded = load(model, precision=precision)
    how = loaded.embed_settings(**settings)
    loaded.to(choose_device())
    texts = TextFile(file, **columns)
    keep_freed_memory()
    size = texts.source.path.stat().st_size if texts.source.kind == "text" else None
    done, begin = 0, time.perf_counter()
    with Interruption("nothing was written"), ConsoleReporter() as reporter:
        reporter.note(texts.describe())
        taken = "the mean of its tokens" if how.pooling == "mean" else "its first token"
        reporter.note(f"a text's vector is {taken}{', divided by its length' if how.normalize else ''}")

        def notify(chars: int) -> None:
            nonlocal done
            done += chars
            reporter.stage("embedding", done, size if size is not None and size > done else None)

        report = embed_file(loaded, texts, out, how, notify=notify)
        for reason, count in texts.skipped.items():
            reporter.note(f"passed over: {count:,} {reason}")
        if report.long_texts:
            what = "split into parts" if how.long_texts == "split" else "cut off"
            longest = loaded.network.config.max_position_embeddings
            reporter.note(f"longer than the model's {longest} tokens, and {what}: {report.long_texts:,} texts")
        seconds = time.perf_counter() - begin
        dimension = loaded.network.config.hidden_size
        reporter.note(
            f"{report.texts:,} texts, {report.tokens:,} tokens, {report.texts / seconds:,.0f} texts a second; "
            f"vectors of {dimension} in {out}"
        )
    return {
        "out": str(out),
        "dimension": dimension,
        "pooling": how.pooling,
        "normalize": how.normalize,
        **asdict(report),
        "skipped": dict(texts.skipped),
        "seconds": seconds,
        "column": texts.source.column,
        "id_column": texts.id_column,
    }
