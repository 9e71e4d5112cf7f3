"""Predictions can be joined with any form of input; entities are those of transformers' pipeline."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from tests.commands.finetune_helpers import MakeModel
from unmask.core.errors import CorpusError, ModelError, RunError, SettingsError
from unmask.model.folder import save_task_model, with_task_head
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, MultiLabel, Pairs, Regress
from unmask.tasks.files import Columns, read_labelled
from unmask.tasks.kinds import task_named
from unmask.tasks.loaded_model import Model
from unmask.tasks.predict import FORMATS
from unmask.tasks.tag import Tag, signs_of, words_in
from unmask.tasks.task import Task
from unmask.tokenizer.tokenizer import Tokenizer

TEXTS = ["The king sees the ship.", "The dog.", "A queen sleeps in the garden."]


@pytest.fixture
def tuned(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Any:
    """A model with a random head, so that it predicts every class."""

    def made(task: Task) -> Model:
        folder = tmp_path / task.kind
        base = make_model(layout="bert", num_layers=1)
        save_task_model(with_task_head(base, task.task_head, seed=0).eval(), task.task_head, folder)
        tokenizer.save(folder, max_length=64, with_types=True)
        return unmask.load(folder)

    return made


def rows_of(model: Model, file: Any) -> list[dict[str, Any]]:
    predicted: list[dict[str, Any]] = unmask.predict(model, file).predictions
    return predicted


def test_rows_have_the_texts_and_ids_of_their_input(tuned: Any, tmp_path: Path) -> None:
    """An empty row of CSV is not counted; an empty line of text has a number, as everywhere."""
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    model = tuned(Classify(("ham", "spam")))
    labels = [each.label for each in model.predict(TEXTS)]
    ids = ["a7", "b3", "c1"]
    table = [{"id": id_, "text": text} for id_, text in zip(ids, TEXTS, strict=True)]
    files = {
        "ids.csv": "text,ID\n" + "".join(f'"{text}",{id_}\n\n' for id_, text in zip(ids, TEXTS, strict=True)),
        "ids.jsonl": "".join(json.dumps(row) + "\n" for row in table),
        "none.csv": "text,mood\n" + "\n\n".join(f'"{text}",1' for text in TEXTS) + "\n",
        "lines.txt": f"{TEXTS[0]}\n\n{TEXTS[1]}\n{TEXTS[2]}\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    by_id = ["ids.csv", "ids.jsonl", table, pandas.DataFrame(table), datasets.Dataset.from_list(table)]
    by_index = ["none.csv", "lines.txt", TEXTS, pandas.Series(TEXTS), pandas.DataFrame({"text": TEXTS}), iter(TEXTS)]
    for file in [*by_id, *by_index]:
        rows = rows_of(model, tmp_path / file if isinstance(file, str) else file)
        assert [row["text"] for row in rows] == TEXTS
        assert [row["label"] for row in rows] == labels
        assert all(row["probability"] == max(row["probabilities"].values()) for row in rows)
        if any(file is each for each in by_id):
            assert [row["id"] for row in rows] == ids
            assert "index" not in rows[0]
        else:
            assert [row["index"] for row in rows] == ([0, 2, 3] if file is by_index[1] else [0, 1, 2])
    for some in ([7, 10], ["07", "10"]):
        (tmp_path / "a.csv").write_text("id;text\n{};The king.\n{};The dog.\n".format(*some))
        assert [row["id"] for row in rows_of(model, tmp_path / "a.csv")] == some
    gaps = pandas.DataFrame({"id": [7, None], "text": TEXTS[:2]})
    assert [row["id"] for row in rows_of(model, gaps)] == [7, None]
    with pytest.raises(CorpusError, match="no text"):
        rows_of(model, [])


def test_a_single_text_or_a_table_is_no_list_of_inputs(tuned: Any) -> None:
    """Each letter, or the name of each column, would get a prediction."""
    model, pandas = tuned(Classify(("ham", "spam"))), pytest.importorskip("pandas")
    for inputs in (TEXTS[0], Path("a.csv"), {"text": TEXTS}, pandas.DataFrame({"text": TEXTS})):
        with pytest.raises(SettingsError, match="predict"):
            model.predict(inputs)
    assert len(model.predict(pandas.Series(TEXTS))) == len(TEXTS)


def test_a_model_of_another_tool_takes_pairs_if_the_file_has_them(tuned: Any, tmp_path: Path) -> None:
    """Its folder does not say whether it takes pairs; ours does, and takes nothing else."""
    (tmp_path / "pairs.csv").write_text(f"sentence1,sentence2\n{TEXTS[0]},{TEXTS[1]}\n{TEXTS[0]},{TEXTS[2]}\n")
    expected = [
        each.value for each in tuned(Regress(("score",), True)).predict([(TEXTS[0], each) for each in TEXTS[1:]])
    ]
    model, pairs = tuned(Regress(("score",))), [(TEXTS[0], each) for each in TEXTS[1:]]
    rows = rows_of(model, tmp_path / "pairs.csv")
    assert [row["value"] for row in rows] == pytest.approx(expected)
    assert [row["value"] for row in rows_of(model, pairs)] == pytest.approx(expected)
    for inputs in ([*pairs, TEXTS[0]], [TEXTS[:1]], [(*pairs[0], "")]):
        with pytest.raises(SettingsError, match=f"input {len(inputs)}"):
            model.predict(inputs)
    assert expected[0] != expected[1]
    assert [row["sentence2"] for row in rows] == TEXTS[1:]
    ours = tuned(Regress(("score",), columns={"text": "sentence1"}))
    with pytest.raises(SettingsError, match="single texts"):
        unmask.predict(ours, tmp_path / "pairs.csv", second="sentence2")
    with pytest.raises(SettingsError, match="input 1"):
        ours.predict(pairs)


@pytest.mark.parametrize(
    ("task", "inputs", "texts", "says"),
    [
        (MultiLabel(("a", "b")), TEXTS[:1], {"text": TEXTS[0]}, {"labels", "probabilities"}),
        (Regress(("stars",)), TEXTS[:1], {"text": TEXTS[0]}, {"value"}),
        (Pairs(("yes", "no"), True, columns={"text": "premise", "second": "claim"}), [tuple(TEXTS[:2])],
         {"premise": TEXTS[0], "claim": TEXTS[1]}, {"label", "probability", "probabilities"}),
        (AnswerTask(), [("Who?", TEXTS[0])], {"question": "Who?", "context": TEXTS[0]},
         {"answer", "begin", "probability"}),
        (Tag(("O", "B-x")), TEXTS[:1], {"text": TEXTS[0]},
         {"words", "tags", "probabilities", "entities", "starts", "ends"}),
    ],
)  # fmt: skip
def test_rows_of_every_task(tuned: Any, task: Task, inputs: list[Any], texts: dict[str, str], says: set[str]) -> None:
    """As a list of inputs of `Model.predict`, and as rows with the columns' names."""
    model = tuned(task)
    for file in (inputs, [texts]):
        [row] = rows_of(model, file)
        assert row.keys() == {"row", "index", *texts, *says}
        assert (row["row"], row["index"]) == (1, 0)
        assert {name: row[name] for name in texts} == texts
    [row] = rows_of(model, [{"id": 7, **texts}])
    assert row["id"] == 7, "the row's own, of a question too"
    if isinstance(task, Pairs):
        with pytest.raises(SettingsError, match="input 1"):
            model.predict(["alone"])


