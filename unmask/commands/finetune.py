"""From labelled files to a fine-tuned model, or to a forecast of it, in the order in which data flows."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.commands.dry_run import Forecast, measure_steps, memory_fact
from unmask.commands.finetune_run import ResultFolder, Runs
from unmask.commands.recipe import checkpoint_sha256
from unmask.commands.recipe_files import Overrides, section_values, set_value
from unmask.core.errors import CorpusError, SettingsError, UnmaskError, listed
from unmask.core.files import ClaimedFolder, typed
from unmask.core.hub import lasting_name
from unmask.core.interruption import Interruption
from unmask.core.remote import output_folder
from unmask.core.results import Finished, Reporter, Sheet, Shown, SilentReporter, duration, usual_reporter
from unmask.core.settings import validated
from unmask.data.sources import InMemory, Texts, paths_or_texts, readable
from unmask.model.card_head import Origin, base_models
from unmask.model.encoder import MaskedLM
from unmask.model.folder import find_model, load_model
from unmask.model.layout_names import LAYOUTS, ClassifierPooling
from unmask.model.stored_weights import files_checked
from unmask.model.transformers import TransformersPretrained, load_transformers, runs_in_transformers
from unmask.tasks.files import ExampleFiles, Labelled, example_files, read_labelled
from unmask.tasks.inputs import Example, InputEncoder
from unmask.tasks.predict import TaskModel, load_fine_tuned, outputs_of, task_named
from unmask.tasks.settings import Columns, FinetuneSettings
from unmask.tasks.task import Task
from unmask.tokenizer.loading import load_tokenizer
from unmask.train.callbacks import Callback
from unmask.train.distributed import Group, join_group, on_every_rank, on_rank_zero

NUM_STEPS = 6
NUM_PREDICTED = 256  # inputs
_PACKAGES = {"sklearn": "scikit-learn", "seqeval": "seqeval"}


@dataclass(frozen=True, repr=False)
class FineTuned(Finished):
    """A finished fine-tuning. What its summary says stands in attributes, too: `result.metrics`."""

    @cached_property
    def model(self) -> TaskModel:
        """The best model."""
        return load_fine_tuned(self.folder / "model")

    def shown(self) -> Iterator[Shown]:
        """A line a metric, and what to do next."""
        summary = self.summary
        several = len(summary["seeds"]) > 1
        heads = ["", ">best model", *[">mean (± 95 %, over seeds)"] * several, *[">test"] * ("test_mean" in summary)]
        rows = []

        def number(value: float | None) -> str:
            return "undefined" if value is None else f"{value:.3f}"

        for name, value in summary["metrics"].items():
            row = [name.replace("_", " "), number(value)]
            if several:
                margin = summary["margin"][name]
                row.append(number(summary["mean"][name]) + ("" if margin is None else f" ± {margin:.3f}"))
            if "test_metrics" in summary:
                row.append(number(summary["test_metrics"][name]))
            rows.append(row)
        yield Sheet(tuple(heads), rows)
        yield f"\nmodel   {summary['model']}"
        yield f"report  {self.folder / 'report.html'}"
        yield f"\nTry it: unmask predict {typed(summary['model'])} FILE"


def finetune(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path,
    *,
    task: str,
    train: Texts,
    validation: Texts | None = None,
    out: str | Path,
    test: Texts | None = None,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    settings: Overrides = (),
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    reporter: Reporter | None = None,
) -> FineTuned:
    """Fine-tunes a model for a task, with early stopping and several seeds.

    Args:
        model: Folder of any encoder, such as RUN/model, or its name on the hub.
        task: classify, multi_label, regress, pairs (classes of pairs of texts), tag or answer.
        train: CSV, TSV, JSON, Parquet, CoNLL, CoNLL-U, SQuAD's JSON, or a folder of a dataset; in Python also rows in
            memory (see `unmask.data.sources`).
        validation: File that chooses the best model. By default the validation part of a folder in `train`.
        out: Folder of the result, or an address (s3://bucket/runs/a).
        test: File that the best model is measured on besides.
        text: Column of the text; a number, counted from 0, where columns have no names. By default it is found.
        second: Column of the other text of a pair.
        label: Column of the class, the number or the tags.
        seeds: Runs, each with the next seed. By default 1.
        seed: Of the first run. By default 0.
        settings: `finetune.key=value` and `card.key=value` overrides, or a dict of them.
        resume: Go on with the result in `out`.
        overwrite: Replace the result in `out`.
        callbacks: Called as it trains, see `unmask.Callback`.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: Whatever is wrong with files, settings or folders.
        Interrupted: SIGINT or SIGTERM; the state was saved.
    """
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_main else SilentReporter()
    with Interruption() as interruption, ExitStack() as held:

        def claim(root: Path) -> ClaimedFolder:
            result = ResultFolder(root)
            return replace(result.claimed, ours=result.names)

        def enter() -> str:
            """The folder of the result; that of one at an address is sent there until `held` is left."""
            return str(held.enter_context(output_folder(out, claim, resume=resume, overwrite=overwrite)).path)

        folder = ResultFolder(Path(on_rank_zero(group, enter)))
        claimed = folder.claimed

        def opened() -> tuple[Runs, dict[str, Any], Origin]:
            """What is trained, what it is about, and where the encoder comes from."""
            chosen = settings_of(settings, text=text, second=second, label=label, seeds=seeds, seed=seed)
            source = find_model(model)
            with examples_given(train, validation, test) as paths:
                inputs = [source, *(each.path for each in paths.values())]
                claimed.check(resume=resume, overwrite=overwrite, inputs=inputs)
                if resume and claimed.is_claimed:
                    chosen = chosen.model_copy(update={"card": folder.card(chosen.card)})
                runs = open_runs(source, task, paths, chosen, reporter, group)
                sha256 = {name: each.sha256 for name, each in paths.items()}
            name, model_sha256 = lasting_name(model, source), checkpoint_sha256(source)
            content = {
                "model": name,
                "task": task,
                **{name: str(each.path) for name, each in paths.items()},
                "sha256": sha256 | {"model": model_sha256},
                "finetune": chosen.model_dump(),
            }
            return runs, content, Origin(name, model_sha256, base_models(name, source))

        runs, content, origin = on_every_rank(group, opened)

        def begin() -> list[dict[str, Any]]:
            """The seeds that are over."""
            held.enter_context(claimed.held())
            claimed.check(resume=resume, overwrite=overwrite)  # again: no other process comes from now on
            return folder.begin(content, goes_on=resume and claimed.is_claimed)

        finished = on_rank_zero(group, begin)
        deciding = {**content["finetune"], "seeds": None, "card": None}
        fingerprint = json.dumps({"task": task, "sha256": content["sha256"], "finetune": deciding}, sort_keys=True)
        try:
            summary = runs.run(
                folder, finished, origin, fingerprint=fingerprint, interruption=interruption, callbacks=callbacks
            )
        except UnmaskError:
            if group.is_main and not folder.runs.is_file():  # nothing came of it, and the next try may use the folder
                folder.settings.unlink(missing_ok=True)
            raise
        return FineTuned(folder.root, summary)


def forecast_finetune(
    model: str | Path,
    *,
    task: str,
    train: Texts,
    validation: Texts | None = None,
    test: Texts | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
    **short: Any,
) -> Forecast:
    """What `finetune` would do with the same options but those of its output: a few steps and predictions are timed."""
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_main else SilentReporter()

    def opened() -> Runs:
        with examples_given(train, validation, test) as paths:
            return open_runs(find_model(model), task, paths, settings_of(settings, **short), reporter, group)

    runs = on_every_rank(group, opened)
    chosen = runs.settings
    trainer = runs.trainer(chosen.seed)
    measured = measure_steps(trainer, NUM_STEPS)
    begin, examples = time.monotonic(), runs.examples["validation"]
    outputs_of(trainer.state.model.eval(), runs.learning, examples[:NUM_PREDICTED])
    evaluation = (time.monotonic() - begin) * max(1.0, len(examples) / NUM_PREDICTED)
    evaluations = chosen.epochs * min(chosen.evaluations_per_epoch, measured["steps"] // chosen.epochs)
    figures: dict[str, Any] = {
        "task": task,
        "labels": list(runs.task.names),
        "examples": runs.counts,
        "learning_rate": runs.learning_rate,
        "num_parameters": trainer.state.model.num_encoder_parameters,
        "seeds": chosen.seeds,
        "steps": measured["steps"],
        "seconds": chosen.seeds * (measured["seconds"] + evaluations * evaluation),
        "memory_bytes": measured["memory_bytes"],
        "processes": measured["processes"],
        "device": measured["device"],
    }
    labels = f", {len(runs.task.names)} labels" if runs.task.names else ""
    several = f" for each of {chosen.seeds} seeds" if chosen.seeds > 1 else ""
    facts = [
        (name, f"{each['records']:,} examples, {each['inputs']:,} inputs, {each['truncated']:,} cut")
        for name, each in runs.counts.items()
    ]
    facts += [
        ("model", f"{task}{labels}; {figures['num_parameters']:,} parameters without the head"),
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
    """The settings of a fine-tuning; `short` are the options `text`, `second`, `label`, `seeds` and `seed`, which stand
    above the overrides; None: not set."""
    values = section_values(overrides, "finetune")["finetune"]
    for name, value in short.items():
        if value is not None:
            set_value(values, f"columns.{name}" if name in Columns.model_fields else name, value)
    if isinstance(columns := values.get("columns"), dict):  # one may be named by its number
        columns.update({name: str(value) for name, value in columns.items() if type(value) is int})
    return validated(FinetuneSettings, values, where="finetune")


@contextmanager
def examples_given(train: Texts, validation: Texts | None, test: Texts | None) -> Iterator[dict[str, ExampleFiles]]:
    """The files of what a user gives; as long as it is entered, those of rows in memory are there as well.

    Where there is nothing for validation, it is the part for that of the folder or dataset that is trained on.
    """
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch, ExitStack() as opened:

        def place(name: str, examples: Texts) -> tuple[Path, Path]:
            """Path of examples, and what it is called."""
            names = paths_or_texts(examples) or []
            if len(names) != 1:
                raise CorpusError(f"{name}: give one file or folder, not {len(names)}")
            if isinstance(names[0], InMemory):
                return names[0].keep(Path(scratch) / name), Path(f"{name} in memory")
            return opened.enter_context(readable(names[0])), Path(names[0])

        source = place("train", train)
        files = {"train": example_files(*source, part="train")}
        if validation is None:
            files["validation"] = example_files(*source, part="validation")
        else:
            files["validation"] = example_files(*place("validation", validation))
        if test is not None:
            files["test"] = example_files(*place("test", test))
        yield files


def read_files(
    kind: type[Task],
    paths: Mapping[str, ExampleFiles],
    settings: FinetuneSettings,
    note: Callable[[str], None],
    *,
    pooling: ClassifierPooling = "first",
) -> tuple[dict[str, Labelled], Task]:
    """Reads the files `train`, `validation` and perhaps `test` of a task; what a model of the first will do.

    That the packages are there that metrics need is checked here, long before they are used.
    """
    for name, package in _PACKAGES.items():
        if importlib.util.find_spec(name) is None:
            raise SettingsError(f"metrics need {package}; install it with: pip install 'unmask[metrics]'")
    train = read_labelled(paths["train"], kind, settings.columns)
    if train.columns:
        note("columns: " + ", ".join(f"{role} in {name!r}" for role, name in train.columns.items()))
    task = kind.learned_from(train, settings, pooling)
    if remark := task.check(train, train.path):
        note(remark)
    files = {"train": train}
    columns = Columns(**train.columns) if train.columns else settings.columns
    for name in ("validation", "test"):
        if name in paths:
            files[name] = read_labelled(paths[name], kind, columns)
            if remark := task.check(files[name], train.path):
                note(remark)
    return files, task


def class_weights(train: Labelled, task: Task, weights: str | Mapping[str, float] | None) -> list[float] | None:
    """Weights of the losses by class, in the order of the classes.

    Example: 30 examples of `a` and 10 of `b`, balanced: 40 / (2 x 30) = 2/3 and 40 / (2 x 10) = 2.
    """
    if weights is None:
        return None
    counts = Counter(name for record in train.records for name in task.classes_of(record))
    if not counts:
        raise SettingsError(f"finetune.class_weights: the task {task.kind!r} has no classes; remove it")
    if not isinstance(weights, str):
        if unknown := sorted(set(weights) - set(task.names)):
            raise SettingsError(
                f"finetune.class_weights: there is no class {unknown[0]!r} in {train.path}; it has "
                f"{listed(task.names, 8)}"
            )
        return [weights.get(name, 1.0) for name in task.names]
    return [counts.total() / (len(task.names) * counts[name]) for name in task.names]


def selecting_metric(task: Task, named: str | None) -> str:
    """The metric that the best model is chosen by."""
    names = task.metric_names
    if named is not None and named not in names:
        raise SettingsError(f"finetune.metric = {named!r}: metrics of this task are {', '.join(names)}")
    return named or names[0]


def open_runs(
    source: Path,
    kind: str,
    paths: Mapping[str, ExampleFiles],
    settings: FinetuneSettings,
    reporter: Reporter,
    group: Group,
) -> Runs:
    """Reads an encoder and the files of a task, and checks that they fit each other."""
    task_class = task_named(kind)
    pretrained: MaskedLM | TransformersPretrained
    with files_checked(source):
        tokenizer = load_tokenizer(source)
        special = tokenizer.special
        if runs_in_transformers(source):
            pretrained = load_transformers(
                source, vocab_size=tokenizer.vocab_size, pad_id=special.pad, max_length=settings.max_length
            )
        else:
            pretrained = load_model(source, mask_id=special.mask)
    # How whole texts are pooled.
    pooling: ClassifierPooling = settings.pooling or "first"
    if isinstance(pretrained, TransformersPretrained) or not task_class.of_texts:
        if settings.pooling is not None:
            whose = "transformers' head pools in its own way" if task_class.of_texts else "the task has no whole texts"
            raise SettingsError(f"finetune.pooling={settings.pooling}: {whose}; omit it")
    else:
        layout = pretrained.config.layout
        has_choice = LAYOUTS[layout].pooling_key is not None
        if pooling == "mean" and not has_choice:
            raise SettingsError(
                f"finetune.pooling=mean: classifiers of the layout {layout} take the first token; omit it"
            )
        pooling = settings.pooling or ("mean" if has_choice else "first")
    # Files, and their records as inputs.
    for name, each in paths.items():
        if each.path.is_dir():
            names = ", ".join(source.path.name for source in each.sources[:3])
            reporter.note(f"{name}: {names} ({len(each.sources)}) of {each.path}")
    files, task = read_files(task_class, paths, settings, reporter.note, pooling=pooling)
    learning = task.while_learning(files["train"])
    metric = selecting_metric(task, settings.metric)
    weights = class_weights(files["train"], task, settings.class_weights)
    encoder = InputEncoder(tokenizer, pretrained.config, max_length=settings.max_length)
    examples: dict[str, list[Example]] = {}
    counts: dict[str, dict[str, int]] = {}
    longest = encoder.max_length
    are_longer = f"texts are longer than {longest} tokens"
    for name, file in files.items():
        is_train = name == "train"
        encoded = (learning if is_train else task).encode(file.records, encoder, with_targets=is_train)
        examples[name] = encoded.examples
        total, num_inputs = len(file.records), len(encoded.examples)
        counts[name] = {
            "records": total, "inputs": num_inputs, "truncated": encoded.truncated, "split": encoded.split,
        }  # fmt: skip
        for count, what in (
            (encoded.truncated, f"{are_longer}; their ends are not seen"),
            (encoded.split, f"{are_longer}; they are seen in several parts, {num_inputs:,} in all"),
            (
                encoded.lost,
                f"answers are longer than a window of {longest} tokens has room for, or end in characters that the "
                "tokenizer leaves out; they are learned as no answer",
            ),
        ):
            if count:
                reporter.note(f"{file.path}: {count:,} of {total:,} {what}")
    return Runs(
        pretrained, tokenizer, longest, task, learning, files, examples, counts, metric, weights, settings, reporter,
        group,
    )  # fmt: skip
