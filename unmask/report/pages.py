"""Pages of a pretraining, an audit of masking, a comparison, a fine-tuning and an embedder.

Each page is one self-contained file, made from a Jinja2 template in `templates/` by a function here, which gathers its
values. Style and curves, in `static/`, are shared with the studio.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from unmask.core.errors import listed
from unmask.core.files import leaves, write_atomically
from unmask.core.results import (
    NORMAL,
    Sheet,
    Shown,
    ShownText,
    as_html,
    decimals,
    documents,
    margin,
    over,
    parts_of,
    sentence,
)
from unmask.data.data_folder import Manifest
from unmask.report.plots import Curve, Metrics, plot, training_curves
from unmask.tasks.task import Judged

MOST_TEXTS = 8  # of held-out text, with predictions
TEMPLATES = Environment(
    loader=PackageLoader("unmask.report"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.policies["json.dumps_kwargs"] = {"sort_keys": False}  # keeps recipes in their order
STATIC = Path(__file__).parent / "static"
for _name, _files in {"look": ("look.css", "uplot.css"), "script": ("uplot.js", "plot.js")}.items():
    TEMPLATES.globals[_name] = Markup("\n".join((STATIC / each).read_text(encoding="utf-8") for each in _files))
_COLUMNS = (
    ("loss", "nats per token", "{:.3f}"),
    ("accuracy", "right", "{:.1%}"),
    ("bits_per_token_byte", "bits per byte of hidden tokens", "{:.3f}"),
)


def write_page(path: Path, template: str, *, plots: Sequence[Any] = (), **values: Any) -> None:
    """Writes a page, with the script that draws its plots, if it has any."""
    values["plots"] = [each for each in plots if each]
    write_atomically(path, TEMPLATES.get_template(template).render(values))


def in_millions(number: int) -> str:
    """`3.1M`, or the number itself below a million."""
    return f"{number / 1e6:.1f}M" if number >= 1_000_000 else f"{number:,}"


TEMPLATES.filters.update(in_millions=in_millions, sentence=sentence)


def write_report(  # noqa: PLR0913  (what a page is made of)
    path: Path,
    *,
    recipe: Mapping[str, Any],
    usual: Mapping[str, Any],
    manifest: Manifest,
    summary: Mapping[str, Any],
    metrics: Metrics,
    before: Sequence[ShownText],
    after: Sequence[ShownText],
    remark: str | None = None,
) -> None:
    """Writes the page of a pretraining, whose recipe is compared with the `usual` one. `before` and `after` are
    held-out texts with the predictions of the untrained and of the trained model."""
    measured = documents(summary)
    if summary["validation_loss_interval"] is not None:
        measured = f"± 95 %, over {measured}"
    gain = summary["unigram_entropy"] - summary["validation_loss"]
    headline = [
        (
            f"{summary['validation_loss']:.3f}{margin(summary['validation_loss_interval'])}",
            f"held-out loss, nats per token ({measured})",
        ),
        (f"{abs(gain):.2f}", f"nats {'better' if gain >= 0 else 'worse'} than word frequencies alone"),
        (f"{summary['validation_accuracy']:.1%}", "hidden tokens predicted right"),
        (
            f"{summary['bits_per_token_byte']:.3f}{margin(summary['bits_per_token_byte_interval'])}",
            f"bits per byte of hidden tokens ({measured})",
        ),
        *(
            (f"{figures['accuracy']:.1%}", f"{name.replace('_', ' ')}: right of {figures['count']:,}")
            for name, figures in summary.get("objectives", {}).items()
        ),
        (in_millions(summary["tokens_seen"]), f"tokens seen, {summary['epochs']:.1f} epochs"),
        (f"{summary['tokens_per_second']:,.0f}", "tokens a second"),
        (f"{summary['steps']:,}", "steps"),
        (f"{summary['seconds'] / 60:.1f} min", f"of training on {summary['device']}"),
    ]
    # With a checkpoint: what training gained on the new text, and what it cost on the old.
    of_start = {name: figures for name, figures in summary.get("domains", {}).items() if figures is not None}
    domains = {
        name: [
            f"{shown.format(figures[when][key])}{margin(figures[when].get(f'{key}_interval'))}"
            for key, _, shown in _COLUMNS
            for when in ("before", "after")
        ]
        for name, figures in of_start.items()
    }
    of_domains = [f"{figures['after']['documents']:,} of the {name} text" for name, figures in of_start.items()]
    own, defaults = flat(recipe), flat(usual)
    write_page(
        path,
        "report.html",
        title=f"{in_millions(summary['num_parameters'])} parameters, {recipe['masking']['strategy'] or 'own'} masking",
        sources=listed((Path(source["path"]).name for source in manifest.sources), 8),
        headline=headline,
        remarks=[each for each in (remark, summary["validation_warning"]) if each],
        start=summary["start"] if domains else None,
        over=f" ({over(summary['validation_unit'])}: {', '.join(of_domains)})" if "±" in str(domains) else "",
        domain_columns=[title for _, title, _ in _COLUMNS],
        domains=domains,
        plots=training_curves(
            metrics, summary["unigram_entropy"], weighted=own.get("masking.rate.loss_weight") == "inverse"
        ),
        texts=[(list(parts_of(old)), list(parts_of(new))) for old, new in zip(before, after, strict=True)][:MOST_TEXTS],
        manifest=manifest,
        skipped=", ".join(f"{number:,} {reason}" for reason, number in manifest.skipped.items()) or "nothing",
        near=manifest.near_duplicates,
        others=[(key, value, defaults.get(key, "")) for key, value in own.items() if value != defaults.get(key)],
        settings=own.items(),
    )


def flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings by their dotted keys; those without a value are left out."""
    return {key: str(value) for key, value in leaves(values) if value is not None}


