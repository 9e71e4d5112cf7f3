"""Comparing recipes and searching a recipe's numbers, as verbs."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tomli_w

from unmask.commands.evaluate import check_rates, evaluate
from unmask.commands.finetune import finetune
from unmask.commands.finetune_run import Files, class_weights, needs_packages, read_files, selecting_metric, settings_of
from unmask.commands.from_checkpoint import check_tokenizer
from unmask.commands.lexicon import named_lexicon
from unmask.commands.pretrain import pretrain
from unmask.commands.recipe import Overrides, Recipe, as_overrides, toml_value
from unmask.commands.reporting import Reporter, usual_reporter
from unmask.commands.run_data import check_annotations, check_labels, check_preparation, is_prepared
from unmask.commands.run_folder import RunRequest
from unmask.commands.score import score
from unmask.commands.training_run import GOES_ON, Interrupted
from unmask.core.errors import DivergedError, MemoryFullError, RunError, SettingsError, shortened
from unmask.core.files import ClaimedFolder, differences, file_sha256, read_object, typed, write_atomically
from unmask.core.remote import refused
from unmask.core.results import Result, Sheet, Shown
from unmask.data.data_folder import load_manifest
from unmask.data.lexicon import load_lexicon
from unmask.data.prepare import prepare
from unmask.data.sources import SourceSplit, find_sources, find_split, is_stream
from unmask.masking.settings import STRATEGIES, Strategy
from unmask.measure.questions import check_lengths, read_pairs
from unmask.measure.uncertainty import PairedComparison, compare_figures, error_of_look, percent
from unmask.report.plots import comparison_plot, search_plot
from unmask.tasks.files import example_files
from unmask.tasks.loaded_model import load
from unmask.tasks.predict import task_named
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import LOWER_IS_BETTER, Task
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.settings import TokenizerSettings
from unmask.train.hardware import choose_device

if TYPE_CHECKING:
    import optuna

# ----------------------------------------
# Folders of many runs: what they were begun for, and the text that all of them are trained on.


def folder_of_runs(root: Path, marker: str, what: str) -> ClaimedFolder:
    """A folder of many runs, which several processes may share.

    Args:
        root: The folder.
        marker: Name of the file that says what it is for.
        what: The kind of folder, with its article.
    """
    return ClaimedFolder(root=root, marker=marker, what=what, options=())


def claim(folder: ClaimedFolder, content: Mapping[str, Any], *, unsaid: Mapping[str, Any] | None = None) -> None:
    """Writes what a folder is for into it, or checks that it is for the same.

    Args:
        folder: Made where missing.
        content: What it is for: `asked` (what the user said), `recipes` (all their settings, by name) and `files` (the
            hash of each, by path). So a recipe or a text that was edited meanwhile is not the same.
        unsaid: What a folder was asked for where its file, of an earlier version, does not say it.

    Raises:
        RunError: The folder holds something else; the text names the first thing that is not the same.
    """
    plain = json.loads(json.dumps(content))
    folder.make()
    with folder.locked():
        if folder.is_claimed:
            begun = _read(folder)
            begun["asked"] = {**(unsaid or {}), **begun.get("asked", {})}
            _check_same(folder, begun, plain)
        else:
            folder.check_names()
            folder.claim(json.dumps(plain, indent=1) + "\n")


def _read(folder: ClaimedFolder) -> dict[str, Any]:
    assert folder.marker is not None
    return read_object(folder.root / folder.marker, "give another --out")


def _check_same(folder: ClaimedFolder, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """What was asked for comes first, since the rest follows it."""
    folder.check_same(begun.get("asked", {}), now["asked"])
    before = begun.get("recipes", {})
    for key, old, new in differences(before, now["recipes"]):
        if old is None and key.endswith("masking.budget"):
            raise RunError(
                f"{folder.root} holds {folder.what} that was begun by an earlier version, whose masks fill a budget of "
                f"tokens ({key} = 'tokens'), but now it is {new!r}, and runs of both are not alike; give another --out"
            )
        break
    folder.check_same(before, now["recipes"], of="recipe ")
    for path, old, new in differences(begun.get("files", {}), now["files"]):
        change = "is new" if old is None else "is gone" if new is None else "has changed"
        raise folder.changed(f"that was begun with other files: {path} {change}")


def ask_for_seeds(folder: ClaimedFolder, seeds: int) -> int:
    """Writes down how many seeds are asked for, where that is more than ever before.

    It is done before the first run: each run's figures are seen as soon as it ends, so who may stop anywhere chooses
    among all numbers of seeds up to this one.

    Args:
        folder: Claimed.
        seeds: How many are asked for now.

    Returns:
        The most that were ever asked for.

    Raises:
        RunError: The file is damaged.
    """
    with folder.locked():
        content = _read(folder)
        looks = content.get("looks", [])
        known = max([content.get("most_seeds", 0), *(look["seeds"] for look in looks)])
        if seeds > content.get("most_seeds", 0):
            folder.claim(json.dumps({**content, "most_seeds": max(seeds, known)}, indent=1) + "\n")
    return max(seeds, known)


def look_number(folder: ClaimedFolder, figures: object, *, seeds: int, most_seeds: int) -> int:
    """Which look of a comparison this is; one that is new is written down beside what the folder is for.

    To see the same figures again is the same look, also where others came between. One on fewer seeds than were ever
    asked for may have been chosen by what runs printed. So it counts as if every number of seeds up to it had been
    looked at: with n seeds it is look n at the least, which leaves look 1 to the number that was asked for. All looks
    after it come behind it.

    Args:
        folder: Claimed.
        figures: All that is judged, as JSON can say it.
        seeds: How many there are.
        most_seeds: The most that were ever asked for.

    Returns:
        From 1 on.

    Raises:
        RunError: The file is damaged.
    """
    new = {"seeds": seeds, "figures": hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()}
    with folder.locked():
        content = _read(folder)
        looks = [{"look": place, **look} for place, look in enumerate(content.get("looks", []), 1)]
        for look in looks:
            if new.items() <= look.items():
                return int(look["look"])
        number = next_look([int(look["look"]) for look in looks], seeds=seeds, most_seeds=most_seeds)
        looks.append({"look": number, **new})
        folder.claim(json.dumps({**content, "looks": looks}, indent=1) + "\n")
    return number


def next_look(before: Sequence[int], *, seeds: int, most_seeds: int) -> int:
    """The number of a look at figures that were not looked at; see `look_number`."""
    return max(max(before, default=0) + 1, seeds if seeds < most_seeds else 1)


def tokenizer_of(recipe: Recipe) -> TokenizerSettings:
    """What text is tokenized with for a recipe: a checkpoint brings its own tokenizer."""
    return recipe.tokenizer if recipe.start is None else TokenizerSettings(path=recipe.start.checkpoint)


def common_data(paths: tuple[str, ...], folder: ClaimedFolder, recipe: Recipe, reporter: Reporter) -> tuple[str, ...]:
    """The prepared data of all runs: as given, or made in the folder once, while other processes wait.

    Args:
        paths: Of the text, or a prepared folder.
        folder: Of the runs.
        recipe: Says how text is prepared, for all.
        reporter: Told of the progress.

    Raises:
        UnmaskError: As `unmask.data.prepare.prepare`.
    """
    if is_prepared(paths):
        return paths
    with folder.locked():
        prepare(
            paths,
            folder.root / "data",
            corpus=recipe.corpus,
            tokenizer=tokenizer_of(recipe),
            annotation=recipe.annotation,
            resume=True,
            notify=reporter.notify,
            note=reporter.note,
        )
    return (str(folder.root / "data"),)


# ----------------------------------------
# One run of many: trained at the common budget, and measured as all others are.

EVALUATION = "evaluation.json"
_FINETUNE, _SEED = "finetune.", "training.seed="


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """A task that models are fine-tuned for, to be compared by it.

    Attributes:
        kind: `classify`, `regress`, `pairs`, `tag` or `answer`.
        train, validation: As for `unmask.finetune`.
        test: What the models are compared by; None: the validation file, by which the best epoch is told too.
    """

    kind: str
    train: str
    validation: str
    test: str | None = None

    @property
    def paths(self) -> dict[str, str]:
        """The files that there are, by what they are for."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: path for name, path in given.items() if path is not None}


