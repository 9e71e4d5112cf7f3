"""What a run is about: its recipe and its sources, written into the folder when it begins and kept when it goes on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from unmask.corpus.sources import STDIN, keep_stdin
from unmask.errors import RunError
from unmask.files import write_atomically
from unmask.pretraining.folder import START_ANEW, RunFolder
from unmask.recipe.recipe import Recipe, load_recipe


def packaged_corpus() -> Path:
    """Tiny Shakespeare (1.1 MB, public domain), which stands in where no files are given."""
    return Path(str(resources.files("unmask") / "data" / "tinyshakespeare.txt"))


def masks_by_tokens(folder: RunFolder) -> bool:
    """Whether a run was begun before `masking.budget` was a setting: its masks fill a budget of tokens."""
    try:
        return "budget" not in tomllib.loads(folder.recipe.read_text(encoding="utf-8")).get("masking", {})
    except (OSError, ValueError):
        return False  # whoever loads the recipe says what is wrong with it


def claim_recipe(folder: RunFolder, wanted: Recipe | None, *, names_budget: bool = False) -> Recipe:
    """Writes the recipe into a new folder, or takes the one of the run that goes on, with the masks that it began with.

    Args:
        folder: Of the run.
        wanted: What is asked for; None: to go on.
        names_budget: Whether `masking.budget` is among what is asked for.

    Raises:
        RunError: Other settings are asked for than the run has.
    """
    if not folder.holds_run:
        assert wanted is not None
        folder.claimed.claim(wanted.to_toml())
        return wanted
    options = {"masking.budget": "tokens"} if masks_by_tokens(folder) else {}
    kept = load_recipe(str(folder.recipe), options=options, complete=False)
    if wanted is not None and options and not names_budget:
        wanted = wanted.model_copy(update={"masking": wanted.masking.model_copy(update={"budget": "tokens"})})
    if wanted is not None:
        folder.claimed.check_same(kept.model_dump(), wanted.model_dump())
    return kept


def claim_sources(folder: RunFolder, paths: Sequence[str | Path] | None) -> list[str]:
    """The sources of the run: those given now, or those it began with. Called before the recipe is claimed.

    Standard input is kept in the folder, so that a run that goes on has it.

    Raises:
        RunError: The run was begun on others, or the list of them is damaged.
        CorpusError: Standard input is asked for and is empty or a terminal.
    """
    if folder.holds_run:
        kept = _kept_sources(folder)
        if paths and [_absolute(path) for path in paths] != kept and STDIN not in map(str, paths):
            raise RunError(
                f"{folder.root}: the run was begun on {', '.join(kept)}; leave the paths away, or use --overwrite"
            )
        return kept
    given = [_absolute(path) for path in keep_stdin(paths or [packaged_corpus()], folder.root)]
    write_atomically(folder.sources, json.dumps(given, indent=1) + "\n")
    return given


def _kept_sources(folder: RunFolder) -> list[str]:
    try:
        kept = json.loads(folder.sources.read_text(encoding="utf-8"))
        if not isinstance(kept, list) or not all(isinstance(path, str) for path in kept):
            raise ValueError("it is no list of paths")
    except (OSError, ValueError) as error:
        raise RunError(f"{folder.sources}: damaged ({error}); {START_ANEW}") from error
    return kept


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute())
