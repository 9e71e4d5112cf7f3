"""Comparing recipes: each trained at equal budget with the same seeds in turn, measured alike, and judged by pairs.

OUT/compare.json     what was asked for; a folder with it holds a comparison
    data/            the text, prepared once for all, unless prepared data was given
    runs/NAME-SEED/  the runs; evaluation.json in each says what it came to, and is written last
    result.json      figures, differences and the verdict
    result.svg       figures with their intervals

Turns go seed by seed, and within a seed each recipe once, beginning with another one each time: so what the machine
does beside falls on all of them. Stopped at any moment, the same command goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.corpus.settings import CorpusSettings
from unmask.errors import RunError, SettingsError
from unmask.evaluation.comparing import Comparison, compare_figures
from unmask.files import write_atomically
from unmask.inference.evaluate import evaluate
from unmask.inference.model import load
from unmask.inference.score import score
from unmask.masking.settings import STRATEGIES
from unmask.pretraining.data import is_prepared
from unmask.pretraining.pretrain import pretrain
from unmask.pretraining.reporter import LogReporter, Reporter
from unmask.report.comparison import comparison_plot
from unmask.tokens.prepare import prepare
from unmask.tokens.settings import TokenizerSettings

FIGURES = ("loss", "bits_per_byte", "pairs_error")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared.

    Attributes:
        recipes: Names of recipes or files; or of masking strategies, each on top of the recipe `base`.
        data: Files, folders or patterns of text, or one prepared folder.
        seeds: How many; 0, 1, ... are taken.
        minutes, steps: Budget of each run; one of them.
        base: Recipe of strategies; None is the default.
        rates: Shares of hidden tokens at which all are measured; the verdict is on the first.
        pairs: Minimal pairs; None leaves them out.
        settings: `section.key=value` overrides for all.
    """

    recipes: tuple[str, ...]
    data: tuple[str, ...]
    seeds: int = 3
    minutes: float | None = None
    steps: int | None = None
    base: str | None = None
    rates: tuple[float, ...] = (0.15,)
    pairs: str | None = None
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises: SettingsError: Something is missing, out of range or twice there."""
        if len(self.recipes) < 2 or len(set(self.recipes)) < len(self.recipes):
            raise SettingsError("give two or more different recipes or strategies to compare")
        if len({_label(name) for name in self.recipes}) < len(self.recipes):
            raise SettingsError(
                "recipes are told apart by the names of their files; rename one of those that are alike"
            )
        if (self.minutes is None) == (self.steps is None):
            raise SettingsError("give either minutes or steps for each run")
        if self.seeds < 1:
            raise SettingsError(f"seeds: a number from 1 on, not {self.seeds}")


def compare(plan: Plan, out: str | Path, *, reporter: Reporter | None = None) -> dict[str, Any]:
    """Trains what is missing, measures it, and judges.

    Args:
        plan: What is compared.
        out: Folder of the comparison; one that is there goes on, where it has the same plan (seeds may be more).
        reporter: Told of the progress; None logs.

    Returns:
        `figure` (what the verdict is on), `recipes` (name to mean, interval and values), `differences` (first, second,
        mean, interval), `verdict`, `by_figure` (the same for each of `loss`, `bits_per_byte` and, with minimal pairs,
        `pairs_error`), `runs`.

    Raises:
        UnmaskError: The folder holds something else, or as `pretrain` and `evaluate`.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    root, reporter = Path(out), reporter or LogReporter()
    _claim(plan, root)
    data = plan.data if is_prepared(plan.data) else _prepared(plan, root / "data", reporter)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.recipes}
    for seed in range(plan.seeds):
        turn = seed % len(plan.recipes)
        for name in (*plan.recipes[turn:], *plan.recipes[:turn]):
            reporter.note(f"{name}, seed {seed}")
            found[name].append(_run(plan, name, seed, data, root / "runs" / f"{_label(name)}-{seed}", reporter))
    by_figure = {
        figure: compare_figures({n: [each[figure] for each in runs] for n, runs in found.items()}, what=_WORDS[figure])
        for figure in FIGURES
        if all(each.get(figure) is not None for runs in found.values() for each in runs)
    }
    result = {
        "figure": "loss",
        **_plain(by_figure["loss"]),
        "by_figure": {figure: _plain(comparison) for figure, comparison in by_figure.items()},
        "runs": found,
    }
    write_atomically(root / "result.svg", comparison_plot(result["recipes"], what=_WORDS["loss"]))
    write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return result


_WORDS = {"loss": "loss", "bits_per_byte": "bits per byte", "pairs_error": "share of wrong minimal pairs"}


def _claim(plan: Plan, root: Path) -> None:
    """Writes the plan, or checks that it is the same."""
    file = root / "compare.json"
    content = json.loads(json.dumps({key: value for key, value in asdict(plan).items() if key != "seeds"}))
    if file.is_file():
        if json.loads(file.read_text(encoding="utf-8")) != content:
            raise RunError(f"{root} holds a comparison of other recipes, data or budget; give another --out")
        return
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise RunError(f"{root} is not empty and holds no comparison; give another --out")
    root.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(content, indent=1) + "\n")


def _prepared(plan: Plan, folder: Path, reporter: Reporter) -> tuple[str, ...]:
    prepare(
        plan.data,
        folder,
        corpus=CorpusSettings(),
        tokenizer=TokenizerSettings(),
        resume=True,
        notify=reporter.stage,
        note=reporter.note,
    )
    return (str(folder),)


def _run(plan: Plan, name: str, seed: int, data: Sequence[str], folder: Path, reporter: Reporter) -> dict[str, Any]:
    """What a run came to; it is made, or made to its end, where that is not known yet."""
    file = folder / "evaluation.json"
    if not file.is_file():
        run = pretrain(
            data,
            out=folder,
            recipe=plan.base if name in STRATEGIES else name,
            strategy=name if name in STRATEGIES else None,
            minutes=plan.minutes,
            steps=plan.steps,
            seed=seed,
            settings=plan.settings,
            resume=True,
            reporter=reporter,
        )
        model = load(run.folder / "model")
        measured = evaluate(model, data, rates=plan.rates, pseudo_tokens=0)
        content = {"name": name, "seed": seed, **measured, "steps": run.summary["steps"]}
        if plan.pairs is not None:
            content["pairs_error"] = 1.0 - score(model, plan.pairs)["accuracy"]
        write_atomically(file, json.dumps(content, indent=1) + "\n")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def _label(name: str) -> str:
    """A recipe's name, or its file's, as a part of a path."""
    return Path(name).stem if name.endswith(".toml") else name


def _plain(comparison: Comparison) -> dict[str, Any]:
    return {
        "recipes": {name: asdict(estimate) for name, estimate in comparison.recipes.items()},
        "differences": [
            {"first": d.first, "second": d.second, **asdict(d.estimate), "better": d.better}
            for d in comparison.differences
        ],
        "verdict": comparison.verdict,
    }
