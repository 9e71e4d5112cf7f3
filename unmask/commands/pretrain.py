"""From raw text to a trained model: the assembly, in the order in which data flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.commands.from_checkpoint import check_old_data, data_from_checkpoint
from unmask.commands.masking_tables import named_lexicon
from unmask.commands.recipe import Recipe, find_checkpoint
from unmask.commands.recipe_files import Overrides, as_overrides
from unmask.commands.reporting import Reporter, SilentReporter, usual_reporter
from unmask.commands.run_data import is_prepared, obtain_data
from unmask.commands.run_folder import RunFolder, RunRequest, claim_recipe, claim_sources, kept_recipe, masks_by_tokens
from unmask.commands.training_run import TrainingRun
from unmask.core.errors import RunError, UnmaskError
from unmask.core.files import read_object, typed
from unmask.core.hub import TOKENIZER, local_path
from unmask.core.interruption import Interruption
from unmask.core.remote import address_of, lasting_source, output_folder, path_at, source_named
from unmask.core.results import Finished, Shown, Styled, documents, duration, margin
from unmask.data.data_folder import DataFolder
from unmask.data.lexicon import load_lexicon
from unmask.data.sources import InMemory, Named, Texts, find_sources, is_stream, paths_or_texts
from unmask.masking.settings import Strategy
from unmask.model.card_head import CARD, change_card
from unmask.tasks.loaded_model import Model, load
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerKind
from unmask.train.distributed import Group, by_first, first_before_others, join_group


@dataclass(frozen=True, repr=False)
class Run(Finished):
    """A finished run. What its summary says stands in attributes, too: `run.validation_loss`."""

    @cached_property
    def model(self) -> Model:
        """The trained model."""
        return load(self.folder / "model")

    def shown(self) -> Iterator[Shown]:
        """The result in a few lines, and what to do next; of a run of an earlier version what its summary has of it."""
        s = self.summary
        gain = s["unigram_entropy"] - s["validation_loss"]
        bits = s["bits_per_token_byte"] if "bits_per_token_byte" in s else s["bits_per_byte"]  # as it was called before
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
            ("bits per byte", f"{bits:.3f}{margin(s.get('bits_per_token_byte_interval'))} of hidden tokens"),
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
    tokenizer_kind: TokenizerKind | None = None,
    vocab_size: int | None = None,
    seed: int | None = None,
    settings: Overrides = (),
    from_: str | Path | None = None,
    extend_vocab: int | None = None,
    old_data: str | Path | Sequence[str | Path] | None = None,
    resume: bool = False,
    overwrite: bool = False,
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
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        Interrupted: SIGINT or SIGTERM; the state was saved.
    """
    sources_given = paths_or_texts(paths)
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
        old_data=_old_paths(old_data),
    )
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_first else SilentReporter()
    with Interruption() as interruption, ExitStack() as held:
        root = by_first(group, lambda: _root(out, held, resume=resume, overwrite=overwrite))
        folder = RunFolder(Path(root))
        begun = by_first(
            group, lambda: _begin(folder, sources_given, request, held, reporter, resume=resume, overwrite=overwrite)
        )
        if begun is None:
            return _finished(folder)
        resolved = kept_recipe(folder)
        try:
            training = first_before_others(
                group,
                lambda: _training(folder, begun["sources"], resolved, reporter, interruption, group),
            )
        except UnmaskError:
            if begun["is_new"] and group.is_first:  # no run was made: the next try shall not be told that one is there
                # Parts of a preparation are checked by content when the next try goes on with them; whole data is not.
                folder.clear(keep_data=not DataFolder(folder.data).is_complete)
            raise
        reporter.begin()
        summary = training.run()
    if path_at(out) is None:
        reporter.note(f"all of it is at {address_of(out)}")
    return Run(folder.root, summary)


def _root(out: str | Path, held: ExitStack, *, resume: bool, overwrite: bool) -> str:
    """The folder of the run; of one at an address that whose files are sent there until `held` is left."""
    output = output_folder(out, lambda root: RunFolder(root).claimed, resume=resume, overwrite=overwrite)
    return str(held.enter_context(output).path)


