"""Predictions of a fine-tuned model for a file, as JSON lines or for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.core.errors import RunError, printable
from unmask.core.files import check_file, locked, write_atomically
from unmask.core.public import public
from unmask.core.results import Notify, Result, Shown, usual_reporter
from unmask.data.sources import readable
from unmask.tasks.files import Columns, example_files, read_labelled
from unmask.tasks.loaded_model import Model, load
from unmask.train.hardware import choose_device

log = logging.getLogger("unmask")
_FORMATS = (".jsonl", ".csv")
_BEYOND_JSON = re.compile(r"[\x7f-\x9f]")  # control characters that JSON leaves as they are
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Predictions(Result):
    """What a fine-tuned model says of a file: in `out` where a file was written, else in `predictions`, a dictionary a
    record with the record's `row` in the file."""

    model: str  # its folder
    task: str
    examples: int  # records of the file
    truncated: int  # of them, those that are longer than the model: their ends were not seen
    split: int  # those that were seen in several parts

    def shown(self) -> Iterator[Shown]:
        if "out" in self:
            yield f"{self.examples:,} predictions in {self.out}"
        else:
            yield _jsonl(self.predictions).rstrip("\n")


@public
def predict(
    model: str | Path | Model,
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
    loaded = model if isinstance(model, Model) else load(model)
    if loaded is not model:
        loaded.to(choose_device())
    network, task = loaded.fine_tuned
    usual, columns = Columns(**task.columns), Columns(text=text, second=second)
    with readable(file) as here:
        data = read_labelled(example_files(here, Path(file)), task, columns, with_labels=False, usual=usual)
    if data.columns:
        note("columns: " + ", ".join(f"{role} in {name!r}" for role, name in data.columns.items()))
    predictions, encoded = loaded.predict_records(data.records, notify=notify or usual_reporter().notify)
    longest = task.max_length or network.config.max_position_embeddings
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
        "task": task.kind,
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
