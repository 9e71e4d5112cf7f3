"""report.html: curves, figures, predictions before and after training, ledger and settings in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol

from unmask.corpus.near_duplicates import NearDuplicates
from unmask.files import write_atomically
from unmask.margins import documents, margin, sentence
from unmask.report import plots
from unmask.report.domains import domains_section
from unmask.tokens.manifest import Manifest

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2733; background: #fbfbfa; margin: 0 auto; max-width: 1080px;
  padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .8rem; }
p { max-width: 46rem; } .soft { color: #5d6876; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: .8rem; margin-top: 1rem; }
.figures div { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: .7rem .9rem; }
.figures b { display: block; font-size: 1.35rem; font-weight: 600; }
.figures span { color: #5d6876; font-size: .85rem; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1rem; }
.curves svg { width: 100%; height: auto; background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; }
table { border-collapse: collapse; background: #fff; font-size: .9rem; }
td, th { border: 1px solid #e3e6ea; padding: .3rem .7rem; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.line { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: .6rem .9rem; margin: .6rem 0; }
.line p { margin: .25rem 0; max-width: none; } .line small { color: #5d6876; display: inline-block; width: 3.5rem; }
.right { background: #d6f0dd; border-radius: 3px; padding: 0 .15rem; }
.wrong { background: #fde2d8; border-radius: 3px; padding: 0 .15rem; }
.hidden { background: #e6ecf5; border-radius: 3px; padding: 0 .15rem; }
.remark { background: #fff4d6; border: 1px solid #f0dfae; border-radius: 8px; padding: .7rem .9rem; max-width: none; }
code { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere; }
"""


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
    gain = summary["unigram_entropy"] - summary["validation_loss"]
    title = f"{summary['num_parameters'] / 1e6:.1f}M parameters, {recipe['masking']['strategy'] or 'own'} masking"
    parts = [
        f"<h1>unmask: {escape(title)}</h1>",
        f"<p class=soft>{escape(', '.join(Path(source['path']).name for source in manifest.sources))}</p>",
        _headline(summary, gain),
        *(f"<p class=remark>{escape(sentence(each))}</p>" for each in (remark, summary["validation_warning"]) if each),
        domains_section(summary),
        "<h2>Curves</h2><div class=curves>",
        plots.loss_curve(metrics, summary["unigram_entropy"]),
        plots.accuracy_curve(metrics),
        plots.optimizer_curve(metrics),
        plots.speed_curve(metrics),
        "</div>",
        "<h2>Held-out lines</h2>",
        "<p class=soft>Hidden tokens and what the model puts there, right or wrong, before and after training. "
        "A mark shows the probability of the right token when pointed at.</p>",
        *(_line(a, b) for a, b in zip(before, after, strict=True)),
        "<h2>Data</h2>",
        _ledger(manifest),
        "<h2>Settings</h2>",
        _settings(recipe),
    ]
    page = (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>unmask: {escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
    write_atomically(path, page)


def _headline(summary: Mapping[str, Any], gain: float) -> str:
    figures = [
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
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in figures)
    return f"<div class=figures>{cells}</div>"


def _over(summary: Mapping[str, Any]) -> str:
    """What ± is, where there is any."""
    return documents(summary) if summary["validation_loss_interval"] is None else f"± 95 %, over {documents(summary)}"


def _line(before: Sequence[Token], after: Sequence[Token]) -> str:
    hidden = [
        f"<span class=hidden>{escape(t.token)}</span>" if t.predicted is not None else escape(t.token) for t in before
    ]
    rows = [("text", _spaced(before, hidden)), ("before", _predicted(before)), ("after", _predicted(after))]
    return "<div class=line>" + "".join(f"<p><small>{name}</small>{row}</p>" for name, row in rows) + "</div>"


def _predicted(line: Sequence[Token]) -> str:
    words = []
    for token in line:
        if token.predicted is None or token.probability is None:
            words.append(escape(token.token))
        else:
            kind = "right" if token.predicted == token.token else "wrong"
            hint = escape(f"{token.token}: {token.probability:.1%}", quote=True)
            words.append(f'<span class={kind} title="{hint}">{escape(token.predicted)}</span>')
    return _spaced(line, words)


def _spaced(line: Sequence[Token], parts: Sequence[str]) -> str:
    """Spaces where the tokens have them."""
    return "".join(f" {part}" if token.space_before else part for token, part in zip(line, parts, strict=True))


def _ledger(manifest: Manifest) -> str:
    head = "<tr><th></th><th>documents</th><th>bytes</th><th>tokens</th><th>unknown tokens</th></tr>"
    rows = "".join(
        f"<tr><td>{name}</td>"
        + "".join(
            f"<td class=number>{value:,}</td>"
            for value in (split.documents, split.bytes, split.tokens, split.unknown_tokens)
        )
        + "</tr>"
        for name, split in (("training", manifest.train), ("held out", manifest.validation))
    )
    skipped = ", ".join(f"{number:,} {reason}" for reason, number in manifest.skipped.items()) or "nothing"
    near = "" if manifest.near_duplicates is None else _near_duplicates(manifest.near_duplicates)
    return (
        f"<table>{head}{rows}</table><p>{escape(manifest.plan)}. Left out: {escape(skipped)}.</p>{near}"
        f"<p class=soft>Fingerprint of the data: <code>{manifest.fingerprint}</code></p>"
    )


def _near_duplicates(found: NearDuplicates) -> str:
    if found.example is None:
        return f"<p>{escape(found.sentence)}</p>"
    held_out, training = escape(found.example.held_out), escape(found.example.training)
    return f"<p>{escape(found.sentence)} Held out: <q>{held_out}</q>; training: <q>{training}</q>.</p>"


def _settings(recipe: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(section)}</td><td><code>{escape(', '.join(_flat(values)))}</code></td></tr>"
        for section, values in recipe.items()
        if isinstance(values, Mapping)
    )
    return f"<table>{rows}</table>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    flat: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat.append(f"{prefix}{key} = {value}")
    return flat
