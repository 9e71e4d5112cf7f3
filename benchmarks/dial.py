r"""Which model size learns most in a given time: the law by which `unmask pretrain --minutes M` chooses, and its error.

    python benchmarks/dial.py measure DATA NAME --cells "2x128:400,1600 4x256:300@2048/0.007" [--jobs 2]
    python benchmarks/dial.py fit [--table docs/explanation/benchmarks.md]
    python benchmarks/dial.py check DATA NAME --minutes 1,3 [--table docs/explanation/benchmarks.md]

`measure` trains a model for each cell on the prepared folder DATA, with the recipe `tiny` apart from its size. A cell
is LAYERSxWIDTH:STEPS,... with an optional @POSITIONS a step and /RATE. Each model trains in a process with one thread.
Its held-out loss is appended to the results under the text's NAME; cells already in the results are skipped.

`fit` fits the law of `unmask.commands.sizing` to the runs on `novels` and `books`, prints its numbers, and compares it
with the runs that have the lowest loss for their text, size and number of tokens.

`check` trains, for each budget, the size that the law chooses on this machine and the sizes beside it, each with its
own batch and as long, and compares their losses: how much the choice costs.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from cells import run_cells
from ours import assemble
from scipy.optimize import least_squares
from tables import append_lines, circumstances, head, made, parser_of, read_lines, write_table

from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.run_data import open_prepared
from unmask.commands.sizing import LAW, Choice, Law, TextFigures, choices, measure_speed, sizes, with_sizes
from unmask.measure.held_out import HeldOutSet

HELD_OUT_TOKENS = 200_000
POSITIONS = 4096
FITTED = ("novels", "books")  # texts that the law is fitted to
FREE = ("size", "tokens", "tokens_power", "repeats")  # fitted parameters; `size_power` is that of the law's source
KEYS = ("text", "block_parameters", "tokens")

Entry = Mapping[str, Any]  # results of a run


class Cell(NamedTuple):
    """The settings of a training."""

    text: str
    layers: int
    width: int
    steps: int
    batch_tokens: int
    learning_rate: float
    seed: int = 0


def cells(text: str, written: str, seed: int) -> Iterator[Cell]:
    for word in written.split():
        match = re.fullmatch(r"(\d+)x(\d+):([\d,]+)(?:@(\d+))?(?:/([\d.]+))?", word)
        if match is None:
            sys.exit(f"{word}: expected LAYERSxWIDTH:STEPS,...[@POSITIONS][/RATE]")
        layers, width, steps, positions, rate = match.groups()
        batch = int(positions or POSITIONS)
        for each in steps.split(","):
            learning_rate = rate or sizes(int(layers), int(width), batch)["training.learning_rate"]
            yield Cell(text, int(layers), int(width), int(each), batch, float(learning_rate), seed)


def train(data_folder: str, cell: Cell) -> dict[str, Any]:
    torch.set_num_threads(1)
    options = sizes(cell.layers, cell.width, cell.batch_tokens)
    options |= {f"training.{name}": getattr(cell, name) for name in ("steps", "seed", "learning_rate")}
    recipe, data = load_recipe("tiny", options=options), open_prepared(Path(data_folder))
    training = assemble(recipe, data, torch.device("cpu"))
    model, tokens = training.state.model, 0
    began, seconds = time.process_time(), [0.0]
    for report in training.reports():
        tokens += report.tokens
        seconds.append(time.process_time() - began)
    held_out = HeldOutSet(
        data.validation, data.tokenizer, length=128, max_tokens=HELD_OUT_TOKENS, frequencies=data.frequencies
    )
    figures = held_out.evaluate(model)
    assert held_out.unigram_N is not None
    return {
        **cell._asdict(),
        "tokens": tokens,
        "train_tokens": data.manifest.train.tokens,
        "train_bytes": data.manifest.train.bytes,
        "vocab_size": model.config.vocab_size,
        "parameters": model.num_parameters,
        "block_parameters": sum(p.numel() for block in model.encoder.blocks for p in block.parameters()),
        "processor_seconds_a_step": median(after - before for before, after in pairwise(seconds)),
        "loss": figures.loss,
        "accuracy": figures.accuracy,
        "bits_per_token_byte": figures.bits_per_token_byte,
        "unigram_entropy": float(held_out.unigram_N.mean()),
        "neighbours": TextFigures.of(data, data.manifest.train.tokens).neighbours,
        **circumstances(),
    }


def measure(options: argparse.Namespace) -> None:
    keys = Cell._fields
    finished = {tuple(entry[key] for key in keys) for entry in read_lines(options.results)}
    works = {str(tuple(cell)): cell for cell in cells(options.name, options.cells, options.seed)}
    works = {name: cell for name, cell in works.items() if tuple(cell) not in finished}

    def figures_of(line: Entry) -> dict[str, float]:
        return {name: line[name] for name in ("loss", "processor_seconds_a_step")}

    run = partial(train, options.data)
    if failed := run_cells(run, works, options.results, jobs=options.jobs, figures_of=figures_of):
        sys.exit(f"{failed} cells failed. The same command tries them again")


def check(options: argparse.Namespace) -> list[str]:
    data, device = open_prepared(Path(options.data)), torch.device("cpu")
    held_out = HeldOutSet(data.validation, data.tokenizer, length=128, max_tokens=HELD_OUT_TOKENS)
    text = TextFigures.of(data, data.manifest.train.tokens)

    def loss_of(choice: Choice, recipe: Recipe) -> tuple[float, int]:
        recipe = with_sizes(recipe, sizes(choice.num_layers, choice.hidden_size, choice.batch_tokens))
        next(assemble(recipe, data, device).reports())  # compiles the loops, once on a machine
        training = assemble(recipe, data, device)
        steps = sum(1 for _ in training.reports())
        return held_out.evaluate(training.state.model).loss, steps

    for minutes in map(float, options.minutes.split(",")):
        recipe = load_recipe("auto", options={"training.minutes": minutes, "training.seed": options.seed})
        grid = list(choices(recipe, data, measure_speed(recipe, data), text, minutes))
        chosen = min(grid, key=lambda choice: choice.loss)
        begin = max(0, grid.index(chosen) - 1)
        for choice in grid[begin : begin + 3]:
            loss, steps = loss_of(choice, recipe)
            size = f"{choice.num_layers}x{choice.hidden_size}"
            facts = {"batch_tokens": choice.batch_tokens, "steps": steps, "loss": loss, "is_chosen": choice == chosen}
            entry = {"text": options.name, "minutes": minutes, "size": size, "seed": options.seed, **facts}
            append_lines(options.results, {**entry, **circumstances()})
            print(entry, flush=True)
    return choice_table(read_lines(options.results))


def choice_table(entries: Iterable[Entry]) -> list[str]:
    """For each text and budget the losses of all sizes, and how far that of the chosen one is above the lowest."""
    groups: dict[tuple[str, float], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry["text"], entry["minutes"]), []).append(entry)
    lines = head("text | minutes | chosen | held-out loss by size | above the lowest")
    for (text, minutes), each in groups.items():
        chosen = next(entry for entry in each if entry["is_chosen"])
        losses = ", ".join(f"{entry['size']} {entry['loss']:.3f}" for entry in each)
        above = chosen["loss"] / min(entry["loss"] for entry in each) - 1.0
        lines.append(f"| {text} | {minutes:g} | {chosen['size']} | {losses} | {above:.1%} |")
    return lines


def best_of(entries: Sequence[Entry]) -> list[Entry]:
    """The run with the lowest loss for each text, size and number of tokens (to a tenth), smaller ones first."""
    best: dict[tuple[str, int, int], Entry] = {}
    for entry in sorted(entries, key=lambda entry: -entry["loss"]):
        best[entry["text"], entry["width"], round(10 * math.log(entry["tokens"]))] = entry
    return sorted(best.values(), key=lambda entry: (entry["text"] not in FITTED, *(entry[key] for key in KEYS)))


def fit(entries: Sequence[Entry]) -> Law:
    """The law with the smallest squared error of log losses. The power of the size is fixed, since hardly any models of
    different sizes were trained on equally many tokens."""
    texts = [figures_of(entry) for entry in entries]

    def errors(logarithms: Any) -> Any:  # of the parameters, which are all positive
        law = law_of(logarithms)
        pairs = zip(texts, entries, strict=True)
        return [math.log(t.loss(e["block_parameters"], e["tokens"], law) / e["loss"]) for t, e in pairs]

    def law_of(logarithms: Any) -> Law:
        return LAW._replace(**dict(zip(FREE, map(float, np.exp(logarithms)), strict=True)))

    return law_of(least_squares(errors, np.log([getattr(LAW, name) for name in FREE])).x)


def figures_of(entry: Entry) -> TextFigures:
    return TextFigures(entry["unigram_entropy"], entry["neighbours"], 1.0, entry["train_tokens"])


def table(entries: Sequence[Entry]) -> list[str]:
    lines = head(
        "text | size | steps | positions a step | M tokens | held-out loss | bits per byte | expected loss | error"
    )
    for entry in entries:
        expected = figures_of(entry).loss(entry["block_parameters"], entry["tokens"])
        lines.append(
            f"| {entry['text']} | {entry['layers']}x{entry['width']} | {entry['steps']:,} | {entry['batch_tokens']:,} "
            f"| {entry['tokens'] / 1e6:.2f} | {entry['loss']:.3f} | {entry['bits_per_token_byte']:.3f} "
            f"| {expected:.3f} | {entry['loss'] / expected - 1.0:+.1%} |"
        )
    return lines


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    measuring, fitting, checking = (commands.add_parser(name) for name in ("measure", "fit", "check"))
    for command in (measuring, checking):
        command.add_argument("data")
        command.add_argument("name")
        command.add_argument("--seed", type=int, default=0)
    measuring.add_argument("--cells", required=True)
    measuring.add_argument("--jobs", type=int, default=2)
    checking.add_argument("--minutes", required=True)
    for command, name in ((measuring, "dial"), (fitting, "dial"), (checking, "choices")):
        command.add_argument("--results", type=Path, default=Path(f"docs/measured/{name}.jsonl"))
        if command is not measuring:
            command.add_argument("--table", type=Path, help=f"page whose table `{name}` is rewritten")
    options = parser.parse_args()
    if options.command == "measure":
        measure(options)
        return
    if options.command == "check":
        name, lines, entries = "choices", check(options), read_lines(options.results)
    else:
        entries = best_of(read_lines(options.results))
        print(fit([entry for entry in entries if entry["text"] in FITTED]), LAW, sep="\n")
        name, lines = "dial", table(entries)
    print(*lines, sep="\n")
    if options.table:
        write_table(options.table, name, lines, made=made(entries))


if __name__ == "__main__":
    main()
