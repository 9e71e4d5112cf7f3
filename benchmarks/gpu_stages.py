"""The stages of `gpu.py`. Each returns the lines of its table; in `bench`, `train.py` writes the tables."""

from __future__ import annotations

import gc
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ours import assemble, prepare
from tables import head
from torch import Tensor
from train import peak_flops
from trained import synchronize

from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.run_data import PreparedData, open_prepared
from unmask.data.rows import Cursor
from unmask.train.callbacks import StepReport
from unmask.train.step import training_step

ROOT = Path(__file__).resolve().parents[1]
SIZE, DRY_SIZE = (12, 768), (2, 64)
KINDS = {
    "products": r"gemm|cutlass|cublas|nvjet|xmma|::mm|addmm|bmm|linear",
    "attention": r"flash|fmha|attention|varlen",
    "optimizer": r"adam|foreach|multi_tensor|lerp",
    "copies": r"memcpy|memset|copy_|::to\b",
    "norms, activations, loss": r"triton|norm|gelu|softmax|elementwise|reduce|vectorized|mul|add|index|embedding",
}


@dataclass(frozen=True)
class Bench:
    """The environment of the stages: `dry` uses tiny models on a CPU, without a `device_name`; tables go to `page`."""

    dry: bool
    device: torch.device
    device_name: str | None
    text: Path
    out: Path
    page: Path

    @property
    def data(self) -> PreparedData:
        """The text, prepared on first use."""
        folder = self.out / "data"
        if not (folder / "manifest.json").is_file():
            prepare([self.text], folder, 500 if self.dry else 32_000, overwrite=True)
        return open_prepared(folder)

    def recipe(self, **training: Any) -> Recipe:
        """The recipe of full size, or tiny in a dry run: ModernBERT's layout, Muon, 131,072 positions a step."""
        layers, hidden = DRY_SIZE if self.dry else SIZE
        length, tokens = (64, 1024) if self.dry else (512, 131_072)
        settings = {
            "model.num_layers": layers, "model.hidden_size": hidden, "model.num_heads": max(1, hidden // 64),
            "training.sequence_length": length, "training.batch_tokens": tokens, "training.steps": 1_000_000,
            **{f"training.{name}": value for name, value in training.items()},
        }  # fmt: skip
        return load_recipe("tiny", options=settings)


def check(bench: Bench) -> list[str]:
    """The device's speeds, and whether it computes the same as a CPU."""
    rows = [*_device(bench), *_tests(bench), *_against_the_cpu(bench), _waits(bench), _memory(bench)]
    return [*head("what | result"), *(f"| {what} | {result} |" for what, result in rows)]


def _device(bench: Bench) -> list[tuple[str, str]]:
    hidden = (DRY_SIZE if bench.dry else SIZE)[1]
    products = peak_flops(hidden, 1024 if bench.dry else 131_072, bench.device.type)
    size = 1 << (22 if bench.dry else 30)
    source, target = (torch.empty(size, dtype=torch.uint8, device=bench.device) for _ in range(2))
    seconds = math.inf
    for _ in range(10):
        synchronize(bench.device.type)
        begin = time.perf_counter()
        target.copy_(source)
        synchronize(bench.device.type)
        seconds = min(seconds, time.perf_counter() - begin)
    about = "CPU: a miniature run, whose figures mean nothing"
    if not bench.dry:
        properties = torch.cuda.get_device_properties(0)
        about = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return [
        ("device", f"{about}, torch {torch.__version__}"),
        ("products, TFLOP/s", f"{products / 1e12:,.1f}"),
        ("memory, read and written, GB/s", f"{2 * size / seconds / 1e9:,.0f}"),
    ]


def _tests(bench: Bench) -> list[tuple[str, str]]:
    """Runs the tests marked `gpu`, in a dry run those of one file. Warnings are not errors, as the compiler warns."""
    which = "tests/tasks/test_other_models.py" if bench.dry else "tests"  # collecting all tests takes long
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider", which]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    printed = ended.stdout.strip().splitlines()
    (bench.out / "tests.txt").write_text(ended.stdout + ended.stderr, encoding="utf-8")
    summaries = [line.strip("= ") for line in printed if "passed" in line or "skipped" in line]
    failed = [line.removeprefix("FAILED ").partition(" - ")[0] for line in printed if line.startswith("FAILED")]
    return [("tests marked `gpu`", ["no result", *summaries][-1]), *[("failed", f"`{name}`") for name in failed]]


def _against_the_cpu(bench: Bench) -> list[tuple[str, str]]:
    """Compares the loss and all gradients of a batch with those in float32 on a CPU."""

    def one_step(device: torch.device, precision: str) -> tuple[float, dict[str, Tensor]]:
        whole = bench.recipe(
            precision=precision, clip_norm=1e9, sampled_softmax="no"
        )  # by default a CPU samples the softmax, and a GPU does not
        training = assemble(whole, bench.data, device)
        model, optimizer = training.state.model, training.state.optimizer
        batch = training.stream.batch(Cursor(), 8).rows
        gradients: dict[str, Tensor] = {}

        def step() -> None:
            parameters = ((name, each) for name, each in model.named_parameters() if each.grad is not None)
            gradients.update({name: each.grad.float().cpu().flatten() for name, each in parameters})

        optimizer.step = step  # type: ignore[method-assign]
        model.train()
        masked = training.masker(batch)
        figures = training_step(training.state, training.settings, batch, masked)
        return figures.read().loss, gradients

    expected_loss, expected = one_step(torch.device("cpu"), "float32")
    rows = []
    for precision, limit in (("float32", 2e-3), ("bf16", None)):
        loss, here = one_step(bench.device, precision)
        cosines = {
            name: float(torch.nn.functional.cosine_similarity(here[name], expected[name], dim=0, eps=1e-30))
            for name in expected
        }
        worst = min(cosines, key=cosines.__getitem__)
        difference = abs(loss / expected_loss - 1)
        text = f"loss {difference:.1e} from it, gradients' cosine {cosines[worst]:.5f} at the least ({worst})"
        if limit is not None:
            text += "; as it should be" if difference < limit and cosines[worst] > 0.999 else "; **TOO FAR**"
        rows.append((f"a full-size step in {precision} against a CPU in float32", text))
    return rows


def _waits(bench: Bench) -> tuple[str, str]:
    """Runs steps of the loop, compiled, in which any wait for the device is an error."""
    what = "steps of the loop that wait for the device"
    if bench.dry:
        return what, "not looked at: a CPU has nothing to wait for"
    reports = assemble(bench.recipe(compile_blocks="yes"), bench.data, bench.device).reports()
    for _ in range(24):  # enough steps to compile everything
        next(reports)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(8):
            next(reports)
    except RuntimeError as error:
        return what, f"**THERE ARE**: {str(error).splitlines()[0]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return what, "none of 8"


def _memory(bench: Bench) -> tuple[str, str]:
    """Runs a step with three fifths of the memory that it needs."""
    what = "memory that runs out"
    if bench.dry:
        return what, "not looked at: a CPU has no limit to set"

    def first_step() -> StepReport:
        gc.collect()
        torch.cuda.empty_cache()
        return next(assemble(bench.recipe(micro_batch_tokens=131_072), bench.data, bench.device).reports())

    torch.cuda.reset_peak_memory_stats()
    whole = first_step()
    peak, total = torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / total)
    try:
        cut = first_step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    difference = abs(cut.loss / whole.loss - 1)
    verdict = "as it should be" if cut.micro_batches > 1 and difference < 2e-3 else "**WRONG**"
    took = f"{peak / 2**30:.1f} GiB in {whole.micro_batches} part(s)"
    return what, f"{took}; with 60 % of that {cut.micro_batches} parts, loss {difference:.1e} from it; {verdict}"


