"""Predictions for every record of a file, as a verb: JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.claimed import check_file, held_file
from unmask.errors import RunError
from unmask.files import write_atomically
from unmask.notebook import usual_notify
from unmask.progress import Notify
from unmask.results import Result, Shown
from unmask.tasks.labelled_files import read_labelled
from unmask.tasks.settings import Columns
from unmask.tasks.task_model import TaskModel, load_fine_tuned
from unmask.training.hardware import choose_device

log = logging.getLogger("unmask")
_KINDS = (".jsonl", ".csv")


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
        """A JSON object a record; or what was written."""
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
    """Predicts for every record of a file.

    Args:
        model: Folder of a fine-tuned model, or its name on the hub, or the model itself.
        file: As for training, without labels; or lines of text.
        out: A .jsonl or .csv file; None gives the predictions back.
        text, second: Columns, where they are not to be found.
        overwrite: Whether `out` is replaced.
        note: Told which columns were found, and what is longer than the model.
        notify: Told of the progress (`Progress`: what is done, how much, of how much, in which unit).

    Raises:
        UnmaskError: The model or the file cannot be used, or `out` is there, or of another kind.
    """
    file, target = Path(file), None if out is None else Path(out)
    if target is not None and target.suffix not in _KINDS:
        raise RunError(f"{target}: predictions are written as {' or '.join(_KINDS)}; give such a file")
    if target is not None:
        check_file(target, overwrite=overwrite)
    if isinstance(model, TaskModel):
        loaded = model
    else:
        loaded = load_fine_tuned(model)
        loaded.network.to(choose_device())
    usual = Columns(**loaded.task.content().get("columns", {}))
    columns = Columns(text=text, second=second)
    data = read_labelled(file, loaded.task, columns, with_labels=False, usual=usual)
    if data.columns is not None:
        named = {name: column for name, column in vars(data.columns).items() if column is not None}
        note("columns: " + ", ".join(f"{name} in {column!r}" for name, column in named.items()))
    found = loaded.predict_records(data.records, notify=notify or usual_notify())
    longest = loaded.task.max_length or loaded.network.config.max_position_embeddings
    for count, what in ((found.truncated, "their ends are not seen"), (found.split, "they are seen in several parts")):
        if count:
            note(f"{count:,} of {len(data.records):,} texts are longer than {longest} tokens; {what}")
    rows = [
        {"row": record.row, **asdict(prediction)}
        for record, prediction in zip(data.records, found.predictions, strict=True)
    ]
    figures = {
        "model": str(loaded.folder),
        "task": loaded.task.kind,
        "examples": len(rows),
        "truncated": found.truncated,
        "split": found.split,
    }
    if target is None:
        return Predictions({**figures, "predictions": rows})
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with held_file(target):
            write_atomically(target, _csv(rows) if target.suffix == ".csv" else _jsonl(rows))
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror})") from error
    return Predictions({**figures, "out": str(target)})


def _jsonl(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Probabilities of classes have a column each; lists of words and tags are JSON, so that they can be read back."""
    flat = []
    for row in rows:
        cells: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, dict):
                cells |= {f"{name}.{inner}": share for inner, share in value.items()}
            elif isinstance(value, list | tuple):
                cells[name] = json.dumps(value, ensure_ascii=False, allow_nan=False)
            else:
                cells[name] = value
        flat.append(cells)
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()