def task_files(
    kind: str | None, train: str | None, validation: str | None, test: str | None = None
) -> TaskFiles | None:
    """A task as the options name it; None where they name none.

    Raises:
        SettingsError: Some of the options are given, and not all of the first three.
    """
    if kind is None and train is None and validation is None and test is None:
        return None
    if kind is None or train is None or validation is None:
        raise SettingsError("a task to fine-tune for takes all of --task, --train and --validation")
    return TaskFiles(kind=kind, train=train, validation=validation, test=test)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What all runs share.

    Attributes:
        minutes, steps: Budget of each run; one of them.
        rates: Shares of hidden tokens at which all are measured.
        pairs: Minimal pairs; None leaves them out.
        task: A task that each model is fine-tuned for; None leaves it out.
        base: Recipe of masking strategies; None is the default.
        settings: `section.key=value` overrides for all; those of `finetune` are for the task.
    """

    minutes: float | None = None
    steps: int | None = None
    rates: tuple[float, ...] = (0.15,)
    pairs: str | None = None
    task: TaskFiles | None = None
    base: str | None = None
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises: SettingsError: The budget is missing or given twice, a rate is out of range, there is no task to
        fine-tune for, or all seeds would be the same."""
        if (self.minutes is None) == (self.steps is None):
            raise SettingsError("give either minutes or steps for each run")
        check_rates(self.rates)
        if self.task is None and self.of_finetuning:
            raise SettingsError(f"--set {self.of_finetuning[0]}: no task is given; name one with --task")
        if seed := next((setting for setting in self.settings if setting.startswith(_SEED)), None):
            raise SettingsError(f"--set {seed}: runs differ by their seeds, which are 0, 1, ...; leave it out")

    def request(self, name: str, *, seed: int, overrides: Sequence[str] = ()) -> RunRequest:
        """What is asked of `pretrain` for a run.

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
            settings=(*self.of_pretraining, *overrides),
        )

    @property
    def of_finetuning(self) -> tuple[str, ...]:
        """The overrides for the task."""
        return tuple(setting for setting in self.settings if setting.startswith(_FINETUNE))

    @property
    def of_pretraining(self) -> tuple[str, ...]:
        """The overrides for the recipe."""
        return tuple(setting for setting in self.settings if not setting.startswith(_FINETUNE))


def measured_run(
    name: str,
    protocol: Protocol,
    *,
    seed: int,
    data: Sequence[str],
    folder: Path,
    reporter: Reporter,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """What a run came to; it is made, or made to its end, where that is not known yet.

    Args:
        name: Of a recipe or a masking strategy, or a recipe's file.
        protocol: Budget and measures.
        seed: Of the run.
        data: Files, folders or patterns of text, or one prepared folder.
        folder: Of the run; what it came to is written into it last.
        reporter: Told of the progress.
        overrides: Settings of this run alone, above those of all.

    Returns:
        What `evaluate` returns, with `name`, `seed`, `steps` and, where they are measured, `pairs_error` and
        `task_error` (1 - the task's metric on the test file, else on the validation file; or the metric itself where
        less of it is better) with `task_metric` and `task_measured_on`; or what `failed_run` wrote down.

    Raises:
        UnmaskError: As `pretrain`, `evaluate`, `score` and `finetune`.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    file = folder / EVALUATION
    if not file.is_file():
        asked = protocol.request(name, seed=seed, overrides=overrides)
        try:
            run = pretrain(
                data,
                out=folder,
                recipe=asked.recipe,
                strategy=cast(Strategy | None, asked.strategy),
                minutes=asked.minutes,
                steps=asked.steps,
                seed=seed,
                settings=asked.settings,
                resume=True,
                reporter=reporter,
            )
        except Interrupted as error:  # it says how the run goes on by itself
            raise Interrupted(error.signum, f"stopped; {GOES_ON}") from error
        model = load(run.folder / "model")
        model.to(choose_device())
        measured = evaluate(model, data, rates=protocol.rates, pseudo_tokens=0, notify=reporter.notify)
        content = {"name": name, "seed": seed, **measured.to_dict(), "steps": run.summary["steps"]}
        if protocol.pairs is not None:
            content["pairs_error"] = 1.0 - score(model, protocol.pairs, notify=reporter.notify)["accuracy"]
        if protocol.task is not None:
            content |= _task_error(run.folder, protocol, protocol.task, seed, reporter)
        write_atomically(file, json.dumps(content, indent=1) + "\n")
    return read_object(file, "take it away, and the same command measures the run again")


def failed_run(name: str, seed: int, folder: Path, reason: str) -> dict[str, Any]:
    """Writes down that a run has no figures, so that it is not made again. Removing its folder forgets that.

    Args:
        name, seed: Of the run.
        folder: Of the run.
        reason: Why.

    Returns:
        What `measured_run` returns from then on: `name`, `seed` and `failed` (the reason).
    """
    content = {"name": name, "seed": seed, "failed": reason}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / EVALUATION, json.dumps(content, indent=1) + "\n")
    return content