def write_audit(
    path: Path,
    data: str,
    *,
    shown: Iterable[Shown],
    strategies: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sheet],
) -> None:
    """Writes the page of an audit of masking: what `shown` yields and, for each strategy, plots of its figures (those
    of `unmask.measure.masking.Audit`) and its table of units in `groups`, if it has one."""
    sections = []
    for name, audit in strategies.items():
        by_digits = {f"{10**digits:,}+": counts for digits, counts in enumerate(audit["by_frequency"])}
        counts_by = {
            "pieces of the word": _numbered(audit["by_pieces"]),
            "bytes of the word": _numbered(audit["by_bytes"]),
            "occurrences of the token in the text": by_digits,
            "part of speech": audit["by_pos"] or {},
        }
        plots = []
        for label, counts in counts_by.items():
            shares = {"all": _estimate(audit["rate"])}
            for group, (tokens, targets) in counts.items():
                if tokens:
                    # 95 % intervals are binomial, over draws: units are drawn, and a draw is of several tokens.
                    share = targets / tokens
                    error = NORMAL * math.sqrt(share * (1.0 - share) * audit["tokens_a_draw"] / tokens)
                    shares[group] = _estimate(share, error)
            if counts:
                plots.append({"title": f"predicted, %, by {label}", "zero": False, "estimates": shares})
        total = max(sum(audit["span_lengths"]), 1)
        spans = {length: _estimate(count / total) for length, count in _numbered(audit["span_lengths"]).items()}
        plots.append({"title": "spans of predicted tokens, %, by their words", "zero": True, "estimates": spans})
        units = Markup(as_html(groups[name])) if name in groups else None
        sections.append((name, plots, units))
    write_shown(path, "unmask: audit of masking", data, shown, sections)


def _numbered(values: Sequence[Any]) -> dict[str, Any]:
    """Values by their numbers from 1 on, the last one open-ended. JavaScript would put keys that are numbers first."""
    names = [*(f"= {number}" for number in range(1, len(values))), f"≥ {len(values)}"]
    return dict(zip(names, values, strict=True))


def _estimate(share: float, error: float | None = None) -> dict[str, Any]:
    """A share in %, with its interval if there is an error, as `intervalsIn` of plot.js takes it."""
    interval = None if error is None else [100.0 * (share - error), 100.0 * (share + error)]
    return {"values": [], "mean": 100.0 * share, "interval": interval}


