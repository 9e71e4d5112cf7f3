"""Runs that share text, budget and measures, for a comparison or a search: checked, trained and measured alike."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from unmask.commands.evaluate import check_rates, evaluate
from unmask.commands.finetune import finetune
from unmask.commands.finetune_files import (
    class_weights,
    needs_packages,
    read_files,
    selecting_metric,
    settings_of,
)
from unmask.commands.from_checkpoint import check_tokenizer
from unmask.commands.masking_tables import named_lexicon
from unmask.commands.pretrain import pretrain
from unmask.commands.recipe import Recipe
from unmask.commands.recipe_files import Overrides, as_overrides
from unmask.commands.run_data import check_annotations, check_labels, check_preparation, is_prepared
from unmask.commands.run_folder import RunRequest
from unmask.commands.score import score
from unmask.core.errors import SettingsError
from unmask.core.files import ClaimedFolder, differences, file_sha256, read_object, typed, write_atomically
from unmask.core.interruption import GOES_ON, Interrupted
from unmask.core.results import Reporter
from unmask.data.data_folder import load_manifest
from unmask.data.lexicon import load_lexicon
from unmask.data.prepare import prepare
from unmask.data.sources import find_sources, find_split, is_stream
from unmask.masking.settings import STRATEGIES, Strategy
from unmask.measure.questions import check_lengths, read_pairs
from unmask.tasks.files import example_files
from unmask.tasks.loaded_model import load
from unmask.tasks.predict import task_named
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import LOWER_IS_BETTER, Labelled, Task
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.train.hardware import choose_device

EVALUATION = "evaluation.json"
Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """A task that models are fine-tuned for; without a `test` file they are compared by the validation file."""

    kind: str
    train: str
    validation: str
    test: str | None = None

    def read(self, overrides: Sequence[str]) -> tuple[dict[str, Labelled], Task, FinetuneSettings]:
        """The files as fine-tuning will read them, and what it will do."""
        kind, settings = task_named(self.kind), settings_of(overrides)
        needs_packages()
        paths = {name: example_files(Path(path)) for name, path in self.paths.items()}
        files, task = read_files(kind, paths, settings, lambda remark: None)  # every run reports it
        selecting_metric(task, settings.metric)
        return files, task, settings

    @property
    def paths(self) -> dict[str, str]:
        """The files that there are, by what they are for."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: path for name, path in every.items() if path is not None}


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What all runs share.

    Attributes:
        data: Files, folders or patterns of text, or one prepared folder.
        minutes, steps: Budget of each run; one of them.
        rates: Shares of hidden tokens at which all are measured.
        base: Recipe of masking strategies; None is the default.
        settings: `section.key=value` overrides for all; those of `finetune` are for the task.
        pairs: Minimal pairs; None leaves them out.
        task: A task that each model is fine-tuned for; None leaves it out.
    """

    data: tuple[str, ...]
    minutes: float | None = None
    steps: int | None = None
    rates: tuple[float, ...] = (0.15,)
    base: str | None = None
    settings: tuple[str, ...] = ()
    pairs: str | None = None
    task: TaskFiles | None = None

    @classmethod
    def of(
        cls,
        data: Paths,
        minutes: float | None,
        steps: int | None,
        rates: Sequence[float],
        base: str | None,
        settings: Overrides,
        pairs: str | Path | None,
        *,
        task: tuple[str | Path | None, ...],
    ) -> RunPlan:
        """The plan of the options that `compare` and `tune` share; `task` is its kind and its files.

        Raises:
            SettingsError: An option is missing, given twice, or out of range.
        """
        kind, train, validation, test = (None if each is None else str(each) for each in task)
        files = None
        if kind is not None and train is not None and validation is not None:
            files = TaskFiles(kind=kind, train=train, validation=validation, test=test)
        elif any(each is not None for each in task):
            needed = ["task", "train", "validation"]
            raise SettingsError("a task takes its kind, a training and a validation file", options=needed)
        plan = cls(
            data=(str(data),) if isinstance(data, str | Path) else tuple(map(str, data)),
            minutes=minutes,
            steps=steps,
            rates=tuple(rates),
            base=base,
            settings=as_overrides(settings),
            pairs=None if pairs is None else str(pairs),
            task=files,
        )
        if (minutes is None) == (steps is None):
            raise SettingsError("give either minutes or steps for each run", options=["minutes", "steps"])
        check_rates(plan.rates)
        if files is None and plan.of_finetuning:
            raise SettingsError(f"{plan.of_finetuning[0]}: no task is given", options=["task"])
        if seed := next((setting for setting in plan.settings if setting.startswith("training.seed=")), None):
            raise SettingsError(f"{seed}: runs differ by their seeds, which are 0, 1, ...; leave it out")
        return plan

    def request(self, name: str, *, seed: int, overrides: Sequence[str] = ()) -> RunRequest:
        """The options of a run.

        Args:
            name: Of a recipe or a masking strategy, or a recipe's file.
            seed: Of the run.
            overrides: Settings of this run alone, above those of all.
        """
        is_strategy = name in STRATEGIES
        return RunRequest(
            recipe=self.base if is_strategy else name,
            strategy=name if is_strategy else None,
            minutes=self.minutes,
            steps=self.steps,
            seed=seed,
            settings=(*(each for each in self.settings if each not in self.of_finetuning), *overrides),
        )

    @property
    def of_finetuning(self) -> tuple[str, ...]:
        """The overrides for the task."""
        return tuple(setting for setting in self.settings if setting.startswith("finetune."))


def state_of(folder: ClaimedFolder) -> dict[str, Any]:
    """What the folder of many runs is for, and what was done in it."""
    assert folder.marker is not None
    return read_object(folder.root / folder.marker, "give another folder")


def begin(
    folder: ClaimedFolder,
    plan: RunPlan,
    recipes: Mapping[str, Recipe],
    asked: Mapping[str, Any],
    every_recipe: Mapping[str, Recipe],
    reporter: Reporter,
) -> tuple[str, ...]:
    """Checks everything that the runs will read, claims their folder, and prepares the text once for all.

    Args:
        folder: Of the runs; several processes may share it.
        plan: What the runs share.
        recipes: By name; the folder is for these settings.
        asked: What else the folder is for.
        every_recipe: All recipes that runs may have.
        reporter: Called with the progress.

    Returns:
        The prepared data.

    Raises:
        UnmaskError: Something cannot be used; or the folder holds something else, or has other recipes or files.
    """
    content = {
        "asked": {**asked, **asdict(plan)},
        "recipes": {name: recipe.model_dump(mode="json", exclude={"card"}) for name, recipe in recipes.items()},
        "files": read_inputs(every_recipe, plan),
    }
    content = json.loads(json.dumps(content))
    folder.make()
    with folder.locked():
        if not folder.is_claimed:
            folder.check_names()
            folder.claim(json.dumps(content, indent=1) + "\n")
        else:
            begun = state_of(folder)
            folder.check_same(begun["asked"], content["asked"])  # first, since the rest follows from it
            folder.check_same(begun["recipes"], content["recipes"], of="recipe ")
            for path, old, new in differences(begun["files"], content["files"]):
                change = "is new" if old is None else "is gone" if new is None else "has changed"
                raise folder.changed(f"that was begun with other files: {path} {change}")
        if is_prepared(plan.data):
            return plan.data
        recipe = next(iter(recipes.values()))
        prepare(
            plan.data,
            folder.root / "data",
            corpus=recipe.corpus,
            tokenizer=_tokenizer_of(recipe),
            annotation=recipe.annotation,
            resume=True,
            notify=reporter.notify,
            note=reporter.note,
        )
    data = (str(folder.root / "data"),)
    _check_pairs_fit(every_recipe, plan, data)
    return data


def measured_run(
    name: str,
    plan: RunPlan,
    *,
    seed: int,
    data: Sequence[str],
    folder: Path,
    reporter: Reporter,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """The figures of a run, which is made, or made to its end, where they are not known yet.

    Args:
        name: Of a recipe or a masking strategy, or a recipe's file.
        plan: Budget and measures.
        seed: Of the run.
        data: One prepared folder.
        folder: Of the run; its figures are written into it last.
        reporter: Called with the progress.
        overrides: Settings of this run alone, above those of all.

    Returns:
        What `evaluate` returns, with `name`, `seed`, `steps` and, where they are measured, `pairs_error` and
        `task_error` (1 - the task's metric on the test file, else on the validation file; or the metric itself where
        less of it is better) with `task_metric` and `task_measured_on`.

    Raises:
        UnmaskError: As `pretrain`, `evaluate`, `score` and `finetune`.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    file = folder / EVALUATION
    if not file.is_file():
        request = plan.request(name, seed=seed, overrides=overrides)
        try:
            run = pretrain(
                data,
                out=folder,
                recipe=request.recipe,
                strategy=cast(Strategy | None, request.strategy),
                minutes=plan.minutes,
                steps=plan.steps,
                seed=seed,
                settings=request.settings,
                resume=True,
                reporter=reporter,
            )
        except Interrupted as error:  # the run's own text says how it goes on by itself
            raise Interrupted(error.signum, f"stopped; {GOES_ON}") from error
        model = load(run.folder / "model")
        model.to(choose_device())
        figures = evaluate(model, data, rates=plan.rates, pseudo_tokens=0, notify=reporter.notify)
        content = {"name": name, "seed": seed, **figures.to_dict(), "steps": run.summary["steps"]}
        if plan.pairs is not None:
            content["pairs_error"] = 1.0 - score(model, plan.pairs, notify=reporter.notify)["accuracy"]
        if plan.task is not None:
            content |= _task_error(run.folder, plan, plan.task, seed, reporter)
        write_atomically(file, json.dumps(content, indent=1) + "\n")
    return read_object(file, "take it away, and the same command measures the run again")


