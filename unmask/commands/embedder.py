"""From a masked language model and raw text to an embedding model, in the order in which data flows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from unmask.commands.embedder_pairs import PairData, TextPairs, pair_data, read_pairs
from unmask.commands.embedder_run import (
    MAY_DIFFER,
    EmbedderBudget,
    EmbedderFolder,
    EmbedderPlan,
    EmbedderRun,
    without_temperature,
)
from unmask.commands.embedder_settings import MINUTES, EmbedderSettings
from unmask.commands.embedder_texts import TokenTexts, read_texts
from unmask.commands.recipe import checkpoint_sha256, read_fitting_config
from unmask.commands.recipe_files import Overrides, apply_overrides, as_overrides, set_value
from unmask.commands.run_data import is_prepared
from unmask.core.errors import ModelError, SettingsError, UnmaskError
from unmask.core.files import file_sha256, typed, whole_folder, write_atomically, writing
from unmask.core.hub import lasting_name
from unmask.core.interruption import Interruption
from unmask.core.results import Finished, Reporter, Sheet, Shown, SilentReporter, duration, usual_reporter
from unmask.core.settings import validated
from unmask.data.data_folder import MANIFEST, load_manifest
from unmask.data.settings import CorpusSettings
from unmask.data.sources import InMemory, Named, Texts, find_sources, is_stream, keep_as_files, paths_or_texts
from unmask.model.card_head import CARD, Origin, base_models, change_card
from unmask.model.encoder import MaskedLM
from unmask.model.folder import find_weights, has_prediction_head, load_model, save_model
from unmask.model.pooling import SPLADE, sparse_file, write_sentence_files
from unmask.model.stored_weights import files_checked, write_checksums
from unmask.model.transformers import runs_in_transformers
from unmask.report.embedder import write_embedder_card, write_embedder_report
from unmask.search.known_items import HELD_OUT, held_out_rule
from unmask.tasks.predict import is_fine_tuned
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Callback
from unmask.train.distributed import Group, join_group, on_every_rank, on_rank_zero, rank_zero_first
from unmask.train.trackers import read_metrics

_SECTIONS = {"embedder", "corpus", "card"}


@dataclass(frozen=True)
class EmbedderChoice:
    """The settings of a training, by section."""

    embedder: EmbedderSettings
    corpus: CorpusSettings
    budget: EmbedderBudget


def chosen_embedder(
    overrides: Overrides,
    *,
    minutes: float | None,
    steps: int | None,
    seed: int | None,
    sparse: bool = False,
    held_out: CorpusSettings | None = None,
) -> EmbedderChoice:
    """The settings of a training.

    Args:
        overrides: `embedder.key=value`, `corpus.key=value` and `card.key=value`.
        minutes, steps: The budget; None of both: ten minutes.
        seed: Short for `embedder.seed`.
        sparse: Short for `embedder.sparse` by its defaults.
        held_out: How the text of the model that it begins with was read and held out, which are the defaults.

    Raises:
        SettingsError: One is of another section, not known, or has a value that it cannot have; or there are two
            budgets.
    """
    if minutes is not None and steps is not None:
        raise SettingsError("give one of minutes and steps", options=("minutes", "steps"))
    for name, value in (("minutes", minutes), ("steps", steps)):
        if value is not None and not 0 < value < math.inf:
            raise SettingsError(f"{name}={value}: give more than 0", options=(name,))
    values: dict[str, Any] = {}
    apply_overrides(values, as_overrides(overrides))
    if strangers := sorted(set(values) - _SECTIONS):
        raise SettingsError(
            f"{strangers[0]}: an embedder has the sections embedder (as in embedder.batch_size=512), corpus, which "
            "says how files are read, and card"
        )
    for name, value in values.get("card", {}).items():
        set_value(values, f"embedder.card.{name}", value)
    if seed is not None:
        set_value(values, "embedder.seed", seed)
    if sparse and not values.get("embedder", {}).get("sparse"):
        set_value(values, "embedder.sparse", {})
    corpus = (held_out or CorpusSettings()).model_dump()
    if "holdout" in values.get("embedder", {}):
        corpus["holdout"] = values["embedder"]["holdout"]
    return EmbedderChoice(
        validated(EmbedderSettings, values.get("embedder", {}), where="embedder"),
        validated(CorpusSettings, corpus | values.get("corpus", {}), where="corpus"),
        EmbedderBudget(MINUTES if minutes is None and steps is None else minutes, steps),
    )


@dataclass(frozen=True)
class Beginning:
    """The masked language model that a training begins with; `origin` is for the card."""

    folder: Path
    tokenizer: Tokenizer
    has_head: bool
    origin: Origin

    def load(self) -> MaskedLM:
        """A copy to be trained.

        Raises:
            ModelError: A file is damaged.
        """
        with files_checked(self.folder):
            return load_model(self.folder, mask_id=self.tokenizer.special.mask)


def beginning_with(model: str | Path, settings: EmbedderSettings) -> tuple[Beginning, EmbedderSettings]:
    """The model that a training is to begin with, and the settings with crops no longer than that takes.

    Raises:
        ModelError: It is not there, none of our encoder's, fine-tuned for a task, or has no head for masked tokens
            where these are to be learned.
        SettingsError: Even the shortest crops are longer than the model takes.
        TokenizerError: Its tokenizer cannot be used.
    """
    folder = find_weights(model, way_out="give the folder of a masked language model, such as RUN/model")
    if is_fine_tuned(folder):
        raise ModelError(
            f"{folder}: fine-tuned for a task, and no masked language model any more; give the model that it was made "
            "from"
        )
    if runs_in_transformers(folder):
        raise ModelError(
            f"{folder}: transformers runs this model, and not our encoder, which trains embedding models of the "
            "layouts of BERT, RoBERTa and ModernBERT; give one of these"
        )
    tokenizer = load_tokenizer(folder)
    config = read_fitting_config(folder, tokenizer)
    has_head = has_prediction_head(folder, config.layout)
    if not has_head and (settings.mlm_weight > 0.0 or settings.sparse is not None):
        what, way_out = "of which sparse vectors are made", "go without sparse vectors"
        if settings.sparse is None:
            what, way_out = "which are to be learned beside the pairs", "learn pairs alone (embedder.mlm_weight=0)"
        raise ModelError(
            f"{folder}: a bare encoder without a head for masked tokens, {what}; {way_out}, or give a masked language "
            "model"
        )
    room = config.max_position_embeddings - len(tokenizer.special.around)
    lengths = {"first_lengths": settings.first_lengths, "second_lengths": settings.second_lengths}
    if any(least > room for least, _ in lengths.values()):
        raise SettingsError(
            f"embedder.first_lengths and second_lengths begin with {settings.first_lengths[0]} and "
            f"{settings.second_lengths[0]} tokens, but the model has room for {room}; give shorter ones"
        )
    fitted = settings.model_copy(update={key: (least, min(most, room)) for key, (least, most) in lengths.items()})
    name = lasting_name(model, folder)
    origin = Origin(name, checkpoint_sha256(folder), base_models(name, folder))
    return Beginning(folder, tokenizer, has_head, origin), fitted


@dataclass(frozen=True)
class EmbedderRequest:
    """What is to be trained, checked before anything is read or written.

    Attributes:
        given: Texts to learn from beside pairs, as the user named them.
        pairs: The file of the user's pairs, if there is one.
        beginning: The model that it begins with.
        choice: The settings, as given.
        fitted: Those of the embedder, with crops that fit the model.
        maker: The run or embedder whose rule says what is held out; None: the default rule does.
    """

    given: list[Named]
    pairs: Path | None
    beginning: Beginning
    choice: EmbedderChoice
    fitted: EmbedderSettings
    maker: Path | None

    @property
    def files(self) -> list[Path]:
        """Those of the texts."""
        return [Path(name) for name in self.given if not isinstance(name, InMemory) and not is_stream(name)]

    @property
    def inputs(self) -> list[Path]:
        """All files and folders that are read."""
        return [self.beginning.folder, *self.files, *([] if self.pairs is None else [self.pairs])]


def requested(
    model: str | Path,
    corpus: Texts | None,
    pairs: str | Path | None,
    chosen: Callable[..., EmbedderChoice],
    *,
    begun: Path | None = None,
) -> EmbedderRequest:
    """Checks what a training is asked for.

    Args:
        model, corpus, pairs: As for `embedder`.
        chosen: `chosen_embedder`, but for `held_out`.
        begun: The folder of the model of a training that goes on, which says what it held out.

    Raises:
        UnmaskError: As `embedder`, of whatever can be known to be wrong by now.
    """
    if corpus is None and pairs is None:
        text = "give text to learn from: files or a folder, or pairs of your own"
        raise SettingsError(text, options=("pairs",))
    given = paths_or_texts(corpus) or []
    files = [name for name in given if not isinstance(name, InMemory) and not is_stream(name)]
    if files and not is_prepared(files):
        find_sources(files, announce=False)
    beginning, fitted = beginning_with(model, chosen().embedder)
    maker, held_out = held_out_rule(begun or beginning.folder)
    choice = chosen(held_out=held_out)
    return EmbedderRequest(given, None if pairs is None else Path(pairs), beginning, choice, fitted, maker)


def write_embedder(folder: EmbedderFolder, run: EmbedderRun, request: EmbedderRequest) -> dict[str, Any]:
    """Writes the model and, last, the summary, which is returned.

    Args:
        folder: Of the training.
        run: Over; its model has no temperature of its own any more.
        request: What was asked for.

    Raises:
        WriteError: A file cannot be written; the checkpoints are there, and the training goes on from the last.
    """
    beginning, settings = request.beginning, request.fitted
    temperature, state = run.temperature, run.state
    model, history = without_temperature(state.model), run.history
    config = model.config
    with writing(folder.model), whole_folder(folder.model) as partial:
        save_model(model, partial, with_head=beginning.has_head)
        length = config.max_position_embeddings
        beginning.tokenizer.save(partial, max_length=length, with_types=config.num_types > 1)
        pooling = settings.pooling if settings.sparse is None else SPLADE
        write_sentence_files(partial, max_length=length, width=run.width, pooling=pooling)
        write_checksums(partial)
    best = [line for line in history if state.best is not None and line["step"] == state.best.step]
    last = best[-1] if best and settings.patience is not None else history[-1] if history else None
    names = ("kinds", "mlm_loss")
    after = None if last is None else {name: last[name] for name in names}
    summary: dict[str, Any] = {
        "model": str(folder.model),
        "num_parameters": model.num_parameters,
        "dimension": run.width,
        "sparse": settings.sparse is not None,
        "dimensions": list(settings.dimensions_for(config.hidden_size)),
        "max_length": config.max_position_embeddings,
        "steps": state.step,
        "tokens_seen": state.tokens_seen,
        "seconds": state.seconds,
        "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
        "pairs_seen": run.stream.pairs_before(state.cursor),
        "temperature": temperature,
        "before": {name: history[0][name] for name in names} if history else None,
        "after": after,
        "recall_at_10": None if after is None else {kind: f["recall_at_10"] for kind, f in after["kinds"].items()},
        "nonzero": _nonzero(history[0] if history else None, after),
        "best_step": None if state.best is None else state.best.step,
        "data": run.data.facts,
        "device": model.encoder.device.type,
    }
    files = [path.name for path in (*request.files, *([] if request.pairs is None else [request.pairs]))]
    plain = settings.model_dump(mode="json", exclude={"card"})
    write_embedder_card(
        folder.model,
        summary=summary,
        settings=plain,
        card=settings.card,
        files=files or ["texts in memory"],
        origin=beginning.origin,
    )
    write_embedder_report(folder.report, summary=summary, settings=plain, metrics=read_metrics(folder.metrics))
    write_atomically(folder.summary, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def _nonzero(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, float] | None:
    """Numbers of a held-out text's vector that are not 0, on average over all texts; None where vectors are dense."""
    if before is None or after is None or any(f["nonzero"] is None for f in after["kinds"].values()):
        return None
    kinds = {"before": before["kinds"].values(), "after": after["kinds"].values()}
    return {
        name: sum(figures["nonzero"] * figures["pairs"] for figures in each) / sum(figures["pairs"] for figures in each)
        for name, each in kinds.items()
    }