@pytest.mark.parametrize("name", ["jsonl", "csv", "conll", "conllu"])
def test_a_row_is_written_before_the_next_is_made(name: str) -> None:
    """All rows may not fit into memory."""
    row = {"index": 0, "text": "a", "words": ["a"], "tags": ["X"], "starts": [0], "ends": [1], "shares": {"X": 1.0}}

    def rows() -> Iterator[dict[str, Any]]:
        yield row
        raise ValueError("the next row")

    parts = FORMATS[name](rows(), ("X",))
    assert next(parts) == "".join(FORMATS[name]([row], ("X",)))
    with pytest.raises(ValueError, match="the next row"):
        next(parts)


def test_csv_of_predictions_does_nothing_in_terminals_and_changes_no_key() -> None:
    cells = {
        "=A1": "=A1", "+ve": "+ve", "-OabC7xQ": "-OabC7xQ", "@home": "@home", "\t=1": "\t=1", "\r=1": "\\x0d=1",
        "\x1b[2J\x9b": "\\x1b[2J\\x9b", "-1.5e3": "-1.5e3", "+": "+", "-": "-", "a=b": "a=b",
        "https://me:pw@shop.de/item?id=42": "https://me:pw@shop.de/item?id=42",
    }  # fmt: skip
    rows = [{"row": 1, "answer": text, "score": -0.5, "words": [f"{text}\x9b"]} for text in cells]
    predicted = list(csv.DictReader(io.StringIO("".join(FORMATS["csv"](rows)), newline="")))
    assert [row["answer"] for row in predicted] == list(cells.values())
    assert {row["score"] for row in predicted} == {"-0.5"}
    assert [json.loads(row["words"]) for row in predicted] == [[f"{text}\x9b"] for text in cells], "JSON in a cell"
    assert "\x9b" not in "".join(FORMATS["csv"](rows))