def _task_error(run: Path, plan: RunPlan, task: TaskFiles, seed: int, reporter: Reporter) -> dict[str, Any]:
    out = run / "finetuned"
    summary = finetune(
        run / "model",
        task=task.kind,
        train=task.train,
        validation=task.validation,
        test=task.test,
        out=out,
        settings=(f"finetune.seed={seed}", *plan.of_finetuning),
        overwrite=out.exists(),
        reporter=reporter,
    ).summary
    metric = summary["metric"]
    value = summary["mean" if task.test is None else "test_mean"][metric]
    shutil.rmtree(out / "model", ignore_errors=True)
    return {
        "task_error": None if value is None else value if metric in LOWER_IS_BETTER else 1.0 - value,
        "task_metric": metric,
        "task_measured_on": "validation" if task.test is None else "test",
    }


# --------------------------------------------------------------------------------------------------------------------
# What the runs depend on: read, checked and hashed before the first of them


def read_inputs(recipes: Mapping[str, Recipe], plan: RunPlan) -> dict[str, str]:
    """Reads all files that the runs will read, and finds out what does not fit.

    Returns:
        A hash of the content by path: of text or prepared data, lexicons, minimal pairs and labelled files.

    Raises:
        UnmaskError: A file is missing or cannot be used; the text lacks something that a recipe needs, or a recipe adds
            words to its checkpoint's tokenizer; or, of raw text, recipes prepare it differently.
    """
    hashes = _hash_text(recipes, plan.data)
    lexicons = {path for recipe in recipes.values() if (path := named_lexicon(recipe.masking)) is not None}
    hashes |= {str(path): load_lexicon(path).fingerprint for path in sorted(lexicons)}
    if plan.pairs is not None:
        pairs = [[pair.good, pair.bad, pair.paradigm, pair.phenomenon] for pair in read_pairs(Path(plan.pairs))]
        hashes[plan.pairs] = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    if plan.task is not None:
        files, task, settings = plan.task.read(plan.of_finetuning)
        class_weights(files["train"], task, settings.class_weights)
        hashes |= {path: example_files(Path(path)).sha256 for path in plan.task.paths.values()}
    if is_prepared(plan.data):
        _check_pairs_fit(recipes, plan, plan.data)
    return hashes


