from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unmask
from tests.command_line import Main
from tests.data.corpora import write_jsonl
from tests.hostile_models import change_json
from unmask.core.errors import CorpusError, DataError, ModelError, RunError, SettingsError
from unmask.core.files import write_object
from unmask.search import blocks
from unmask.search import index as index_building
from unmask.search.encoder import SearchEncoder, open_encoder
from unmask.search.passages import DocumentFiles, DocumentPart, cut_passages, find_snippet, split_title
from unmask.tokenizer.tokenizer import Tokenizer

NOUNS = ["cat", "dog", "king", "queen", "ship", "winter", "garden", "bridge"]
ROWS = [
    {"id": f"d{n}", "title": f"On the {noun}", "text": f"the {noun} sees the {noun} at sea"}
    for n, noun in enumerate(NOUNS)
]
TEXTS = [row["text"] for row in ROWS]
LONG = " ".join(f"the {NOUNS[n % 7]} follows the {NOUNS[n % 5]} in the garden." for n in range(60))
Hits = list[dict[str, Any]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [*ROWS, {"id": "long", "title": "", "text": LONG}, {"id": "blank", "title": "", "text": " "}]
    return write_jsonl(tmp_path / "rows.jsonl", rows)


def hits_of(index: unmask.Index, query: str, **options: Any) -> Hits:
    hits: Hits = index.query(query, **options).queries[0]["hits"]
    return hits


def test_an_index_finds_what_its_vectors_say(
    main: Main, model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_PASSAGES", 5)
    out = tmp_path / "index"
    code, printed, err = main("search", "index", model_folder, table, "--out", out, "--passage-tokens", 40, "--json")
    assert code == 0, err
    made = json.loads(printed)
    assert (made["documents"], made["dimension"], made["similarity"], made["approximate"]) == (9, 32, "cosine", False)
    assert made["passages"] > 5 + 8
    assert made["skipped"] == {"rows without text": 1}
    assert "a row, its text in column 'text', its id in column 'id', its title in column 'title'" in err
    assert "skipped: 1 rows" in err
    assert len(list((out / "blocks").glob("*.parquet"))) == -(-made["passages"] // 5)

    code, printed, _ = main("search", "query", out, "the ship sees the ship", "--top-k", 20, "--json")
    assert code == 0
    [found] = json.loads(printed)["queries"]
    model = unmask.load(model_folder)
    texts = [f"{row['title']}\n{row['text']}" for row in ROWS]
    scores = model.embed(texts, normalize=True) @ model.embed([found["query"]], normalize=True)[0]
    of_id = {hit["id"]: hit for hit in found["hits"]}
    assert len(found["hits"]) == 9, "each document once"
    np.testing.assert_allclose([of_id[row["id"]]["score"] for row in ROWS], scores, atol=1e-5)
    assert [hit["score"] for hit in found["hits"]] == sorted((hit["score"] for hit in found["hits"]), reverse=True)
    assert [hit["rank"] for hit in found["hits"]] == list(range(1, 10))
    assert (of_id["d4"]["title"], of_id["d4"]["file"], of_id["long"]["title"]) == ("On the ship", str(table), None)
    place = of_id["long"]["begin"]
    assert of_id["long"]["passage"] == LONG[place : place + len(of_id["long"]["passage"])]
    assert len(model.tokenizer.encode_prompt(of_id["long"]["passage"])) <= 40

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the king\r\n\r\nthe dog\r\n")))
    code, printed, _ = main("search", "query", out, "-", "--json")
    assert [each["query"] for each in json.loads(printed)["queries"]] == ["the king", "the dog"]


def test_texts_in_memory_and_what_an_index_says_of_itself(model_folder: Path, tmp_path: Path) -> None:
    index = unmask.Index.build(model_folder, TEXTS, out=tmp_path / "index")
    assert "8 documents in 8 passages of up to 64 tokens" in repr(index)
    assert not (tmp_path / "index" / "given").exists()
    found = index.query(["the dog sees the dog at sea", "the queen"], top_k=2)
    assert [len(each["hits"]) for each in found.queries] == [2, 2]
    assert found.queries[0]["hits"][0]["id"] == 2
    assert found.queries[0]["hits"][0]["score"] == pytest.approx(1.0, abs=1e-6)
    assert "row 2 of " in repr(found)


def test_passages_cover_their_documents(tokenizer: Tokenizer) -> None:
    """For any length: passages cover the whole text, with the chosen overlap, and begin and end at words."""
    document = DocumentPart(0, "long.txt", 1, None, 0, LONG)
    for length, overlap in ((16, 0), (16, 6), (33, 8), (64, 8)):
        passages = [*cut_passages([document], tokenizer, passage_tokens=length, overlap_tokens=overlap, prompt="")]
        assert len(passages) > 5
        end = 0
        for passage in passages:
            assert len(tokenizer.encode_prompt(passage.text)) <= length
            assert passage.begin < end if end and overlap else passage.begin == end
            assert LONG[passage.begin - 1] == " " or passage.begin == 0
            end = passage.end
        assert end == len(LONG)


def test_a_stopped_index_goes_on_as_if_it_had_not(
    model_folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_PASSAGES", 3)

    def build(out: Path, **options: Any) -> unmask.Index:
        return unmask.Index.build(model_folder, [table], out=out, **options)

    build(tmp_path / "whole")
    out = tmp_path / "stopped"
    embed, calls = SearchEncoder.embed_documents, []

    def fails(self: SearchEncoder, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return embed(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchEncoder, "embed_documents", fails)
        with pytest.raises(KeyboardInterrupt):
            build(out)
        with pytest.raises(DataError, match="unfinished"):
            unmask.Index(out)
        with pytest.raises(RunError, match="already holds an index"):
            build(out)
        calls.clear()
        calls.extend([1] * 3)
        build(out, resume=True)
        assert len(calls) == 3 + len(list((out / "blocks").glob("*.parquet"))) - 2, "two blocks were there"
    for path in sorted((tmp_path / "whole").rglob("*")):
        if path.is_file() and not path.name.startswith(".lock"):
            assert path.read_bytes() == (out / path.relative_to(tmp_path / "whole")).read_bytes()

    with pytest.raises(RunError, match=r"encoding\.passage_tokens"):
        build(out, resume=True, passage_tokens=32, overlap_tokens=8)
    (out / "index.json").unlink()
    table.write_text(table.read_text().replace("the cat", "a cat"))
    with pytest.raises(RunError, match="block 0"):
        build(out, resume=True)
    table.write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(RunError, match="started on"):
        build(out, resume=True)
    assert build(out, overwrite=True).to_dict()["documents"] == 1


def turned(data: bytes, place: int) -> bytes:
    """The bytes with one bit flipped."""
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


def test_a_damaged_index_is_one_line(model_folder: Path, tmp_path: Path) -> None:
    """For any file of the index: no query is answered from it, and the error names it. Nor from a state of another
    version, or with a checksum that is right but what no build writes."""
    out, model = tmp_path / "index", unmask.load(model_folder)
    options = {"approximate": True} if find_spec("usearch") else {}
    unmask.Index.build(model, TEXTS, out=out, **options)
    files = [out / "index.json", *(out / "blocks").iterdir()]
    assert len(files) == 5 + len(options)
    for file in files:
        whole = file.read_bytes()
        for damaged in (whole[:-3], turned(whole, 20), turned(whole, len(whole) // 2 + 1), bytes(len(whole)), b""):
            file.write_bytes(damaged)
            with pytest.raises(DataError, match=file.name):
                unmask.Index(out, model=model).query("the king", rank="both")
        file.unlink()
        with pytest.raises(DataError, match=r"missing|unfinished"):
            unmask.Index(out, model=model).query("the king", rank="both")
        file.write_bytes(whole)
    state = json.loads(files[0].read_text())
    del state["sha256"]
    block, *others = state["blocks"]
    for change in (
        {"version": 7},
        {"settings": state["settings"] | {"dimension": float("inf")}},
        {"blocks": [block | {"vectors": "../../secrets.npy"}, *others]},
        {"numbers": block["vectors"]},
    ):
        write_object(files[0], state | change)  # with the checksum that it then has
        with pytest.raises(DataError, match="damaged"):
            unmask.Index(out, model=model).query("the king")


def test_a_held_index_answers_from_one_state(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebuilt with the same number of passages: old answers until it is complete, never old passages by new vectors."""
    out = tmp_path / "index"
    kings, ships = ([f"the {noun} sees the {other}" for other in NOUNS] for noun in ("king", "ship"))
    unmask.Index.build(model_folder, kings, out=out)
    held, used = unmask.Index(out), unmask.Index(out)
    before = hits_of(used, "the king sees the dog", top_k=1)
    embed = SearchEncoder.embed_documents

    def asks_meanwhile(self: SearchEncoder, *arguments: Any) -> Any:
        vectors = embed(self, *arguments)
        assert hits_of(unmask.Index(out), "the king sees the dog", top_k=1) == before, "the old state, while it is made"
        return vectors

    with monkeypatch.context() as patch:
        patch.setattr(SearchEncoder, "embed_documents", asks_meanwhile)
        unmask.Index.build(model_folder, ships, out=out, overwrite=True)
    after = hits_of(unmask.Index(out), "the ship sees the dog", top_k=3)
    for index in (held, used):
        assert hits_of(index, "the ship sees the dog", top_k=3) == after
    assert len(list((out / "blocks").iterdir())) == 4, "files of the old state are gone"


def test_an_overwrite_that_fails_leaves_the_index_as_it_was(model_folder: Path, tmp_path: Path) -> None:
    """With its claim, so that the next one is refused, too; and it can still be changed."""
    out = tmp_path / "index"
    unmask.Index.build(model_folder, TEXTS, out=out)
    before = hits_of(unmask.Index(out), "the king")
    twins = [{"id": 7, "text": "the king"}, {"id": 7, "text": "the dog"}]
    for texts, named in ([tmp_path / "nothing.txt"], "nothing"), (twins, "2 documents have the id '7'"):
        with pytest.raises(CorpusError, match=named):
            unmask.Index.build(model_folder, texts, out=out, overwrite=True)
    assert hits_of(unmask.Index(out), "the king") == before
    with pytest.raises(RunError, match="already holds an index"):
        unmask.Index.build(model_folder, ["the ship"], out=out)
    assert unmask.Index(out).remove([1]).documents == len(ROWS) - 1


def test_resuming_makes_damaged_blocks_anew(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_PASSAGES", 3)
    out = tmp_path / "index"
    unmask.Index.build(model_folder, TEXTS, out=out)
    whole = {path.name: path.read_bytes() for path in (out / "blocks").iterdir()}
    state = json.loads((out / "index.json").read_text())
    (out / "index.json").unlink()
    zeros, missing, bit = (
        out / "blocks" / state["blocks"][n][kind] for n, kind in enumerate(["vectors", "vectors", "table"])
    )
    zeros.write_bytes(bytes(zeros.stat().st_size))
    missing.unlink()
    bit.write_bytes(turned(bit.read_bytes(), 100))
    unmask.Index.build(model_folder, TEXTS, out=out, resume=True)
    assert {path.name: path.read_bytes() for path in (out / "blocks").iterdir()} == whole
    (out / "blocks" / state["numbers"]).write_bytes(b"")
    unmask.Index.build(model_folder, TEXTS, out=out, resume=True)
    assert {path.name: path.read_bytes() for path in (out / "blocks").iterdir()} == whole
    for name in ("index.json", "search.json"):
        (out / name).write_text("{")
        unmask.Index.build(model_folder, TEXTS, out=out, overwrite=True)
        assert json.loads((out / "index.json").read_text()) == state, "as its error advises"


def test_an_index_below_its_documents_does_not_read_itself(model_folder: Path, tmp_path: Path) -> None:
    (docs := tmp_path / "docs").mkdir()
    (docs / "a.txt").write_text("the king sees\nthe dog sees\n")
    assert unmask.Index.build(model_folder, [docs], out=docs / "index").add([docs]).documents == 2
    for options in ({"overwrite": True}, {"resume": True}):
        index = unmask.Index.build(model_folder, [docs], out=docs / "index", **options)
        assert index.to_dict()["documents"] == 2
        (docs / "index" / "index.json").unlink()


def test_an_index_knows_its_model(
    model_folder: Path, make_model: Callable[..., Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    from unmask.model.folder import save_model

    out = tmp_path / "index"
    unmask.Index.build(model_folder, TEXTS, out=out)
    (other := tmp_path / "other").mkdir()
    save_model(make_model(norm_eps=1e-4), other)
    tokenizer.save(other, max_length=64)
    with pytest.raises(ModelError, match="other"):
        unmask.Index(out, model=other).query("the king")
    shutil.move(model_folder, tmp_path / "moved")
    with pytest.raises(ModelError, match="has moved"):
        unmask.Index(out).query("the king")
    assert hits_of(unmask.Index(out, model=tmp_path / "moved"), "the king", top_k=1)


def test_what_cannot_be_asked_or_indexed(model_folder: Path, table: Path, tmp_path: Path) -> None:
    model = unmask.load(model_folder)
    index = unmask.Index.build(model, [table], out=tmp_path / "index")
    for wrong in ("", " \n", [], [""], None, ["the king", None], ["the king", " "]):
        with pytest.raises(SettingsError, match="query"):
            index.query(wrong)  # type: ignore[arg-type]
    wrong_options: list[dict[str, Any]] = [
        {"top_k": 0}, {"rank": "ranks"}, {"words_weight": 1.5, "rank": "both"}, {"words_weight": 0.5},
    ]  # fmt: skip
    for options in wrong_options:
        with pytest.raises(SettingsError, match=next(iter(options))):
            index.query("the king", **options)
    for folder in ("nowhere", "."):
        with pytest.raises(DataError, match="unmask search index"):
            unmask.Index(tmp_path / folder)
    (tmp_path / "odd.jsonl").write_text('{"id": 1.5, "text": "the king"}\n')
    (tmp_path / "twins.jsonl").write_text('{"id": 7, "text": "the king"}\n{"id": "7", "text": "the dog"}\n')
    cases: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (SettingsError, "passage_tokens=5", table, {"passage_tokens": 5}),
        (SettingsError, "overlap_tokens=60", table, {"overlap_tokens": 60}),
        (SettingsError, "document_prompt", table, {"document_prompt": "\ud800"}),
        (SettingsError, "similarity", table, {"similarity": "manhattan"}),
        (SettingsError, "document_prompt", table, {"passage_tokens": 16, "document_prompt": "the king sees " * 3}),
        (CorpusError, "'name'", table, {"title_column": "name"}),
        (CorpusError, "row 1 has 1.5.* in column 'id'", tmp_path / "odd.jsonl", {}),
        (CorpusError, "2 documents have the id '7'", tmp_path / "twins.jsonl", {}),
    ]
    for number, (kind, named, path, options) in enumerate(cases):
        with pytest.raises(kind, match=named):
            unmask.Index.build(model, [path], out=tmp_path / f"new{number}", **options)


def sentence_files(folder: Path, settings: dict[str, Any], pooling: dict[str, Any] | None = None) -> None:
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    if pooling is not None:
        kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
        modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_prompts_and_limits_of_a_folder_are_followed(model_folder: Path) -> None:
    prompts = {"query": "the king: ", "document": "", "passage": "the dog: "}
    sentence_files(model_folder, {"prompts": prompts, "similarity_fn_name": "dot"})
    (model_folder / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    encoder = open_encoder(model_folder)
    how = encoder.settings
    assert (how.query_prompt, how.document_prompt, how.similarity) == ("the king: ", "the dog: ", "dot")
    assert (how.passage_tokens, how.overlap_tokens) == (24, 3)
    model = unmask.load(model_folder)
    np.testing.assert_array_equal(encoder.embed_queries(["a ship"]), model.embed(["the king: a ship"]))
    np.testing.assert_array_equal(encoder.embed_documents(["a ship"]), model.embed(["the dog: a ship"]))
    (model_folder / "sentence_bert_config.json").unlink()
    plain = open_encoder(model_folder, query_prompt="", document_prompt="", similarity="cosine")
    np.testing.assert_array_equal(plain.embed_queries(["a ship"]), model.embed(["a ship"], normalize=True))

    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    sentence_files(model_folder, {"prompts": prompts}, pooling)
    with pytest.raises(ModelError, match="include_prompt"):
        open_encoder(model_folder)
    change_json(model_folder, "tokenizer_config.json", model_max_length=24)
    limited = open_encoder(model_folder, query_prompt="", document_prompt="")
    assert limited.settings.passage_tokens == 24, "where version 6 keeps the limit"
    modules = json.loads((model_folder / "modules.json").read_text())
    modules.append({"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (model_folder / "modules.json").write_text(json.dumps(modules))
    sentence_files(model_folder, {"similarity_fn_name": "dot"})
    np.testing.assert_array_equal(open_encoder(model_folder).embed_queries(["a ship"]), model.embed(["a ship"]))
    for content in ('{"prompts": ["a"]}', '{"similarity_fn_name": "euclidean"}', "[]", "{"):
        (model_folder / "config_sentence_transformers.json").write_text(content)
        with pytest.raises((ModelError, SettingsError), match="config_sentence_transformers.json"):
            open_encoder(model_folder)


def test_approximate_search_gives_exact_scores(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("usearch")
    texts = [f"the {first} sees the {second} at sea" for first in NOUNS for second in NOUNS]
    out = tmp_path / "index"
    monkeypatch.setattr(blocks, "BLOCK_PASSAGES", 10)
    monkeypatch.setattr(index_building, "APPROXIMATE_FROM", 63)
    index = unmask.Index.build(model_folder, texts, out=out)
    assert index.to_dict()["approximate"]
    found, exact = (index.query("the queen sees the ship", top_k=5, exact=exact) for exact in (False, True))
    assert (found.approximate, exact.approximate) == (True, False)
    assert found.queries == exact.queries, "with 64 passages a graph finds all"
    with monkeypatch.context() as patch:
        patch.setattr("unmask.search.blocks.find_spec", lambda name: None)
        assert index.query("the queen sees the ship", top_k=5).queries == exact.queries
        assert "usearch is not installed" in caplog.text
        said: list[str] = []
        again = unmask.Index.build(model_folder, texts, out=tmp_path / "again", note=said.append)
        assert not again.to_dict()["approximate"]
        assert "usearch is not installed" in said[-1]
        with pytest.raises(RunError, match="usearch"):
            unmask.Index.build(model_folder, texts, out=tmp_path / "third", approximate=True)


def test_files_of_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "On cats\nThe cat sleeps all day long, and so does the king.\n\nNo title here.\nAt all.\n"
    )
    (tmp_path / "b.csv").write_text("_id,title,body\n7,A dog,The dog barks.\n8,B,\n")
    files = DocumentFiles([tmp_path / "a.txt", tmp_path / "b.csv"])
    found = [(part.document, Path(part.file).name, part.id, part.title, part.text) for part in files.read()]
    assert found == [
        (0, "a.txt", 1, "On cats", "On cats\nThe cat sleeps all day long, and so does the king."),
        (1, "a.txt", 2, None, "No title here.\nAt all."),
        (2, "b.csv", "7", "A dog", "The dog barks."),
        (3, "b.csv", "8", "B", "B"),
    ]
    assert [part.title_before for part in files.read()] == ["", "", "A dog", ""]
    assert "its id in column '_id', its title in column 'title'" in files.describe()
    (tmp_path / "empty.csv").write_text("id,text\n1,\n2,\n")
    with pytest.raises(CorpusError, match="empty.csv"):
        list(DocumentFiles([tmp_path / "empty.csv"]).read())


WIDE = "The sea is wide, the winter is long, and there are many"
REST = (
    "whales there, and there are many of them in each of the\nseas, be it warm or cold, near or far from here, or wide."
)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("On whales\nThere are many of them.", "On whales"),
        ("# On whales\nThere are many of them.", "On whales"),
        ("Whales (animals)\nThere are many of them, of all sizes.", "Whales (animals)"),
        ("There are many.\nOf them, and of others, too.", None),
        ("鲸鱼很多。\n其中有些很大，有些很小，都生活在海里。", None),
        ("「行こう」\n彼はそう言って、すぐに家を出た。", None),
        ("On whales\nNo.", None),
        ("x" * 200 + "\n" + "word " * 200, None),
        ("* * *\nThere are many of them.", None),
        (f"{WIDE}\n{REST}", None),  # broken to fit a page
        (f"{WIDE}\n\n{REST}", WIDE),
        (f"{WIDE}\n{WIDE} {WIDE} whales.", WIDE),
    ],
)
def test_first_lines_that_look_like_titles(text: str, title: str | None) -> None:
    assert split_title(text)[0] == title


def test_snippets_show_the_place_that_shares_most() -> None:
    passage = "nothing is here. " * 30 + "The old King of\nHungary saw a KING. " + "nothing is here. " * 30
    found = find_snippet(passage, "king hungary", size=60)
    marked = [found.text[begin:end] for begin, end in found.marks]
    assert marked == ["King", "Hungary", "KING"]
    assert len(found.text) <= 60 + 4
    assert found.text.startswith("… ")
    assert found.text.endswith(" …")
    assert "\n" not in found.text
    assert find_snippet("one two three", "four") == find_snippet("one two three", "")
    assert find_snippet("one two three", "TWO").marks == ((4, 7),)
    assert find_snippet("x" * 500, "x", size=50).text == "x" * 50 + " …"
    assert find_snippet("猫は魚を食べる", "魚").marks == ((2, 3),)
    assert find_snippet("the re\u0301sume\u0301 here", "Résumé").marks == ((4, 12),)
    assert find_snippet("the İzmir Donau\u00addampf", "izmir donaudampf").marks == ((4, 9), (10, 20))
