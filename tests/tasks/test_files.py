"""Files as records: every kind, columns that are named or detected, and every error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands.finetune_helpers import write_jsonl, write_squad
from unmask.commands.finetune import examples_given
from unmask.core.errors import CorpusError
from unmask.data.settings import Reading
from unmask.data.sources import find_sources
from unmask.data.treebanks import form_of
from unmask.tasks.answer import AnswerSpan, AnswerTask, QuestionRecord
from unmask.tasks.classify import Classify, TextRecord
from unmask.tasks.files import Columns, Labelled, example_files, place_of, read_labelled
from unmask.tasks.kinds import task_named
from unmask.tasks.tag import Tag, WordsRecord, scheme_of
from unmask.tasks.task import FinetuneSettings


def read(
    path: Path, kind: str = "classify", *, with_labels: bool = True, like: Labelled | None = None, **columns: str
) -> Labelled:
    return read_labelled(path, task_named(kind), Columns(**columns), with_labels=with_labels, like=like)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_are_named_or_found(tmp_path: Path) -> None:
    cola = written(tmp_path / "c.tsv", "gj04\t1\t\tThe sailors rode the breeze.\nbc01\t0\t*\tThe weights rode.\n")
    assert read(cola).columns == {"text": "3", "label": "1"}
    with pytest.raises(CorpusError, match="label: .* 0, 1, 2, 3"):
        read(written(tmp_path / "d.tsv", "gj04\t\t*\tThe sailors rode.\nbc01\t\t*\tThe weights rode.\n"))
    named = read(cola, label="1")
    assert named.columns == {"text": "3", "label": "1"}
    assert named.records[1] == TextRecord(2, "The weights rode.", None, "0")
    other = written(tmp_path / "o.csv", "what,kind\ngood,1\nbad,0\n")
    assert read(other, text="what", label="kind").records[0] == TextRecord(2, "good", None, "1")
    with pytest.raises(CorpusError, match="'knd'.*'kind'"):
        read(other, text="what", label="knd")
    with pytest.raises(CorpusError, match="text: .* a, b"):
        read(write_jsonl(tmp_path / "k.jsonl", [{"a": "some text", "b": "other text"}]), with_labels=False)


@pytest.mark.parametrize(
    ("header", "row", "kind", "column"),
    [
        ("nr,text,user_id,when,mood", "{n},Some long text {n}.,{kind},1{flag}:30,{kind}", "classify", "mood"),
        ("text,price,mood", "Some long text {n}.,{kind}9.95,{kind}", "classify", "mood"),
        ("text,product,stars", "Some long text {n}.,Cup {flag},{kind}", "classify", ("product", "stars")),
        ("text,product,topics", "Some long text {n}.,Cup {n},wet; {flag}", "multi_label", "topics"),
    ],
)  # fmt: skip
def test_the_column_of_labels(tmp_path: Path, header: str, row: str, kind: str, column: str | tuple[str, str]) -> None:
    """The only column that may be; if there are several, the error names all. Ids, dates and prices are not classes."""
    rows = [row.format(n=n, kind=n % 3, flag=n % 2 if n % 4 else "") for n in range(1, 13)]
    path = written(tmp_path / "a.csv", "\n".join([header, *rows, ""]))
    if isinstance(column, str):
        assert read(path, kind).columns["label"] == column
        return
    with pytest.raises(CorpusError, match=f"'{column[0]}' .*'{column[1]}' .*finetune.columns.label=") as caught:
        read(path, kind)
    assert caught.value.options == ("label",)


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        ("2,92 -3,5 4", [2.92, -3.5, 4.0]),
        ("1.234,5 2.500 7,25", [1234.5, 2500.0, 7.25]),
        ("1,234 2,500", [1.234, 2.5]),
        ("1,234 2,500.5", [1234.0, 2500.5]),
        ("1,234,567 1,000", [1234567.0, 1000.0]),
        ("1,5e-3 \u22122", [0.0015, -2.0]),
        ("1'234.5 2", [1234.5, 2.0]),
        ("1,5 2.5", None),
        ("1,234 1.234", None),
        ("1,5kg 2", None),
    ],
)
def test_decimal_commas(tmp_path: Path, cells: str, numbers: list[float] | None) -> None:
    for delimiter in (";", ","):
        lines = [f'A text.{delimiter}"{cell}"' for cell in cells.split()]
        path = written(tmp_path / "a.csv", "\n".join([f"text{delimiter}score", *lines, ""]))
        if numbers is None:
            with pytest.raises(CorpusError, match="write"):
                read(path, "regress")
            continue
        table = read(path, "regress")
        assert [record.label for record in table.records] == numbers
        assert any("numbers have" in note for note in table.notes) == ("," in cells)
    ambiguous = written(tmp_path / "b.csv", "text;score\nOne.;1,234\n")
    if numbers is not None and "," in cells:
        again = read(ambiguous, "regress", like=table)
        assert again.records[0].label == (1234.0 if cells in ("1,234 2,500.5", "1,234,567 1,000") else 1.234)


def test_the_index_of_pandas_is_no_column(tmp_path: Path) -> None:
    """It keeps the one of rows that were chosen, in Parquet and in memory."""
    frame = pytest.importorskip("pandas").DataFrame({"note": [f"Long note {n}." for n in range(12)], "days": range(12)})
    chosen = frame[frame.index % 4 > 0]
    chosen.to_parquet(tmp_path / "a.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "a.parquet").names
    with examples_given(chosen, tmp_path / "a.parquet", None) as files:
        for each in files.values():
            columns = read_labelled(each, task_named("regress"), Columns()).columns
            assert columns == {"text": "note", "label": "days"}


def test_pairs_and_numbers(tmp_path: Path) -> None:
    own = written(tmp_path / "q.jsonl", json.dumps({"l": "a", "r": "b", "label": "x"}) + "\n")
    assert read(own, "pairs", text="l", second="r").records[0] == TextRecord(1, "a", "b", "x")
    with pytest.raises(CorpusError, match="cannot tell which column is the text"):
        read(own, "pairs")
    score = written(tmp_path / "s.csv", "sentence1,sentence2,score\na,b,2.5\nc,d,-1e1\n")
    assert list(read(score, "regress").records) == [TextRecord(2, "a", "b", 2.5), TextRecord(3, "c", "d", -10.0)]
    assert read(score, "regress", text="sentence1", label="score").records[0] == TextRecord(2, "a", None, 2.5)


def test_ids_that_repeat_are_an_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In any row; those of a column called `id` are taken as they are."""
    for column, last, key in (("patient_id", 250, "id"), ("patient_id", 7, "index"), ("id", 7, "id")):
        lines = [f"{column},text", *(f"{number},Sea {number}." for number in (*range(250), last))]
        keys = read(written(tmp_path / "a.csv", "\n".join(lines)), with_labels=False).keys
        assert keys[-1] == (key, 250 if key == "index" else last)
        assert ("'patient_id' repeats" in caplog.text) == (key == "index")
        caplog.clear()
    exported = written(tmp_path / "a.jsonl", '{"_id": {"$oid": "65f0"}, "text": "Sea."}\n')
    assert read(exported, with_labels=False).keys == [("id", "65f0")], "as MongoDB writes it"