def test_what_is_no_number_is_no_prediction(tuned: Any) -> None:
    model = tuned(Classify(("ham", "spam")))
    with torch.no_grad():
        model.fine_tuned[0].label_head.classifier.weight[1] = torch.nan
    with pytest.raises(ModelError, match="row 1"):
        model.predict(TEXTS)


def test_one_process_predicts_into_a_file(tuned: Any, tmp_path: Path) -> None:
    """Another one hears of it at once, not after hours; a file that came meanwhile is not replaced."""
    model, out = tuned(Classify(("ham", "spam"))), tmp_path / "out.jsonl"
    refused: list[RunError] = []

    def meanwhile(progress: object) -> None:
        if not refused:
            with pytest.raises(RunError, match="writing here") as raised:
                unmask.predict(model, TEXTS[:1], out=out)
            refused.append(raised.value)

    unmask.predict(model, TEXTS, out=out, notify=meanwhile)
    assert refused
    assert len(out.read_text().splitlines()) == len(TEXTS)

    def note(line: str) -> None:
        late.write_text("precious")

    late = tmp_path / "late.jsonl"
    with pytest.raises(RunError, match=r"late\.jsonl"):
        unmask.predict(model, [{"text": text} for text in TEXTS], out=late, note=note)
    assert late.read_text() == "precious"


def test_entities_are_those_of_transformers(tuned: Any) -> None:
    """As `first` gives them, since a word's tag is at its first piece; `simple` is the same where words are tokens."""
    transformers = pytest.importorskip("transformers")
    model = tuned(Tag(("O", "B-x", "I-x", "B-y", "I-y")))
    of_one = [word for word in model.tokenizer.backend.get_vocab() if word.isalpha()]
    texts = [" ".join(sorted(of_one)[:40]), "Embroidery,  the mountaineer's cat; the dog sees Constantinople!"]
    compared = 0
    for text, strategy in ((texts[0], "simple"), (texts[0], "first"), (texts[1], "first")):
        pipeline = transformers.pipeline("token-classification", str(model.folder), aggregation_strategy=strategy)
        [row] = rows_of(model, [text])
        theirs = [(each["entity_group"], each["start"], each["end"]) for each in pipeline(text)]
        assert [(each["label"], each["start"], each["end"]) for each in row["entities"]] == theirs
        shares = [float(each["score"]) for each in pipeline(text)]
        assert [each["score"] for each in row["entities"]] == pytest.approx(shares, rel=1e-4)
        assert all(each["word"] == text[each["start"] : each["end"]] for each in row["entities"])
        compared += len(theirs)
    assert compared > 9


def test_tags_are_written_as_others_read_them(tuned: Any, tmp_path: Path) -> None:
    model = tuned(Tag(("O", "B-x", "I-x")))
    sentences = [["The", "king", "sees"], ["The", "dog", "."]]
    rows = rows_of(model, sentences)
    assert [row["text"] for row in rows] == ["The king sees", "The dog ."]
    done = unmask.predict(model, [*sentences, ""], out=tmp_path / "a.conll")
    assert f"3 predictions ({sum(len(row['entities']) for row in rows)} entities) in" in str(done)
    back = read_labelled(tmp_path / "a.conll", Tag, Columns()).records
    assert [list(record.words) for record in back] == sentences
    assert [list(record.tags) for record in back] == [list(row["tags"]) for row in rows]
    unmask.predict(model, sentences, out=tmp_path / "b.CSV")
    cells = list(csv.DictReader(io.StringIO((tmp_path / "b.CSV").read_text())))
    assert [json.loads(row["words"]) for row in cells] == sentences
    assert json.loads(cells[0]["entities"]) == list(rows[0]["entities"])
    lines = (tmp_path / "a.conll").read_text().splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# index = 0", "# index = 1", "# index = 2"]
    bare = {"index": 0, "words": ["\ufeff"], "tags": [None]}
    assert "\tO\n" in "".join(FORMATS["conll"]([bare], model.fine_tuned[1].names)), "a word without a token"
    assert "\t_\n" in "".join(FORMATS["conll"]([bare], ("NN", "VB")))
    with pytest.raises(RunError, match="DocBin"):
        unmask.predict(model, sentences, format="spacy")
    with pytest.raises(RunError, match=r"a\.xlsx"):
        unmask.predict(model, sentences, out=tmp_path / "a.xlsx")
    with pytest.raises(RunError, match="conll"):
        unmask.predict(tuned(Classify(("a", "b"))), TEXTS, format="conll")


