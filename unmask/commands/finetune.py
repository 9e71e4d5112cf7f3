"""Fine-tunes a model on labelled files, or forecasts it, in data-flow order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from unmask.commands.dry_run import Forecast, measure_steps, memory_fact
from unmask.commands.finetune_run import Runs
from unmask.commands.recipe import checkpoint_sha256
from unmask.commands.recipe_files import Overrides, parameters_of, section_values, set_value
from unmask.commands.run_data import START_ANEW
from unmask.core.errors import RunError, UnmaskError, parse_json, unsealed
from unmask.core.files import ClaimedFolder, read_object, typed
from unmask.core.hub import lasting_name
from unmask.core.interruption import Interruption
from unmask.core.public import public
from unmask.core.remote import output_at
from unmask.core.results import Facts, Hint, Reporter, Sheet, Shown, duration, sentence
from unmask.core.settings import validated
from unmask.data.sources import Texts, find_split
from unmask.model.card_head import Origin, base_models
from unmask.model.folder import find_model
from unmask.report.pages import task_figures
from unmask.tasks.files import Columns, ExampleFiles, example_files, place_of, say_unread
from unmask.tasks.kinds import task_named
from unmask.tasks.loaded_model import FinishedModel
from unmask.tasks.task import FinetuneSettings, Task, outputs_of
from unmask.train.callbacks import Callback
from unmask.train.distributed import join_with, on_every_rank, on_rank_zero

NUM_STEPS = 6
NUM_PREDICTED = 256  # inputs
# What may differ when a fine-tuning resumes: the number of seeds, and the paths of files with the same content.
MAY_DIFFER = {"finetune.seeds", "model", "train", "validation", "test"}
_OURS = {"runs.jsonl", "metrics.jsonl", "checkpoints", "model", "mistakes.json", "summary.json", "report.html"}


class FineTuned(FinishedModel):
    """A finished fine-tuning. The fields of its summary are attributes, too: `result.metrics`."""

    task: str
    metric: str  # by which the best model was chosen
    metrics: dict[str, float | None]  # of the saved model on the validation file
    best_seed: int
    seeds: list[dict[str, Any]]
    # Over seeds: their mean, deviation and half the width of the mean's 95 % interval.
    mean: dict[str, float | None]
    deviation: dict[str, float | None]
    margin: dict[str, float | None]
    labels: list[str]
    examples: dict[str, dict[str, int]]  # counts of each file
    learning_rate: float
    num_parameters: int  # of the encoder
    warning: str  # evidence that nothing was learned; else empty
    interval: dict[str, list[float] | None]  # only with one seed: 95 %, over documents
    # Only with a test file.
    test_metrics: dict[str, float | None]
    test_mean: dict[str, float | None]
    test_deviation: dict[str, float | None]
    test_margin: dict[str, float | None]
    test_interval: dict[str, list[float] | None]

    def shown(self) -> Iterator[Shown]:
        summary = self.summary
        heads, rows = task_figures(summary)
        columns = ("", *(f">{head}" for head in heads))
        yield Sheet(columns, [(name.replace("_", " "), *row) for name, row in rows.items()])
        if summary["warning"]:
            yield f"\n{sentence(summary['warning'].rpartition(';')[0])}"
        yield ""
        model = summary["model"]
        yield Facts([("model", model), ("report", str(self.folder / "report.html"))])
        yield Hint(f"unmask predict {typed(model)} FILE", f'unmask.predict({model!r}, "FILE")')


@public
def finetune(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path,
    *,
    task: str | type[Task],
    train: Texts,
    validation: Texts | None = None,
    out: str | Path,
    test: Texts | None = None,
    text: str | int | None = None,
    second: str | int | None = None,
    label: str | int | None = None,
    encoding: str | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    max_length: int | None = None,
    settings: Overrides = (),
    resume: bool = False,
    overwrite: bool = False,
    intervals: bool = True,
    callbacks: Sequence[Callback] = (),
    reporter: Reporter | None = None,
) -> FineTuned:
    """Fine-tunes a model for a task. It stops early, and may train from several seeds.

    Args:
        model: Folder of any encoder, such as RUN/model, or its name on the hub.
        task: classify, multi_label, regress, pairs (classes of pairs of texts), tag (also called ner), answer, or that
            of a plug-in; in Python also a class of `unmask.tasks.task.Task`.
        train: CSV, TSV, JSON, Parquet, CoNLL, CoNLL-U, SQuAD's JSON, or a folder of a dataset; in Python also rows in
            memory (see `unmask.data.sources`).
        validation: File by which the best model is chosen. By default the validation split of a folder in `train`, or a
            tenth of its rows.
        out: Folder of the result, or an address (s3://bucket/runs/a).
        test: Further file to measure the best model on.
        text: Column of the text; its number, counted from 0, if columns have no names. By default a column with a usual
            name.
        second: Column of the other text of a pair.
        label: Column of the class, the number or the tags.
        encoding: Encoding of files that are not Unicode, such as cp1252.
        seeds: Number of runs, each with the next seed. By default 1.
        seed: Seed of the first run. By default 0.
        max_length: Longest input in tokens; longer ones are cut or, for some tasks, read in parts. By default the
            model's limit.
        settings: `finetune.key=value` and `card.key=value` overrides, or a dict of them.
        resume: Continue the run in `out`.
        overwrite: Replace the result in `out`.
        intervals: Compute intervals over documents of one seed's figures, from 500 draws of them.
        callbacks: Called during the training of each seed; see `unmask.Callback`.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        KeyboardInterrupt: SIGINT or SIGTERM; the state was saved.
    """
    group, reporter = join_with(reporter)
    with Interruption() as interruption, ExitStack() as held:

        def claim(folder: Path) -> ClaimedFolder:
            return ClaimedFolder(root=folder, marker="settings.json", what="a result", last="summary.json", ours=_OURS)

        # A result at an address is uploaded there when `held` is left.
        output = output_at(out, claim, resume=resume, overwrite=overwrite)
        root = Path(on_rank_zero(group, lambda: str(held.enter_context(output).path)))
        claimed, begun = claim(root), root / "settings.json"

        def opened() -> tuple[Runs, dict[str, Any], Origin]:
            chosen = settings_of(
                settings, text=text, second=second, label=label, encoding=encoding, seeds=seeds, seed=seed,
                max_length=max_length,
            )  # fmt: skip
            kind = task_named(task)
            source = find_model(model)
            with examples_given(train, validation, test) as paths:
                inputs = [source, *(each.path for each in paths.values())]
                claimed.check(resume=resume, overwrite=overwrite, inputs=inputs)
                runs = Runs(source, kind, paths, chosen, reporter, group)
                sha256 = {"validation": runs.held_out} | {name: each.sha256 for name, each in paths.items()}
            name, model_sha256 = lasting_name(model, source), checkpoint_sha256(source)
            content = {
                "model": name,
                "task": runs.task.kind,
                **{name: str(each.path) for name, each in paths.items()},
                "sha256": sha256 | {"model": model_sha256},
                "finetune": chosen.model_dump(),
            }
            return runs, content, Origin(name, model_sha256, base_models(name, source))

        runs, content, origin = on_every_rank(group, opened)

        def begin() -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
            """Claims the folder, for a new result or to resume one with the same settings and files and no fewer seeds;
            returns the seeds that are finished, and the summary if it is of all seeds."""
            held.enter_context(claimed.entered(resume=resume, overwrite=overwrite))
            finished: list[dict[str, Any]] = []
            summary: dict[str, Any] | None = None
            if resume and claimed.is_claimed:
                try:
                    text = file.read_text("utf-8") if (file := root / "runs.jsonl").is_file() else ""
                    finished = [unsealed(parse_json(line)) for line in text.splitlines()]
                except (ValueError, TypeError) as error:
                    raise RunError(f"{root}: the result is damaged ({error}); {START_ANEW}") from error
                claimed.check_same(read_object(begun, START_ANEW), json.loads(json.dumps(content)), but_for=MAY_DIFFER)
                if len(finished) > (number := content["finetune"]["seeds"]):
                    raise RunError(
                        f"{root} holds {len(finished)} trained seeds, but finetune.seeds is {number}; set at least "
                        f"as many, or {START_ANEW}"
                    )
                if len(finished) == number and (root / "summary.json").is_file():
                    summary = FineTuned.reopened(root, "remove it to measure the model again").summary
            claimed.claim(json.dumps(content, indent=2) + "\n")
            return finished, summary

        finished, summary = on_rank_zero(group, begin)
        if summary is not None:
            reporter.note(f"the fine-tuning in {root} is already finished")
            return FineTuned(root, summary)
        deciding = {**content["finetune"], "seeds": None, "card": None}
        decided = {"task": content["task"], "sha256": content["sha256"], "finetune": deciding}
        try:
            summary = runs.run(
                root, finished, origin, fingerprint=json.dumps(decided, sort_keys=True), interruption=interruption,
                callbacks=callbacks, with_intervals=intervals,
            )  # fmt: skip
        except UnmaskError:
            # Frees the folder for the next try, unless there is a seed or a checkpoint to resume from.
            if group.is_main and not any((root / name).exists() for name in ("runs.jsonl", "checkpoints")):
                claimed.clear(claimed.ours)
            raise
        return FineTuned(root, summary)


def forecast_finetune(
    model: str | Path,
    *,
    task: str | type[Task],
    train: Texts,
    validation: Texts | None = None,
    test: Texts | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
    **short: Any,
) -> Forecast:
    """What `finetune` would do with the same options, except the output: a few steps and predictions are timed."""
    group, reporter = join_with(reporter)

    def opened() -> Runs:
        with examples_given(train, validation, test) as paths:
            return Runs(find_model(model), task_named(task), paths, settings_of(settings, **short), reporter, group)

    runs = on_every_rank(group, opened)
    chosen = runs.settings
    trainer = runs.trainer(chosen.seed)
    measured = measure_steps(trainer, NUM_STEPS)
    begin, examples = time.monotonic(), runs.examples["validation"]
    outputs_of(trainer.state.model.eval(), runs.task, examples[:NUM_PREDICTED])
    evaluation = (time.monotonic() - begin) * max(1.0, len(examples) / NUM_PREDICTED)
    figures: dict[str, Any] = {
        "task": runs.task.kind,
        "labels": list(runs.task.names),
        "examples": runs.counts,
        "learning_rate": runs.learning_rate,
        "num_parameters": trainer.state.model.num_encoder_parameters,
        "seeds": chosen.seeds,
        "steps": measured["steps"],
        "seconds": chosen.seeds * (measured["seconds"] + chosen.epochs * evaluation),
        "memory_bytes": measured["memory_bytes"],
        "processes": measured["processes"],
        "device": measured["device"],
    }
    several = f" for each of {chosen.seeds} seeds" if chosen.seeds > 1 else ""
    facts = [
        (name, f"{each['records']:,} examples, {each['inputs']:,} inputs, {each['truncated']:,} cut")
        for name, each in runs.counts.items()
    ]
    facts += [
        ("model", f"{runs.task.kind}{runs.labels}; {figures['num_parameters']:,} parameters without the head"),
        (
            "training",
            f"at most {measured['steps']:,} steps{several} at a learning rate of {runs.learning_rate:.2g}, "
            f"{duration(figures['seconds'])} in all on {measured['device']}",
        ),
        memory_fact(measured),
    ]
    return Forecast(figures, facts)


# ----------------------------------------
# Settings, files and model, read and checked against each other.


def settings_of(overrides: Overrides = (), **short: Any) -> FinetuneSettings:
    """The settings of a fine-tuning. Options that set one (`short`; None: not set) take precedence over the
    overrides."""
    values = section_values(overrides, "finetune")["finetune"]
    parameters = parameters_of(None, overrides)
    for name, value in short.items():
        if value is not None:
            key = f"columns.{name}" if name in Columns.model_fields else name
            set_value(values, key, value)
            parameters[f"finetune.{key}"] = name
    return validated(FinetuneSettings, values, where="finetune", prefix="finetune.", given=parameters)


@contextmanager
def examples_given(train: Texts, validation: Texts | None, test: Texts | None) -> Iterator[dict[str, ExampleFiles]]:
    """The files of these examples; rows in memory are files as long as the context is entered.

    Without `validation`, the validation split of the folder or dataset in `train` is used, if it has one.
    """
    with ExitStack() as opened:
        source = opened.enter_context(place_of("train", train))
        files = {"train": example_files(*source, part="train")}
        if validation is not None:
            files["validation"] = example_files(*opened.enter_context(place_of("validation", validation)))
        elif source[0].is_dir() and find_split(source[:1], announce=False).validation:
            files["validation"] = example_files(*source, part="validation")
        if test is not None:
            files["test"] = example_files(*opened.enter_context(place_of("test", test)))
        else:
            say_unread(*source, files.values(), "; to measure the model on one, give it as test")
        yield files
