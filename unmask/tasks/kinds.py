"""The table of tasks by name, and the task that a config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from unmask.core.errors import ModelError, SettingsError, shown, unknown
from unmask.core.hub import CONFIG
from unmask.core.plugins import Table
from unmask.core.settings import validated
from unmask.data.settings import Reading
from unmask.model.folder import KEY, architecture_of, label_names_of
from unmask.model.layout_names import LAYOUTS, ClassifierPooling
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, MultiLabel, Pairs, Regress
from unmask.tasks.files import Columns
from unmask.tasks.tag import Tag
from unmask.tasks.task import Task

_OURS: dict[str, type[Task]] = {task.kind: task for task in (Regress, MultiLabel, Classify, Pairs, Tag, AnswerTask)}
TASKS: Table[type[Task]] = Table("tasks", dict(_OURS))
_OTHER_NAMES = {
    "ner": Tag.kind, Tag.pipeline: Tag.kind, Classify.pipeline: Classify.kind, AnswerTask.pipeline: AnswerTask.kind
}  # fmt: skip


def task_named(name: str | type[Task]) -> type[Task]:
    """The task with this name, ours or the hub's. A `Task` class of the user is added to the table."""
    if isinstance(name, type) and issubclass(name, Task):
        if name.kind in _OURS and name is not _OURS[name.kind]:
            raise SettingsError(f"{name.__name__}: the kind {name.kind!r} is one of the package's; take another name")
        TASKS[name.kind] = name
        name = name.kind
    name = _OTHER_NAMES.get(name, name)
    if name not in TASKS:
        raise SettingsError(unknown("task", name, sorted(TASKS)), options=["task"])
    return TASKS[name]


class _Own(Reading):
    """The values that finetune writes into config.json under our key."""

    model_config = ConfigDict(strict=True, extra="ignore")

    paired: bool = False
    max_length: int | None = Field(default=None, ge=8, lt=2**31)
    columns: Columns | None = None
    may_be_missing: bool = False
    stride: int = Field(default=64, ge=0, lt=2**31)
    longest_answer: int = Field(default=30, ge=1, lt=2**31)
    word_signs: tuple[str, ...] = Field(default=(), strict=False)


def tasks_of(content: Mapping[str, Any]) -> list[type[Task]]:
    """The tasks with the head that a config.json names; empty if the model is not fine-tuned."""
    name = architecture_of(content).removesuffix("Simple")
    own = content.get(KEY)
    # Of the plug-ins only the one that made the model: another that cannot be imported must not matter.
    named = TASKS.get(str(own.get("kind"))) if isinstance(own, dict) else None
    tasks = dict.fromkeys((*TASKS.data.values(), *([] if named is None else [named])))
    return [task for task in tasks if name.endswith(f"For{task.architecture}")]


def task_of(content: Mapping[str, Any], folder: Path, *, pools_itself: bool = False) -> Task:
    """The task of a config.json, by our own key or its architecture; a ModelError if it names none. Networks that pool
    texts themselves (those that transformers runs) leave no pooling to choose."""
    tasks, problem, content_own = tasks_of(content), content.get("problem_type"), content.get(KEY)
    kind: type[Task] | None = None
    names = label_names_of(content, folder) or ("LABEL_0", "LABEL_1")  # transformers' default
    own, others = _Own(), dict[str, Any]()
    if isinstance(content_own, dict):
        kind = TASKS.get(str(content_own.get("kind")))
        if kind is None:
            what = f"fine-tuned for {shown(content_own.get('kind'))}, which neither unmask nor a plug-in knows"
            raise ModelError(f"{folder}: {what}; install the one it was made with")
        # Other tools keep our key when they train a model for another task, so it counts only if the rest agrees.
        if kind in tasks and problem == kind.problem_type:
            try:
                own = validated(_Own, content_own, where=f"{folder / CONFIG}: {KEY}")
            except SettingsError as error:
                raise ModelError(f"{error}; give another copy of the model") from error
            # Fields that only the class knows, such as those of a plug-in's task.
            others = {name: content_own[name] for name in {*kind.stored} - {*_Own.model_fields} if name in content_own}
        else:
            kind = None
    if kind is None:
        # Other tools do not distinguish pairs from single texts.
        if tasks and tasks[0].of_texts:
            if len(names) == 1 and problem != MultiLabel.problem_type:
                problem = Regress.problem_type
            tasks = [task for task in tasks if task.problem_type == (problem or Classify.problem_type)]
        kind = next(iter(tasks), None)
        if kind is None:
            what = f"not fine-tuned for a task (it is {architecture_of(content)[:100] or 'a bare encoder'})"
            raise ModelError(f"{folder}: this model is {what}; fine-tune it with unmask finetune first")
    pooling: ClassifierPooling = "first"
    if kind.of_texts and not pools_itself and (layout := LAYOUTS.get(content["model_type"])) is not None:
        pooling = layout.pooling_of(content, str(folder / CONFIG))
    stored = {name: value for name, value in own.model_dump(exclude_none=True).items() if name in kind.stored}
    return kind(names if kind is not AnswerTask else (), own.paired, own.max_length, pooling, **others | stored)