def profile(bench: Bench) -> list[str]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    training = assemble(bench.recipe(), bench.data, bench.device)
    reports = training.reports()
    for _ in range(2 if bench.dry else 10):
        next(reports)
    synchronize(bench.device.type)
    activity = ProfilerActivity.CPU if bench.dry else ProfilerActivity.CUDA
    steps = 3 if bench.dry else 8
    with profiled(activities=[activity]) as events:
        begin = time.perf_counter()
        for _ in range(steps):
            next(reports)
        synchronize(bench.device.type)
        wall = time.perf_counter() - begin
    seconds: dict[str, float] = defaultdict(float)
    name_of_time = "self_cpu_time_total" if bench.dry else "self_device_time_total"
    for event in events.key_averages():
        matching = (kind for kind, pattern in KINDS.items() if re.search(pattern, event.key, re.IGNORECASE))
        seconds[next(matching, "the rest")] += getattr(event, name_of_time) / 1e6
    busy = sum(seconds.values())
    lines = [f"{steps} steps of {1e3 * wall / steps:,.1f} ms.", "", *head("kind | share of the time")]
    ranked = sorted(seconds.items(), key=lambda entry: -entry[1])
    lines += [f"| {kind} | {each / wall:.1%} |" for kind, each in ranked]
    return [*lines, f"| nothing to do | {max(0.0, 1 - busy / wall):.1%} |"]


