"""The annotated experiment by character: how long each system takes to guess hidden characters equally well.

    python benchmarks/characters.py [--reference-minutes 20] [--minutes 3] [--table PAGE] [--picture FILE]

    annotated  the experiment in plain PyTorch, as described below
    ours       the packaged recipe `shakespeare-chars`, on the same characters, with this budget

Both train on the first 90 % of Tiny Shakespeare, and are measured on the same hidden characters: 15 % of the last 10 %,
in rows of 32, chosen once by a fixed seed. They are hidden in two ways: `80/10/10` is the experiment's own (81 % masks,
10 % random ids, 9 % unchanged), `masks` shows [MASK] at all of them. Each system is a separate process. They train in
turns of a few seconds (turns.py). The time of evaluations does not count, nor does that of compiling loops (a few steps
are made and discarded before).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from ours import assemble
from tables import head, parser_of, shown, write_table
from torch import Tensor, nn
from torch.nn import functional
from turns import Ended, System, Turn, alternate, own_output

from unmask.commands.recipe import load_recipe
from unmask.commands.run_data import open_prepared, packaged_corpus
from unmask.data.prepare import prepare

# ----------------------------------------
# The annotated experiment in plain PyTorch.
#
# Tiny Shakespeare by character: 65 characters, with [PAD] and [MASK]. The first 90 % of the text is trained on, the
# last 10 % is held out. A step has 64 rows of 32 characters, in float32. The model has six layers of 128 with 8 heads
# and an inner width of 256. Adam follows Noam's schedule with factor 1 and 2,000 steps of warm-up; the gradient is
# clipped at 1. 15 % of the characters are predicted; of these 10 % become random ids and 10 % stay, drawn
# independently.
#
# These are the experiment's stated settings. The others are the defaults of its transformer and tools: norms before
# attention and MLP and one after the last layer, ReLU, dropout of 0.1 (also on attention weights and within the MLP),
# fixed sines and cosines as positions, embeddings times sqrt(128), an untied output layer, PyTorch's initial weights
# (equal in all layers, which are copies of the first), Adam's betas of 0.9 and 0.999 with an epsilon of 1e-8, rows
# shuffled in each epoch and shifted by up to 31 characters, and random ids among all 67. A row gets a new mask each
# time.
#
# The only difference: [PAD] and [MASK] are the first two ids instead of the last two, so that both systems read the
# same ids. Attention is written out, since PyTorch's own layer is a tenth slower on a CPU.

PAD, MASK, NUM_IDS = 0, 1, 67
LENGTH, ROWS = 32, 64
LAYERS, HIDDEN, HEADS, INNER, DROPOUT = 6, 128, 8, 256, 0.1
FACTOR, WARMUP = 1.0, 2000
RATE, RANDOM, SAME = 0.15, 0.1, 0.1
CLIP = 1.0


def read_ids(text: str) -> tuple[Tensor, Tensor]:
    """Ids of the first 90 % of the characters, and of the last 10 %; ids follow code points, from 2 on."""
    number = {letter: 2 + place for place, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[letter] for letter in text])
    cut = int(len(ids) * 0.9)
    return ids[:cut], ids[cut:]


def hide(
    ids: Tensor, generator: torch.Generator, *, rate: float = RATE, random: float = RANDOM, same: float = SAME
) -> tuple[Tensor, Tensor]:
    """The model's input, and the places that it must predict.

    "Random" and "same" are drawn independently, and a place drawn for both becomes random. So of the chosen places
    81 % are masked, 10 % random and 9 % the same.
    """

    def draw(share: float) -> Tensor:
        return torch.rand(ids.shape, generator=generator) < share

    chosen = draw(rate)
    is_random, is_same = chosen & draw(random), chosen & draw(same)
    others = torch.randint(0, NUM_IDS, ids.shape, generator=generator)
    seen = torch.where(chosen & ~is_same, torch.full_like(ids, MASK), ids)
    return torch.where(is_random, others, seen), chosen


def learning_rate(step: int) -> float:
    """The learning rate of a step, counted from 1. Source: Vaswani et al. 2017, section 5.3."""
    return FACTOR * HIDDEN**-0.5 * min(step**-0.5, step * WARMUP**-1.5)


def positions(length: int) -> Tensor:
    """[length, HIDDEN]: sine and cosine in turn. Source: Vaswani et al. 2017, section 3.5."""
    place = torch.arange(length)[:, None]
    angle = place * torch.exp(torch.arange(0, HIDDEN, 2) * (-math.log(10_000.0) / HIDDEN))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part(x).unflatten(-1, (HEADS, -1)) for part in (self.query, self.key, self.value))
        scores = torch.einsum("bihk,bjhk->bhij", query, key) * query.shape[-1] ** -0.5
        mixed = torch.einsum("bhij,bjhk->bihk", self.dropout(scores.softmax(-1)), value)
        return self.out(mixed.flatten(-2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(HIDDEN), Attention(), nn.Dropout(DROPOUT))
        into, out = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        inner = [into, nn.ReLU(), nn.Dropout(DROPOUT), out]
        self.mlp = nn.Sequential(nn.LayerNorm(HIDDEN), *inner, nn.Dropout(DROPOUT))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_IDS, HIDDEN)
        first = Layer()
        self.layers = nn.Sequential(*(copy.deepcopy(first) for _ in range(LAYERS)), nn.LayerNorm(HIDDEN))
        self.output = nn.Linear(HIDDEN, NUM_IDS)
        self.register_buffer("positions", positions(LENGTH))

    def forward(self, ids: Tensor) -> Tensor:
        """[rows, places] to logits [rows, places, NUM_IDS]."""
        x = self.embedding(ids) * math.sqrt(HIDDEN) + self.positions[: ids.shape[1]]
        return self.output(self.layers(x))


class Annotated:
    """The experiment's training; `step` makes a step and returns the number of its characters."""

    def __init__(self, train: Tensor, seed: int) -> None:
        torch.manual_seed(seed)
        self.train = train
        self.generator = torch.Generator().manual_seed(seed)
        self.model = Transformer()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0)
        self.num_steps = 0
        self.batches = self._batches()

    def step(self) -> int:
        rows = next(self.batches)
        seen, chosen = hide(rows, self.generator)
        self.model.train()
        labels = rows.masked_fill(~chosen, PAD)
        loss = functional.cross_entropy(self.model(seen).flatten(0, 1), labels.flatten(), ignore_index=PAD)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.num_steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.num_steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return rows.numel()

    @torch.no_grad()
    def predict(self, seen: Tensor, chosen: Tensor) -> Tensor:
        """Logits [places to predict, NUM_IDS]."""
        self.model.eval()
        return self.model(seen)[chosen]

    def _batches(self) -> Iterator[Tensor]:
        num_rows = (len(self.train) - 1) // LENGTH
        last = len(self.train) - LENGTH
        while True:
            order = torch.randperm(num_rows, generator=self.generator)
            for numbers in order.split(ROWS):
                shift = torch.randint(0, LENGTH, numbers.shape, generator=self.generator)
                begins = (numbers * LENGTH + shift).clamp(max=last)
                yield self.train[begins[:, None] + torch.arange(LENGTH)]


