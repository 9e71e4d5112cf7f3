"""`--dry-run` of `unmask pretrain` and `unmask prepare`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.cli.progress import console, duration
from unmask.pretraining.dry_run import forecast_run, forecast_text
from unmask.recipe.recipe import Recipe


def show_run_forecast(paths: Sequence[str | Path] | None, recipe: Recipe) -> dict[str, Any]:
    """Shows what a run would do."""
    result = forecast_run(paths, recipe)
    at_least = "" if result["complete"] else "at least "
    budget = recipe.training.minutes
    lines = [
        *(("start" if number == 0 else "", line) for number, line in enumerate(result["start"])),
        _text_line(result["documents"], result["bytes"], result["tokens"], at_least),
        *_plan_lines(result["plan"], result["skipped"]),
        ("preparation", f"about {duration(result['prepare_seconds'])}"),
        ("model", f"{result['num_parameters']:,} parameters, vocabulary {result['vocab_size']:,}"),
        (
            "training",
            f"{'about ' if budget else ''}{result['steps']:,} steps in {'' if budget else 'about '}"
            f"{duration(result['seconds'])}, {result['tokens_per_second']:,.0f} tokens a second on {result['device']}",
        ),
        ("", f"{result['tokens_seen']:,} tokens seen, {result['epochs']:.1f} times the text"),
        memory_line(result["memory_bytes"]),
        ("disk", f"{result['disk_bytes'] / 2**30:.2f} GiB at most, data and checkpoints"),
    ]
    show_lines(lines)
    return result


def show_text_forecast(paths: Sequence[str | Path], recipe: Recipe) -> dict[str, Any]:
    """Shows what a preparation would do."""
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        text = forecast_text(paths, recipe.corpus, recipe.tokenizer, Path(scratch), recipe.annotation)
    at_least = "" if text.complete else "at least "
    show_lines(
        [
            _text_line(text.documents, text.bytes, text.tokens, at_least),
            *_plan_lines(text.plan, text.skipped),
            ("vocabulary", f"{text.vocab_size:,}"),
            ("preparation", f"about {duration(text.seconds)}"),
            ("disk", f"about {text.tokens * 3 / 2**20:,.1f} MiB"),
        ]
    )
    return asdict(text)


def _text_line(documents: int, num_bytes: int, tokens: int, at_least: str) -> tuple[str, str]:
    return "text", f"{at_least}{documents:,} documents, {num_bytes:,} bytes, about {tokens:,} tokens"


def _plan_lines(plan: str, skipped: dict[str, int]) -> list[tuple[str, str]]:
    return [("", plan), *(("", f"left out: {number:,} {reason}") for reason, number in skipped.items())]


def memory_line(num_bytes: int | None) -> tuple[str, str]:
    """What memory the first steps took; None where the system does not say."""
    if num_bytes is None:
        return "memory", "not known: this system does not say what a process takes"
    return "memory", f"{num_bytes / 2**30:.1f} GiB, measured in the first steps"


def show_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Prints what would happen, a name and a fact a line."""
    out = console()
    for name, value in lines:
        out.print(f"{name:<12} {value}", markup=False, soft_wrap=True)
    out.print("nothing was written (--dry-run)", style="dim")
