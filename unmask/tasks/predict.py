"""Fine-tuned models: which task a folder is of, the model as users hold it, and predictions for a file."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from unmask.core.errors import ModelError, RunError, SettingsError, printable, shown
from unmask.core.files import check_file, locked, write_atomically
from unmask.core.hub import CONFIG
from unmask.core.results import Notify, Readable, Result, Shown, counted, ignore, usual_reporter
from unmask.core.settings import Settings, validated
from unmask.data.reading import check_characters
from unmask.data.sources import readable
from unmask.model.folder import (
    KEY,
    files_checked,
    find_model,
    label_names_of,
    load_task_model,
    read_config_file,
    read_content,
)
from unmask.model.layout_names import LAYOUTS, ClassifierPooling
from unmask.model.transformers import TaskNetwork, load_transformers_task, why_in_transformers
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, MultiLabel, Pairs, Regress
from unmask.tasks.files import Record, example_files, read_labelled
from unmask.tasks.inputs import EncodedInput, Example, InputEncoder, types_of
from unmask.tasks.settings import Columns
from unmask.tasks.tag import Tag
from unmask.tasks.task import Task
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.hardware import choose_device
from unmask.train.runner import run

log = logging.getLogger("unmask")

TASKS: Mapping[str, type[Task]] = {task.kind: task for task in (Regress, MultiLabel, Classify, Pairs, Tag, AnswerTask)}
_FORMATS = (".jsonl", ".csv")
_BEYOND_JSON = re.compile(r"[\x7f-\x9f]")  # control characters that JSON leaves as they are
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def task_named(name: str) -> type[Task]:
    """The task of a name; raises `SettingsError` where there is none."""
    if name not in TASKS:
        raise SettingsError(f"unknown task {name!r}; known are {', '.join(sorted(TASKS))}")
    return TASKS[name]


class _Own(Settings):
    """What stands under our key, as finetune writes it."""

    model_config = ConfigDict(strict=True, extra="ignore")

    paired: bool = False
    max_length: int | None = Field(default=None, ge=8, lt=2**31)
    columns: Columns | None = None
    may_be_missing: bool = False
    stride: int = Field(default=64, ge=0, lt=2**31)
    longest_answer: int = Field(default=30, ge=1, lt=2**31)


def does_task(content: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a model that is fine-tuned for a task."""
    architecture = _architecture(content)
    return isinstance(content.get(KEY), dict) or any(
        f"For{task.architecture}" in architecture for task in TASKS.values()
    )


def _architecture(content: Mapping[str, Any]) -> str:
    names = content.get("architectures")
    first = names[0] if isinstance(names, list) and names else ""
    return first if isinstance(first, str) else ""


def task_of(content: Mapping[str, Any], folder: Path, *, pools_itself: bool = False) -> Task:
    """The task of a config.json, under our own key or by its architecture.

    `pools_itself` says that the network makes one output of a whole text (those that transformers runs do), so that the
    task has no pooling to choose.

    Raises:
        ModelError: The model is not fine-tuned for a task, or its labels cannot be read.
    """
    architecture, content_own = _architecture(content), content.get(KEY)
    names = label_names_of(content, folder) or ("LABEL_0", "LABEL_1")  # transformers' own
    own = _Own()
    if isinstance(content_own, dict):
        kind = TASKS.get(str(content_own.get("kind")))
        if kind is None:
            raise ModelError(
                f"{folder}: fine-tuned for {shown(content_own.get('kind'))}, which this version of unmask does not know"
            )
        try:
            own = validated(_Own, content_own, where=f"{folder / CONFIG}: {KEY}")
        except SettingsError as error:
            raise ModelError(f"{error}; finetune writes no such thing: give another copy of the model") from error
    else:
        # Of other tools, which do not tell pairs from single texts.
        problem = content.get("problem_type")
        name = architecture.removesuffix("Simple")
        tasks = [task for task in TASKS.values() if name.endswith(f"For{task.architecture}")]
        if tasks and tasks[0].of_texts:
            problem = Regress.problem_type if len(names) == 1 else problem or Classify.problem_type
            tasks = [task for task in tasks if task.problem_type == problem]
        kind = next(iter(tasks), None)
        if kind is None:
            raise ModelError(
                f"{folder}: this model is not fine-tuned for a task (it is {architecture[:100] or 'a bare encoder'}); "
                "fine-tune it with unmask finetune, and give the folder that is written there"
            )
    pooling: ClassifierPooling = "first"
    if kind.of_texts and not pools_itself and (layout := LAYOUTS.get(content["model_type"])) is not None:
        pooling = layout.pooling_of(content, str(folder / CONFIG))
    stored = {name: value for name, value in own.model_dump(exclude_none=True).items() if name in kind.stored}
    return kind(names if kind is not AnswerTask else (), own.paired, own.max_length, pooling, **stored)