@pytest.mark.parametrize(
    ("kind", "row", "place"),
    [
        ("classify", {"text": "a", "label": {"x": 1}}, "row 2, column 'label': has dict"),
        ("classify", {"text": "a", "label": ["x", "y"]}, "row 2, column 'label': has 2 labels.*multi_label"),
        ("classify", {"text": 3, "label": "x"}, "row 2, column 'text': has int"),
        ("classify", {"text": "a"}, "row 2 has no column 'label'"),
        ("regress", {"text": "a", "label": "many"}, "row 2, column 'label': has 'many'"),
        ("regress", {"text": "a", "label": [1.5]}, r"row 2, column 'label': has \[1.5\]"),
        ("regress", {"text": "a", "label": 1e300}, "row 2, column 'label': has 1e\\+300"),
        ("classify", {"text": "a", "label": "\ud800"}, r"row 2 holds U\+D800"),
        ("multi_label", {"text": "a", "label": "[sad"}, "row 2, column 'label': has '\\[sad'"),
    ],
)
def test_bad_values(tmp_path: Path, kind: str, row: dict[str, Any], place: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "good", "label": 1}, row])
    with pytest.raises(CorpusError, match=place) as caught:
        read(path, kind)
    assert caught.value.options == (("task",) if "multi_label" in place else ())


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("classify", ["a", None, "", "b", "NaN", "-", float("nan")], ["a", "b"]),
        ("classify", ["+", "-", "+"], ["+", "-", "+"]),
        ("classify", [0, -1, 1, 2, 2, -1, -1], ["0", "1", "2", "2"]),
        ("classify", [0, -1, 1, 0, 1, 1], ["0", "1", "0", "1", "1"]),
        ("classify", [0, -1, 1, -1, 0], ["0", "-1", "1", "-1", "0"]),  # as often as the others: the opposite of 1
        ("classify", [1, -1], ["1", "-1"]),
        ("classify", ["-1", "a", "b"], ["-1", "a", "b"]),
        ("classify", ["NA", "a", "b"], ["NA", "a", "b"]),
        ("classify", [["a"], [], ["b"], "['a']"], ["a", "b", "a"]),
        ("regress", [1.5, None, "", "nan", -1, "n/a"], [1.5, -1.0]),
        ("multi_label", [["a", "b"], [], None, "", "-", ["b"]], [("a", "b"), (), (), (), ("b",)]),
        ("multi_label", [[0, 2], [1], [0, 1]], [("0", "2"), ("1",), ("0", "1")]),
        ("multi_label", [[0], [1], [1]], [("0",), ("1",), ("1",)]),
        ("multi_label", [[0, 1, 1], [False, True, False], [0.0, 0.0, 0.0]], [("1", "2"), ("1",), ()]),
        ("multi_label", ["[0 1]", "[1. 0.]", "[1, 1]", "-"], [("1",), ("0",), ("0", "1")]),
        ("multi_label", [[0, 1], None, [-1, 1], [1, 1]], [("1",), ("0", "1")]),
        ("multi_label", ["['a' 'b']", "['a', \"b's\"]", '["b"]'], [("a", "b"), ("a", "b's"), ("b",)]),
    ],
)  # fmt: skip
def test_no_label_and_labels_by_place(tmp_path: Path, kind: str, labels: list[Any], expected: list[Any]) -> None:
    """Rows whose cell means no label are left out and counted; predictions leave out none."""
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    found = read(path, kind)
    assert [record.label for record in found.records] == expected
    left_out = len(labels) - len(expected)
    assert any(f"{left_out} of {len(labels)} rows have no label" in note for note in found.notes) == (left_out > 0)
    assert any("lists of 0 and 1" in note for note in found.notes) == bool(found.places)
    assert any("-1, in " in note for note in found.notes) == (kind == "classify" and 0 in labels)
    assert any("NA, in 1 rows" in note for note in found.notes) == ("NA" in labels)
    assert len(read(path, kind, with_labels=False).records) == len(labels)
    assert [record.label for record in read(path, kind, like=found).records] == expected