def write_shown(
    path: Path, title: str, data: str, shown: Iterable[Shown], sections: Sequence[Any], *, remark: str | None = None
) -> None:
    """Writes a page of a result's tables and lines, then of sections: a heading, plots, and a table or None."""
    tables, plots = [Markup(as_html(each)) for each in shown], [each for _, plots, _ in sections for each in plots]
    write_page(path, "shown.html", plots=plots, sections=sections, title=title, data=data, remark=remark, shown=tables)


MOST_CLASSES = 24


def write_finetune_report(
    path: Path,
    *,
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    history: Metrics,
    confusion: Mapping[str, Any] | None,
    worst: Sequence[Any],
    files: Mapping[str, str],
) -> None:
    """Writes the page of a fine-tuning. `history` has the lines of metrics.jsonl, `confusion` and `worst` are those of
    `confusion_of` and `worst_of`, and `files` has the names of files by their part."""
    heads, figures = task_figures(summary)
    on_test = [f"{name} (test)" for name in summary.get("test_metrics", {})]
    metric, scores, losses = summary["metric"], [], []
    for number, seed in enumerate(dict.fromkeys(line["seed"] for line in history)):
        lines = [line for line in history if line["seed"] == seed]
        epochs, label = [line["epoch"] for line in lines], f"seed {seed}"
        scores.append(Curve(label, epochs, [line["metrics"][metric] for line in lines], number=number))
        losses.append(Curve(label, epochs, [line["loss"] for line in lines], number=number))
    write_page(
        path,
        "finetune.html",
        title=f"{summary['task']}, {files['train']}",
        summary=summary,
        files=files,
        heads=["", *heads],
        figures=[(name.replace("_", " "), row) for name, row in figures.items()],
        columns=["seed", *summary["metrics"], *on_test, "epochs", "best epoch", "seconds"],
        shown=decimals,
        plots=[
            plot(f"{metric.replace('_', ' ')} on the validation file, over epochs", "epoch", *scores),
            plot("training loss over epochs", "epoch", *losses),
        ],
        confusion=confusion,
        worst=worst,
        settings=flat(settings).items(),
    )


MOST_WORST, WORST_CHARS = 10, 300


