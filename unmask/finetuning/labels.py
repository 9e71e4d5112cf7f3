"""What the labels of the training file are, and whether a model can be trained and measured with them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from unmask.corpus.labels import in_order
from unmask.errors import CorpusError, SettingsError
from unmask.finetuning.reading import Labelled
from unmask.finetuning.settings import FinetuneSettings
from unmask.model.task_folder import TaskInfo, TaskKind
from unmask.tasks.records import QuestionRecord, TextRecord, WordsRecord


def task_info(train: Labelled, kind: TaskKind, settings: FinetuneSettings) -> TaskInfo:
    """What a model of this training file will do.

    Raises:
        CorpusError: There are fewer than two classes, a class has too few examples, or all numbers are equal.
    """
    match kind:
        case "classify" | "pairs":
            names = _classes(train, settings.least_examples)
        case "regress":
            _check_numbers(train)
            names = (train.columns.label if train.columns and train.columns.label else "value",)
        case "tag":
            names = _tags(train)
        case "answer":
            missing = any(isinstance(record, QuestionRecord) and not record.answers for record in train.records)
            return TaskInfo(
                kind,
                may_be_missing=missing,
                max_length=settings.max_length,
                stride=settings.stride,
                longest_answer=settings.longest_answer,
            )
    columns = {} if train.columns is None else train.columns.model_dump(exclude_none=True)
    return TaskInfo(kind, names, paired=train.paired, max_length=settings.max_length, columns=columns)


def _classes(train: Labelled, least: int) -> tuple[str, ...]:
    counts = Counter(record.label or "" for record in train.records if isinstance(record, TextRecord))
    if len(counts) < 2:
        raise CorpusError(
            f"{train.path}: every example has the class {next(iter(counts))!r}; two are needed to tell apart"
        )
    if rare := sorted(name for name, count in counts.items() if count < least):
        row = next(r.row for r in train.records if isinstance(r, TextRecord) and r.label == rare[0])
        count = counts[rare[0]]
        more = f" (and {len(rare) - 1} other classes)" if len(rare) > 1 else ""
        raise CorpusError(
            f"{train.path}: the class {rare[0]!r} has {count} example{'s' * (count != 1)}, in row {row}{more}; give it "
            f"more, take it out, or allow it with --set finetune.least_examples={count}"
        )
    return in_order(counts)


def _check_numbers(train: Labelled) -> None:
    values = {record.value for record in train.records if isinstance(record, TextRecord)}
    if len(values) == 1:
        raise CorpusError(f"{train.path}: every example has the number {values.pop()}; there is nothing to learn")


def _tags(train: Labelled) -> tuple[str, ...]:
    names = {tag for record in train.records if isinstance(record, WordsRecord) for tag in record.tags or ()}
    if len(names) < 2:
        raise CorpusError(f"{train.path}: every word has the tag {next(iter(names))!r}; two are needed to tell apart")
    return in_order(names)


def numbers_for_tags(train: Labelled, info: TaskInfo) -> str | None:
    """What is to be said of tags that are bare numbers: entities are told by names. None: they are none."""
    if info.kind != "tag" or not all(name.removeprefix("-").isdecimal() for name in info.names):
        return None
    return (
        f"{train.path}: the tags are numbers without names ({_few(info.names)}), so F1 of entities is not measured; if "
        "they are entities, write them as O, B-NAME and I-NAME, or save the table with datasets' ClassLabel"
    )


def check_unseen(held_out: Labelled, info: TaskInfo, train: Path) -> str | None:
    """Compares the labels of a file with those of the training file.

    Returns:
        What is to be said of tags that the model cannot give, and of questions without an answer where all of the
        training file have one; they count as wrong. None: there are none.

    Raises:
        CorpusError: A class is unknown, or pairs are compared with single texts.
    """
    if info.kind in ("classify", "pairs"):
        for record in held_out.records:
            if isinstance(record, TextRecord) and record.label not in info.names:
                raise CorpusError(
                    f"{held_out.path}: row {record.row} has the class {record.label!r}, which {train} does not have "
                    f"(it has {_few(info.names)}); add examples of it there, or take the row out"
                )
    if held_out.paired != info.paired:
        pairs, texts = (held_out.path, train) if held_out.paired else (train, held_out.path)
        raise CorpusError(
            f"{pairs} holds pairs of texts, but {texts} single ones; name the columns with --text, --second"
        )
    if info.kind == "answer":
        return None if info.may_be_missing else _unanswerable(held_out, train)
    if info.kind != "tag":
        return None
    unseen = Counter(tag for record in held_out.records if isinstance(record, WordsRecord) for tag in record.tags or ())
    for name in info.names:
        unseen.pop(name, None)
    if not unseen:
        return None
    return (
        f"{held_out.path}: {unseen.total():,} words have tags that {train} does not have ({_few(sorted(unseen))}); "
        "they count as wrong"
    )


def _unanswerable(held_out: Labelled, train: Path) -> str | None:
    count = sum(isinstance(record, QuestionRecord) and not record.answers for record in held_out.records)
    if not count:
        return None
    return (
        f"{held_out.path}: {count:,} of {len(held_out.records):,} questions have no answer, but in {train} all have "
        "one, so the model always gives one; they count as wrong"
    )


def class_weights(train: Labelled, info: TaskInfo, wanted: str | Mapping[str, float] | None) -> list[float] | None:
    """Weights of the losses by class, in the order of the classes.

    Raises:
        SettingsError: The task has no classes, or the table names others than the training file.

    Example: 30 examples of `a` and 10 of `b`, balanced: 40 / (2 x 30) = 2/3 and 40 / (2 x 10) = 2.
    """
    if wanted is None:
        return None
    if info.kind not in ("classify", "pairs", "tag"):
        raise SettingsError(f"finetune.class_weights: the task {info.kind!r} has no classes; remove it")
    if not isinstance(wanted, str):
        if unknown := sorted(set(wanted) - set(info.names)):
            raise SettingsError(
                f"finetune.class_weights: there is no class {unknown[0]!r} in {train.path}; it has {_few(info.names)}"
            )
        return [wanted.get(name, 1.0) for name in info.names]
    counts: Counter[str] = Counter()
    for record in train.records:
        if isinstance(record, TextRecord) and record.label is not None:
            counts[record.label] += 1
        elif isinstance(record, WordsRecord):
            counts.update(record.tags or ())
    total = counts.total()
    return [total / (len(info.names) * counts[name]) for name in info.names]


def mean_and_deviation(train: Labelled) -> tuple[float, float]:
    """Of the numbers of a regression; the deviation is that of the sample."""
    values = [record.value for record in train.records if isinstance(record, TextRecord) and record.value is not None]
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
