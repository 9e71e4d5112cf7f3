r"""BabyLM: accuracy of a masked language model of ten million words, on every subset of the zero-shot tests.

    python benchmarks/babylm.py TEXT... --pairs BLIMP [--supplement FOLDER] [--ewok FOLDER] [--minutes 30] \
        [--seeds 0,1,2] [--recipe R] [--set section.key=value] [--out FOLDER] [--results FILE] \
        [--table docs/explanation/babylm.md]
    python benchmarks/babylm.py --model RUN --pairs BLIMP ...

TEXT is BabyLM's folder of .train files, or any text. A model is trained for each seed, in FOLDER/seed-SEED. A finished
run is reused, and a stopped one is resumed. How tests are scored: docs/explanation/babylm.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tables import append_lines, circumstances, head, parser_of, with_half, write_table

import unmask
from unmask.data.reading import open_bytes
from unmask.data.sources import find_sources

TESTS = {"pairs": "BLiMP", "supplement": "BLiMP supplement", "ewok": "EWoK"}  # by option

FACTS = ("num_parameters", "vocab_size", "steps", "tokens_seen", "seconds", "validation_loss")  # of a training

Entry = Mapping[str, Any]  # results of a model: `scores` by test, each with `mean`, `ties` and `subsets`


def files_of(texts: Sequence[Path]) -> list[Path]:
    """Text files. A folder stands for its .train files (BabyLM's), if it has any."""
    return [file for text in texts for file in (sorted(text.rglob("*.train")) if text.is_dir() else []) or [text]]


def count_words(texts: Sequence[Path]) -> int:
    """The number of words, separated by white space."""
    total = 0
    for source in find_sources(texts, announce=False):
        with open_bytes(source.path) as text:
            total += sum(len(line.split()) for line in text)
    return total


def train(options: argparse.Namespace, seed: int) -> tuple[Path, dict[str, Any]]:
    """Trains with a seed. Returns the run's folder and facts about the training."""
    out, files = options.out / f"seed-{seed}", files_of(options.texts)
    facts = {"recipe": options.recipe, "minutes": options.minutes, "settings": options.set, "seed": seed}
    resume = (out / "recipe.toml").is_file()
    run = unmask.pretrain([str(file) for file in files], out=out, resume=resume, **facts)
    return out, {**facts, "words": count_words(files), **{name: run.summary[name] for name in FACTS}}


def scores(model: Path, tests: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """For each test the mean over its subsets, the number of ties, and the figures of every subset."""
    loaded = unmask.load(model / "model" if (model / "model").is_dir() else model)
    figures = {}
    for name, pairs in tests.items():
        subsets = unmask.score(loaded, pairs).paradigms
        figures[name] = {
            "mean": fmean(subset["accuracy"] for subset in subsets.values()),
            "ties": sum(subset["ties"] for subset in subsets.values()),
            "subsets": subsets,
        }
    return figures


def table(entries: Sequence[Entry]) -> list[str]:
    """For each test a line for the mean over subsets, then a line for each subset."""
    half = "" if len(entries) == 1 else f", mean of {len(entries)} models ± half of its 95 % t interval"
    lines = head(f"test | subset | pairs | accuracy in %{half} | ties")
    for test in entries[0]["scores"]:
        each = [entry["scores"][test] for entry in entries]
        subsets = {name: [figures["subsets"][name] for figures in each] for name in each[0]["subsets"]}
        pairs = sum(of_models[0]["pairs"] for of_models in subsets.values())
        rows = [(f"**mean of {len(subsets)}**", pairs, [figures["mean"] for figures in each], each)]
        rows += [(name, some[0]["pairs"], [each["accuracy"] for each in some], some) for name, some in subsets.items()]
        for name, number, shares, figures in rows:
            ties = fmean(each["ties"] for each in figures)
            lines.append(f"| {test} | {name} | {number:,} | {with_half([100 * s for s in shares], '.1f')} | {ties:g} |")
    return lines


def main() -> None:
    parser = parser_of(__doc__, table="babylm")
    parser.add_argument("texts", type=Path, nargs="*", help="BabyLM's folder, or any text")
    parser.add_argument("--model", type=Path, action="append", default=[], help="a model to score instead")
    parser.add_argument("--pairs", type=Path, help="BLiMP: its folder or archive")
    parser.add_argument("--supplement", type=Path, help="BLiMP's supplement: files of JSON lines with the same keys")
    parser.add_argument("--ewok", type=Path, help="EWoK, as JSON lines: Context1, Target1, Context2, Target2, Domain")
    parser.add_argument("--minutes", type=float, help="training time; by default the recipe's")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--recipe")
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe, as for unmask pretrain")
    parser.add_argument("--out", type=Path, default=Path("runs/babylm"), help="folder of the runs")
    parser.add_argument("--results", type=Path, help="file to append figures to")
    options = parser.parse_args()
    tests = {title: path for name, title in TESTS.items() if (path := getattr(options, name)) is not None}
    if bool(options.texts) == bool(options.model) or not tests:
        parser.error("name some text or --model, and --pairs, --supplement or --ewok")
    entries: list[Entry] = []
    for which in options.model or [int(seed) for seed in options.seeds.split(",")]:
        model, facts = train(options, which) if isinstance(which, int) else (which, {"model": which.name})
        entries.append({**circumstances(), **facts, "scores": scores(model, tests)})
        if options.results:
            append_lines(options.results, entries[-1])
    facts_of = [
        [
            f"{name} {entry[name]:{',' if isinstance(entry[name], int) else ',.5g'}}"
            for name in ("seed", "words", *FACTS)
        ]
        for entry in entries
        if "seed" in entry
    ]
    lines = [*(f"- {', '.join(each).replace('_', ' ')}" for each in facts_of), "", *table(entries)]
    print(*lines, sep="\n")
    if options.table:
        write_table(options.table, "babylm", lines)


if __name__ == "__main__":
    main()
