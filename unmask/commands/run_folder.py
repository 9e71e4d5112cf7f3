"""The folder of a run: what stands in it, what may be done to one that is there, and what the run is about.

    recipe.toml          every setting; a folder with it holds a run
    sources.json         the files that the text comes from
    stdin.txt            what came on standard input, if that was one of them
    pipes/               what came out of pipes, if some of them were
    given/               texts that were in memory, if they were given so
    lexicon.safetensors  collocations of the training text, where masking needs them and no other lexicon was given
    start/               where the training begins from a checkpoint: the model and tokenizer that it begins with
    old/                 held-out text of the checkpoint's own domain, as tokens, where there is any
    before.json          what that model came to before the training, on the new and on the old text
    data/                prepared shards, unless the run was given a prepared folder
    checkpoints/         the latest states
    metrics.jsonl        a line every few steps and at every evaluation
    tensorboard/         the same for TensorBoard, where it is installed
    predictions.json     what the model made of some held-out lines before training, and after it
    model/               the result: a transformers folder
    summary.json         figures of the result, written last
    report.html          all of it for the eye

A run is about its recipe and its sources, written into the folder when it begins and kept when it goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from unmask.commands.recipe import Recipe, load_recipe
from unmask.commands.recipe_files import CONTINUING, DEFAULT, apply_overrides
from unmask.core.errors import RunError, parse_json
from unmask.core.files import ClaimedFolder, write_atomically
from unmask.core.hub import hub_name
from unmask.core.remote import lasting_source, source_named
from unmask.core.results import Notify, ignore
from unmask.core.settings import validated
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE, InMemory, Named, is_stream, keep_as_files
from unmask.model.card_head import CardSettings, with_named

START_ANEW = "start anew with --overwrite"  # the way out where a file of a run is damaged


class RunFolder:
    """Paths within a run's folder; see the module's docstring."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipe = root / "recipe.toml"
        self.sources = root / "sources.json"
        self.stdin = root / STDIN_FILE
        self.pipes = root / PIPES
        self.given = root / GIVEN
        self.start = root / "start"
        self.old = root / "old"
        self.before = root / "before.json"
        self.data = root / "data"
        self.lexicon = root / "lexicon.safetensors"
        self.checkpoints = root / "checkpoints"
        self.metrics = root / "metrics.jsonl"
        self.tensorboard = root / "tensorboard"
        self.predictions = root / "predictions.json"
        self.model = root / "model"
        self.summary = root / "summary.json"
        self.report = root / "report.html"

        self.claimed = ClaimedFolder(root=root, marker=self.recipe.name, what="a run", ours=self._names())

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.claimed.is_claimed

    def clear(self, *, keep_data: bool = False) -> None:
        """Removes the run's files, the one that makes it a run last; others in its folder stay.

        Args:
            keep_data: Whether prepared shards, whole or in part, stay.

        Raises:
            RunError: A file cannot be removed.
        """
        self.claimed.clear(self._names() - ({self.data.name} if keep_data else set()))

    def _names(self) -> set[str]:
        return {path.name for path in vars(self).values() if isinstance(path, Path) and path != self.root}


def packaged_corpus() -> Path:
    """Tiny Shakespeare (1.1 MB, public domain), which stands in where no files are given."""
    return Path(str(resources.files("unmask") / "data" / "tinyshakespeare.txt"))


def claim_recipe(folder: RunFolder, recipe: Recipe | None, *, card: CardSettings) -> Recipe:
    """Writes the recipe into a new folder, or checks what is asked for by that of the run that goes on.

    Args:
        folder: Of the run.
        recipe: What is asked for; None: to go on.
        card: What is asked for of the card: it holds from now on, and the rest of the card stays.

    Returns:
        The recipe of the run.

    Raises:
        RunError: Other settings are asked for than the run has.
        SettingsError: The recipe is damaged, or what the card says from now on contradicts itself.
    """
    if not folder.holds_run:
        assert recipe is not None, "a new run has a recipe"
        folder.claimed.claim(recipe.to_toml())
        return recipe
    begun = load_recipe(str(folder.recipe), complete=False)
    if recipe is not None:
        folder.claimed.check_same(begun.model_dump(), recipe.model_dump(), but_for={"card"})
    said = with_named(begun.card.model_dump(), card, where=f"{folder.recipe}: card")
    if said != begun.card:
        begun = begun.model_copy(update={"card": said})
        folder.claimed.claim(begun.to_toml())
    return begun