def test_other_files_are_read_like_the_one_for_training(tmp_path: Path) -> None:
    """Whether lists hold numbers of classes or a flag per class is decided by the training file."""
    short, numbers, places = (
        write_jsonl(tmp_path / f"{n}.jsonl", [{"text": "a", "label": label} for label in labels])
        for n, labels in enumerate(([[0, 1]], [[1, 2], [0]], [[1, 0], [1, 1]]))
    )
    by_number, by_place = (read(train, "multi_label") for train in (numbers, places))
    assert read(short, "multi_label", like=by_number).records[0].label == ("0", "1")
    assert read(short, "multi_label", like=by_place).records[0].label == ("1",)
    with pytest.raises(CorpusError, match=r"row 1 has \[1, 2\]"):
        read(numbers, "multi_label", like=by_place)
    empty = [{"text": "a", "label": label} for label in ([1, 0, 0], [], [1, 1, 0])]
    with pytest.raises(CorpusError, match=r"row 2 has \[\], not 3"):
        read(write_jsonl(tmp_path / "f.jsonl", empty), "multi_label")
    with pytest.raises(CorpusError, match="none of the 2 rows has a label"):
        read(write_jsonl(tmp_path / "e.jsonl", [{"text": "a", "label": None}, {"text": "b", "label": ""}]))


def test_columns_of_0_and_1(tmp_path: Path) -> None:
    content = "id,text,toxic,rude,cruel\n1,You fool.,1,0,0\n2,Good.,0,0,0\n3,Die.,1,1,\n4,Ugh.,1,1,1\n5,So,1,<NA>,0\n"
    path = written(tmp_path / "a.csv", content)
    for table, labels in (
        (read(path, "multi_label"), [("toxic",), (), ("toxic", "rude", "cruel")]),
        (read(path, "multi_label", label="rude,cruel"), [(), (), ("rude", "cruel")]),
    ):
        assert [record.label for record in table.records] == labels
    with pytest.raises(CorpusError, match="'rued'"):
        read(path, "multi_label", label="toxic,rued")
    rows = [{"text": f"Text {n}.", "toxic": n % 2, "threat": int(n == 250)} for n in range(300)]
    rare = read(write_jsonl(tmp_path / "d.jsonl", rows), "multi_label")
    assert rare.columns["label"] == "toxic,threat", "also if the first rows have no 1"
    other = written(tmp_path / "b.csv", "text,rude,toxic\nYou fool.,0,1\n")
    again = read(other, "multi_label", like=read(path, "multi_label"))
    assert again.records[0].label == ("toxic",), "columns in another order"


@pytest.mark.parametrize("sign", [",", "|", "#", ";"])
@pytest.mark.parametrize("kind", ["classify", "multi_label"])
def test_labels_that_are_joined(tmp_path: Path, sign: str, kind: str) -> None:
    rows = [{"text": "a", "label": label} for label in (f"sea{sign} land", "sea", "land", "sky")]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    if kind == "multi_label" and sign == ";":
        assert read(path, kind).records[0].label == ("sea", "land")
        return
    with pytest.raises(CorpusError, match=f"'[{sign}]'.*finetune.label_separator"):
        read(path, kind)
    whole, cut = (
        read_labelled(path, task_named(kind), Columns(), separator=each).records[0].label for each in ("", sign)
    )
    assert (whole, cut)[kind == "multi_label"] == (f"sea{sign} land", ("sea", "land"))[kind == "multi_label"]
    places = [{"text": "a", "label": f"{town}{sign} France"} for town in ("Lyon", "Nice")]
    assert len(read(write_jsonl(tmp_path / "b.jsonl", places), "classify").records) == 2


def test_the_first_fault_and_how_many_there_are(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,score\n" + "a,1\nb,x\nc,y\n" * 3)
    with pytest.raises(CorpusError, match=r"row 3, column 'score': has 'x'.* 6 rows"):
        read(path, "regress")


def test_treebanks(tmp_path: Path) -> None:
    conll = written(tmp_path / "a.conll", "Anna\tNN\tB-per\nsleeps\tVB\tO\n\nWe\tPR\tO\n")
    assert read(conll, "tag").records[1] == WordsRecord(4, ("We",), ("O",))
    assert read(conll, "tag", label="1").records[0] == WordsRecord(1, ("Anna", "sleeps"), ("NN", "VB"))
    assert read(conll, "tag", with_labels=False).records[1] == WordsRecord(4, ("We",))
    cells = "\t{}\t_\t{}\t{}\t_\t0\troot\t_\t_"
    lines = ["# newdoc", "# sent_id = w-1"]
    lines += ["1-2" + cells.format("don't", "_", "_"), "1" + cells.format("do", "AUX", "VBP")]
    lines += ["2" + cells.format("n't", "PART", "RB"), "2.1" + cells.format("x", "X", "X"), ""]
    conllu = written(tmp_path / "a.conllu", "\n".join(lines))
    assert list(read(conllu, "tag").records) == [WordsRecord(4, ("do", "n't"), ("AUX", "PART"))]
    assert list(read(conllu, "tag", label="xpos").records) == [WordsRecord(4, ("do", "n't"), ("VBP", "RB"))]
    assert [read(path, "tag", with_labels=False).keys for path in (conllu, conll)] == [
        [("id", "w-1")],
        [("index", 0), ("index", 1)],
    ]
    for path, label, message in ((conll, "ner", "'ner'"), (conllu, "feats", "none of the 1 sentences has a tag")):
        with pytest.raises(CorpusError, match=message):
            read(path, "tag", label=label)
    with pytest.raises(CorpusError, match="classify"):
        read(conll)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("eng.testb", "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nwaits VBZ B-VP O\n\nOslo NNP B-NP B-LOC\n"),
        ("a.txt", "EU\tNNP\nwaits\tVBZ\n\n# id = 7\nOslo\tNNP\n"),
        ("a.txt", "EU\nwaits\n\nOslo\n\n.\n"),
        ("a.tsv", "EU\nwaits\n\nOslo\n\n.\n"),
        ("a.csv", "Sentence #,Word\nS1,EU\n,waits\nS2,Oslo\n"),
        ("a.csv", "doc_id,sent_id,token\nd1,1,EU\nd1,1,waits\nd1,2,Oslo\n"),
    ],
)
def test_sentences_to_predict_are_read_as_those_of_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str
) -> None:
    """Whatever the suffix, and with the model's tags or without any."""
    path = written(tmp_path / name, content)
    records = read_labelled(path, Tag(("NNP", "VBZ")), Columns(), with_labels=False).records
    assert [record.words for record in records][:2] == [("EU", "waits"), ("Oslo",)]
    assert "plain text" not in caplog.text
    if name.endswith(".csv"):
        with pytest.raises(CorpusError, match=r"a\.csv: line 2: .*no column"):
            read(path, "tag")