def items_of(plan: RunPlan) -> dict[str, int]:
    """Of how many items those figures are shares that are shares, by the figure.

    Of tags an item is a word; of entities a word that is in one. With several seeds of fine-tuning each item counts as
    often as it is judged.
    """
    items = {} if plan.pairs is None else {"pairs_error": len(read_pairs(Path(plan.pairs)))}
    if plan.task is not None:
        files, task, settings = plan.task.read(plan.of_finetuning)
        number = task.items(files.get("test", files["validation"]).records, selecting_metric(task, settings.metric))
        if number is not None:
            items["task_error"] = max(1, number) * settings.seeds
    return items


def _tokenizer_of(recipe: Recipe) -> TokenizerSettings:
    """What text is tokenized with for a recipe: a checkpoint brings its own tokenizer."""
    return recipe.tokenizer if recipe.start is None else TokenizerSettings(path=recipe.start.checkpoint)


def _check_pairs_fit(recipes: Mapping[str, Recipe], plan: RunPlan, data: Sequence[str]) -> None:
    """Makes sure that every model takes the minimal pairs, whose lengths the prepared data's tokenizer tells."""
    if plan.pairs is None:
        return
    lengths = (recipe.model.max_position_embeddings or recipe.training.sequence_length for recipe in recipes.values())
    check_lengths(read_pairs(Path(plan.pairs)), load_tokenizer(Path(data[0]) / "tokenizer"), longest=min(lengths))