def _begin(
    folder: RunFolder,
    given: Sequence[Named] | None,
    request: RunRequest,
    held: ExitStack,
    reporter: Reporter,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any] | None:
    """Claims the folder, as it was asked for, and writes into it what the run is about.

    Args:
        folder: Of the run.
        given: The text.
        request: What is asked for.
        held: Keeps the folder from other runs.
        reporter: Told of what is done.
        resume, overwrite: As for `pretrain`.

    Returns:
        `sources`: those of the run; `is_new`: whether it begins. None: it is finished.
    """
    goes_on = resume and folder.holds_run
    wanted = None if goes_on and request.is_empty else request.load()
    card = request.card() if wanted is None else wanted.card
    inputs = _check_before(given, request.tokenizer, wanted)
    folder.claimed.check(resume=resume, overwrite=overwrite, inputs=inputs)
    held.enter_context(folder.claimed.held())
    folder.claimed.check(resume=resume, overwrite=overwrite)  # again: nobody else comes from now on
    goes_on = resume and folder.holds_run
    if overwrite:
        folder.clear()
    begins = not folder.holds_run
    if resume and begins:
        reporter.note(f"there is no run in {folder.root} yet: a new one begins")
    sources = claim_sources(folder, given, reporter.notify)
    if not begins and any(isinstance(name, InMemory) for name in given or ()):
        reporter.note("the run goes on with the texts that it began with; those that are given now are not read")
    if goes_on and masks_by_tokens(folder):
        reporter.note("the run was begun with masking.budget = 'tokens', by an earlier version, and goes on with it")
    named = any(setting.startswith("masking.budget") for setting in request.settings)
    claim_recipe(folder, wanted, card=card, names_budget=named)
    if goes_on and folder.summary.is_file():
        if change_card(folder.model, card):
            reporter.note(f"{folder.model / CARD} was changed as asked for")
        reporter.note(f"the run in {folder.root} is finished: nothing is left to do")
        return None
    return {"sources": list(map(lasting_source, sources)), "is_new": begins}


def _training(
    folder: RunFolder,
    sources: Sequence[str],
    recipe: Recipe,
    reporter: Reporter,
    interruption: Interruption,
    group: Group,
) -> TrainingRun:
    """Opens the data, after preparing it where that was not done, and makes the model."""
    sources = list(map(source_named, sources))  # each machine has copies of its own of what lies at addresses
    if recipe.start is None:
        data = obtain_data(sources, folder.data, recipe, reporter)
    else:
        data = data_from_checkpoint(sources, folder, recipe, reporter)
    return TrainingRun(folder, recipe, data, reporter, interruption, group)


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


def _old_paths(given: str | Path | Sequence[str | Path] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return tuple(map(str, [given] if isinstance(given, str | Path) else given))


def _check_before(paths: Sequence[Named] | None, tokenizer: str | Path | None, wanted: Recipe | None) -> list[Path]:
    """Finds mistakes before a folder is touched, and so before a long preparation.

    Returns:
        What is read.
    """
    named = [path for path in paths or () if not isinstance(path, InMemory) and not is_stream(path)]
    if named and not is_prepared(named):
        find_sources(named, announce=False)
    inputs = [Path(path) for path in named]
    if tokenizer is not None:
        load_tokenizer(tokenizer)
        inputs.append(local_path(tokenizer, TOKENIZER))
    if wanted is not None and (lexicon := named_lexicon(wanted.masking)) is not None:
        load_lexicon(lexicon)
        inputs.append(lexicon)
    if wanted is not None and wanted.start is not None:
        check_old_data(wanted.start.old_data)
        inputs += [find_checkpoint(wanted.start.checkpoint), *map(Path, wanted.start.old_data)]
    return inputs


def _figure(found: dict[str, Any], name: str) -> str:
    return f"{found[name]:.3f}{margin(found.get(f'{name}_interval'))}"


def _domain_lines(domains: dict[str, Any]) -> list[tuple[str, str]]:
    """What a training from a checkpoint brought on the new text and cost on the old."""
    return [
        (
            f"{name} text",
            f"{_figure(found['before'], 'loss')} nats per token before, {_figure(found['after'], 'loss')} after; "
            f"{_figure(found['before'], 'bits_per_token_byte')} bits per token byte before, "
            f"{_figure(found['after'], 'bits_per_token_byte')} after",
        )
        for name, found in domains.items()
        if found is not None
    ]
