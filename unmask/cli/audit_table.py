"""The audit of masking on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from unmask.cli.progress import console
from unmask.evaluation.audit import Audit
from unmask.report.margins import NORMAL


def show_audits(audits: Mapping[str, Audit], left_out: Mapping[str, str], followers: Sequence[str]) -> None:
    """Prints the audits.

    Args:
        audits: By strategy.
        left_out: Strategies that were not audited, and why.
        followers: Strategies that follow a model in training.
    """
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(
        ("", "asked", "predicted ± 95 %, over pieces", "mask/random/kept %", "no target", "promises")
    ):
        table.add_column(name, justify="left" if number in (0, 5) else "right")
    for name, entry in audits.items():
        table.add_row(
            name,
            f"{entry.expected_rate:.2%}",
            f"{entry.rate:.2%} ± {NORMAL * entry.rate_stderr:.2%}",
            "/".join(f"{100 * share:.1f}" for share in entry.shares),
            f"{entry.rows_without_target / max(entry.rows, 1):.1%}",
            "[red]broken[/red]" if entry.broken else "[green]kept[/green]",
        )
    out = console()
    out.print(table)
    _show_pos(audits)
    _show_pairs(audits)
    if len(audits) == 1:
        _show_inclusion(*audits.values())
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


def _show_pos(audits: Mapping[str, Audit]) -> None:
    """A line for each part of speech, a column for each strategy; nothing where the data has none."""
    found = {name: entry.by_pos for name, entry in audits.items() if entry.by_pos}
    if not found:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in found:
        table.add_column(name, justify="right", overflow="fold")
    for tag in dict.fromkeys(tag for by_pos in found.values() for tag in by_pos):
        cells = (by_pos.get(tag, (0, 0)) for by_pos in found.values())
        table.add_row(Text(tag), *(f"{100 * chosen / tokens:.1f}" if tokens else "" for tokens, chosen in cells))
    console().print("\nPredicted, in % of the tokens of each part of speech:")
    console().print(table)


def _show_inclusion(entry: Audit) -> None:
    """A line for each group of units: how often they should be predicted, and how often they are."""
    table = Table(box=None, pad_edge=False)
    for name in ("units by", "", "units", "asked", "predicted"):
        table.add_column(name, justify="left" if name in ("units by", "") else "right")
    before = None
    for kind, name, found in entry.inclusion.groups():
        style = "red" if found.broken else None
        shown = (f"{found.units:,}", f"{found.asked:.2%}", f"{found.realised:.2%}")
        table.add_row("" if kind == before else kind, name, *shown, style=style)
        before = kind
    console().print("")
    console().print(table)


def _show_pairs(audits: Mapping[str, Audit]) -> None:
    for name, entry in audits.items():
        if (found := entry.pairs) is not None:
            console().print(
                f"{name}: {found.first.rate:.2%} of the tokens in first halves of pairs are predicted, "
                f"{found.second.rate:.2%} in second halves, some in both of {found.with_both:,} of {found.pairs:,} "
                "pairs",
                markup=False,
                soft_wrap=True,
            )
