"""Filling and embedding 1,000 texts of mixed length: ours against transformers' pipelines, on the same folder.

    python benchmarks/inference.py TEXT MODEL... [--rounds 5] [--table PAGE]

Systems alternate in one process. A round runs each system once, and the table shows medians over rounds. Texts are
paragraphs (lines) of TEXT that fit the model, in a fixed random order.

    fill         a mask in each text, five candidates: `Model.fill(texts)` against the pipeline `fill-mask`
    embed        the mean of each text's tokens: `Model.embed(texts)` against the pipeline `feature-extraction`, which
                 returns each token's state, and against the method of sentence-transformers (`AutoModel` in sorted
                 batches, padding masked out of the mean)

The others get the texts sorted by length, and the best of several batch sizes. The pipeline `feature-extraction` does
not mark padding, so its means are taken over each text's own tokens, outside of the measured time.

`difference` is the largest difference of a probability (fill) or of an embedding's number between ours and the others
in the same precision; for fill also the share of texts with the same likeliest token. In bf16 both are rounded.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tables import head, parser_of, write_table

import unmask
from unmask.data.reading import BadInput, read_lines
from unmask.data.sources import find_sources

BATCH_SIZES = (8, 32, 128)
TEXTS = 1000
GOAL = 2.0


class Case(NamedTuple):
    """Our call; the others' calls, which take a batch size; and functions that make their results comparable."""

    ours: Callable[[], np.ndarray]
    others: dict[str, Callable[[int], Any]]
    settled: dict[str, Callable[[Any], np.ndarray]]


def read_texts(file: str, tokenizer: Any, longest: int, mask: str) -> tuple[list[str], list[str]]:
    """Texts that fit the model: unchanged, and with a word of each masked."""
    (source,) = find_sources([file])
    lines = [line.text for line in read_lines(source.path, BadInput(skip=False)) if line.text.strip()]
    rng = random.Random(0)
    rng.shuffle(lines)
    plain, masked = [], []
    for line in lines:
        words = line.split(" ")
        words[rng.randrange(len(words))] = mask
        hidden = " ".join(words)
        if max(len(ids) for ids in tokenizer([line, hidden])["input_ids"]) <= longest:
            plain.append(line)
            masked.append(hidden)
        if len(plain) == TEXTS:
            break
    return plain, masked


def by_length(texts: Sequence[str], call: Callable[[list[str]], list[Any]]) -> list[Any]:
    """Calls with the texts sorted by length, and returns the results in the original order."""
    order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
    results: list[Any] = [None] * len(texts)
    for n, result in zip(order, call([texts[n] for n in order]), strict=True):
        results[n] = result
    return results


def filling(model: unmask.Model, folder: Path, texts: list[str], dtype: torch.dtype) -> Case:
    from transformers import pipeline

    theirs = pipeline("fill-mask", str(folder), dtype=dtype)

    def ours() -> np.ndarray:
        filled = model.fill(texts)
        return np.array([[(c.probability, c.token_id) for c in each.masks[0]] for each in filled])

    def other(batch_size: int) -> np.ndarray:
        filled = by_length(texts, lambda some: theirs(some, batch_size=batch_size))
        return np.array([[(c["score"], c["token"]) for c in each] for each in filled])

    return Case(ours, {"pipeline": other}, {"pipeline": np.asarray})


