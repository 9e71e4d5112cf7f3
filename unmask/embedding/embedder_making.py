"""From a masked language model and raw text to an embedding model, in the order in which data flows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from unmask.embedding.embedder_data import open_data
from unmask.embedding.embedder_folder import EmbedderFolder
from unmask.embedding.embedder_request import EmbedderRequest, chosen_embedder, requested
from unmask.embedding.embedder_result import write_embedder
from unmask.embedding.embedder_run import EmbedderPlan, EmbedderRun
from unmask.errors import UnmaskError
from unmask.files import typed
from unmask.folders.card_head import CARD, change_card
from unmask.folders.sentence_files import sparse_file
from unmask.pretraining.run_reporter import Reporter, SilentReporter, usual_reporter
from unmask.pretraining.training_run import Interruption
from unmask.progress import duration
from unmask.recipe.overrides import Overrides
from unmask.results import Finished, Sheet, Shown
from unmask.text.given import Texts
from unmask.training.group import Group, alike, by_first, first_before_others, join_group


@dataclass(frozen=True, repr=False)
class Embedder(Finished):
    """A finished embedding model. What its summary says stands in attributes, too: `found.recall_at_10`."""

    @cached_property
    def model(self) -> Any:
        """The model, as `unmask.load` gives it."""
        from unmask.using.loaded_model import load

        return load(self.folder / "model")

    def shown(self) -> Iterator[Shown]:
        """How well held-out texts find their partners, before and after, and what to do next."""
        s = self.summary
        if s["after"] is not None:
            before, after = s["before"]["kinds"], s["after"]["kinds"]
            rows = [
                (
                    kind,
                    f"{found['pairs']:,}",
                    *(f"{each[kind][key]:.1%}" for key in ("recall_at_1", "recall_at_10") for each in (before, after)),
                )
                for kind, found in after.items()
            ]
            heads = ("held-out pairs", ">number", ">recall@1 before", ">after", ">recall@10 before", ">after")
            yield Sheet(heads, rows)
            if s["after"]["mlm_loss"] is not None:
                yield (
                    f"\nmasked tokens  loss {s['before']['mlm_loss']:.3f} before, {s['after']['mlm_loss']:.3f} after"
                )
        if s["nonzero"] is not None:
            yield (
                f"\nsparse vectors {s['nonzero']['after']:,.0f} of {s['dimension']:,} numbers are not 0, "
                f"{s['nonzero']['before']:,.0f} before"
            )
        yield f"trained        {s['steps']:,} steps, {s['tokens_seen']:,} tokens in {duration(s['seconds'])}"
        yield f"speed          {s['tokens_per_second']:,.0f} tokens a second"
        yield f"model          {s['model']}"
        yield f"report         {self.folder / 'report.html'}"
        model = typed(s["model"])
        use = f"search index {model} FILES --out INDEX" if s["sparse"] else f"embed {model} FILE --out vectors.npy"
        yield f"\nTry it: unmask {use}"
        yield f"Measure it beside the words alone: unmask evaluate-search {model} CORPUS"


def embedder(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path,
    corpus: Texts | None = None,
    *,
    out: str | Path,
    minutes: float | None = None,
    steps: int | None = None,
    pairs: str | Path | None = None,
    sparse: bool = False,
    seed: int | None = None,
    settings: Overrides = (),
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Embedder:
    """Makes an embedding model of a masked language model and text without labels.

    Args:
        model: Folder of a masked language model (BERT, RoBERTa or ModernBERT), of a run, or its name on the hub.
        corpus: Files, folders or patterns of text, one folder of data that was prepared with the model's tokenizer, or
            texts in memory (see `unmask.text.given`). None: only the user's pairs.
        out: Folder of the result.
        minutes: Budget in minutes of training; 10 where no budget is given.
        steps: Budget in steps.
        pairs: A table of pairs of the user's own: `query`, `text`, perhaps `negative` or `label`.
        sparse: Whether vectors are sparse (SPLADE), one number for each token of the vocabulary.
        seed: Of order, crops and masks; None: 0.
        settings: `embedder.key=value` overrides of `EmbedderSettings`, `corpus.key=value`, `card.key=value`, or a dict.
        resume: Go on with the training in `out`, begun with the same model, text and settings (from the beginning where
            there is none). What is asked for of the card may be new.
        overwrite: Replace what is in `out`.
        reporter: Told of the progress; None logs.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        Interrupted: SIGINT or SIGTERM; the state was saved.
    """
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_first else SilentReporter()
    folder = EmbedderFolder(Path(out))
    chosen = partial(chosen_embedder, settings, minutes=minutes, steps=steps, seed=seed, sparse=sparse)
    begun = folder.model if resume and folder.claimed.is_claimed else None
    request = alike(group, lambda: requested(model, corpus, pairs, chosen, begun=begun))
    with Interruption() as interruption, ExitStack() as held:
        goes_on = by_first(group, lambda: _claim(folder, request, held, reporter, resume=resume, overwrite=overwrite))
        if goes_on is None:
            return Embedder(folder.root, folder.read_summary())
        try:
            run = alike(group, lambda: begin_run(folder, request, reporter, interruption, group, goes_on=goes_on))
        except UnmaskError:
            if not goes_on and group.is_first:  # nothing was begun: the next try shall not be told of it
                folder.clear()
            raise
        reporter.begin(may_end_early=request.fitted.patience is not None)
        run.run()
        reporter.note("writing the model")
        return Embedder(folder.root, by_first(group, lambda: write_embedder(folder, run, request)))


def _claim(
    folder: EmbedderFolder,
    request: EmbedderRequest,
    held: ExitStack,
    reporter: Reporter,
    *,
    resume: bool,
    overwrite: bool,
) -> bool | None:
    """Claims the folder, as it was asked for; whether what it holds goes on. None: that is finished."""
    claimed = folder.claimed
    claimed.check(resume=resume, overwrite=overwrite, inputs=request.inputs)
    held.enter_context(claimed.held())
    claimed.check(resume=resume, overwrite=overwrite)  # again: nobody else comes from now on
    goes_on = resume and claimed.is_claimed
    if overwrite:
        folder.clear()
    if goes_on and folder.summary.is_file():
        folder.read_summary()
        if change_card(folder.model, request.fitted.card):
            reporter.note(f"{folder.model / CARD} was changed as asked for")
        reporter.note(f"the embedder in {folder.root} is finished: nothing is left to do")
        return None
    if request.maker is not None and request.given and not goes_on:
        reporter.note(f"text is read and held out as in {request.maker}, but for what --set corpus says")
    return goes_on


def begin_run(
    folder: EmbedderFolder,
    request: EmbedderRequest,
    reporter: Reporter,
    interruption: Interruption,
    group: Group,
    *,
    goes_on: bool,
) -> EmbedderRun:
    """Opens the data, which the first process reads and the others find in the folder, and makes the model.

    Args:
        folder: Of the training.
        request: What is asked for.
        reporter: Told of what is found.
        interruption: Asked after every step.
        group: The processes that train together.
        goes_on: Whether the folder holds the training already.

    Raises:
        UnmaskError: As `open_data`, or a file of the model is damaged.
    """
    data = first_before_others(
        group, lambda: open_data(folder, request, reporter, goes_on=goes_on or not group.is_first)
    )
    beginning = request.beginning
    goes_on_sparse = sparse_file(beginning.folder) is not None
    plan = EmbedderPlan(request.fitted, request.choice.budget, data.fingerprint, goes_on_sparse)
    return EmbedderRun(folder, beginning.load(), beginning.tokenizer, data.pairs, plan, reporter, interruption, group)
