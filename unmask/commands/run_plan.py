"""Runs of a comparison or a search, which share text, budget and measures: checked, trained and measured alike."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.commands.evaluate import checked_rates, evaluate, score
from unmask.commands.finetune import examples_given, finetune, settings_of
from unmask.commands.finetune_run import class_weights, read_files, selecting_metric, usable_pooling
from unmask.commands.masking_tables import masker_of, masking_tables, score_board
from unmask.commands.pretrain import pretrain
from unmask.commands.recipe import Recipe
from unmask.commands.recipe_files import Override, Overrides, as_overrides, recipe_names
from unmask.commands.run_data import (
    check_before_text,
    check_data,
    check_tokenizer,
    open_prepared,
    prepare_by,
    refuse_other_data,
    stream_of,
    tokenizer_of,
)
from unmask.core.errors import SettingsError, unknown
from unmask.core.files import ClaimedFolder, differences, file_sha256, read_object, typed, write_object
from unmask.core.interruption import GOES_ON, Interrupted
from unmask.core.remote import address_of, local_copies
from unmask.core.results import Reporter
from unmask.data.data_folder import is_prepared, load_manifest
from unmask.data.prepare import text_files
from unmask.data.rows import Cursor
from unmask.masking.settings import STRATEGIES
from unmask.masking.tables import Scores, named_files, needed_lexicons
from unmask.measure.questions import check_lengths, read_pairs
from unmask.tasks.kinds import task_named
from unmask.tasks.loaded_model import as_model
from unmask.tokenizer.loading import load_for_new_model

EVALUATION = "evaluation.json"
SCRATCH, CONTINUED, NEW_WORDS, AS_IS = STARTS = ("scratch", "continued", "new-words", "as-is")
_OF_FINETUNING: tuple[str, ...] = ("finetune.",)
# Settings that fit the continued model; one from scratch has the size and rate of its own recipe.
_OF_CHECKPOINT = ("model.", "start.", "training.learning_rate", "training.optimizer")
_OF_SCRATCH = ("tokenizer.",)  # a checkpoint brings its own
_OF_RUN = ("start.", "training.")  # nothing of these changes a model that is not pretrained
# A start that continues a model is evaluated before and after training, on new and old text. As the task decides, this
# only shows whether it learned.
_SHORT: tuple[Override, ...] = (("evaluation.final_max_tokens", 32_768),)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What all runs share; stored in the state of their folder. `files` are the task's: train, validation, test."""

    data: tuple[str, ...]
    minutes: float | None
    steps: int | None
    rates: tuple[float, ...]
    base: str | None
    settings: tuple[Override, ...]
    pairs: str | None = None
    task: str | None = None
    files: dict[str, Any] = field(default_factory=dict)
    from_: str | None = None  # the checkpoint of `STARTS`
    extend_vocab: int | None = None
    sized: dict[str, str] = field(default_factory=dict)  # by name, the recipe file with the size of all its runs

    @property
    def of_finetuning(self) -> tuple[Override, ...]:
        return tuple(override for override in self.settings if override[0].startswith(_OF_FINETUNING))

    def options(self, name: str, *, seed: int, overrides: Sequence[Override] = ()) -> dict[str, Any]:
        """Options of `pretrain` for a run of a recipe, a masking strategy or a start, with overrides of this run alone.

        Those of `as-is` only make a recipe, by which the checkpoint is checked; there is no such run.
        """
        if name in self.sized:
            return {"recipe": self.sized[name], "seed": seed, "settings": overrides}
        usual: tuple[Override, ...] = ()
        is_strategy, start, known = name in STRATEGIES, {}, (*recipe_names(), *STRATEGIES)
        if self.from_ is None and name not in known and not name.endswith(".toml"):
            raise SettingsError(unknown("recipe or strategy", name, known))
        recipe, left_out = self.base if is_strategy else name, _OF_FINETUNING
        if self.from_ is not None and name == SCRATCH:
            recipe, left_out = self.base, (*_OF_FINETUNING, *_OF_CHECKPOINT)
        elif self.from_ is not None:
            others = _OF_RUN if name == AS_IS else ()
            recipe, left_out, usual = None, (*_OF_FINETUNING, *_OF_SCRATCH, *others), _SHORT
            start = {"from_": self.from_, "extend_vocab": self.extend_vocab if name == NEW_WORDS else None}
        return {
            **start,
            "recipe": recipe,
            "strategy": name if is_strategy else None,
            "minutes": self.minutes,
            "steps": self.steps,
            "seed": seed,
            "settings": (*usual, *(each for each in self.settings if not each[0].startswith(left_out)), *overrides),
        }