@pytest.mark.parametrize("names", [("NOUN", "VERB", "X"), ("NN", "VB")], ids=["upos", "xpos"])
def test_tags_as_a_treebank(tuned: Any, tmp_path: Path, names: tuple[str, ...]) -> None:
    """Each sentence has its key; words that the text joins have SpaceAfter=No; offsets of words are right."""
    model, text = tuned(Tag(names, word_signs=signs_of([["Anna", "'s"], ["Ben", "'s", "."]]))), "Anna's\u00a0cat.\n"
    table = [{"id": "a\t1", "text": text}, {"id": "b", "text": ""}]
    rows = rows_of(model, table)
    assert [text[a:b] for a, b in zip(rows[0]["starts"], rows[0]["ends"], strict=True)] == ["Anna", "'s", "cat", "."]
    assert "(4 words)" in str(unmask.predict(model, table, out=tmp_path / "a.conllu"))
    tags = [f"{tag}\t_" if "X" in names else f"_\t{tag}" for tag in rows[0]["tags"]]
    joined = ["SpaceAfter=No", "_", "SpaceAfter=No", "_"]
    assert (tmp_path / "a.conllu").read_text() == (
        "# sent_id = a 1\n# text = Anna's\u00a0cat. \n"
        + "".join(
            f"{n}\t{word}\t_\t{tag}\t_\t_\t_\t_\t{space}\n"
            for n, (word, tag, space) in enumerate(zip(rows[0]["words"], tags, joined, strict=True), 1)
        )
        + "\n# sent_id = b\n\n"
    )
    [back] = read_labelled(tmp_path / "a.conllu", Tag, Columns(label=None if "X" in names else "xpos")).records
    assert (back.words, list(back.tags)) == (rows[0]["words"], list(rows[0]["tags"]))


