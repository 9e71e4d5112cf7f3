"""Predictions of a fine-tuned model, as rows that can be joined with its input: JSON lines, CSV, CoNLL(-U), DocBin."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from unmask.core.errors import CorpusError, RunError, SettingsError, escaped
from unmask.core.files import check_file, output_file, whole_file, writing
from unmask.core.public import public
from unmask.core.remote import local_copies, refused
from unmask.core.results import Notify, Result, Sheet, Shown, usual_note, usual_reporter
from unmask.core.settings import validated
from unmask.data.annotations import UNIVERSAL_TAGS
from unmask.data.settings import Reading
from unmask.data.sources import readable
from unmask.tasks.files import Columns, Labelled, example_files, has_text, read_labelled
from unmask.tasks.loaded_model import Model, as_model
from unmask.tasks.tag import no_prediction, scheme_of
from unmask.tasks.task import Task

Format = Literal["jsonl", "csv", "conll", "conllu", "spacy"]
_BEYOND_JSON = re.compile(r"[\x7f-\x9f]")  # control characters that JSON leaves as they are
_FIRST_ROWS, _CELL = 10, 60  # shown in Python: rows, and characters of a cell
_LONG = {"row", "words", "probabilities", "starts", "ends"}  # columns that are not shown there


class Predictions(Result):
    """Predictions of a fine-tuned model: in the file `out`, or in `predictions`. Each is a dictionary with the `row` in
    the file (the last line of a row of several lines, the first line of a sentence with a word per line); the `id`, or
    the `index` counted from 0; the text, or both texts of a pair by column; and the output of `Model.predict`."""

    model: str  # its folder
    task: str
    examples: int  # number of records
    truncated: int  # records whose ends were cut off
    split: int  # records that were read in several parts
    out: str  # either this or `predictions` is set
    predictions: list[dict[str, Any]]
    _of: str  # with `out`: number of words or entities, in words
    _format: str  # with `predictions`: the format in which they are shown, and the names of classes
    _names: Sequence[str]

    def shown(self) -> Iterator[Shown]:
        if "out" in self:
            yield f"{self.examples:,} predictions{self._of} in {self.out}"
        else:
            yield "".join(FORMATS[self._format](self.predictions, self._names)).rstrip("\n")

    def displayed(self) -> Iterator[Shown]:
        """A table of the first rows; the command prints all of them."""
        if "out" in self:
            yield from self.shown()
            return
        names = [name for name in self.predictions[0] if name not in _LONG]
        rows = self.predictions[:_FIRST_ROWS]
        yield Sheet(tuple(names), [[_short(row[name]) for name in names] for row in rows])
        if more := self.examples - len(rows):
            yield f"... and {more:,} more in .predictions"


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else escaped(_cell(value))
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


@public
def predict(  # noqa: PLR0913  (the options of the command line, each a name that users know)
    model: str | Path | Model,
    file: str | Path | Iterable[Any],
    *,
    out: str | Path | None = None,
    format: Format | None = None,  # noqa: A002
    text: str | int | None = None,
    second: str | int | None = None,
    encoding: str | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] = usual_note,
    notify: Notify | None = None,
) -> Predictions:
    """Predicts each text of a file with a fine-tuned model. Predictions have probabilities.

    Args:
        model: Folder of a fine-tuned model, or its name on the hub.
        file: A file as for training, without labels, or lines of text; - or a pipe gives lines. In Python also a list
            of texts, of rows (dicts) or of inputs of `Model.predict`, a pandas table, or a dataset.
        out: Output file. By default the result holds the predictions.
        format: Format of `out`, by default as its name ends, otherwise jsonl. csv suits spreadsheets; conll, conllu and
            spacy (a DocBin) are for words with tags.
        text: Column of the text; its number, counted from 0, if columns have no names. By default it is detected.
        second: Column of the other text of a pair.
        encoding: Encoding of text that is not Unicode, such as cp1252.
        overwrite: Replace an existing file.
        note: Called with each decision, a line.
        notify: Called with the progress.

    Raises:
        UnmaskError: The model or the file cannot be used, or `out` exists or is of another kind.
    """
    target, form = None if out is None else Path(out), _form(out, format)
    if out is not None and target is not None:
        refused(out, "predictions")
        check_file(target, overwrite=overwrite)
    loaded = as_model(model)
    network, task = loaded.fine_tuned
    if form in ("conll", "conllu", "spacy") and task.kind != "tag":
        raise RunError(f"--format {form} is for words with tags, not for the task {task.kind}; use jsonl or csv")
    data = _read(loaded, file, Columns(text=text, second=second), encoding)
    if data.columns:
        note("columns: " + ", ".join(f"{role} in {name!r}" for role, name in data.columns.items()))
    with ExitStack() as held:
        if target is not None:  # before hours of work that another process may do for this file as well
            held.enter_context(output_file(target, overwrite=overwrite))
        predictions, encoded = loaded.predict_records(data.records, notify=notify or usual_reporter().notify)
        positions = network.config.max_position_embeddings
        for line in encoded.notes(len(data.records), task.max_length or positions, positions):
            note(line)
        rows = _rows(task, data, predictions)
        if blank := sum(not has_text(record) for record in data.records):
            what = f"{blank:,} of {len(data.records):,} rows have no text"
            note(f"{what}, so they get no prediction{' (null)' * task.of_texts}")
        counts = {"examples": len(data.records), "truncated": encoded.truncated, "split": encoded.split}
        figures = {"model": str(loaded.folder), "task": task.kind, **counts}
        if target is None:
            return Predictions({**figures, "predictions": list(rows), "_format": form, "_names": task.names})
        with writing(target), whole_file(target) as partial, partial.open("xb") as output:
            for part in FORMATS[form](rows, task.names):
                output.write(part.encode() if isinstance(part, str) else part)
    unit = "" if task.kind != "tag" else "words" if scheme_of(task.names) is None else "entities"
    of = f" ({sum(len(getattr(each, unit)) for each in predictions):,} {unit})" if unit else ""
    return Predictions({**figures, "out": str(target), "_of": of})


def _form(out: str | Path | None, format: Format | None) -> str:  # noqa: A002
    form = format or ("jsonl" if out is None else Path(out).suffix.removeprefix(".").lower())
    if form not in FORMATS:
        raise RunError(f"{out or form}: use one of the endings or formats {', '.join(FORMATS)}", options=("format",))
    if form == "spacy" and out is None:
        raise RunError("a DocBin of spaCy cannot be printed; give a file for it", options=("out",))
    if form == "spacy" and importlib.util.find_spec("spacy") is None:
        raise RunError("writing .spacy needs spaCy; install it with: pip install spacy")
    return form


def _read(loaded: Model, file: str | Path | Iterable[Any], columns: Columns, encoding: str | None) -> Labelled:
    task = loaded.fine_tuned[1]
    options: dict[str, Any] = {"with_labels": False, "usual": Columns(**task.columns)}
    if isinstance(file, list | tuple) and file and isinstance(file[0], list | tuple):
        records = loaded.records_of(file)
        return Labelled(Path("input"), records, {}, keys=[("index", place) for place in range(len(records))])
    copies = local_copies(file)
    if len(copies) != 1:
        raise CorpusError(f"{file}: give one file, not {len(copies)}")
    (file,) = copies
    path = Path(file) if isinstance(file, str | os.PathLike) else None
    reading = validated(Reading, {"encoding": encoding if path else None}, where="predict")
    with readable(file) as here:
        data = read_labelled(example_files(here, path or Path("input")), task, columns, reading=reading, **options)
    if task.of_texts and data.is_paired and task.columns and not task.paired:  # models of other tools may take either
        raise SettingsError("this model takes single texts; leave the second column out", options=["second"])
    return data


def _rows(task: Task, data: Labelled, predictions: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yields predictions as rows, with the id and the text of their input: all at once may not fit into memory."""
    names: tuple[str, ...] = ("text",)
    if task.fixed is not None:
        names = str(task.fixed.text), str(task.fixed.second)
    elif task.paired or (task.of_texts and data.is_paired):
        columns = {"text": "text", "second": "second", **task.columns, **data.columns}
        names = columns["text"], columns["second"]
    for record, key, prediction in zip(data.records, data.keys, predictions, strict=True):
        row = {"row": record.row, key[0]: key[1], **dict(zip(names, record.texts, strict=False))}
        own = asdict(prediction)
        if task.of_texts and not has_text(record):
            own = {name: dict.fromkeys(each) if isinstance(each, dict) else None for name, each in own.items()}
        row |= {name: own[name] for name in ("text", "entities") if name in own}  # put these columns of tags first
        yield row | own