def _task_error(run: Path, protocol: Protocol, task: TaskFiles, seed: int, reporter: Reporter) -> dict[str, Any]:
    out = run / "finetuned"
    settings = (f"finetune.seed={seed}", *protocol.of_finetuning)
    summary = finetune(
        run / "model",
        task=task.kind,
        train=task.train,
        validation=task.validation,
        test=task.test,
        out=out,
        settings=settings,
        overwrite=out.exists(),
        reporter=reporter,
    ).summary
    metric = summary["metric"]
    value = summary["mean" if task.test is None else "test_mean"][metric]
    shutil.rmtree(out / "model", ignore_errors=True)
    error = None if value is None else value if metric in LOWER_IS_BETTER else 1.0 - value
    measured_on = "validation" if task.test is None else "test"
    return {"task_error": error, "task_metric": metric, "task_measured_on": measured_on}


# ----------------------------------------
# Which numbers of a recipe are searched, and between what: `KEY=LOW..HIGH` or `KEY=A,B,C`.

LOG_FROM = 4.0  # a range whose ends are that many times apart is searched by factors, not by sums


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included.

    Attributes:
        key: Of the setting, `section.key`.
        low, high: Both whole numbers, or both not.
    """

    key: str
    low: float
    high: float

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def log(self) -> bool:
        """Whether equal factors are equally likely."""
        return self.low > 0 and self.high / self.low >= LOG_FROM

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and (not self.whole or float(value).is_integer())


@dataclass(frozen=True)
class DimensionChoice:
    """One of several values.

    Attributes:
        key: Of the setting, `section.key`.
        values: As TOML has them; texts, numbers and booleans.
    """

    key: str
    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        return value in self.values


Dimension = Range | DimensionChoice


def read_dimension(text: str) -> Dimension:
    """What `--search` is given.

    Raises:
        SettingsError: It is neither a range nor a choice.
    """
    key, sign, values = (part.strip() for part in text.partition("="))
    if not sign or "." not in key:
        raise _malformed(text)
    low, dots, high = values.partition("..")
    if not dots:
        choice = tuple(_value(text, part) for part in values.split(","))
        if any(isinstance(each, list | dict) for each in choice):
            raise _malformed(text)
        if len(choice) < 2 or len(set(choice)) < len(choice):
            raise _malformed(text)
        return DimensionChoice(key, choice)
    ends = _value(text, low), _value(text, high)
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise _malformed(text)
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise SettingsError(f"--search {text}: the first end must be less than the second")
    whole = all(isinstance(end, int) for end in ends)
    return Range(key, *(ends if whole else map(float, ends)))


def _malformed(text: str) -> SettingsError:
    return SettingsError(
        f"--search {shortened(text)}: expected KEY=LOW..HIGH or KEY=A,B,..., for example "
        "training.learning_rate=0.001..0.02 or model.num_layers=2,4,6"
    )


def _value(text: str, part: str) -> Any:
    try:
        return toml_value(part.strip())
    except ValueError as error:
        raise SettingsError(f"--search {shortened(text)}: a value cannot be read: {error}") from error


def usual_dimensions(recipe: Recipe) -> tuple[Dimension, ...]:
    """What is searched unless something else is asked for: learning rate, tokens a step, layers and the mask rate.

    A checkpoint has the layers that it has.
    """
    training, layers = recipe.training, recipe.model.num_layers
    rate, tokens = training.learning_rate, training.batch_tokens
    smaller = max(training.sequence_length, tokens // 2)
    key = "masking.rate" if own_value(recipe, "masking.rate.start") is None else "masking.rate.start"
    depth = (Range("model.num_layers", max(1, layers // 2), layers * 2),) if recipe.start is None else ()
    return (
        Range("training.learning_rate", rate / 4.0, rate * 4.0),
        DimensionChoice("training.batch_tokens", tuple(sorted({smaller, tokens, tokens * 2}))),
        *depth,
        Range(key, 0.1, 0.5),
    )


def own_value(recipe: Recipe, key: str) -> Any:
    """What the recipe says; None where it has no such value."""
    value: Any = recipe.model_dump()
    for part in key.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def as_override(key: str, value: Any) -> str:
    """`section.key=value`, as `--set` takes it."""
    return f"{key}={tomli_w.dumps({'value': value}).partition('=')[2].strip()}"


def check_apart(dimensions: Sequence[Dimension]) -> None:
    """Raises: SettingsError: A key is searched twice, or beside one of its own keys."""
    keys = [dimension.key for dimension in dimensions]
    for place, key in enumerate(keys):
        for other in keys[place + 1 :]:
            if f"{other}.".startswith(f"{key}.") or f"{key}.".startswith(f"{other}."):
                raise SettingsError(f"--search: {key} and {other} cannot both be searched")


# ----------------------------------------
# What many runs depend on: read, checked and hashed before the first of them is trained.

_OF_TEXT = ("corpus", "tokenizer", "annotation")  # sections that say how text is prepared


def read_inputs(recipes: Mapping[str, Recipe], protocol: Protocol, data: Sequence[str]) -> dict[str, str]:
    """Reads all files that the runs will read, and finds out what does not fit.

    Args:
        recipes: All that runs are made of, by name.
        protocol: Names minimal pairs and the files of a task.
        data: Files, folders or patterns of text, or one prepared folder.

    Returns:
        A hash of the content by path: of text or prepared data, lexicons, minimal pairs and labelled files.

    Raises:
        UnmaskError: A file is missing or cannot be used; a recipe needs of the text what it does not have, or adds
            words to its checkpoint's tokenizer; or, of raw text, recipes prepare it differently.
    """
    found = {**_text(recipes, data), **_lexicons(recipes), **_pairs(protocol), **_task(protocol)}
    if is_prepared(data):
        check_pairs_fit(recipes, protocol, data)
    return found


def check_pairs_fit(recipes: Mapping[str, Recipe], protocol: Protocol, data: Sequence[str]) -> None:
    """Makes sure that every model takes the minimal pairs. Of raw text that is known once it is prepared.

    Args:
        recipes: By name.
        protocol: Names the pairs, or none.
        data: A prepared folder, whose tokenizer tells their lengths.

    Raises:
        SettingsError: A sentence is too long; with file and line.
    """
    if protocol.pairs is None:
        return
    lengths = (recipe.model.max_position_embeddings or recipe.training.sequence_length for recipe in recipes.values())
    check_lengths(read_pairs(Path(protocol.pairs)), load_tokenizer(Path(data[0]) / "tokenizer"), longest=min(lengths))


def _text(recipes: Mapping[str, Recipe], data: Sequence[str]) -> dict[str, str]:
    manifest = load_manifest(Path(data[0])) if is_prepared(data) else None
    for name, recipe in recipes.items():
        _check_words(name, recipe)
        check_annotations(recipe, manifest)
        check_labels(recipe, manifest)
        if manifest is not None:
            check_preparation(Path(data[0]), manifest, recipe)
            if recipe.start is not None:
                check_tokenizer(Path(data[0]), manifest, recipe.start.checkpoint, recipe.start.checkpoint)
    if manifest is not None:
        return {data[0]: manifest.fingerprint}
    first = _alike(recipes)
    held, by_name = first.corpus.validation, first.corpus.splits == "auto"
    paths = [path for path in data if not is_stream(path)]  # what came there is kept
    found = find_split(paths, by_name=by_name, announce=False) if paths else SourceSplit([], [])
    named = find_sources(held, announce=False) if held else found.validation
    return {str(source.path): file_sha256(source.path) for source in (*found.train, *named)}


def _alike(recipes: Mapping[str, Recipe]) -> Recipe:
    """The first of the recipes, which all prepare text as it does."""
    (first_name, first), *others = recipes.items()
    for name, recipe in others:
        for section in _OF_TEXT:
            way_out = f"set it for all with --set {section}.KEY=VALUE, or compare other recipes"
            same = getattr(recipe, section) == getattr(first, section)
            if section == "tokenizer":
                same = _share_tokenizer(first, recipe)
                if first.start is not None or recipe.start is not None:
                    way_out = (
                        "a checkpoint brings its own tokenizer: begin with checkpoints that have the same, and name it "
                        "in recipes without one (tokenizer.path)"
                    )
            if not same:
                raise SettingsError(
                    f"{first_name} and {name} prepare text differently ([{section}]), but runs that are compared share "
                    f"their tokens; {way_out}"
                )
    return first


def _share_tokenizer(one: Recipe, other: Recipe) -> bool:
    """Whether text becomes the same tokens, whatever folders the tokenizers lie in."""
    first, second = tokenizer_of(one), tokenizer_of(other)
    if first == second or first.path is None or second.path is None:
        return first == second
    return load_tokenizer(first.path).fingerprint == load_tokenizer(second.path).fingerprint


def _check_words(name: str, recipe: Recipe) -> None:
    """Makes sure that no run has a tokenizer of its own."""
    if recipe.start is not None and recipe.start.extend_vocab is not None:
        raise SettingsError(
            f"{name}: start.extend_vocab gives each run a tokenizer of its own, but runs that are compared share their "
            f"tokens; add the words before, with unmask pretrain TEXT --from {typed(recipe.start.checkpoint)} "
            f"--extend-vocab {recipe.start.extend_vocab} --steps 1 --out RUN, and begin with RUN/start"
        )


def _lexicons(recipes: Mapping[str, Recipe]) -> dict[str, str]:
    paths = {path for recipe in recipes.values() if (path := named_lexicon(recipe.masking)) is not None}
    return {str(path): load_lexicon(path).fingerprint for path in sorted(paths)}


def _pairs(protocol: Protocol) -> dict[str, str]:
    if protocol.pairs is None:
        return {}
    pairs = [[pair.good, pair.bad, pair.paradigm, pair.phenomenon] for pair in read_pairs(Path(protocol.pairs))]
    return {protocol.pairs: hashlib.sha256(json.dumps(pairs).encode()).hexdigest()}


def _task(protocol: Protocol) -> dict[str, str]:
    if protocol.task is None:
        return {}
    files, task, settings = _task_read(protocol.task, protocol.of_finetuning)
    class_weights(files.train, task, settings.class_weights)
    return {path: example_files(Path(path)).sha256 for path in protocol.task.paths.values()}


def _task_read(named: TaskFiles, overrides: Sequence[str]) -> tuple[Files, Task, FinetuneSettings]:
    """The files as fine-tuning will read them, and what it will do."""
    kind, settings = task_named(named.kind), settings_of(overrides)
    needs_packages()
    paths = {name: example_files(Path(path)) for name, path in named.paths.items()}
    files, task = read_files(kind, paths, settings, lambda remark: None)  # every run says it
    selecting_metric(task, settings.metric)
    return files, task, settings


def items_of(protocol: Protocol) -> dict[str, int]:
    """Of how many items those figures are shares that are shares, by the figure.

    Of tags an item is a word; of entities a word that is in one, of fine-tuning with several seeds each item counts as
    often as it is judged.

    Raises:
        UnmaskError: As `read_inputs`.
    """
    found = {} if protocol.pairs is None else {"pairs_error": len(read_pairs(Path(protocol.pairs)))}
    if protocol.task is None:
        return found
    files, task, settings = _task_read(protocol.task, protocol.of_finetuning)
    items = task.items((files.test or files.validation).records, selecting_metric(task, settings.metric))
    return found if items is None else found | {"task_error": max(1, items) * settings.seeds}


# ----------------------------------------
# Comparing recipes: each trained at equal budget with the same seeds in turn, measured alike, and judged by pairs.
#
# OUT/compare_plan.json     what was asked for, and the looks that were taken; a folder with it holds a comparison
#     data/            the text, prepared once for all, unless prepared data was given
#     runs/NAME-SEED/  the runs; evaluation.json in each says what it came to or why it failed, and is written last
#     result.json      figures, differences and the verdict
#     result.svg       the deciding figure with its intervals
#
# Turns go seed by seed, and within a seed each recipe once, beginning with another one each time: so what the machine
# does beside falls on all of them. Stopped at any moment, the same command goes on, as long as recipes and files are
# what
# they were. A run that diverges or does not fit into memory has failed, and the others are judged.
#
# One figure decides, and is named before the first run. A verdict on figures that were not judged before (more seeds,
# or
# a run made again) is another look, and each look widens the intervals; `unmask.measure.uncertainty` says how
# far. The number of seeds is written down before the first run too: a verdict on fewer of them is a late look, since
# runs
# tell their figures as they end, and where to stop may have been chosen by these.

ASKED = "compare_plan.json"
FIGURES = {
    "loss": "loss",
    "bits_per_byte": "bits per byte",
    "pairs_error": "share of wrong minimal pairs",
    "task_error": "error on the task",
}

Values = dict[str, dict[str, list[float | None]]]
"""By figure and recipe, one a seed."""


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """What is compared.

    Attributes:
        recipes: Names of recipes or files; or of masking strategies, each on top of the protocol's base.
        data: Files, folders or patterns of text, or one prepared folder.
        protocol: Budget and measures; the verdict is on the first of its rates.
        seeds: How many; 0, 1, ... are taken.
        primary: The figure that decides, of `FIGURES`; None: the task's error where there is a task, else the loss.
    """

    recipes: tuple[str, ...]
    data: tuple[str, ...]
    protocol: Protocol
    seeds: int = 3
    primary: str | None = None

    def __post_init__(self) -> None:
        """Raises: SettingsError: Something is missing, out of range or twice there."""
        if len(self.recipes) < 2 or len(set(self.recipes)) < len(self.recipes):
            raise SettingsError("give two or more different recipes or strategies to compare_plan")
        if len({_label(name) for name in self.recipes}) < len(self.recipes):
            raise SettingsError(
                "recipes are told apart by the names of their files; rename one of those that are alike"
            )
        if self.protocol.base is not None and not set(self.recipes) & set(STRATEGIES):
            raise SettingsError("--base is the recipe under masking strategies, and none is compared; leave it out")
        if self.seeds < 1:
            raise SettingsError(f"seeds: a number from 1 on, not {self.seeds}")
        if self.deciding not in FIGURES:
            raise SettingsError(f"--primary {self.primary}: no such figure; known are {', '.join(FIGURES)}")
        if self.deciding == "pairs_error" and self.protocol.pairs is None:
            raise SettingsError("--primary pairs_error: no minimal pairs are given; name them with --pairs")
        if self.deciding == "task_error" and self.protocol.task is None:
            raise SettingsError("--primary task_error: no task is given; name one with --task")

    @property
    def deciding(self) -> str:
        """The figure that the verdict is on."""
        return self.primary or self.usual

    @property
    def usual(self) -> str:
        """The figure that decides where none is named."""
        return "loss" if self.protocol.task is None else "task_error"


def compare_plan(plan: ComparisonPlan, out: str | Path, *, reporter: Reporter | None = None) -> dict[str, Any]:
    """Trains what is missing, measures it, and judges.

    Args:
        plan: What is compared.
        out: Folder of the comparison; one that is there goes on, where it has the same plan (seeds may be more or
            fewer, which is another look, and a late one where they are fewer), and recipes, text, minimal pairs and
            files of the task are what they were.
        reporter: Told of the progress; None logs.

    Returns:
        `figure` (what the verdict is on), `look` (its number), `recipes` (name to mean, interval and values),
        `differences` (first, second, mean, interval, better), `confidence` (of the differences' intervals), `verdict`,
        `exploratory` (False), `by_figure` (the same for each of `loss`, `bits_per_byte` and, where they are measured,
        `pairs_error` and `task_error`; `exploratory` is True where a figure does not decide), `runs` (by recipe; with
        `failed`, the reason, in place of figures).

    Raises:
        UnmaskError: Something cannot be trained or measured as asked, found before the first run; the folder holds
            something else; every run failed; or as `pretrain` and `evaluate`.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    refused(out, "a comparison")
    root, reporter = Path(out), reporter or usual_reporter()
    recipes = {name: plan.protocol.request(name, seed=0).load() for name in plan.recipes}
    content = {
        "asked": {key: value for key, value in asdict(plan).items() if key != "seeds"} | {"primary": plan.deciding},
        "recipes": {name: recipe.model_dump(mode="json", exclude={"card"}) for name, recipe in recipes.items()},
        "files": read_inputs(recipes, plan.protocol, plan.data),
    }
    items = items_of(plan.protocol)
    folder = folder_of_runs(root, ASKED, "a comparison")
    claim(folder, content, unsaid={"primary": plan.usual})
    data = common_data(plan.data, folder, recipes[plan.recipes[0]], reporter)
    if data != plan.data:  # it was prepared just now
        check_pairs_fit(recipes, plan.protocol, data)
    most_seeds = ask_for_seeds(folder, plan.seeds)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.recipes}
    for seed in range(plan.seeds):
        turn = seed % len(plan.recipes)
        for name in (*plan.recipes[turn:], *plan.recipes[:turn]):
            reporter.note(f"{name}, seed {seed}")
            run = root / "runs" / f"{_label(name)}-{seed}"
            found[name].append(_measured(name, plan.protocol, seed, data, run, reporter))
    if all("failed" in run for runs in found.values() for run in runs):
        first = found[plan.recipes[0]][0]["failed"]
        raise RunError(f"{root}: every run failed, the first because of this: {first}")
    values = _values(found, reporter)
    look = _look(folder, plan, values, most_seeds, reporter)
    judged = _judged(plan.deciding, values, look, items)
    by_figure = {name: _plain(each) | {"exploratory": name != plan.deciding} for name, each in judged.items()}
    result = {"figure": plan.deciding, "look": look, **by_figure[plan.deciding], "by_figure": by_figure, "runs": found}
    write_atomically(root / "result.svg", comparison_plot(result["recipes"], what=FIGURES[plan.deciding]))
    write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return result


