from __future__ import annotations

import itertools
import json
import random
import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import unmask
from tests.data.corpora import write_jsonl
from unmask.core import files
from unmask.core.errors import CorpusError, DataError, RunError, SettingsError
from unmask.search import blocks, changes
from unmask.search import index as index_building

NOUNS = ["cat", "dog", "king", "queen", "ship", "winter", "garden", "bridge"]
QUERIES = ["the king sees the ship", "a garden in winter", "dog"]
Row = dict[str, str]


def row(number: int, first: str, *others: str) -> Row:
    return {"id": f"d{number}", "title": f"On the {first}", "text": " ".join(f"the {each} sees" for each in others)}


def rows(*numbers: int, seed: int = 0) -> list[Row]:
    """Documents of one to four passages, for a passage of 24 tokens."""
    rng = random.Random(seed)
    return [row(n, rng.choice(NOUNS), *rng.choices(NOUNS, k=rng.choice((2, 3, 20)))) for n in numbers]


def build(model: Path | unmask.Model, out: Path, texts: Any, **options: Any) -> unmask.Index:
    return unmask.Index.build(model, texts, out=out, passage_tokens=24, overlap_tokens=6, **options)


def answers(index: unmask.Index, rank: Any = "vectors", *, exact: bool = True) -> list[list[dict[str, Any]]]:
    hits = index.query(QUERIES, top_k=5, rank=rank, exact=exact).queries
    return [
        [{name: hit[name] for name in ("document", "id", "passage", "begin")} for hit in each["hits"]] for each in hits
    ]


def passages_of(index: unmask.Index) -> list[dict[str, Any]]:
    """Those of documents that were not removed."""
    stored = index._opened[0]
    return [stored.passage(number) for number in np.flatnonzero(stored.documents >= 0).tolist()]


def same(index: unmask.Index, other: unmask.Index) -> None:
    """Both indexes give the same answers: by words to the last bit, by vectors up to rounding in different batches."""
    for rank in ("words", "vectors", "both"):
        assert answers(index, rank) == answers(other, rank)
        scores = [
            [hit["score"] for each in some.query(QUERIES, top_k=5, rank=rank).queries for hit in each["hits"]]
            for some in (index, other)
        ]
        np.testing.assert_allclose(
            *scores, rtol=0.0 if rank == "words" else 1e-5, atol=0.0 if rank == "words" else 1e-6
        )


@pytest.fixture
def model(model_folder: Path) -> unmask.Model:
    """Loaded once for the many indexes of a test."""
    return unmask.load(model_folder)


@pytest.mark.parametrize("light", [2, 8])
def test_a_changed_index_answers_as_one_that_is_made_anew(
    model: unmask.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: int
) -> None:
    """Random additions, replacements and removals, in blocks of four passages, of which few or many are joined."""
    monkeypatch.setattr(blocks, "BLOCK_PASSAGES", 4)
    monkeypatch.setattr(changes, "LIGHT_IN_A_ROW", light)
    there = {each["id"]: each for each in rows(*range(9))}
    index, rng = build(model, tmp_path / "index", list(there.values())), random.Random(light)
    for step in range(5):
        new = rows(*rng.sample(range(14), 3), seed=step + 1) if step % 3 < 2 else []
        gone = [each["id"] for each in new if each["id"] in there] if new else rng.sample(sorted(there), 3)
        change = index.add(new) if new else index.remove(gone)
        there = {name: each for name, each in there.items() if name not in gone} | {each["id"]: each for each in new}
        assert (change.added, change.removed, change.documents) == (len(new), len(gone), len(there))
        made = build(model, tmp_path / f"anew-{step}", list(there.values()))
        same(index, made)
    same(unmask.Index(tmp_path / "index", model=model), made)
    stored = index._opened[0]
    assert len(list((tmp_path / "index" / "blocks").iterdir())) == len(set(stored.state.names))
    is_light = [(stored.documents[begin:end] >= 0).sum() < 2 for begin, end in pairwise(stored._firsts)]
    assert light > 2 or not any(map(all, pairwise(is_light)))
    index.remove(sorted(there))
    assert (index.to_dict()["documents"], index.to_dict()["passages"]) == (0, 0)
    assert [answers(index, rank) for rank in ("vectors", "words", "both")] == [[[], [], []]] * 3
    index.add(rows(1, 2))
    same(index, build(model, tmp_path / "after", rows(1, 2)))