def _as_text(cell: str) -> str:
    """Escapes control characters. What a spreadsheet may read as a formula stays as it is: with an
    apostrophe before them, ids and classes such as `-a` and `@home` would no longer match those of the input."""
    return escaped(cell.replace("\r\n", "\n"))


def _jsonl(rows: Iterable[dict[str, Any]], names: Sequence[str] = ()) -> Iterator[str]:
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _csv(rows: Iterable[dict[str, Any]], names: Sequence[str] = ()) -> Iterator[str]:
    """Writes a column for each class's probability; lists of words and tags are JSON."""
    header: list[str] = []
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
        buffer = io.StringIO(newline="")
        writer = csv.DictWriter(buffer, fieldnames=header or list(cells), lineterminator="\n")
        if not header:
            header = list(cells)
            writer.writerow({name: _as_text(name) for name in header})
        writer.writerow(cells)
        yield buffer.getvalue()


def _conll(rows: Iterable[dict[str, Any]], names: Sequence[str] = ()) -> Iterator[str]:
    """Writes for each sentence a comment with the row's key, a line per word with its tag, and an empty line."""
    missing = no_prediction(names)
    for row in rows:
        name, key = _key(row)
        words = (f"{_cell(word)}\t{tag or missing}\n" for word, tag in zip(row["words"], row["tags"], strict=True))
        yield f"# {name} = {_cell(key)}\n{''.join(words)}\n"