def _measured(
    name: str, protocol: Protocol, seed: int, data: tuple[str, ...], folder: Path, reporter: Reporter
) -> dict[str, Any]:
    """What a run came to, or that it failed."""
    try:
        return measured_run(name, protocol, seed=seed, data=data, folder=folder, reporter=reporter)
    except (DivergedError, MemoryFullError) as error:
        reporter.note(f"{name}, seed {seed} failed: {error} (remove {folder} to try it again)")
        return failed_run(name, seed, folder, str(error))


def _values(found: Mapping[str, Sequence[Mapping[str, Any]]], reporter: Reporter) -> Values:
    """The figures that some run has, by recipe and seed; in which run one is not defined is said."""
    by_figure: Values = {}
    for figure, what in FIGURES.items():
        values = {name: [run.get(figure) for run in runs] for name, runs in found.items()}
        for name, runs in found.items():
            for seed, run in enumerate(runs):
                if figure in run and run[figure] is None:
                    reporter.note(f"{name}, seed {seed}: {what} is not defined; it is judged without this run")
        if any(value is not None for of_recipe in values.values() for value in of_recipe):
            by_figure[figure] = values
    return by_figure


def _look(folder: ClaimedFolder, plan: ComparisonPlan, values: Values, most_seeds: int, reporter: Reporter) -> int:
    """The number of this look; where no two seeds can be judged by the deciding figure, it is not counted yet."""
    deciding = list(values.get(plan.deciding, {}).values())
    both = (sum(None not in pair for pair in zip(a, b, strict=True)) for a, b in combinations(deciding, 2))
    if max(both, default=0) < 2:
        return 1
    seen = {  # measured again, the last digits may be others
        figure: {name: [None if value is None else f"{value:.6g}" for value in of] for name, of in by_recipe.items()}
        for figure, by_recipe in values.items()
    }
    look = look_number(folder, seen, seeds=plan.seeds, most_seeds=most_seeds)
    if plan.seeds < most_seeds:
        reporter.note(
            f"{most_seeds} seeds were asked for before, and runs tell their figures as they end: a verdict on "
            f"{plan.seeds} counts as look {look}"
        )
    return look


