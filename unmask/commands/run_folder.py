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
from unmask.core.errors import RunError, parse_json, parse_toml
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


def masks_by_tokens(folder: RunFolder) -> bool:
    """Whether a run was begun before `masking.budget` was a setting: its masks fill a budget of tokens."""
    try:
        return "budget" not in parse_toml(folder.recipe.read_text(encoding="utf-8")).get("masking", {})
    except (OSError, ValueError):
        return False  # whoever loads the recipe says what is wrong with it


def kept_recipe(folder: RunFolder) -> Recipe:
    """The recipe of a run, with the masks that it began with.

    Raises:
        SettingsError: It is damaged.
    """
    options = {"masking.budget": "tokens"} if masks_by_tokens(folder) else {}
    return load_recipe(str(folder.recipe), options=options, complete=False)


def claim_recipe(folder: RunFolder, wanted: Recipe | None, *, card: CardSettings, names_budget: bool = False) -> None:
    """Writes the recipe into a new folder, or checks what is asked for by that of the run that goes on.

    What is asked for of the card holds from now on, and the rest of it stays; so does how processes share the work.

    Args:
        folder: Of the run.
        wanted: What is asked for; None: to go on.
        card: What is asked for of the card.
        names_budget: Whether `masking.budget` is among what is asked for.

    Raises:
        RunError: Other settings are asked for than the run has.
        SettingsError: What the card says from now on contradicts itself.
    """
    if not folder.holds_run:
        assert wanted is not None
        folder.claimed.claim(wanted.to_toml())
        return
    kept = kept_recipe(folder)
    if wanted is not None and masks_by_tokens(folder) and not names_budget:
        wanted = wanted.model_copy(update={"masking": wanted.masking.model_copy(update={"budget": "tokens"})})
    if wanted is not None:
        folder.claimed.check_same(kept.model_dump(), wanted.model_dump(), but_for={"card", "training.sharding"})
    said = with_named(kept.card.model_dump(), card, where=f"{folder.recipe}: card")
    sharding = kept.training.sharding if wanted is None else wanted.training.sharding
    if said != kept.card or sharding != kept.training.sharding:
        training = kept.training.model_copy(update={"sharding": sharding})
        folder.claimed.claim(kept.model_copy(update={"card": said, "training": training}).to_toml())


def claim_sources(folder: RunFolder, paths: Sequence[Named] | None, notify: Notify = ignore) -> list[str]:
    """The sources of the run: those given now, or those it began with. Called before the recipe is claimed.

    Standard input, pipes and texts in memory are kept in the folder, so that a run that goes on has them.

    Raises:
        RunError: The run was begun on others, or the list of them is damaged.
        CorpusError: As `keep_as_files`; or what was at an address is not on this machine, and cannot be fetched.
    """
    if folder.holds_run:
        kept = _kept_sources(folder)
        new = [path for path in paths or () if not isinstance(path, InMemory) and not is_stream(path)]
        if new and len(new) == len(paths or ()) and [lasting_source(_absolute(path)) for path in new] != kept:
            raise RunError(
                f"{folder.root}: the run was begun on {', '.join(kept)}; leave the paths away, or use --overwrite"
            )
        return [source_named(name) for name in kept]
    given = [_absolute(path) for path in keep_as_files(paths or [packaged_corpus()], folder.root, notify=notify)]
    write_atomically(folder.sources, json.dumps([lasting_source(path) for path in given], indent=1) + "\n")
    return given


def _kept_sources(folder: RunFolder) -> list[str]:
    try:
        kept = parse_json(folder.sources.read_text(encoding="utf-8"))
        if not isinstance(kept, list) or not all(isinstance(path, str) for path in kept):
            raise ValueError("it is no list of paths")
    except (OSError, ValueError) as error:
        raise RunError(f"{folder.sources}: damaged ({error}); {START_ANEW}") from error
    return kept


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

    def __post_init__(self) -> None:
        """Checks what excludes each other.

        Raises:
            RunError: More than one budget is given.
        """
        if sum(budget is not None for budget in (self.minutes, self.steps, self.tokens)) > 1:
            raise RunError("give one of minutes, steps and tokens")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for, but of the card perhaps."""
        return replace(self, settings=()) == RunRequest() and all(map(_is_of_card, self.settings))

    def card(self) -> CardSettings:
        """What was asked for of the card, of a request that is empty but for that.

        Raises:
            SettingsError: It is nothing that a card can say.
        """
        values: dict[str, Any] = {}
        apply_overrides(values, self.settings)
        return validated(CardSettings, values.get("card", {}), where="card")

    def load(self) -> Recipe:
        """The recipe with the options on top.

        Raises:
            UnmaskError: As `unmask.commands.recipe.load_recipe`.
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


def _is_of_card(setting: str) -> bool:
    return setting.lstrip().startswith("card.")


def _named(source: str | Path) -> str:
    """A whole path, so that a run may go on wherever its command is started; or a name of the hub."""
    return str(Path(source).resolve()) if hub_name(source) is None else str(source)
