"""Texts of embedders: titles and paragraphs, the pairs drawn from them, and what is held out of training and search."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import unmask
from tests.commands.test_embedder import FAST, base
from unmask.commands import embedder_pairs, embedder_texts
from unmask.commands.embedder_pairs import PairDrawer, PairStream, pair_data, pair_parts
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.embedder_texts import TokenTexts, _with_near_duplicates, paragraphs_of, read_pairs, read_texts
from unmask.core.errors import CorpusError, DataError
from unmask.core.hashing import permutation
from unmask.data import groups
from unmask.data.rows import Cursor
from unmask.data.settings import CorpusSettings
from unmask.data.survey import fraction
from unmask.search.known_items import ItemSettings, held_out_rule, read_items
from unmask.search.passages import split_title
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

NOUNS = ("king", "queen", "dog", "cat", "ship")
LONG = "The king sees the queen in the garden and the dog follows the ship,"
HINDI = "राजा बगीचे में रानी को देखता है और कुत्ता जहाज के पीछे चलता है।"
THAI = "พระราชาเห็นพระราชินีในสวนและสุนัขก็วิ่งตามเรือที่แล่นอยู่ในทะเล"


@pytest.mark.parametrize(
    ("text", "title", "paragraphs"),
    [
        ("The king\nHe sees the queen.\nThe dog loves.", "The king", ["He sees the queen.", "The dog loves."]),
        ("# The king\n\nHe sees\nthe queen.\n\nThe dog.", "The king", ["He sees the queen.", "The dog."]),
        ("The king\nHe sees the queen.\n\nThe dog.", "The king", ["He sees the queen.", "The dog."]),
        (f"{LONG}\nwhich sails at sea.\nThe end.", None, [f"{LONG} which sails at sea.", "The end."]),
        (f"{HINDI}\n{THAI}\n{THAI}", None, [HINDI, THAI, THAI]),
        ("He sees the queen.\nThe dog loves.", None, ["He sees the queen.", "The dog loves."]),
        ("* * *\n\nHe sees the queen.", None, ["* * *", "He sees the queen."]),
        ("One line alone", None, ["One line alone"]),
        ("\n \n", None, []),
    ],
)  # fmt: skip
def test_parts_of_a_text(text: str, title: str | None, paragraphs: list[str]) -> None:
    own, body = split_title(text)
    assert (own, paragraphs_of(body)) == (title, paragraphs)


def word(number: int) -> str:
    """A word for a number: near-duplicates are equal but for numbers."""
    return "".join("balominter"[int(digit)] for digit in f"{number:04}")


def read(path: Path, tokenizer: Tokenizer, note: Callable[[str], None] = lambda text: None, *,
         answers: Sequence[str] = (), **settings: Any) -> TokenTexts:  # fmt: skip
    chosen = CorpusSettings.model_validate(settings)
    return read_texts([path], tokenizer, chosen, answers=answers, note=note, notify=lambda progress: None)


@pytest.fixture
def titled(tokenizer: Tokenizer, tmp_path: Path) -> TokenTexts:
    """Sixty documents with a title and five paragraphs, a fifth of them held out."""
    documents = []
    for n, noun in itertools.product(range(12), NOUNS):
        title = f"the {noun} {word(n)}"
        documents.append("\n".join([title, *(f"{title} sees the {other} in the garden." for other in NOUNS)]))
    (tmp_path / "titled.txt").write_text("\n\n".join(documents))
    return read(tmp_path / "titled.txt", tokenizer, documents="block", holdout=0.2)


SHORT = EmbedderSettings(first_lengths=(2, 5), second_lengths=(3, 9), part_tokens=16, batch_size=4)


def test_what_is_drawn(titled: TokenTexts) -> None:
    parts = pair_parts(titled, SHORT, held=False)
    assert parts.can.all(), "crops, titles and neighbours"
    drawer = PairDrawer(titled.ids, titled.word_starts, parts, SHORT)
    chosen = np.arange(len(parts))
    lengths = []
    for epoch in range(20):
        drawn = drawer.draw(chosen, epoch, kind=0)
        begin, end = drawn.begin[:2], drawn.begin[:2] + drawn.length[:2]
        assert ((parts.begin <= begin) & (begin < end) & (end <= parts.end)).all()
        assert titled.word_starts[begin].mean() > 0.8, "all but those within a word"
        assert not ((end[0] <= begin[1]) | (end[1] <= begin[0])).all(), "crops may overlap"
        lengths.append(drawn.length[0])
    assert drawn.length[0].max() <= 5
    assert 2.0 < np.mean(lengths) < 4.0
    by_title = drawer.draw(chosen, 1, kind=1)
    assert (by_title.begin[0] == parts.title_begin).all()
    assert (by_title.begin[1] >= parts.begin).all()
    neighbours = drawer.draw(chosen, 1, kind=2)
    assert (neighbours.begin[0] + neighbours.length[0] == neighbours.begin[1]).all()
    assert np.isin(neighbours.begin[1], titled.paragraph).all()
    assert 2 <= neighbours.length[:2].min() <= neighbours.length[:2].max() <= 9
    mixed = drawer.draw(chosen, 7)
    assert 0 < (mixed.begin[0] == parts.title_begin).mean() < 1
    again = drawer.draw(chosen[5:9], 7)
    assert again.begin.tolist() == mixed.begin[:, 5:9].tolist(), "a function of the part and the key"


def test_an_epoch_has_each_part_once(tokenizer: Tokenizer, titled: TokenTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs are shuffled once an epoch, not in each step."""
    monkeypatch.setattr(embedder_pairs, "permutation", shuffled := Mock(wraps=permutation))
    stream = pair_data(titled, None, tokenizer, SHORT, max_positions=64, note=lambda text: None).stream
    cursor, seen = Cursor(), []
    shuffled.reset_mock()
    while cursor.epoch == 0:
        batch = stream.batch(cursor, 1)
        pairs = batch.rows.classes["pair"][batch.rows.classes["side"] == 0]
        assert 3 <= len(pairs) <= 4
        seen += batch.rows.classes["document"][batch.rows.classes["side"] == 0].tolist()
        cursor = batch.cursor
    assert sorted(seen) == sorted(stream.drawer.parts.key.tolist())
    assert shuffled.call_count == 1
    assert not set(seen) & set(np.unique(titled.cluster[titled.held == 1]).tolist())


