"""report.html: curves, figures, predictions before and after training, ledger and settings in one file.

All pages are templates of Jinja2, in `templates/`, beside what is put into them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from unmask.core.files import write_atomically
from unmask.core.results import NORMAL, documents, margin, over, sentence, unit_of_summary
from unmask.data.data_folder import Manifest
from unmask.report import plots
from unmask.report.plots import HELD, INK, SOFT, TRAIN, new_figure, to_svg

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
    def token(self) -> str: ...
    @property
    def space_before(self) -> bool: ...
    @property
    def predicted(self) -> str | None: ...
    @property
    def probability(self) -> float | None: ...


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


# ----------------------------------------
# The audit of masking as one self-contained page.


class AuditedPairs(Protocol):
    """Of sentence pairs; see `unmask.measure.masking.PairAudit`. A rate comes with its standard error."""

    @property
    def first(self) -> tuple[float, float]: ...
    @property
    def second(self) -> tuple[float, float]: ...
    @property
    def pairs(self) -> int: ...
    @property
    def with_both(self) -> int: ...


class AuditedUnits(Protocol):
    """Some units; see `unmask.measure.masking.Inclusion`."""

    @property
    def units(self) -> int: ...
    @property
    def asked(self) -> float: ...
    @property
    def realised(self) -> float: ...
    @property
    def broken(self) -> bool: ...


class AuditedInclusion(Protocol):
    """How often units are predicted; see `unmask.measure.masking.InclusionAudit`."""

    def groups(self) -> Iterable[tuple[str, str, AuditedUnits]]: ...


class Audited(Protocol):
    """What the page shows of an audit; see `unmask.measure.masking.Audit`."""

    @property
    def tokens(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def expected_rate(self) -> float: ...
    @property
    def rate(self) -> float: ...
    @property
    def rate_stderr(self) -> float: ...
    @property
    def shares(self) -> tuple[float, float, float]: ...
    @property
    def rows_without_target(self) -> int: ...
    @property
    def by_pieces(self) -> NDArray[np.int64]: ...
    @property
    def by_bytes(self) -> NDArray[np.int64]: ...
    @property
    def by_frequency(self) -> NDArray[np.int64]: ...
    @property
    def span_lengths(self) -> NDArray[np.int64]: ...
    @property
    def by_pos(self) -> Mapping[str, tuple[int, int]] | None: ...
    @property
    def pairs(self) -> AuditedPairs | None: ...
    @property
    def tokens_a_draw(self) -> float: ...
    @property
    def inclusion(self) -> AuditedInclusion: ...
    @property
    def broken(self) -> tuple[str, ...]: ...


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


# ----------------------------------------
# The result of fine-tuning as one self-contained page: figures, seeds, curves, confusion, classes, settings.

MOST_CLASSES = 24
_WITH_COUNTS = 12  # more cells have no room for numbers
_SHADES = LinearSegmentedColormap.from_list("unmask", ["#ffffff", TRAIN, "#1f4b8f"])


def write_finetune_report(
    path: Path,
    *,
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    classes: tuple[Sequence[str], Sequence[str]],
    files: Mapping[str, str],
) -> None:
    """Writes the page. It needs nothing but itself.

    Args:
        path: The file.
        summary: As in summary.json.
        settings: Of the fine-tuning.
        history: The lines of metrics.jsonl.
        classes: The right and the predicted classes of the validation file; empty where the task has none.
        files: Names of the files, by what they are for.
    """
    right, predicted = classes
    page = TEMPLATES.get_template("finetune.html").render(
        title=f"{summary['task']}, {files['train']}",
        summary=summary,
        files=files,
        headline=_headline_of_finetune_page(summary),
        columns=["seed", *summary["metrics"], "epochs", "best epoch", "seconds"],
        shown=_shown,
        plots=drawn(metric_curves(history, summary["metric"]), loss_curves(history)),
        confusion=drawn(confusion_plot(right, predicted)) if right else None,
        classes=_by_class(right, predicted) if right else [],
        settings=", ".join(_settings(settings)),
    )
    write_atomically(path, page)


def _headline_of_finetune_page(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    several = len(summary["seeds"]) > 1
    cells = []
    for name, value in summary["metrics"].items():
        spread = summary["margin"][name]
        label = name.replace("_", " ")
        if several and spread is not None:
            seeds = f"{len(summary['seeds'])} seeds"
            label += f"; mean of {seeds} {_shown(summary['mean'][name])} ± {_shown(spread)} (± 95 %, over seeds)"
        cells.append((_shown(value), label))
    cells += [(_shown(value), f"{name.replace('_', ' ')} on the test file") for name, value in _test(summary).items()]
    cells.append((f"{summary['num_parameters'] / 1e6:.3g}M", "parameters of the encoder"))
    return cells


def _test(summary: Mapping[str, Any]) -> Mapping[str, float | None]:
    found: Mapping[str, float | None] = summary.get("test_metrics", {})
    return found


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _by_class(right: Sequence[str], predicted: Sequence[str]) -> list[tuple[str, tuple[float, ...], int]]:
    """Precision, recall and F1 of each class, and its examples."""
    from sklearn.metrics import precision_recall_fscore_support

    names = sorted(set(right) | set(predicted))
    found = precision_recall_fscore_support(right, predicted, labels=names, zero_division=0)
    return [(name, tuple(values), int(count)) for name, *values, count in zip(names, *found, strict=True)]


def _settings(settings: Mapping[str, Any]) -> list[str]:
    shown = [f"{key} = {value}" for key, value in settings.items() if value is not None and not isinstance(value, dict)]
    shown += [
        f"{key}.{inner} = {value}"
        for key, table in settings.items()
        if isinstance(table, dict)
        for inner, value in table.items()
        if value is not None
    ]
    return shown


def metric_curves(history: Sequence[Mapping[str, Any]], metric: str) -> str:
    """The metric on the validation file over the epochs, a line a seed."""
    figure, axes = new_figure()
    for lines in _by_seed(history):
        known = [(line["epoch"], line["metrics"][metric]) for line in lines if line["metrics"][metric] is not None]
        axes.plot([e for e, _ in known], [v for _, v in known], color=HELD, lw=1.4, marker="o", ms=3.5, alpha=0.75)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epochs")
    axes.set_ylabel(f"{metric.replace('_', ' ')} on the validation file")
    return to_svg(figure)


def loss_curves(history: Sequence[Mapping[str, Any]]) -> str:
    """The mean training loss between evaluations over the epochs, a line a seed."""
    figure, axes = new_figure()
    for lines in _by_seed(history):
        axes.plot(
            [line["epoch"] for line in lines],
            [line["loss"] for line in lines],
            color="#4c78b5", lw=1.4, marker="o", ms=3.5, alpha=0.75,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epochs")
    axes.set_ylabel("training loss")
    return to_svg(figure)


def confusion_plot(right: Sequence[str], predicted: Sequence[str]) -> str:
    """How often which class is taken for which. Shades are shares of the right class's examples.

    More than 24 classes are cut to the commonest, with all others as one.
    """
    from sklearn.metrics import confusion_matrix

    counts = Counter([*right, *predicted])
    names = sorted(counts)
    if len(names) > MOST_CLASSES:
        kept = {name for name, _ in counts.most_common(MOST_CLASSES - 1)}
        right, predicted = ([n if n in kept else "others" for n in each] for each in (right, predicted))
        names = [*sorted(kept), "others"]
    matrix = confusion_matrix(right, predicted, labels=names)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    size = 2.2 + 0.42 * max(len(names), 5)
    figure = Figure(figsize=(size + 0.6, size), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap=_SHADES, vmin=0.0, vmax=1.0)
    axes.set_xticks(range(len(names)), [_short(name) for name in names], rotation=90 if len(names) > 4 else 0)
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    if len(names) <= _WITH_COUNTS:
        for (row, column), count in np.ndenumerate(matrix):
            color = "#ffffff" if shares[row, column] > 0.6 else INK
            axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=color)
    axes.tick_params(labelsize=8)
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of the class")
    return to_svg(figure)


def _short(name: str) -> str:
    shown = name or "(none)"
    return shown.replace("$", r"\$") if len(shown) <= 16 else shown[:15].replace("$", r"\$") + "…"


def _by_seed(history: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    seeds = dict.fromkeys(line["seed"] for line in history)
    return [[line for line in history if line["seed"] == seed] for seed in seeds]
