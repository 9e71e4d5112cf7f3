"""From raw text to a trained model: the assembly, in the order in which data flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.commands.from_checkpoint import check_old_data, data_from_checkpoint
from unmask.commands.masking_tables import named_lexicon
from unmask.commands.recipe import Recipe, find_checkpoint, load_recipe
from unmask.commands.recipe_files import Overrides, as_overrides
from unmask.commands.run_data import is_prepared, obtain_data
from unmask.commands.run_folder import RunFolder, RunRequest, claim_recipe, claim_sources
from unmask.commands.training_run import TrainingRun
from unmask.core.errors import RunError, UnmaskError
from unmask.core.files import read_object, typed
from unmask.core.hub import TOKENIZER, local_path
from unmask.core.interruption import Interruption
from unmask.core.remote import OutputFolder, address_of, lasting_source, output_folder, path_at, source_named
from unmask.core.results import (
    Finished,
    Reporter,
    Shown,
    SilentReporter,
    Styled,
    documents,
    duration,
    margin,
    usual_reporter,
)
from unmask.data.data_folder import DataFolder
from unmask.data.lexicon import load_lexicon
from unmask.data.sources import InMemory, Named, Texts, find_sources, is_stream, paths_or_texts
from unmask.masking.settings import Strategy
from unmask.model.card_head import CARD, change_card
from unmask.tasks.loaded_model import Model, load
from unmask.tokenizer.loading import load_tokenizer
from unmask.train.callbacks import Callback
from unmask.train.distributed import join_group, on_rank_zero, rank_zero_first

if TYPE_CHECKING:
    from unmask.train.trainer import Trainer


@dataclass(frozen=True, repr=False)
class Run(Finished):
    """A finished run. What its summary says stands in attributes, too: `run.validation_loss`."""

    @cached_property
    def model(self) -> Model:
        """The trained model."""
        return load(self.folder / "model")

    def shown(self) -> Iterator[Shown]:
        """The result in a few lines, and what to do next."""
        s = self.summary
        gain = s["unigram_entropy"] - s["validation_loss"]
        for name, value in (
            (
                "held-out loss",
                f"{s['validation_loss']:.3f}{margin(s.get('validation_loss_interval'))} nats per predicted token",
            ),
            (
                "",
                f"{abs(gain):.2f} {'better' if gain >= 0 else 'worse'} than word frequencies alone "
                f"({s['unigram_entropy']:.3f})",
            ),
            ("accuracy", f"{s['validation_accuracy']:.1%} of {s['predicted_tokens']:,} hidden tokens"),
            (
                "bits per byte",
                f"{s['bits_per_token_byte']:.3f}{margin(s.get('bits_per_token_byte_interval'))} of hidden tokens",
            ),
            *([] if s.get("validation_loss_interval") is None else [("", f"± 95 %, over {documents(s)} held out")]),
            *(
                (name.replace("_", " "), f"{figures['accuracy']:.1%} of {figures['count']:,} right")
                for name, figures in s.get("objectives", {}).items()
            ),
            *_domain_lines(s.get("domains") or {}),
            ("trained", f"{s['steps']:,} steps, {s['tokens_seen']:,} tokens in {duration(s['seconds'])}"),
            ("speed", f"{s['tokens_per_second']:,.0f} tokens a second"),
            ("model", s["model"]),
            ("report", str(self.folder / "report.html")),
        ):
            yield f"{name:<14} {value}"
        if (warning := s.get("validation_warning")) is not None:
            yield Styled(f"\n{warning}", "yellow")
        yield f'\nTry it: unmask fill {typed(s["model"])} "... [MASK] ..."'


def pretrain(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    paths: Texts | None = None,
    *,
    out: str | Path,
    recipe: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    strategy: Strategy | None = None,
    tokenizer: str | Path | None = None,
    tokenizer_kind: str | None = None,
    vocab_size: int | None = None,
    seed: int | None = None,
    settings: Overrides = (),
    from_: str | Path | None = None,
    extend_vocab: int | None = None,
    old_data: str | Path | Sequence[str | Path] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    reporter: Reporter | None = None,
) -> Run:
    """Trains a model on raw text or prepared shards.

    Args:
        paths: Files, folders or patterns of text, - for standard input, or a prepared folder; in Python also texts in
            memory (see `unmask.data.sources`). By default Tiny Shakespeare.
        out: Folder of the run, or an address (s3://bucket/runs/a).
        recipe: Name of a recipe (see unmask recipes) or a .toml file. By default tiny; continue for a checkpoint.
        minutes: Minutes of training.
        steps: Optimizer steps, instead of minutes.
        tokens: Tokens of text to train on, instead of minutes.
        strategy: Masking strategy (see unmask masks).
        tokenizer: tokenizer.json, vocab.txt, their folder, or a name on the hub. By default one is trained.
        tokenizer_kind: Of the trained tokenizer; bpe is byte-level. By default wordpiece.
        vocab_size: Of the trained tokenizer. By default it fits the text.
        seed: Of weights, order and masks.
        settings: `section.key=value` overrides of the recipe, or a dict of them.
        from_: Begin with this model: its folder, that of a run, or a name on the hub. By default new weights.
        extend_vocab: With a checkpoint: so many words of the new text get entries of their own.
        old_data: With a checkpoint: text of its old domain, evaluated before and after. By default the validation split
            of the run that made it.
        resume: Go on with the run in `out` from its last checkpoint.
        overwrite: Remove the run in `out` and start anew.
        callbacks: Called as it trains, see `unmask.Callback`.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        Interrupted: SIGINT or SIGTERM; the state was saved.
    """
    named = paths_or_texts(paths)
    old_texts = [old_data] if isinstance(old_data, str | Path) else old_data or ()
    request = RunRequest(
        recipe=recipe,
        minutes=minutes,
        steps=steps,
        tokens=tokens,
        strategy=strategy,
        tokenizer=tokenizer,
        tokenizer_kind=tokenizer_kind,
        vocab_size=vocab_size,
        seed=seed,
        settings=as_overrides(settings),
        from_=from_,
        extend_vocab=extend_vocab,
        old_data=None if old_data is None else tuple(map(str, old_texts)),
    )
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_main else SilentReporter()
    with Interruption() as interruption, ExitStack() as stack:
        outputs: list[OutputFolder] = []  # of rank 0

        def root() -> str:
            claim = output_folder(out, lambda root: RunFolder(root).claimed, resume=resume, overwrite=overwrite)
            outputs.append(stack.enter_context(claim))
            return str(outputs[0].path)

        folder = RunFolder(Path(on_rank_zero(group, root)))
        begun = on_rank_zero(
            group, lambda: _begin(folder, named, request, stack, reporter, resume=resume, overwrite=overwrite)
        )
        if begun is None:
            return _finished(folder)
        resolved = load_recipe(str(folder.recipe), complete=False)

        def opened() -> TrainingRun:
            """Opens the data, after preparing it where that was not done, and makes the model."""
            sources = list(map(source_named, begun["sources"]))  # each machine has its own copies of what is remote
            from_start = resolved.start is not None
            data = (
                data_from_checkpoint(sources, folder, resolved, reporter)
                if from_start
                else obtain_data(sources, folder.data, resolved, reporter)
            )
            return TrainingRun(folder, resolved, data, reporter, group)

        try:
            training = rank_zero_first(group, opened)
        except UnmaskError:
            if begun["is_new"] and group.is_main:  # no run was made: the next try shall find none
                # Parts of a preparation are checked by content when the next try goes on with them; whole data is not.
                folder.clear(keep_data=not DataFolder(folder.data).is_complete)
            raise
        summary = training.run(interruption, [*callbacks, *map(SendCheckpoints, outputs)])
    if path_at(out) is None:
        reporter.note(f"all of it is at {address_of(out)}")
    return Run(folder.root, summary)


class SendCheckpoints(Callback):
    """Sends a run's files to the address that its folder stands for, whenever a checkpoint is whole."""

    def __init__(self, output: OutputFolder) -> None:
        self._output = output

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
        self._output.put()


def _begin(
    folder: RunFolder,
    named: Sequence[Named] | None,
    request: RunRequest,
    stack: ExitStack,
    reporter: Reporter,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any] | None:
    """Claims the folder, as it was asked for, and writes into it what the run is about.

    Args:
        folder: Of the run.
        named: The text, as the user named it.
        request: What is asked for.
        stack: Keeps the folder from other runs.
        reporter: Told of what is done.
        resume, overwrite: As for `pretrain`.

    Returns:
        `sources`: those of the run; `is_new`: whether it begins. None: it is finished.
    """
    recipe = None if resume and folder.holds_run and request.is_empty else request.load()
    card = request.card() if recipe is None else recipe.card
    inputs = _check_before(named, request.tokenizer, recipe)
    folder.claimed.check(resume=resume, overwrite=overwrite, inputs=inputs)
    stack.enter_context(folder.claimed.held())
    folder.claimed.check(resume=resume, overwrite=overwrite)  # again: no other process comes from now on
    if overwrite:
        folder.clear()
    goes_on = folder.holds_run
    if resume and not goes_on:
        reporter.note(f"there is no run in {folder.root} yet: a new one begins")
    sources = claim_sources(folder, named, reporter.notify)
    if goes_on and any(isinstance(name, InMemory) for name in named or ()):
        reporter.note("the run goes on with the texts that it began with; those in memory now are not read")
    claim_recipe(folder, recipe, card=card)
    if goes_on and folder.summary.is_file():
        if change_card(folder.model, card):
            reporter.note(f"{folder.model / CARD} was changed as asked for")
        reporter.note(f"the run in {folder.root} is finished: nothing is left to do")
        return None
    return {"sources": list(map(lasting_source, sources)), "is_new": not goes_on}


def _finished(folder: RunFolder) -> Run:
    """A run that is over, as its summary tells of it.

    Raises:
        RunError: The summary is damaged.
    """
    way_out = "take it away, and the run is evaluated again"
    run = Run(folder.root, read_object(folder.summary, way_out))
    try:
        _ = [*run.shown()]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"{folder.summary}: damaged ({type(error).__name__}: {error}); {way_out}") from error
    return run


