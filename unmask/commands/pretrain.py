"""Pretrains a model on raw text: the request, the assembly in data-flow order, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from unmask.commands.recipe import Recipe, load_recipe, requested_recipe, without_files
from unmask.commands.recipe_files import Override, Overrides, as_overrides
from unmask.commands.run_data import (
    START_ANEW,
    RunFolder,
    check_before_text,
    data_from_checkpoint,
    obtain_data,
    packaged_corpus,
    refuse_other_data,
)
from unmask.commands.sizing import sized_recipe, sizes_of, with_sizes
from unmask.commands.training_run import TrainingRun
from unmask.core.errors import RunError, UnmaskError, without_secrets
from unmask.core.files import typed
from unmask.core.hub import local_path
from unmask.core.interruption import Interruption
from unmask.core.public import public
from unmask.core.remote import Output, address_of, lasting_source, output_at, path_at, source_named
from unmask.core.results import Facts, Hint, Reporter, Shown, Styled, documents, duration, margin
from unmask.data.data_folder import data_folder, is_prepared
from unmask.data.sources import InMemory, Texts, find_sources, has_match, is_stream, keep_as_files, paths_or_texts
from unmask.masking.settings import AnyStrategy, add_kind
from unmask.masking.tables import named_files
from unmask.model.folder import find_weights
from unmask.tasks.loaded_model import FinishedModel
from unmask.tokenizer.trainers import TokenizerKind
from unmask.train.callbacks import Callback
from unmask.train.distributed import OF_RUN, check_same, join_with, on_rank_zero, rank_zero_first
from unmask.train.hardware import choose_device, why_not_compiled
from unmask.train.trainer import Trainer

_MANY = 20  # epochs, after which a text teaches little more
DOMAIN_FIGURES = {"loss": "nats per token", "bits_per_token_byte": "bits per byte of hidden tokens"}


class Run(FinishedModel):
    """A finished run. The fields of its summary are attributes, too: `run.validation_loss`."""

    num_parameters: int
    vocab_size: int
    steps: int
    tokens_seen: int
    epochs: float
    seconds: float  # of training; with a budget in minutes, evaluations, too
    tokens_per_second: float
    # On held-out text, in nats per predicted token; intervals are of 95 %, over documents, None with too few of them.
    validation_loss: float
    validation_loss_stderr: float | None
    validation_loss_interval: list[float] | None
    validation_accuracy: float
    validation_perplexity: float
    bits_per_token_byte: float
    bits_per_token_byte_interval: list[float] | None
    predicted_tokens: int
    validation_documents: int
    validation_unit: str  # `documents` or `groups`
    validation_within: str | None  # what is held out, if the rest of its files is trained on
    validation_warning: str | None  # if there are few documents, also of the old text
    unigram_entropy: float  # the loss of token frequencies alone
    on_plateau: bool  # whether the loss is about that, or higher
    objectives: dict[str, dict[str, float]]  # besides masked tokens
    best_step: int | None
    model_step: int  # the last, or the best if that predicted the held-out text clearly better
    mask_token: str  # how the tokenizer spells its mask
    data_fingerprint: str
    near_duplicates: dict[str, Any] | None
    torch: str
    device: str
    # Only if training started from a checkpoint: facts on it, and figures on new and old text before and after.
    start: dict[str, Any]
    domains: dict[str, dict[str, dict[str, Any]] | None]

    def shown(self) -> Iterator[Shown]:
        s = self.summary

        def figure(figures: dict[str, Any], name: str) -> str:
            return f"{figures[name]:.3f}{margin(figures.get(f'{name}_interval'))}"

        gain, entropy = s["unigram_entropy"] - s["validation_loss"], s["unigram_entropy"]
        lines = [
            ("held-out loss", f"{figure(s, 'validation_loss')} nats per predicted token"),
            ("", f"{abs(gain):.2f} {'better' if gain >= 0 else 'worse'} than word frequencies alone ({entropy:.3f})"),
            ("accuracy", f"{s['validation_accuracy']:.1%} of {s['predicted_tokens']:,} hidden tokens"),
            ("bits per byte", f"{figure(s, 'bits_per_token_byte')} of hidden tokens"),
        ]
        domains = s.get("domains") or {}  # if training started from a checkpoint
        if s.get("validation_loss_interval") is not None:
            old = domains.get("old")
            of_old = "" if old is None else f"; of the old text over {old['after']['documents']:,} documents"
            lines.append(("", f"±: 95 % interval over {documents(s)} held out{of_old}"))
        if s.get("validation_within") is not None:
            lines.append(("", f"held out: {s['validation_within']}"))
        for name, figures in s.get("objectives", {}).items():
            lines.append((name.replace("_", " "), f"{figures['accuracy']:.1%} of {figures['count']:,} right"))
        for name, figures in domains.items():
            if figures is not None:
                losses, bits = (
                    f"{figure(figures['before'], key)} {unit} before, {figure(figures['after'], key)} after"
                    for key, unit in DOMAIN_FIGURES.items()
                )
                lines.append((f"{name} text", f"{losses}; {bits}"))
        lines.append(("trained", f"{s['steps']:,} steps, {s['tokens_seen']:,} tokens in {duration(s['seconds'])}"))
        if s["steps"] >= 10 and s["seconds"] >= 1.0:
            lines.append(("speed", f"{s['tokens_per_second']:,.0f} tokens a second"))
        as_of = "" if s["model_step"] == s["steps"] else f", as of step {s['model_step']:,}"
        lines += [("model", s["model"] + as_of), ("report", str(self.folder / "report.html"))]
        yield Facts(lines)
        if (warning := s.get("validation_warning")) is not None:
            yield Styled(f"\n{warning}", "yellow")
        if s["on_plateau"]:
            longer, more = "train longer (--minutes, --steps)", f"give more text: it was seen {s['epochs']:.0f} times"
            way_out = more if s["epochs"] >= _MANY or as_of else longer
            yield Styled(f"\nno better than word frequencies: {way_out}", "yellow")
        else:
            text = f'"... {s["mask_token"]} ..."'
            yield Hint(f"unmask fill {typed(s['model'])} {text}", f"unmask.load({s['model']!r}).fill({text})")


@public
def pretrain(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    paths: Texts | None = None,
    *,
    out: str | Path,
    recipe: str | Path | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    strategy: AnyStrategy | None = None,
    tokenizer: str | Path | None = None,
    tokenizer_kind: TokenizerKind | None = None,
    vocab_size: int | None = None,
    encoding: str | None = None,
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
        recipe: Name of a recipe (see unmask recipes) or a .toml file. By default auto, which fits the size to the
            minutes; tiny if a size, steps or tokens are set; continue with a checkpoint.
        minutes: Minutes of training.
        steps: Optimizer steps, instead of minutes.
        tokens: Tokens of text to train on, instead of minutes.
        strategy: Masking strategy (see unmask masks); in Python also settings of units, of weights, or of both.
        tokenizer: tokenizer.json, vocab.txt, their folder, or a name on the hub. By default one is trained.
        tokenizer_kind: Kind of tokenizer to train; bpe is byte-level. By default wordpiece.
        vocab_size: Entries of the trained tokenizer. By default chosen to fit the text.
        encoding: Encoding of text that is not Unicode, such as cp1252.
        seed: Seed of weights, order and masks.
        settings: `section.key=value` overrides of the recipe, or a dict of them.
        from_: Start from this model: its folder, a run's folder, or a name on the hub. By default weights are new.
        extend_vocab: With a checkpoint: number of new words to add to the vocabulary.
        old_data: With a checkpoint: text of its old domain, to evaluate on before and after. By default the validation
            split of the checkpoint's run.
        resume: Continue the run in `out` from its last checkpoint.
        overwrite: Remove the run in `out` and start over.
        callbacks: Called during training; see `unmask.Callback`.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        KeyboardInterrupt: SIGINT or SIGTERM; the state was saved.
    """
    options: dict[str, Any] = {
        "recipe": recipe, "minutes": minutes, "steps": steps, "tokens": tokens, "strategy": strategy,
        "tokenizer": tokenizer, "tokenizer_kind": tokenizer_kind, "vocab_size": vocab_size, "seed": seed,
        "from_": from_, "extend_vocab": extend_vocab, "old_data": old_data, "encoding": encoding,
    }  # fmt: skip
    for each in strategy if isinstance(strategy, tuple) else (strategy,):
        add_kind(each)  # in every process, since each reads the recipe
    group, reporter = join_with(reporter)
    with Interruption() as interruption, ExitStack() as stack:
        outputs: list[Output] = []  # only on rank 0

        def begin() -> dict[str, Any]:
            claim = output_at(out, lambda root: RunFolder(root).claimed, resume=resume, overwrite=overwrite)
            outputs.append(stack.enter_context(claim))
            folder, overrides = RunFolder(outputs[0].path), as_overrides(settings)
            return _begin(folder, paths, options, overrides, stack, reporter, resume=resume, overwrite=overwrite)

        begun = on_rank_zero(group, begin)
        folder = RunFolder(Path(begun["root"]))
        if begun["is_finished"]:
            return Run.reopened(folder.root, "remove it to evaluate the run again")

        def opened() -> TrainingRun:
            sources = begun["sources"]
            if not data_folder(folder.data).is_claimed:  # once its data is complete, a run needs its text no more
                sources = list(map(source_named, sources))  # each machine has its own copies of remote files
            resolved = load_recipe(str(folder.recipe), complete=False)
            if resolved.start is None:
                data = obtain_data(sources, folder.data, resolved, reporter)
            else:
                data = data_from_checkpoint(sources, folder, resolved, reporter)
            if resolved.sizing is not None:
                resolved = sized_recipe(resolved, data, reporter, processes=group.world_size)
                folder.claimed.claim(resolved.to_toml())  # for the other ranks, and for when the run is resumed
            return TrainingRun(folder, resolved, data, reporter, group)

        try:
            training = rank_zero_first(group, opened)
            check_same(group, {OF_RUN: training.fingerprint})  # a path may lead to other files on another machine
            if group.is_main:
                folder.claimed.remove_replaced()
        except UnmaskError:
            if begun["is_new"] and group.is_main:  # no run was made: frees the folder for the next try
                kept = set() if path_at(out) is None else {folder.data.name}  # it may have taken hours
                folder.claimed.clear(set(folder.claimed.ours) - kept)
            raise
        summary = training.run(interruption, [*callbacks, *map(SendCheckpoints, outputs)])
        if group.is_main and begun["sources"] != folder.read_sources():  # the prepared data was moved
            folder.write_sources(begun["sources"])
    if path_at(out) is None:
        reporter.note(f"the run is stored at {without_secrets(str(address_of(out)))}")
    return Run(folder.root, summary)


