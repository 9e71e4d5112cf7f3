r"""Held-out loss over wall-clock: what users really wait for. And what of ours it comes from.

    python benchmarks/time_to_loss.py TEXT... --results FILE [--minutes 3] [--seeds 0,1,2] [--threads 2] \
        [--sweep 0.5] [--finalists 2] [--ablations] [--table PAGE] [--picture FILE] [--dry-run]

All systems have the same time, and train on the same rows of 128 positions of the same prepared text, with one
WordPiece tokenizer of 8,192 words and a model of 4 layers of 256. They are evaluated on the same held-out rows with the
same masks: 15 % of the tokens, all shown as `[MASK]`. Each is a process of its own, they train in turn, a quarter of a
minute each, so that whatever the machine does beside falls on all of them, and only a system's own training time counts
(evaluations do not, for none of them, nor does what is compiled beforehand; see turns.py).

    modernbert-adamw  transformers' ModernBertForMaskedLM in a plain loop in bf16, compiled, with fused AdamW: the best
                      that we can make of it (plain_loop.py)
    modernbert-muon   the same with torch's Muon for the matrices and AdamW for the rest
    ours              the recipe `tiny` with this budget

`--ablations` adds ours with one thing taken away: no-muon (AdamW), no-loops (tensor operations instead of the compiled
loops of model and optimizer), no-modernbert (BERT's layout), no-packing (each document in rows of its own, padded).
Where documents are books nothing is packed but their ends, so the last one has paragraphs as documents, which need a
preparation and held-out rows of their own; `paragraphs` is ours with these, packed, which it is compared with.

Learning rate and positions a step are chosen by a sweep, for each system that has more than one candidate: each trains
for `--sweep` minutes, a whole schedule, with the first seed; the best `--finalists` of them train for the whole time,
and the best of these goes on to the other seeds. Its first run counts: that is in favour of what was chosen, which are
the peers and the ablations, while ours takes the rate of its recipe.

What is found lies in FILE, a JSON line a run, with a hash of the text, all settings, the day, the machine and the
versions. What is there already, of the same text and settings, is not run again: a benchmark that was stopped goes on.
`--dry-run` tells what is missing and about how long it takes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import loss_curves
import torch
from loss_curves import OURS
from plain_loop import PEERS, train_peer
from tables import circumstances, shown, write_table
from taken_away import TAKEN_AWAY, train_ours
from train import prepare
from turns import Ended, System, alternate, own_output

LENGTH = 128
VOCAB_SIZE = 8192
HELD_OUT_TOKENS = 100_000
TURN = 15.0  # seconds; shorter ones would measure how steps begin after a pause, when the memory is another's
LOOKS = {OURS: 12}  # of a run; others' curves are drawn only
FEW_LOOKS = 3
TOGETHER = 8  # processes that wait in memory at once, of 1 to 2 GB each
STARTING = 2  # of them load at once
OVERHEAD_SECONDS = 20.0  # of a run: loading, evaluating


class Setting(NamedTuple):
    """What a sweep chooses."""

    batch_tokens: int
    learning_rate: float


CANDIDATES: dict[str, tuple[Setting, ...]] = {
    "modernbert-adamw": (
        Setting(1024, 5e-4), Setting(1024, 1e-3), Setting(2048, 5e-4), Setting(2048, 1e-3), Setting(2048, 2e-3),
        Setting(2048, 4e-3), Setting(4096, 2e-3), Setting(4096, 4e-3),
    ),
    "modernbert-muon": (
        Setting(1024, 5e-3), Setting(2048, 3.5e-3), Setting(2048, 7e-3), Setting(2048, 1.4e-2),
        Setting(4096, 7e-3), Setting(4096, 1.4e-2),
    ),
    OURS: (Setting(4096, 7e-3),),  # the recipe's
    "no-muon": (Setting(2048, 1e-3), Setting(2048, 2e-3), Setting(4096, 2e-3), Setting(4096, 3e-3)),
    "no-loops": (Setting(4096, 7e-3),),
    "no-modernbert": (Setting(4096, 2e-3), Setting(4096, 7e-3)),
    "paragraphs": (Setting(4096, 7e-3),),
    "no-packing": (Setting(4096, 7e-3),),
}  # fmt: skip
ABLATIONS = tuple(TAKEN_AWAY)
OF_PARAGRAPHS = ("paragraphs", "no-packing")


class Work(NamedTuple):
    """What a process is told; all of it but where the text lies is what a run is found again by."""

    data: str
    system: str
    minutes: float
    batch_tokens: int
    learning_rate: float
    seed: int = 0
    threads: int = 2
    compiled: bool = True  # the peer's model
    length: int = LENGTH
    overrides: tuple[str, ...] = ()  # settings of ours, for tests

    @property
    def setting(self) -> Setting:
        return Setting(self.batch_tokens, self.learning_rate)


class Plan(NamedTuple):
    """What is to be measured."""

    data: str
    paragraphs: str  # the same text, a document a line
    minutes: float
    sweep: float
    finalists: int
    seeds: tuple[int, ...]
    threads: int
    compiled: bool
    systems: tuple[str, ...]

    def work(self, system: str, setting: Setting, minutes: float, seed: int) -> Work:
        """A run of a system; whether peers are compiled changes nothing of ours."""
        compiled = self.compiled if system in PEERS else True
        data = self.paragraphs if system in OF_PARAGRAPHS else self.data
        return Work(data, system, minutes, *setting, seed=seed, threads=self.threads, compiled=compiled)


class Results:
    """What a file of results holds.

    Args:
        path: The file, which need not be there.
        text: Hash of the text.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self.entries = {_key(entry["text"], entry["work"]): entry for entry in loss_curves.load(path)}

    def get(self, work: Work) -> dict[str, Any] | None:
        """The entry of a run."""
        return self.entries.get(_key(self.text, _told(work)))

    def missing(self, works: Sequence[Work]) -> list[Work]:
        return [work for work in works if self.get(work) is None]

    def add(self, work: Work, system: System) -> None:
        """Keeps what a process has found."""
        entry = {"text": self.text, "work": _told(work), **circumstances(), "facts": system.facts}
        entry |= {name: getattr(system, name) for name in ("seconds", "steps", "tokens", "points")}
        self.entries[_key(self.text, _told(work))] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")


