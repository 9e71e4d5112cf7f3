"""From labelled files to a fine-tuned model, or to a forecast of it, in the order in which data flows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.commands.dry_run import fact_lines, measure_steps, memory_fact
from unmask.commands.finetune_files import chosen_settings, examples_given, needs_packages, read_files
from unmask.commands.finetune_folder import FinishedRun, ResultFolder
from unmask.commands.finetune_run import Runs, begin_training, load_pretrained, pooling_for
from unmask.commands.recipe import checkpoint_sha256
from unmask.commands.recipe_files import Overrides
from unmask.core.errors import UnmaskError
from unmask.core.files import ClaimedFolder, typed
from unmask.core.hub import lasting_name
from unmask.core.interruption import Interruption
from unmask.core.remote import output_folder
from unmask.core.results import Finished, Reporter, Result, Sheet, Shown, SilentReporter, duration, usual_reporter
from unmask.data.sources import Texts
from unmask.model.card_head import Origin, base_models
from unmask.model.folder import find_model
from unmask.model.stored_weights import files_checked
from unmask.tasks.files import ExampleFiles
from unmask.tasks.predict import TaskModel, load_fine_tuned, outputs_of, task_named
from unmask.tasks.settings import FinetuneSettings
from unmask.tokenizer.loading import load_tokenizer
from unmask.train.callbacks import Callback
from unmask.train.distributed import Group, join_group, on_every_rank, on_rank_zero

NUM_STEPS = 6
NUM_PREDICTED = 256  # inputs


class FinetuneForecast(Result):
    """What a fine-tuning would do.

    Attributes:
        task, labels: What is learned.
        examples: As in a summary.
        learning_rate, num_parameters, seeds: Of the training.
        steps: Of a seed, where it does not end early.
        seconds: Of all seeds, likewise.
        memory_bytes: The most that a process held; None where the system does not say.
        processes: That train together.
        device: `cpu` or `cuda`.
    """

    def shown(self) -> Iterator[Shown]:
        """A fact a line."""
        labels = f", {len(self.labels)} labels" if self.labels else ""
        several = f" for each of {self.seeds} seeds" if self.seeds > 1 else ""
        counts = self.examples.items()
        yield from fact_lines(
            [
                *(
                    (name, f"{each['records']:,} examples, {each['inputs']:,} inputs, {each['truncated']:,} cut")
                    for name, each in counts
                ),
                ("model", f"{self.task}{labels}; {self.num_parameters:,} parameters without the head"),
                (
                    "training",
                    f"at most {self.steps:,} steps{several} at a learning rate of {self.learning_rate:.2g}, "
                    f"{duration(self.seconds)} in all on {self.device}",
                ),
                memory_fact(self.memory_bytes, self.processes),
            ]
        )


def forecast(runs: Runs) -> FinetuneForecast:
    """Measures a few steps and a few predictions on the real model; nothing is written.

    Args:
        runs: Files and model, read.

    Raises:
        UnmaskError: As the real training.
    """
    plan, settings = runs.plan, runs.settings
    trainer = begin_training(runs.new_model(settings.seed), plan, seed=settings.seed)
    model, measured = trainer.state.model, measure_steps(trainer, NUM_STEPS)
    begin = time.monotonic()
    examples = plan.validation.examples[:NUM_PREDICTED]
    outputs_of(model.eval(), plan.task, examples)
    evaluation = (time.monotonic() - begin) * len(plan.validation.examples) / len(examples)
    evaluations = settings.epochs * min(settings.evaluations_per_epoch, measured.steps // settings.epochs)
    return FinetuneForecast(
        {
            "task": runs.task.kind,
            "labels": list(runs.task.names),
            "examples": runs.ledger,
            "learning_rate": settings.learning_rate_for(model.config.hidden_size),
            "num_parameters": model.num_encoder_parameters,
            "seeds": settings.seeds,
            "steps": measured.steps,
            "seconds": settings.seeds * (measured.seconds + evaluations * evaluation),
            "memory_bytes": measured.memory_bytes,
            "processes": measured.processes,
            "device": measured.device,
        }
    )


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
        for name, value in summary["metrics"].items():
            mean = [_mean(summary, name)] if several else []
            test = [_number(summary["test_metrics"][name])] if "test_metrics" in summary else []
            rows.append((name.replace("_", " "), _number(value), *mean, *test))
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

    def opened() -> tuple[Runs, dict[str, Any], Origin]:
        """What is trained, what it is about, and where the encoder comes from."""
        chosen = chosen_settings(settings, text=text, second=second, label=label, seeds=seeds, seed=seed)
        source = find_model(model)
        with examples_given(train, validation, test) as given:
            inputs = [each.path for each in given.values()]
            folder.claimed.check(resume=resume, overwrite=overwrite, inputs=[*inputs, source])
            if resume and folder.claimed.is_claimed:
                chosen = chosen.model_copy(update={"card": folder.card(chosen.card)})
            runs = _opened(source, task, given, chosen, reporter, group)
            sha256 = {name: each.sha256 for name, each in given.items()}
        name, model_sha256 = lasting_name(model, source), checkpoint_sha256(source)
        content = {
            "model": name,
            "task": task,
            **{name: str(each.path) for name, each in given.items()},
            "sha256": sha256 | {"model": model_sha256},
            "finetune": chosen.model_dump(),
        }
        return runs, content, Origin(name, model_sha256, base_models(name, source))

    with Interruption() as interruption, ExitStack() as held:
        folder = ResultFolder(Path(on_rank_zero(group, lambda: _root(out, held, resume=resume, overwrite=overwrite))))
        runs, content, origin = on_every_rank(group, opened)

        def begun() -> list[dict[str, Any]]:
            """The runs that are over."""
            held.enter_context(folder.claimed.held())
            folder.claimed.check(resume=resume, overwrite=overwrite)  # again: nobody else comes from now on
            goes_on = resume and folder.claimed.is_claimed
            return [asdict(run) for run in (folder.go_on(content) if goes_on else folder.begin(content))]

        finished = [FinishedRun(**run) for run in on_rank_zero(group, begun)]
        try:
            deciding = {**content, "finetune": {**content["finetune"], "seeds": None, "card": None}}
            fingerprint = json.dumps({name: deciding[name] for name in ("task", "sha256", "finetune")}, sort_keys=True)
            summary = runs.run(
                folder, finished, origin, fingerprint=fingerprint, interruption=interruption, callbacks=callbacks
            )
            return FineTuned(folder.root, summary)
        except UnmaskError:
            if group.is_main:
                folder.discard()
            raise


def _root(out: str | Path, held: ExitStack, *, resume: bool, overwrite: bool) -> str:
    """The folder of the result; of one at an address that whose files are sent there until `held` is left."""

    def claim(root: Path) -> ClaimedFolder:
        folder = ResultFolder(root)
        ours = {path.name for path in vars(folder).values() if isinstance(path, Path) and path != root}
        return replace(folder.claimed, ours=ours)

    return str(held.enter_context(output_folder(out, claim, resume=resume, overwrite=overwrite)).path)


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
) -> FinetuneForecast:
    """What `finetune` would do with the same options but those of its output: a few steps and predictions are timed.

    Raises:
        UnmaskError: As `finetune`.
    """
    group = join_group()
    reporter = (reporter or usual_reporter()) if group.is_main else SilentReporter()

    def opened() -> Runs:
        with examples_given(train, validation, test) as given:
            return _opened(find_model(model), task, given, chosen_settings(settings, **short), reporter, group)

    return forecast(on_every_rank(group, opened))


def _opened(
    source: Path,
    task: str,
    given: Mapping[str, ExampleFiles],
    settings: FinetuneSettings,
    reporter: Reporter,
    group: Group,
) -> Runs:
    """Model and files, read and found to fit each other."""
    kind = task_named(task)
    needs_packages()
    with files_checked(source):
        tokenizer = load_tokenizer(source)
        pretrained = load_pretrained(source, tokenizer, max_length=settings.max_length)
    pooling = pooling_for(pretrained, kind, settings.pooling)
    for name, each in given.items():
        if each.path.is_dir():
            reporter.note(
                f"{name}: {', '.join(file.name for file in each.files[:3])} ({len(each.files)}) of {each.path}"
            )
    files, learned = read_files(kind, given, settings, reporter.note, pooling=pooling)
    return Runs(pretrained, tokenizer, files, learned, settings, reporter, group)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _mean(summary: dict[str, Any], name: str) -> str:
    """Of the seeds, with half the width of its interval where they differ."""
    margin = summary["margin"][name]
    return _number(summary["mean"][name]) + ("" if margin is None else f" ± {margin:.3f}")