def _judged(deciding: str, values: Values, look: int, items: Mapping[str, int]) -> dict[str, PairedComparison]:
    """All figures compared, the deciding one first: it tells of which pairs the others may show a difference."""
    judged: dict[str, PairedComparison] = {}
    for figure in sorted(values, key=lambda figure: figure != deciding):
        what = FIGURES[figure]
        judged[figure] = compare_figures(
            values[figure],
            what=what,
            without="failed" if figure == "loss" else f"failed or have no {what}",
            look=look,
            items=items.get(figure),
            exploratory=0 if figure == deciding else len(values.keys() - {deciding}),
            open_pairs=judged[deciding].told_apart if deciding in judged else (),
        )
    if deciding not in judged:
        verdict = f"no difference shown: no run has a value of {FIGURES[deciding]}"
        judged[deciding] = PairedComparison({}, (), 1.0 - error_of_look(look), verdict)
    return judged


def _label(name: str) -> str:
    """A recipe's name, or its file's, as a part of a path."""
    return Path(name).stem if name.endswith(".toml") else name


def _plain(comparison: PairedComparison) -> dict[str, Any]:
    return {
        "recipes": {name: asdict(estimate) for name, estimate in comparison.recipes.items()},
        "differences": [
            {"first": d.first, "second": d.second, **asdict(d.estimate), "better": d.better}
            for d in comparison.differences
        ],
        "confidence": comparison.confidence,
        "verdict": comparison.verdict,
    }


