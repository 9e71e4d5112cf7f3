"""What a user asks for when a run begins: a recipe and the options on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import RunError
from unmask.hub.names import hub_name
from unmask.recipe.recipe import CONTINUING, DEFAULT, Recipe, load_recipe


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options as `unmask.pretrain` documents them; None is not asked for."""

    recipe: str | None = None
    minutes: float | None = None
    steps: int | None = None
    tokens: int | None = None
    strategy: str | None = None
    tokenizer: str | Path | None = None
    tokenizer_kind: str | None = None
    vocab_size: int | None = None
    seed: int | None = None
    settings: tuple[str, ...] = ()
    from_: str | Path | None = None
    extend_vocab: int | None = None
    old_data: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Checks what excludes each other.

        Raises:
            RunError: More than one budget is given.
        """
        if sum(budget is not None for budget in (self.minutes, self.steps, self.tokens)) > 1:
            raise RunError("give one of minutes, steps and tokens")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return self == Request()

    def load(self) -> Recipe:
        """The recipe with the options on top.

        Raises:
            UnmaskError: As `unmask.recipe.recipe.load_recipe`.
        """
        options: dict[str, Any] = {
            "training.minutes": self.minutes,
            "training.steps": self.steps,
            "training.tokens": self.tokens,
            "training.seed": self.seed,
            "masking.strategy": self.strategy,
            "tokenizer.path": None if self.tokenizer is None else _named(self.tokenizer),
            "tokenizer.kind": self.tokenizer_kind,
            "tokenizer.vocab_size": self.vocab_size,
            "start.checkpoint": str(self.from_.absolute()) if isinstance(self.from_, Path) else self.from_,
            "start.extend_vocab": self.extend_vocab,
            "start.old_data": None if self.old_data is None else [str(Path(path).absolute()) for path in self.old_data],
        }
        usual = DEFAULT if self.from_ is None else CONTINUING
        return load_recipe(self.recipe or usual, options=options, overrides=self.settings)


def _named(source: str | Path) -> str:
    """A whole path, so that a run may go on wherever its command is started; or a name of the hub."""
    return str(Path(source).resolve()) if hub_name(source) is None else str(source)