# ----------------------------------------
# The comparison

RECIPE = "shakespeare-chars"
COLOURS = {"ours": "#c2410c", "annotated": "#1d2733"}
SEED = 20181011  # of the hidden characters
LOOKS = 20  # evaluations of each system
EVALUATED_ROWS = 256  # rows evaluated at once
STANDARD_ERROR = 0.0033  # of an accuracy of 0.24, over the 16,700 hidden characters of the held-out text
WARM_STEPS = 3
TURN = 5.0  # seconds

Predict = Callable[[Tensor, Tensor], Tensor]  # rows as shown, chosen places -> logits at these places
Curves = Mapping[str, Sequence[Sequence[float]]]  # (seconds, characters, loss, accuracy; masks: loss, accuracy)


class Work(NamedTuple):
    """The job of a system's process."""

    system: str
    minutes: float
    data: str
    overrides: Sequence[str] = ()
    rows: int | None = None  # held-out rows to evaluate; None: all


class Hidden(NamedTuple):
    """Rows of text, the rows as shown to the model, and the places to guess."""

    ids: Tensor
    seen: Tensor
    chosen: Tensor


def hidden_rows(held_out: Tensor) -> tuple[Hidden, Hidden]:
    """The held-out text in rows, with characters hidden as 80/10/10 and as masks; the same in every process."""
    rows = held_out[: len(held_out) // LENGTH * LENGTH].view(-1, LENGTH)
    seen, chosen = hide(rows, torch.Generator().manual_seed(SEED))
    return Hidden(rows, seen, chosen), Hidden(rows, rows.masked_fill(chosen, MASK), chosen)


def measure(predict: Predict, hidden: Hidden) -> tuple[float, float]:
    loss, right = 0.0, 0
    for ids, seen, chosen in zip(*(part.split(EVALUATED_ROWS) for part in hidden), strict=True):
        logits, targets = predict(seen, chosen), ids[chosen]
        loss += functional.cross_entropy(logits, targets, reduction="sum").item()
        right += int((logits.argmax(-1) == targets).sum())
    count = int(hidden.chosen.sum())
    return loss / count, right / count


def serve(work: Work) -> None:
    out = own_output()
    train, held_out = read_ids(packaged_corpus().read_text(encoding="utf-8"))
    ways = hidden_rows(held_out[: None if work.rows is None else work.rows * LENGTH])
    limit = work.minutes * 60.0
    marks = [limit * (number / LOOKS) ** 2 for number in range(1, LOOKS)]  # closer together at the beginning
    predict: Predict

    def evaluate() -> list[float]:
        return [turn.tokens, *(figure for way in ways for figure in measure(predict, way))]

    turn = Turn(out, evaluate, marks)
    with suppress(Ended):
        if work.system == "annotated":
            warm = Annotated(train, seed=0)
            for _ in range(WARM_STEPS):
                warm.step()
            learner = Annotated(train, seed=0)
            predict = learner.predict
            turn.begin()
            while turn.now() < limit:
                turn.step(learner.step())
        else:
            recipe = load_recipe(RECIPE, options={"training.minutes": work.minutes}, overrides=tuple(work.overrides))
            data, cpu = open_prepared(Path(work.data)), torch.device("cpu")
            steps = assemble(recipe, data, cpu).reports()
            for _ in range(WARM_STEPS):
                next(steps, None)  # compiling loops may use up a short budget
            training = assemble(recipe, data, cpu)
            model = training.state.model

            @torch.no_grad()
            def predict(seen: Tensor, chosen: Tensor) -> Tensor:
                model.eval()
                logits = model(seen, positions_N=chosen.flatten().nonzero().squeeze(1)).float()
                model.train()
                return logits

            turn.begin()
            for report in training.reports(turn.now):
                turn.step(report.tokens)
        turn.end()


def table(curves: Curves) -> list[str]:
    """Four evaluations of each system, and how long ours took to reach the experiment's result."""
    lines = head("system | training | characters a second | loss, 80/10/10 | accuracy | loss, masks | accuracy")
    for name, points in curves.items():
        for place in sorted({len(points) * part // 4 - 1 for part in range(1, 5)} - {-1}):
            seconds, characters, loss, accuracy, masks_loss, masks_accuracy = points[place]
            lines.append(
                f"| {name} | {seconds:,.0f} s | {characters / seconds:,.0f} | {loss:.3f} | {accuracy:.3f} "
                f"| {masks_loss:.3f} | {masks_accuracy:.3f} |"
            )
    return [*lines, "", verdict(curves)]


def verdict(curves: Curves) -> str:
    """How long ours took to reach the experiment's last accuracy. The experiment's own time is that until it was within
    a standard error of it."""

    def seconds_to(points: Sequence[Sequence[float]], accuracy: float) -> float | None:
        return next((point[0] for point in points if point[3] >= accuracy), None)

    last = curves["annotated"][-1][3]
    near = seconds_to(curves["annotated"], last - STANDARD_ERROR)
    taken = seconds_to(curves["ours"], last)
    assert near is not None, "the last look shows it"
    reached = f"The annotated experiment ends at {last:.3f}, within a standard error of it after {near:,.0f} s; ours "
    if taken is None:
        return f"{reached}does not get there within {curves['ours'][-1][0]:,.0f} s."
    return f"{reached}is beyond at its look after {taken:,.0f} s: at least {near / taken:.0f} times as fast."


def draw(curves: Curves, path: Path) -> None:
    from pictures import new_figure, to_svg

    figure, axes = new_figure()
    for name, points in curves.items():
        times = [point[0] / 60.0 for point in points]
        axes.plot(times, [point[3] for point in points], color=COLOURS[name], marker="o", ms=3, label=name)
        axes.plot(times, [point[5] for point in points], color=COLOURS[name], lw=1, ls=":")
    axes.set_xscale("log")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("hidden characters guessed (dotted: all shown as [MASK])")
    axes.legend(frameon=False, fontsize=9)
    path.write_text(to_svg(figure), encoding="utf-8")


def main() -> None:
    parser = parser_of(__doc__, table="characters")
    parser.add_argument("--minutes", type=float, default=3.0, help="our budget")
    parser.add_argument("--reference-minutes", type=float, default=20.0)
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe, as for unmask pretrain")
    parser.add_argument("--rows", type=int, help="held-out rows to evaluate; by default all")
    parser.add_argument("--picture", type=Path, help="SVG to draw")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Work(**json.loads(options.serve)))
        return
    minutes = {"ours": options.minutes, "annotated": options.reference_minutes}
    recipe = load_recipe(RECIPE, overrides=tuple(options.set))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare([str(packaged_corpus())], data, corpus=recipe.corpus, tokenizer=recipe.tokenizer, workers=1)
        systems = {}
        for name in COLOURS:
            work = Work(name, minutes[name], str(data), options.set, options.rows)
            systems[name] = System([sys.executable, __file__, "--serve", json.dumps(work._asdict())])
        for name in alternate(systems, TURN):
            systems[name].close()
    curves = {name: system.points for name, system in systems.items()}
    lines = table(curves)
    print(*lines, sep="\n")
    if options.picture:
        draw(curves, options.picture)
    if options.table:
        says = "Hidden characters guessed over minutes of training, ours and the annotated experiment"
        write_table(options.table, "characters", lines + shown(options.picture, options.table, says))


if __name__ == "__main__":
    main()