# ----------------------------------------
# Searching a recipe's numbers: many short runs, each with numbers that the runs before it speak for.
#
# OUT/tune_plan.json       what was asked for; a folder with it holds a search
#     data/           the text, prepared once for all, unless prepared data was given
#     study.db        all trials, Optuna's: several processes with the same command share the search
#     trials/NUMBER/  the trials' runs; only the best one keeps its model
#     best.toml       the recipe with the best numbers
#     result.json     all trials and the best
#     result.svg      the loss over each number
#
# Optuna does the searching. Source: Bergstra et al. 2011 (tree-structured Parzen estimators).

HEARTBEAT = 60  # seconds; a process that was silent for twice as long is taken for dead, and its trial made again
BEST = "best.toml"
_SEARCHED = ("training", "masking", "model", "objectives")


@dataclass(frozen=True, kw_only=True)
class TunePlan:
    """What is searched.

    Attributes:
        recipe: Name of a recipe or its file; or of a masking strategy, on top of the protocol's base.
        data: Files, folders or patterns of text, or one prepared folder.
        protocol: Budget and measures of each trial; the first of its rates is what the search goes by.
        search: `KEY=LOW..HIGH` or `KEY=A,B,...`; empty: see `usual_dimensions`.
        trials: How many, those of other processes included.
        seed: Of all trials' runs and of the search; one process alone, with a budget of steps, asks for the same
            numbers again.
    """

    recipe: str
    data: tuple[str, ...]
    protocol: Protocol
    search: tuple[str, ...] = ()
    trials: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: SettingsError: A number is out of range, or a key is searched twice."""
        if self.trials < 1:
            raise SettingsError(f"trials: a number from 1 on, not {self.trials}")
        check_apart([read_dimension(text) for text in self.search])

    def load(self, values: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe that is begun with, or with these values by key.

        Raises:
            SettingsError: As `load_recipe`.
        """
        overrides = [as_override(key, value) for key, value in (values or {}).items()]
        return self.protocol.request(self.recipe, seed=self.seed, overrides=overrides).load()


def tune_plan(plan: TunePlan, out: str | Path, *, reporter: Reporter | None = None) -> dict[str, Any]:
    """Makes trials until there are as many as asked for, and writes the best recipe.

    The search begins with the recipe's own numbers, as far as they lie in what is searched. A trial that diverges or
    does not fit into memory counts as made; one that was interrupted is made again.

    Args:
        plan: What is searched.
        out: Folder of the search; one that is there goes on, where it has the same plan (trials may be more), and
            recipe, text, minimal pairs and files of the task are what they were.
        reporter: Told of the progress; None logs.

    Returns:
        `best` (number, loss, parameters, recipe: the file), `own` (number, loss, parameters of the trial that has the
        recipe's own numbers; None where some of these lie outside of what is searched, or that trial failed), `trials`
        (number, state, loss, parameters), `verdict`.

    Raises:
        UnmaskError: Something cannot be trained or measured as asked, found before the first trial; the folder holds
            something else, no trial succeeded, Optuna is missing, or as `measured_run`.
        Interrupted: SIGINT or SIGTERM; the trial is made again when the search goes on.
    """
    recipe = plan.load()
    dimensions = tuple(read_dimension(text) for text in plan.search) or usual_dimensions(recipe)
    _check_optuna()
    import optuna

    refused(out, "a search")
    root, reporter = Path(out), reporter or usual_reporter()
    folder = folder_of_runs(root, "tune_plan.json", "a search")
    data = _begin(plan, folder, recipe, dimensions, reporter)
    study = _study(folder)
    own = {dimension.key: own_value(recipe, dimension.key) for dimension in dimensions}
    outside = [dimension.key for dimension in dimensions if not dimension.holds(own[dimension.key])]
    if within := {key: value for key, value in own.items() if key not in outside}:
        study.enqueue_trial(within, skip_if_exists=True)

    def objective(trial: optuna.Trial) -> float:
        study.sampler = _sampler(plan.seed, trial.number)
        values = {dimension.key: _suggest(trial, dimension) for dimension in dimensions}
        said = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()]
        reporter.note(f"trial {trial.number}: {', '.join(said)}")
        try:
            plan.load(values)
        except SettingsError as error:  # each is allowed by itself, but not together, or not between the ends
            reporter.note(f"trial {trial.number}: {error}")
            raise optuna.TrialPruned from error
        try:
            measured = measured_run(
                plan.recipe,
                plan.protocol,
                seed=plan.seed,
                data=data,
                folder=_folder(root, trial.number),
                reporter=reporter,
                overrides=[as_override(key, value) for key, value in values.items()],
            )
        except (DivergedError, MemoryFullError) as error:
            reporter.note(f"trial {trial.number}: {error}")
            raise optuna.TrialPruned from error
        except (Interrupted, KeyboardInterrupt):  # the latter while a model is measured
            study.enqueue_trial(trial.params)
            raise
        reporter.note(f"trial {trial.number}: loss {measured['loss']:.4f}")
        return float(measured["loss"])

    made = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    if len(study.get_trials(deepcopy=False, states=made)) < plan.trials:
        enough = optuna.study.MaxTrialsCallback(plan.trials, states=made)
        study.optimize(objective, callbacks=[enough, lambda study, _: _keep_best(study, root)])
    return _result(study, plan, folder, own=own, outside=outside)


