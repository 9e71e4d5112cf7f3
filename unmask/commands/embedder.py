"""From a masked language model and raw text to an embedding model, or to a forecast of it, in the order of the data."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unmask.commands.dry_run import Forecast, measure_steps, memory_fact, training_fact
from unmask.commands.embedder_pairs import KINDS, PairData, pair_data, read_pairs
from unmask.commands.embedder_run import EmbedderFolder, EmbedderRun, training_settings
from unmask.commands.embedder_settings import MINUTES, EmbedderSettings
from unmask.commands.embedder_texts import TokenTexts, read_texts
from unmask.commands.recipe import checkpoint_sha256, read_fitting_config
from unmask.commands.recipe_files import Overrides, section_values
from unmask.commands.run_data import is_prepared
from unmask.core.errors import ModelError, RunError, SettingsError, UnmaskError
from unmask.core.files import file_sha256, read_object, typed, whole_folder, write_atomically, writing
from unmask.core.hub import lasting_name
from unmask.core.interruption import Interruption
from unmask.core.results import Finished, Reporter, Sheet, Shown, SilentReporter, duration, usual_reporter
from unmask.core.settings import validated
from unmask.data.data_folder import MANIFEST, load_manifest
from unmask.data.settings import CorpusSettings
from unmask.data.sources import InMemory, Named, Texts, find_sources, is_stream, keep_as_files, paths_or_texts
from unmask.model.card_head import CARD, Origin, base_models, change_card
from unmask.model.folder import find_weights, has_prediction_head, load_model, save_model
from unmask.model.pooling import SPLADE, sparse_file, write_sentence_files
from unmask.model.stored_weights import files_checked, write_checksums
from unmask.model.transformers import runs_in_transformers
from unmask.report.embedder import RECALL_HEADS, recall_rows, write_embedder_card, write_embedder_report
from unmask.search.known_items import HELD_OUT, held_out_rule
from unmask.tasks.predict import is_fine_tuned
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.callbacks import Callback
from unmask.train.distributed import Group, join_group, on_every_rank, on_rank_zero, rank_zero_first
from unmask.train.trackers import read_metrics

MAY_DIFFER = {"embedder.card", "model", "corpus_files", "pairs_file"}  # the last three may have moved


@dataclass(frozen=True, repr=False)
class Embedder(Finished):
    """A finished embedding model. What its summary says stands in attributes, too: `result.recall_at_10`."""

    @cached_property
    def model(self) -> Any:
        """The model, as `unmask.load` gives it."""
        from unmask.tasks.loaded_model import load

        return load(self.folder / "model")

    def shown(self) -> Iterator[Shown]:
        """How well held-out texts find their partners, before and after, and what to do next."""
        s = self.summary
        if s["after"] is not None:
            first, *numbers = RECALL_HEADS
            yield Sheet((first, *(f">{head}" for head in numbers)), recall_rows(s))
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


@dataclass(frozen=True)
class EmbedderPlan:
    """A training, checked before anything is read or written."""

    model: Path  # folder of the masked language model that it begins with
    tokenizer: Tokenizer
    has_head: bool
    origin: Origin  # what the model is, for the card
    texts: Sequence[Named]  # to learn from beside pairs, as the user named them
    files: Sequence[Path]  # those of them that are files
    pairs: Path | None  # of the user's own
    settings: EmbedderSettings  # as the user set them
    fitted: EmbedderSettings  # the same with crops that fit the model
    corpus: CorpusSettings  # how text is read and held out
    minutes: float | None  # the budget, or
    steps: int | None
    maker: Path | None  # the run or embedder whose rule says what is held out; None: the default rule does

    @property
    def inputs(self) -> list[Path]:
        """Files of texts and pairs."""
        return [*self.files, *([] if self.pairs is None else [self.pairs])]


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
    claimed = folder.claimed
    begun = folder.model if resume and claimed.is_claimed else None
    plan = on_every_rank(
        group,
        lambda: plan_embedder(
            model, corpus, pairs=pairs, minutes=minutes, steps=steps, seed=seed, sparse=sparse, settings=settings,
            begun=begun,
        ),
    )  # fmt: skip
    with Interruption() as interruption, ExitStack() as held:

        def claim() -> bool | None:
            """Whether what the folder holds goes on; None: it is finished."""
            claimed.check(resume=resume, overwrite=overwrite, inputs=[plan.model, *plan.inputs])
            held.enter_context(claimed.held())
            claimed.check(resume=resume, overwrite=overwrite)  # again: no other process comes from now on
            goes_on = resume and claimed.is_claimed
            if overwrite:
                claimed.clear(claimed.ours)
            if goes_on and folder.summary.is_file():
                if change_card(folder.model, plan.fitted.card):
                    reporter.note(f"{folder.model / CARD} was changed")
                reporter.note(f"the embedder in {folder.root} is finished: nothing is left to do")
                return None
            if plan.maker is not None and plan.texts and not goes_on:
                reporter.note(f"text is read and held out as in {plan.maker}, but for what --set corpus says")
            return goes_on

        goes_on = on_rank_zero(group, claim)
        if goes_on is None:
            return Embedder.reopened(folder.root, "remove it, and the model is measured again")
        try:
            run = on_every_rank(group, lambda: begin_run(folder, plan, reporter, group, goes_on=goes_on))
        except UnmaskError:
            if not goes_on and group.is_main:  # nothing was begun, and the next try may use the folder
                claimed.clear(claimed.ours)
            raise
        run.run(interruption, callbacks, is_sparse=sparse_file(plan.model) is not None)
        reporter.note("writing the model")
        return Embedder(folder.root, on_rank_zero(group, lambda: write_embedder(folder, run, plan)))


def forecast_embedder(
    model: str | Path, corpus: Texts | None = None, *, reporter: Reporter | None = None, **options: Any
) -> Forecast:
    """What `embedder` would do with the same options. All text is read; what is made of it goes with the answer."""
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_main else SilentReporter()
    plan = on_every_rank(group, lambda: plan_embedder(model, corpus, **options))
    if any(not isinstance(name, InMemory) and is_stream(name) for name in plan.texts):
        raise RunError("--dry-run would use standard input or a pipe up; give a file")
    with ExitStack() as held:
        scratch = on_rank_zero(group, lambda: held.enter_context(tempfile.TemporaryDirectory(prefix="unmask-")))
        folder = EmbedderFolder(Path(scratch) / "embedder")
        run = on_every_rank(group, lambda: begin_run(folder, plan, reporter, group, goes_on=False))
        run.begin_sparse(is_sparse=sparse_file(plan.model) is not None)
        measured, facts = measure_steps(run.trainer), run.data.facts
    pairs = {kind: facts[key] for kind, key in zip((*KINDS, "given"), (*KINDS, "given_pairs"), strict=True)
             if key in facts}  # fmt: skip
    figures = {
        **{name: facts.get(name, 0) for name in ("documents", "held_out_documents", "tokens")},
        "pairs": pairs,
        "num_parameters": run.state.model.num_parameters,
        "dimension": run.dimension,
        "sparse": plan.fitted.sparse is not None,
        "pairs_a_step": run.stream.pairs_a_step,
        **measured,
    }
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in pairs.items() if number)
    lines = [
        ("pairs", f"{kinds}; {run.stream.pairs_a_step:,} a step"),
        (
            "model",
            f"{figures['num_parameters']:,} parameters, {'sparse ' if figures['sparse'] else ''}vectors of "
            f"{run.dimension:,}",
        ),
        training_fact(figures),
        memory_fact(measured),
    ]
    if facts.get("documents"):
        text = f"{facts['documents']:,} documents, {facts['held_out_documents']:,} held out; {facts['tokens']:,} tokens"
        lines.insert(0, ("text", text))
    return Forecast(figures, lines)


def plan_embedder(  # noqa: PLR0913  (as `embedder`)
    model: str | Path,
    corpus: Texts | None = None,
    *,
    pairs: str | Path | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int | None = None,
    sparse: bool = False,
    settings: Overrides = (),
    begun: Path | None = None,
) -> EmbedderPlan:
    """Checks the options of `embedder`, before anything is read.

    Of a training that goes on, the folder of its model (`begun`) says what it held out.
    """
    # The settings.
    if minutes is not None and steps is not None:
        raise SettingsError("give one of minutes and steps", options=("minutes", "steps"))
    for name, value in (("minutes", minutes), ("steps", steps)):
        if value is not None and not 0 < value < math.inf:
            raise SettingsError(f"{name}={value}: give more than 0", options=(name,))
    values = section_values(settings, "embedder", "corpus")
    own = values["embedder"]
    if seed is not None:
        own["seed"] = seed
    if sparse and not own.get("sparse"):
        own["sparse"] = {}
    chosen = validated(EmbedderSettings, own, where="embedder")

    # The text.
    if corpus is None and pairs is None:
        raise SettingsError("give text to learn from: files or a folder, or pairs of your own", options=("pairs",))
    texts = paths_or_texts(corpus) or []
    files = [Path(name) for name in texts if not isinstance(name, InMemory) and not is_stream(name)]
    if files and not is_prepared(files):
        find_sources(files, announce=False)

    # The model, and crops that fit it.
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
    if not has_head and (chosen.mlm_weight > 0.0 or chosen.sparse is not None):
        what, way_out = "of which sparse vectors are made", "go without sparse vectors"
        if chosen.sparse is None:
            what, way_out = "which are to be learned beside the pairs", "learn pairs alone (embedder.mlm_weight=0)"
        raise ModelError(
            f"{folder}: a bare encoder without a head for masked tokens, {what}; {way_out}, or give a masked language "
            "model"
        )
    room = config.max_position_embeddings - len(tokenizer.special.around)
    lengths = {"first_lengths": chosen.first_lengths, "second_lengths": chosen.second_lengths}
    if any(least > room for least, _ in lengths.values()):
        raise SettingsError(
            f"embedder.first_lengths and second_lengths begin with {chosen.first_lengths[0]} and "
            f"{chosen.second_lengths[0]} tokens, but the model has room for {room}; give shorter ones"
        )
    fitted = chosen.model_copy(update={key: (least, min(most, room)) for key, (least, most) in lengths.items()})
    name = lasting_name(model, folder)

    # What is held out: as where the model comes from, unless the settings say something else.
    maker, rule = held_out_rule(begun or folder)
    share = {"holdout": own["holdout"]} if "holdout" in own else {}
    return EmbedderPlan(
        model=folder,
        tokenizer=tokenizer,
        has_head=has_head,
        origin=Origin(name, checkpoint_sha256(folder), base_models(name, folder)),
        texts=texts,
        files=files,
        pairs=None if pairs is None else Path(pairs),
        settings=chosen,
        fitted=fitted,
        corpus=validated(CorpusSettings, {**rule.model_dump(), **share, **values["corpus"]}, where="corpus"),
        minutes=MINUTES if minutes is None and steps is None else minutes,
        steps=steps,
        maker=maker,
    )


def begin_run(
    folder: EmbedderFolder, plan: EmbedderPlan, reporter: Reporter, group: Group, *, goes_on: bool
) -> EmbedderRun:
    """Opens the data, which the first process reads and the others find in the folder, and makes the model.

    Texts, and what the training is about, are written into a new folder. One that holds the training already
    (`goes_on`) must hold the same, and its texts are not read again.
    """
    with files_checked(plan.model):
        model = load_model(plan.model, mask_id=plan.tokenizer.special.mask)

    def opened() -> tuple[PairData, str]:
        """Pairs, and a fingerprint of all that decides the weights."""
        holds = goes_on or not group.is_main
        text_pairs = None if plan.pairs is None else read_pairs(plan.pairs, plan.fitted.columns)
        texts, is_there = None, holds and folder.texts.is_file()
        if plan.texts and is_there:
            texts = TokenTexts.load(folder.texts)
        elif plan.texts:
            texts = read_texts(
                list(keep_as_files(plan.texts, folder.root, reuse=holds, notify=reporter.notify)),
                plan.tokenizer,
                plan.corpus,
                answers=() if text_pairs is None else text_pairs.answers,
                note=reporter.note,
                notify=reporter.notify,
            )
            texts.save(folder.texts)
        # What the training is about; of this, what decides the weights wherever its files lie is the fingerprint.
        rule = plan.corpus
        if plan.files and is_prepared(plan.files):  # prepared data has a rule of its own
            where = str(plan.files[0] / MANIFEST)
            rule = validated(CorpusSettings, load_manifest(plan.files[0]).settings["corpus"], where=where)
        content = {
            "model": plan.origin.checkpoint,
            "model_sha256": plan.origin.sha256,
            "corpus_files": [str(path.absolute()) for path in plan.files],
            "pairs_file": None if plan.pairs is None else str(plan.pairs.absolute()),
            "pairs_sha256": None if plan.pairs is None else file_sha256(plan.pairs),
            "texts_sha256": None if texts is None else file_sha256(folder.texts),
            HELD_OUT: rule.model_dump(mode="json"),
            "embedder": plan.settings.model_dump(),
            "minutes": plan.minutes,
            "steps": plan.steps,
        }
        deciding = {key: value for key, value in content.items() if key not in MAY_DIFFER}
        deciding["embedder"] = plan.fitted.model_dump(mode="json", exclude={"card"})
        fingerprint = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
        if holds:
            before = read_object(folder.root / "settings.json", "start anew with --overwrite")
            folder.claimed.check_same(before, json.loads(json.dumps(content)), but_for=MAY_DIFFER)
        data = pair_data(
            texts,
            text_pairs,
            plan.tokenizer,
            plan.fitted,
            max_positions=model.config.max_position_embeddings,
            note=reporter.note,
        )
        if not holds:
            folder.claimed.claim(json.dumps(content, indent=1) + "\n")
        return data, fingerprint

    data, fingerprint = rank_zero_first(group, opened)
    training = training_settings(plan.fitted, plan.minutes, plan.steps, data.stream, model.config)
    return EmbedderRun(
        folder, model, data, plan.fitted, training, fingerprint=fingerprint, reporter=reporter, group=group
    )


def write_embedder(folder: EmbedderFolder, run: EmbedderRun, plan: EmbedderPlan) -> dict[str, Any]:
    """Writes the model of a training that is over and, last, the summary."""
    settings, state, history = plan.fitted, run.state, run.state.history
    model, config, length = state.model, state.model.config, state.model.config.max_position_embeddings
    model.encoder.compute_dtype = torch.float32
    model.eval()
    with writing(folder.model), whole_folder(folder.model) as partial:
        save_model(model, partial, with_head=plan.has_head)
        plan.tokenizer.save(partial, max_length=length, with_types=config.num_types > 1)
        pooling = settings.pooling if settings.sparse is None else SPLADE
        write_sentence_files(partial, max_length=length, width=run.dimension, pooling=pooling)
        write_checksums(partial)
    before, after = (history[0], history[-1]) if history else (None, None)
    if state.best is not None and settings.patience is not None:
        after = next((line for line in history if line["step"] == state.best.step), after)
    summary: dict[str, Any] = {
        "model": str(folder.model),
        "num_parameters": model.num_parameters,
        "dimension": run.dimension,
        "sparse": settings.sparse is not None,
        "dimensions": list(settings.dimensions_for(config.hidden_size)),
        "max_length": length,
        "steps": state.step,
        "tokens_seen": state.tokens_seen,
        "seconds": state.seconds,
        "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
        "pairs_seen": run.stream.pairs_before(state.cursor),
        "temperature": settings.temperature_or_default,
        "before": before and {name: before[name] for name in ("kinds", "mlm_loss")},
        "after": after and {name: after[name] for name in ("kinds", "mlm_loss")},
        "recall_at_10": after and {kind: figures["recall_at_10"] for kind, figures in after["kinds"].items()},
        "nonzero": None,
        "best_step": None if state.best is None else state.best.step,
        "data": run.data.facts,
        "device": model.encoder.device.type,
    }
    if settings.sparse is not None and before and after:  # on average over all held-out texts
        summary["nonzero"] = {
            name: sum(each["nonzero"] * each["pairs"] for each in kinds) / sum(each["pairs"] for each in kinds)
            for name, kinds in (("before", before["kinds"].values()), ("after", after["kinds"].values()))
        }
    plain = settings.model_dump(mode="json", exclude={"card"})
    write_embedder_card(
        folder.model,
        summary=summary,
        settings=plain,
        card=settings.card,
        files=[path.name for path in plan.inputs] or ["texts in memory"],
        origin=plan.origin,
    )
    write_embedder_report(folder.report, summary=summary, settings=plain, metrics=read_metrics(folder.metrics))
    write_atomically(folder.summary, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary
