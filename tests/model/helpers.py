"""Logits of a model in unmask and in transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.conftest import rich_model
from unmask.data.rows import Rows
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.folder import save_model

MakeModel = Callable[..., MaskedLM]
LAYOUTS = ["modernbert", "bert", "roberta", "roberta-prelayernorm"]


def some_ids(rows: int = 3, length: int = 40, *, below: int = 190) -> torch.Tensor:
    return torch.randint(5, below, (rows, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def all_logits(model: MaskedLM, input_ids: torch.Tensor, **rows: torch.Tensor | None) -> torch.Tensor:
    """[B, S, V]: of every token."""
    logits = model(input_ids, positions_N=torch.arange(input_ids.numel()), **rows)
    return logits.view(*input_ids.shape, -1)


def segments(rows: Rows) -> Iterator[tuple[int, torch.Tensor]]:
    """Each segment of packed rows: the number of its row, and its positions in the row, [S]."""
    num_shared = 0
    for row, numbers in enumerate(rows.segment_ids):
        last = int(numbers.max())
        num_shared += last > 0
        yield from ((row, numbers == number) for number in range(last + 1))
    assert num_shared > 1


@torch.no_grad()
def their_logits(model: torch.nn.Module, input_ids: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
    return model(input_ids=input_ids, **rows).logits


def theirs_of(model: MaskedLM, folder: Path) -> torch.nn.Module:
    """The model as transformers loads it."""
    import transformers

    save_model(model, folder)
    return transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()


def with_biases(model: torch.nn.Module, std: float = 0.2, prefixes: tuple[str, ...] = ("",)) -> None:
    """Draws random biases, large enough to reveal differences."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and name.startswith(prefixes):
                parameter.normal_(0.0, std, generator=generator)


def with_heads(make_model: MakeModel, layout: str, **heads: object) -> MaskedLM:
    """A model with heads beside that for masked tokens."""
    model = rich_model(make_model(layout=layout).config, **heads)
    initialise(model, seed=0)
    with_biases(model)
    return model.eval()
