"""Training throughput: our step against transformers' Trainer on the same rows, in alternation.

    python benchmarks/train.py TEXT... [--sizes 4x256,6x384,12x768] [--lengths 128,512,1024] [--rounds 2] [--table PAGE]
    python benchmarks/train.py TEXT... --device cuda --compiled yes --vocab-size 32000 --sizes 12x768 --lengths 512

Every system is a process of its own, so that memory is its own as well, and computes only when it is its turn: a round
is some seconds of each. The steps of the first two seconds, at least one, do not count (while the others computed, the
system may have taken away what memory lay idle). What counts is the time from one step's end to the next one's,
loading and masking included; the table shows medians of all steps. All train on the same rows of the same prepared
text, full of tokens, with as many of them a step.

    ours      this project: its best layout for the machine that transformers loads (`--layout`), its own optimizer
              (`--optimizer`), masking, isolated documents
    bert      transformers' BertForMaskedLM in a Trainer as run_mlm sets it: float32, AdamW, dropout of 0.1, and
              DataCollatorForLanguageModeling; documents see each other
    bert-bf16 the same with bf16, fused AdamW, and the faster of transformers' ways to compute attention
    bert-best the same without dropout
    modernbert-bf16  ModernBertForMaskedLM of the same size in a Trainer with bf16

The share of the peak counts 6 FLOP for each multiplied parameter and token (the head at predicted positions only) and
12 x length x hidden size for attention in each layer (in local ones with the window in place of the length), over what
matrix products in bf16 reach on this machine, measured in the same run; on a GPU over 790 TFLOP/s, what an H200 does in
dense bf16, unless `--peak-tflops` says another number.

On a GPU a step is told to the device and computed later. So the time of a turn runs from a device that has nothing to
do to one that has nothing to do, and is shared out over its steps; what is compiled is compiled before.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tables import write_table
from turns import Child, own_output

SYSTEMS = ("ours", "bert", "bert-bf16", "bert-best", "modernbert-bf16")
BATCH_TOKENS = {"4x256": 8192, "6x384": 8192, "12x768": 4096}  # a step; by size
WARM_SECONDS, SECONDS = 2.0, 4.0  # of a turn: what does not count, and what does
GPU_BATCH_TOKENS = 131_072
WARM_STEPS = {"cpu": 1, "cuda": 5}  # at least; on a GPU a new Trainer compiles, and fills its caches
H200_TFLOPS = 790.0  # dense, bf16


class Work(NamedTuple):
    """What every system is told."""

    data: str
    size: str
    length: int
    batch_tokens: int
    layout: str
    optimizer: str
    compiled: str
    device: str

    @property
    def layers(self) -> int:
        return int(self.size.split("x")[0])

    @property
    def hidden(self) -> int:
        return int(self.size.split("x")[1])

    @property
    def rows(self) -> int:
        return max(1, self.batch_tokens // self.length)


class Stopwatch:
    """The steps of one turn.

    Args:
        device: Where the work is done: times on a GPU run from a device that has nothing to do to one that has nothing
            to do, shared out over the steps, since single ones only say when the host was done with them.
        seconds: How long steps count; at least one does.
    """

    def __init__(self, device: str, seconds: float) -> None:
        self._on_gpu = device == "cuda"
        self._warm_steps, self._seconds = WARM_STEPS[device], seconds
        self._ends: list[float] = []  # of steps, from the last that does not count
        self._steps, self._began = 0, time.perf_counter()

    def tick(self) -> bool:
        """A step has ended. Whether that is enough."""
        self._steps += 1
        if self._ends:
            self._ends.append(time.perf_counter())
        elif self._steps >= self._warm_steps and time.perf_counter() - self._began >= WARM_SECONDS:
            self._settle()
            self._ends.append(time.perf_counter())
        return len(self._ends) > 1 and self._ends[-1] - self._ends[0] >= self._seconds

    def taken(self) -> list[float]:
        """Seconds of the steps that count."""
        if not self._on_gpu:
            return [b - a for a, b in pairwise(self._ends)]
        self._settle()
        count = len(self._ends) - 1
        return [(time.perf_counter() - self._ends[0]) / count] * count

    def _settle(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


Turn = Callable[[float], list[float]]  # of so many seconds; gives what its steps took


def ours(work: Work) -> tuple[Turn, dict[str, Any]]:
    from unmask.masking.engine import Masker
    from unmask.model.compiling import compile_model
    from unmask.model.initialise import initialise
    from unmask.packing.stream import RowStream
    from unmask.pretraining.data import open_prepared
    from unmask.recipe.encoder import new_model
    from unmask.recipe.recipe import Recipe
    from unmask.training.hardware import choose_compiling, choose_dtype
    from unmask.training.loop import train
    from unmask.training.optimizer import Optimizer
    from unmask.training.state import TrainState

    data = open_prepared(Path(work.data))
    recipe = Recipe.model_validate(
        {
            "model": {
                "layout": work.layout,
                "num_layers": work.layers,
                "hidden_size": work.hidden,
                "num_heads": work.hidden // 64,
                "max_position_embeddings": max(work.length, 128),
            },
            "training": {
                "steps": 1_000_000,
                "sequence_length": work.length,
                "batch_tokens": work.rows * work.length,
                "optimizer": {"kind": work.optimizer},
                "learning_rate": 1e-3,
            },
            "masking": {"strategy": "random", "rate": 0.15},
        }
    )
    device = torch.device(work.device)
    dtype = choose_dtype("auto", device)
    model = new_model(recipe, data.tokenizer)
    initialise(model, seed=0, method=recipe.model.initialisation)
    model.to(device)
    model.encoder.compute_dtype = dtype
    state = TrainState(model, Optimizer(model, recipe.training, dtype=dtype))
    stream = RowStream(data.train, data.tokenizer, length=work.length, seed=0)
    if choose_compiling("auto", device):
        compile_model(model)
    loop = train(state, stream, Masker(recipe.masking, data.tokenizer), recipe.training)
    next(loop)

    def turn(seconds: float) -> list[float]:
        watch = Stopwatch(work.device, seconds)
        next(loop)
        while not watch.tick():
            next(loop)
        return watch.taken()

    multiplied = sum(p.numel() for name, p in model.encoder.blocks.named_parameters() if p.ndim == 2)
    head = model.head.dense.weight.numel() + model.encoder.tokens.numel()
    config = model.encoder.config
    window = config.rotary.local_window + 1 if config.rotary is not None else work.length
    reach = sum(work.length if config.is_global(i) else min(work.length, window) for i in range(work.layers))
    return turn, {"multiplied": multiplied, "head": head, "reach": reach}


def transformers_of(system: str, work: Work) -> tuple[Turn, dict[str, Any]]:
    candidates = ["eager", "sdpa"] if system != "bert" and work.device == "cpu" else ["sdpa"]
    made = [_trainer(system, work, attention) for attention in candidates]
    tried = [min(turn(0.0)) for turn in made]
    best = tried.index(min(tried))
    return made[best], {"attention": candidates[best]}


def _trainer(system: str, work: Work, attention: str) -> Turn:
    import transformers
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast, Trainer, TrainerCallback

    transformers.logging.set_verbosity_error()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(work.data) / "tokenizer" / "tokenizer.json"),
        **{f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")},
    )
    sizes = {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": work.layers,
        "hidden_size": work.hidden,
        "num_attention_heads": work.hidden // 64,
        "max_position_embeddings": max(work.length, 128),
        "pad_token_id": tokenizer.pad_token_id,
    }
    if system.startswith("modernbert"):
        from unmask.model.config import default_intermediate_size
        from unmask.model.layouts import PARTS

        width = default_intermediate_size(work.hidden, PARTS["modernbert"].intermediate_ratio)
        ids = {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
        # On GPUs the layers attend as far as ours do; on CPUs it is faster without the masks of local ones.
        every = 3 if work.device == "cuda" else 1
        config = transformers.ModernBertConfig(
            **sizes, **ids, intermediate_size=width, attn_implementation=attention, global_attn_every_n_layers=every
        )
        model: Any = transformers.ModernBertForMaskedLM(config)
    else:
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if system == "bert-best" else {}
        config = transformers.BertConfig(
            **sizes, **dropout, intermediate_size=4 * work.hidden, attn_implementation=attention
        )
        model = transformers.BertForMaskedLM(config)

    class Clock(TrainerCallback):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def on_train_begin(self, *given: Any, **named: Any) -> None:
            self.watch = Stopwatch(work.device, self.seconds)

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            control.should_training_stop = self.watch.tick()

    def turn(seconds: float) -> list[float]:
        clock = Clock(seconds)
        options = transformers.TrainingArguments(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=work.rows,
            max_steps=1_000_000,
            bf16=system != "bert",
            optim="adamw_torch" if system == "bert" else "adamw_torch_fused",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=work.device == "cpu",
            dataloader_pin_memory=work.device == "cuda",
            torch_compile=work.compiled == "yes" and system != "bert",
        )
        trainer = Trainer(
            model,
            options,
            train_dataset=_rows(work),
            data_collator=DataCollatorForLanguageModeling(tokenizer),
            callbacks=[clock],
        )
        trainer.train()
        return clock.watch.taken()

    return turn


def _rows(work: Work) -> list[dict[str, list[int]]]:
    """The rows that ours trains on, as lists of ids."""
    from unmask.packing.stream import Cursor, RowStream
    from unmask.pretraining.data import open_prepared

    data = open_prepared(Path(work.data))
    stream = RowStream(data.train, data.tokenizer, length=work.length, seed=0)
    rows = stream.batch(Cursor(), work.rows * 8, work.length).rows
    return [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in rows.input_ids.tolist()]


def serve(system: str, work: Work) -> None:
    """A system's process: a line on standard input is a turn of so many seconds; prints what its steps took."""
    out = own_output()
    turn, facts = ours(work) if system == "ours" else transformers_of(system, work)
    print(json.dumps(facts), file=out, flush=True)
    for line in sys.stdin:
        seconds = turn(float(line))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if work.device == "cuda":
            memory = torch.cuda.max_memory_allocated()
        print(json.dumps({"seconds": seconds, "memory": memory}), file=out, flush=True)


