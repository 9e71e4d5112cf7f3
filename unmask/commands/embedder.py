"""Trains an embedding model from a masked language model and raw text, or forecasts it, in data-flow order."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from unmask.commands.dry_run import Forecast, measure_steps, memory_fact, refuse_streams, training_fact
from unmask.commands.embedder_pairs import KINDS
from unmask.commands.embedder_run import EmbedderPlan, EmbedderRun, check_resumed
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.recipe import checkpoint_sha256, read_fitting_config
from unmask.commands.recipe_files import Overrides, as_overrides, parameters_of, section_values
from unmask.core.errors import ModelError, SettingsError, UnmaskError
from unmask.core.files import ClaimedFolder, typed
from unmask.core.hub import PROMPTS, fetch_sentence_files, hub_name, lasting_name
from unmask.core.interruption import Interruption
from unmask.core.public import public
from unmask.core.remote import refused
from unmask.core.results import Facts, Hint, Reporter, Sheet, Shown, duration
from unmask.core.settings import validated
from unmask.data.data_folder import is_prepared
from unmask.data.settings import CorpusSettings
from unmask.data.sources import GIVEN, PIPES, STDIN_FILE, InMemory, Texts, find_sources, is_stream, paths_or_texts
from unmask.model.card_head import Origin, base_models
from unmask.model.folder import find_weights, has_prediction_head, read_content
from unmask.model.pooling import module_file, read_pooling, read_side_file
from unmask.model.transformers import why_in_transformers
from unmask.report.pages import RECALL_HEADS, recall_rows
from unmask.search.known_items import held_out_rule
from unmask.tasks.files import ExampleFiles, example_files, place_of, say_unread
from unmask.tasks.loaded_model import FinishedModel, does_task
from unmask.tokenizer.loading import load_tokenizer
from unmask.train.callbacks import Callback
from unmask.train.distributed import join_with, on_every_rank, on_rank_zero

MINUTES = 10.0  # the usual budget
_EARLY = {"texts.safetensors", GIVEN, PIPES, STDIN_FILE}
_OURS = {*_EARLY, "checkpoints", "metrics.jsonl", "model", "summary.json", "report.html"}


def claimed_by(root: Path) -> ClaimedFolder:
    return ClaimedFolder(
        root=root, marker="settings.json", what="an embedder", last="summary.json", ours=_OURS, early=_EARLY
    )


class Embedder(FinishedModel):
    """A finished embedding model. The fields of its summary are attributes, too: `result.recall_at_10`."""

    num_parameters: int
    dimension: int  # of a vector
    sparse: bool
    dimensions: list[int]  # shorter lengths to which vectors can be truncated
    max_length: int  # of a text, in tokens
    steps: int
    tokens_seen: int
    seconds: float  # of training; with a budget in minutes, evaluations, too
    tokens_per_second: float
    pairs_seen: int
    temperature: float
    # `kinds` and `mlm_loss` on held-out pairs, before and after training; None if nothing was measured.
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    recall_at_10: dict[str, float] | None  # after training, by kind of pair
    nonzero: dict[str, float] | None  # nonzero numbers of a sparse vector, before and after
    best_step: int | None
    model_step: int  # the last, or with `patience` the best
    data: dict[str, int]  # counts of documents, tokens, pairs by kind, and what was left out
    device: str

    def shown(self) -> Iterator[Shown]:
        s = self.summary
        if s["after"] is not None:
            first, *numbers = RECALL_HEADS
            yield Sheet((first, *(f">{head}" for head in numbers)), recall_rows(s))
        facts = []
        if s["after"] is not None and s["after"]["mlm_loss"] is not None:
            before, after = s["before"]["mlm_loss"], s["after"]["mlm_loss"]
            facts.append(("masked tokens", f"loss {before:.3f} before, {after:.3f} after"))
        if s["nonzero"] is not None:
            of = f"{s['nonzero']['after']:,.0f} of {s['dimension']:,} numbers are nonzero"
            facts.append(("sparse vectors", f"{of}, {s['nonzero']['before']:,.0f} before"))
        as_of = "" if s["model_step"] == s["steps"] else f", as of step {s['model_step']:,}"
        yield Facts(
            [
                *facts,
                ("trained", f"{s['steps']:,} steps, {s['tokens_seen']:,} tokens in {duration(s['seconds'])}"),
                ("speed", f"{s['tokens_per_second']:,.0f} tokens a second"),
                ("model", s["model"] + as_of),
                ("report", str(self.folder / "report.html")),
            ]
        )
        name = typed(s["model"])
        yield Hint(
            f"unmask search index {name} FILES --out INDEX\nCompare it with BM25: unmask evaluate-search {name} CORPUS",
            f'unmask.evaluate_search({s["model"]!r}, "CORPUS")',
        )


@public
def embedder(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path,
    corpus: Texts | None = None,
    *,
    out: str | Path,
    minutes: float | None = None,
    steps: int | None = None,
    pairs: Texts | None = None,
    encoding: str | None = None,
    sparse: bool = False,
    seed: int | None = None,
    settings: Overrides = (),
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    reporter: Reporter | None = None,
) -> Embedder:
    """Makes an embedding model for search, without labels. It starts from a masked language model, and learns from raw
    text.

    Args:
        model: Folder of a masked language model, such as RUN/model, or its name on the hub.
        corpus: Files, folders or patterns of text, or - for standard input; in Python also texts in memory (see
            `unmask.data.sources`). By default only your own pairs are used.
        out: Folder of the result.
        minutes: Minutes of training. By default 10.
        steps: Steps of training, instead of minutes.
        pairs: Your own pairs: CSV, JSONL or Parquet with query and text, optionally negative or label, or a folder of a
            dataset; in Python also rows in memory.
        encoding: Encoding of text and pairs that are not Unicode, such as cp1252.
        sparse: Make sparse vectors (SPLADE), with one weight per token of the vocabulary.
        seed: Seed of order, crops and masks. By default 0.
        settings: `embedder.key=value`, `corpus.key=value` and `card.key=value` overrides, or a dict of them.
        resume: Continue the training in `out`.
        overwrite: Replace what is in `out`.
        callbacks: Called during training; see `unmask.Callback`.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        KeyboardInterrupt: SIGINT or SIGTERM; the state was saved.
    """
    group, reporter = join_with(reporter)
    refused(out, "an embedder")
    root, claimed = Path(out), claimed_by(Path(out))
    begun = root / "model" if resume and claimed.is_claimed else None
    with Interruption() as interruption, ExitStack() as held:
        plan = on_every_rank(
            group,
            lambda: plan_embedder(
                model, corpus, pairs=held.enter_context(pairs_given(pairs)), encoding=encoding, minutes=minutes,
                steps=steps, seed=seed, sparse=sparse, settings=settings, begun=begun,
            ),
        )  # fmt: skip

        def begin() -> tuple[bool, bool]:
            """Claims the folder; returns whether a training in it resumes, and whether it is finished."""
            inputs = [plan.model, *plan.files, *([] if plan.pairs is None else [plan.pairs.path])]
            held.enter_context(claimed.entered(resume=resume, overwrite=overwrite, inputs=inputs))
            goes_on = resume and claimed.is_claimed
            if goes_on and (root / "summary.json").is_file():
                check_resumed(claimed, plan.content())
                reporter.note(f"the embedder in {root} is already finished")
                return goes_on, True
            if plan.maker is not None and plan.texts and not goes_on:
                reporter.note(f"text is read and held out by {plan.maker}'s rule; to change it, set corpus.KEY=VALUE")
            if not plan.has_head:
                reporter.note(f"{plan.model} has no head for masked tokens, so it is trained on pairs only")
            prompts = read_side_file(plan.model / PROMPTS, optional=True).get("prompts")
            if isinstance(prompts, dict) and any(prompts.values()):
                what = "its prompts are neither used in training nor kept"
                reporter.note(f"{plan.model}: {what}; to search with one, give it when you search (query_prompt)")
            return goes_on, False

        goes_on, is_finished = on_rank_zero(group, begin)
        if is_finished:
            return Embedder.reopened(root, "remove it to measure the model again")
        try:
            run = on_every_rank(group, lambda: EmbedderRun(claimed, plan, reporter, group, goes_on=goes_on))
        except UnmaskError:
            if not goes_on and group.is_main:  # no training has begun: the next try may use the folder
                claimed.clear(claimed.ours)
            raise
        return Embedder(root, run.run(interruption, callbacks))


def forecast_embedder(
    model: str | Path, corpus: Texts | None = None, *, reporter: Reporter | None = None, **options: Any
) -> Forecast:
    """What `embedder` would do with the same options. All text is read; its tokens are removed at the end."""
    group, reporter = join_with(reporter)
    pairs = options.pop("pairs", None)
    with ExitStack() as held:
        plan = on_every_rank(
            group, lambda: plan_embedder(model, corpus, pairs=held.enter_context(pairs_given(pairs)), **options)
        )
        refuse_streams(plan.texts)
        scratch = on_rank_zero(group, lambda: held.enter_context(tempfile.TemporaryDirectory(prefix="unmask-")))
        claimed = claimed_by(Path(scratch))
        run = on_every_rank(group, lambda: EmbedderRun(claimed, plan, reporter, group, goes_on=False))
        run.begin_sparse()
        measured, facts = measure_steps(run.trainer), run.data.facts
    pairs = {kind: facts[key] for kind, key in zip((*KINDS, "given"), (*KINDS, "given_pairs"), strict=True)
             if key in facts}  # fmt: skip
    figures = {
        **{name: facts.get(name, 0) for name in ("documents", "held_out_documents", "tokens")},
        "pairs": pairs,
        "num_parameters": run.state.model.num_parameters,
        "dimension": run.dimension,
        "sparse": plan.settings.sparse is not None,
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


@contextmanager
def pairs_given(pairs: Texts | None) -> Iterator[ExampleFiles | None]:
    """The files of pairs; rows in memory are files as long as the context is entered."""
    if pairs is None:
        yield None
        return
    with place_of("pairs", pairs) as place:
        files = example_files(*place, part="train")
        say_unread(*place, [files])
        yield files


def plan_embedder(  # noqa: PLR0912, PLR0913  (the options of `embedder`, each checked)
    model: str | Path,
    corpus: Texts | None = None,
    *,
    pairs: ExampleFiles | None = None,
    encoding: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int | None = None,
    sparse: bool = False,
    settings: Overrides = (),
    begun: Path | None = None,
) -> EmbedderPlan:
    """Checks the options of `embedder`, before anything is read.

    If a training resumes, `begun` is the folder of its model, which says what was held out.
    """
    # The settings.
    if minutes is not None and steps is not None:
        raise SettingsError("give one of minutes and steps", options=("minutes", "steps"))
    for name, value in (("minutes", minutes), ("steps", steps)):
        if value is not None and not 0 < value < math.inf:
            raise SettingsError(f"{name}={value}: give more than 0", options=(name,))
    encodings = {} if encoding is None else dict.fromkeys(("corpus.encoding", "embedder.columns.encoding"), encoding)
    values = section_values((*as_overrides(settings), *as_overrides(encodings)), "embedder", "corpus")
    own = values["embedder"]
    if seed is not None:
        own["seed"] = seed
    if sparse and not own.get("sparse"):
        own["sparse"] = {}
    parameters = parameters_of(None, settings)
    chosen = validated(EmbedderSettings, own, where="embedder", prefix="embedder.", given=parameters)

    # The text.
    if corpus is None and pairs is None:
        raise SettingsError("give text to learn from: files or a folder, or pairs of your own", options=("pairs",))
    texts = paths_or_texts(corpus)
    files = [Path(name) for name in texts if not isinstance(name, InMemory) and not is_stream(name)]
    if is_prepared(files):
        raise SettingsError(f"{files[0]}: prepared data has tokens without titles or paragraphs; give the text itself")
    if files:
        find_sources(files, announce=False)
    for section, has_no_effect, why in (
        ("corpus.", corpus is None, "there is no text, only pairs; leave this out"),
        ("embedder.columns.", pairs is None, "there are no pairs, only text, whose column is corpus.column"),
    ):
        keys = [key for key, _ in as_overrides(settings) if has_no_effect and key.startswith(section)]
        if keys:
            raise SettingsError(f"{keys[0]}: {why}", options=["set"])

    # The model, and crops that fit it.
    folder = find_weights(model, way_out="give the folder of a masked language model, such as RUN/model")
    if (hub := hub_name(model)) is not None:
        fetch_sentence_files(hub, folder)
    if does_task(read_content(folder)):
        raise ModelError(
            f"{folder}: fine-tuned for a task, so no longer a masked language model; give the model that it was made "
            "from"
        )
    if why_in_transformers(folder) is not None:
        raise ModelError(
            f"{folder}: only transformers can run this model, but embedding models are trained in our encoder; give a "
            "model in the layout of BERT, RoBERTa or ModernBERT"
        )
    tokenizer = load_tokenizer(folder)
    config = read_fitting_config(folder, tokenizer)
    has_head = has_prediction_head(folder, config.layout)
    if not has_head and (own.get("mlm_weight") or chosen.sparse is not None):
        raise ModelError(
            f"{folder}: a bare encoder without a head for masked tokens, which sparse vectors and embedder.mlm_weight "
            "need; leave these out, or give a masked language model"
        )
    room = config.max_position_embeddings - len(tokenizer.special.around)
    lengths = {"first_lengths": chosen.first_lengths, "second_lengths": chosen.second_lengths}
    if any(least > room for least, _ in lengths.values()):
        raise SettingsError(
            f"embedder.first_lengths and second_lengths start at {chosen.first_lengths[0]} and "
            f"{chosen.second_lengths[0]} tokens, but the model has room for {room}; give shorter ones"
        )
    if (longest := max(chosen.dimensions or (1,))) > config.hidden_size:
        raise SettingsError(
            f"embedder.dimensions: vectors of {folder} have {config.hidden_size} numbers, so they cannot be truncated "
            f"to {longest}; give shorter lengths"
        )
    changes: dict[str, Any] = {key: (least, min(most, room)) for key, (least, most) in lengths.items()}
    if "pooling" not in own and chosen.sparse is None and module_file(folder, "Pooling") is not None:
        changes["pooling"] = read_pooling(folder)
    fitted = chosen.model_copy(update=changes | ({} if has_head else {"mlm_weight": 0.0}))
    name = lasting_name(model, folder)

    # What is held out: by the rule of the model's own run, unless the settings say otherwise.
    maker, rule = held_out_rule(begun or folder)
    share = {"holdout": own["holdout"]} if "holdout" in own else {}
    return EmbedderPlan(
        model=folder,
        tokenizer=tokenizer,
        has_head=has_head,
        makes_sparse=module_file(folder, "SpladePooling") is not None,
        origin=Origin(name, checkpoint_sha256(folder), base_models(name, folder)),
        texts=texts,
        files=files,
        pairs=pairs,
        settings=fitted,
        corpus=validated(CorpusSettings, {**rule.model_dump(), **share, **values["corpus"]}, where="corpus"),
        minutes=MINUTES if minutes is None and steps is None else minutes,
        steps=steps,
        maker=maker,
        column_of=None if "column" in values["corpus"] else maker,
    )
