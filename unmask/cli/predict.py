"""`unmask predict`."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from unmask.cli.progress import ConsoleBar, console
from unmask.errors import RunError
from unmask.files import write_atomically
from unmask.finetuning.reading import read_labelled
from unmask.finetuning.settings import Columns
from unmask.tasks.model import load_fine_tuned
from unmask.training.hardware import choose_device

_KINDS = (".jsonl", ".csv")


def run_predict(
    model: str,
    file: Path,
    *,
    out: Path | None,
    text: str | None,
    second: str | None,
    overwrite: bool,
    lines: bool,
) -> dict[str, Any]:
    """Predicts for every record of a file, and writes a line for each.

    Args:
        model: Folder of a fine-tuned model, or its name on the hub.
        file: As for training, without labels; or lines of text.
        out: Where predictions are written; None: see `lines`.
        text, second: Columns that were named.
        overwrite: Whether `out` is replaced.
        lines: Whether predictions are printed, a JSON object a line, where there is no `out`.

    Returns:
        `model`, `task`, `examples`, `truncated`, `split`, and `out` or `predictions`.

    Raises:
        UnmaskError: The model or the file cannot be used, or `out` is there, or of another kind.
    """
    if out is not None and out.suffix not in _KINDS:
        raise RunError(f"{out}: predictions are written as {' or '.join(_KINDS)}; give such a file")
    if out is not None and out.exists() and not overwrite:
        raise RunError(f"{out} is there already: replace it with --overwrite, or give another --out")
    loaded = load_fine_tuned(model)
    loaded.network.to(choose_device())
    columns = Columns(text=text, second=second)
    kind = "pairs" if loaded.info.paired else loaded.info.kind
    usual = Columns(**loaded.info.columns)
    data = read_labelled(file, kind, columns, with_labels=False, usual=usual)
    with ConsoleBar("reading") as bar:
        found = loaded.predict_records(data.records, notify=partial(bar.notify, "predicting"))
    log = console()
    if data.columns is not None:
        named = {name: column for name, column in vars(data.columns).items() if column is not None}
        log.print("columns: " + ", ".join(f"{name} in {column!r}" for name, column in named.items()), markup=False)
    longest = loaded.info.max_length or loaded.network.config.max_position_embeddings
    for count, what in ((found.truncated, "their ends are not seen"), (found.split, "they are seen in several parts")):
        if count:
            log.print(f"{count:,} of {len(data.records):,} texts are longer than {longest} tokens; {what}")
    rows = [
        {"row": record.row, **asdict(prediction)}
        for record, prediction in zip(data.records, found.predictions, strict=True)
    ]
    result: dict[str, Any] = {
        "model": str(loaded.folder),
        "task": loaded.info.kind,
        "examples": len(rows),
        "truncated": found.truncated,
        "split": found.split,
    }
    if out is None:
        if lines:
            sys.stdout.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        return {**result, "predictions": rows}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, _csv(rows) if out.suffix == ".csv" else _jsonl(rows))
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror})") from error
    log.print(f"{len(rows):,} predictions in {out}", markup=False, soft_wrap=True)
    return {**result, "out": str(out)}


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
