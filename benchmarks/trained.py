"""The systems whose throughput is compared, each a process of its own: our step, and transformers' Trainer.

`train.py` starts them and says what they are; a system computes only when it is its turn.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import transformers_of
from timed import WARM_SHARE, Stopwatch, Turn, Work
from turns import own_output

from unmask.train.hardware import peak_memory

SYSTEMS = ("ours", "bert", "bert-bf16", "bert-best", "modernbert-bf16")


def ours(work: Work) -> tuple[Turn, dict[str, Any]]:
    from assembly import assemble

    from unmask.commands.recipe import Recipe
    from unmask.commands.run_data import open_prepared

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
    data = open_prepared(Path(work.data))
    training = assemble(recipe, data, torch.device(work.device))
    loop, model = training.reports(), training.state.model
    next(loop)

    def turn(watch: Stopwatch) -> None:
        watch.begin()
        while not watch.tick(next(loop).tokens):
            pass

    multiplied = sum(p.numel() for name, p in model.encoder.blocks.named_parameters() if p.ndim == 2)
    head = model.head.dense.weight.numel() + model.encoder.tokens.numel()
    config = model.encoder.config
    sizes = np.minimum(data.train.lengths + 2, work.length).astype(float)
    segment = float((sizes**2).sum() / sizes.sum())  # that a token stands in
    window = config.rotary.local_window + 1 if config.rotary is not None else work.length
    reach = sum(segment if config.is_global(i) else min(segment, window) for i in range(work.layers))
    return turn, {"multiplied": multiplied, "head": head, "reach": reach}


def ways(system: str, work: Work) -> tuple[str, ...]:
    """How a system may compute attention: of several ways the fastest is taken. Ours has one, run_mlm the default."""
    if system == "ours":
        return ("own",)
    return ("sdpa", "eager") if system != "bert" and work.device == "cpu" else ("sdpa",)


def serve(system: str, attention: str, work: Work) -> None:
    """A system's process: says that its libraries are loaded; then the first line on standard input has it built, and
    another one is a turn of so many seconds and at least so many steps, of which it says what they took and read."""
    out = own_output()
    importlib.import_module("assembly" if system == "ours" else "transformers.trainer")
    print("{}", file=out, flush=True)
    sys.stdin.readline()
    if system == "ours":
        turn, facts = ours(work)
    else:
        turn, facts = transformers_of(system, work, attention), {"attention": attention}
    let_go()
    print(json.dumps(facts), file=out, flush=True)
    for line in sys.stdin:
        seconds, least_steps = line.split()
        warm_seconds = WARM_SHARE * work.turn_seconds
        watch = Stopwatch(work.device, float(seconds), int(least_steps), warm_seconds=warm_seconds)
        turn(watch)
        let_go()
        memory = peak_memory(torch.device(work.device))
        answer = {"seconds": watch.taken(), "tokens": watch.tokens, "memory": memory}
        print(json.dumps(answer), file=out, flush=True)


def let_go() -> None:
    """Frees what a turn leaves: a Trainer that is done with holds gigabytes in cycles, and systems wait in memory."""
    gc.collect()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Work(**json.loads(sys.argv[3])))
