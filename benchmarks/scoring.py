"""How fast sentences are scored, against one hidden token a pass in a loop.

    python benchmarks/scoring.py MODEL BLIMP [--sentences 300] [--rounds 3] [--table docs/benchmarks.md]

In alternation, on the same sentences of BLiMP and the same model, each after a warm-up, in float32:

    unmask         `Model.score`: copies of all sentences by length, logits at the hidden tokens only
    our loop       one hidden token a pass, by the same encoder
    transformers   one hidden token a pass, by `AutoModelForMaskedLM` on the same folder

Scores of all three are compared, so that nobody is fast by being wrong.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tables import write_table
from transformers import AutoModelForMaskedLM

import unmask
from unmask.measure.questions import read_pairs
from unmask.tasks.loaded_model import Model

Logits = Callable[[torch.Tensor, int], torch.Tensor]


def loop(model: Model, sentences: list[str], logits: Logits) -> NDArray[np.float64]:
    """What anybody would write."""
    special = model.tokenizer.special
    totals = []
    with torch.no_grad():
        for sentence in sentences:
            ids = torch.from_numpy(model.tokenizer.encode_corpus([sentence])[0].input_ids.astype(np.int64))
            whole = torch.cat([torch.tensor([special.cls]), ids, torch.tensor([special.sep])])
            total = 0.0
            for place in range(1, len(whole) - 1):
                hidden = whole.clone()
                hidden[place] = special.mask
                total += float(torch.log_softmax(logits(hidden[None], place), -1)[whole[place]])
            totals.append(total)
    return np.array(totals)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("blimp", type=Path)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    model = unmask.load(asked.model)
    theirs = AutoModelForMaskedLM.from_pretrained(model.folder).eval()
    pairs = read_pairs(asked.blimp)
    sentences = [pair.good for pair in pairs[:: max(1, len(pairs) // asked.sentences)]][: asked.sentences]
    tokens = sum(len(encoded.input_ids) for encoded in model.tokenizer.encode_corpus(sentences))

    def ours(ids: torch.Tensor, place: int) -> torch.Tensor:
        return model.network(ids, positions_N=torch.tensor([place]))[0]

    ways: dict[str, Callable[[list[str]], NDArray[np.float64]]] = {
        "unmask": model.score,
        "our loop": lambda texts: loop(model, texts, ours),
        "transformers": lambda texts: loop(model, texts, lambda ids, place: theirs(input_ids=ids).logits[0, place]),
    }
    expected = ways["unmask"](sentences)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(sentences[:10])
    for _ in range(asked.rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            found = way(sentences)
            seconds[name].append(time.perf_counter() - begin)
            assert np.abs(found - expected).max() < 1e-2, name
            print(f"{name:>14} {seconds[name][-1]:7.2f} s", flush=True)
    best = statistics.median(seconds["unmask"])
    config = model.network.config
    lines = [
        f"{len(sentences)} sentences of BLiMP, {tokens:,} tokens, each hidden once; {config.num_layers} layers of "
        f"{config.hidden_size}, {torch.get_num_threads()} threads, float32; medians of {asked.rounds}.",
        "",
        "| way | tokens a second | slowest and fastest | times as long |",
        "| --- | --- | --- | --- |",
    ]
    for name, found_seconds in seconds.items():
        low, high = tokens / max(found_seconds), tokens / min(found_seconds)
        middle = statistics.median(found_seconds)
        lines.append(f"| {name} | {tokens / middle:,.0f} | {low:,.0f} to {high:,.0f} | {middle / best:.1f} |")
    print("\n".join(lines))
    if asked.table is not None:
        write_table(asked.table, "scoring", lines)


if __name__ == "__main__":
    main()