def _begin(
    plan: TunePlan, folder: ClaimedFolder, recipe: Recipe, dimensions: Sequence[Dimension], reporter: Reporter
) -> tuple[str, ...]:
    """Finds out before any trial what cannot be, claims the folder, and prepares the text."""
    recipes = {plan.recipe: recipe} | dict(end for dimension in dimensions for end in _ends(plan, dimension))
    content = {
        "asked": {key: value for key, value in asdict(plan).items() if key != "trials"},
        "recipes": {plan.recipe: recipe.model_dump(mode="json", exclude={"card"})},
        "files": read_inputs(recipes, plan.protocol, plan.data),
    }
    claim(folder, content)
    data = common_data(plan.data, folder, recipe, reporter)
    if data != plan.data:  # it was prepared just now
        check_pairs_fit(recipes, plan.protocol, data)
    return data


def _ends(plan: TunePlan, dimension: Dimension) -> Iterator[tuple[str, Recipe]]:
    """The recipe with either end of a range or each value of a choice, by a name for it.

    Raises:
        SettingsError: There is no such key, or a value is not allowed.
    """
    if dimension.key.split(".")[0] not in _SEARCHED:
        raise SettingsError(
            f"--search {dimension.key}: only {', '.join(_SEARCHED)} are searched; other sections change the text or "
            "what is measured"
        )
    for end in dimension.values if isinstance(dimension, DimensionChoice) else (dimension.low, dimension.high):
        yield f"{plan.recipe} with {as_override(dimension.key, end)}", plan.load({dimension.key: end})


def _check_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("searching takes Optuna; install it with pip install 'unmask[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _study(folder: ClaimedFolder) -> optuna.Study:
    """The search that the folder holds; begun where there is none."""
    import optuna

    with warnings.catch_warnings(), folder.locked():  # two processes must not both make the tables
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{folder.root / 'study.db'}",
            engine_kwargs={"connect_args": {"timeout": 60}},
            heartbeat_interval=HEARTBEAT,
            heartbeat_stale_trial_callback=lambda study, trial: study.enqueue_trial(trial.params),
        )
        return optuna.create_study(study_name="unmask", storage=storage, load_if_exists=True)


def _sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    """One for each trial, by its number: the same in a search that goes on, another in each process that shares it."""
    import optuna

    return optuna.samplers.TPESampler(seed=int(np.random.SeedSequence((seed, number)).generate_state(1)[0]))


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    if isinstance(dimension, DimensionChoice):
        return trial.suggest_categorical(dimension.key, dimension.values)
    if dimension.whole:
        return trial.suggest_int(dimension.key, int(dimension.low), int(dimension.high), log=dimension.log)
    return trial.suggest_float(dimension.key, dimension.low, dimension.high, log=dimension.log)


def _folder(root: Path, number: int) -> Path:
    return root / "trials" / str(number)


def _keep_best(study: optuna.Study, root: Path) -> None:
    """Removes the weights of finished trials that are not the best."""
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    best = min((trial for trial in finished if trial.value is not None), key=_loss, default=None)
    for trial in finished:
        if best is None or trial.number != best.number:
            for part in ("model", "checkpoints"):
                shutil.rmtree(_folder(root, trial.number) / part, ignore_errors=True)


def _loss(trial: optuna.trial.FrozenTrial) -> float:
    assert trial.value is not None, "a trial that succeeded"
    return trial.value