@pytest.mark.parametrize("content", ["我爱北京。\n\n他去上海。\n", "Yes\n\nNo\n", "Up you go .\n\nMe too .\n"])
def test_lines_of_text_are_no_words(tmp_path: Path, content: str) -> None:
    path = written(tmp_path / "a.txt", content)
    records = read_labelled(path, Tag(("NNP", "VBZ", ".")), Columns(), with_labels=False).records
    assert [record.text for record in records] == content.split("\n")[::2]


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ("Mira/PROPN sings/_|We/_ go/_|No/X", [("PROPN", None), ("X",)]),
        ("Mira/PROPN sings/-|-/X", [("PROPN", None), ("X",)]),
        ("Mira/PROPN -/-|No/X", [("PROPN", "-"), ("X",)]),
        ("Mira/3 sings/-100|No/4 no/-1", [("3", None), ("4", None)]),
        ("Mira/B-PER sings/_|No/O", [("B-PER", None), ("O",)]),
        ("Mira/B-PER sings/_|No/_", [("B-PER", "O"), ("O",)]),  # no other tag means `O`
        ("Mira/_ sings/_|No/_", None),
    ],
)
def test_words_without_a_tag(tmp_path: Path, sentences: str, expected: list[tuple[str | None, ...]] | None) -> None:
    """The same in files with a word per line and in lists, where null is no tag, too."""
    cut = [[word.split("/") for word in sentence.split()] for sentence in sentences.split("|")]
    lines = "\n\n".join("\n".join("\t".join(pair) for pair in pairs) for pairs in cut)
    rows = [{"tokens": [word for word, _ in pairs], "tags": [tag for _, tag in pairs]} for pairs in cut]
    nulls = [row | {"tags": [None if tag == "_" else tag for tag in row["tags"]]} for row in rows]
    files = [write_jsonl(tmp_path / "b.jsonl", rows), write_jsonl(tmp_path / "c.jsonl", nulls)]
    for path in (written(tmp_path / "a.conll", lines + "\n"), *files):
        if expected is None:
            with pytest.raises(CorpusError, match="none of the 2 sentences"):
                read(path, "tag")
            continue
        table = read(path, "tag")
        assert [record.tags for record in table.records] == expected
        left_out, missing = len(cut) - len(expected), sum(tag in "_-1-100" for pairs in cut for _, tag in pairs)
        notes = " ".join(table.notes)
        assert (f"{left_out} of {len(cut)} sentences have no tags" in notes) == (left_out > 0)
        missing -= 2 * left_out + ("-" in expected[0])
        assert (f"{missing} of " in notes) == (missing > 0)


def test_words_that_begin_with_a_number_sign_are_no_comments(tmp_path: Path) -> None:
    tagged = "# sent_id = 1\n# by hand\n#obama B-person\nwins O\n# made by a person\n# O\n\n# newdoc\nWe O\n"
    assert list(read(written(tmp_path / "a.conll", tagged), "tag").records) == [
        WordsRecord(3, ("#obama", "wins", "#"), ("B-person", "O", "O")),
        WordsRecord(9, ("We",), ("O",)),
    ]
    bare = written(tmp_path / "b.conll", "so\n#hashtag\n# a comment\n#\n")
    assert list(read(bare, "tag", with_labels=False).records) == [WordsRecord(1, ("so", "#hashtag", "#"))]
    comments = "# doc:id = a 1\n# by hand\t[2009]\t3\n"  # with other numbers of columns than words have
    numbered = written(tmp_path / "d.conll", f"{comments}1\tAnna\tB-person\tO\n2\tsings\tO\tO\n")
    assert list(read(numbered, "tag").records) == [WordsRecord(3, ("Anna", "sings"), ("O", "O"))]
    spelled = "#Text=Anna sings\nAnna\tB\nsings\tO\n\n" * 10
    records = read(written(tmp_path / "e.tsv", f"#FORMAT=x\n\n{spelled}"), "tag").records
    assert {record.words for record in records} == {("Anna", "sings")}, "as INCEpTION writes texts"