def claim_sources(folder: RunFolder, paths: Sequence[Named] | None, notify: Notify = ignore) -> list[str]:
    """The sources of the run: those named now, or those it began with. Called before the recipe is claimed.

    Standard input, pipes and texts in memory are kept in the folder, so that a run that goes on has them.

    Raises:
        RunError: The run was begun on others, or the list of them is damaged.
        CorpusError: As `keep_as_files`; or what was at an address is not on this machine, and cannot be fetched.
    """
    if folder.holds_run:
        try:
            begun = parse_json(folder.sources.read_text(encoding="utf-8"))
            if not isinstance(begun, list) or not all(isinstance(path, str) for path in begun):
                raise ValueError("it is no list of paths")
        except (OSError, ValueError) as error:
            raise RunError(f"{folder.sources}: damaged ({error}); {START_ANEW}") from error
        named = [path for path in paths or () if not isinstance(path, InMemory) and not is_stream(path)]
        if named and len(named) == len(paths or ()) and [lasting_source(_absolute(path)) for path in named] != begun:
            raise RunError(
                f"{folder.root}: the run was begun on {', '.join(begun)}; leave the paths away, or use --overwrite"
            )
        return [source_named(name) for name in begun]
    sources = [_absolute(path) for path in keep_as_files(paths or [packaged_corpus()], folder.root, notify=notify)]
    write_atomically(folder.sources, json.dumps([lasting_source(path) for path in sources], indent=1) + "\n")
    return sources


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute())


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a user asks for when a run begins: a recipe and the options on top of it.

    They are those that `unmask.pretrain` documents; None is not asked for.
    """

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

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for, but of the card perhaps."""
        of_card = all(setting.lstrip().startswith("card.") for setting in self.settings)
        return of_card and replace(self, settings=()) == RunRequest()

    def card(self) -> CardSettings:
        """What was asked for of the card.

        Raises:
            SettingsError: It is nothing that a card can say.
        """
        values: dict[str, Any] = {}
        apply_overrides(values, [setting for setting in self.settings if setting.lstrip().startswith("card.")])
        return validated(CardSettings, values.get("card", {}), where="card")

    def load(self) -> Recipe:
        """The recipe with the options on top.

        Raises:
            RunError: More than one budget is given.
            UnmaskError: As `unmask.commands.recipe.load_recipe`.
        """
        if sum(budget is not None for budget in (self.minutes, self.steps, self.tokens)) > 1:
            raise RunError("give one of minutes, steps and tokens")
        tokenizer = self.tokenizer
        if tokenizer is not None and hub_name(tokenizer) is None:
            tokenizer = Path(tokenizer).resolve()  # so that a run may go on wherever its command is started
        options: dict[str, Any] = {
            "training.minutes": self.minutes,
            "training.steps": self.steps,
            "training.tokens": self.tokens,
            "training.seed": self.seed,
            "masking.strategy": self.strategy,
            "tokenizer.path": None if tokenizer is None else str(tokenizer),
            "tokenizer.kind": self.tokenizer_kind,
            "tokenizer.vocab_size": self.vocab_size,
            "start.checkpoint": str(self.from_.absolute()) if isinstance(self.from_, Path) else self.from_,
            "start.extend_vocab": self.extend_vocab,
            "start.old_data": None if self.old_data is None else [_absolute(path) for path in self.old_data],
        }
        usual = DEFAULT if self.from_ is None else CONTINUING
        return load_recipe(self.recipe or usual, options=options, overrides=self.settings)
