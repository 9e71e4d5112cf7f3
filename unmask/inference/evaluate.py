"""Evaluating a model on text: held-out loss at several rates, on masks that are the same for every model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.corpus.corpus import Corpus
from unmask.corpus.settings import CorpusSettings
from unmask.errors import SettingsError
from unmask.evaluation.held_out import RATE, HeldOut, HeldOutSet
from unmask.inference.model import Model
from unmask.tokens.manifest import MANIFEST, load_manifest, verify_files
from unmask.tokens.prepare import write_split
from unmask.tokens.shards import TokenStore

MAX_TOKENS = 1_000_000


def evaluate(
    model: Model, paths: Sequence[str | Path], *, rates: Sequence[float] = (RATE,), max_tokens: int = MAX_TOKENS
) -> dict[str, Any]:
    """Evaluates a model on all of a text, or on the validation split of a prepared folder.

    Args:
        model: Any model with a masked-language-model head.
        paths: Files, folders or patterns of text, or one prepared folder made with the model's tokenizer.
        rates: Shares of the tokens that are hidden, each evaluated apart.
        max_tokens: At most about this many tokens are used.

    Returns:
        `loss` (nats per predicted token), `loss_stderr` (over documents), `accuracy`, `perplexity`,
        `bits_per_byte`, `predicted_tokens` at the first rate, and all of them in `by_rate`.

    Raises:
        UnmaskError: The text cannot be read, is too short, was prepared with another tokenizer, or a rate is out of
            range.
    """
    for rate in rates:
        if not 0.0 < rate < 1.0:
            raise SettingsError(f"a rate lies between 0 and 1, not {rate}")
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        store = _open(model, paths, Path(scratch))
        length = model.network.config.max_position_embeddings
        by_rate = {}
        for rate in rates:
            held_out = HeldOutSet(store, model.tokenizer, length=length, max_tokens=max_tokens, rate=rate)
            by_rate[f"{rate:g}"] = _figures(held_out.evaluate(model.network))
        del store  # unmaps the shards before their folder goes
    return {**next(iter(by_rate.values())), "by_rate": by_rate}


def _open(model: Model, paths: Sequence[str | Path], scratch: Path) -> TokenStore:
    root = Path(paths[0]) if len(paths) == 1 else None
    if root is not None and (root / MANIFEST).is_file():
        manifest = load_manifest(root)
        verify_files(root, manifest)
        if manifest.tokenizer_sha256 != model.tokenizer.fingerprint:
            raise SettingsError(f"{root} was prepared with another tokenizer than {model.folder}; give the text itself")
        return TokenStore([root / file.name for file in manifest.validation.files])
    corpus = Corpus(paths, CorpusSettings(), hold_out=False)
    return TokenStore(write_split(corpus, scratch, model.tokenizer))


def _figures(result: HeldOut) -> dict[str, float | int | None]:
    return {
        "loss": result.loss,
        "loss_stderr": None if math.isnan(result.loss_stderr) else result.loss_stderr,
        "accuracy": result.accuracy,
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte,
        "predicted_tokens": result.predicted_tokens,
    }
