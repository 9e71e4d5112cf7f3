"""`unmask prepare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.cli.progress import ConsoleReporter
from unmask.errors import RunError
from unmask.pretraining.data import describe
from unmask.pretraining.interrupt import GOES_ON, Interruption
from unmask.recipe.recipe import load_recipe
from unmask.tokens.data_folder import DataFolder
from unmask.tokens.prepare import prepare


def run_prepare(
    paths: Sequence[str],
    out: Path,
    *,
    options: Mapping[str, Any],
    settings: tuple[str, ...],
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Prepares and tells what came out.

    Raises:
        UnmaskError: As `unmask.tokens.prepare.prepare`; or the folder holds prepared data already.
        Interrupted: SIGINT or SIGTERM; the parts that were done are kept.
    """
    recipe = load_recipe(options=options, overrides=settings)
    if DataFolder(out).is_complete and not resume and not overwrite:
        raise RunError(
            f"{out} already holds prepared data; replace it with --overwrite, keep it with --resume, or give another "
            "--out"
        )
    with Interruption(GOES_ON), ConsoleReporter() as reporter:
        manifest = prepare(
            paths,
            out,
            corpus=recipe.corpus,
            tokenizer=recipe.tokenizer,
            annotation=recipe.annotation,
            workers=workers,
            resume=resume,
            overwrite=overwrite,
            notify=reporter.stage,
            note=reporter.note,
        )
    for text in describe(manifest):
        reporter.note(text)
    for name, split in (("training", manifest.train), ("held out", manifest.validation)):
        reporter.note(f"{name}: {split.documents:,} documents, {split.bytes:,} bytes, {split.tokens:,} tokens")
    reporter.note(f"{manifest.bytes / manifest.tokens:.2f} bytes a token; vocabulary {manifest.vocab_size:,}; {out}")
    return {
        "out": str(out),
        "documents": manifest.documents,
        "bytes": manifest.bytes,
        "tokens": manifest.tokens,
        "skipped": manifest.skipped,
        "overlap": manifest.overlap,
        "near_duplicates": manifest.near_duplicates and manifest.near_duplicates.plain(),
        "vocab_size": manifest.vocab_size,
        "train_tokens": manifest.train.tokens,
        "validation_tokens": manifest.validation.tokens,
        "unknown_tokens": manifest.train.unknown_tokens + manifest.validation.unknown_tokens,
        "fingerprint": manifest.fingerprint,
        "annotations": {
            column: {"labels": list(labels), "spans": manifest.spans[column][0], "lost": manifest.spans[column][1]}
            for column, labels in manifest.annotations.items()
        },
        "labels": manifest.labels,
        "unlabelled": manifest.unlabelled,
    }