class OpenedData(NamedTuple):
    """Pairs, and a fingerprint of all that decides the weights."""

    pairs: PairData
    fingerprint: str


def open_data(folder: EmbedderFolder, request: EmbedderRequest, reporter: Reporter, *, goes_on: bool) -> OpenedData:
    """Reads texts and pairs, and writes texts and what the training is about into a new folder.

    Args:
        folder: Of the training.
        request: What is asked for.
        reporter: Told of what is found.
        goes_on: Whether the folder holds the training already; then its texts are not read again.

    Raises:
        UnmaskError: Text or pairs cannot be read or used, or the folder holds another training.
    """
    text_pairs: TextPairs | None = None
    if request.pairs is not None:
        text_pairs = read_pairs(request.pairs, request.fitted.columns)
    texts, is_kept = None, goes_on and folder.texts.is_file()
    if request.given and is_kept:
        texts = TokenTexts.load(folder.texts)
    elif request.given:
        files = list(keep_as_files(request.given, folder.root, kept=goes_on, notify=reporter.notify))
        texts = read_texts(
            files,
            request.beginning.tokenizer,
            request.choice.corpus,
            given=() if text_pairs is None else text_pairs.answers,
            note=reporter.note,
            notify=reporter.notify,
        )
    # What the training is about; of this, what decides the weights wherever its files lie is the fingerprint.
    choice, origin = request.choice, request.beginning.origin
    rule = choice.corpus
    if request.files and is_prepared(request.files):  # prepared data has a rule of its own
        manifest = load_manifest(request.files[0])
        where = str(request.files[0] / MANIFEST)
        rule = validated(CorpusSettings, manifest.settings["corpus"], where=where)
    content = {
        "model": origin.checkpoint,
        "model_sha256": origin.sha256,
        "corpus_files": [str(path.absolute()) for path in request.files],
        "pairs_file": None if request.pairs is None else str(request.pairs.absolute()),
        "pairs_sha256": None if request.pairs is None else file_sha256(request.pairs),
        "texts_sha256": None if texts is None else texts.fingerprint,
        HELD_OUT: rule.model_dump(mode="json"),
        "embedder": choice.embedder.model_dump(),
        "minutes": choice.budget.minutes,
        "steps": choice.budget.steps,
    }
    deciding = {key: value for key, value in content.items() if key not in MAY_DIFFER}
    deciding["embedder"] = request.fitted.model_dump(mode="json", exclude={"card"})
    fingerprint = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
    if goes_on:
        folder.check_same(content)
    data = pair_data(texts, text_pairs, request.beginning.tokenizer, request.fitted, note=reporter.note)
    if texts is not None and not is_kept:
        texts.save(folder.texts)
    if not goes_on:
        folder.begin(content)
    return OpenedData(data, fingerprint)