def test_titles_are_first_lines_that_no_other_document_has(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for kind, own in (("titles", "the ship {}"), ("licences", "the king")):
        for n in range(40):
            body = "\n\n".join(f"the {word(n)} sees the {word(7 * n + m)} at sea." for m in range(5))
            (tmp_path / kind / "a").mkdir(parents=True, exist_ok=True)
            (tmp_path / kind / f"{n}.py").write_text(f"{own.format(word(n))}\n{body}\n")
        (tmp_path / kind / "a" / "0.py").write_bytes((tmp_path / kind / "0.py").read_bytes())
    assert read(tmp_path / "titles", tokenizer, documents="file", holdout=0.2).titled.all(), "also of a copy"
    assert not read(tmp_path / "licences", tokenizer, documents="file", holdout=0.2).titled.any()


def test_only_the_beginning_of_a_document_has_a_title(tokenizer: Tokenizer, tmp_path: Path) -> None:
    book = "\n".join(f"the {word(n)} and the {word(n + 2000)}" for n in range(2000))
    (tmp_path / "book.txt").write_text(book)
    texts = read(tmp_path / "book.txt", tokenizer, documents="file")
    assert texts.held.sum() > 0, "in parts"
    assert not texts.titled.any(), "which begin with any line"


def test_prepared_data(data_folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    texts = read(data_folder, tokenizer)
    assert 0 < texts.held.sum() < len(texts) / 5
    assert not texts.titled.any()
    tokenizer.save(tmp_path, max_length=64)
    content = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content.replace('"philosopher"', '"philosophy"'))
    with pytest.raises(DataError, match="another tokenizer"):
        read(data_folder, load_tokenizer(tmp_path))


def test_given_pairs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(
        "question,passage,label\na king,the king,1\na king,the dog,0\na dog,the dog,0.5\nx,,1\na cat,the,0\n"
    )
    notes: list[str] = []
    table = read_pairs(file, {}, notes.append)
    assert table == (["a king", "a dog"], ["the king", "the dog", "the dog", ""])
    stream = pair_data(None, table, tokenizer, SHORT, max_positions=64, note=notes.append).stream
    assert len(stream.own) == 2
    assert "pairs: 2, 1 of them with a wrong answer" in notes
    sides = stream.batch(Cursor(), 1).rows.classes["side"]
    assert [int((sides == side).sum()) for side in (0, 1, 2)] == [2, 2, 1]


def test_pairs_are_tokenized_and_hashed_in_batches(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a large file at once would not fit into memory; the batches change nothing."""
    texts = [f"the {word(n)} sees the {word(n % 7)} at sea" for n in range(60)]
    pairs = texts[:30], [*texts[30:], *texts[1:30], ""]

    def stream() -> PairStream:
        return pair_data(None, pairs, tokenizer, SHORT, max_positions=64, note=lambda text: None).stream

    whole, chars = stream(), list[int]()
    monkeypatch.setattr(embedder_texts, "_BATCH_CHARS", 200)
    for place, name in ((Tokenizer, "encode_joined"), (embedder_texts, "hash_texts"), (groups, "hash_texts")):
        plain = getattr(place, name)
        spy = lambda *given, plain=plain: chars.append(sum(map(len, given[-1]))) or plain(*given)  # noqa: E731
        monkeypatch.setattr(place, name, spy)
    parts = stream()
    assert len(chars) > 20
    assert max(chars) < 300
    assert parts.drawer.ids.tolist() == whole.drawer.ids.tolist()
    assert all(np.array_equal(getattr(parts.own, name), column) for name, column in vars(whole.own).items())


def test_wrong_answers_of_a_pair_take_turns(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Epoch by epoch; the pair counts once, whatever the number of its wrong answers."""
    rows = [{"query": "a king", "pos": ["the king"], "neg": ["the dog", "the ship", "the cat"]},
            {"query": "a dog", "pos": ["dogs", "the dogs"], "neg": []}]  # fmt: skip
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    pairs = read_pairs(tmp_path / "p.jsonl", {}, notes.append)
    data = pair_data(None, pairs, tokenizer, SHORT, max_positions=64, note=notes.append)
    assert "pairs: 3, 1 of them with wrong answers (3 in all)" in notes
    assert (data.stream.size, data.facts["given_pairs"]) == (3, 3)
    seen = []
    for epoch in range(4):
        rows_of = data.stream.batch(Cursor(epoch), 1).rows
        (at,) = (rows_of.classes["side"].view(-1) == 2).nonzero()
        ids = rows_of.input_ids.view(-1)[at[0] + 1 :].tolist()
        seen.append(tokenizer.backend.decode(ids[: ids.index(tokenizer.special.sep)]))
    assert seen == ["the dog", "the ship", "the cat", "the dog"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '{"frage": "a b", "antwort": "c d", "quelle": "e f"}\n', "embedder.columns.query"),
        ("p.jsonl", '{"query": "a", "pos": [7, 8], "neg": [9]}\n', "columns are query, pos, neg"),
        ("p.txt", "one line", "p.txt"),
        ("p.csv", "query,label\na,1\n", "text"),
        ("p.csv", "query,text,class\na,b,neutral\n", "row 2 .* 'neutral' in column 'class'"),
        ("p.csv", "query,text,label\na,b,0\n", "no row"),
        ("p.jsonl", '{"query": "a", "text": 7}\n', "row 1 has 7 in column 'text'"),
    ],
)
def test_bad_pairs(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=message):
        read_pairs(tmp_path / name, {"label": "class"} if "class" in content else {}, print)


