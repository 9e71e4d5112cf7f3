"""The studio's server: who has access, files outside of the workspace, and the answers of its parts."""

from __future__ import annotations

import io
import json
import math
import mimetypes
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import unmask
from unmask.commands.recipe_files import toml_value
from unmask.core.errors import RunError
from unmask.data.data_folder import Manifest
from unmask.report.pages import STATIC as SHARED

testclient = pytest.importorskip("starlette.testclient", reason="the studio's extra is not installed")

from unmask.web import runs, server, studio  # noqa: E402
from unmask.web.copying import words_of  # noqa: E402
from unmask.web.server import COMPUTED, MOST_BYTES, OPEN, POLICY, STATIC, make_app  # noqa: E402
from unmask.web.things import Library  # noqa: E402

TOKEN, PORT = "a-token", 8642
HOST = f"127.0.0.1:{PORT}"
TEXT = 'The <b>king</b> & his "<script>alert(1)</script>" are here.'


def client(*folders: Path, base: str = f"http://{HOST}") -> Any:
    made = testclient.TestClient(make_app(Library(folders), token=TOKEN, port=PORT), base_url=base)
    made.cookies.set(f"unmask-{PORT}", TOKEN)
    return made


def ask(folder: Path, part: str, **arguments: object) -> Any:
    answer = client(folder).post(f"/api/{part}", json=arguments)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_nothing_is_given_without_the_token(tmp_path: Path) -> None:
    stranger = client(tmp_path)
    stranger.cookies.clear()
    for path in ("/", "/api/things", "/static/app.js", f"{OPEN}another", "/api/live?run=x"):
        assert stranger.get(path).status_code == 401
    assert stranger.post("/api/masks", json={"text": "a"}).status_code == 401
    opened = stranger.get(f"{OPEN}{TOKEN}")
    assert opened.status_code == 200
    assert {"HttpOnly", "SameSite=Strict"} <= set(opened.headers["set-cookie"].split("; "))
    assert stranger.get("/api/things").status_code == 200  # by the cookie, now