@pytest.mark.parametrize(("text", "encoding"), [("हम\nगए\n।\n\nतुम\n", "utf-8"), ("海\nを\n見る\n。\n\n山\n", "cp932")])
def test_untagged_words_a_line_are_sentences(tmp_path: Path, text: str, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    task, reading = Tag(("B-x", "O")), Reading(encoding=encoding)
    read = read_labelled(tmp_path / "a.txt", task, Columns(), with_labels=False, reading=reading)
    assert [list(record.words) for record in read.records] == [part.split() for part in text.split("\n\n")]
    (tmp_path / "b.txt").write_bytes("海を見る。\n山\n\n川。\n".encode(encoding))  # texts without blanks
    read = read_labelled(tmp_path / "b.txt", task, Columns(), with_labels=False, reading=reading)
    assert len(read.records) == 3


def test_words_a_line_are_read_beside_a_training_table(tmp_path: Path) -> None:
    """Their columns are not the table's."""
    train = read(write_jsonl(tmp_path / "a.jsonl", [{"data": "Mira sings", "label": [[0, 4, "PER"]]}]), "tag")
    again = read(written(tmp_path / "b.conll", "Mira\tB-PER\nsings\tO\n"), "tag", like=train, **train.columns)
    assert list(again.records) == [WordsRecord(1, ("Mira", "sings"), ("B-PER", "O"))]


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"tokens": ["a", "b"], "tags": ["x"]}, "column 'tags': has 1 tags"),
        ({"tokens": "a b", "tags": ["x"]}, "column 'tokens': has 'a b'"),
        ({"tokens": 7, "tags": ["x"]}, "column 'tokens': has 7"),
        ({"tokens": [{"start": 0, "end": 1}], "spans": [[0, 1, "x"]]}, r"column 'tokens': has \[{"),  # and no text
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, row: dict[str, Any], place: str) -> None:
    with pytest.raises(CorpusError, match=f"row 1, {place}"):
        read(write_jsonl(tmp_path / "b.jsonl", [row]), "tag")


def test_words_with_places_keep_their_text(tmp_path: Path) -> None:
    """As Prodigy writes them, blanks among them: predictions have the places of this text."""
    text, words = "Mira  sings.\n", [("Mira", 0), ("sings", 6), (".", 11), ("\n", 12)]
    tokens = [{"text": word, "start": begin, "end": begin + len(word)} for word, begin in words]
    spans = [{"start": 0, "end": 4, "label": "PER"}]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text, "tokens": tokens, "spans": spans}])
    (record,) = read(path, "tag", with_labels=False, text="tokens").records
    assert record == WordsRecord(1, ("Mira", "sings", "."), text=text, spans=((0, 4), (6, 11), (11, 12)))
    assert Tag(("O",)).ready(record) == record
    assert read(path, "tag").records[0].tags == ("B-PER", "O", "O")


def test_a_list_without_words(tmp_path: Path) -> None:
    rows = [{"tokens": [], "tags": []}, {"tokens": ["a", "b"], "tags": ["x", "y"]}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert [record.row for record in read(path, "tag").records] == [2]
    assert [record.words for record in read(path, "tag", with_labels=False).records] == [(), ("a", "b")]


def test_spans_that_do_not_fit_words(tmp_path: Path) -> None:
    """Two end within a word, one begins within a word, one is only a space, one ends in a space; all are counted."""
    entities = [[0, 3, "PER"], [5, 13, "WORK"], [9, 16, "X"], [4, 5, "X"], [16, 20, "X"]]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "Mira Blue Days. Sun shines.", "entities": entities}])
    found = read(path, "tag")
    assert found.records[0].tags == ("B-PER", "B-WORK", "I-WORK", "O", "B-X", "O", "O")
    notes = " ".join(found.notes)
    widths = ("2 of the entities begin or end within", "1 of the entities begin or end in blanks")
    for note in (*widths, "1 of the entities overlap", "1 of the entities have no word"):
        assert note in notes
    other = write_jsonl(tmp_path / "c.jsonl", [{"data": "Mira.  ", "label": [[0, 7, "PER"]]}])
    assert read(other, "tag").columns == {"text": "data", "label": "label"}
    assert read(other, "tag").records[0].tags == ("B-PER", "I-PER")
    placed = {
        "text": "Mira Lee",
        "tokens": [{"start_offset": 0, "end_offset": 4}, {"start_offset": 5, "end_offset": 8}],
    }
    other = write_jsonl(tmp_path / "e.jsonl", [placed | {"entities": [{"start": 5, "end": 8, "label": "PER"}]}])
    assert read(other, "tag").records[0] == WordsRecord(1, ("Mira", "Lee"), ("O", "B-PER"))
    with pytest.raises(CorpusError, match=r"row 1 .*'entities'.*0 to 5"):
        read(write_jsonl(tmp_path / "b.jsonl", [{"text": "Mira.", "entities": [[0, 9, "PER"]]}]), "tag")
    assert read(path, "tag", with_labels=False).records[0].texts == ("Mira Blue Days. Sun shines.",)


