"""The audit of masking as a verb: a text is masked as a training would mask it, by one strategy or all, and counted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.commands.masking_tables import masking_tables
from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.recipe_files import DEFAULT, Overrides, as_overrides
from unmask.commands.run_data import PreparedData, check_annotations, is_prepared, open_prepared, prepare_by
from unmask.core.errors import DataError, SettingsError
from unmask.core.results import NORMAL, Readable, Reporter, Sheet, Shown, Styled, counted, usual_reporter
from unmask.data.rows import Cursor, Rows, RowStream
from unmask.masking.masker import MaskedRows, Masker, WeighedRows
from unmask.masking.settings import STRATEGIES, MaskingSettings, Strategy, followed_scores
from unmask.masking.tables import Scores
from unmask.measure.masking import Audit, Inclusion
from unmask.measure.masking import audit as count_masks
from unmask.report.pages import write_audit

BATCH_POSITIONS = 1 << 14
INCLUSIONS = ("by_size", "by_place", "by_length", "by_chance")
_CHOICES = ("masking.strategy", "masking.units", "masking.weights")


@dataclass(frozen=True, repr=False)
class MaskingAudit(Readable):
    """What strategies did to a text.

    Attributes:
        documents, bytes, tokens: Of the text.
        skipped: What was left out of it, and how often.
        audits: By strategy.
        not_audited: Strategies that could not be, and why.
        followers: Strategies that follow a model in training, and were audited with equal weights.
        page: What was written; None: nothing.
    """

    documents: int
    bytes: int
    tokens: int
    skipped: Mapping[str, int]
    audits: Mapping[str, Audit]
    not_audited: Mapping[str, str]
    followers: tuple[str, ...] = ()
    page: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether every promise is kept."""
        return not any(entry.broken for entry in self.audits.values())

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "tokens": self.tokens,
            "skipped": dict(self.skipped),
            "strategies": {name: _plain(entry) for name, entry in self.audits.items()},
            "not_audited": dict(self.not_audited),
            "passed": self.passed,
        }

    def shown(self) -> Iterator[Shown]:
        """A line a strategy, and what is broken."""
        yield _by_strategy(self.audits)
        by_pos = {name: entry.by_pos for name, entry in self.audits.items() if entry.by_pos}
        if by_pos:
            yield "\nPredicted, in % of the tokens of each part of speech:"
            yield _parts_of_speech(by_pos)
        for name, entry in self.audits.items():
            if (pairs := entry.pairs) is not None:
                yield (
                    f"{name}: {pairs.first.rate:.2%} of the tokens in first halves of pairs are predicted, "
                    f"{pairs.second.rate:.2%} in second halves, some in both of {pairs.with_both:,} of {pairs.pairs:,} "
                    "pairs"
                )
        if len(self.audits) == 1:
            yield ""
            yield _inclusion(*self.audits.values())
        for name, entry in self.audits.items():
            yield from (Styled(f"{name}: {text}", "red") for text in entry.broken)
        if self.followers:
            yield Styled(
                f"{' and '.join(self.followers)} follow a model in training: here with equal weights, as before its "
                "first scores",
                "dim",
            )
        yield from (Styled(f"{name}: not audited: {why}", "dim") for name, why in self.not_audited.items())
        if self.page is not None:
            yield f"\n{self.page}"


def audit(
    data: str | Path | Sequence[str | Path],
    *,
    recipe: str | Recipe | None = None,
    strategy: Strategy | None = None,
    settings: Overrides = (),
    max_tokens: int = 500_000,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> MaskingAudit:
    """Masks a text as a training would, and checks rates, shares and special tokens.

    Args:
        data: A prepared folder; or files, folders or patterns of text.
        recipe: Whose masking is audited. By default every strategy.
        strategy: Only this strategy. By default every strategy.
        settings: `section.key=value` overrides of the recipe, or a dict of them. One of masking.strategy, masking.units
            or masking.weights is a choice of a masking, too.
        max_tokens: At most about this many tokens are masked.
        out: An HTML file with plots.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: The data cannot be read, or not masked by the recipe.
    """
    reporter = reporter or usual_reporter()
    paths = [str(path) for path in ([data] if isinstance(data, str | Path) else data)]
    overrides = as_overrides(settings)
    chosen = recipe is not None or strategy is not None or any(each.startswith(_CHOICES) for each in overrides)
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe or DEFAULT, options={"masking.strategy": strategy}, overrides=overrides)
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        root = Path(paths[0])
        if not is_prepared(paths):
            root = Path(scratch)
            if chosen:
                check_annotations(recipe, None)
            prepare_by(recipe, paths, root, reporter)
        opened = open_prepared(root)
        if chosen:
            check_annotations(recipe, opened.manifest)
        audits, left_out, followers = {}, {}, []
        masking = recipe.masking
        maskings = {masking.strategy or f"{masking.units.kind} x {masking.weights.kind}": masking}
        if not chosen:
            every = STRATEGIES.items()
            maskings = {name: masking.model_copy(update={"strategy": name, **pair}) for name, pair in every}
        for name, masking in maskings.items():
            count = counted(reporter.notify, f"masking by {name}", min(max_tokens, opened.manifest.train.tokens))
            try:
                audits[name] = _audit_one(masking, recipe, opened, max_tokens, Path(scratch), count)
            except (SettingsError, DataError) as error:
                if chosen:
                    raise
                left_out[name] = str(error)
                continue
            if followed_scores(masking):
                followers.append(name)
        manifest = opened.manifest
        del opened  # unmaps the shards before their folder goes
    if out is not None:
        what = f"{manifest.documents:,} documents, {manifest.tokens:,} tokens; vocabulary {manifest.vocab_size:,}"
        write_audit(Path(out), audits, data=f"{', '.join(paths)}: {what}", left_out=left_out)
    return MaskingAudit(
        documents=manifest.documents,
        bytes=manifest.bytes,
        tokens=manifest.tokens,
        skipped=manifest.skipped,
        audits=audits,
        not_audited=left_out,
        followers=tuple(followers),
        page=None if out is None else Path(out),
    )


