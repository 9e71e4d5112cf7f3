"""The reference of settings, for `--set` and Python's `settings=`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from unmask.core.declarations import Setting, nearest_settings, settings_of
from unmask.core.errors import SettingsError
from unmask.core.public import public
from unmask.core.results import Result, Shown, Styled

CLASSES = {  # of settings: module, class, prefix of names
    "recipe": ("commands.recipe_files", "LightRecipe", ""),
    "finetune": ("tasks.task", "FinetuneSettings", "finetune."),
    "embedder": ("commands.embedder_settings", "EmbedderSettings", "embedder."),
}


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
    """Lists all settings, with values and meanings. They are those of recipes, fine-tuning and embedders.

    Args:
        word: Only settings with this in their name, kind or meaning, such as `learning_rate`.
    """
    known = [each for of in CLASSES.values() for each in settings_of(*of)]
    chosen = [each for each in known if (word or "").lower() in f"{each.name} {each.kinds} {each.meaning}".lower()]
    if not chosen:
        near = nearest_settings(str(word), known)
        raise SettingsError(f"no setting has {word!r} in its name or meaning; the nearest are {', '.join(near)}")
    return SettingsReference({"settings": tuple(chosen)})