@pytest.mark.parametrize(
    ("content", "columns", "count", "said"),
    [
        ("query,text,has_image\na,b,0\nc,d,1\n", {}, 2, "if column 'has_image' says which do"),
        ("question1,question2,is_duplicate\na,b,0\na,d,1\n", {}, 1, "label in 'is_duplicate'"),
        ("the king,his crown,1\nthe king,a dog,0\na dog,its bone,1\n", {}, 2, "label in '2'"),
        ("the king,his crown,true\nthe king,a dog,false\na dog,its bone,true\n", {}, 2, "label in '2'"),
        ("Is water wet?,true,false\nIs ice hot?,false,true\nIs it warm?,true,false\n", {}, 3, ""),
        ("question,answer\nA?,true\nB?,false\n", {}, 2, ""),
        ("query,text,score\na,b,0.5\nc,d,12.5\n", {}, 2, "ignored: column 'score' holds '12.5'"),
        ("query,text,label\na,b,\nc,d,\n", {}, 2, "ignored: column 'label' holds nothing"),
        ("query,text,label\na,b,0\nc,d,1\n", {"label": ""}, 2, ""),
        ("query,text,label\na,b,1\nc,d,\ne,f,NaN\n", {}, 1, "left out: 2 rows without a label"),
    ],
)
def test_labels_are_found_by_name(content: str, columns: dict[str, str], count: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(content)
    notes: list[str] = []
    assert len(read_pairs(tmp_path / "p.csv", columns, notes.append)[0]) == count
    assert said in "\n".join(notes)


def test_pairs_beside_documents_are_held_out_with_them(tokenizer: Tokenizer, data_folder: Path,
                                                       tmp_path: Path) -> None:  # fmt: skip
    """A text that occurs in pairs and as a document has one key and falls on one side; so do wrong answers."""
    stories = [f"the {word(n)} sees the {word(n + 300)} and the {word(n + 600)} at sea" for n in range(200)]
    (tmp_path / "t.txt").write_text("\n".join(stories))
    (tmp_path / "p.csv").write_text("query,text,negative\n" + "".join(
        f"{text[:9]},{text}!,{other}\n" for text, other in zip(stories, stories[1:] + stories[:1], strict=True)
    ))  # fmt: skip
    pairs, notes = read_pairs(tmp_path / "p.csv", {}, print), list[str]()
    texts = read(tmp_path / "t.txt", tokenizer, answers=pairs[1])
    data = pair_data(texts, pairs, tokenizer, SHORT, max_positions=64, note=notes.append)
    held = set(texts.cluster[texts.held == 1].tolist())
    own, held_given = data.stream.own, data.held["given"]
    assert 2 < len(held_given) == len(held) < 30
    assert set(held_given.document[1].tolist()) == held
    assert not set(own.document[1].tolist()) & held
    has_wrong = own.length[2] > 0
    assert not set(own.document[2, has_wrong].tolist()) & held
    assert f"pairs: left out: {int((~has_wrong).sum()):,} wrong answers that are held-out documents" in notes
    assert set(own.document[1].tolist()) <= set(texts.cluster.tolist())
    store = read(data_folder, tokenizer)
    equal = tokenizer.backend.decode(store.ids[store.begins[3] : store.ends[3]].tolist())
    assert read(data_folder, tokenizer, answers=[equal, "the king"]).answers[0] == store.cluster[3]


__all__ = ["base"]
SYLLABLES = ["king", "queen", "dog", "cat", "ship", "winter", "garden", "sea", "bridge"]
FEW_STEPS = FAST | {"embedder.mlm_weight": 0}


def story(number: int) -> str:
    """One line; stories have few triples of words in common."""
    return " ".join(random.Random(number).choices(SYLLABLES, k=40))


def check(folder: Path, corpus: Path) -> None:
    """Documents that an evaluation queries for are held out of training, by the rule of the folder."""
    tokenizer = load_tokenizer(folder / "model")
    documents, described, _ = read_items([corpus], folder / "model", ItemSettings())
    assert f"(by the rule of {folder}: " in described[0]
    chosen = {tuple(tokenizer.encode_joined([" ".join(each.text.split())])[0].input_ids) for each in documents}
    texts = TokenTexts.load(folder / "texts.safetensors")
    sides: tuple[set[tuple[int, ...]], set[tuple[int, ...]]] = (set(), set())
    for begin, end, is_held in zip(texts.begins, texts.ends, texts.held, strict=True):
        sides[is_held].add(tuple(texts.ids[begin:end].tolist()))
    trained, held = sides
    assert 1 < len(chosen) <= len(held) < len(trained)
    assert chosen <= held
    assert not chosen & trained


def test_from_a_run_to_a_table_with_titles_and_on(corpus_file: Path, tmp_path: Path) -> None:
    """The run's rule applies to its embedder, and to an embedder that starts from that; other titles change nothing."""
    settings = (
        "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.batch_tokens=256",
        "tokenizer.vocab_size=200", "corpus.holdout=0.3",
    )  # fmt: skip
    run = unmask.pretrain([corpus_file], out=tmp_path / "run", steps=1, settings=settings).folder
    table = tmp_path / "t.jsonl"
    rows = [{"title": f"the {SYLLABLES[n % 9]}", "text": story(n)} for n in range(150)]
    rows += [{"title": "again", "text": story(n)} for n in range(40)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = unmask.embedder(run / "model", [table], out=tmp_path / "a", steps=1, settings=FEW_STEPS)
    check(first.folder, table)
    maker, rule = held_out_rule(first.folder / "model")
    assert (maker, rule.holdout) == (first.folder, 0.3)
    texts = TokenTexts.load(first.folder / "texts.safetensors")
    held = [fraction(row["text"]) < 0.3 for row in rows]
    assert texts.held.astype(bool).tolist() == held
    assert texts.titled.all()
    second = unmask.embedder(first.folder / "model", [table], out=tmp_path / "b", steps=1, settings=FEW_STEPS)
    check(second.folder, table)
    assert held_out_rule(second.folder / "model") == (second.folder, rule)
    chosen = FEW_STEPS | {"embedder.holdout": 0.1}
    third = unmask.embedder(run / "model", [table], out=tmp_path / "c", steps=1, settings=chosen)
    assert held_out_rule(third.folder / "model")[1].holdout == 0.1, "unless another share is asked for"


def test_near_duplicates_of_what_is_held_out_are_not_trained_on(base: Path, tokenizer: Tokenizer,
                                                                tmp_path: Path) -> None:  # fmt: skip
    file = tmp_path / "t.txt"
    stories = [f"{story(n)} {story(n + 1000)} {story(n + 2000)}" for n in range(200)]
    file.write_text("\n".join([*stories, *(f"{text} ship" for text in stories)]) + "\n")
    notes: list[str] = []
    texts = read_texts([file], tokenizer, CorpusSettings(holdout=0.1), note=notes.append, notify=lambda progress: None)
    either = [fraction(a) < 0.1 or fraction(f"{a} ship") < 0.1 for a in stories]
    assert texts.held.astype(bool).tolist() == either * 2
    assert any("near-duplicates of held-out ones, and held out with them" in note for note in notes)


def test_text_of_few_patterns_is_trained_on_all_the_same(base: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Every held-out line of a log has near-duplicates, so removing these would leave nothing."""
    file, notes = tmp_path / "app.log", list[str]()
    lines = [f"pool {n % 7} of {n}: connection {n * n} idle for {n % 90} seconds, closing it now" for n in range(300)]
    file.write_text("\n".join(lines) + "\n")
    settings = CorpusSettings(holdout=0.1, documents="line")
    texts = read_texts([file], tokenizer, settings, note=notes.append, notify=lambda progress: None)
    assert texts.held.astype(bool).tolist() == [fraction(line) < 0.1 for line in lines]
    assert any("too many to hold out" in note for note in notes)


@pytest.mark.parametrize(
    ("rule", "held", "says"),
    [
        ([1, 0, 0, 0], [1, 1, 0, 0], "held out with them"),
        ([1, 0, 0, 1], [1, 0, 0, 1], "too many to hold out"),  # of two others one were left
        ([1, 0, 0, 0, 0], [1, 1, 0, 0, 0], "held out with them"),
    ],
)
def test_near_duplicates_are_held_out_unless_hardly_anything_were_left(
    rule: list[int], held: list[int], says: str
) -> None:
    cluster = np.array([0, 0, 1, 1, 2][: len(rule)])
    found, near = _with_near_duplicates(np.array(rule, dtype=np.bool_), cluster)
    assert (found.astype(int).tolist(), says in near) == (held, True)
    with pytest.raises(CorpusError, match="nothing to train on"):
        _with_near_duplicates(np.ones(5, dtype=np.bool_), np.arange(5))
