from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import unmask
from tests.command_line import Main
from tests.conftest import make_text
from tests.data.corpora import write_jsonl
from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.data.data_folder import MANIFEST
from unmask.data.survey import fraction
from unmask.search.evaluate import (
    rank_lexically,
    ranking_figures,
)
from unmask.search.known_items import (
    HELD_OUT,
    ItemDocument,
    ItemSettings,
    crop_task,
    held_out_rule,
    read_beir,
    read_items,
    title_task,
)

pytest.importorskip("sklearn")
TEXTS = make_text(400, seed=3).strip().split("\n\n")
DOCUMENTS = [ItemDocument(text, f"Title {n % 30}", n, n % 2 == 0) for n, text in enumerate(TEXTS[:60])]


def test_crops_are_of_held_out_documents_and_out_of_them() -> None:
    settings = ItemSettings(queries=20, seed=1)
    task = crop_task(DOCUMENTS, settings)
    assert len(task.queries) == 20
    places = [place for right in task.relevant for place in right]
    assert task.draws.tolist() == places
    for query, place in zip(task.queries, places, strict=True):
        text, searched = TEXTS[place], task.documents[place]
        begin = text.index(query)
        assert place % 2 == 0
        assert 20 <= len(query) <= 160
        assert not text[begin].isspace()
        assert begin == 0 or text[begin - 1].isspace()
        gone = len(text) - len(searched) + 1
        assert searched == f"{text[:begin]} {text[begin + gone :]}"
        assert text[begin : begin + gone].strip() == query
    untouched = set(range(60)) - {*places}
    assert all(task.documents[n] == TEXTS[n] for n in untouched)
    assert crop_task(DOCUMENTS, settings).queries == task.queries
    assert crop_task(DOCUMENTS, replace(settings, seed=2)).queries != task.queries


def test_crops_fit_their_documents() -> None:
    """Three eighths of a document, which may move by an eighth at either end: of 160 letters 60, and 20 at the most
    more. From 320 on they are as of a fixed length of 120."""
    lengths = [52, *[160] * 5, *[600] * 5]
    documents = [ItemDocument((f"w{n:03d} " * 200)[:length], None, n, True) for n, length in enumerate(lengths)]
    task = crop_task(documents, ItemSettings())
    assert task.not_asked == {"documents too short to crop": 1}
    assert task.relevant == [{place: 1} for place in range(1, 11)]
    assert all(55 <= len(query) <= 80 for query in task.queries[:5])
    assert all(len(task.documents[n]) >= 80 for n in range(1, 6))
    with pytest.raises(DataError, match="1 of 2"):
        crop_task(documents[:2], ItemSettings())
    for every in (False, True):  # all are long enough
        with pytest.raises(DataError) as few:
            crop_task(documents[1:4], ItemSettings(every=every))
        assert ("all" in few.value.options) == (not every)


def test_titles_that_others_have_too_are_not_asked_for() -> None:
    assert title_task(DOCUMENTS, ItemSettings()) is None, "each stands twice"
    task = title_task(DOCUMENTS[:40], ItemSettings())
    assert task.queries == [f"Title {n}" for n in range(10, 30, 2)]
    assert task.relevant == [{n: 1} for n in range(10, 30, 2)]
    assert task.not_asked == {"documents that share their title": 10}


def test_a_book_is_searched_in_stretches_and_counts_as_one(model_folder: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(900)]
    lines = [" ".join(rng.choices(words, k=12)) + "." for _ in range(700)]
    book = "A long book\n" + "\n".join(lines)
    note = "Pitié\n" + "\n".join(lines[:3])
    (tmp_path / "books.txt").write_text(f"{book}\n\n{note}\n", encoding="cp1252")
    settings = ItemSettings(documents="block", every=True, encoding="cp1252")
    documents, _, _ = read_items([tmp_path / "books.txt"], model_folder, settings)
    *of_book, of_note = documents
    assert len(of_book) == 4
    assert {each.draw for each in of_book} == {of_book[0].draw} != {of_note.draw}
    assert "".join(each.text for each in of_book) == "\n".join(lines)
    assert max(len(each.text) for each in of_book) < 1.5 * 16_384
    assert all(each.text.endswith(".\n") for each in of_book[:-1])
    assert [each.title for each in documents] == ["A long book", None, None, None, "Pitié"]