# Shape suffixes: T = positions of all rows in a line, D = hidden size, N = places, C = outputs.


@torch.no_grad()
def outputs_of(
    model: TaskNetwork, task: Task, examples: Sequence[Example], *, notify: Notify = ignore
) -> list[NDArray[np.float32]]:
    """The network's outputs at the places of each example: [N, C]; N is 1 where the task pools.

    The model is in evaluation mode, with the task's head; `notify` is called after every batch.
    """
    assert not model.training
    outputs: list[NDArray[np.float32]] = [np.zeros((0, 0), dtype=np.float32)] * len(examples)
    with_places = [number for number, example in enumerate(examples) if len(example.places)]
    some = [examples[number] for number in with_places]
    places = [example.places for example in some]
    count = counted(notify, "predicting", sum(map(len, some)))
    for rows, hidden_TD in run(model, [example.input_ids for example in some], types=types_of(some)):
        sizes = [len(places[number]) for number in rows.numbers]
        places_N = rows.places(places).to(hidden_TD.device)
        logits_NC = task.logits(model, hidden_TD.index_select(0, places_N), sizes)
        cuts = np.cumsum(sizes if len(logits_NC) == sum(sizes) else np.ones_like(sizes))[:-1]
        for number, output in zip(rows.numbers, np.split(logits_NC.float().cpu().numpy(), cuts), strict=True):
            outputs[with_places[number]] = output
        count(int(rows.lengths.sum()))
    return outputs


class TaskModel(Readable):
    """A fine-tuned encoder, with the head of its task and its tokenizer, in evaluation mode."""

    def __init__(self, folder: Path, network: TaskNetwork, tokenizer: Tokenizer, task: Task) -> None:
        self.folder = folder
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.task = task
        self._encoder = InputEncoder(tokenizer, network.config, max_length=task.max_length)

    def to_dict(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "task": self.task.kind, "labels": list(self.task.names)}

    def shown(self) -> Iterator[Shown]:
        names = self.task.names
        labels = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
        yield f"fine-tuned: {self.task.kind}{labels}, for {self.task.takes}; {self.folder}"

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """Predicts. The end of a text that is longer than the model is not seen, and the log says so.

        Args:
            inputs: Texts; for a model of pairs (text, text); for tags sentences, as texts or lists of words; for
                answers (question, text).

        Raises:
            SettingsError: An input is none of these, or holds what is no character.
        """
        records = []
        for number, value in enumerate(inputs, 1):
            if (record := self.task.of_input(number, value)) is None:
                raise SettingsError(f"input {number} is {type(value).__name__}, but this model takes {self.task.takes}")
            for text in record.texts:
                check_characters(text, f"input {number}")
            records.append(record)
        predictions, encoded = self.predict_records(records)
        if encoded.truncated:
            longest = self._encoder.max_length
            log.warning(
                "texts longer than the model's %d tokens: %d; their ends are not seen", longest, encoded.truncated
            )
        return predictions

    def predict_records(self, records: Sequence[Record], *, notify: Notify = ignore) -> tuple[list[Any], EncodedInput]:
        """Predictions for records of the task's kind, as they are read from files, one a record; and their inputs."""
        encoded = self.task.encode(records, self._encoder, with_targets=False)
        outputs = outputs_of(self.network, self.task, encoded.examples, notify=notify)
        return self.task.decode(records, encoded.examples, outputs), encoded


def load_fine_tuned(folder: str | Path) -> TaskModel:
    """Loads a fine-tuned model of unmask's or transformers'.

    Args:
        folder: With config.json, weights and tokenizer.json, or that of `unmask finetune`; or the name of a model on
            the hub.

    Raises:
        ModelError: The folder is not there, lacks a file, or is not that of a fine-tuned model; or it needs
            transformers, which is not installed.
        TokenizerError: The tokenizer cannot be used.
    """
    path = find_model(folder)
    with files_checked(path):
        return open_fine_tuned(path, load_tokenizer(path))


def open_fine_tuned(folder: Path, tokenizer: Tokenizer) -> TaskModel:
    """The same, with a tokenizer that is loaded already."""
    special = tokenizer.special
    network: TaskNetwork
    if why_in_transformers(folder) is not None:
        task = task_of(read_content(folder), folder, pools_itself=True)
        network = load_transformers_task(
            folder, task.task_head, vocab_size=tokenizer.vocab_size, pad_id=special.pad, max_length=task.max_length
        )
    else:
        task = task_of(read_config_file(folder)[0], folder)
        network = load_task_model(folder, task.task_head, mask_id=special.mask)
    return TaskModel(folder, network, tokenizer, task)


