r"""Training throughput: our step against transformers' Trainer on the same rows, in alternation.

    python benchmarks/train.py TEXT... [--sizes 4x256,6x384,12x768] [--lengths 128,512,1024] [--rounds 2] \
        [--table PAGE] [--name training]
    python benchmarks/train.py TEXT... --device cuda --compiled yes --vocab-size 32000 --sizes 12x768 --lengths 512

Every system is a process of its own, so that memory is its own as well, and computes only when it is its turn: a round
is some seconds of each, until those of all rounds are full. The steps of the first two seconds, at least one, do not
count (while the others computed, the system may have taken away what memory lay idle). What counts is the time from one
step's end to the next one's, loading and masking included; the table shows medians of all steps, at least three, and
marks what rests on fewer than five. Tokens are those of the text, without special tokens and padding. All train on rows
of the same prepared text, with as many of them a step: ours on one after another, which in an epoch's last steps may be
fewer, transformers' on those of the first eight steps (on a GPU 64) in random order, again and again.

    ours      this project: its best layout for the machine that transformers loads (`--layout`), its own optimizer
              (`--optimizer`), masking, isolated documents
    bert      transformers' BertForMaskedLM in a Trainer as run_mlm sets it: float32, AdamW, dropout of 0.1, and
              DataCollatorForLanguageModeling; documents see each other
    bert-bf16 the same with bf16, special tokens told beforehand, and the faster of transformers' ways to compute
              attention (each is a process of its own, until it is known which one is slower; the trial's steps count);
              for the sake of time at the first length only, unless `--systems` names it: at others bert-best, which
              is faster, stands for both
    bert-best the same without dropout, at every length
    modernbert-bf16  ModernBertForMaskedLM of the same size, the same way, with logits at masked positions only

The share of the peak counts 6 FLOP for each multiplied parameter and token of text (the head at predicted tokens only)
and 12 x length x hidden size for attention in each layer, the length being that of the token's own segment (in local
layers the window, where that is shorter), over what matrix products in bf16 reach on this machine. Its speed changes
within minutes, so products have a turn of about a second just before each of ours: the table shows the median of ours
over products, turn by turn, and the median of what products reached. On a GPU it is the share of 790 TFLOP/s, what
products reach on an H200, unless `--peak-tflops` says another number, and of the 989 of its data sheet.

On a GPU a step is told to the device and computed later. So the time of a turn runs from a device that has nothing to
do to one that has nothing to do, and is shared out over its steps; what is compiled is compiled before. Batches are
made meanwhile: ours in a thread, transformers' in four processes that its loader keeps.

A system whose process ends, since memory does not suffice for all of them, is named in the table, and the others go on.
The page is rewritten behind every cell. `make bench` leaves 12x768 out, whose steps take the longest: `make bench-rest`
has it in a table of its own (`--name`).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tables import write_table
from timed import TURN_SECONDS, Work
from trained import SYSTEMS, ways
from turns import Child, ChildEnded

BATCH_TOKENS = {"4x256": 8192, "6x384": 8192, "12x768": 4096}  # a step; by size
LEAST_STEPS = 3  # that count, shared out over the rounds where steps are longer than turns
FEW_STEPS = 5  # figures of fewer are marked
FEW = f"`*`: of fewer than {FEW_STEPS} steps."
TRIAL_SHARE = 0.25  # of a turn, to find out which way to compute attention is the fastest; it counts, too
NEAR = 1.2  # ways whose first trials differ less have another one
GPU_BATCH_TOKENS = 131_072
FIRST_LENGTH_ONLY = "bert-bf16"  # unless it is asked for: of the systems in bf16 it takes the longest
SCRIPT = Path(__file__).with_name("trained.py")
H200_TFLOPS = 790.0  # dense, bf16
DATA_SHEET = 989e12


class System(Child):
    """A process that trains when it is its turn."""

    turn_seconds = TURN_SECONDS  # that count

    def __init__(self, system: str, attention: str, work: Work) -> None:
        self.turn_seconds = work.turn_seconds
        super().__init__([sys.executable, str(SCRIPT), system, attention, json.dumps(work._asdict())])
        self.facts: dict[str, Any] = {}
        self.seconds: list[float] = []  # of the steps that count
        self.tokens: list[int] = []  # of text, in the same steps
        self.memory = 0

    def go(self, least_steps: int = 1) -> float:
        """A turn, of so many steps at least that count: tokens a second, the median of its steps."""
        taken = self._train(self.turn_seconds, least_steps)
        read = self.tokens[-len(taken) :]
        return statistics.median(tokens / seconds for tokens, seconds in zip(read, taken, strict=True))

    def trial(self) -> float:
        """Seconds of a step, of a few; they count as those of turns do."""
        return statistics.median(self._train(TRIAL_SHARE * self.turn_seconds))

    def _train(self, seconds: float, least_steps: int = 1) -> list[float]:
        answer = self.ask(f"{seconds} {least_steps}")
        self.seconds += answer["seconds"]
        self.tokens += answer["tokens"]
        self.memory = answer["memory"]
        return list(answer["seconds"])


def start(systems: Mapping[str, tuple[str, Work]]) -> dict[str, System]:
    """Processes that are ready for their turns. They load and build side by side; those that end are left out."""
    candidates = {
        name: [System(system, way, work) for way in ways(system, work)] for name, (system, work) in systems.items()
    }
    every = [process for some in candidates.values() for process in some]
    for process in every:
        process.read()
    for process in every:
        process.tell("begin")
    for stage in (_built, _fastest):
        for name, some in list(candidates.items()):
            try:
                candidates[name] = stage(some)
            except ChildEnded:
                for process in some:
                    process.close()
                del candidates[name]
    return {name: process for name, (process,) in candidates.items()}


def _built(candidates: list[System]) -> list[System]:
    """The same, when they are ready."""
    for process in candidates:
        process.facts = process.read()
    return candidates


def _fastest(candidates: list[System]) -> list[System]:
    """The fastest of a system's ways; the others end. Those that are near each other are tried twice, in turn."""
    if len(candidates) == 1:
        return candidates
    taken = {process: process.trial() for process in candidates}
    if max(taken.values()) < NEAR * min(taken.values()):
        taken = {process: min(seconds, process.trial()) for process, seconds in taken.items()}
    best = min(candidates, key=taken.__getitem__)
    for process in candidates:
        if process is not best:
            process.close()
    return [best]


