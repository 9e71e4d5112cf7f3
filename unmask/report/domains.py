"""What a further training brought on the new text and cost on the old, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from unmask.margins import margin, over, unit_of_summary

_COLUMNS = (
    ("loss", "nats per token", "{:.3f}"),
    ("accuracy", "right", "{:.1%}"),
    ("bits_per_token_byte", "bits per token byte", "{:.3f}"),
)
_TIMES = ("before", "after")


def domains_section(summary: Mapping[str, Any]) -> str:
    """The section of the report; empty for a training that began with new weights.

    Args:
        summary: As in summary.json.
    """
    if "domains" not in summary:
        return ""
    start, domains = summary["start"], summary["domains"]
    head = "".join(f"<th>{title}, before</th><th>after</th>" for _, title, _ in _COLUMNS)
    rows = "".join(_row(name, found) for name, found in domains.items() if found is not None)
    has_margin = any(margin(found[when].get("loss_interval")) for found in domains.values() if found for when in _TIMES)
    without = "" if domains["old"] else "<p class=soft>There was no old text to measure what is forgotten.</p>"
    return (
        f"<h2>Before and after</h2><p class=soft>Training began with <code>{escape(start['checkpoint'])}</code>"
        f"{escape(_done(start))}. Held-out text, under the same masks before and after"
        f"{f' ({over(unit_of_summary(summary))})' if has_margin else ''}.</p>"
        f"<table><tr><th></th>{head}</tr>{rows}</table>{without}"
    )


def _row(name: str, found: Mapping[str, Any]) -> str:
    cells = "".join(
        f"<td class=number>{shown.format(found[when][key])}{margin(found[when].get(f'{key}_interval'))}</td>"
        for key, _, shown in _COLUMNS
        for when in _TIMES
    )
    return f"<tr><td>{name} text</td>{cells}</tr>"


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