def _audit_one(
    masking: MaskingSettings,
    recipe: Recipe,
    data: PreparedData,
    max_tokens: int,
    scratch: Path,
    count: Callable[[int], None],
) -> Audit:
    training, pairs = recipe.training, recipe.objectives.pairs
    tables, _ = masking_tables(masking, data, own_lexicon=scratch / "lexicon", reporter=Reporter())
    masker = Masker(masking, data.tokenizer, seed=training.seed, tables=tables)
    stream = RowStream(
        data.train,
        data.tokenizer,
        length=training.sequence_length,
        seed=training.seed,
        pairs=None if pairs is None else pairs.kind,
    )

    def batches() -> Iterator[tuple[Rows, MaskedRows, WeighedRows]]:
        tokens = 0
        size = max(1, BATCH_POSITIONS // training.sequence_length)
        for step, batch in enumerate(stream.batches(Cursor(), size)):
            # No model: strategies that follow one begin with equal weights, as a training does.
            none_yet = Scores(0, {})
            masked = masker(batch.rows, step=step, scores=none_yet)
            yield batch.rows, masked, masker.weighed(batch.rows, step=step, scores=none_yet)
            tokens += batch.num_tokens
            count(batch.num_tokens)
            if tokens >= max_tokens or batch.cursor.epoch:
                return

    return count_masks(batches(), masker, data.frequencies)


def _plain(entry: Audit) -> dict[str, Any]:
    pairs = None
    if (counts := entry.pairs) is not None:
        pairs = {
            "first_rate": counts.first.rate,
            "first_rate_stderr": counts.first.stderr,
            "second_rate": counts.second.rate,
            "second_rate_stderr": counts.second.stderr,
            "pairs": counts.pairs,
            "with_both": counts.with_both,
        }

    def groups(by_name: dict[str, Inclusion]) -> dict[str, Any]:
        return {
            name: {"units": each.units, "asked": each.asked, "realised": each.realised}
            for name, each in by_name.items()
        }

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
        "pairs": pairs,
        "inclusion": {name: groups(getattr(entry.inclusion, name)) for name in INCLUSIONS},
        "broken": list(entry.broken),
    }


def _by_strategy(audits: Mapping[str, Audit]) -> Sheet:
    heads = ("", ">asked", ">predicted ± 95 %, over pieces", ">mask/random/kept %", ">no target", "promises")
    rows = [
        (
            name,
            f"{entry.expected_rate:.2%}",
            f"{entry.rate:.2%} ± {NORMAL * entry.rate_stderr:.2%}",
            "/".join(f"{100 * share:.1f}" for share in entry.shares),
            f"{entry.rows_without_target / max(entry.rows, 1):.1%}",
            Styled("broken", "red") if entry.broken else Styled("kept", "green"),
        )
        for name, entry in audits.items()
    ]
    return Sheet(heads, rows)


def _parts_of_speech(rates: Mapping[str, Mapping[str, tuple[int, int]]]) -> Sheet:
    """A line for each part of speech, a column for each strategy."""
    rows = []
    for tag in dict.fromkeys(tag for by_pos in rates.values() for tag in by_pos):
        cells = (by_pos.get(tag, (0, 0)) for by_pos in rates.values())
        rows.append((tag, *(f"{100 * chosen / tokens:.1f}" if tokens else "" for tokens, chosen in cells)))
    return Sheet(("", *(f">{name}" for name in rates)), rows)


def _inclusion(entry: Audit) -> Sheet:
    """A line for each group of units: how often they should be predicted, and how often they are."""
    rows, before = [], None
    for kind, name, group in entry.inclusion.groups():
        shown = (
            "" if kind == before else kind,
            name,
            f"{group.units:,}",
            f"{group.asked:.2%}",
            f"{group.realised:.2%}",
        )
        rows.append(tuple(Styled(cell, "red" if group.broken else "") for cell in shown))
        before = kind
    return Sheet(("units by", "", ">units", ">asked", ">predicted"), rows)