def peak_flops(hidden: int, tokens: int, device: str) -> float:
    """FLOP a second of the fastest of the products in bf16 that a model of this width is made of, and a large one."""
    best = 0.0
    for rows, inner, columns in (
        (tokens, hidden, 4 * hidden),
        (tokens, 4 * hidden, hidden),
        (tokens, hidden, 3 * hidden),
        (4096, 2048, 2048),
    ):
        a = torch.randn(rows, inner, device=device).bfloat16()
        b = torch.randn(columns, inner, device=device).bfloat16()
        for _ in range(4):
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(4):
                torch.nn.functional.linear(a, b)
            if device == "cuda":
                torch.cuda.synchronize()
            best = max(best, 4 * 2 * rows * inner * columns / (time.perf_counter() - begin))
    return best


class Pair(NamedTuple):
    """What products alone reached in their turn, and ours in the one just behind."""

    flops: float  # a second
    tokens: float  # a second


def products_turn(work: Work) -> float:
    """The turn of products alone: FLOP a second. The memory that they took is for the others."""
    reached = peak_flops(work.hidden, work.rows * work.length, work.device)
    if work.device == "cuda":
        torch.cuda.empty_cache()
    return reached


def take_turns(processes: dict[str, System], work: Work, rounds: int) -> list[Pair]:
    """All rounds; processes that end are taken out.

    Returns:
        One of each round in which ours had a turn.
    """
    pairs: list[Pair] = []
    for number in range(1, rounds + 1):
        for name, process in list(processes.items()):
            with suppress(ChildEnded):
                if _has_turn(process, number):
                    least_steps = _least_steps(process, rounds - number + 1)
                    if name == "ours":
                        products = products_turn(work)
                        pairs.append(Pair(products, process.go(least_steps)))
                    else:
                        process.go(least_steps)
                if not any(_has_turn(process, later) for later in range(number + 1, rounds + 1)):
                    process.close()  # its memory is for the others
                continue
            del processes[name]
    return pairs


def share_of_peak(facts: Mapping[str, Any], work: Work, pairs: list[Pair], peak: float | None) -> str:
    """What ours reached of the peak, the median of its turns; the peak is that of each turn where None is given."""
    flops = 6 * (facts["multiplied"] + 0.15 * facts["head"]) + 12 * facts["reach"] * work.hidden  # a token
    share = statistics.median(flops * pair.tokens / (peak or pair.flops) for pair in pairs)
    shown = f"{share:.0%} of {(peak or statistics.median(pair.flops for pair in pairs)) / 1e12:.2f} TFLOP/s"
    return shown if work.device == "cpu" else f"{shown}, {share * (peak or 0.0) / DATA_SHEET:.0%} of 989"