def worst_of(judged: Sequence[Judged]) -> list[tuple[Judged, list[tuple[str, str, str]]]]:
    """The most confident wrong predictions, each with its texts: the text before the judged part, the part, and the
    text after it. Long texts are cut."""
    wrong = dict.fromkeys(each for each in judged if each.right != each.predicted)  # texts may be repeated
    surest = sorted(wrong, key=lambda each: -each.probability)[:MOST_WORST]

    def parts(text: str, begin: int, end: int) -> tuple[str, str, str]:
        first, last = max(begin - WORST_CHARS // 2, 0), max(begin - WORST_CHARS // 2, 0) + WORST_CHARS
        before, behind = "…" if first else "", "…" if last < len(text) else ""
        return f"{before}{text[first:begin]}", text[begin:end], f"{text[end:last]}{behind}"

    return [
        (each, [parts(text, *(each.place if n == 0 else (0, 0))) for n, text in enumerate(each.texts)])
        for each in surest
    ]


def task_figures(summary: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """Heads of columns, and a row per metric: of the saved model and, with several seeds, their mean, on each file."""
    number = len(summary["seeds"])
    of_documents = " (95 %, over documents)" if "interval" in summary else ""
    heads: list[str] = []
    rows: dict[str, list[str]] = {name: [] for name in summary["metrics"]}
    for part, prefix in {"validation": "", "test": "test_"}.items():
        if f"{prefix}metrics" not in summary:
            continue
        heads.append(f"{part}{of_documents}")
        if number > 1:
            heads.append(f"{part}, mean of {number} seeds ({over('seeds')})")
        for name, row in rows.items():
            bounds = summary.get(f"{prefix}interval", {}).get(name)
            value = decimals(summary[f"{prefix}metrics"][name])
            row.append(value if bounds is None else f"{value} ({decimals(bounds[0])} to {decimals(bounds[1])})")
            if number > 1:
                mean, spread = (summary[f"{prefix}{key}"][name] for key in ("mean", "margin"))
                row.append(decimals(mean) + ("" if spread is None else f" ± {decimals(spread)}"))
    return heads, rows


def confusion_of(right: Sequence[str], predicted: Sequence[str]) -> dict[str, Any] | None:
    """The confusion matrix: `names`, and `rows` of a class's name, its `counts` by predicted class, and its `scores`
    (precision, recall, F1). Of more than 24 classes, all but the most frequent are merged into one, without scores:
    they would count confusions among its classes as right."""
    if not right:
        return None
    counts = Counter([*right, *predicted])
    names = sorted(counts)
    if is_merged := len(names) > MOST_CLASSES:
        commonest = {name for name, _ in counts.most_common(MOST_CLASSES - 1)}
        right, predicted = ([n if n in commonest else "(others)" for n in each] for each in (right, predicted))
        names = [*sorted(commonest), "(others)"]
    numbers = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(matrix, tuple([numbers[name] for name in each] for each in (right, predicted)), 1)
    of_right, of_predicted = matrix.sum(1), matrix.sum(0)
    totals = np.stack([of_predicted, of_right, (of_right + of_predicted) / 2], 1)
    scores = matrix.diagonal()[:, None] / totals.clip(min=1)
    by_class = zip(names, matrix.tolist(), scores.tolist(), strict=True)
    rows = [{"name": name, "counts": of_name, "scores": of_class} for name, of_name, of_class in by_class]
    if is_merged:
        rows[-1]["scores"] = []
    return {"names": names, "rows": rows}


RECALL_HEADS = ("held-out pairs", "number", "recall@1 before", "after", "recall@10 before", "after")


def write_embedder_report(
    path: Path,
    *,
    summary: Mapping[str, Any],
    settings: Mapping[str, Any],
    metrics: Metrics,
) -> None:
    headline = []
    before, after = summary["before"], summary["after"]
    if after is not None:
        for kind, figures in after["kinds"].items():
            recall = f"(before: {before['kinds'][kind]['recall_at_10']:.1%})"
            headline.append((f"{figures['recall_at_10']:.1%}", f"recall@10 of held-out pairs: {kind} {recall}"))
        if after["mlm_loss"] is not None:
            headline.append((f"{after['mlm_loss']:.3f}", f"nats per hidden token (before: {before['mlm_loss']:.3f})"))
    last = summary["model_step"] == summary["steps"]
    as_of = "" if last else f"; the model is that of step {summary['model_step']:,}"
    headline += [
        (in_millions(summary["tokens_seen"]), "tokens seen"),
        (f"{summary['steps']:,}", f"steps{as_of}"),
        (f"{summary['seconds'] / 60:.1f} min", f"of training on {summary['device']}"),
    ]
    train = [line for line in metrics if line.get("kind") == "train"]
    held = [line for line in metrics if "kinds" in line]
    steps = [line["step"] for line in held]
    recalls = [
        Curve(kind, steps, [line["kinds"][kind]["recall_at_10"] for line in held], number=number)
        for number, kind in enumerate(held[0]["kinds"] if held else ())
    ]
    loss = Curve("training", [line["step"] for line in train], [line["loss"] for line in train], "training")
    write_page(
        path,
        "embedder.html",
        summary=summary,
        headline=headline,
        heads=RECALL_HEADS,
        rows=recall_rows(summary),
        plots=[
            plot("recall@10 of held-out pairs over steps", "step", *recalls, zero=True),
            plot("loss, nats per pair, over steps", "step", loss),
        ],
        settings=flat(settings).items(),
    )


def recall_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Rows under `RECALL_HEADS`, one per kind of held-out pairs; none if nothing was measured."""
    if summary["after"] is None:
        return []
    before, after = summary["before"]["kinds"], summary["after"]["kinds"]
    return [
        [
            kind,
            f"{figures['pairs']:,}",
            *(f"{when[kind][key]:.1%}" for key in ("recall_at_1", "recall_at_10") for when in (before, after)),
        ]
        for kind, figures in after.items()
    ]
