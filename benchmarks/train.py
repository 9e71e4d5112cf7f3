"""Training throughput: our step against transformers' Trainer on the same rows, in alternation.

    python benchmarks/train.py TEXT... [--sizes 4x256,6x384,12x768] [--lengths 128,512,1024] [--rounds 2] [--table PAGE]
    python benchmarks/train.py TEXT... --device cuda --compiled yes --vocab-size 32000 --sizes 12x768 --lengths 512

Every system is a process of its own, so that memory is its own as well, and computes only when it is its turn: a round
is some steps of each, of which the first does not count. What counts is the time from one step's end to the next one's,
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

On a GPU a step is told to the device and computed later. So the time of a round runs from a device that has nothing to
do to one that has nothing to do, and is shared out over its steps, of which there are more; what is compiled is
compiled before.
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
STEPS = {"4x256": 2, "6x384": 1, "12x768": 1}  # a round
GPU_BATCH_TOKENS, GPU_STEPS, GPU_WARMUP = 131_072, 20, 5
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


Steps = Callable[[int], list[float]]


def ours(work: Work) -> tuple[Steps, dict[str, Any]]:
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
    for _ in range(GPU_WARMUP if work.device == "cuda" else 1):
        next(loop)

    def steps(count: int) -> list[float]:
        if work.device == "cuda":
            return _on_gpu(lambda: next(loop), count)
        times = []
        for _ in range(1 + count):  # the first one finds its memory as the others left it, and does not count
            next(loop)
            times.append(time.perf_counter())
        return [b - a for a, b in pairwise(times)]

    multiplied = sum(p.numel() for name, p in model.encoder.blocks.named_parameters() if p.ndim == 2)
    head = model.head.dense.weight.numel() + model.encoder.tokens.numel()
    config = model.encoder.config
    window = config.rotary.local_window + 1 if config.rotary is not None else work.length
    reach = sum(work.length if config.is_global(i) else min(work.length, window) for i in range(work.layers))
    return steps, {"multiplied": multiplied, "head": head, "reach": reach}


def _on_gpu(step: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each of some steps, as their mean: single ones say when the host was done with them."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return [(time.perf_counter() - begin) / count] * count


def transformers_of(system: str, work: Work) -> tuple[Steps, dict[str, Any]]:
    candidates = ["eager", "sdpa"] if system != "bert" and work.device == "cpu" else ["sdpa"]
    made = [_trainer(system, work, attention) for attention in candidates]
    tried = [min(steps(1)) for steps in made]
    best = tried.index(min(tried))
    return made[best], {"attention": candidates[best]}


def _trainer(system: str, work: Work, attention: str) -> Steps:
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
    times: list[float] = []

    on_gpu = work.device == "cuda"
    warmup = GPU_WARMUP if on_gpu else 1  # a Trainer of its own each time: it compiles, and fills its caches

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if not on_gpu or state.global_step in (warmup, state.max_steps):
                if on_gpu:
                    torch.cuda.synchronize()
                times.append(time.perf_counter())

    def steps(count: int) -> list[float]:
        times.clear()
        options = transformers.TrainingArguments(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=work.rows,
            max_steps=count + warmup,
            bf16=system != "bert",
            optim="adamw_torch" if system == "bert" else "adamw_torch_fused",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not on_gpu,
            dataloader_pin_memory=on_gpu,
            torch_compile=work.compiled == "yes" and system != "bert",
        )
        trainer = Trainer(
            model,
            options,
            train_dataset=_rows(work),
            data_collator=DataCollatorForLanguageModeling(tokenizer),
            callbacks=[Clock()],
        )
        trainer.train()
        if on_gpu:
            return [(times[-1] - times[0]) / count] * count
        return [b - a for a, b in pairwise(times)]

    return steps


def _rows(work: Work) -> list[dict[str, list[int]]]:
    """The rows that ours trains on, as lists of ids."""
    from unmask.packing.stream import Cursor, RowStream
    from unmask.pretraining.data import open_prepared

    data = open_prepared(Path(work.data))
    stream = RowStream(data.train, data.tokenizer, length=work.length, seed=0)
    rows = stream.batch(Cursor(), work.rows * 8, work.length).rows
    return [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in rows.input_ids.tolist()]


def serve(system: str, work: Work) -> None:
    """A system's process: does as many steps as a line on standard input says, and prints what they took."""
    out = own_output()
    steps, facts = ours(work) if system == "ours" else transformers_of(system, work)
    print(json.dumps(facts), file=out, flush=True)
    for line in sys.stdin:
        seconds = steps(int(line))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if work.device == "cuda":
            memory = torch.cuda.max_memory_allocated()
        print(json.dumps({"seconds": seconds, "memory": memory}), file=out, flush=True)


class System(Child):
    """A process that makes steps when it is asked to."""

    def __init__(self, system: str, work: Work) -> None:
        super().__init__([sys.executable, __file__, "--serve", system, "--work", json.dumps(work._asdict())])
        self.seconds: list[float] = []
        self.memory = 0

    def go(self, steps: int) -> None:
        answer = self.ask(steps)
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
            process.go(GPU_STEPS if work.device == "cuda" else STEPS.get(work.size, 1))
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