def test_text_is_erased_once_most_of_its_block_is_removed(model_folder: Path, tmp_path: Path) -> None:
    index = build(model_folder, tmp_path / "index", rows(*range(9)))
    index.remove([f"d{number}" for number in range(8)])
    (table,) = (tmp_path / "index" / "blocks").glob("*.parquet")
    assert set(pq.read_table(table)["id"].to_pylist()) == {"d8"}
    same(index, build(model_folder, tmp_path / "anew", rows(*range(9))[8:]))


class Killed(BaseException):
    """Ends a process, as far as a test can."""


@pytest.mark.parametrize("what", ["add", "remove"])
def test_a_change_that_is_killed_leaves_the_index_before_or_after_it(
    model: unmask.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Before each file that is written, and before each that is removed. The next change works, and removes files that
    belong to no state."""
    monkeypatch.setattr(blocks, "BLOCK_PASSAGES", 3)
    monkeypatch.setattr(changes, "LIGHT_IN_A_ROW", 2)
    write, unlink, left = blocks.write_atomically, Path.unlink, 0

    def opened(number: int | str) -> unmask.Index:
        return unmask.Index(tmp_path / str(number), model=model)

    def answered(index: unmask.Index) -> tuple[Any, Any]:
        return answers(index), answers(index, "words")

    def change(index: unmask.Index) -> None:
        index.add(rows(2, 5, 20, seed=3)) if what == "add" else index.remove(["d1", "d2", "d3"])

    def one_more() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    def writes(*arguments: Any) -> None:
        one_more()
        write(*arguments)

    def unlinks(self: Path, **options: Any) -> None:
        if self.parent.name == "blocks":
            one_more()
        unlink(self, **options)

    build(model, tmp_path / "index", rows(*range(6)))
    shutil.copytree(tmp_path / "index", tmp_path / "whole")
    before = answered(opened("index"))
    change(opened("whole"))
    after = answered(opened("whole"))
    assert before != after
    seen = set()
    for moment in itertools.count():
        shutil.copytree(tmp_path / "index", tmp_path / str(moment))
        held, left = opened(moment), moment
        with monkeypatch.context() as patch, suppress(Killed):
            for module in (blocks, files):
                patch.setattr(module, "write_atomically", writes)
            patch.setattr(Path, "unlink", unlinks)
            change(opened(moment))
        actual = answered(opened(moment))
        assert actual in (before, after)
        assert answered(held) == actual
        seen.add(actual == after)
        if left >= 0:
            break
        index = opened(moment)
        if what == "add" or actual == before:
            change(index)
        else:
            index.add(rows(30))
            index.remove(["d30"])
        assert answered(opened(moment)) == after
        assert {path.name for path in (tmp_path / str(moment) / "blocks").iterdir()} == {*index._opened[0].state.names}
    assert seen == {False, True}
    assert moment > 5


def test_one_writes_while_others_read(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "index"
    index, reader = build(model_folder, out, rows(*range(5))), unmask.Index(out)
    before = answers(reader)
    finish = blocks.IndexFolder.finish

    def asks_meanwhile(self: blocks.IndexFolder, state: blocks.IndexState) -> None:
        with pytest.raises(RunError, match="another thread of this process"):
            unmask.Index(out).remove(["d1"])
        assert answers(reader) == answers(unmask.Index(out)) == before
        finish(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(blocks.IndexFolder, "finish", asks_meanwhile)
        index.add(rows(7, seed=4))
    assert answers(reader) == answers(unmask.Index(out)) != before
    numbers = out / "blocks" / str(index._opened[0].state.numbers)
    content = numbers.read_bytes()
    for damage in (lambda: numbers.write_bytes(b""), numbers.unlink):
        damage()
        with pytest.raises(DataError, match=numbers.name):
            unmask.Index(out).remove(["d1"])
    numbers.write_bytes(content)
    # An unreadable state is ignored: a reader keeps the one it has.
    (out / "index.json").write_text("{")
    assert answers(reader) == answers(index)
    with pytest.raises(DataError, match=r"index\.json"):
        index.remove(["d1"])


def test_what_documents_are_called(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ids from a column, unique in the index; by numbers in a file; and by the file."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("the king\nthe queen\n")
    Path("b.txt").write_text("the ship\nthe cat\nthe dog\n")
    index = build(model_folder, tmp_path / "index", ["a.txt", "b.txt"], documents="line")

    def held() -> list[tuple[str, Any, str]]:
        return [(each["file"], each["id"], each["text"]) for each in passages_of(index)]

    Path("a.txt").write_text("the garden\n")
    change = index.add([tmp_path / "a.txt"])
    assert (change.added, change.removed, held()[-1]) == (1, 2, (str(tmp_path / "a.txt"), 1, "the garden"))
    assert index.add(["the winter sees", "the bridge sees"]).documents == 6
    assert index.add(iter(["another"])).documents == 7
    given = "given/rows.jsonl"
    assert held()[-3:] == [(given, 1, "the winter sees"), (given, 2, "the bridge sees"), (given, 3, "another")]
    assert index.add([{"id": 2, "text": "of its own"}]).removed == 0, "a number may be an id of its own, too"
    assert index.add([{"id": "2", "text": "replaced"}]).removed == 1
    assert index.remove([2]).removed == 1, "the one whose own id it is"
    with pytest.raises(SettingsError, match=r"2 exists both in b\.txt and in .*given/rows\.jsonl"):
        index.remove([2])
    with pytest.raises(SettingsError, match="2 of 3 ids .* 'x'"):
        index.remove(["a.txt", "x", "y"])
    with pytest.raises(SettingsError, match="None"):
        index.remove([None])  # type: ignore[list-item]
    assert index.remove(["a.txt", "b.txt"]).removed == 4
    assert index.remove("1").removed == 1
    assert held() == [(given, 2, "the bridge sees"), (given, 3, "another")]
    with pytest.raises(CorpusError, match="2 documents have the id 'x' .2 ids"):
        index.add([{"id": name, "text": "the king"} for name in "xyxzy"])
    assert len(held()) == 2
    assert not (tmp_path / "index" / "given").exists()


def test_a_file_is_the_same_from_any_folder(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a link to its folder, and if the folder of the build was moved; a link in a folder has its own name."""
    for year, text in (("2024", "the king sees\n"), ("2025", "the ship sees\n")):
        (tmp_path / year).mkdir()
        (tmp_path / year / "letters.txt").write_text(text)
    monkeypatch.chdir(tmp_path / "2024")
    build(model_folder, tmp_path / "index", ["letters.txt"])
    (tmp_path / "linked").symlink_to(tmp_path / "2024")
    monkeypatch.chdir(tmp_path / "2025")
    Path("copy.txt").symlink_to("letters.txt")
    index, old = unmask.Index("../index"), [tmp_path / year / "letters.txt" for year in ("linked", "2024")]
    replaced = [index.add([file]).removed for file in ("letters.txt", "letters.txt", *old, "copy.txt")]
    assert replaced == [0, 1, 1, 1, 0]
    assert index.remove(["copy.txt", "letters.txt"]).removed == 2
    assert [each["file"] for each in passages_of(index)] == [str(tmp_path / "2024" / "letters.txt")]
    build(model_folder, tmp_path / "other", ["letters.txt"])
    (tmp_path / "2025").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert unmask.Index("../other").add(["letters.txt"]).removed == 1


def test_resuming_a_changed_index_does_not_undo_it(model_folder: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "index", write_jsonl(tmp_path / "rows.jsonl", rows(1, 2, 3))
    build(model_folder, out, file).remove(["d2"])
    said: list[str] = []
    assert build(model_folder, out, file, resume=True, note=said.append).to_dict()["documents"] == 2
    assert said[0].startswith(f"{out}: the index is already complete; unmask search add")
    begun = json.loads((out / "search.json").read_text())
    (out / "blocks" / begun["numbers"]).write_bytes(b"")
    with pytest.raises(DataError, match="documents were added or removed"):
        build(model_folder, out, file, resume=True)
    build(model_folder, out, file, overwrite=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks.IndexFolder, "finish", lambda self, state: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(model_folder, out, rows(4, 5), overwrite=True)
    with pytest.raises(DataError, match="resume"):
        unmask.Index(out).remove(["d1"])


def test_a_whole_index_is_resumed_though_files_were_added(model_folder: Path, tmp_path: Path) -> None:
    """Its graph may be missing. New text is for `add`."""
    out, docs = tmp_path / "index", tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("the king sees\nthe dog sees\n")
    build(model_folder, out, docs)
    (docs / "b.txt").write_text("the ship sees\n")
    (out / "index.json").unlink()
    with pytest.raises(RunError, match="files = "):
        build(model_folder, out, docs, resume=True)
    build(model_folder, out, docs / "a.txt", resume=True)
    said: list[str] = []
    assert build(model_folder, out, docs, resume=True, note=said.append).to_dict()["documents"] == 2
    assert "unmask search add" in said[0]
    with pytest.raises(RunError, match="files = "):
        build(model_folder, out, docs / "b.txt", resume=True)
    unmask.Index(out).add(docs / "b.txt")
    (docs / "a.txt").unlink()
    assert build(model_folder, out, docs, resume=True).to_dict()["documents"] == 3


def test_a_graph_goes_on_until_much_has_changed(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("usearch")
    monkeypatch.setattr(blocks, "BLOCK_PASSAGES", 10)
    monkeypatch.setattr(changes, "MOST_UNLINKED", 0.2)
    texts = [{"id": f"{a} {b}", "text": f"the {a} sees the {b}"} for a in NOUNS for b in NOUNS]
    index = unmask.Index.build(model_folder, texts[:55], out=tmp_path / "index", approximate=True)
    graph = index._opened[0].state.graph
    index.add(texts[55:60])
    index.remove([each["id"] for each in texts[:9]])
    assert index._opened[0].state.graph == graph
    assert answers(index, exact=False) == answers(index)
    assert {hit["id"] for each in answers(index, exact=False) for hit in each}.isdisjoint(
        each["id"] for each in texts[:9]
    )
    index.add(texts[60:])
    index.add(texts[:4])
    assert index._opened[0].state.graph not in (None, graph)
    assert answers(index, exact=False) == answers(index)
    with monkeypatch.context() as patch:
        patch.setattr("unmask.search.blocks.find_spec", lambda name: None)
        patch.setattr(index_building, "APPROXIMATE_FROM", 1)
        index.add(texts[4:30])
        assert index._opened[0].state.graph is None
    monkeypatch.setattr(index_building, "APPROXIMATE_FROM", 20)
    for size, has_graph in (30, False), (20, True):
        exact = unmask.Index.build(model_folder, texts[:size], out=tmp_path / f"{size}", approximate=False)
        exact.add(texts[30:35])
        assert exact.to_dict()["approximate"] == has_graph, "it became large, or was large and had none"


def test_what_is_added_is_read_as_the_index_was(model_folder: Path, tmp_path: Path) -> None:
    """A longer column beside the text, or a title, is not taken as text; texts in memory may have other columns."""
    long = "the king sees the ship in winter and the dog sees the garden"

    def file(name: str, *rows: Row) -> list[Path]:
        return [write_jsonl(tmp_path / name, rows)]

    old = [{"doc_id": f"a{n}", "headline": f"On {n}", "body_text": f"{long} {n}"} for n in range(3)]
    index = build(model_folder, tmp_path / "index", file("old.jsonl", *old))
    new = {"doc_id": "a1", "headline": "A much longer headline than its text", "body_text": "queen", "changes": long}
    assert index.add(file("new.jsonl", new)).to_dict().items() >= {"added": 1, "removed": 1, "documents": 3}.items()
    hit = index.query("queen", rank="words").queries[0]["hits"][0]
    assert (hit["id"], hit["title"], hit["passage"]) == ("a1", new["headline"], "queen")
    assert hit["scores"] == {"words": hit["score"]}
    first, second = index.query("queen", rank="both", words_weight=1.0, top_k=2).queries[0]["hits"]
    assert (first["id"], set(first["scores"]), set(second["scores"])) == ("a1", {"vectors", "words"}, {"vectors"})
    index.add(["a bridge"])
    assert index.query("bridge", rank="words").queries[0]["hits"][0]["passage"] == "a bridge"
    other = file("other.jsonl", {"key": "a2", "body_text": "the ship"})
    with pytest.raises(CorpusError, match="doc_id"):
        index.add(other)
    assert index.add(other, id_column="").added == 1
    goods = [{"sku": name, "title": f"On {name}", "text": "the king sees"} for name in ("A1", "A2")]
    priced = build(model_folder, tmp_path / "goods", goods, id_column="sku")
    assert priced.add([{"sku": "A1", "text": "the queen"}]).removed == 1, "a title may be missing"
    notes: list[str] = []
    for _ in range(2):
        priced.add([{"sku": "A3", "text": " "}, {"sku": "A4", "text": "the ship"}], note=notes.append)
    assert [line for line in notes if line.startswith("skipped")] == ["skipped: 1 rows without text"] * 2
    assert priced.to_dict()["skipped"] == {}, "of the build"
    (tmp_path / "blocks.txt").write_text("the king\nsees\n\nthe dog\nsees\n")
    (tmp_path / "lines.txt").write_text("the queen\nsees the ship\n")
    blocks_of_text = build(model_folder, tmp_path / "blocks", [tmp_path / "blocks.txt"])
    assert blocks_of_text.add([tmp_path / "lines.txt"]).to_dict().items() >= {"added": 1, "documents": 3}.items()