class SendCheckpoints(Callback):
    """Uploads a run's files to the address of its output after each checkpoint."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
        self._output.put()


def _begin(
    folder: RunFolder,
    texts: Texts | None,
    options: dict[str, Any],
    overrides: Sequence[Override],
    stack: ExitStack,
    reporter: Reporter,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any]:
    """Claims the folder until the stack is closed, and writes the run's sources and recipe into it.

    Returns its `root` and `sources`, whether the run is new (`is_new`), and whether it `is_finished`.
    """
    is_new = not (resume and folder.claimed.is_claimed)
    named = paths_or_texts(texts)
    recipe = None
    if is_new or overrides or any(value is not None for value in options.values()):
        recipe = requested_recipe(**options, settings=overrides)  # a run can be resumed without one

    # Inputs are opened before the folder is touched, and so before a long preparation.
    paths = [path for path in named if not isinstance(path, InMemory) and not is_stream(path)]
    inputs = check_inputs(paths, recipe, is_new=is_new)
    stack.enter_context(folder.claimed.entered(resume=resume, overwrite=overwrite, inputs=inputs))

    if not folder.claimed.is_claimed:
        if resume and not named:  # a mistyped folder, most likely: a new run would be on the packaged text
            raise RunError(f"{folder.root}: no run to resume; correct the folder, or give the text", options=["out"])
        if resume:
            reporter.note(f"no run to resume in {folder.root}: starting a new one")
        assert recipe is not None, "a new run has a recipe"
        refuse_other_data(folder.data, paths)
        files = keep_as_files(named or [packaged_corpus()], folder.root, notify=reporter.notify)
        sources = [lasting_source(Path(path).absolute()) for path in files]
        folder.write_sources(sources)
        folder.claimed.claim(recipe.to_toml())
        return {"root": str(folder.root), "sources": sources, "is_new": True, "is_finished": False}

    # The run resumes with the sources and the settings that it was started with.
    sources = _sources_to_resume(folder, paths if len(paths) == len(named) else [])
    if any(isinstance(name, InMemory) or is_stream(name) for name in named):
        reporter.note("resuming with the text that the run was started with; what is passed now is ignored")
    old = load_recipe(str(folder.recipe), complete=False)
    if recipe is not None:
        if recipe.sizing is not None and old.sizing is None:
            recipe = with_sizes(recipe, sizes_of(old))
        may_differ = {"description", "training.micro_batch_tokens", "evaluation.trackers"}
        before, now = (without_files(each.model_dump()) for each in (old, recipe))
        folder.claimed.check_same(before, now, but_for=may_differ)
        if recipe.evaluation != old.evaluation:
            reporter.note(f"resuming with evaluation.trackers = {list(recipe.evaluation.trackers)}")
        if recipe != old:
            folder.claimed.claim(recipe.to_toml())
    if is_finished := folder.summary.is_file():
        reporter.note(f"the run in {folder.root} is already finished")
    return {"root": str(folder.root), "sources": sources, "is_new": False, "is_finished": is_finished}


def _sources_to_resume(folder: RunFolder, paths: Sequence[Any]) -> list[str]:
    """The sources that a run was started on, which paths must equal, if there are any. If they are gone, a prepared
    folder takes their place, since it may have been moved: checkpoints are tied to the content of data, and without one
    the run begins anew."""
    sources, now = folder.read_sources(), [lasting_source(Path(path).absolute()) for path in paths]
    first = sources[0]
    is_gone = not (has_match(first) or address_of(first) or folder.data.exists() or folder.summary.is_file())
    if is_gone and is_prepared(paths):
        return now
    if is_gone and not paths:
        raise RunError(f"{folder.root}: {first}, which it was started on, is gone; give the new path of prepared data")
    if paths and now != sources:
        raise RunError(
            f"{folder.root}: the run was started on {', '.join(sources)}; leave the paths out, or {START_ANEW}",
            options=["overwrite"],
        )
    return sources


def check_inputs(paths: Sequence[Any], recipe: Recipe | None, *, is_new: bool) -> list[Path]:
    """Opens the inputs, and returns the paths of all, also of those that only settings name. Checks what is known of a
    new run before its text is prepared."""
    start = None if recipe is None else recipe.start
    old = () if start is None else start.old_data
    held = () if recipe is None else recipe.corpus.validation
    prepares = is_new and not is_prepared(paths)  # prepared data holds what was held out
    for texts in (paths, old, held if prepares else ()):
        if texts and not is_prepared(texts):
            find_sources(texts, announce=False)
    inputs = [Path(path) for path in (*paths, *old, *held)]
    if recipe is not None:
        inputs += map(Path, named_files(recipe.masking))
        if prepares:
            check_before_text(recipe)
        if recipe.tokenizer.path is not None:
            inputs.append(local_path(recipe.tokenizer.path, weights=False))
        if recipe.training.compile_blocks == "yes":
            why_not_compiled("yes", choose_device())  # an error if that is impossible
    if start is not None:
        inputs.append(find_weights(start.checkpoint))
    return inputs