def _conllu(rows: Iterable[dict[str, Any]], names: Sequence[str] = ()) -> Iterator[str]:
    """Writes tags as UPOS if all tags of the model are UPOS, else as XPOS. `SpaceAfter=No` follows the text."""
    upos = {*names}.issubset(UNIVERSAL_TAGS)
    for row in rows:
        text = f"# sent_id = {_cell(_key(row)[1])}\n" + (f"# text = {_cell(row['text'])}\n" if row["words"] else "")
        begins = [*row["starts"][1:], None]
        for number, (word, tag) in enumerate(zip(row["words"], row["tags"], strict=True)):
            tags = [tag or "_", "_"] if upos else ["_", tag or "_"]
            space = "SpaceAfter=No" if row["ends"][number] == begins[number] else "_"
            text += "\t".join([str(number + 1), _cell(word), "_", *tags, *"____", space]) + "\n"
        yield text + "\n"


def _key(row: Mapping[str, Any]) -> tuple[str, Any]:
    name = "id" if "id" in row else "index"
    return name, row[name]


def _cell(value: Any) -> str:
    """A value on one line, without a tab, never empty."""
    return re.sub(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]", " ", "" if value is None else str(value)) or "_"


def _docbin(rows: Iterable[dict[str, Any]], names: Sequence[str] = ()) -> Iterator[bytes]:
    """Writes tags as spaCy's `tag_` (and `pos_`, if they are UPOS), entities if tags mark them, keys in `user_data`."""
    import spacy
    from spacy.tokens import Doc, DocBin

    vocab, docs = spacy.blank("xx").vocab, DocBin(store_user_data=True)
    upos, has_entities = {*names}.issubset(UNIVERSAL_TAGS), scheme_of(names) is not None
    for row in rows:
        words, spaces = spacy.util.get_words_and_spaces(row["words"], row["text"])
        doc = Doc(vocab, words=words, spaces=spaces, user_data=dict([_key(row)]))
        tags = [tag for word, tag in zip(row["words"], row["tags"], strict=True) if not word.isspace()]
        for token, tag in zip((token for token in doc if not token.is_space), tags, strict=True):
            token.tag_ = tag or ""
            if upos:
                token.pos_ = tag or ""
        entities = row["entities"] if has_entities else ()
        doc.ents = [doc.char_span(each["start"], each["end"], label=each["label"]) for each in entities]
        docs.add(doc)
    yield bytes(docs.to_bytes())


# Functions of the rows, and of the names of the model's tags or classes; they yield the parts of a file, text or bytes.
FORMATS: Mapping[str, Callable[..., Iterator[Any]]] = {
    "jsonl": _jsonl, "csv": _csv, "conll": _conll, "conllu": _conllu, "spacy": _docbin
}  # fmt: skip
