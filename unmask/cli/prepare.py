"""`unmask prepare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.cli.progress import ConsoleReporter
from unmask.errors import RunError
from unmask.pretraining.data import describe
from unmask.recipe.recipe import load_recipe
from unmask.tokens.manifest import MANIFEST
from unmask.tokens.prepare import prepare


def run_prepare(
    paths: Sequence[str],
    out: Path,
    *,
    options: Mapping[str, Any],
    settings: tuple[str, ...],
    overwrite: bool,
) -> dict[str, Any]:
    """Prepares and tells what came out.

    Raises:
        UnmaskError: As `unmask.tokens.prepare.prepare`; or the folder holds prepared data already.
    """
    recipe = load_recipe(options=options, overrides=settings)
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; --out takes a folder")
    if (out / MANIFEST).exists() and not overwrite:
        raise RunError(f"{out} already holds prepared data; replace it with --overwrite, or give another --out")
    if out.is_dir() and not (out / MANIFEST).exists() and any(out.iterdir()) and not (out / "tokenizer").is_dir():
        raise RunError(f"{out} holds other files; give a new or empty folder")
    with ConsoleReporter() as reporter:
        manifest = prepare(paths, out, corpus=recipe.corpus, tokenizer=recipe.tokenizer, notify=reporter.stage)
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
        "vocab_size": manifest.vocab_size,
        "train_tokens": manifest.train.tokens,
        "validation_tokens": manifest.validation.tokens,
        "unknown_tokens": manifest.train.unknown_tokens + manifest.validation.unknown_tokens,
        "fingerprint": manifest.fingerprint,
    }