def _hash_text(recipes: Mapping[str, Recipe], data: Sequence[str]) -> dict[str, str]:
    manifest = load_manifest(Path(data[0])) if is_prepared(data) else None
    for name, recipe in recipes.items():
        if recipe.start is not None and recipe.start.extend_vocab is not None:
            raise SettingsError(
                f"{name}: start.extend_vocab gives each run a tokenizer of its own, but runs that are compared share "
                f"their tokens; add the words before, with unmask pretrain TEXT --from {typed(recipe.start.checkpoint)}"
                f" --extend-vocab {recipe.start.extend_vocab} --steps 1 --out RUN, and begin with RUN/start"
            )
        check_annotations(recipe, manifest)
        check_labels(recipe, manifest)
        if manifest is not None:
            check_preparation(Path(data[0]), manifest, recipe)
            if recipe.start is not None:
                check_tokenizer(Path(data[0]), manifest, recipe.start.checkpoint, recipe.start.checkpoint)
    if manifest is not None:
        return {data[0]: manifest.fingerprint}
    corpus = _check_alike(recipes).corpus
    paths = [path for path in data if not is_stream(path)]  # what came from a stream is kept
    split = find_split(paths, by_name=corpus.splits == "auto", announce=False) if paths else None
    sources = [] if split is None else [*split.train, *split.validation]
    if corpus.validation:
        sources = [*([] if split is None else split.train), *find_sources(corpus.validation, announce=False)]
    return {str(source.path): file_sha256(source.path) for source in sources}


def _check_alike(recipes: Mapping[str, Recipe]) -> Recipe:
    """The first of the recipes, which all prepare text as it does."""
    (first_name, first), *others = recipes.items()
    for name, recipe in others:
        for section in ("corpus", "tokenizer", "annotation"):
            way_out = f"set {section}.KEY for all, or compare other recipes"
            is_same = getattr(recipe, section) == getattr(first, section)
            if section == "tokenizer":
                one, other = _tokenizer_of(first), _tokenizer_of(recipe)
                is_same = one == other
                if not is_same and one.path is not None and other.path is not None:
                    is_same = load_tokenizer(one.path).fingerprint == load_tokenizer(other.path).fingerprint
                if first.start is not None or recipe.start is not None:
                    way_out = (
                        "a checkpoint brings its own tokenizer: begin with checkpoints that have the same, and name it "
                        "in recipes without one (tokenizer.path)"
                    )
            if not is_same:
                raise SettingsError(
                    f"{first_name} and {name} prepare text differently ([{section}]), but runs that are compared share "
                    f"their tokens; {way_out}",
                    options=["set"],
                )
    return first
