"""From raw text to a trained model: the assembly, in the order in which data flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.corpus.text import check_source
from unmask.errors import RunError, UnmaskError
from unmask.inference.model import Model, load
from unmask.pretraining.claim import claim_recipe, claim_sources
from unmask.pretraining.data import is_prepared, obtain_data
from unmask.pretraining.folder import RunFolder, open_folder
from unmask.pretraining.interrupt import Interruption
from unmask.pretraining.reporter import LogReporter, Reporter
from unmask.pretraining.sitting import Sitting
from unmask.recipe.recipe import DEFAULT, load_recipe


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Its folder.
        summary: What `summary.json` says.
    """

    folder: Path
    summary: dict[str, Any]

    @cached_property
    def model(self) -> Model:
        """The trained model."""
        return load(self.folder / "model")


def pretrain(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    paths: Sequence[str | Path] | None = None,
    *,
    out: str | Path,
    recipe: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    strategy: str | None = None,
    tokenizer: str | Path | None = None,
    tokenizer_kind: str | None = None,
    vocab_size: int | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Pretrains a masked language model.

    Args:
        paths: Text files, or a folder of prepared shards; None takes the packaged Tiny Shakespeare.
        out: Folder of the run.
        recipe: Name of a packaged recipe, or a TOML file.
        minutes: Budget in minutes of training.
        steps: Budget in optimizer steps.
        strategy: Masking strategy.
        tokenizer: Folder with a tokenizer.json or vocab.txt, or such a file; None trains one.
        tokenizer_kind: What is trained: wordpiece, bpe (byte-level), unigram or char.
        vocab_size: Of the trained tokenizer; None sizes it to the corpus.
        seed: Of weights, order and masks.
        settings: `section.key=value` overrides.
        resume: Go on with the run in `out` from its last checkpoint (from the beginning where there is none).
        overwrite: Remove a run in `out` first.
        reporter: Told of the progress; None logs.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        Interrupted: SIGINT or SIGTERM; the state was saved.
    """
    if minutes is not None and steps is not None:
        raise RunError("give minutes or steps, not both")
    options = {
        "training.minutes": minutes,
        "training.steps": steps,
        "training.seed": seed,
        "masking.strategy": strategy,
        "tokenizer.path": None if tokenizer is None else str(Path(tokenizer).resolve()),
        "tokenizer.kind": tokenizer_kind,
        "tokenizer.vocab_size": vocab_size,
    }
    asked = recipe is not None or bool(settings) or any(value is not None for value in options.values())
    reporter = reporter or LogReporter()
    with Interruption() as interruption:
        wanted = None
        if asked or not resume or not RunFolder(Path(out)).holds_run:
            wanted = load_recipe(recipe or DEFAULT, options=options, overrides=tuple(settings))
        for path in map(Path, paths or ()):  # before a folder is touched
            if not is_prepared([path]):
                check_source(path)
        folder = open_folder(Path(out), resume=resume, overwrite=overwrite)
        begins = not folder.holds_run
        resolved = claim_recipe(folder, wanted)
        sources = claim_sources(folder, paths)
        try:
            data = obtain_data(sources, folder.data, resolved, reporter)
        except UnmaskError:
            if begins:  # nothing was made, and the next try shall not be told that a run is there
                folder.clear()
            raise
        summary = Sitting(folder, resolved, data, reporter, interruption).run()
    return Run(folder.root, summary)