def test_other_hosts_and_other_pages_are_refused(tmp_path: Path) -> None:
    assert client(tmp_path, base="http://elsewhere.org:8642").get("/").status_code == 421
    assert client(tmp_path, base="http://127.0.0.1:8000").get("/").status_code == 421
    own, evil = {"origin": f"http://{HOST}"}, {"origin": "http://elsewhere.org"}
    assert client(tmp_path).post("/api/choices", json={}, headers=own).status_code == 200
    assert client(tmp_path).post("/api/choices", json={}, headers=evil).status_code == 403
    assert client(tmp_path).get("/api/things", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    answer = client(tmp_path).get("/api/things", headers=own)
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY


@pytest.mark.parametrize("path", ["../secret", "/etc", "link"])
def test_nothing_outside_of_the_folders_is_touched(path: str, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "link").symlink_to(tmp_path)
    asked: dict[str, dict[str, object]] = {
        "masks": {"text": "a", "source": path},
        "predict": {"models": [path], "text": "a", "hidden": [[0, 1]]},
        "surprise": {"model": path, "text": "a"},
        "corpus": {"data": path},
        "search": {"indexes": [path], "query": "a"},
        "recipes": {"runs": [path]},
        "finetuning": {"run": path},
        "comparison": {"run": path},
        "space": {"file": path},
        "begin": {"what": "start", "name": path, "steps": 1},
        "log": {"run": path},
        "stop": {"run": path},
    }
    for part, arguments in asked.items():
        answer = client(tmp_path / "given").post(f"/api/{part}", json=arguments)
        said = answer.json()
        error = said["results"][0]["error"] if part == "predict" else said["error"]
        assert path in error
        assert answer.status_code == (200 if part == "predict" else 400)
    assert {each.name for each in tmp_path.iterdir()} == {"given"}


def test_runs_outside_of_the_folders_are_gone_for_a_page_that_follows_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("given/run", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n', encoding="utf-8")
    monkeypatch.setattr("starlette.requests.Request.is_disconnected", AsyncMock(side_effect=[False, True]))
    paths = [str(tmp_path / "outside"), str(tmp_path / "given" / "run")]
    events = client(tmp_path / "given").get("/api/live", params={"run": paths}).text.split("\n\n")[:2]
    outside, run = (json.loads(event.removeprefix("data: ")) for event in events)
    assert outside == {"run": paths[0], "state": "gone", "anew": True, "points": []}
    assert (run["run"], run["state"], [each["step"] for each in run["points"]]) == (paths[1], "stopped", [1])


def test_what_is_too_long_or_unknown_is_one_clear_problem(tmp_path: Path) -> None:
    post = client(tmp_path).post
    assert post("/api/masks", content=b" " * (MOST_BYTES + 1)).status_code == 413
    for body, named in (
        ({"text": "a" * 500_000}, "text"),
        ({"text": "a", "rate": 2}, "rate"),
        ({"text": "a", "colour": 1}, "colour"),
        ({"text": " "}, "text"),
    ):
        answer = post("/api/masks", json=body)
        assert (answer.status_code, named in answer.json()["error"]) == (400, True)
    assert post("/api/masks", content=b"[1]").status_code == 400
    assert post("/api/masks", content=b"{").status_code == 400
    assert post("/api/nothing", json={}).status_code == 404
    assert set(COMPUTED) >= {"masks", "predict"}


def test_masks_of_a_text_with_markup_are_those_of_the_units(data_folder: Path) -> None:
    answer = ask(data_folder, "masks", text=TEXT, source=str(data_folder), rate=0.3, epochs=200)
    assert "".join(gap + token for gap, token in answer["tokens"]) == TEXT
    by_name = {each["name"]: each for each in answer["strategies"]}
    assert set(by_name) | set(answer["left_out"]) == set(unmask.masking.settings.STRATEGIES)
    for strategy in by_name.values():
        assert strategy["expected"] == pytest.approx(0.3, abs=1e-6)
        tokens, epochs = len(answer["tokens"]), 200
        assert strategy["mean_rate"] == pytest.approx(0.3, abs=5 * (0.3 * 0.7 * 10 / tokens / epochs) ** 0.5)
        places = {place for begin, size, _ in strategy["units"] for place in range(begin, begin + size)}
        assert {target[0] for target in strategy["targets"]} <= places
    units = {name: len(each["units"]) for name, each in by_name.items()}
    assert len(answer["tokens"]) >= units["random"] > units["whole_word"] > units["span"] > 1
    longer = ask(data_folder, "masks", text=TEXT, source=str(data_folder), rate=0.3, span_p=0.9)
    assert {each["name"]: each for each in longer["strategies"]}["span"] != by_name["span"]


def test_strategies_follow_what_a_run_knows(run: unmask.Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "run")

    def missing() -> dict[str, list[str]]:
        for source in (folder, folder / "data"):
            answer = ask(tmp_path, "masks", text="the cat sees the king at sea .", source=str(source))
            by_name = {each["name"]: each for each in answer["strategies"]}
        chances = {name: {unit[2] for unit in each["units"]} for name, each in by_name.items()}
        assert len(chances["semantic"]) > 1
        assert (len(chances["adaptive"]) == 1) == bool(by_name["adaptive"]["missing"])
        return {name: each["missing"] for name, each in by_name.items() if each["follows"]}

    assert missing() == {"adaptive": ["loss"], "semantic": []}
    losses = torch.rand(run.model.tokenizer.vocab_size)
    (folder / "checkpoints" / "step-00000900").mkdir(parents=True)
    save_file({"scores.loss": losses}, folder / "checkpoints" / "step-00000900" / "scores.safetensors")
    assert missing() == {"adaptive": [], "semantic": []}


def test_texts_are_found_by_their_suffixes_and_new_runs_are_below_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in a command are relative to the folder where the studio was started, as it was there."""
    inside = tmp_path / "inside"
    inside.mkdir()
    for name in ("dev.csv", "inside/dev.csv", "inside/A.TXT", "inside/b.log.gz", "inside/d.py", "inside/f.pdf"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    text, library = inside / "A.TXT", Library([inside / "A.TXT", inside])
    names = {each["name"] for each in Library([inside]).list()}
    assert names == {"inside/dev.csv", "inside/A.TXT", "inside/b.log.gz"}
    assert not client(inside).get("/api/things").json()["is_cut"]
    monkeypatch.setattr(server, "MOST_THINGS", 3)
    assert client(inside).get("/api/things").json()["is_cut"]
    assert library.typed("inside/dev.csv") == inside / "dev.csv"
    assert library.within("first") == inside / "first"
    alone = Library([text])
    assert alone.within(str(text)) == text
    for call, name in ((library.typed, "nosuch.csv"), (library.typed, "dev.csv"), (alone.within, "first")):
        with pytest.raises(RunError, match=name):
            call(name)


def test_models_that_are_named_themselves_open_and_can_be_distinguished(run: unmask.Run, tmp_path: Path) -> None:
    """In a folder `checkpoints` that is not a run's, too, as other trainers write."""
    folders = [tmp_path / "a" / "model", tmp_path / "b" / "model", tmp_path / "checkpoints" / "bert"]
    for folder in folders:
        shutil.copytree(run.folder / "model", folder)
    assert {each["name"] for each in Library(folders).list()} == {"a/model", "b/model", "checkpoints/bert"}
    answer = ask(tmp_path, "predict", models=[str(folders[2])], text="the king", hidden=[[4, 8]])
    assert answer["results"][0].get("masks"), answer
    assert str(folders[2]) in answer["copy"]["command"]


def test_the_copied_command_has_the_mask_of_the_model(run: unmask.Run, tmp_path: Path) -> None:
    """Offsets count characters: an emoji is one."""
    folder = shutil.copytree(run.folder / "model", tmp_path / "model")
    for file in folder.glob("*.json"):
        file.write_text(file.read_text(encoding="utf-8").replace("[MASK]", "<mask>"), encoding="utf-8")
    answer = ask(tmp_path, "predict", models=[str(folder)], text="\U0001f600 the king is here", hidden=[[6, 10]])
    assert "\U0001f600 the <mask> is here" in answer["copy"]["command"]
    assert len(answer["results"][0]["masks"]) == 1


def test_a_checkpoint_has_no_command(run: unmask.Run) -> None:
    (checkpoint,) = (run.folder / "checkpoints").glob("step-00000300")
    arguments = {"predict": {"text": "the king", "hidden": [[4, 8]]}, "grammar": {"pairs": [["the king", "king the"]]}}
    for part, own in arguments.items():
        for model in (checkpoint, run.folder):
            answer = ask(run.folder, part, models=[str(model)], **own)
            assert "error" not in answer["results"][0]
            assert (answer["copy"] is None) == (model == checkpoint)


def test_a_fine_tuning_has_its_confusions_and_mistakes(run: unmask.Run, tmp_path: Path) -> None:
    words = [word for word in ("cat", "dog", "sea", "king") for _ in range(60)]
    rows = [{"text": f"the {word} {n}", "label": str(word in ("cat", "dog"))} for n, word in enumerate(words)]
    out, settings = tmp_path / "tuned", ["finetune.epochs=1"]
    unmask.finetune(run.folder / "model", task="classify", train=rows, out=out, settings=settings)
    answer = ask(tmp_path, "finetuning", run=str(out))
    counts = [row["counts"] for row in answer["confusion"]["rows"]]
    assert sum(map(sum, counts)) == answer["examples"] == 24
    assert answer["confusion"]["names"] == ["false", "true"]
    assert (len(answer["worst"]) > 0) == (counts[0][1] + counts[1][0] > 0)


def test_a_piece_of_prepared_text_is_masked_as_it_was_stored(data_folder: Path, manifest: Manifest) -> None:
    answer = ask(data_folder, "masks", source=str(data_folder), document=0, begin=0)
    assert answer["total"] == len(answer["tokens"])
    last = client(data_folder).post("/api/masks", json={"source": str(data_folder), "document": manifest.train.pieces})
    assert last.status_code == 400


def test_a_corpus_says_what_it_holds_and_why(data_folder: Path, manifest: Manifest, corpus_file: Path) -> None:
    answer = ask(data_folder, "corpus", data=str(data_folder))
    assert answer["splits"]["validation"]["documents"] == manifest.validation.documents
    assert answer["total"] == manifest.validation.pieces
    document = answer["pieces"][0][1]
    both = client(data_folder, corpus_file.parent)
    why = both.post("/api/why", json={"data": str(data_folder), "document": document}).json()
    assert why["reason"].startswith("held out: the hash")
    outside = client(data_folder).post("/api/why", json={"data": str(data_folder), "document": document})
    assert (outside.status_code, str(corpus_file) in outside.json()["error"]) == (400, True)
    cut = ask(data_folder, "tokens", data=str(data_folder), text="the cat")
    assert "".join(token[2] for token in cut["tokens"]) == "thecat"


def test_the_text_of_a_corpus_is_where_its_command_was_given(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative source begins in the working folder; standard input was kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    shutil.copy(corpus_file, tmp_path / "texts" / "a.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(corpus_file.read_bytes()[:2000])))
    unmask.prepare(["texts/a.txt", "-"], out="data", vocab_size=200)
    asked = {"data": str(tmp_path / "data"), "document": 0}
    assert client(tmp_path / "data", tmp_path / "texts").post("/api/why", json=asked).status_code == 200
    outside = client(tmp_path / "data").post("/api/why", json=asked)
    assert (outside.status_code, "a.txt" in outside.json()["error"]) == (400, True)


def test_a_model_that_does_not_fit_is_one_clear_problem(tmp_path: Path) -> None:
    def full(library: Library) -> dict[str, Any]:
        raise MemoryError

    answer = server._answer(Library([tmp_path]), full, b"{}", computes=True)
    assert (answer.status_code, b"memory" in answer.body) == (507, True)


def test_what_nobody_waits_for_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Mock(return_value={"tokens": []})
    monkeypatch.setitem(COMPUTED, "tokens", lambda library: answers())
    assert ask(tmp_path, "tokens") == {"tokens": []}
    monkeypatch.setattr("starlette.requests.Request.is_disconnected", AsyncMock(return_value=True))
    assert client(tmp_path).post("/api/tokens", json={}).content == b""
    assert answers.call_count == 1


def test_maps_of_others_may_lack_neighbours(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"x": [0.5, 1.0], "y": [1, 2], "text": [7, None]}
    pq.write_table(pa.table(columns), tmp_path / "my map.parquet")
    answer = ask(tmp_path, "space", file="my map.parquet")
    assert (answer["x"], answer["y"], answer["texts"], answer["near"]) == ([0.5, 1.0], [1.0, 2.0], ["7", ""], [[], []])
    assert shlex.split(answer["atlas"])[1] == str(tmp_path / "my map.parquet")
    assert "neighbors" not in answer["atlas"]
    empty: dict[str, list[Any]] = {name: [] for name in columns}
    for damaged in ({"x": [0.5, None]}, {"x": ["a", "b"]}, {"neighbors": [[1], [0]]}, empty):
        pq.write_table(pa.table(columns | damaged), tmp_path / "map.parquet")
        refused = client(tmp_path).post("/api/space", json={"file": "map.parquet"})
        assert (refused.status_code, "map.parquet" in refused.json()["error"]) == (400, True)


def test_a_query_is_ranked_in_three_ways(run: unmask.Run, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("the cat sees the king\nthe ship at sea\na dog and a cat\n", encoding="utf-8")
    unmask.Index.build(run.folder / "model", [tmp_path / "texts.txt"], out=tmp_path / "index", documents="line")
    asked: dict[str, Any] = {"indexes": [str(tmp_path / "index")], "query": "the ship at sea"}
    by_name = {each["name"]: each["hits"] for each in ask(tmp_path, "search", **asked, words_weight=1.0)["columns"]}
    assert list(by_name) == ["dense vectors", "words (BM25)", "both"]
    assert by_name["words (BM25)"][0]["snippet"] == "the ship at sea"
    ids = [[hit["id"] for hit in by_name[name]][:2] for name in ("both", "words (BM25)")]
    assert ids[0] == ids[1]


def test_curves_come_as_they_are_written(tmp_path: Path) -> None:
    metrics, tail = tmp_path / "metrics.jsonl", runs.Tail(tmp_path)
    line = {"kind": "train", "tokens": 5, "own": math.nan}  # a callback's figure, which JSON cannot hold
    lines = [json.dumps({**line, "step": step, "loss": 1.0 / step}) + "\n" for step in (10, 20, 30)]
    assert (tail.news() or {})["points"] == []
    (tmp_path / "recipe.toml").write_text("[masking.rate]\nloss_weight = 'inverse'\n", encoding="utf-8")
    metrics.write_text(lines[0] + lines[1] + lines[2][:9], encoding="utf-8")
    news = tail.news()
    assert news["points"] == [
        {"kind": "train", "step": step, "tokens": step / 2, "loss": 1 / step, "weighted": True} for step in (10, 20)
    ]
    assert tail.news() is None  # half a line is none
    metrics.write_text("".join(lines), encoding="utf-8")
    assert [each["tokens"] for each in (tail.news() or {})["points"]] == [15]
    metrics.write_text(lines[0], encoding="utf-8")  # resumed from an earlier step
    again = tail.news()
    assert (again["anew"], [each["tokens"] for each in again["points"]]) == (True, [5])
    shutil.rmtree(tmp_path)
    assert (tail.news() or {})["state"] == "gone"


def test_a_comparison_has_its_runs_before_and_its_verdict_afterwards(tmp_path: Path) -> None:
    root = tmp_path / "compared"
    for name in ("random-0", "my-span-0", "other"):
        (root / "runs" / name).mkdir(parents=True)
    (root / "compare.json").write_text(json.dumps({"recipes": ["random", "own/my-span.toml"]}), encoding="utf-8")
    assert [(each["kind"], each["state"]) for each in Library([root]).list()] == [("comparison", "stopped")]
    begun = ask(tmp_path, "comparison", run=str(root))
    assert [run[1:] for run in begun["runs"]] == [["my-span-0", 1], ["random-0", 0]]
    assert "not finished" in begun["remark"]
    one = {"mean": 1, "interval": [0.5, 1.5], "values": [1]}
    pair = {**one, "first": "random", "second": "my-span", "better": "my-span"}
    judged = {"recipes": {"random": one, "my-span": one}, "differences": [pair], "confidence": 0.97}
    judged |= {"verdict": "it is <b>", "exploratory": False}
    result = {"figure": "loss", "look": 1, **judged, "by_figure": {"loss": judged}, "costs": {}}
    runs = {"random": [{"unigram_entropy": 3.5}], "my-span": [{"failed": "no"}]}
    (root / "result.json").write_text(json.dumps(result | {"runs": runs}), encoding="utf-8")
    answer = ask(tmp_path, "comparison", run=str(root))
    assert (answer["verdict"], answer["entropy"]) == ("It is <b>.", 3.5)
    assert [(each["zero"], [*each["estimates"]]) for each in answer["intervals"]] == [
        (True, ["random - my-span"]), (False, ["random", "my-span"]),
    ]  # fmt: skip
    assert answer["tables"][1][1][0][:3] == ["random - my-span", "loss", "1.000 (0.500 to 1.500)"]


def test_a_command_is_spelled_so_that_options_are_options() -> None:
    options = {"top_k": 3, "from_": None, "resume": True, "set": ["a=1", "b=2"]}
    flags = ["--top-k", "3", "--resume", "--set", "a=1", "--set", "b=2"]
    assert words_of("search query", ["x", "a b"], options) == ["unmask", "search", "query", "x", "a b", *flags]
    assert words_of("search query", ["x", "- a"], options) == ["unmask", "search", "query", *flags, "--", "x", "- a"]


def test_a_run_is_not_started_over_another(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for what, name in (("start", "there"), ("start", "new")):
        answer = client(tmp_path).post("/api/begin", json={"what": what, "name": name, "recipe": "nosuch"})
        assert (answer.status_code, "recipe" in answer.json()["error"]) == (400, True)
    answer = client(tmp_path).post("/api/begin", json={"what": "start", "name": "there", "steps": 1})
    assert (answer.status_code, "there" in answer.json()["error"]) == (400, True)
    prompts = ['a "b" \U0001f600', "é"]
    said = ask(tmp_path, "begin", what="command", name="new", steps=3, rate=0.3, prompts=prompts)
    assert said["copy"]["command"].startswith("unmask pretrain --out ")
    assert "steps=3" in said["copy"]["python"]
    [setting] = [word for word in shlex.split(said["copy"]["command"]) if word.startswith("evaluation.prompts=")]
    assert toml_value(setting.partition("=")[2]) == prompts


def test_a_run_is_started_once_and_gone_if_its_process_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {"what": "start", "name": "studio/first", "steps": 1}
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr("unmask.web.runs.subprocess.Popen", lambda *words, **options: process)
        tail = runs.Tail(Path(ask(tmp_path, "begin", **start)["run"]))
        assert (tail.news() or {})["state"] == "starting"
        again = client(tmp_path).post("/api/begin", json=start)
        assert (again.status_code, "studio/first" in again.json()["error"]) == (400, True)
    assert (tail.news() or {})["state"] == "gone"
    assert ask(tmp_path, "begin", **start)["run"] == str(tail.folder)
    tail.folder.mkdir()
    beside = set(tail.folder.parent.iterdir())
    ask(tail.folder, "begin", what="resume", name=str(tail.folder))
    assert set(tail.folder.parent.iterdir()) == beside, "of a studio on the run itself, the output is in its folder"


def test_scripts_are_scripts_whatever_the_system_calls_them(tmp_path: Path) -> None:
    """As Windows' registry may; with `nosniff`, a browser would not run them."""
    for suffix in (".js", ".css"):
        mimetypes.add_type("text/plain", suffix)
    page = client(tmp_path)
    kinds = [page.get(f"/static/{name}").headers["content-type"] for name in ("app.js", "shared/plot.js", "style.css")]
    assert [kind.partition(";")[0] for kind in kinds] == ["text/javascript", "text/javascript", "text/css"]


def test_the_page_keeps_to_itself() -> None:
    ours = [
        path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html") and path.parent.name != "vendor"
    ] + [SHARED / "look.css", SHARED / "plot.js"]
    text = "".join(path.read_text(encoding="utf-8") for path in ours)
    assert len(ours) > 10
    assert not re.search(r"innerHTML|dangerously|eval\(|https?://|<script>|style=\"", text)


def test_what_a_studio_cannot_start_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="nosuch"):
        unmask.studio([tmp_path / "nosuch"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=str(port)):
            unmask.studio([tmp_path], port=port)
    monkeypatch.setattr(studio, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"unmask\[studio\]"):
        unmask.studio([tmp_path])


def test_in_python_one_path_is_a_folder_and_the_address_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: sockets[0].close())
    visit = unmask.studio(str(tmp_path), no_browser=True)
    assert visit.paths == [str(tmp_path)]
    assert f"{visit.address}open/" in capsys.readouterr().out