def test_a_model_beside_words_and_itself(main: Main, model_folder: Path, tmp_path: Path) -> None:
    rng, story = random.Random(0), tmp_path / "story.jsonl"
    words = ["".join(rng.choices(["ba", "lo", "min", "ter", "ska", "vu", "ri", "on"], k=3)) for _ in range(500)]
    rows = [{"title": f"Number {n}", "text": " ".join(rng.choices(words, k=30))} for n in range(150)]
    write_jsonl(story, [*rows, rows[0]])
    shutil.copytree(model_folder, tmp_path / "same")
    command = ("evaluate-search", model_folder, story, "--all", "--queries", 50, "--json")
    code, printed, err = main(*command, "--against", tmp_path / "same", "--passage-tokens", 24)
    assert code == 0, err
    actual = json.loads(printed)
    crop, title = actual["tasks"]["crop"], actual["tasks"]["title"]
    assert (crop["queries"], crop["documents"], title["queries"]) == (50, 150, 50)
    assert actual["passed_over"]["documents that repeat another's text"] == 1
    ours, theirs, bm25 = (crop["systems"][name] for name in (str(model_folder), str(tmp_path / "same"), "bm25"))
    assert ours == theirs
    assert {how["passage_tokens"] for how in actual["encoding"].values()} == {24}
    assert crop["differences"][str(tmp_path / "same")]["ndcg_at_10"] == 0.0
    assert crop["differences"][str(tmp_path / "same")]["ndcg_at_10_interval"] is None
    assert f"no difference shown between {model_folder} and {tmp_path / 'same'}" in actual["verdict"]["crop"]
    difference = crop["differences"]["bm25"]
    assert difference["mrr_at_10"] == pytest.approx(ours["mrr_at_10"] - bm25["mrr_at_10"])
    low, high = difference["ndcg_at_10_interval"]
    assert low < difference["ndcg_at_10"] < high
    assert crop["confidence"] == pytest.approx(1 - 0.05 / 4)
    assert "nDCG@10: model minus this, at 98.8 %" in repr(unmask.SearchEvaluation(actual))
    few = json.loads(main(*command, "--queries", 49)[1])
    assert few["tasks"]["crop"]["systems"].keys() >= {str(model_folder), "bm25", "tfidf"}
    assert (few["tasks"]["crop"]["differences"], few["tasks"]["crop"]["best"]) == ({}, None)
    assert "raise queries" in few["verdict"]["crop"]


def test_what_is_held_out_is_what_the_run_held_out(
    model_folder: Path, corpus_file: Path, data_folder: Path, tmp_path: Path
) -> None:
    """For a run's model, by the run's rule; for any other model, by the default rule."""
    run = tmp_path / "run"
    (run / "data").mkdir(parents=True)
    shutil.move(model_folder, run / "model")
    manifest = json.loads((data_folder / MANIFEST).read_text())
    manifest["settings"]["corpus"]["holdout"] = 0.3
    manifest.pop("fingerprint")
    (run / "recipe.toml").write_text("")
    shutil.copy(data_folder / MANIFEST, run / "data" / MANIFEST)
    assert held_out_rule(run / "model")[1].holdout == 0.05
    assert held_out_rule(tmp_path) == (None, held_out_rule(run / "model")[1])
    documents, described, _ = read_items([corpus_file], run / "model", ItemSettings())
    texts = corpus_file.read_text().strip().split("\n\n")
    held = list(dict.fromkeys(text for text in texts if fraction(text) < 0.05))
    assert [each.text for each in documents] == held
    assert str(run) in described[0]
    among, _, _ = read_items([corpus_file], run / "model", ItemSettings(among_all=True))
    assert [each.text for each in among] == list(dict.fromkeys(texts))
    assert [each.text for each in among if each.is_held_out] == held
    settings = ItemSettings(among_all=True, max_documents=len(held) + 3)
    few, _, passed_over = read_items([corpus_file], run / "model", settings)
    assert [each.text for each in few if each.is_held_out] == held
    assert len(few) == len(held) + 3
    assert passed_over["documents beyond --max-documents"] == len(set(texts)) - len(held) - 3


