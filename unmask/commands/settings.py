"""The reference of settings, for `--set` and Python's `settings=`; and their meanings in a recipe's file."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from unmask.core.declarations import Setting, first_sentence, nearest_settings, settings_of
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


def with_meanings(toml: str) -> str:
    """Adds the meaning of each setting above it, in TOML as tomli_w writes it: with empty lines between tables."""
    meanings: dict[tuple[str, ...], str] = {}  # by table (the last part of its name), kind, setting
    for each in settings_of(*CLASSES["recipe"]):
        *path, name = each.name.split(".")
        for kind in (each.kinds if "[]" not in each.name else ()) or ("",):
            meanings[(*path[-1:], kind, name)] = first_sentence(each.meaning)

    def above(line: re.Match[str], path: list[str], kinds: Sequence[str]) -> str:
        known = (meanings.get((*path, kind, line[1])) for kind in ("", *kinds))
        return next((f"# {meaning}\n" for meaning in known if meaning), "") + line[0]

    tables = ["# The settings of a run; `unmask settings WORD` explains each."]
    for table in toml.split("\n\n"):
        header = re.match(r"(\[+)(?:.*\.)?(.+?)\]", table)
        path = [header[2] + "[]" * (len(header[1]) - 1)] if header else []
        kinds = re.findall(r'^kind = "(\w+)"$', table, re.MULTILINE)
        tables.append(re.sub(r"^([\w-]+) = ", partial(above, path=path, kinds=kinds), table, flags=re.MULTILINE))
    return "\n\n".join(tables)