def test_annotations_without_a_decision_or_spans(tmp_path: Path) -> None:
    """Of tables of any kind, rejected rows are left out for every task, and for tags texts without spans that were not
    accepted. A column called `answer` may also be the label."""
    span, words = {"start": 0, "end": 4, "label": "PER"}, [{"start": 0, "end": 4}, {"start": 5, "end": 10}]
    rows = [
        {"text": "Mira sings", "tokens": words, "spans": spans, "topic": "x", "answer": answer}
        for spans, answer in (([span], "accept"), ([span], "reject"), (None, "accept"), (None, None), ([], None))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for path in (tmp_path / "a.parquet", write_jsonl(tmp_path / "a.jsonl", rows)):
        table = read(path, "tag")
        assert [record.tags for record in table.records] == [("B-PER", "O"), ("O", "O"), ("O", "O")]
        assert [note.split(": ")[1] for note in table.notes[:2]] == [
            "1 rows were rejected or ignored by their annotator", "1 of 4 sentences have no tags",
        ]  # fmt: skip
        by_label = {name: read(path, text="text", label=name).records for name in ("topic", "answer")}
        assert [record.row for record in by_label["topic"]] == [1, 3, 4, 5]
        assert [record.label for record in by_label["answer"]] == ["accept", "reject", "accept"]
    empty = written(tmp_path / "a.csv", 'text,spans\nMira sings,"[[0, 4, ""PER""]]"\nOslo waits,\n')
    assert [record.row for record in read(empty, "tag").records] == [2]


def test_the_last_valid_annotation_of_label_studio_counts(tmp_path: Path) -> None:
    """A task that was skipped is not a text without entities, and those of two annotators are not merged."""
    spans = [{"value": {"start": begin, "end": begin + 4, "labels": ["PER"]}} for begin in (0, 5)]
    tasks: list[Any] = [
        [{"was_cancelled": False, "result": spans[:1]}, {"was_cancelled": False, "result": spans[1:]}],
        [{"was_cancelled": False, "result": spans[:1]}, {"was_cancelled": True, "result": []}],
        [{"was_cancelled": True, "result": []}],
        [],
        [{"was_cancelled": False, "result": []}],
    ]
    rows = [{"id": n, "data": {"text": "Mira Lees."}, "annotations": each} for n, each in enumerate(tasks, 1)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for path in (write_jsonl(tmp_path / "a.jsonl", rows), tmp_path / "a.parquet"):
        table = read(path, "tag", text="data.text", label="annotations.result.value")
        assert [(record.row, record.tags) for record in table.records] == [
            (1, ("O", "B-PER", "O")), (2, ("B-PER", "O", "O")), (5, ("O", "O", "O"))
        ]  # fmt: skip
        assert [note.split(": ")[1][:19] for note in table.notes[:2]] == ["1 rows have several", "2 rows have no anno"]


def test_spans_whose_text_is_elsewhere(tmp_path: Path) -> None:
    """Each emoji before them was counted twice; a text that does not occur says nothing."""
    text = "😀😀 Mira sings, and Mira sleeps."
    spans = [
        {"start": begin, "end": begin + len(part), "text": part, "labels": ["PER"]}
        for begin, part in ((5, "Mira"), (22, " Mira"), (8, "Oslo"))
    ]
    table = read(write_jsonl(tmp_path / "a.jsonl", [{"text": text, "entities": spans}]), "tag")
    (record,) = table.records
    tagged = [word for word, tag in zip(record.words, record.tags, strict=True) if tag != "O"]
    assert tagged == ["Mira", "sings", "Mira"]
    assert any("2 entities whose text is elsewhere" in note for note in table.notes)


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        ("B I O", "BIO"), ("I-a O", "BIO"), ("B-a I-a O B-b", "BIO"), ("B I E S O", "BIOES"), ("B M E S", "BMES"),
        ("B-a M-a E-a S-a O", "BMES"), ("B-a L-a U-b O", "BILOU"), ("O X", None), ("B-a", None), ("NN VB O", None),
        ("S O", None), ("0 1 2", None),
    ],
)  # fmt: skip
def test_schemes(names: str, scheme: str | None) -> None:
    assert scheme_of(names.split()) == scheme
    assert ("entity_f1" in Tag(tuple(names.split())).metric_names) == (scheme is not None)


@pytest.mark.parametrize(
    "text",
    [
        "One line O\nTwo lines\n\nThree\n", "text,label\nGood day.,B\nBad day.,O\n", "word,label\ngood,pos\nbad,neg\n",
        "word,sentence1,sentence2,label\nset,I set it.,A set of two.,O\nrun,They run on.,A long run.,B\n",
        "1\ta\t2\t3\t4\t5\t6\t7\t8\t9\n2\tb\t2\t3\t4\t5\t6\t7\t8\t9\n", "system,line\nsshd,Accepted O\n",
    ],
)  # fmt: skip
def test_what_has_no_word_a_row(tmp_path: Path, text: str) -> None:
    kind = "text" if text.startswith("One") else "tsv" if "\t" in text else "csv"
    assert form_of(written(tmp_path / "a", text), kind) is None


def test_a_word_a_row_is_a_table_for_other_tasks(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "word,label\nup,B\ndown,O\n")
    assert [source.kind for source in find_sources([path])] == ["conll"]
    assert [record.label for record in read(path, "classify").records] == ["B", "O"]


TAGS = {"_type": "ClassLabel", "names": ["O", "B-per", "I-per"]}


@pytest.mark.parametrize(
    "feature", [{"_type": "List", "feature": TAGS}, {"_type": "Sequence", "feature": TAGS}, [TAGS]]
)
def test_numbered_tags_have_the_names_of_the_schema(tmp_path: Path, feature: Any) -> None:
    """As `datasets` writes them."""
    table = pa.Table.from_pylist([{"tokens": ["Anna", "Lee", "sleeps"], "ner_tags": [1, 2, 0]}])
    content = json.dumps({"info": {"features": {"ner_tags": feature}}})
    path = tmp_path / "a.parquet"
    pq.write_table(table.replace_schema_metadata({"huggingface": content}), path)
    assert list(read(path, "tag").records) == [WordsRecord(1, ("Anna", "Lee", "sleeps"), ("B-per", "I-per", "O"))]


def test_numbered_tags_of_a_stream_have_names() -> None:
    datasets = pytest.importorskip("datasets")
    features = {"tokens": datasets.Value("string"), "ner_tags": datasets.ClassLabel(names=TAGS["names"])}
    lists = datasets.Features({name: datasets.Sequence(feature) for name, feature in features.items()})
    rows = [{"tokens": ["Anna", "Lee", "sleeps"], "ner_tags": [1, 2, 0]}]
    stream = datasets.Dataset.from_list(rows, features=lists).to_iterable_dataset()
    with examples_given(stream, None, None) as files:
        (record,) = read_labelled(files["train"], task_named("tag"), Columns()).records
    assert record.tags == ("B-per", "I-per", "O")