def embedding(model: unmask.Model, folder: Path, texts: list[str], dtype: torch.dtype) -> Case:
    from transformers import AutoModel, AutoTokenizer, pipeline

    theirs = pipeline("feature-extraction", str(folder), dtype=dtype)
    encoder, tokenizer = AutoModel.from_pretrained(folder, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder)
    lengths = {text: len(ids) for text, ids in zip(texts, tokenizer(texts)["input_ids"], strict=True)}

    def states(batch_size: int) -> list[torch.Tensor]:
        return by_length(texts, lambda some: theirs(some, batch_size=batch_size, return_tensors=True))

    def sentences(batch_size: int) -> np.ndarray:
        def call(some: list[str]) -> list[np.ndarray]:
            means: list[np.ndarray] = []
            for begin in range(0, len(some), batch_size):
                inputs = tokenizer(some[begin : begin + batch_size], padding=True, return_tensors="pt")
                inputs.pop("token_type_ids", None)
                with torch.inference_mode():
                    hidden = encoder(**inputs).last_hidden_state.float()
                    weights = inputs["attention_mask"][..., None].float()
                    means += list(((hidden * weights).sum(1) / weights.sum(1)).numpy())
            return means

        return np.array(by_length(texts, call))

    def means(states: list[torch.Tensor]) -> np.ndarray:
        of_texts = (hidden.flatten(0, -2)[: lengths[text]] for text, hidden in zip(texts, states, strict=True))
        return np.array([hidden.float().mean(0).numpy() for hidden in of_texts])

    others: dict[str, Callable[[int], Any]] = {"pipeline": states, "sorted means": sentences}
    return Case(lambda: model.embed(texts), others, {"pipeline": means, "sorted means": np.asarray})


def measure(options: argparse.Namespace, folder: Path, precision: str) -> list[str]:
    """The table rows of a model. Systems alternate; each ratio to ours is the median over rounds."""
    from transformers import AutoTokenizer

    model = unmask.load(folder, precision=precision)  # type: ignore[arg-type]
    config = model.network.config
    mask = model.tokenizer.token(model.tokenizer.special.mask)
    longest = min(config.max_position_embeddings, 512)
    plain, masked = read_texts(options.text, AutoTokenizer.from_pretrained(folder), longest, mask)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def seconds(call: Callable[..., Any], *arguments: Any) -> float:
        begin = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - begin

    lines = []
    for what, make, texts in (("fill", filling, masked), ("embed", embedding, plain)):
        case = make(model, folder, texts, dtype)
        case.ours()
        sizes = {}
        for name, other in case.others.items():
            other(BATCH_SIZES[1])
            sizes[name] = min(BATCH_SIZES, key=lambda size: seconds(other, size))
        times: dict[str, list[float]] = {name: [] for name in ("ours", *case.others)}
        for _ in range(options.rounds):
            times["ours"].append(seconds(case.ours))
            for name, other in case.others.items():
                times[name].append(seconds(other, sizes[name]))
        mine = statistics.median(times["ours"])
        for name, size in sizes.items():
            ratio = statistics.median(time / own for time, own in zip(times[name], times["ours"], strict=True))
            goal = "" if name != "pipeline" else f"{GOAL:g}, {'met' if ratio >= GOAL else 'missed'}"
            ours, theirs = case.ours(), case.settled[name](case.others[name](BATCH_SIZES[0]))
            if what == "embed":
                difference = f"{np.abs(ours - theirs).max():.1e} of {np.abs(theirs).max():.1f}"
            else:
                same = (ours[:, 0, 1] == theirs[:, 0, 1]).mean()
                difference = f"{np.abs(ours[..., 0] - theirs[..., 0]).max():.1e}; {same:.1%}"
            called = f"{config.layout} {config.num_layers}x{config.hidden_size}"
            theirs_a_second = len(texts) / statistics.median(times[name])
            lines.append(
                f"| {called} | {precision} | {what} | {name} ({size}) | {len(texts) / mine:,.0f} | "
                f"{theirs_a_second:,.0f} | {ratio:.2f} | {goal} | {difference} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = parser_of(__doc__, table="inference")
    parser.add_argument("text")
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    lines = head(
        "model | precision | what | against (batch) | ours, texts/s | this, texts/s | ratio | goal | difference"
    )
    print(*lines, sep="\n", flush=True)
    for folder in options.models:
        for precision in ("float32", "bf16"):
            lines += measure(options, folder, precision)
    if options.table:
        write_table(options.table, "inference", lines)


if __name__ == "__main__":
    main()