def _result(
    study: optuna.Study, plan: TunePlan, folder: ClaimedFolder, *, own: dict[str, Any], outside: list[str]
) -> dict[str, Any]:
    """Writes the best recipe and what all trials came to.

    Args:
        study: With all trials.
        plan: What was searched.
        folder: Of the search.
        own: The recipe's own numbers.
        outside: Keys of those that do not lie in what is searched.
    """
    root = folder.root
    trials = [_plain_of_tuning(trial) for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    succeeded = [trial for trial in trials if trial["loss"] is not None]
    if not succeeded:
        raise RunError(f"{root}: none of {len(trials)} trials succeeded; search lower learning rates, or other numbers")
    best = min(succeeded, key=lambda trial: trial["loss"])
    file = root / BEST
    # Found by what it was made with: a trial that was interrupted is made again under another number.
    baseline = next((trial for trial in succeeded if trial["parameters"] == own), None) if not outside else None
    result = {
        "best": {**best, "recipe": str(file)},
        "own": baseline,
        "trials": trials,
        "verdict": _verdict(best, baseline, len(succeeded), outside),
    }
    with folder.locked():  # processes that share a search may end it at the same time
        write_atomically(file, plan.load(best["parameters"]).to_toml())
        write_atomically(root / "result.svg", search_plot(succeeded))
        write_atomically(root / "result.json", json.dumps(result, indent=1) + "\n")
    return result


def _plain_of_tuning(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {"number": trial.number, "state": trial.state.name, "loss": trial.value, "parameters": trial.params}


def _verdict(best: dict[str, Any], baseline: dict[str, Any] | None, count: int, outside: list[str]) -> str:
    """One seed, and the best of many: the figure flatters, and the text says so."""
    found = f"trial {best['number']} has the lowest loss of {count}: {best['loss']:.4f}"
    if baseline is not None:
        found += f", against {baseline['loss']:.4f} of the recipe's own numbers"
    elif outside:
        found += f" (the recipe's own {', '.join(outside)} is not in what is searched, so there is no baseline)"
    else:
        found += " (no trial of the recipe's own numbers succeeded, so there is no baseline)"
    return f"{found}; it is the best of one seed each: compare it with the recipe over seeds before trusting it"


SEEDS, TRIALS = 3, 20
_SHOWN = 5  # trials of a search


class Comparison(Result):
    """Which recipe is better on a text.

    Attributes:
        figure: What the verdict is on.
        look: Its number: how often was looked, as chance counts.
        recipes: Name to mean, interval and values.
        differences: Of pairs: `first`, `second`, `mean`, `interval`, `better`.
        confidence: Of the differences' intervals.
        verdict: In words.
        exploratory: False.
        by_figure: The same for each of `loss`, `bits_per_byte` and, where they are measured, `pairs_error` and
            `task_error`; `exploratory` is True where a figure does not decide.
        runs: By recipe; with `failed`, the reason, in place of figures.
    """

    figure: str
    look: int
    recipes: dict[str, dict[str, Any]]
    differences: list[dict[str, Any]]
    confidence: float
    verdict: str
    by_figure: dict[str, dict[str, Any]]
    runs: dict[str, list[dict[str, Any]]]

    def shown(self) -> Iterator[Shown]:
        """The recipes' figures, their differences and the verdict."""
        yield by_recipe(self.by_figure)
        differences = by_pair(self.by_figure)
        if differences.rows:
            yield ""
            yield differences
        yield f"\n{self.verdict}"


class Search(Result):
    """Which numbers of a recipe are better on a text.

    Attributes:
        best: `number`, `loss`, `parameters`, and `recipe`, the file.
        own: The same of the trial with the recipe's own numbers; None where some of these lie outside of what is
            searched, or that trial failed.
        trials: `number`, `state`, `loss`, `parameters`.
        verdict: In words.
    """

    best: dict[str, Any]
    own: dict[str, Any] | None
    trials: list[dict[str, Any]]
    verdict: str

    def shown(self) -> Iterator[Shown]:
        """The best trials, and how to go on."""
        yield best_trials(self.trials)
        recipe = self.best["recipe"]
        yield f"\n{self.verdict}\nrecipe  {recipe}"
        yield f"Try it: unmask pretrain FILE --recipe {typed(recipe)} --out DIR"


def compare(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    recipes: Sequence[str],
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    minutes: float | None = None,
    steps: int | None = None,
    seeds: int = SEEDS,
    base: str | None = None,
    rates: Sequence[float] = (0.15,),
    primary: str | None = None,
    pairs: str | Path | None = None,
    task: str | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Trains recipes in turn at equal budgets on the same data, measures all on the same hidden tokens, and judges.

    Args:
        recipes: Names of recipes or files; or of masking strategies, each on top of `base`.
        data: Files, folders or patterns of text, or one prepared folder.
        out: Folder of the comparison; one that is there goes on, where recipes, data and files are what they were.
        minutes, steps: Budget of each run; one of them.
        seeds: How many runs of each recipe.
        base: Recipe under strategies; None: the default.
        rates: Shares of hidden tokens at which all are measured; the loss is that of the first.
        primary: The figure that decides: `loss`, `bits_per_byte`, `pairs_error` or `task_error`; None: the task's error
            where there is a task, else the loss.
        pairs: Minimal pairs in BLiMP's format.
        task, train, validation, test: What each model is fine-tuned for, as for `unmask.finetune`.
        settings: `section.key=value` overrides for all, or a dict of them; those of `finetune` are for the task.
        reporter: Told of the progress; None logs.

    Raises:
        UnmaskError: Something cannot be trained or measured as asked, found before the first run; the folder holds
            something else; or every run failed.
        Interrupted: SIGINT or SIGTERM; the run's state was saved.
    """
    protocol = _protocol(minutes, steps, rates, pairs, (task, train, validation, test), base, settings)
    plan = ComparisonPlan(recipes=tuple(recipes), data=_paths(data), protocol=protocol, seeds=seeds, primary=primary)
    return Comparison(compare_plan(plan, out, reporter=reporter))


def tune(  # noqa: PLR0913  (as for compare)
    recipe: str,
    *,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    minutes: float | None = None,
    steps: int | None = None,
    trials: int = TRIALS,
    search: Sequence[str] = (),
    base: str | None = None,
    rates: Sequence[float] = (0.15,),
    pairs: str | Path | None = None,
    task: str | None = None,
    train: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    settings: Overrides = (),
    reporter: Reporter | None = None,
) -> Search:
    """Searches the numbers of a recipe.

    Args:
        recipe: Name of a recipe or its file; or of a masking strategy, on top of `base`.
        trials: How many, those of other processes included.
        search: `KEY=LOW..HIGH` or `KEY=A,B,...`; empty: learning rate, tokens a step, layers and mask rate.
        data, out, minutes, steps, base, rates, pairs, task, train, validation, test, settings, reporter: As for
            `compare`.

    Raises:
        UnmaskError: As for `compare`; or no trial succeeded, or Optuna is missing.
        Interrupted: SIGINT or SIGTERM; the trial is made again when the search goes on.
    """
    protocol = _protocol(minutes, steps, rates, pairs, (task, train, validation, test), base, settings)
    plan = TunePlan(recipe=recipe, data=_paths(data), protocol=protocol, search=tuple(search), trials=trials)
    return Search(tune_plan(plan, out, reporter=reporter))


def _protocol(
    minutes: float | None,
    steps: int | None,
    rates: Sequence[float],
    pairs: str | Path | None,
    task: tuple[str | Path | None, ...],
    base: str | None,
    settings: Overrides,
) -> Protocol:
    return Protocol(
        minutes=minutes,
        steps=steps,
        rates=tuple(rates),
        pairs=None if pairs is None else str(pairs),
        task=task_files(*(None if each is None else str(each) for each in task)),
        base=base,
        settings=as_overrides(settings),
    )


def _paths(data: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    return (str(data),) if isinstance(data, str | Path) else tuple(map(str, data))


def by_recipe(by_figure: dict[str, dict[str, Any]]) -> Sheet:
    """A line a recipe, a column a figure."""
    heads = (f">{figure.replace('_', ' ')} (95 %, over seeds)" for figure in by_figure)
    rows = [
        (name, *(_cell(found["recipes"].get(name)) for found in by_figure.values()))
        for name in dict.fromkeys(name for found in by_figure.values() for name in found["recipes"])
    ]
    return Sheet(("recipe", *heads), rows)


def by_pair(by_figure: dict[str, dict[str, Any]]) -> Sheet:
    """Paired differences over seeds: what the verdict is on, since recipes' own intervals do not distinguish them."""
    rows = []
    for figure, found in by_figure.items():
        for pair in found["differences"]:
            verdict = "no difference shown" if pair["better"] is None else f"{pair['better']} is better"
            verdict = f"exploratory: {verdict}" if found["exploratory"] else verdict
            level = f"at {percent(found['confidence'])}"
            names = f"{pair['first']} - {pair['second']}"
            rows.append((names, figure.replace("_", " "), _cell(pair), level, verdict))
    return Sheet(("pair", "figure", ">difference over seeds", "interval", "verdict"), rows)


def best_trials(trials: Sequence[dict[str, Any]]) -> Sheet:
    """The best trials of a search, with their numbers."""
    succeeded = sorted((trial for trial in trials if trial["loss"] is not None), key=lambda trial: trial["loss"])
    rows = [
        (
            str(trial["number"]),
            f"{trial['loss']:.4f}",
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in trial["parameters"].values()),
        )
        for trial in succeeded[:_SHOWN]
    ]
    return Sheet(tuple(f">{head}" for head in ("trial", "loss", *succeeded[0]["parameters"])), rows)


def _cell(estimate: dict[str, Any] | None) -> str:
    if estimate is None:  # no run of the recipe has this figure
        return "-"
    if estimate["interval"] is None:
        return f"{estimate['mean']:.3f}"
    low, high = estimate["interval"]
    return f"{estimate['mean']:.3f} ({low:.3f} to {high:.3f})"
