"""`unmask audit`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unmask.cli.audit_table import show_audits
from unmask.cli.progress import ConsoleBar, ConsoleReporter, console
from unmask.errors import DataError, SettingsError
from unmask.evaluation.audit import Audit, audit
from unmask.evaluation.audit_inclusion import Inclusion
from unmask.evaluation.audit_pairs import PairAudit
from unmask.masking.engine import MaskedRows, Masker, WeighedRows
from unmask.masking.settings import STRATEGIES, MaskingSettings, followed_scores
from unmask.masking.tables import Scores
from unmask.packing.rows import Rows
from unmask.packing.stream import Cursor, RowStream
from unmask.pretraining.data import PreparedData, check_annotations, is_prepared, open_prepared, prepare_by
from unmask.pretraining.following import masking_tables
from unmask.pretraining.reporter import LogReporter
from unmask.recipe.recipe import Recipe
from unmask.report.audit_page import write_audit

BATCH_POSITIONS = 1 << 14


def run_audit(
    paths: Sequence[str], recipe: Recipe, *, every_strategy: bool, max_tokens: int, out: Path | None
) -> dict[str, Any]:
    """Masks the training text as a training would, and counts.

    Args:
        paths: A prepared folder, or text, which is prepared in a temporary folder.
        recipe: Settings of corpus, tokenizer, annotation, masking and rows, sentence pairs included.
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
            if not every_strategy:
                check_annotations(recipe, None)
            with ConsoleReporter() as reporter:
                prepare_by(recipe, paths, root, reporter)
        data = open_prepared(root)
        if not every_strategy:
            check_annotations(recipe, data.manifest)
        audits, left_out, followers = {}, {}, []
        with ConsoleBar("masking") as bar:
            for name, masking in _strategies(recipe.masking, every_strategy=every_strategy):
                try:
                    audits[name] = _audit_one(
                        masking, recipe, data, max_tokens, Path(scratch), partial(bar.notify, f"masking by {name}")
                    )
                    if followed_scores(masking):
                        followers.append(name)
                except (SettingsError, DataError) as error:
                    if not every_strategy:
                        raise
                    left_out[name] = str(error)
        manifest = data.manifest
        del data  # unmaps the shards before their folder goes
    show_audits(audits, left_out, followers)
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


def _audit_one(
    masking: MaskingSettings,
    recipe: Recipe,
    data: PreparedData,
    max_tokens: int,
    scratch: Path,
    notify: Callable[[int, int], None],
) -> Audit:
    training, pairs = recipe.training, recipe.objectives.pairs
    tables, _ = masking_tables(masking, data, own_lexicon=scratch / "lexicon", reporter=LogReporter())
    masker = Masker(masking, data.tokenizer, seed=training.seed, tables=tables)
    stream = RowStream(
        data.train,
        data.tokenizer,
        length=training.sequence_length,
        seed=training.seed,
        pairs=None if pairs is None else pairs.kind,
    )

    def batches() -> Iterator[tuple[Rows, MaskedRows, WeighedRows]]:
        tokens, total = 0, min(max_tokens, data.manifest.train.tokens)
        size = max(1, BATCH_POSITIONS // training.sequence_length)
        for step, batch in enumerate(stream.batches(Cursor(), size)):
            # No model: strategies that follow one begin with equal weights, as a training does.
            none_yet = Scores(0, {})
            masked = masker(batch.rows, step=step, scores=none_yet)
            yield batch.rows, masked, masker.weighed(batch.rows, step=step, scores=none_yet)
            tokens += batch.num_tokens
            notify(tokens, total)
            if tokens >= max_tokens or batch.cursor.epoch:
                return

    return audit(batches(), masker, data.frequencies)


def _plain(entry: Audit) -> dict[str, Any]:
    return {
        "expected_rate": entry.expected_rate,
        "rate": entry.rate,
        "rate_stderr": entry.rate_stderr,
        "shares": list(entry.shares),
        "special_targets": entry.special_targets,
        "special_replacements": entry.special_replacements,
        "changed_outside": entry.changed_outside,
        "split_units": entry.split_units,
        "rows_without_target": entry.rows_without_target,
        "rows": entry.rows,
        "tokens": entry.tokens,
        "by_pieces": entry.by_pieces.tolist(),
        "by_bytes": entry.by_bytes.tolist(),
        "by_frequency": entry.by_frequency.tolist(),
        "span_lengths": entry.span_lengths.tolist(),
        "by_pos": None if entry.by_pos is None else {name: list(counts) for name, counts in entry.by_pos.items()},
        "pairs": None if entry.pairs is None else _plain_pairs(entry.pairs),
        "inclusion": {
            "by_size": _plain_groups(entry.inclusion.by_size),
            "by_place": _plain_groups(entry.inclusion.by_place),
            "by_length": _plain_groups(entry.inclusion.by_length),
            "by_chance": _plain_groups(entry.inclusion.by_chance),
        },
        "broken": list(entry.broken),
    }


def _plain_groups(groups: dict[str, Inclusion]) -> dict[str, Any]:
    return {
        name: {"units": found.units, "asked": found.asked, "realised": found.realised} for name, found in groups.items()
    }


def _plain_pairs(found: PairAudit) -> dict[str, Any]:
    return {
        "first_rate": found.first.rate,
        "first_rate_stderr": found.first.stderr,
        "second_rate": found.second.rate,
        "second_rate_stderr": found.second.stderr,
        "pairs": found.pairs,
        "with_both": found.with_both,
    }