def _told(work: Work) -> dict[str, Any]:
    return {name: value for name, value in work._asdict().items() if name != "data"}


def _key(text: str, work: dict[str, Any]) -> str:
    return json.dumps([text, work], sort_keys=True)


def marks(work: Work) -> list[float]:
    """Seconds at which a run is looked at before its end."""
    looks = LOOKS.get(work.system, FEW_LOOKS)
    return [work.minutes * 60.0 * number / looks for number in range(1, looks)]


def start(work: Work) -> System:
    return System([sys.executable, __file__, "--serve", json.dumps(work._asdict())])


def serve(work: Work) -> None:
    """A system's process."""
    from unmask.measure.held_out import HeldOutSet

    def held_out(data: Any) -> HeldOutSet:
        return HeldOutSet(data.validation, data.tokenizer, length=work.length, max_tokens=HELD_OUT_TOKENS)

    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes that are left waiting
    torch.set_num_threads(work.threads)
    out = own_output()
    with suppress(Ended):
        (train_peer if work.system in PEERS else train_ours)(work, out, marks(work), held_out)


def run(works: Sequence[Work], results: Results) -> None:
    """Runs what the results lack, in turn: whatever the machine does beside falls on all of them."""
    missing = results.missing(works)
    for begin in range(0, len(missing), TOGETHER):
        some = {_name(work): work for work in missing[begin : begin + TOGETHER]}
        with ThreadPoolExecutor(STARTING) as pool:
            systems = dict(zip(some, pool.map(start, some.values()), strict=True))
        for name in alternate(systems, dict.fromkeys(some, TURN)):
            results.add(some[name], systems[name])
            systems[name].close()


def _name(work: Work) -> str:
    """What a run is called while it runs."""
    return f"{work.system} {work.batch_tokens} {work.learning_rate:g} {work.minutes:g}min seed{work.seed}"


def stages(plan: Plan, results: Results) -> Iterator[list[Work]]:
    """The runs of each stage, some that train in turn at a time; the later ones follow from what the earlier found."""
    swept = [system for system in plan.systems if len(CANDIDATES[system]) > 1]
    first = plan.seeds[0]
    for system in swept:
        yield [plan.work(system, setting, plan.sweep, first) for setting in CANDIDATES[system]]
    yield [
        plan.work(system, setting, plan.minutes, first)
        for system in swept
        for setting in finalists(plan, results, system)
    ]
    for seed in plan.seeds:
        yield [plan.work(system, winner(plan, results, system), plan.minutes, seed) for system in plan.systems]


def finalists(plan: Plan, results: Results, system: str) -> list[Setting]:
    """The best candidates of a system's sweep."""
    candidates = CANDIDATES[system]
    return loss_curves.ranked(candidates, _losses(plan, results, system, plan.sweep))[: plan.finalists]


def winner(plan: Plan, results: Results, system: str) -> Setting:
    """The best of the finalists."""
    return loss_curves.ranked(finalists(plan, results, system), _losses(plan, results, system, plan.minutes))[0]


def _losses(plan: Plan, results: Results, system: str, minutes: float) -> dict[Setting, float]:
    """Last losses of a system's candidates with the first seed."""
    entries = {
        setting: results.get(plan.work(system, setting, minutes, plan.seeds[0])) for setting in CANDIDATES[system]
    }
    return {setting: loss_curves.last_loss(entry) for setting, entry in entries.items() if entry is not None}


def estimate(plan: Plan, results: Results) -> list[str]:
    """What is missing, and about how long it takes; which finalists there will be changes nothing of it."""
    runs: dict[float, int] = {}
    seen: set[Work] = set()
    for works in stages(plan, results):
        for work in results.missing(works):
            if work not in seen:
                runs[work.minutes] = runs.get(work.minutes, 0) + 1
                seen.add(work)
    minutes = sum(each * count for each, count in runs.items())
    whole = minutes + sum(runs.values()) * OVERHEAD_SECONDS / 60.0
    lines = [f"{count} runs of {each:g} minutes" for each, count in sorted(runs.items())]
    return [*(lines or ["nothing is missing"]), f"about {whole:.0f} minutes, {minutes:.0f} of them training"]


