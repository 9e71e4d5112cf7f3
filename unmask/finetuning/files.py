"""The files and the settings of a fine-tuning, read and found to fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from unmask.errors import SettingsError
from unmask.finetuning.labels import check_unseen, numbers_for_tags, task_info
from unmask.finetuning.reading import Labelled, read_labelled
from unmask.finetuning.settings import FinetuneSettings
from unmask.model.task_folder import TaskInfo, TaskKind
from unmask.recipe.overrides import apply_overrides, set_value
from unmask.settings import validated


@dataclass(frozen=True)
class Files:
    """The files that were given, read."""

    train: Labelled
    validation: Labelled
    test: Labelled | None


def kind_of(task: str) -> TaskKind:
    """The kind of a task that a user named.

    Raises:
        SettingsError: There is none of this name.
    """
    if task not in get_args(TaskKind):
        raise SettingsError(f"unknown task {task!r}; known are {', '.join(get_args(TaskKind))}")
    return task  # type: ignore[return-value]  # just compared


def settings_of(overrides: Sequence[str]) -> FinetuneSettings:
    """The settings that `finetune.key=value` overrides say.

    Raises:
        SettingsError: One is of another section, or not known, or has a value that it cannot have.
    """
    values: dict[str, Any] = {}
    apply_overrides(values, overrides)
    if strangers := sorted(set(values) - {"finetune"}):
        raise SettingsError(
            f"{strangers[0]}: fine-tuning has one section of settings, finetune, as in finetune.epochs=3"
        )
    columns = values.get("finetune", {}).get("columns")
    for name, value in columns.items() if isinstance(columns, dict) else ():
        if isinstance(value, int) and not isinstance(value, bool):
            set_value(values, f"finetune.columns.{name}", str(value))  # a column's number
    return validated(FinetuneSettings, values.get("finetune", {}), where="finetune")


def read_files(
    kind: TaskKind, paths: Mapping[str, Path], settings: FinetuneSettings, note: Callable[[str], None]
) -> tuple[Files, TaskInfo]:
    """Reads the files of a task.

    Args:
        kind: Of the task.
        paths: Of `train` and `validation`, and of `test` where there is one.
        settings: Name columns.
        note: Told which columns were found, of tags without names, and of labels that the model cannot give.

    Returns:
        The files, and what a model of the training file will do.

    Raises:
        CorpusError: A file cannot be read, or has labels that do not fit.
    """
    train = read_labelled(paths["train"], kind, settings.columns)
    if train.columns is not None:
        found = {name: column for name, column in vars(train.columns).items() if column is not None}
        note("columns: " + ", ".join(f"{name} in {column!r}" for name, column in found.items()))
    info = task_info(train, kind, settings)
    if remark := numbers_for_tags(train, info):
        note(remark)
    others = {}
    for name in ("validation", "test"):
        if name in paths:
            others[name] = read_labelled(paths[name], kind, train.columns or settings.columns)
            if remark := check_unseen(others[name], info, train.path):
                note(remark)
    return Files(train, others["validation"], others.get("test")), info