def plain_name(name: str | Path) -> str:
    """A path in one spelling, without `./` and a slash at its end, by which a folder of runs recognises it; or an
    address."""
    return str(name if address_of(name) else Path(name))


def run_plan(
    data: str | Path | Sequence[str | Path], rates: float | Sequence[float], settings: Overrides, **options: Any
) -> RunPlan:
    """Checks the options that `compare` and `tune` share, and returns their plan."""
    plan = RunPlan(
        data=tuple(map(plain_name, [data] if isinstance(data, str | Path) else data)),
        rates=checked_rates(rates),
        settings=as_overrides(settings),
        **options,
    )
    task = plan.task
    if (plan.files or task is not None) and (task is None or "train" not in plan.files):
        raise SettingsError("a task needs its kind and a training file", options=["task", "train"])
    if (plan.minutes is None) == (plan.steps is None):
        raise SettingsError("give either minutes or steps for each run", options=["minutes", "steps"])
    if task is None and plan.of_finetuning:
        key, _ = plan.of_finetuning[0]
        raise SettingsError(f"{key}: there is no task to fine-tune for; name one, or leave this out", options=["task"])
    own = ("training.seed", "finetune.seed", "training.minutes", "training.steps", "training.tokens")
    if clash := next((key for key, _ in plan.settings if key in own), None):
        raise SettingsError(f"{clash}: the command sets the seed and the budget of each run; leave it out")
    return replace(plan, data=tuple(map(str, local_copies(*plan.data))))


def folder_of_runs(root: Path, marker: str, what: str) -> ClaimedFolder:
    """The folder of a comparison or a search, whose text is prepared in `data/`."""
    return ClaimedFolder(root=root, marker=marker, what=what, options=(), theirs=("data",))


def read_state(folder: ClaimedFolder) -> dict[str, Any]:
    """The state of a folder of runs: its purpose, and what was done in it."""
    return read_object(folder.root / str(folder.marker), "give another folder", is_sealed=True)