def test_files_that_a_run_held_out_are_held_out_of_what_is_named(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("dev.txt", "train.txt", "other.txt")]
    for file, texts in zip(files, (TEXTS[:20], TEXTS[20:40], TEXTS[40:60]), strict=True):
        file.write_text("\n\n".join(texts))
    rule = {"validation": [str(files[0])], "label": "mood"}
    (tmp_path / "settings.json").write_text(json.dumps({HELD_OUT: rule}))
    dev, train, other = files
    for named, options, texts, held in (
        ([dev], {}, TEXTS[:20], TEXTS[:20]), ([other, dev], {}, TEXTS[:20], TEXTS[:20]),
        ([train, dev], {"among_all": True}, TEXTS[20:40] + TEXTS[:20], TEXTS[:20]),
        ([other], {"every": True}, TEXTS[40:60], TEXTS[40:60]),
    ):  # fmt: skip
        documents, described, _ = read_items(named, tmp_path / "model", ItemSettings(**options))
        assert [each.text for each in documents] == list(dict.fromkeys(texts))
        assert [each.text for each in documents if each.is_held_out] == list(dict.fromkeys(held))
        assert options.get("every") or f"held out: dev.txt (as in {tmp_path})" in described[0]
    for without in (other, dev.rename(tmp_path / "moved.txt")):
        with pytest.raises(DataError, match=rf"{without.name}.*dev\.txt"):
            read_items([without], tmp_path / "model", ItemSettings())
    (tmp_path / "settings.json").write_text(json.dumps({HELD_OUT: None}))
    assert held_out_rule(tmp_path / "model")[0] is None


def test_text_without_the_column_of_a_rule_can_be_read_whole(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({HELD_OUT: {"holdout_groups": "patient"}}))
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS[:20]))
    (tmp_path / "a.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in TEXTS[:20]))
    for name in ("a.txt", "a.csv"):
        with pytest.raises(CorpusError, match="'patient'") as caught:
            read_items([tmp_path / name], tmp_path / "model", ItemSettings())
        assert list(caught.value.options) == ["all"]
        assert read_items([tmp_path / name], tmp_path / "model", ItemSettings(every=True))[0]


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    rows = [
        {"_id": "d1", "title": "The king", "text": "sees the queen"},
        {"_id": "d2", "title": "", "text": "the king"},
        {"_id": "d3", "title": "", "text": "a ship at sea"},
        {"_id": "q2", "title": "", "text": "ship"},
    ]
    write_jsonl(folder / "corpus.jsonl", rows)
    queries = [{"_id": "q1", "text": "king"}, {"_id": "q2", "text": "ship"}, {"_id": "q3", "text": "queen"}]
    write_jsonl(folder / "queries.jsonl", queries)
    judged = "q1\td1\t2\nq1\td2\t1\nq2\td3\t1\nq2\tgone\t1\nq3\td1\t0\nq9\td1\t1\n"
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def test_a_folder_of_beir(main: Main, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_beir(tmp_path / "beir")
    code, printed, err = main("evaluate-search", model_folder, folder, "--json")
    assert code == 0, err
    actual = json.loads(printed)
    task = actual["tasks"]["judged"]
    assert (task["queries"], task["documents"], actual["unit"]) == (2, 4, "queries")
    assert actual["passed_over"] == {
        "judged documents missing from corpus.jsonl, counted as not found": 1,
        "judged queries without a relevant document in the corpus": 1,
        "judged queries missing from queries.jsonl": 1,
    }
    # q1: d2 is shorter than d1, so first; the ideal is d1 (grade 2), d2. q2: its own document is left out, d3 is first,
    # and one of the two relevant documents is missing.
    log = np.log2
    first = (1 + 2 / log(3)) / (2 + 1 / log(3))
    second = 1 / (1 + 1 / log(3))
    bm25 = task["systems"]["bm25"]
    assert bm25["ndcg_at_10"] == pytest.approx((first + second) / 2)
    assert (bm25["mrr_at_10"], bm25["recall_at_1"], bm25["recall_at_10"]) == (1.0, 0.5, 0.75)
    assert actual["warning"] is not None
    assert list(task["systems"]) == [str(model_folder), "bm25", "tfidf", "both"]
    with pytest.raises(CorpusError, match=r"dev\.tsv: .* test"):
        unmask.evaluate_search(model_folder, folder, split="dev")
    for corpus, option, value in ((folder, "seed", -1), (folder, "documents", "line"), (TEXTS, "split", "dev")):
        with pytest.raises(SettingsError, match=option):
            unmask.evaluate_search(model_folder, corpus, **{option: value})  # type: ignore[arg-type]
    for other in (model_folder, "bm25"):
        with pytest.raises(SettingsError, match=str(other)):
            unmask.evaluate_search(model_folder, folder, against=[other])
    one = unmask.evaluate_search(model_folder, folder, queries=1, baselines="none")
    assert one.tasks["judged"]["queries"] == 1
    assert "one query" in (one.warning or "")
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "the king"}\n')
    monkeypatch.setattr("unmask.search.evaluate.find_spec", lambda name: None)  # a plain installation
    assert "tfidf" not in unmask.evaluate_search(model_folder, folder).tasks["judged"]["systems"]
    with pytest.raises(SettingsError, match="scikit-learn"):
        unmask.evaluate_search(model_folder, folder, baselines="tfidf")


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq7\td1\t1\nq1\tx\t1\n", "1 judged queries"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1 d1 1\n", "tsv: line 2"),
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}\n', "corpus.jsonl: row 2 .* 'd1'"),
        ("corpus.jsonl", '{"id": "d1", "text": "a"}\n', "corpus.jsonl: row 1 .* _id"),
        ("qrels/test.tsv", f"query-id\tcorpus-id\tscore\nq1\td1\t{'9' * 400}\n", "tsv: line 2 .* 1,000,000"),
        ("corpus.jsonl", '{"_id": "d1", "text": "a \\ud800"}\n', r"corpus.jsonl: row 1 .* U\+D800"),
        *((name, None, name) for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")),
    ],
)
def test_what_is_wrong_with_a_folder_of_beir(tmp_path: Path, file: str, content: str | None, named: str) -> None:
    folder = write_beir(tmp_path / "beir")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(CorpusError, match=named):
        read_beir(folder, split="test", num_queries=5, seed=0)


