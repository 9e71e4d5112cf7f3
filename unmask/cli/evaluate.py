"""`unmask evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.cli.options import rates_of
from unmask.cli.progress import ConsoleBar, console
from unmask.inference.evaluate import evaluate
from unmask.inference.scorable import load_scorable
from unmask.report.margins import margin, over
from unmask.training.hardware import choose_device


def run_evaluate(
    model: str,
    data: Sequence[str],
    rates: str,
    *,
    masks: int,
    max_tokens: int,
    length: int | None,
    pseudo_tokens: int,
    column: str | None,
) -> dict[str, Any]:
    """Evaluates and shows a table, a line a rate, and what kinds of tokens are hard.

    Args:
        model: Folder of any masked language model, or its name on the hub.
        data: As for `unmask.inference.evaluate.evaluate`.
        rates: Numbers with commas between them.
        masks, max_tokens, length, pseudo_tokens, column: As for `unmask.inference.evaluate.evaluate`.

    Raises:
        UnmaskError: As `unmask.inference.evaluate.evaluate`, or the rates are no numbers.
    """
    values = rates_of(rates)
    out = console()
    loaded = load_scorable(model)
    loaded.network.to(choose_device())
    out.print("reading the text, then hiding and predicting", style="dim")
    with ConsoleBar("reading the text") as bar:
        result = evaluate(
            loaded,
            data,
            rates=values,
            masks=masks,
            max_tokens=max_tokens,
            length=length,
            pseudo_tokens=pseudo_tokens,
            column=column,
            notify=bar.notify,
        )
    for path, found in result["columns"].items():
        out.print(f"{path}: the text is in column {found!r}", markup=False, style="dim", soft_wrap=True)
    whole = "all of the text" if result["share"] == 1.0 else f"about {result['share']:.2g} of the text (--max-tokens)"
    out.print(f"{result['tokens']:,} tokens of {result['documents']:,} {result['unit']}, {whole}\n", style="dim")
    out.print(_by_rate(result))
    out.print(_breakdown(result["breakdown"], values[0]))
    if "pseudo_perplexity" in result and result["pseudo_perplexity"] is not None:
        out.print(
            f"\npseudo-perplexity {result['pseudo_perplexity']:.1f} ({result['pseudo_tokens']:,} tokens, one a time)"
        )
    if result["warning"] is not None:
        out.print(f"\n{result['warning']}", style="yellow", markup=False, soft_wrap=True)
    return result


def _by_rate(result: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, title=over(result["unit"]), title_justify="left", title_style="dim")
    for name in ("hidden", "loss ± 95 %", "accuracy", "top 5", "perplexity", "bits/byte ± 95 %", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for rate, figures in result["by_rate"].items():
        bits = figures["bits_per_byte"]
        table.add_row(
            f"{float(rate):.0%}",
            f"{figures['loss']:.3f}{margin(figures['loss_interval'])}",
            f"{figures['accuracy']:.1%}",
            f"{figures['accuracy_top5']:.1%}",
            f"{figures['perplexity']:.1f}",
            "" if bits is None else f"{bits:.3f}{margin(figures['bits_per_byte_interval'])}",
            f"{figures['predicted_tokens']:,}",
        )
    return table


def _breakdown(breakdown: dict[str, dict[str, dict[str, Any]]], rate: float) -> Table:
    table = Table(box=None, pad_edge=False, title=f"\nat {rate:.0%}, by", title_justify="left", title_style="")
    table.add_column("")
    table.add_column("")
    for name in ("loss", "accuracy", "hidden tokens"):
        table.add_column(name, justify="right")
    for name, kinds in breakdown.items():
        for number, (kind, figures) in enumerate(kinds.items()):
            cells = (f"{figures['loss']:.3f}", f"{figures['accuracy']:.1%}", f"{figures['predicted_tokens']:,}")
            table.add_row("" if number else name.replace("_", " "), Text(kind), *cells)
    return table
