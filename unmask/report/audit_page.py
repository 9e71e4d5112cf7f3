"""The audit of masking as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.files import write_atomically
from unmask.margins import NORMAL
from unmask.report.page import STYLE
from unmask.report.plots import HELD, SOFT, TRAIN, new_figure, to_svg


class AuditedPairs(Protocol):
    """Of sentence pairs; see `unmask.evaluation.audit_pairs.PairAudit`. A rate comes with its standard error."""

    @property
    def first(self) -> tuple[float, float]: ...  # noqa: D102
    @property
    def second(self) -> tuple[float, float]: ...  # noqa: D102
    @property
    def pairs(self) -> int: ...  # noqa: D102
    @property
    def with_both(self) -> int: ...  # noqa: D102


class AuditedUnits(Protocol):
    """Some units; see `unmask.evaluation.audit_inclusion.Inclusion`."""

    @property
    def units(self) -> int: ...  # noqa: D102
    @property
    def asked(self) -> float: ...  # noqa: D102
    @property
    def realised(self) -> float: ...  # noqa: D102
    @property
    def broken(self) -> bool: ...  # noqa: D102


class AuditedInclusion(Protocol):
    """How often units are predicted; see `unmask.evaluation.audit_inclusion.InclusionAudit`."""

    def groups(self) -> Iterable[tuple[str, str, AuditedUnits]]: ...  # noqa: D102


class Audited(Protocol):
    """What the page shows of an audit; see `unmask.evaluation.audit.Audit`."""

    @property
    def tokens(self) -> int: ...  # noqa: D102
    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def expected_rate(self) -> float: ...  # noqa: D102
    @property
    def rate(self) -> float: ...  # noqa: D102
    @property
    def rate_stderr(self) -> float: ...  # noqa: D102
    @property
    def shares(self) -> tuple[float, float, float]: ...  # noqa: D102
    @property
    def rows_without_target(self) -> int: ...  # noqa: D102
    @property
    def by_pieces(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def by_bytes(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def by_frequency(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def span_lengths(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def by_pos(self) -> Mapping[str, tuple[int, int]] | None: ...  # noqa: D102
    @property
    def pairs(self) -> AuditedPairs | None: ...  # noqa: D102
    @property
    def tokens_a_draw(self) -> float: ...  # noqa: D102
    @property
    def inclusion(self) -> AuditedInclusion: ...  # noqa: D102
    @property
    def broken(self) -> tuple[str, ...]: ...  # noqa: D102


def write_audit(path: Path, audits: Mapping[str, Audited], *, data: str, left_out: Mapping[str, str]) -> None:
    """Writes the page.

    Args:
        path: The file.
        audits: By strategy.
        data: What was masked, in words.
        left_out: Strategies that were not audited, and why.
    """
    parts = ["<h1>unmask: audit of masking</h1>", f"<p class=soft>{escape(data)}</p>", _table(audits)]
    parts += [
        f"<p class=remark>{escape(name)}: {escape('; '.join(entry.broken))}.</p>"
        for name, entry in audits.items()
        if entry.broken
    ]
    if left_out:
        parts.append(
            f"<p class=soft>Not audited: {escape('; '.join(f'{n} ({why})' for n, why in left_out.items()))}.</p>"
        )
    for name, entry in audits.items():
        parts += [f"<h2>{escape(name)}</h2>", *_pairs(entry.pairs), "<div class=curves>", *_plots(entry), "</div>"]
        parts.append(_inclusion(entry.inclusion))
    page = (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>unmask: audit of masking</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
    write_atomically(path, page)


def _table(audits: Mapping[str, Audited]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "strategy",
            "asked",
            "predicted (± 95 %, over pieces)",
            "masks",
            "random",
            "unchanged",
            "pieces without target",
            "promises",
        )
    )
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=number>{a.expected_rate:.2%}</td>"
        f"<td class=number>{a.rate:.2%} ± {NORMAL * a.rate_stderr:.2%}</td>"
        + "".join(f"<td class=number>{share:.1%}</td>" for share in a.shares)
        + f"<td class=number>{a.rows_without_target:,} of {a.rows:,}</td>"
        + f"<td>{'broken' if a.broken else 'kept'}</td></tr>"
        for name, a in audits.items()
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _pairs(found: AuditedPairs | None) -> list[str]:
    if found is None:
        return []
    (first, first_stderr), (second, second_stderr) = found.first, found.second
    return [
        f"<p class=soft>Sentence pairs: {first:.2%} ± {NORMAL * first_stderr:.2%} of the tokens in first halves are "
        f"predicted, {second:.2%} ± {NORMAL * second_stderr:.2%} in second halves (± 95 %, over pairs); some in "
        f"both of {found.with_both:,} of {found.pairs:,} pairs.</p>"
    ]


def _inclusion(found: AuditedInclusion) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("units by", "", "units", "asked", "predicted"))
    rows, before = [], None
    for kind, name, units in found.groups():
        rows.append(
            f"<tr><td>{'' if kind == before else escape(kind)}</td><td>{escape(name)}</td>"
            f"<td class=number>{units.units:,}</td><td class=number>{units.asked:.2%}</td>"
            f"<td class=number>{units.realised:.2%}{' (broken)' if units.broken else ''}</td></tr>"
        )
        before = kind
    return (
        "<h3>How often units are predicted, and how often they should be</h3>"
        f"<table><tr>{head}</tr>{''.join(rows)}</table>"
    )


def _plots(entry: Audited) -> list[str]:
    plots = [
        _rates(entry.by_pieces, entry, "pieces of the word", _from_one(len(entry.by_pieces))),
        _rates(entry.by_bytes, entry, "bytes of the word", _from_one(len(entry.by_bytes))),
        _rates(
            entry.by_frequency,
            entry,
            "times that the token stands in the text",
            [f"{10**n:,}+" for n in range(len(entry.by_frequency))],
        ),
        _histogram(entry.span_lengths),
    ]
    if entry.by_pos:
        counts = np.array(list(entry.by_pos.values()), dtype=np.int64)
        plots.append(_rates(counts, entry, "part of speech", list(entry.by_pos), upright=True))
    return plots


def _from_one(size: int) -> list[str]:
    return [*(str(n) for n in range(1, size)), f"{size}+"]


def _rates(table: NDArray[np.int64], entry: Audited, label: str, groups: list[str], *, upright: bool = False) -> str:
    """Bars of the rate by group, with binomial 95 % intervals, and the overall rate as a line.

    Args:
        table: [groups, 2]: tokens and targets.
        entry: The audit; its units are what is drawn, so that a draw is of several tokens.
        label: What the groups are.
        groups: Their names.
        upright: Whether the names are written upwards, since they are long.
    """
    figure, axes = new_figure()
    met = [(group, tokens, chosen) for group, (tokens, chosen) in zip(groups, table.tolist(), strict=True) if tokens]
    shares = [chosen / tokens for _, tokens, chosen in met]
    errors = [
        NORMAL * (share * (1.0 - share) * entry.tokens_a_draw / tokens) ** 0.5
        for share, (_, tokens, _) in zip(shares, met, strict=True)
    ]
    axes.bar([group for group, _, _ in met], [100 * s for s in shares], yerr=[100 * e for e in errors], color=TRAIN)
    axes.axhline(100 * entry.rate, color=SOFT, lw=1, ls="--")
    if upright:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel(label)
    axes.set_ylabel("predicted, %")
    return to_svg(figure)


def _histogram(lengths: NDArray[np.int64]) -> str:
    figure, axes = new_figure()
    axes.bar(_from_one(len(lengths)), 100 * lengths / max(int(lengths.sum()), 1), color=HELD)
    axes.set_xlabel("words of a stretch of predicted tokens")
    axes.set_ylabel("stretches, %")
    return to_svg(figure)
