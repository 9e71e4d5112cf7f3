"""GPU memory and speed of the packaged recipes, by calculation.

    python benchmarks/gpu_memory.py --table docs/how-to/pretraining.md

Nothing is measured. Memory is calculated by `unmask.train.hardware`. Tokens a second follow from the operations of
matrix products, at a share of the speed that a GPU's products are known to reach.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from tables import head, parser_of, replace_table

from unmask.commands.recipe import Recipe, encoder_config, load_recipe
from unmask.masking.settings import rate_at
from unmask.model.encoder import MaskedLM
from unmask.train.hardware import fitting_positions, step_memory

RECIPES = ("small", "base", "modernbert-base")
SHARE = 0.45  # assumed speed of a whole training step, as a share of that of products
GPUS = {80: 790e12, 24: 165e12}  # GiB, and operations a second of bf16 products: an H100 or H200, an RTX 4090
VOCABULARY = 32_768  # if the recipe leaves it to the text
LENGTH = 512  # positions of a segment, for attention's share of the operations


def model_of(recipe: Recipe) -> MaskedLM:
    """The recipe's model, on the meta device."""
    special = SimpleNamespace(pad=0, cls=1, sep=2, mask=3)
    tokenizer: Any = SimpleNamespace(vocab_size=recipe.tokenizer.vocab_size or VOCABULARY, special=special)
    with torch.device("meta"):
        return MaskedLM(encoder_config(recipe, tokenizer))


def operations(model: MaskedLM, rate: float) -> float:
    """Operations of a token, forward and backward."""
    config = model.config
    matrices = sum(p.numel() for p in model.encoder.blocks.parameters() if p.ndim == 2)
    attention = 2 * min(LENGTH, config.max_position_embeddings) * config.hidden_size * config.num_layers
    return 6 * (matrices + attention + rate * config.vocab_size * config.hidden_size)


def table() -> list[str]:
    lines = head("recipe | parameters | positions a step | GPU | at once | memory | tokens a second")
    for name in RECIPES:
        recipe = load_recipe(name)
        model, settings = model_of(recipe), recipe.training
        rate = rate_at(recipe.masking.rate, 0.0)
        for gib, speed in GPUS.items():
            fits = fitting_positions(model, settings, memory=gib << 30, rate=rate)
            takes = 0 if fits is None else step_memory(model, settings, positions=fits, rate=rate)
            lines.append(
                f"| `{name}` | {model.num_parameters / 1e6:.0f} M | {settings.batch_tokens:,} | {gib} GB | "
                + (f"{fits:,} | {takes / 2**30:.0f} GiB" if fits else "does not fit | ")
                + f" | {SHARE * speed / operations(model, rate) / 1e3:,.0f} thousand |"
            )
    return lines


def main() -> None:
    parser = parser_of(__doc__, table="gpu-memory")
    options = parser.parse_args()
    lines = table()
    print(*lines, sep="\n")
    if options.table is not None:
        replace_table(options.table, "gpu-memory", "\n".join(lines))


if __name__ == "__main__":
    main()