def bench_peers(bench: Bench) -> list[str]:
    """Runs `train.py` on the text, and on the text in short lines. It writes the tables itself."""
    short = bench.out / "short.txt"
    words = bench.text.read_text(encoding="utf-8").split()
    short.write_text("\n".join(" ".join(words[n : n + 20]) for n in range(0, len(words), 20)), encoding="utf-8")
    runs = [
        (bench.text, "training-gpu", "muon", "ours,bert-bf16,modernbert-bf16"),
        (bench.text, "training-gpu-adamw", "adamw", "ours,modernbert-bf16"),
        (short, "training-gpu-short", "muon", "ours,modernbert-bf16"),
    ]
    full = "--sizes 12x768 --lengths 512 --device cuda --compiled yes --vocab-size 32000 --rounds 2"
    small = "--sizes 2x64 --lengths 64 --batch-tokens 512 --vocab-size 500 --rounds 1 --turn-seconds 0.4"
    options = (small if bench.dry else full).split()
    for text, name, optimizer, systems in runs[2:] if bench.dry else runs:
        command = [sys.executable, str(ROOT / "benchmarks" / "train.py"), str(text), *options]
        command += ["--optimizer", optimizer, "--systems", systems, "--table", str(bench.page), "--name", name]
        subprocess.run(command, check=True)
    return []


def train_killed(bench: Bench) -> list[str]:
    """Runs `unmask pretrain` for a few minutes, killed in the middle and resumed."""
    run = bench.out / "run"
    minutes = 0.06 if bench.dry else 3.0
    size = ["--set", "model.num_layers=2", "--set", "model.hidden_size=64", "--set", "model.num_heads=1"]
    every_steps = 20 if bench.dry else 1000  # a GPU that saves often waits for the disk
    every = ["--set", f"checkpoint.every_steps={every_steps}"]
    command = [sys.executable, "-m", "unmask", "pretrain"]
    more = [str(bench.out / "data"), "--minutes", str(minutes), *every, *(size if bench.dry else ["--recipe", "mini"])]
    assert bench.data.manifest.train.tokens, "the text is prepared"
    began = subprocess.Popen([*command, *more, "--out", str(run), "--overwrite", "--quiet"], cwd=ROOT)
    deadline = time.monotonic() + 60.0 * minutes / 2 + 120.0
    while not any((run / "checkpoints").glob("step-*/state.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(60.0 * minutes / 4)
    has_ended = began.poll() is not None
    began.send_signal(signal.SIGKILL)
    began.wait()
    steps = sorted(path.parent.name for path in (run / "checkpoints").glob("step-*/state.json"))
    behind = "nothing: it had ended" if has_ended or not steps else steps[-1]
    again = [*command, "--out", str(run), "--resume", "--quiet"]
    subprocess.run(again, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return [
        *head("device | killed behind | steps in all | tokens a second | held-out loss | accuracy"),
        f"| {summary['device']} | {behind} | {summary['steps']:,} "
        f"| {summary['tokens_per_second']:,.0f} | {summary['validation_loss']:.3f} "
        f"| {summary['validation_accuracy']:.1%} |",
    ]


STAGES: dict[str, Callable[[Bench], list[str]]] = {
    "check": check, "profile": profile, "bench": bench_peers, "train": train_killed,
}  # fmt: skip