def begin_runs(
    folder: ClaimedFolder,
    plan: RunPlan,
    recipes: Mapping[str, Recipe],
    purpose: Mapping[str, Any],
    reporter: Reporter,
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Checks everything that the runs will read, prepares the text once for all, and claims their folder.

    Several processes may share the folder. It is tied to the plan, the recipes (text is prepared by the first of them)
    and the purpose. Returns the prepared data, and the items of `_read_inputs`.
    """
    text = _hash_text(recipes, plan)
    others, items = _read_inputs(recipes, plan)
    content = {
        "options": {**purpose, **asdict(plan)},
        "recipes": {name: recipe.model_dump(mode="json", exclude={"card"}) for name, recipe in recipes.items()},
        "files": text | others,
    }
    content = json.loads(json.dumps(content))
    data, root = plan.data, folder.root / "data"
    with folder.held(wait=-1):
        if not folder.is_claimed:
            folder.check()
        else:
            begun = read_state(folder)
            folder.check_same(begun["options"], content["options"])  # first, since the rest follows from it
            folder.check_same(begun["recipes"], content["recipes"], of="recipe ")
            for path, old, new in differences(begun["files"], content["files"]):
                change = "is new" if old is None else "is gone" if new is None else "has changed"
                raise folder.changed(f"that started with other files: {path} {change}")
        if not is_prepared(data):
            if not folder.is_claimed:
                refuse_other_data(root, plan.data)
            data = (str(root),)
            prepare_by(next(iter(recipes.values())), plan.data, root, reporter)
            _check_fit(recipes, plan, root)
        if not folder.is_claimed:  # last, so that what was refused can be corrected
            write_object(folder.root / str(folder.marker), content)
    return data, items


@contextmanager
def _stopped_as_one() -> Iterator[None]:
    try:
        yield
    except Interrupted as error:  # the run's own message says how to resume it alone
        raise Interrupted(error.signum, "stopped", GOES_ON) from error


@_stopped_as_one()
def measured_run(
    name: str,
    plan: RunPlan,
    *,
    seed: int,
    data: Sequence[str],
    folder: Path,
    reporter: Reporter,
    overrides: Sequence[Override] = (),
) -> dict[str, Any]:
    """The figures of a run; if it has none yet, it is made, or resumed to its end.

    They are written into its folder last: those of `evaluate`, with `name`, `seed`, the summary's `steps`,
    `unigram_entropy` and `on_plateau`, and, if measured, `pairs_error` and `task_error` (1 - the task's metric on the
    test file, else on the validation file; or the metric itself if lower is better) with `task_metric`,
    `task_measured_on`, `pretraining_seconds`, `finetuning_seconds`, `num_parameters` and, if fine-tuning taught
    nothing, `task_warning`. A start is not evaluated, and `as-is` not pretrained.
    """
    file = folder / EVALUATION
    if not file.is_file():
        content: dict[str, Any] = {"name": name, "seed": seed}
        source, seconds = plan.from_, None
        if plan.from_ is None or name != AS_IS:
            options = plan.options(name, seed=seed, overrides=overrides)
            run = pretrain(data, out=folder, resume=folder.exists(), reporter=reporter, **options)
            source, seconds = str(run.folder / "model"), run.summary["seconds"]
            if plan.from_ is None:
                model = as_model(source)
                content |= evaluate(model, data, rates=plan.rates, pseudo_tokens=0, notify=reporter.notify).to_dict()
            content |= {key: run.summary[key] for key in ("steps", "unigram_entropy", "on_plateau")}
            if plan.pairs is not None:
                content["pairs_error"] = 1.0 - score(model, plan.pairs, notify=reporter.notify)["accuracy"]
        if plan.task is not None and source is not None:
            tuned = folder / "finetuned"
            first = seed * settings_of(plan.of_finetuning).seeds  # no two runs share a seed
            summary = finetune(
                source,
                task=plan.task,
                **plan.files,
                out=tuned,
                settings=(("finetune.seed", first), *plan.of_finetuning),
                resume=True,
                intervals=False,
                reporter=reporter,
            ).summary
            metric, measured_on = summary["metric"], "test" if "test" in plan.files else "validation"
            value = summary["test_mean" if measured_on == "test" else "mean"][metric]
            is_error = metric in task_named(plan.task).lower_is_better
            content["task_error"] = value if value is None or is_error else 1.0 - value
            content |= {"task_metric": metric, "task_measured_on": measured_on, "pretraining_seconds": seconds}
            content["finetuning_seconds"] = sum(each["seconds"] for each in summary["seeds"])
            content["num_parameters"] = summary["num_parameters"]
            if summary["warning"]:
                content["task_warning"] = summary["warning"]
        write_object(file, content)
        shutil.rmtree(folder / "finetuned" / "model", ignore_errors=True)  # once its figures are recorded
    return read_object(file, "remove it to measure the run again with the same command", is_sealed=True)


# What the runs depend on: read, checked and hashed before the first of them.


def _read_inputs(recipes: Mapping[str, Recipe], plan: RunPlan) -> tuple[dict[str, str], dict[str, int]]:
    """Reads and checks all files that the runs will read besides text; returns a hash of each by its path, and the
    number of items of each figure that is a share.

    An item of tags is a word, of entities a word that is in one; with several seeds of fine-tuning, it counts for each.
    """
    hashes, items = dict[str, str](), dict[str, int]()
    for recipe in recipes.values():
        hashes |= {path: fingerprint for path, (fingerprint, _) in named_files(recipe.masking).items()}
    if plan.pairs is not None:
        pairs = [[*pair.texts, pair.paradigm, pair.phenomenon] for pair in read_pairs(Path(plan.pairs))]
        hashes[plan.pairs] = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
        items["pairs_error"] = len(pairs)
    if plan.task is not None:
        kind, settings = task_named(plan.task), settings_of(plan.of_finetuning)
        for name, recipe in recipes.items():
            usable_pooling(settings.pooling, recipe.model.layout, kind, model=name)
            if (settings.max_length or 0) > recipe.positions:
                what = f"finetune.max_length={settings.max_length}: {name} has only {recipe.positions} positions"
                ways = "lower it" if name == AS_IS else "lower it, or train longer rows (training.sequence_length)"
                raise SettingsError(f"{what}; {ways}")
        with examples_given(plan.files["train"], plan.files.get("validation"), plan.files.get("test")) as paths:
            files, task = read_files(kind, paths, settings, lambda remark: None)  # every run reports it
            hashes |= {path: paths[name].sha256 for name, path in plan.files.items()}
        class_weights(files["train"], task, settings.class_weights)
        number = task.items(files.get("test", files["validation"]).records, selecting_metric(task, settings.metric))
        if number is not None:
            items["task_error"] = max(1, number) * settings.seeds
    if is_prepared(plan.data):
        _check_fit(recipes, plan, Path(plan.data[0]))
    return hashes, items


def _check_fit(recipes: Mapping[str, Recipe], plan: RunPlan, root: Path) -> None:
    """Checks that the minimal pairs fit every model, in tokens of the prepared data's tokenizer, and that every recipe
    can make and mask its rows."""
    data = open_prepared(root)
    if plan.pairs is not None:
        longest = min(recipe.positions for recipe in recipes.values())
        check_lengths(read_pairs(Path(plan.pairs)), data.tokenizer, longest=longest)
    if plan.from_ is not None:  # starts have tokenizers of their own
        return
    for recipe in recipes.values():
        check_data(recipe, data.manifest, root)
        score_board(recipe.masking, data, torch.device("cpu"))
        rows = stream_of(recipe, data).batch(Cursor(), 1).rows
        if None not in needed_lexicons(recipe.masking):  # each run makes its own, which takes long
            tables, _ = masking_tables(recipe.masking, data, own_lexicon=root, reporter=Reporter())
            masker_of(recipe, data.tokenizer, tables)(rows, scores=Scores(0, {}))


def _hash_text(recipes: Mapping[str, Recipe], plan: RunPlan) -> dict[str, str]:
    """A hash of each file of text, or of the prepared data, which must fit all recipes."""
    data, are_starts = plan.data, plan.from_ is not None  # starts have tokenizers of their own
    manifest = load_manifest(Path(data[0])) if is_prepared(data) else None
    for name, recipe in recipes.items():
        if recipe.start is not None and recipe.start.extend_vocab is not None and not are_starts:
            raise SettingsError(
                f"{name}: start.extend_vocab gives each run its own tokenizer, but compared runs share one; add "
                f"the words first (unmask pretrain TEXT --from {typed(recipe.start.checkpoint)} --extend-vocab "
                f"{recipe.start.extend_vocab} --steps 1 --out RUN), and start from RUN/start"
            )
        if recipe.start is not None and recipe.start.new_tokenizer and manifest is None:
            raise SettingsError(
                f"{name}: start.new_tokenizer gives each run its own tokenizer, but compared runs share one; prepare "
                "the text first (unmask prepare TEXT --out DATA), and compare on DATA"
            )
        if manifest is None:
            check_before_text(recipe)
        elif recipe.start is not None and not recipe.start.new_tokenizer:
            check_tokenizer(Path(data[0]), manifest, recipe.start.checkpoint, recipe.start.checkpoint)
    if manifest is not None:
        return {data[0]: manifest.fingerprint}

    (first_name, first), *others = recipes.items()
    for name, recipe in others:  # text is prepared once for all
        one, other = tokenizer_of(first), tokenizer_of(recipe)
        same_tokenizer = are_starts or one == other
        if not same_tokenizer and one.path is not None and other.path is not None:
            same_tokenizer = load_for_new_model(one.path).fingerprint == load_for_new_model(other.path).fingerprint
        is_same = {
            "corpus": first.corpus == recipe.corpus,
            "tokenizer": same_tokenizer,
            "annotation": first.annotation == recipe.annotation,
        }
        if section := next((name for name, same in is_same.items() if not same), None):
            raise SettingsError(
                f"{first_name} and {name} prepare text differently ([{section}]), but compared runs share it; "
                f"set {section}.KEY for all, or name a checkpoint's tokenizer for those without one (tokenizer.path)",
                options=["set"],
            )
    return {str(path): file_sha256(path) for path in text_files(data, first.corpus)}
