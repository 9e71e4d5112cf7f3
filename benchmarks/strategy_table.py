"""What strategies.py has found, as a table and a picture: means, and differences to random masking, paired by seed.

The intervals of a figure's differences hold together: each is made at the level 1 - 0.05/12 (Bonferroni's correction
for twelve strategies, one more than there are differences), so that in 95 of 100 cases none of them misses. Figures and
corpora are not corrected for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tables import told

from unmask.masking.settings import STRATEGIES
from unmask.measure.uncertainty import CONFIDENCE, mean_interval

BASELINE = "random"
LEVEL = 1.0 - (1.0 - CONFIDENCE) / len(STRATEGIES)


class Figure(NamedTuple):
    """A column of the table."""

    title: str
    scale: float
    decimals: int
    less_is_better: bool = False

    def told(self, value: float, *, sign: bool = False) -> str:
        return f"{value * self.scale:{'+' if sign else ''}.{self.decimals}f}"


FIGURES = {
    "loss": Figure("held-out loss, nats", 1.0, 3, less_is_better=True),
    "sst2": Figure("SST-2, accuracy %", 100.0, 1),
    "wnut17": Figure("WNUT-17, entity F1 %", 100.0, 1),
    "ud_english_ewt": Figure("parts of speech, accuracy %", 100.0, 1),
}


class Difference(NamedTuple):
    """A strategy's figure minus the baseline's, over the seeds that both have."""

    mean: float
    half: float | None  # of the interval; None with one seed, or where all seeds have the same difference

    @property
    def is_shown(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half


Entries = Sequence[Mapping[str, Any]]
Values = dict[str, dict[int, Mapping[str, float]]]  # figures by strategy and seed


def by_corpus(entries: Entries) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for entry in entries:
        seeds = found.setdefault(entry["corpus"], {}).setdefault(entry["strategy"], {})
        seeds[entry["seed"]] = entry["figures"]
    return found


def difference(values: Values, strategy: str, figure: str) -> Difference | None:
    """None where there is no seed that both have."""
    first, second = values.get(strategy, {}), values.get(BASELINE, {})
    apart = [first[seed][figure] - second[seed][figure] for seed in sorted(first.keys() & second.keys())]
    if not apart:
        return None
    interval = mean_interval(apart, LEVEL)
    return Difference(fmean(apart), None if interval is None else (interval[1] - interval[0]) / 2)


def page(entries: Entries, *, seeds: int) -> list[str]:
    """What stands on the page: how to read it, and of each corpus the table and what it shows.

    Args:
        entries: Lines of the results.
        seeds: How many each strategy is to have.
    """
    if not entries:
        return ["No cell is measured yet."]
    lines = [*settings(entries), "", *HEAD]
    for corpus, values in by_corpus(entries).items():
        lines += ["", f"**{corpus}**", "", *table(values), "", verdict(corpus, values, seeds)]
    return lines


HEAD = (
    f"A figure is a mean over the seeds. Beside it stands the difference to `{BASELINE}`, paired by seed, ± half its",
    "simultaneous 95 % interval: Student's t with Bonferroni's correction for "
    f"{len(STRATEGIES)} comparisons a figure. One that leaves 0",
    "out is **bold**; there is no ± with one seed, or where all seeds have the same difference. Less is better in the",
    "loss, more in the others.",
)


def settings(entries: Entries) -> list[str]:
    """How the cells were made; all are of one plan."""
    plan = entries[0]["plan"]
    tokens = sorted({entry["tokens"] for entry in entries})
    read = f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
    tuning = "; ".join(
        f"{name} {each['epochs']} epochs of {'all' if each['sentences'] is None else format(each['sentences'], ',')} "
        f"sentences, {each['batch_size']} a step, learning rate {each['learning_rate']:g}"
        for name, each in plan["tuning"].items()
    )
    others = f"; {', '.join(f'`{each}`' for each in plan['overrides'])}" if plan["overrides"] else ""
    return [
        f"Recipe `tiny`, {plan['steps']:,} steps ({read} tokens of the first {plan['megabytes']:g} MB), WordPiece of "
        f"{plan['vocab_size']:,},",
        f"scores of `adaptive` and `semantic` every {plan['refresh_steps']} steps{others}. Fine-tuning: {tuning}.",
    ]


def table(values: Values) -> list[str]:
    """A row a strategy."""
    titles = " | ".join(f"{figure.title} | to `{BASELINE}`" for figure in FIGURES.values())
    lines = [f"| strategy | seeds | {titles} |", "| --- |" + " --- |" * (1 + 2 * len(FIGURES))]
    for strategy in STRATEGIES:
        runs = values.get(strategy, {})
        row = [f"`{strategy}`", str(len(runs))]
        for name, figure in FIGURES.items():
            row.append(figure.told(fmean(run[name] for run in runs.values())) if runs else "")
            row.append("" if strategy == BASELINE else _told(difference(values, strategy, name), figure))
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _told(apart: Difference | None, figure: Figure) -> str:
    if apart is None:
        return ""
    text = figure.told(apart.mean, sign=True)
    text += "" if apart.half is None else f" ± {figure.told(apart.half)}"
    return f"**{text}**" if apart.is_shown else text


def verdict(corpus: str, values: Values, seeds: int) -> str:
    """Which differences are shown, and which seeds are missing."""
    sentences = []
    for name, figure in FIGURES.items():
        found = {strategy: difference(values, strategy, name) for strategy in STRATEGIES if strategy != BASELINE}
        shown = [(strategy, each) for strategy, each in found.items() if each is not None and each.is_shown]
        title = figure.title.partition(",")[0]
        for word, wanted in (("better", not figure.less_is_better), ("worse", figure.less_is_better)):
            some = [f"`{strategy}`" for strategy, each in shown if (each.mean > 0.0) == wanted]
            if some:
                sentences.append(f"{', '.join(some)} {'is' if len(some) == 1 else 'are'} {word} in {title}")
    said = "; ".join(sentences) if sentences else "no strategy is shown to differ from it in any figure"
    missing = [f"`{name}` {len(values.get(name, {}))}" for name in STRATEGIES if len(values.get(name, {})) < seeds]
    rest = f" Not complete: of {seeds} seeds there are {', '.join(missing)}." if missing else ""
    return f"Against `{BASELINE}` on {corpus}: {said}.{rest}"


def made(entries: Entries) -> list[str]:
    """When, on what and with which versions: a line for all that agree."""
    places: dict[str, list[str]] = {}
    for entry in entries:
        places.setdefault(told(entry), []).append(entry["date"])
    lines = []
    for place, dates in places.items():
        days = min(dates) if min(dates) == max(dates) else f"{min(dates)} to {max(dates)}"
        cells = "" if len(places) == 1 else f" ({len(dates)} cells)"
        lines.append(f"{days}{cells}, {place}.")
    return lines


def draw(entries: Entries, path: Path) -> None:
    """Writes the picture."""
    from unmask.report.plots import to_svg

    path.write_text(to_svg(drawing(entries)), encoding="utf-8")


def drawing(entries: Entries) -> Any:
    """Differences with their intervals: a row of panels a corpus, a panel a figure, a line a strategy."""
    from matplotlib.figure import Figure as Drawing

    from unmask.report.plots import HELD, INK, SOFT

    corpora = by_corpus(entries)
    names = [name for name in STRATEGIES if name != BASELINE]
    whole = Drawing(figsize=(10.5, 0.6 + 3.1 * len(corpora)), layout="constrained")
    grid = whole.subplots(len(corpora), len(FIGURES), squeeze=False, sharey=True)
    for row, (corpus, values) in zip(grid, corpora.items(), strict=True):
        row[0].set_ylabel(corpus)
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.5, -0.5)
        for axes, (key, figure) in zip(row, FIGURES.items(), strict=True):
            axes.axvline(0.0, color=SOFT, lw=1)
            for place, name in enumerate(names):
                apart = difference(values, name, key)
                if apart is not None:
                    colour = HELD if apart.is_shown else INK
                    half = None if apart.half is None else apart.half * figure.scale
                    axes.errorbar(apart.mean * figure.scale, place, xerr=half, fmt="o", ms=4, lw=1.4, color=colour)
            for side in ("top", "right", "left"):
                axes.spines[side].set_visible(False)
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x", color="#e6e9ee", lw=0.8)
            axes.set_axisbelow(True)
            better = "left" if figure.less_is_better else "right"
            axes.set_title(f"{figure.title}\n(better: {better})", fontsize=9)
    whole.supxlabel(f"difference to {BASELINE}; where the interval leaves 0 out, in colour", fontsize=9)
    return whole
