"""The annotated experiment in plain PyTorch, the reference of benchmarks/characters.py.

Tiny Shakespeare by character: 65 characters, with [PAD] and [MASK]. The first 90 % of the text is trained on, the last
10 % is held out. A step has 64 rows of 32 characters, in float32. The model has six layers of 128 with 8 heads and an
inner width of 256. Adam follows Noam's schedule with factor 1 and 2,000 steps of warm-up; the gradient is clipped at 1.
15 % of the characters are predicted; of these 10 % become random ids and 10 % stay, drawn independently.

These are the experiment's stated settings. The others are the defaults of its transformer and tools: norms before
attention and MLP and one after the last layer, ReLU, dropout of 0.1 (also on attention weights and within the MLP),
fixed sines and cosines as positions, embeddings times sqrt(128), an untied output layer, PyTorch's initial weights
(equal in all layers, which are copies of the first), Adam's betas of 0.9 and 0.999 with an epsilon of 1e-8, rows
shuffled in each epoch and shifted by up to 31 characters, and random ids among all 67. A row gets a new mask each time.

The only difference: [PAD] and [MASK] are the first two ids instead of the last two, so that both systems read the same
ids. Attention is written out, since PyTorch's own layer is a tenth slower on a CPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

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
