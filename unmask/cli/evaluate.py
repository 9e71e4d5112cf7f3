"""`unmask evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from unmask.cli.progress import console
from unmask.errors import SettingsError
from unmask.inference.evaluate import evaluate
from unmask.inference.model import load


def run_evaluate(model: Path, data: Sequence[str], rates: str, *, max_tokens: int) -> dict[str, Any]:
    """Evaluates and shows a table, a line a rate.

    Raises:
        UnmaskError: As `unmask.inference.evaluate.evaluate`, or the rates are no numbers.
    """
    try:
        values = [float(rate) for rate in rates.split(",")]
    except ValueError as error:
        raise SettingsError(f"--rates {rates}: expected numbers with commas between them, such as 0.15,0.3") from error
    console().print("reading the text, then hiding and predicting", style="dim")
    result = evaluate(load(model), data, rates=values, max_tokens=max_tokens)
    table = Table(box=None, pad_edge=False)
    for name in ("hidden", "loss", "accuracy", "perplexity", "bits per byte", "hidden tokens"):
        table.add_column(name, justify="right")
    for rate, figures in result["by_rate"].items():
        margin = "" if figures["loss_stderr"] is None else f" ± {figures['loss_stderr']:.3f}"
        table.add_row(
            f"{float(rate):.0%}",
            f"{figures['loss']:.3f}{margin}",
            f"{figures['accuracy']:.1%}",
            f"{figures['perplexity']:.1f}",
            f"{figures['bits_per_byte']:.3f}",
            f"{figures['predicted_tokens']:,}",
        )
    console().print(table)
    return result