def test_questions(tmp_path: Path) -> None:
    found: Any = read(write_squad(tmp_path / "a.json", 2, 0, missing=True), "answer").records
    first, second = found
    assert first.id == "q0"
    assert first.context[first.answers[0].begin :].startswith(first.answers[0].text + " sleeps")
    assert second.answers == ()
    row = {"question": "q?", "context": "a b c", "answers": {"text": [" b "], "answer_start": [1]}}
    records = [QuestionRecord(number, str(number), "q?", "a b c", (AnswerSpan("b", 2),)) for number in (1, 2)]
    array = written(tmp_path / "a.json", json.dumps([row, row]))
    assert list(read(array, "answer").records) == records, "rows in JSON, not SQuAD's form"
    assert read(array, "answer", with_labels=False).records[0] == replace(records[0], answers=None)
    assert list(read(written(tmp_path / "l.json", f"{json.dumps(row)}\n" * 2), "answer").records) == records
    whole = written(tmp_path / "v.json", json.dumps({"version": "1", "data": [row, row]}))
    assert list(read(whole, "answer").records) == records, "rows in SQuAD's field"
    other = write_jsonl(tmp_path / "o.jsonl", [dict(zip(("asked", "passage", "right"), row.values(), strict=True))] * 2)
    assert list(read(other, "answer", text="asked", second="passage", label="right").records) == records
    for answers, place in (([{"text": "a", "answer_start": 0}], 0), ({"text": "a", "answer_start": 4}, 4)):
        known: Any = read(write_jsonl(tmp_path / "k.jsonl", [row | {"context": "a b a", "answers": answers}]), "answer")
        assert known.records[0].answers == (AnswerSpan("a", place),), "also of one that stands in the text twice"
    gaps = [{"question": "q?", "context": "a", "answer_text": float("nan"), "answer_start": float("nan")}]
    none: Any = read(write_jsonl(tmp_path / "g.jsonl", gaps), "answer")
    assert none.records[0].answers == ()
    for answers in ({"text": ["b"], "answer_start": []}, {"text": ["b"], "answer_start": ["2"]}):
        with pytest.raises(CorpusError, match=r"w\.jsonl: row 1.*answer"):
            read(write_jsonl(tmp_path / "w.jsonl", [row | {"answers": answers}]), "answer")
    for path, place in (
        (write_jsonl(tmp_path / "c.jsonl", [{"question": "q"}]), "row 1 .*'context'"),
        (written(tmp_path / "d.json", "{"), "d.json: .*line 1"),
        (written(tmp_path / "e.json", '{"data": 1}'), "SQuAD"),
        (written(tmp_path / "f.json", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}'), "question 1 .*'context'"),
    ):
        with pytest.raises(CorpusError, match=place):
            read(path, "answer")


def test_a_blank_row_is_no_question_without_an_answer(tmp_path: Path) -> None:
    table = read(written(tmp_path / "a.csv", "question;context;answer\nWho?;Mira sings.;Mira\n;;\n;;\n"), "answer")
    assert [record.row for record in table.records] == [2]
    assert "2 rows without text: left out" in table.notes[0]
    assert not AnswerTask.learned_from(table, FinetuneSettings(), "first").may_be_missing


def test_columns_of_questions_are_numbers_or_fields(tmp_path: Path) -> None:
    answers = {"text": ["Mira"], "answer_start": [0]}
    rows = [{"qa": {"asked": "Who?", "answers": answers}, "passage": {"text": "Mira sings."}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    paths = [write_jsonl(tmp_path / "a.jsonl", rows), tmp_path / "a.parquet"]
    named = {"text": "qa.asked", "second": "passage.text", "label": "qa.answers"}
    tables = [read(path, "answer", **named) for path in paths]
    table = written(tmp_path / "a.csv", "nr,asked,passage,answer\n7,Who?,Mira sings.,Mira\n")
    tables.append(read(table, "answer", text="1", second="2"))
    for each in tables:
        (record,) = each.records
        assert (record.question, record.context, record.answers) == ("Who?", "Mira sings.", (AnswerSpan("Mira", 0),))
    with pytest.raises(CorpusError, match="'qa.anwsers'.*'qa.answers"):
        read(paths[0], "answer", **named | {"label": "qa.anwsers"})


def test_answers_without_their_place(tmp_path: Path) -> None:
    """Without blanks around them, at their first occurrence; those that do not occur are left out. All are counted."""
    lines = ["question,context,answer", *(f"Who?,So Mira is Mira.,{each}" for each in ("is", " Mira ", "mira", "So"))]
    table = read(written(tmp_path / "a.csv", "\n".join(lines) + "\n"), "answer")
    answers = [record.answers for record in table.records]
    assert answers == [(AnswerSpan("is", 8),), (AnswerSpan("Mira", 3),), (AnswerSpan("So", 0),)]
    assert [note.split(": ")[1][:20] for note in table.notes] == ["1 answers without an", "1 answers are not in"]


def test_answers_that_do_not_stand_where_they_should(tmp_path: Path) -> None:
    """`sea` is at 4 and 16. An answer that does not occur is left out, and so is a question with no other answer."""
    context = "The sea, not a  sea."
    rows = [
        {"question": "q?", "context": context, "answers": {"text": [text] * len(begins), "answer_start": begins}}
        for text, begins in (("sea", [4, 5, 16]), ("sea", [11, -3, 99]), (" sea ", [15]), ("lake", [4]), ("sea", []))
    ]
    rows[0]["answers"] = {"text": ["sea", "lake"], "answer_start": [5, 4]}
    found: Any = read(write_jsonl(tmp_path / "a.jsonl", rows), "answer")
    begins = [[answer.begin for answer in record.answers] for record in found.records]
    assert begins == [[4], [16, 4, 16], [16], []]
    assert [record.row for record in found.records] == [1, 2, 3, 5]
    assert [note.split()[1] for note in found.notes] == ["4", "2"], "near, and nowhere"
    with pytest.raises(CorpusError, match=r"b\.jsonl: 2 of 3 questions .* question 2"):
        read(write_jsonl(tmp_path / "b.jsonl", [rows[1], rows[3], rows[3]]), "answer")


def test_lines_of_text_have_no_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one text\n\nAnna sleeps.\n")
    assert list(read(path, with_labels=False).records) == [TextRecord(1, "one text"), TextRecord(3, "Anna sleeps.")]
    assert read(path, "tag", with_labels=False).records[1] == WordsRecord(3, (), text="Anna sleeps.")
    long = read(written(tmp_path / "long.txt", "an attachment " * 100_000 + "\nshort\n"), with_labels=False)
    assert [len(record.first) for record in long.records] == [1_400_000, 5]
    bracketed = ["[...]", "[2019]", "[]"]  # texts that are not lists of words
    lines = read(written(tmp_path / "b.txt", "\n".join(bracketed)), "tag", with_labels=False)
    assert [record.text for record in lines.records] == bracketed
    for second, keys in (("P2", [("id", "P1"), ("id", "P2")]), ("P1 again", [("index", 0), ("index", 1)])):
        sequences = read(written(tmp_path / "a.fasta", f">P1 of a mouse\nMKV\nLAT\n>{second}\nA\n"), with_labels=False)
        assert list(sequences.records) == [TextRecord(1, "MKVLAT"), TextRecord(2, "A")]
        assert list(sequences.keys) == keys
    rows = [{"text": "Anna sleeps.", "entities": []}, {"text": "[2019]", "entities": [[1, 5, "YEAR"]]}]
    year = read(write_jsonl(tmp_path / "b.jsonl", rows), "tag").records[1]
    assert year == WordsRecord(2, ("[", "2019", "]"), ("O", "B-YEAR", "O"))
    with pytest.raises(CorpusError, match="labels"):
        read(path)
    with pytest.raises(CorpusError, match="holds no pairs"):
        read(path, "pairs", with_labels=False)


@pytest.mark.parametrize(
    ("name", "kind", "columns", "number", "labels"),
    [
        ("cola/in_domain_dev.tsv", "classify", {"text": "3", "label": "1"}, 527, {"0", "1"}),
        ("wnut17/emerging.dev.conll", "tag", {}, 1009, 13),
        ("ud_english_ewt/en_ewt-ud-dev.conllu.gz", "tag", {}, 2001, 17),
    ],
)
def test_real_files(
    shared_data: Path, name: str, kind: str, columns: dict[str, str], number: int, labels: set[str] | int
) -> None:
    """Counts as the files' sources state them; labels, or the number of labels."""
    records = read_labelled(shared_data / name, task_named(kind), Columns(**columns)).records
    assert len(records) == number
    found = {label for r in records for label in ((r.label,) if isinstance(r, TextRecord) else getattr(r, "tags", ()))}
    assert (len(found) if isinstance(labels, int) else found) == labels


def test_several_files_are_one_table(tmp_path: Path) -> None:
    """A folder and a pattern alike; other files than tables of one kind are an error."""
    for name in ("a", "b"):
        written(tmp_path / f"{name}.csv", "text,label\nGood day.,1\nBad day.,0\n")
        written(tmp_path / f"{name}.txt", "Good day.\nBad day.\n")
    assert len(read(tmp_path / "*.csv").records) == 4
    for several, number in (("*.txt", 2), ("a.*", 2), (".", 4)):
        with pytest.raises(CorpusError, match=f"{number} files"):
            read(tmp_path / several, with_labels=False)


def test_folders_of_datasets(tmp_path: Path) -> None:
    """Several files are one table; of several parts, the requested one is read, with the names of its classes."""
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": labels})
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(6)]
    made = datasets.Dataset.from_list(rows, features=features)
    made.save_to_disk(tmp_path / "one", num_shards=3)
    expected = [TextRecord(n + 1, f"text {n}", None, ("neg", "pos")[n % 2]) for n in range(6)]
    assert list(read(tmp_path / "one").records) == expected
    parts = datasets.DatasetDict(train=made, validation=made.select([1]), test=made.select([0]))
    parts.save_to_disk(tmp_path / "parts")
    with pytest.raises(CorpusError, match="several parts"):
        read(tmp_path / "parts")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for name, part in parts.items():
        part.to_parquet(tmp_path / "hub" / "data" / f"{name}-00000-of-00001.parquet")
    for given in (tmp_path / "parts", tmp_path / "hub", parts):
        with examples_given(given, None, made) as files:
            records = {name: list(read_labelled(each, Classify, Columns()).records) for name, each in files.items()}
        assert records == {"train": expected, "validation": [TextRecord(1, "text 1", None, "pos")], "test": expected}
    assert [str(each.path) for each in files.values()] == ["train in memory", "train in memory", "test in memory"]
    with pytest.raises(CorpusError, match=r"data in memory: .*data\['test'\]"), place_of("data", parts) as place:
        example_files(*place)
    with (
        pytest.raises(CorpusError, match="train in memory: row 2 has no column"),
        examples_given([rows[0], {"text": "x"}], rows, None) as files,
    ):
        read_labelled(files["train"], Classify, Columns())
    with (
        pytest.raises(CorpusError, match="train: give one file or folder, not 2"),
        examples_given(["a.csv", "b.csv"], rows, None),
    ):
        pass


def test_what_is_not_read_of_a_dataset_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"text": "Good day.", "label": 1}
    for name in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", [row])
    with examples_given(tmp_path, None, tmp_path / "test.jsonl"):
        pass
    assert not any("not read" in line for line in caplog.messages)
    for given, called, files in (
        (tmp_path, str(tmp_path), "dev.jsonl, test.jsonl"),
        ({"train": [row], "dev": [row], "test": [row]}, "train in memory", "dev, test"),
    ):
        with examples_given(given, tmp_path / "train.jsonl", None):
            pass
        assert any(line.startswith(f"{called}: not read: {files};") for line in caplog.messages)
