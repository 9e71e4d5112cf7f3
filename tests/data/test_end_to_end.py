"""Annotations from the text to the rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.data.corpora import SMALL, write_jsonl
from unmask.commands.run_data import open_prepared
from unmask.core.errors import DataError
from unmask.data.prepare import prepare
from unmask.data.rows import Cursor, RowStream
from unmask.data.settings import AnnotationSettings, CorpusSettings

NAMES = ["Anna Lee", "Bonn", "the King of Spain", "New York"]


def jsonl(path: Path, num_rows: int = 400) -> Path:
    """Sentences with entities and a parse of their words, each on the one before it."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(num_rows):
        text, entities, words = "", [], []
        for word in rng.choice([*NAMES, "sees", "and", "mountaineering", "philosophers"], rng.integers(3, 12)):
            begin = len(text) + bool(text)
            text += f"{' ' if text else ''}{word}"
            words.append([begin, len(text), "root" if not words else "obj", max(len(words) - 1, 0)])
            if word in NAMES:
                entities.append([begin, len(text), "PER" if word == "Anna Lee" else "LOC"])
        rows.append({"text": text, "entities": entities, "dependencies": words})
    return write_jsonl(path, rows)


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("annotated")
    columns = AnnotationSettings(columns=("entities", "dependencies"))
    prepare([jsonl(folder / "a.jsonl")], folder / "data", corpus=CorpusSettings(), tokenizer=SMALL, annotation=columns)
    return folder / "data"


def test_rows_carry_them_where_the_tokens_are(annotated: Path) -> None:
    """Read off the rows, each entity's text is one of the names."""
    data = open_prepared(annotated)
    batch = RowStream(data.train, data.tokenizer, length=48, seed=0).batch(Cursor(), 64)
    column = batch.rows.annotations["entities"]
    assert not column[~batch.rows.maskable].any()
    names = set()
    for ids, values in zip(batch.rows.input_ids.tolist(), column.tolist(), strict=True):
        spans: list[tuple[int, list[int]]] = []
        for id_, value in zip(ids, values, strict=True):
            if value & 1:
                spans.append((value >> 1, []))
            if value:
                spans[-1][1].append(id_)
        names |= {(data.tokenizer.decode(tokens), label) for label, tokens in spans}
    assert names == {(name, 2 if name == "Anna Lee" else 1) for name in NAMES}


def test_other_annotations_make_other_parts(tmp_path: Path) -> None:
    """A gazetteer that has changed under its name; and `--resume` refuses data that was made with the old one."""
    path, names = jsonl(tmp_path / "a.jsonl", 200), tmp_path / "names.txt"
    annotation = AnnotationSettings(columns=("entities",), gazetteer=str(names))
    make = partial(prepare, [path], tmp_path / "data", corpus=CorpusSettings(), tokenizer=SMALL, annotation=annotation)
    names.write_text("Bonn\n")
    one = make()
    assert make(resume=True) == one
    names.write_text("Bonn\nSpain\n")
    with pytest.raises(DataError, match="gazetteer"):
        make(resume=True)
    two = make(overwrite=True)
    assert two.spans["entities"][0] > one.spans["entities"][0]
    assert two.fingerprint != one.fingerprint
