"""Chooses the size of a model and of its batches for a budget in minutes, by this machine's speed and the text.

    a few timed steps  ->  seconds per step for each size and batch  ->  steps within the minutes
                       ->  expected final loss of each size          ->  the lowest one

A larger model learns more from each token, but sees fewer. The expected loss follows a scaling law, whose coefficients
`benchmarks/dial.py` fits to trainings with the recipe `tiny` at other sizes; docs/explanation/benchmarks.md shows its
error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.commands.recipe import SIZED, Recipe, new_model
from unmask.commands.run_data import PreparedData
from unmask.core.results import Progress, Reporter, duration
from unmask.data.lexicon import find
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.masking.settings import MaskingSettings, rate_at
from unmask.model.config import PARTS, default_intermediate_size
from unmask.model.encoder import initialise
from unmask.model.fused import NUM_FREQUENT, NUM_SAMPLED
from unmask.train.checkpoints import place_model
from unmask.train.hardware import (
    COMPILING,
    choose_device,
    must_compile,
    samples_softmax,
    why_not_compiled,
    works_on_its_own,
)
from unmask.train.settings import ObjectivesSettings
from unmask.train.trainer import Trainer, timed_steps

SIZES = ((2, 128), (3, 192), (4, 256), (6, 384), (8, 512), (12, 768))  # layers and width
HEAD_SIZE = 64
_TRAINED = 0.9  # share of the minutes; evaluations take the rest


class Choice(NamedTuple):
    num_layers: int
    hidden_size: int
    batch_tokens: int
    steps: int
    loss: float  # held out, nats per hidden token


def sizes(num_layers: int, hidden_size: int, batch_tokens: int) -> dict[str, Any]:
    """Values by the keys of `SIZED`. The learning rate is Muon's, for steps of 1,024 to 4,096 positions."""
    learning_rate = round(0.01 * (256 / hidden_size) ** 0.5, 4)
    values = num_layers, hidden_size, max(1, hidden_size // HEAD_SIZE), batch_tokens, learning_rate
    return dict(zip(SIZED, values, strict=True))


def fit_to_budget(
    recipe: Recipe, data: PreparedData, *, train_tokens: int | None = None, processes: int = 1
) -> tuple[dict[str, Any], list[str]]:
    """Chooses what a recipe with `sizing = "budget"` leaves open: values by the keys of `SIZED`, and lines on them.

    `data` is the text, or a sample of one with this many `train_tokens`. The processes train together, each as fast as
    this one.
    """
    minutes, tokens = recipe.training.minutes, train_tokens or data.manifest.train.tokens
    assert minutes is not None, "a recipe that is sized by its budget has minutes"
    speed, text = measure_speed(recipe, data), TextFigures.of(data, tokens)
    now, longer = (
        min(choices(recipe, data, speed, text, factor * minutes, processes), key=lambda choice: choice.loss)
        for factor in (1, 3)
    )
    times_seen = now.steps * now.batch_tokens / tokens
    lines = [
        f"chosen for {duration(60 * minutes)} on this machine: {now.num_layers} layers of width {now.hidden_size}, "
        f"about {now.steps:,} steps of {now.batch_tokens:,} positions, {times_seen:.1f} times the text; expected: "
        f"{text.bits(now.loss)} bits per byte of hidden tokens",
        f"with {duration(180 * minutes)} instead: {longer.num_layers} layers of width {longer.hidden_size}; expected: "
        f"{text.bits(longer.loss)} bits per byte",
    ]
    return sizes(now.num_layers, now.hidden_size, now.batch_tokens), lines


def sized_recipe(recipe: Recipe, data: PreparedData, reporter: Reporter, *, processes: int = 1) -> Recipe:
    """Fills in the size of a recipe with `sizing = "budget"` for this machine, and reports it."""
    device, settings = choose_device(), recipe.training
    if must_compile(device):
        reporter.note(COMPILING)
    elif why_not_compiled(settings.compile_blocks, device, minutes=settings.minutes) is None:
        reporter.note("timing steps of two sizes; compiling their blocks takes up to two minutes")
    reporter.notify(Progress("measuring the speed of this machine", facts="a few steps"))
    sizes, outlook = fit_to_budget(recipe, data, processes=processes)
    for line in outlook:
        reporter.note(line)
    return with_sizes(recipe, sizes)


def with_sizes(recipe: Recipe, sizes: Mapping[str, Any]) -> Recipe:
    """The recipe with these values of `SIZED`; its size is fixed."""
    values = recipe.model_dump() | {"sizing": None}
    for key, value in sizes.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    return Recipe.model_validate(values)


def sizes_of(recipe: Recipe) -> dict[str, Any]:
    values = recipe.model_dump()
    return {key: values[section][name] for key in SIZED for section, _, name in [key.partition(".")]}


def choices(
    recipe: Recipe, data: PreparedData, speed: Speed, text: TextFigures, minutes: float, processes: int = 1
) -> Iterator[Choice]:
    """All sizes, each with its batch, steps and expected loss within these minutes. Processes share the positions of a
    step, but each makes the whole update."""
    length, rate, seconds = recipe.training.sequence_length, mean_rate(recipe), _TRAINED * 60.0 * minutes
    for layers, width in SIZES:
        cost = cost_of(layers, width, entries=decoder_entries(recipe, data), length=length, rate=rate)
        batch_tokens = 4096
        for _ in range(3):  # larger batches see more tokens, and more tokens call for larger batches
            tokens = speed.steps_in(seconds, cost, batch_tokens / processes) * batch_tokens
            best = min(max(3000.0 * math.sqrt(tokens / 1.6e6), 1024.0), 2.0**18)
            batch_tokens = max(1 << round(math.log2(best)), 4 * length)  # a power of two, and four rows at least
        steps = speed.steps_in(seconds, cost, batch_tokens / processes)
        loss = text.loss(block_parameters(layers, width), steps * batch_tokens)
        yield Choice(layers, width, batch_tokens, steps, loss)


# ----------------------------------------
# The expected final loss.


class Law(NamedTuple):
    """The held-out loss as a share of the entropy of token frequencies: a term for the model's size, and one for the
    number of tokens.

    Source: Hoffmann et al. 2022 (Training compute-optimal large language models), equation 2; theirs is for causal
    models, in nats, and has a floor, which these runs are too short to show.
    """

    size: float  # the term for a million parameters in blocks
    size_power: float
    tokens: float  # the term for a million tokens
    tokens_power: float
    repeats: float  # repeats of a text are worth this many texts at most: Muennighoff et al. 2023, section 6

    def share(self, parameters: int, tokens: float) -> float:
        of_size = self.size * (parameters / 1e6) ** -self.size_power
        return of_size + self.tokens * (tokens / 1e6) ** -self.tokens_power


# Fitted by `benchmarks/dial.py` to runs of 0.6 to 25 million tokens and up to 7.5 million parameters in blocks, except
# for `size_power`, which is that of the source (section D.2).
LAW = Law(size=0.054067, size_power=0.34, tokens=0.59296, tokens_power=0.11962, repeats=2.4831)
NEIGHBOURS = 0.65  # share of the entropy of token frequencies that is left, in the text of those runs, given neighbours
SPREAD = (-0.15, 0.07)  # relative error of the law on texts that it was not fitted to


class TextFigures(NamedTuple):
    """The figures of a text that determine its expected loss."""

    entropy: float  # of its token frequencies, nats
    neighbours: float  # the share of it that is left, given a token's two neighbours
    token_bytes: float
    tokens: int

    @classmethod
    def of(cls, data: PreparedData, tokens: int) -> TextFigures:
        shares = data.frequencies / data.frequencies.sum()
        entropy = -float(np.sum(shares * np.log(shares, where=shares > 0.0, out=np.zeros_like(shares))))
        between = entropy_between(data.train, data.frequencies)
        neighbours = NEIGHBOURS if between is None else between / max(entropy, 1e-9)
        return cls(entropy, neighbours, float(data.tokenizer.token_bytes @ shares), tokens)

    def loss(self, parameters: int, tokens: float, law: Law = LAW) -> float:
        """Held-out nats per hidden token after training on this many tokens, repetitions included.

        The law is fitted to novels. Text whose neighbours predict more, such as logs, is learned faster: its loss
        reaches the share that they leave of the entropy when that of novels does, and goes on by the same power.
        """
        power = max(math.log(max(self.neighbours, 1e-9)) / math.log(NEIGHBOURS), 0.0)
        return self.entropy * law.share(parameters, self.worth(tokens, law)) ** power

    def worth(self, tokens: float, law: Law = LAW) -> float:
        """Tokens of a larger text, read once, that would teach as much as these."""
        repeats = max(tokens / self.tokens - 1.0, 0.0)
        return min(tokens, self.tokens) + self.tokens * law.repeats * (1.0 - math.exp(-repeats / law.repeats))

    def bits(self, loss: float) -> str:
        loss = min(loss, self.entropy)  # of very few tokens the law expects less than their frequencies teach
        low, high = ((1.0 + share) * loss / math.log(2.0) / self.token_bytes for share in SPREAD)
        return f"{low:.2f} to {high:.2f}"


_SAMPLED = 1 << 20  # tokens, in chunks spread over the text
_BLOCK = 1000  # tokens; with few pieces, every other block is predicted, not every other piece


def entropy_between(store: TokenStore, frequencies: NDArray[np.int64]) -> float | None:
    """Nats per token, given its two neighbours, by counts in other parts of the text; None if it is too short.

    Source: Witten and Bell 1991 (The zero-frequency problem), method C: backs off from both neighbours to each of them
    alone, and then to frequencies.
    """
    stride, size = max(1, store.num_tokens // _SAMPLED), len(frequencies)
    chunks = list(itertools.islice(store.chunks(1 << 16), 0, None, stride))
    ids = np.concatenate([chunk.input_ids for chunk in chunks]).astype(np.int64)
    lengths = np.concatenate([chunk.lengths for chunk in chunks])
    piece = np.repeat(np.arange(len(lengths)), lengths)
    whole = piece[2:] == piece[:-2]
    left, token, right = (ids[begin : len(ids) - 2 + begin][whole] for begin in range(3))
    part = piece[1:-1][whole] if len(lengths) >= 100 else np.arange(len(token)) // _BLOCK
    predicted = part % 2 == 1
    if not predicted.any():
        return None

    def beside(context: NDArray[np.int64], chance: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability of each predicted token in its context; `chance` is that without the context."""
        seen, counts = np.unique((context * size + token)[~predicted], return_counts=True)
        contexts, first = np.unique(seen // size, return_index=True)
        totals, kinds = np.add.reduceat(counts, first), np.diff(np.append(first, len(seen)))
        place, is_known = find(contexts, context[predicted])
        total, kind = np.where(is_known, totals[place], 0), np.where(is_known, kinds[place], 1)
        place, is_known = find(seen, (context * size + token)[predicted])
        return (np.where(is_known, counts[place], 0) + kind * chance) / (total + kind)

    chance = ((frequencies + 1) / (frequencies.sum() + size))[token[predicted]]
    chance = (beside(left, chance) + beside(right, chance)) / 2
    return -float(np.mean(np.log(beside(left * size + right, chance))))


# ----------------------------------------
# What a step costs.

_MORE_TARGETS = 256  # per step, about, that are not frequent tokens
_TIMED_SIZE, _TIMED_POSITIONS, _TIMED_STEPS = (4, 256), 1024, 3


class Cost(NamedTuple):
    """What a training step of a model costs."""

    operations: float  # per position, forward and backward
    parameters: int  # that the optimizer updates


class Speed(NamedTuple):
    """Seconds per operation, and per parameter in each step, whatever its positions."""

    of_operation: float
    of_parameter: float

    @classmethod
    def through(cls, cost: Cost, positions: Sequence[int], seconds: Sequence[float]) -> Speed:
        """The speed at which two steps of a model take these times; bounded, since noise could make it infinite."""
        if positions[0] == positions[1]:  # both are all of a short text
            return cls(seconds[1] / positions[1] / cost.operations, 0.0)
        each = max((seconds[1] - seconds[0]) / (positions[1] - positions[0]), 0.1 * seconds[1] / positions[1])
        return cls(each / cost.operations, max(seconds[1] - each * positions[1], 0.0) / cost.parameters)

    def step_seconds(self, cost: Cost, positions: float) -> float:
        return self.of_operation * cost.operations * positions + self.of_parameter * cost.parameters

    def steps_in(self, seconds: float, cost: Cost, positions: float) -> int:
        return max(1, int(seconds / self.step_seconds(cost, positions)))


def cost_of(num_layers: int, hidden_size: int, *, entries: tuple[int, int], length: int, rate: float) -> Cost:
    """The cost of rows of `length` positions, of which a share `rate` is predicted; `entries` are the vocabulary
    entries that a step predicts over, and all of them."""
    blocks, attention = block_parameters(num_layers, hidden_size), 12.0 * num_layers * hidden_size * length
    predicted, all_entries = (hidden_size * (number + hidden_size) for number in entries)
    return Cost(6.0 * (blocks + rate * predicted) + attention, blocks + all_entries)


def decoder_entries(recipe: Recipe, data: PreparedData) -> tuple[int, int]:
    vocab_size = data.manifest.vocab_size
    is_sampled = samples_softmax(recipe.training, recipe.masking, choose_device(), vocab_size)
    return min(vocab_size, NUM_FREQUENT + NUM_SAMPLED + _MORE_TARGETS) if is_sampled else vocab_size, vocab_size


def block_parameters(num_layers: int, hidden_size: int) -> int:
    inner = default_intermediate_size(hidden_size, PARTS["modernbert"].intermediate_ratio)
    return num_layers * hidden_size * (4 * hidden_size + 3 * inner)


def mean_rate(recipe: Recipe) -> float:
    return (rate_at(recipe.masking.rate, 0.0) + rate_at(recipe.masking.rate, 1.0)) / 2


def measure_speed(recipe: Recipe, data: PreparedData) -> Speed:
    """Times steps of few positions and of many: the part that they share is the cost of the parameters."""
    length, few, is_filled = recipe.training.sequence_length, _TIMED_POSITIONS, works_on_its_own(choose_device())
    few = max(1, few * (32 if is_filled else 1) // length) * length
    positions, seconds = list[int](), list[float]()
    for number in (few, 4 * few):
        trainer = trial(recipe, data, *_TIMED_SIZE, number)
        # A short text has fewer rows; only on a GPU, empty ones are added.
        rows = number // length if is_filled else trainer.stream.batch(Cursor(), number // length).rows.shape[0]
        times = timed_steps(trainer, _TIMED_STEPS + 1)
        positions.append(rows * length)
        seconds.append(median([each for each, _ in times][1:]))  # in the first step loops may be compiled
    cost = cost_of(*_TIMED_SIZE, entries=decoder_entries(recipe, data), length=length, rate=mean_rate(recipe))
    return Speed.through(cost, positions, seconds)


def trial(recipe: Recipe, data: PreparedData, num_layers: int, hidden_size: int, batch_tokens: int) -> Trainer:
    """A training for timing only. Tokens are masked at random: which ones does not change the time."""
    recipe = with_sizes(recipe, sizes(num_layers, hidden_size, batch_tokens))
    settings = recipe.training.model_copy(update={"minutes": None, "tokens": None, "steps": _TIMED_STEPS + 1})
    model = new_model(recipe.model_copy(update={"objectives": ObjectivesSettings()}), data.tokenizer)
    initialise(model, seed=0, method="depth_scaled")
    place_model(model, recipe.training)  # by the minutes of the run, its blocks are compiled if those of the run are
    if samples_softmax(settings, recipe.masking, model.encoder.device, data.tokenizer.vocab_size):
        model.head.sample_softmax(torch.from_numpy(data.frequencies))
    masker = Masker(MaskingSettings.model_validate({"rate": mean_rate(recipe)}), data.tokenizer, seed=0)
    stream = RowStream(data.train, data.tokenizer, length=settings.sequence_length, seed=0)
    return Trainer(model, stream, settings, masker=masker)
