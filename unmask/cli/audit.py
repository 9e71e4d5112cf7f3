"""`unmask audit`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from unmask.cli.progress import ConsoleReporter, console
from unmask.errors import DataError, SettingsError
from unmask.evaluation.audit import Audit, audit
from unmask.masking.engine import MaskedRows, Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings, followed_scores
from unmask.masking.tables import Scores
from unmask.packing.rows import Rows
from unmask.packing.stream import Cursor, RowStream
from unmask.pretraining.data import PreparedData, is_prepared, open_prepared
from unmask.pretraining.following import masking_tables
from unmask.pretraining.lexicon import obtain_lexicon, with_lexicon
from unmask.pretraining.reporter import LogReporter
from unmask.recipe.recipe import Recipe
from unmask.report.audit_page import write_audit
from unmask.tokens.prepare import prepare

BATCH_POSITIONS = 1 << 14


def run_audit(
    paths: Sequence[str], recipe: Recipe, *, every_strategy: bool, max_tokens: int, out: Path | None
) -> dict[str, Any]:
    """Masks the training text as a training would, and counts.

    Args:
        paths: A prepared folder, or text, which is prepared in a temporary folder.
        recipe: Settings of corpus, tokenizer, masking and rows.
        every_strategy: Whether every strategy is audited, with the recipe's rate and replacement; else the recipe's.
        max_tokens: At most about this many tokens are masked.
        out: Where the page is written; None writes none.

    Raises:
        UnmaskError: The data cannot be read, or not masked by the recipe.
    """
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        root = Path(paths[0])
        if not is_prepared(paths):
            root = Path(scratch)
            with ConsoleReporter() as reporter:
                prepare(paths, root, corpus=recipe.corpus, tokenizer=recipe.tokenizer, notify=reporter.stage)
        data = open_prepared(root)
        audits, left_out, followers = {}, {}, []
        for name, masking in _strategies(recipe.masking, every_strategy=every_strategy):
            try:
                audits[name] = _audit_one(masking, recipe, data, max_tokens, Path(scratch))
                if followed_scores(masking):
                    followers.append(name)
            except (SettingsError, DataError) as error:
                if not every_strategy:
                    raise
                left_out[name] = str(error)
        manifest = data.manifest
        del data  # unmaps the shards before their folder goes
    _show(audits, left_out, followers)
    what = f"{manifest.documents:,} documents, {manifest.tokens:,} tokens; vocabulary {manifest.vocab_size:,}"
    if out is not None:
        write_audit(out, audits, data=f"{', '.join(paths)}: {what}", left_out=left_out)
        console().print(f"\n{out}", markup=False, soft_wrap=True)
    return {
        "documents": manifest.documents,
        "bytes": manifest.bytes,
        "tokens": manifest.tokens,
        "skipped": manifest.skipped,
        "strategies": {name: _plain(entry) for name, entry in audits.items()},
        "not_audited": left_out,
        "passed": not any(entry.broken for entry in audits.values()),
    }


def _strategies(masking: MaskingSettings, *, every_strategy: bool) -> Iterator[tuple[str, MaskingSettings]]:
    if not every_strategy:
        yield masking.strategy or f"{masking.units.kind} x {masking.weights.kind}", masking
        return
    for name, pair in STRATEGIES.items():
        yield name, masking.model_copy(update={"strategy": name, **pair})


def _audit_one(masking: MaskingSettings, recipe: Recipe, data: PreparedData, max_tokens: int, scratch: Path) -> Audit:
    training = recipe.training
    tables = masking_tables(masking, data)
    if (lexicon := obtain_lexicon(masking, scratch / "lexicon", data, LogReporter())) is not None:
        tables = with_lexicon(tables, lexicon)
    masker = Masker(masking, data.tokenizer, seed=training.seed, tables=tables)
    stream = RowStream(data.train, data.tokenizer, length=training.sequence_length, seed=training.seed)

    def batches() -> Iterator[tuple[Rows, MaskedRows]]:
        tokens = 0
        for batch in stream.batches(Cursor(), max(1, BATCH_POSITIONS // training.sequence_length)):
            # No model: strategies that follow one begin with equal weights, as a training does.
            yield batch.rows, masker(batch.rows, scores=Scores(0, {}))
            tokens += batch.num_tokens
            if tokens >= max_tokens or batch.cursor.epoch:
                return

    return audit(batches(), masker, data.frequencies)


def _show(audits: dict[str, Audit], left_out: dict[str, str], followers: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(("", "asked", "predicted", "mask/random/kept %", "no target", "promises")):
        table.add_column(name, justify="left" if number in (0, 5) else "right")
    for name, entry in audits.items():
        table.add_row(
            name,
            f"{entry.expected_rate:.2%}",
            f"{entry.rate:.2%} ± {entry.rate_stderr:.2%}",
            "/".join(f"{100 * share:.1f}" for share in entry.shares),
            f"{entry.rows_without_target / max(entry.rows, 1):.1%}",
            "[red]broken[/red]" if entry.broken else "[green]kept[/green]",
        )
    out = console()
    out.print(table)
    for name, entry in audits.items():
        for text in entry.broken:
            out.print(f"{name}: {text}", style="red", markup=False, soft_wrap=True)
    if followers:
        out.print(
            f"{' and '.join(followers)} follow a model in training: here with equal weights, as before its first "
            "scores",
            style="dim",
        )
    for name, why in left_out.items():
        out.print(f"{name}: not audited: {why}", style="dim", markup=False, soft_wrap=True)


def _plain(entry: Audit) -> dict[str, Any]:
    return {
        "expected_rate": entry.expected_rate,
        "rate": entry.rate,
        "rate_stderr": entry.rate_stderr,
        "shares": list(entry.shares),
        "special_targets": entry.special_targets,
        "special_replacements": entry.special_replacements,
        "changed_outside": entry.changed_outside,
        "rows_without_target": entry.rows_without_target,
        "rows": entry.rows,
        "tokens": entry.tokens,
        "by_pieces": entry.by_pieces.tolist(),
        "by_bytes": entry.by_bytes.tolist(),
        "by_frequency": entry.by_frequency.tolist(),
        "span_lengths": entry.span_lengths.tolist(),
        "broken": list(entry.broken),
    }