NONE = [-1] * 10


def test_figures_are_those_of_hand() -> None:
    rankings = [[9, 1, 8, 2, *range(20, 26)], [5, *range(20, 29)], NONE, [*range(20, 30)], [3, *NONE[1:]]]
    relevant = [{1: 2, 2: 1, 3: 1, 8: 0}, {5: 1}, {7: 1}, {30: 1}, dict.fromkeys(range(12), 1)]
    actual = ranking_figures(np.array(rankings), relevant)
    log = math.log2
    best_of_twelve = sum(1 / log(rank + 1) for rank in range(1, 11))
    first = (2 / log(3) + 1 / log(5)) / (2 / log(2) + 1 / log(3) + 1 / log(4))
    np.testing.assert_allclose(actual["ndcg_at_10"], [first, 1.0, 0.0, 0.0, 1 / best_of_twelve])
    np.testing.assert_allclose(actual["mrr_at_10"], [1 / 2, 1.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(actual["recall_at_1"], [0.0, 1.0, 0.0, 0.0, 1 / 12])
    np.testing.assert_allclose(actual["recall_at_10"], [2 / 3, 1.0, 0.0, 0.0, 1 / 12])


SHORT = ["the cat sat", "The dog, the dog!", "a bird", "the cat sat", "猫は魚を食べる"]


def test_tfidf_finds_what_shares_words() -> None:
    queries = ["a CAT", "dog", "whale", "?!", "魚"]
    actual = rank_lexically("tfidf", SHORT, queries, 3).documents_QK.tolist()
    assert actual == [[2, 0, 3], [1, -1, -1], [-1, -1, -1], [-1, -1, -1], [4, -1, -1]]
    assert rank_lexically("tfidf", ["?", "!"], ["cat", "!"], 1).documents_QK.tolist() == [[-1], [-1]]
