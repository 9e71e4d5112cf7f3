"""report.html: curves, figures, predictions before and after training, ledger and settings in one file.

All pages are templates of Jinja2, in `templates/`, beside what is put into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from unmask.files import write_atomically
from unmask.margins import documents, margin, over, sentence, unit_of_summary
from unmask.report import plots
from unmask.shards.manifest import Manifest

TEMPLATES = Environment(
    loader=PackageLoader("unmask.report"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_COLUMNS = (
    ("loss", "nats per token", "{:.3f}"),
    ("accuracy", "right", "{:.1%}"),
    ("bits_per_token_byte", "bits per token byte", "{:.3f}"),
)
_TIMES = ("before", "after")


class Token(Protocol):
    """A token of a line with what was predicted for it."""

    @property
    def token(self) -> str: ...  # noqa: D102
    @property
    def space_before(self) -> bool: ...  # noqa: D102
    @property
    def predicted(self) -> str | None: ...  # noqa: D102
    @property
    def probability(self) -> float | None: ...  # noqa: D102


def write_report(
    path: Path,
    *,
    recipe: Mapping[str, Any],
    manifest: Manifest,
    summary: Mapping[str, Any],
    metrics: Sequence[dict[str, Any]],
    before: Sequence[Sequence[Token]],
    after: Sequence[Sequence[Token]],
    remark: str | None = None,
) -> None:
    """Writes the page. It needs nothing but itself: no script, no font, no picture from elsewhere.

    Args:
        path: The file.
        recipe: Settings by section.
        manifest: Ledger of the data.
        summary: As in summary.json.
        metrics: The lines of metrics.jsonl.
        before: Held-out lines with the predictions of the untrained model.
        after: The same lines with those of the trained one.
        remark: What the reader must know of the result, if anything.
    """
    page = TEMPLATES.get_template("report.html").render(
        title=f"{summary['num_parameters'] / 1e6:.1f}M parameters, {recipe['masking']['strategy'] or 'own'} masking",
        sources=", ".join(Path(source["path"]).name for source in manifest.sources),
        headline=_headline(summary),
        remarks=[sentence(each) for each in (remark, summary["validation_warning"]) if each],
        **_before_and_after(summary),
        plots=drawn(
            plots.loss_curve(metrics, summary["unigram_entropy"]),
            plots.accuracy_curve(metrics),
            plots.optimizer_curve(metrics),
            plots.speed_curve(metrics),
        ),
        lines=list(zip(before, after, strict=True)),
        **told_of(manifest),
        settings=[
            (section, ", ".join(_flat(values))) for section, values in recipe.items() if isinstance(values, Mapping)
        ],
    )
    write_atomically(path, page)


def drawn(*svg: str) -> list[Markup]:
    """Plots as a template takes them: nothing in them is escaped."""
    return [Markup(each) for each in svg]


def told_of(manifest: Manifest) -> dict[str, Any]:
    """What a template of the ledger needs."""
    skipped = ", ".join(f"{number:,} {reason}" for reason, number in manifest.skipped.items()) or "nothing"
    return {"manifest": manifest, "skipped": skipped, "near": manifest.near_duplicates}


def _headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    gain = summary["unigram_entropy"] - summary["validation_loss"]
    return [
        (
            f"{summary['validation_loss']:.3f}{margin(summary['validation_loss_interval'])}",
            f"held-out loss, nats per token ({_over(summary)})",
        ),
        (f"{abs(gain):.2f}", f"nats {'better' if gain >= 0 else 'worse'} than word frequencies alone"),
        (f"{summary['validation_accuracy']:.1%}", "hidden tokens predicted right"),
        (
            f"{summary['bits_per_token_byte']:.3f}{margin(summary['bits_per_token_byte_interval'])}",
            f"bits per byte of hidden tokens ({_over(summary)})",
        ),
        *(
            (f"{figures['accuracy']:.1%}", f"{name.replace('_', ' ')}: right of {figures['count']:,}")
            for name, figures in summary.get("objectives", {}).items()
        ),
        (f"{summary['tokens_seen'] / 1e6:.2f}M", f"tokens seen, {summary['epochs']:.1f} epochs"),
        (f"{summary['tokens_per_second']:,.0f}", "tokens a second"),
        (f"{summary['steps']:,}", "steps"),
        (f"{summary['seconds'] / 60:.1f} min", f"of training on {summary['device']}"),
    ]


def _over(summary: Mapping[str, Any]) -> str:
    """What ± is, where there is any."""
    return documents(summary) if summary["validation_loss_interval"] is None else f"± 95 %, over {documents(summary)}"


def _before_and_after(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a further training brought on the new text and cost on the old; nothing where weights were new."""
    if "domains" not in summary:
        return {"start": None}
    start, domains = summary["start"], summary["domains"]
    has_margin = any(margin(found[when].get("loss_interval")) for found in domains.values() if found for when in _TIMES)
    return {
        "start": start,
        "changes": _done(start),
        "over": f" ({over(unit_of_summary(summary))})" if has_margin else "",
        "domain_columns": [title for _, title, _ in _COLUMNS],
        "domains": [
            (
                name,
                [
                    f"{shown.format(found[when][key])}{margin(found[when].get(f'{key}_interval'))}"
                    for key, _, shown in _COLUMNS
                    for when in _TIMES
                ],
            )
            for name, found in domains.items()
            if found is not None
        ],
        "old_text": bool(domains["old"]),
    }


def _done(start: Mapping[str, Any]) -> str:
    """What was done to the checkpoint."""
    parts = []
    if start["new_head"]:
        parts.append("a new head for masked tokens")
    if start["positions"]:
        parts.append("{:,} positions instead of {:,}".format(*reversed(start["positions"])))
    if start["new_words"]:
        change = start["tokens_after"] / start["tokens_before"] - 1.0
        parts.append(f"{start['new_words']:,} new words ({', '.join(start['examples'])}), {change:+.1%} tokens")
    return "".join(f"; {part}" for part in parts)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    flat: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat.append(f"{prefix}{key} = {value}")
    return flat