def is_fine_tuned(folder: Path) -> bool:
    """Whether a folder's config.json says that its head is that of a task; raises `ModelError` if it cannot be read."""
    return does_task(read_content(folder))


class Predictions(Result):
    """What a fine-tuned model says of a file.

    Attributes:
        model: Its folder.
        task: What it does.
        examples: Records of the file.
        truncated: Of them, those that are longer than the model: their ends were not seen.
        split: Those that were seen in several parts.
        predictions: A dictionary a record, with the record's `row` in the file; where nothing was written.
        out: The file that was written; else not there.
    """

    model: str
    task: str
    examples: int
    truncated: int
    split: int

    def shown(self) -> Iterator[Shown]:
        if "out" in self:
            yield f"{self.examples:,} predictions in {self.out}"
        else:
            yield _jsonl(self.predictions).rstrip("\n")


def predict(
    model: str | Path | TaskModel,
    file: str | Path,
    *,
    out: str | Path | None = None,
    text: str | None = None,
    second: str | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] = log.info,
    notify: Notify | None = None,
) -> Predictions:
    """Writes what a fine-tuned model says of each record of a file, with probabilities.

    Args:
        model: Folder of a fine-tuned model, or its name on the hub.
        file: As for training, without labels; or lines of text. Also - or a pipe, of lines.
        out: A .jsonl file, or .csv for spreadsheets. By default the result holds the predictions.
        text: Column of the text; a number, counted from 0, where columns have no names. By default it is found.
        second: Column of the other text of a pair.
        overwrite: Replace the file that is there.
        note: Called with each decision, a line.
        notify: Called with the progress.

    Raises:
        UnmaskError: The model or the file cannot be used, or `out` is there, or of another kind.
    """
    target = None if out is None else Path(out)
    if target is not None:
        if target.suffix not in _FORMATS:
            raise RunError(f"{target}: predictions are written as {' or '.join(_FORMATS)}; give such a file")
        check_file(target, overwrite=overwrite)
    if isinstance(model, TaskModel):
        loaded = model
    else:
        loaded = load_fine_tuned(model)
        loaded.network.to(choose_device())
    usual, columns = Columns(**loaded.task.columns), Columns(text=text, second=second)
    with readable(file) as here:
        data = read_labelled(example_files(here, Path(file)), loaded.task, columns, with_labels=False, usual=usual)
    if data.columns:
        note("columns: " + ", ".join(f"{role} in {name!r}" for role, name in data.columns.items()))
    predictions, encoded = loaded.predict_records(data.records, notify=notify or usual_reporter().notify)
    longest = loaded.task.max_length or loaded.network.config.max_position_embeddings
    for count, what in (
        (encoded.truncated, "their ends are not seen"),
        (encoded.split, "they are seen in several parts"),
    ):
        if count:
            note(f"{count:,} of {len(data.records):,} texts are longer than {longest} tokens; {what}")
    pairs = zip(data.records, predictions, strict=True)
    rows = [{"row": record.row, **asdict(prediction)} for record, prediction in pairs]
    figures = {
        "model": str(loaded.folder),
        "task": loaded.task.kind,
        "examples": len(rows),
        "truncated": encoded.truncated,
        "split": encoded.split,
    }
    if target is None:
        return Predictions({**figures, "predictions": rows})
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target):
            write_atomically(target, as_csv(rows) if target.suffix == ".csv" else _jsonl(rows))
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror})") from error
    return Predictions({**figures, "out": str(target)})


def _as_text(cell: str) -> str:
    """A text that no spreadsheet takes for a formula, and no terminal for a command.

    What may be a formula gets an apostrophe before it, which spreadsheets show as no part of the text; a lone sign and
    a number are none, so that classes such as `+` and `-1` stay as they are. Control characters are spelled out.

    Source: OWASP, "CSV Injection"; tabs and returns count, since some programs pass over them.
    """
    text = printable(cell.replace("\r\n", "\n"))
    begins_so = len(cell) > 1 and cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{text}" if begins_so and not _NUMBER.fullmatch(cell) else text


def _jsonl(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Probabilities of classes have a column each; lists of words and tags are JSON, so that they can be read back.

    It is made to be opened by a spreadsheet: texts do nothing there (`_as_text`).
    """
    flat = []
    for row in rows:
        cells: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, dict):
                cells |= {f"{name}.{inner}": share for inner, share in value.items()}
            elif isinstance(value, list | tuple):
                items = json.dumps(value, ensure_ascii=False, allow_nan=False)
                cells[name] = _BEYOND_JSON.sub(lambda sign: f"\\u{ord(sign.group()):04x}", items)
            else:
                cells[name] = _as_text(value) if isinstance(value, str) else value
        flat.append(cells)
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writerow({name: _as_text(name) for name in flat[0]})
    writer.writerows(flat)
    return buffer.getvalue()
