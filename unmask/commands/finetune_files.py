"""The settings of a fine-tuning and its labelled files, read and checked against each other."""

from __future__ import annotations

import importlib.util
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from unmask.commands.recipe_files import Overrides, section_values, set_value
from unmask.core.errors import CorpusError, SettingsError
from unmask.core.settings import validated
from unmask.data.sources import InMemory, Texts, paths_or_texts, readable
from unmask.model.layout_names import ClassifierPooling
from unmask.tasks.files import ExampleFiles, example_files, read_labelled
from unmask.tasks.settings import Columns, FinetuneSettings
from unmask.tasks.task import Labelled, Task, few

_PACKAGES = {"sklearn": "scikit-learn", "seqeval": "seqeval"}


def settings_of(overrides: Overrides = (), **short: Any) -> FinetuneSettings:
    """The settings of a fine-tuning.

    Args:
        overrides: `finetune.key=value` and `card.key=value`.
        short: The options `text`, `second`, `label`, `seeds` and `seed`, which stand above them; None: not set.

    Raises:
        SettingsError: One is of another section, or not known, or has a value that it cannot have.
    """
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
    """Reads the files `train`, `validation` and perhaps `test` of a task; what a model of the first will do."""
    train = read_labelled(paths["train"], kind, settings.columns)
    if train.columns is not None:
        note("columns: " + ", ".join(f"{role} in {name!r}" for role, name in train.column_names.items()))
    task = kind.learned_from(train, settings, pooling)
    if remark := task.remark(train):
        note(remark)
    files = {"train": train}
    for name in ("validation", "test"):
        if name in paths:
            files[name] = read_labelled(paths[name], kind, train.columns or settings.columns)
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
                f"finetune.class_weights: there is no class {unknown[0]!r} in {train.path}; it has {few(task.names)}"
            )
        return [weights.get(name, 1.0) for name in task.names]
    return [counts.total() / (len(task.names) * counts[name]) for name in task.names]


def selecting_metric(task: Task, named: str | None) -> str:
    """The metric that the best model is chosen by."""
    names = task.metric_names
    if named is not None and named not in names:
        raise SettingsError(f"finetune.metric = {named!r}: metrics of this task are {', '.join(names)}")
    return named or names[0]


def needs_packages() -> None:
    """Finds out before training that the packages that metrics need are there."""
    for name, package in _PACKAGES.items():
        if importlib.util.find_spec(name) is None:
            raise SettingsError(f"metrics need {package}; install it with: pip install 'unmask[metrics]'")