def _check_before(named: Sequence[Named] | None, tokenizer: str | Path | None, recipe: Recipe | None) -> list[Path]:
    """Finds mistakes before a folder is touched, and so before a long preparation; returns what is read."""
    paths = [path for path in named or () if not isinstance(path, InMemory) and not is_stream(path)]
    if paths and not is_prepared(paths):
        find_sources(paths, announce=False)
    inputs = [Path(path) for path in paths]
    if tokenizer is not None:
        load_tokenizer(tokenizer)
        inputs.append(local_path(tokenizer, TOKENIZER))
    if recipe is not None and (lexicon := named_lexicon(recipe.masking)) is not None:
        load_lexicon(lexicon)
        inputs.append(lexicon)
    if recipe is not None and recipe.start is not None:
        check_old_data(recipe.start.old_data)
        inputs += [find_checkpoint(recipe.start.checkpoint), *map(Path, recipe.start.old_data)]
    return inputs


def _domain_lines(domains: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a training from a checkpoint brought on the new text and cost on the old."""

    def figure(figures: dict[str, Any], name: str) -> str:
        return f"{figures[name]:.3f}{margin(figures.get(f'{name}_interval'))}"

    for name, figures in domains.items():
        if figures is not None:
            before, after = figures["before"], figures["after"]
            yield (
                f"{name} text",
                f"{figure(before, 'loss')} nats per token before, {figure(after, 'loss')} after; "
                f"{figure(before, 'bits_per_token_byte')} bits per token byte before, "
                f"{figure(after, 'bits_per_token_byte')} after",
            )