class System(Child):
    """A process that trains when it is its turn."""

    def __init__(self, system: str, work: Work) -> None:
        super().__init__([sys.executable, __file__, "--serve", system, "--work", json.dumps(work._asdict())])
        self.seconds: list[float] = []
        self.memory = 0

    def go(self) -> None:
        """A turn."""
        answer = self.ask(SECONDS)
        self.seconds += answer["seconds"]
        self.memory = answer["memory"]


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
        for _ in range(6):
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(4):
                torch.nn.functional.linear(a, b)
            if device == "cuda":
                torch.cuda.synchronize()
            best = max(best, 4 * 2 * rows * inner * columns / (time.perf_counter() - begin))
    return best


def measure(work: Work, systems: list[str], rounds: int, peak: float | None) -> list[str]:
    """Rows of the table; the peak in FLOP a second, measured where None is given."""
    processes = {}
    for name in systems:  # one after another: each is warm before the next begins
        processes[name] = System(name, work)
    for _ in range(rounds):
        for process in processes.values():
            process.go()
    tokens = work.rows * work.length
    if work.device == "cuda":
        print(f"products alone: {peak_flops(work.hidden, tokens, 'cuda') / 1e12:.0f} TFLOP/s", file=sys.stderr)
    peak = peak or peak_flops(work.hidden, tokens, work.device)
    lines = []
    facts = processes[systems[0]].facts if systems[0] == "ours" else {}
    base = {name: tokens / statistics.median(process.seconds) for name, process in processes.items()}
    for name, process in processes.items():
        share = "-"
        if name == "ours":
            flops = 6 * (facts["multiplied"] + 0.15 * facts["head"])
            flops += 12 * facts["reach"] * work.hidden
            share = f"{flops * base[name] / peak:.0%} of {peak / 1e12:.2f} TFLOP/s"
        spread = [tokens / second for second in sorted(process.seconds)]
        lines.append(
            f"| {work.size} | {work.length:,} | {name}{_note(process.facts)} | {base[name]:,.0f} "
            f"({spread[-1]:,.0f} to {spread[0]:,.0f}) | {base.get('ours', 0.0) / base[name]:.2f} | {share} "
            f"| {process.memory / 2**20:,.0f} |"
        )
        process.close()
    return lines