@dataclass(frozen=True, repr=False)
class Embedder(Finished):
    """A finished embedding model. What its summary says stands in attributes, too: `found.recall_at_10`."""

    @cached_property
    def model(self) -> Any:
        """The model, as `unmask.load` gives it."""
        from unmask.tasks.loaded_model import load

        return load(self.folder / "model")

    def shown(self) -> Iterator[Shown]:
        """How well held-out texts find their partners, before and after, and what to do next."""
        s = self.summary
        if s["after"] is not None:
            before, after = s["before"]["kinds"], s["after"]["kinds"]
            rows = []
            for kind, figures in after.items():
                recalls = [each[kind][key] for key in ("recall_at_1", "recall_at_10") for each in (before, after)]
                rows.append((kind, f"{figures['pairs']:,}", *(f"{recall:.1%}" for recall in recalls)))
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
    callbacks: Sequence[Callback] = (),
    reporter: Reporter | None = None,
) -> Embedder:
    """Makes an embedding model for search of a masked language model and text without labels.

    Args:
        model: Folder of a masked language model, such as RUN/model, or its name on the hub.
        corpus: Files, folders or patterns of text, - for standard input, or data prepared with the model's tokenizer;
            in Python also texts in memory (see `unmask.data.sources`). By default only your own pairs.
        out: Folder of the result.
        minutes: Minutes of training. By default 10.
        steps: Steps of training, instead of minutes.
        pairs: Pairs of your own: CSV, JSONL or Parquet with query, text, perhaps negative or label.
        sparse: Sparse vectors (SPLADE), a number for each token of the vocabulary.
        seed: Of order, crops and masks. By default 0.
        settings: `embedder.key=value`, `corpus.key=value` and `card.key=value` overrides, or a dict of them.
        resume: Go on with the training in `out`.
        overwrite: Replace what is in `out`.
        callbacks: Called as it trains, see `unmask.Callback`.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        Interrupted: SIGINT or SIGTERM; the state was saved.
    """
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_main else SilentReporter()
    folder = EmbedderFolder(Path(out))
    chosen = partial(chosen_embedder, settings, minutes=minutes, steps=steps, seed=seed, sparse=sparse)
    begun = folder.model if resume and folder.claimed.is_claimed else None
    request = on_every_rank(group, lambda: requested(model, corpus, pairs, chosen, begun=begun))
    with Interruption() as interruption, ExitStack() as held:
        goes_on = on_rank_zero(
            group, lambda: _claim(folder, request, held, reporter, resume=resume, overwrite=overwrite)
        )
        if goes_on is None:
            return Embedder(folder.root, folder.read_summary())
        try:
            run = on_every_rank(group, lambda: begin_run(folder, request, reporter, group, goes_on=goes_on))
        except UnmaskError:
            if not goes_on and group.is_main:  # nothing was begun: the next try shall not be told of it
                folder.clear()
            raise
        run.run(interruption, callbacks)
        reporter.note("writing the model")
        return Embedder(folder.root, on_rank_zero(group, lambda: write_embedder(folder, run, request)))


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
    group: Group,
    *,
    goes_on: bool,
) -> EmbedderRun:
    """Opens the data, which the first process reads and the others find in the folder, and makes the model.

    Args:
        folder: Of the training.
        request: What is asked for.
        reporter: Told of what is found.
        group: The processes that train together.
        goes_on: Whether the folder holds the training already.

    Raises:
        UnmaskError: As `open_data`, or a file of the model is damaged.
    """
    data = rank_zero_first(group, lambda: open_data(folder, request, reporter, goes_on=goes_on or not group.is_main))
    beginning = request.beginning
    goes_on_sparse = sparse_file(beginning.folder) is not None
    plan = EmbedderPlan(request.fitted, request.choice.budget, data.fingerprint, goes_on_sparse)
    return EmbedderRun(folder, beginning.load(), beginning.tokenizer, data.pairs, plan, reporter, group)