def test_tags_as_spacy_keeps_them(tuned: Any, tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    model, text = tuned(Tag(("O", "B-x", "I-x"))), "The king  sees\nthe ship."
    [row] = rows_of(model, [{"id": "a7", "text": text}])
    unmask.predict(model, [{"id": "a7", "text": text}], out=tmp_path / "a.spacy")
    [doc] = spacy.tokens.DocBin().from_disk(tmp_path / "a.spacy").get_docs(spacy.blank("xx").vocab)
    assert (doc.text, doc.user_data) == (text, {"id": "a7"})
    entities = [(each["start"], each["end"], each["label"]) for each in row["entities"]]
    assert [(each.start_char, each.end_char, each.label_) for each in doc.ents] == entities
    assert [token.tag_ for token in doc if not token.is_space] == list(row["tags"])
    [row] = rows_of(model, [["The", "\u3000", "king"]])
    unmask.predict(model, [["The", "\u3000", "king"]], out=tmp_path / "b.spacy")
    [doc] = spacy.tokens.DocBin().from_disk(tmp_path / "b.spacy").get_docs(spacy.blank("xx").vocab)
    assert [token.tag_ for token in doc if not token.is_space] == [row["tags"][0], row["tags"][2]]


def test_names_of_tasks() -> None:
    names = {"ner": Tag, "token-classification": Tag, "text-classification": Classify, "question-answering": AnswerTask}
    assert {name: task_named(name) for name in names} == names


@pytest.mark.parametrize(
    ("sentences", "text", "words"),
    [
        (["Anna 's cat ca n't ( 3.14 % ) .", "Ben 's . 2.5 %"], "Clara's 1.5%.", "Clara 's 1.5 % ."),
        (["Don't @anna , U.S. is 5% .", "Can't @ben ! U.S. 6%"],
         '"@carl won\'t, U.S. 7%."', '" @carl won\'t , U.S. 7% . "'),
        (["l' homme d' ici .", "l' eau"], "J'ai l'eau.", "J' ai l' eau ."),
        (["我 爱 北 京 。", "你 好"], "今天好。", "今 天 好 。"),
        (["我 爱 北 京 。", "So be it ."], "今天好。", "今 天 好 。"), (["我 爱 北 京 。"], "So be it.", "So be it ."),
        (["M K V", "A L"], "MKV", "M K V"),
        (["no signs"], "a-b, it's.", "a - b , it ' s ."),
        (["so ... yes", "no ..."], "ah... हिन्दी", "ah ... हिन्दी"),
    ],
)  # fmt: skip
def test_raw_texts_are_cut_as_the_words_of_the_training_file(sentences: list[str], text: str, words: str) -> None:
    signs = signs_of([sentence.split() for sentence in sentences])
    assert [text[begin:end] for begin, end in words_in(text, signs)] == words.split()


def test_the_cut_is_kept_in_the_folder(tuned: Any) -> None:
    model = tuned(Tag(("O", "B-x"), word_signs=signs_of([["don't", "go"], ["won't", "go"]])))
    [row] = rows_of(model, [{"text": "The king don't see."}])
    assert list(row["words"]) == ["The", "king", "don't", "see", "."]


def test_files_are_read_like_the_training_file(tuned: Any, tmp_path: Path) -> None:
    """Also with a delimiter that was set there, if they have it, and without a header, though the first text is short;
    words above numbers are a header all the same."""
    notes = ["Chest pain", *(f"The king sees the ship with {n} sails at sea." for n in range(5))]
    named = tuned(Classify(("a", "b"), columns={"text": "note", "label": "kind"}, delimiter="^"))
    bare = tuned(Classify(("a", "b"), columns={"text": "0", "label": "1"}))
    head, rows = "nr{0}note{0}kind", [f"{n}{{0}}{note}{{0}}a" for n, note in enumerate(notes)]
    for model, lines in ((named, [head, *rows]), (bare, [head, *rows]), (bare, notes)):
        for delimiter in "^," if model is named else ",":
            (tmp_path / "a.csv").write_text("\n".join(lines).format(delimiter))
            assert [row["text"] for row in rows_of(model, tmp_path / "a.csv")] == notes


@pytest.mark.parametrize("task", [Classify(("ham", "spam")), MultiLabel(("a", "b")), Regress(("stars",))])
def test_a_row_without_text_keeps_its_place_and_has_no_prediction(tuned: Any, tmp_path: Path, task: Task) -> None:
    """None, not-a-number, an empty and a blank text, in tables and files alike."""
    pandas = pytest.importorskip("pandas")
    model, notes = tuned(task), list[str]()
    (tmp_path / "a.csv").write_text(f'id,text\n1,\n2,{TEXTS[0]}\n3,"  "\n4,{TEXTS[1]}\n')
    gaps = [None, TEXTS[0], float("nan"), TEXTS[1]]
    table = [{"id": n, "text": text} for n, text in enumerate(gaps, 1)]
    for file in (tmp_path / "a.csv", table, pandas.DataFrame(table)):
        rows = unmask.predict(model, file, note=notes.append).predictions
        assert notes[-1].startswith("2 of 4 rows have no text")
        assert [row["id"] for row in rows] == [1, 2, 3, 4]
        for row, bare in zip(rows[1::2], model.predict(TEXTS[:2]), strict=True):
            assert all(row[name] == pytest.approx(value) for name, value in asdict(bare).items())
        for row in rows[::2]:
            assert row.keys() == rows[1].keys()
            said = [row[field.name] for field in fields(bare)]
            assert all(each is None or set(each.values()) == {None} for each in said)
        cells = list(csv.DictReader(io.StringIO("".join(FORMATS["csv"](rows)))))
        assert [bool(cell["id"]) for cell in cells] == [True] * 4


def test_a_sentence_without_text_has_no_words(tuned: Any) -> None:
    notes, table = list[str](), [{"text": TEXTS[0]}, {"text": None}, {"text": ""}]
    rows = unmask.predict(tuned(Tag(("O", "B-x"))), table, note=notes.append).predictions
    assert [(row["index"], bool(row["words"]), row["text"]) for row in rows] == [
        (0, True, TEXTS[0]), (1, False, ""), (2, False, "")
    ]  # fmt: skip
    assert notes[-1] == "2 of 3 rows have no text, so they get no prediction"