def _note(facts: dict[str, Any]) -> str:
    return f" ({facts['attention']})" if "attention" in facts else ""


def prepare(texts: list[Path], out: Path, vocab_size: int) -> None:
    size = str(vocab_size)
    command = [sys.executable, "-m", "unmask", "prepare", *map(str, texts), "--out", str(out), "--vocab-size", size]
    subprocess.run([*command, "--tokenizer-kind", "wordpiece"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--sizes", default="4x256,6x384,12x768")
    parser.add_argument("--lengths", default="128,512,1024")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layout", default="modernbert")
    parser.add_argument("--optimizer", default="muon", choices=("muon", "adamw"))
    parser.add_argument("--compiled", default="no", choices=("no", "yes"), help="torch.compile for the peers in bf16")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--peak-tflops", type=float, help="of the GPU, dense bf16")
    parser.add_argument("--table", type=Path, help="page whose table `training` is rewritten")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, Work(**json.loads(asked.work)))
        return
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device here; leave --device cuda away")
    peak = (asked.peak_tflops or H200_TFLOPS) * 1e12 if asked.device == "cuda" else None
    lines = [
        "| size | length | system | tokens a second (slowest to fastest) | ours / this | share of peak | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    print(*lines, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        prepare(asked.texts, Path(folder) / "data", asked.vocab_size)
        for size in asked.sizes.split(","):
            for length in map(int, asked.lengths.split(",")):
                usual = GPU_BATCH_TOKENS if asked.device == "cuda" else BATCH_TOKENS.get(size, 4096)
                tokens = asked.batch_tokens or usual
                work = Work(
                    f"{folder}/data", size, length, tokens, asked.layout, asked.optimizer, asked.compiled, asked.device
                )
                found = measure(work, asked.systems.split(","), asked.rounds, peak)
                print(*found, sep="\n", flush=True)
                lines += found
    if asked.table:
        write_table(asked.table, "training", lines)


if __name__ == "__main__":
    main()