def measure(work: Work, systems: list[str], rounds: int, peak: float | None) -> list[str]:
    """Rows of the table; the peak in FLOP a second, measured in every round where None is given."""
    processes = start({name: (name, work) for name in systems})
    pairs = take_turns(processes, work, rounds)
    if work.device == "cuda" and pairs:
        alone = statistics.median(pair.flops for pair in pairs)
        print(f"products alone: {alone / 1e12:.0f} TFLOP/s", file=sys.stderr)
    rates = {
        name: sorted(tokens / seconds for tokens, seconds in zip(process.tokens, process.seconds, strict=True))
        for name, process in processes.items()
    }
    medians = {name: statistics.median(each) for name, each in rates.items()}
    cell, lines = f"{work.size} | {work.length:,} | {work.rows * work.length:,}", []
    for name, process in processes.items():
        facts, each, median = process.facts, rates[name], medians[name]
        few = _few(len(each))
        ratio = f"{medians['ours'] / median:.2f}{_few(len(rates['ours']), len(each))}" if "ours" in medians else "-"
        share = share_of_peak(facts, work, pairs, peak) + few if name == "ours" else "-"
        spread = f"{each[0]:,.0f} to {each[-1]:,.0f}; {len(each)}"
        lines.append(
            f"| {cell} | {name}{_note(facts)} | {median:,.0f}{few} ({spread}) | {ratio} | {share} "
            f"| {process.memory / 2**20:,.0f} |"
        )
    ended = [name for name in systems if name not in processes]
    return [*lines, *(f"| {cell} | {name} | ended: no memory |  |  |  |" for name in ended)]


def _has_turn(process: System, number: int) -> bool:
    """Whether a process has a turn in a round: all have one in the first; steps longer than a turn have fewer."""
    return number == 1 or sum(process.seconds) < number * process.turn_seconds or len(process.seconds) < LEAST_STEPS


def _least_steps(process: System, turns: int) -> int:
    """Of the next turn, where so many are left: as many turns as can be share the steps that are still to count."""
    return max(1, math.ceil((LEAST_STEPS - len(process.seconds)) / turns))


def _few(*steps: int) -> str:
    """The mark of a figure that rests on so many steps of each system."""
    return "*" if min(steps) < FEW_STEPS else ""


def _explained(lines: list[str]) -> list[str]:
    """The table, and below it what its marks mean, where it has any."""
    return [*lines, "", FEW] if any("* " in line for line in lines) else lines


def _note(facts: dict[str, Any]) -> str:
    return f" ({facts['attention']})" if "attention" in facts else ""


def prepare(texts: list[Path], out: Path, vocab_size: int, *options: str) -> None:
    size = str(vocab_size)
    command = [sys.executable, "-m", "unmask", "prepare", *map(str, texts), "--out", str(out), "--vocab-size", size]
    subprocess.run([*command, "--tokenizer-kind", "wordpiece", *options], check=True)


def systems_at(number: int, asked: str | None) -> list[str]:
    """The systems of a length, by its place among all."""
    if asked is not None:
        return asked.split(",")
    return [name for name in SYSTEMS if number == 0 or name != FIRST_LENGTH_ONLY]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--sizes", default="4x256,6x384,12x768")
    parser.add_argument("--lengths", default="128,512,1024")
    parser.add_argument("--systems", help=f"at every length; by default all, {FIRST_LENGTH_ONLY} at the first one only")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turn-seconds", type=float, default=TURN_SECONDS, help="of a turn, that count")
    parser.add_argument("--layout", default="modernbert")
    parser.add_argument("--optimizer", default="muon", choices=("muon", "adamw"))
    parser.add_argument("--compiled", default="no", choices=("no", "yes"), help="torch.compile for the peers in bf16")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--peak-tflops", type=float, help="of the GPU, dense bf16")
    parser.add_argument("--table", type=Path, help="page whose table is rewritten")
    parser.add_argument("--name", help="of that table; by default `training`, on a GPU `training-gpu`")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    on_gpu = asked.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device here; leave --device cuda away")
    peak = (asked.peak_tflops or H200_TFLOPS) * 1e12 if on_gpu else None
    name = asked.name or ("training-gpu" if on_gpu else "training")
    gpu = torch.cuda.get_device_name() if on_gpu else None
    lines = [
        "| size | length | positions a step | system | tokens a second (slowest to fastest; steps) | ours / this "
        "| share of peak | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    print(*lines, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        prepare(asked.texts, Path(folder) / "data", asked.vocab_size)
        for size in asked.sizes.split(","):
            for number, length in enumerate(map(int, asked.lengths.split(","))):
                systems = systems_at(number, asked.systems)
                usual = GPU_BATCH_TOKENS if on_gpu else BATCH_TOKENS.get(size, 4096)
                tokens = asked.batch_tokens or usual
                how = (asked.layout, asked.optimizer, asked.compiled, asked.device, asked.turn_seconds)
                work = Work(f"{folder}/data", size, length, tokens, *how)
                found = measure(work, systems, asked.rounds, peak)
                print(*found, sep="\n", flush=True)
                lines += found
                if asked.table:
                    write_table(asked.table, name, _explained(lines), gpu=gpu)
    for line in _explained(lines)[len(lines) :]:
        print(line, flush=True)


if __name__ == "__main__":
    main()
