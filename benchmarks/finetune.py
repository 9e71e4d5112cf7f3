"""What pretraining brings to tasks: a model against the same architecture from random weights, over several seeds.

    python benchmarks/finetune.py MODEL DATA [--tasks sst2,cola,wnut17,ud_english_ewt] [--seeds 5] [--epochs 10] \\
        [--learning-rates 0.00015,0.0005,0.0015] [--work FOLDER] [--table docs/results.md]

MODEL is the folder of a pretrained model, DATA that of the tasks' files. Both systems are fine-tuned by `unmask
finetune` with the same settings and seeds, but each with the learning rate that is best for it, since random weights
want a higher one: one run with each rate is made first, with a seed of its own. The best rate and the best epoch are
told by the validation file. Figures are means over the seeds with 95 % intervals (Student's t), the differences paired
by seed, on the test file (or another that nothing was chosen by; the table names it). What is finished in --work is not
made again, so that a run may be stopped and go on.

    sst2            sentiment, accuracy on the test file
    cola            acceptability, Matthews correlation: chosen on the in-domain file, measured on the out-of-domain one
    wnut17          named entities, F1 of entities on the test file
    ud_english_ewt  parts of speech, accuracy of words on the test file
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import t as student
from tables import write_table

import unmask


class Task(NamedTuple):
    """A task's files and how they are read; the metric that it is told and measured by."""

    kind: str
    train: str
    validation: str
    test: str
    metric: str
    columns: tuple[str, ...] = ()


TASKS = {
    "sst2": Task("classify", "train.tsv", "dev.tsv", "test.tsv", "accuracy", ("text=0", "label=1")),
    "cola": Task(
        "classify", "in_domain_train.tsv", "in_domain_dev.tsv", "out_of_domain_dev.tsv", "matthews",
        ("text=3", "label=1"),
    ),
    "wnut17": Task("tag", "wnut17train.conll", "emerging.dev.conll", "emerging.test.conll", "entity_f1"),
    "ud_english_ewt": Task(
        "tag", "en_ewt-rebuilt-train.conllu.gz", "en_ewt-ud-dev.conllu.gz", "en_ewt-ud-test.conllu.gz", "accuracy"
    ),
}  # fmt: skip
SYSTEMS = {"pretrained": "model", "random weights": "random"}
CHOOSING_SEED = 1000


def main() -> None:
    options = parse()
    lines = [
        "| task | metric | pretrained (± 95 %, over seeds) | random weights (± 95 %) | difference (± 95 %) | "
        "learning rates |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in options.tasks.split(","):
        if name not in TASKS:
            sys.exit(f"there is no task {name}; known are {', '.join(TASKS)}")
        task = TASKS[name]
        rates = {system: best_rate(name, how, options) for system, how in SYSTEMS.items()}
        values = {
            system: [
                run["test_metrics"][task.metric] or 0.0  # a correlation with constant predictions is none
                for run in tuned(name, how, rates[system], options, seed=0, seeds=options.seeds)["seeds"]
            ]
            for system, how in SYSTEMS.items()
        }
        first, second = values.values()
        gains = [a - b for a, b in zip(first, second, strict=True)]
        cells = [interval(each) for each in (first, second, gains)]
        cells.append(", ".join(f"{rate:g}" for rate in rates.values()))
        lines.append(f"| {name} | {task.metric.replace('_', ' ')}, {task.test} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if options.table is not None:
            write_table(options.table, "finetune", lines)


def parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rates", default="0.00015,0.0005,0.0015", help="of which each system has its best")
    parser.add_argument("--work", type=Path, default=Path("runs/finetune"))
    parser.add_argument("--table", type=Path)
    return parser.parse_args()


def best_rate(name: str, how: str, options: Any) -> float:
    """The learning rate that the validation file is predicted best with, of one run each."""
    rates = [float(rate) for rate in options.learning_rates.split(",")]
    if len(rates) == 1:
        return rates[0]

    def reached(rate: float) -> float:
        found = tuned(name, how, rate, options, seed=CHOOSING_SEED, seeds=1)
        return float(found["metrics"][TASKS[name].metric] or 0.0)

    return max(rates, key=reached)


def tuned(name: str, how: str, rate: float, options: Any, *, seed: int, seeds: int) -> dict[str, Any]:
    """The summary of a fine-tuning; seeds that are finished with the same model and files are not made anew."""
    task = TASKS[name]
    out = options.work / f"{name}-{how}-{rate:g}-{seed}+{seeds}x{options.epochs}"
    folder = options.data / name
    settings = [
        f"finetune.learning_rate={rate:g}",
        f"finetune.seed={seed}",
        f"finetune.seeds={seeds}",
        f"finetune.epochs={options.epochs}",
        f"finetune.metric={task.metric}",
        f"finetune.initial_weights={how}",
        *(f"finetune.columns.{column}" for column in task.columns),
    ]
    print(f"{name}, {how}, {rate:g}: {seeds} seeds", file=sys.stderr, flush=True)
    return unmask.finetune(
        options.model,
        task=task.kind,
        train=folder / task.train,
        validation=folder / task.validation,
        test=folder / task.test,
        out=out,
        settings=settings,
        resume=True,
    ).summary


def interval(values: list[float]) -> str:
    """Mean and half the width of the 95 % interval, in per cent."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{100 * mean:.1f}"
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


if __name__ == "__main__":
    main()
