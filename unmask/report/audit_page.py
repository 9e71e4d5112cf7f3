"""The audit of masking as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.files import write_atomically
from unmask.margins import NORMAL
from unmask.report.page import TEMPLATES, drawn
from unmask.report.plots import HELD, SOFT, TRAIN, new_figure, to_svg


class AuditedPairs(Protocol):
    """Of sentence pairs; see `unmask.measuring.inclusion.PairAudit`. A rate comes with its standard error."""

    @property
    def first(self) -> tuple[float, float]: ...  # noqa: D102
    @property
    def second(self) -> tuple[float, float]: ...  # noqa: D102
    @property
    def pairs(self) -> int: ...  # noqa: D102
    @property
    def with_both(self) -> int: ...  # noqa: D102


class AuditedUnits(Protocol):
    """Some units; see `unmask.measuring.inclusion.Inclusion`."""

    @property
    def units(self) -> int: ...  # noqa: D102
    @property
    def asked(self) -> float: ...  # noqa: D102
    @property
    def realised(self) -> float: ...  # noqa: D102
    @property
    def broken(self) -> bool: ...  # noqa: D102


class AuditedInclusion(Protocol):
    """How often units are predicted; see `unmask.measuring.inclusion.InclusionAudit`."""

    def groups(self) -> Iterable[tuple[str, str, AuditedUnits]]: ...  # noqa: D102


class Audited(Protocol):
    """What the page shows of an audit; see `unmask.measuring.masking_audit.Audit`."""

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
    page = TEMPLATES.get_template("audit.html").render(
        audits=audits,
        data=data,
        left_out=left_out,
        plots={name: drawn(*_plots(entry)) for name, entry in audits.items()},
        margin=lambda rate, stderr: f"{rate:.2%} ± {NORMAL * stderr:.2%}",
    )
    write_atomically(path, page)


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
