"""All tasks, by name; and which one a model's folder is of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from unmask.errors import ModelError, SettingsError
from unmask.folders.model_folder import CONFIG, label_names_of
from unmask.folders.task_folder import KEY, pooling_of
from unmask.settings import Settings, validated
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify
from unmask.tasks.multi_label import MultiLabel
from unmask.tasks.pairs import Pairs
from unmask.tasks.regress import Regress
from unmask.tasks.settings import Columns
from unmask.tasks.tag import Tag
from unmask.tasks.task import Task
from unmask.values import shown

# Of those with the same architecture the first that says so reads a folder of others.
TASKS: Mapping[str, type[Task]] = {task.kind: task for task in (Regress, MultiLabel, Classify, Pairs, Tag, AnswerTask)}
_ARCHITECTURES = {task.architecture for task in TASKS.values()}


def task_named(name: str) -> type[Task]:
    """The task that a user named.

    Raises:
        SettingsError: There is none of this name.
    """
    if name not in TASKS:
        raise SettingsError(f"unknown task {name!r}; known are {', '.join(sorted(TASKS))}")
    return TASKS[name]


def does_task(content: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a model that is fine-tuned for a task."""
    architecture = _architecture(content)
    return isinstance(content.get(KEY), dict) or any(f"For{known}" in architecture for known in _ARCHITECTURES)


def task_of(content: Mapping[str, Any], folder: Path, *, pools_itself: bool = False) -> Task:
    """What a config.json says of the task, under our own key or by its architecture.

    Args:
        content: The file's.
        folder: Of the model, for errors.
        pools_itself: Whether the network makes one output of a whole text (those that transformers runs do), so that
            the task has none to choose.

    Raises:
        ModelError: The model is not fine-tuned for a task, or its labels cannot be read.
    """
    architecture, own = _architecture(content), content.get(KEY)
    names = label_names_of(content, folder) or ("LABEL_0", "LABEL_1")  # transformers' own
    kind: type[Task] | None
    if isinstance(own, dict):
        said = own.get("kind")
        kind = TASKS.get(said) if isinstance(said, str) else None
        if kind is None:
            raise ModelError(f"{folder}: fine-tuned for {shown(said)}, which this version of unmask does not know")
        _check_own(own, folder)
    else:
        own = {}
        same = [
            task for task in TASKS.values() if architecture.removesuffix("Simple").endswith(f"For{task.architecture}")
        ]
        kind = next((task for task in same if task.reads(content, names)), None)
    if kind is None:
        raise ModelError(
            f"{folder}: this model is not fine-tuned for a task (it is {architecture[:100] or 'a bare encoder'}); "
            "fine-tune it with unmask finetune, and give the folder that is written there"
        )
    pooling = pooling_of(content, folder) if kind.of_texts and not pools_itself else "first"
    return kind.of_content(own, names, pooling, own.get("max_length"))


class _Own(Settings):
    """What stands under our key besides the kind, as finetune writes it; what it says of a task stands there."""

    model_config = ConfigDict(strict=True, extra="ignore")

    paired: bool = False
    max_length: int | None = Field(default=None, ge=8, lt=2**31)
    columns: Columns | None = None
    may_be_missing: bool = False
    stride: int = Field(default=64, ge=0, lt=2**31)
    longest_answer: int = Field(default=30, ge=1, lt=2**31)


def _check_own(own: dict[str, Any], folder: Path) -> None:
    try:
        validated(_Own, own, where=f"{folder / CONFIG}: {KEY}")
    except SettingsError as error:
        raise ModelError(f"{error}; finetune writes no such thing: give another copy of the model") from error


def _architecture(content: Mapping[str, Any]) -> str:
    said = content.get("architectures")
    first = said[0] if isinstance(said, list) and said else ""
    return first if isinstance(first, str) else ""
