r"""Training throughput: our step against transformers' Trainer on the same rows, in alternation.

    python benchmarks/train.py TEXT... [--sizes 4x256,6x384,12x768] [--lengths 128,512,1024] [--rounds 2] \
        [--table PAGE] [--name training]
    python benchmarks/train.py TEXT... --device cuda --compiled yes --vocab-size 32000 --sizes 12x768 --lengths 512

Every system is a process with its own memory, and computes only in its turns: a round gives each a few seconds, until
the seconds of all rounds are full. In each turn the steps of the first two seconds, at least one, do not count. A step
is timed from the end of the previous one, with loading and masking. The table shows medians over all steps, at least
three, and marks those over fewer than five. Tokens are those of the text, without special tokens and padding. All train
on rows of the same prepared text, with equally many in a step. Ours takes row after row, with fewer in an epoch's last
steps; transformers takes the rows of the first eight steps (on a GPU 64) repeatedly, in random order.

    ours      this project: ModernBERT's layout, its own optimizer (`--optimizer`), masking, isolated documents
    bert      transformers' BertForMaskedLM in a Trainer as run_mlm sets it: float32, AdamW, dropout of 0.1, and
              DataCollatorForLanguageModeling; documents see each other
    bert-bf16 the same with bf16, special tokens known beforehand, and the faster attention of transformers (each is a
              separate process until a trial, whose steps count, shows which is slower); at the first length only,
              unless `--systems` names it
    bert-best the same without dropout, at every length
    modernbert-bf16  ModernBertForMaskedLM of the same size, with the same settings and logits at masked positions only

The share of the peak counts 6 FLOP for each multiplied parameter and token of text (the head at predicted tokens only),
and 12 x length x hidden size for attention in each layer, where length is that of the token's own segment (in local
layers at most the window). It is relative to the speed of bf16 matrix products on this machine. That changes within
minutes, so products get a turn of about a second just before each of ours: the table shows the median ratio of ours to
products over turns, and the median speed of products. On a GPU it is the share of 790 TFLOP/s, which products reach on
an H200, and of the 989 of its data sheet.

A GPU queues steps and computes them later, so a turn is timed from an idle device to an idle device, and its time is
divided among its steps; compilation is done before. Batches are made meanwhile: ours in a thread, transformers' in four
worker processes of its loader.

A system whose process ends because memory runs out is named in the table, and the others continue.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ours import prepare
from tables import head, parser_of, write_table
from trained import SYSTEMS, TURN_SECONDS, Work, synchronize, ways
from turns import Child, ChildEnded

from unmask.train.hardware import choose_dtype

BATCH_TOKENS = {"4x256": 8192, "6x384": 8192, "12x768": 4096}  # a step; by size
LEAST_STEPS = 3  # fewest steps that count, divided among the rounds if steps are longer than turns
FEW_STEPS = 5  # figures of fewer steps are marked
TRIAL_SHARE = 0.25  # share of a turn for finding the fastest attention; its steps count, too
NEAR = 1.2  # a second trial decides if the first ones differ by a smaller factor
GPU_BATCH_TOKENS = 131_072
FIRST_LENGTH_ONLY = "bert-bf16"  # unless `--systems` names it: it is the slowest of those in bf16
H200_FLOPS = 790e12  # dense, bf16
DATA_SHEET = 989e12
LARGE = (4096, 2048, 2048)  # rows, inner and outer width of a large product


class System(Child):
    """A process that trains in its turns."""

    def __init__(self, system: str, attention: str, work: Work) -> None:
        script = Path(__file__).with_name("trained.py")
        super().__init__([sys.executable, str(script), system, attention, json.dumps(work._asdict())])
        self.turn_seconds = work.turn_seconds  # counted seconds of a turn
        self.facts: dict[str, Any] = {}
        self.seconds: list[float] = []  # of the steps that count
        self.tokens: list[int] = []  # of text, in the same steps
        self.memory = 0

    def go(self, least_steps: int = 1) -> float:
        """Trains for a turn with at least `least_steps` counted steps. Returns their median of tokens a second."""
        taken = self._train(self.turn_seconds, least_steps)
        return statistics.median(
            tokens / seconds for tokens, seconds in zip(self.tokens[-len(taken) :], taken, strict=True)
        )

    def trial(self) -> float:
        """Trains for a part of a turn, whose steps count too. Returns their median seconds."""
        return statistics.median(self._train(TRIAL_SHARE * self.turn_seconds, 1))

    def _train(self, seconds: float, least_steps: int) -> list[float]:
        answer = self.ask(f"{seconds} {least_steps}")
        self.seconds += answer["seconds"]
        self.tokens += answer["tokens"]
        self.memory = answer["memory"]
        return list(answer["seconds"])


def start(names: list[str], work: Work) -> dict[str, System]:
    """Starts the processes, and returns those that are ready for their turns. They load and build in parallel."""
    candidates = {name: [System(name, way, work) for way in ways(name, work)] for name in names}
    every = [process for processes in candidates.values() for process in processes]
    for process in every:
        process.read()
    for process in every:
        process.tell("begin")
    ready = {}
    for name, processes in candidates.items():
        try:
            for process in processes:
                process.facts = process.read()
            ready[name] = processes
        except ChildEnded:
            for process in processes:
                process.close()
    for name, processes in list(ready.items()):
        try:
            ready[name] = [fastest(processes)]
        except ChildEnded:
            del ready[name]
    return {name: process for name, (process,) in ready.items()}


def fastest(candidates: list[System]) -> System:
    """Returns the process with the fastest attention, and closes the others. Close ones are tried twice, in turn."""
    if len(candidates) == 1:
        return candidates[0]
    best = None
    try:
        taken = {process: process.trial() for process in candidates}
        if max(taken.values()) < NEAR * min(taken.values()):
            taken = {process: min(seconds, process.trial()) for process, seconds in taken.items()}
        best = min(candidates, key=taken.__getitem__)
    finally:
        for process in candidates:
            if process is not best:
                process.close()
    return best


def peak_flops(hidden: int, tokens: int, device: str) -> float:
    """FLOP a second of the fastest product, among those of a model of this width and a large one, in the type that the
    device computes in: bf16 only if it is fast there."""
    best, dtype = 0.0, choose_dtype("auto", torch.device(device))
    for rows, inner, columns in (
        (tokens, hidden, 4 * hidden), (tokens, 4 * hidden, hidden), (tokens, hidden, 3 * hidden), LARGE,
    ):  # fmt: skip
        a = torch.randn(rows, inner, device=device, dtype=dtype)
        b = torch.randn(columns, inner, device=device, dtype=dtype)
        for _ in range(4):
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(4):
                torch.nn.functional.linear(a, b)
            synchronize(device)
            best = max(best, 4 * 2 * rows * inner * columns / (time.perf_counter() - begin))
    return best


def take_turns(processes: dict[str, System], work: Work, rounds: int) -> list[tuple[float, float]]:
    """Runs all rounds, and removes processes that end.

    Returns:
        For each round with a turn of ours: FLOP a second of products alone, and then tokens a second of ours.
    """
    pairs: list[tuple[float, float]] = []
    for number in range(1, rounds + 1):
        for name, process in list(processes.items()):
            full = sum(process.seconds) >= number * process.turn_seconds and len(process.seconds) >= LEAST_STEPS
            if full and number > 1:  # everyone has a turn in the first round; with long steps later ones may be skipped
                continue
            # The steps that are still needed are divided among the rounds left.
            least = max(1, math.ceil((LEAST_STEPS - len(process.seconds)) / (rounds - number + 1)))
            try:
                if name == "ours":
                    products = peak_flops(work.hidden, work.rows * work.length, work.device)
                    if work.device == "cuda":
                        torch.cuda.empty_cache()  # leaves their memory to the systems
                    pairs.append((products, process.go(least)))
                else:
                    process.go(least)
            except ChildEnded:
                del processes[name]
                continue
            if sum(process.seconds) >= rounds * process.turn_seconds and len(process.seconds) >= LEAST_STEPS:
                process.close()  # leaves its memory to the others
    for process in processes.values():
        process.close()
    return pairs


def share_of_peak(facts: Mapping[str, Any], work: Work, pairs: list[tuple[float, float]]) -> str:
    """The share of the peak that ours reached, as the median over its turns."""
    flops = 6 * (facts["multiplied"] + 0.15 * facts["head"]) + 12 * facts["reach"] * work.hidden  # a token
    if work.device == "cuda":
        share = statistics.median(flops * tokens / H200_FLOPS for _, tokens in pairs)
        return f"{share:.0%} of {H200_FLOPS / 1e12:.2f} TFLOP/s, {share * H200_FLOPS / DATA_SHEET:.0%} of 989"
    share = statistics.median(flops * tokens / products for products, tokens in pairs)
    return f"{share:.0%} of {statistics.median(products for products, _ in pairs) / 1e12:.2f} TFLOP/s"


def measure(work: Work, systems: list[str], rounds: int) -> list[str]:
    processes = start(systems, work)
    pairs = take_turns(processes, work, rounds)
    if work.device == "cuda" and pairs:
        alone = statistics.median(products for products, _ in pairs)
        print(f"products alone: {alone / 1e12:.0f} TFLOP/s", file=sys.stderr)
    rates = {
        name: sorted(tokens / seconds for tokens, seconds in zip(process.tokens, process.seconds, strict=True))
        for name, process in processes.items()
    }
    cell, lines = f"{work.size} | {work.length:,} | {work.rows * work.length:,}", []
    for name, process in processes.items():
        rate, median = rates[name], statistics.median(rates[name])
        few = "*" if len(rate) < FEW_STEPS else ""
        ratio = share = "-"
        if ours := rates.get("ours"):
            ratio = f"{statistics.median(ours) / median:.2f}{'*' if min(len(ours), len(rate)) < FEW_STEPS else ''}"
        if name == "ours":
            share = share_of_peak(process.facts, work, pairs) + few
        note = f" ({process.facts['attention']})" if "attention" in process.facts else ""
        spread = f"{rate[0]:,.0f} to {rate[-1]:,.0f}; {len(rate)}"
        lines.append(
            f"| {cell} | {name}{note} | {median:,.0f}{few} ({spread}) | {ratio} | {share} "
            f"| {process.memory / 2**20:,.0f} |"
        )
    ended = [name for name in systems if name not in processes]
    return [*lines, *(f"| {cell} | {name} | ended: no memory |  |  |  |" for name in ended)]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--sizes", default="4x256,6x384,12x768")
    parser.add_argument("--lengths", default="128,512,1024")
    parser.add_argument("--systems", help=f"at every length; by default all, {FIRST_LENGTH_ONLY} at the first one only")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turn-seconds", type=float, default=TURN_SECONDS, help="counted seconds of a turn")
    parser.add_argument("--optimizer", default="muon", choices=("muon", "adamw"))
    parser.add_argument("--compiled", default="no", choices=("no", "yes"), help="torch.compile for the peers in bf16")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--table", type=Path, help="page whose table is rewritten")
    parser.add_argument("--name", help="name of the table; by default `training`, on a GPU `training-gpu`")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device here; leave out --device cuda")
    name = options.name or ("training-gpu" if on_gpu else "training")
    gpu = torch.cuda.get_device_name() if on_gpu else None
    lines = head(
        "size | length | positions a step | system | tokens a second (slowest to fastest; steps) | ours / this "
        "| share of peak | memory, MiB"
    )
    print(*lines, sep="\n", flush=True)
    how = (options.optimizer, options.compiled, options.device, options.turn_seconds)
    with tempfile.TemporaryDirectory() as folder:
        prepare(options.texts, Path(folder) / "data", options.vocab_size)
        lengths = list(map(int, options.lengths.split(",")))
        for size, length in itertools.product(options.sizes.split(","), lengths):
            systems = [system for system in SYSTEMS if length == lengths[0] or system != FIRST_LENGTH_ONLY]
            if options.systems is not None:
                systems = options.systems.split(",")
            tokens = options.batch_tokens or (GPU_BATCH_TOKENS if on_gpu else BATCH_TOKENS.get(size, 4096))
            rows = measure(Work(f"{folder}/data", size, length, tokens, *how), systems, options.rounds)
            print(*rows, sep="\n", flush=True)
            lines += rows
            if options.table:  # rewritten after every cell
                few = ["", f"`*`: of fewer than {FEW_STEPS} steps."] if any("* " in line for line in lines) else []
                write_table(options.table, name, lines + few, gpu=gpu)


if __name__ == "__main__":
    main()
