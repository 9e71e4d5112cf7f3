"""The reference of settings: what `--set` reaches, and `settings=` in Python."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from unmask.core.declarations import Setting, settings_of
from unmask.core.errors import SettingsError
from unmask.core.public import public
from unmask.core.results import Result, Shown, Styled

RECIPE = ("commands.recipe_files", "LightRecipe", "")
FINETUNE = ("tasks.task", "FinetuneSettings", "finetune.")
EMBEDDER = ("commands.embedder_pairs", "EmbedderSettings", "embedder.")


class SettingsReference(Result):
    """Settings by their dotted names, in the order of their sections."""

    settings: tuple[Setting, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"settings": [asdict(each) | {"choices": [*each.choices]} for each in self.settings]}

    def shown(self) -> Iterator[Shown]:
        for each in self.settings:
            kinds = f" (kind {' or '.join(each.kinds)})" if each.kinds else ""
            default = ", required" if each.default is None else f" [{each.default}]" if each.default else ""
            yield Styled(each.name, "bold"), f"{kinds}: {each.values}", Styled(default, "dim")
            yield textwrap.fill(each.meaning, 100, initial_indent="    ", subsequent_indent="    ")


@public
def settings(word: str | None = None) -> SettingsReference:
    """Lists the settings of recipes, of fine-tuning and of embedders: values, default, meaning.

    Args:
        word: Only settings that have it in their name or meaning, such as `learning_rate`.
    """
    every = [each for section in (RECIPE, FINETUNE, EMBEDDER) for each in settings_of(*section)]
    chosen = [each for each in every if (word or "").lower() in f"{each.name} {each.meaning}".lower()]
    if not chosen:
        near = difflib.get_close_matches(str(word), [each.name for each in every], n=3, cutoff=0.0)
        raise SettingsError(f"no setting has {word!r} in its name or meaning; the nearest are {', '.join(near)}")
    return SettingsReference({"settings": tuple(chosen)})