def runs_of(plan: Plan, results: Results, systems: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Entries of the winners of some systems, by seed; of those that have all seeds."""
    found = {
        system: [
            results.get(plan.work(system, winner(plan, results, system), plan.minutes, seed)) for seed in plan.seeds
        ]
        for system in systems
    }
    return {system: [entry for entry in some if entry] for system, some in found.items() if all(some)}


def show(plan: Plan, results: Results, page: Path | None, picture: Path | None) -> None:
    """Prints the tables, and writes them to a page."""
    systems = runs_of(plan, results, [system for system in (*PEERS, OURS) if system in plan.systems])
    without = runs_of(plan, results, [system for system in (OURS, *ABLATIONS) if system in plan.systems])
    first, minutes = plan.seeds[0], (plan.sweep, plan.minutes)
    swept = [
        entry
        for system in plan.systems
        if len(CANDIDATES[system]) > 1
        for setting in CANDIDATES[system]
        for each in minutes
        if (entry := results.get(plan.work(system, setting, each, first))) is not None
    ]
    every = [entry for some in {**systems, **without}.values() for entry in some]
    drawn = picture if systems else None
    if drawn is not None:
        loss_curves.draw(systems, drawn)
    curves = [] if page is None else shown(drawn, page, "Held-out loss over seconds of training, a curve a run")
    tables = {
        "time-to-loss": ([*loss_curves.table(systems), *curves], every) if systems else None,
        "time-to-loss-ablations": (loss_curves.ablations(without), every) if len(without) > 1 else None,
        "time-to-loss-sweep": (loss_curves.sweep_table(swept), swept) if swept else None,
    }
    for name, made_of in tables.items():
        if made_of is not None:
            lines, entries = made_of
            print("", *lines, sep="\n")
            if page is not None:
                write_table(page, name, lines, made=loss_curves.made(entries))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="*", help="text, or one prepared folder")
    parser.add_argument("--results", type=Path, help="where runs are kept, and found again")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training, of every system")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--threads", type=int, default=2, help="of a system")
    parser.add_argument("--sweep", type=float, default=0.5, metavar="MINUTES", help="of each candidate")
    parser.add_argument("--finalists", type=int, default=2, help="candidates of each system that run to their end")
    parser.add_argument("--systems", default=",".join((*PEERS, OURS)), help="those that run now")
    parser.add_argument("--ablations", action="store_true", help="also ours with one thing taken away at a time")
    parser.add_argument("--uncompiled", action="store_true", help="the peers without torch.compile")
    parser.add_argument("--table", type=Path, help="page whose tables `time-to-loss` and others are rewritten")
    parser.add_argument("--picture", type=Path, help="SVG of the curves")
    parser.add_argument("--dry-run", action="store_true", help="tell what is missing, and how long it takes")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        values = json.loads(asked.serve)
        serve(Work(**{**values, "overrides": tuple(values["overrides"])}))
        return
    if not asked.texts or asked.results is None:
        parser.error("name some text and --results FILE")
    with tempfile.TemporaryDirectory() as folder:
        measure(asked, folder)


def measure(asked: argparse.Namespace, folder: str) -> None:
    """Everything that was asked for."""
    data, paragraphs = str(asked.texts[0]), f"{folder}/paragraphs"
    is_prepared = (asked.texts[0] / "manifest.json").is_file()
    if not is_prepared:
        data = f"{folder}/data"
        prepare(asked.texts, Path(data), VOCAB_SIZE)
    systems = (*asked.systems.split(","), *(ABLATIONS if asked.ablations else ()))
    if unknown := [system for system in systems if system not in CANDIDATES]:
        sys.exit(f"no system is called {', '.join(unknown)}; there are {', '.join(CANDIDATES)}")
    if set(systems) & set(OF_PARAGRAPHS):
        if is_prepared:
            sys.exit(f"{' and '.join(OF_PARAGRAPHS)} need plain text, which is prepared with paragraphs as documents")
        prepare(asked.texts, Path(paragraphs), VOCAB_SIZE, "--set", "corpus.documents=line")
    seeds = tuple(map(int, asked.seeds.split(",")))
    plan = Plan(
        data, paragraphs, asked.minutes, asked.sweep, asked.finalists, seeds, asked.threads, not asked.uncompiled,
        tuple(dict.fromkeys(systems)),
    )  # fmt: skip
    manifest = json.loads((Path(data) / "manifest.json").read_text(encoding="utf-8"))
    results = Results(asked.results, manifest["fingerprint"])
    print(*estimate(plan, results), sep="\n", file=sys.stderr)
    if asked.dry_run:
        return
    try:
        for works in stages(plan, results):
            run(works, results)
    finally:  # what is there is shown, too, where something stopped it
        show(plan, results, asked.table, asked.picture)


if __name__ == "__main__":
    main()
