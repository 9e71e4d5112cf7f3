"""Folders that a command claims: what refuses, what is removed, and what is said of a change; and whole folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unmask.claimed import LOCK, ClaimedFolder, check_file
from unmask.errors import DataError, RunError, WriteError
from unmask.files import whole_folder


def folder(root: Path, **options: object) -> ClaimedFolder:
    return ClaimedFolder(**{"root": root, "marker": "run.json", "what": "a run", **options})  # type: ignore[arg-type]


def test_a_folder_that_is_claimed_is_written_only_when_asked(tmp_path: Path) -> None:
    run = folder(tmp_path / "out")
    run.check()
    run.make()
    assert not run.is_claimed
    run.claim("{}")
    assert run.is_claimed
    ways = "go on with resume=True, replace it with overwrite=True, or give another out"
    with pytest.raises(RunError, match=f"out already holds a run: {ways}"):
        run.check()
    run.check(resume=True)
    run.check(overwrite=True)
    with pytest.raises(RunError, match="resume=True and overwrite=True exclude each other"):
        run.check(resume=True, overwrite=True)
    with pytest.raises(RunError, match=r"text\.txt lies in .*out, which overwrite=True would remove; give another out"):
        run.check(overwrite=True, inputs=[tmp_path / "out" / "text.txt"])
    run.check(resume=True, inputs=[tmp_path / "out" / "text.txt"])
    with pytest.raises(DataError, match="already holds data: replace it with overwrite=True, or give another out"):
        folder(tmp_path / "out", what="data", options=("--overwrite",), error=DataError).check()


def test_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    for name in (LOCK, "model.partial", "left.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(RunError, match=r"holds other files \(left\.json, mine\.txt\); give a new or empty folder"):
        folder(tmp_path).check(overwrite=True)
    with pytest.raises(RunError, match=r"other files \(mine\.txt\)"):
        folder(tmp_path, ours=("left.json",)).check()
    with pytest.raises(RunError, match=r"other files \(mine\.txt\)"):
        folder(tmp_path, marker=None, ours=("left.json",), is_shared=False).check()
    for step in ("check", "make"):
        with pytest.raises(RunError, match=r"mine\.txt is a file; out takes a folder"):
            getattr(folder(tmp_path / "mine.txt"), step)()
    run = folder(tmp_path)
    run.claim("{}")
    run.check(resume=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("")
    run.clear(["model", "left.json", "never.json", "run.json"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, "mine.txt"]


def test_the_marker_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder(tmp_path)
    run.claim("{}")
    (tmp_path / "a.json").write_text("")
    gone: list[str] = []
    monkeypatch.setattr(Path, "unlink", lambda path, **_: gone.append(path.name))
    run.clear(["run.json", "a.json"])
    assert gone == ["a.json", "run.json"]

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(RunError, match="what is there cannot be removed .*Permission denied"):
        run.clear(["a.json"])
    assert run.is_claimed


def test_what_changed_is_named_with_the_ways_out(tmp_path: Path) -> None:
    run = folder(tmp_path / "out")
    before = {"training": {"steps": 3, "seed": 0}, "start": None}
    run.check_same(before, {"training": {"steps": 3, "seed": 1}, "start": None}, but_for={"training.seed"})
    with pytest.raises(RunError) as caught:
        run.check_same(before, {"training": {"steps": 4, "seed": 0}, "start": {"from": "x"}}, of="recipe ")
    assert str(caught.value) == (
        f"{tmp_path / 'out'} holds a run with recipe start = None, but now it is {{'from': 'x'}}; a run goes on as it "
        "was begun: change that back, replace it with overwrite=True, or give another out"
    )
    with pytest.raises(RunError, match=r"with training\.steps = 3, but now it is 4; "):
        run.check_same(before, {"training": {"steps": 4, "seed": 0}, "start": None})
    with pytest.raises(RunError, match=r"with names = \['a', .{150,250} \.\.\., but now it is \[\]; a run"):
        run.check_same({"names": ["a"] * 999}, {"names": []})
    with pytest.raises(RunError, match="as it was begun: change that back, or give another out$"):
        folder(tmp_path, options=()).check_same({"a": 1}, {})


def test_a_file(tmp_path: Path) -> None:
    check_file(tmp_path / "a.csv", overwrite=False)
    (tmp_path / "a.csv").write_text("")
    check_file(tmp_path / "a.csv", overwrite=True)
    with pytest.raises(RunError, match=r"a\.csv is already there; replace it with overwrite=True, or give another out"):
        check_file(tmp_path / "a.csv", overwrite=False)
    with pytest.raises(RunError, match="is a folder; out takes a file"):
        check_file(tmp_path, overwrite=True)


def test_a_folder_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    for content in ("old", "new"):
        with whole_folder(target) as partial:
            assert partial == tmp_path / "model.partial"
            (partial / "config.json").write_text(content)
    assert (target / "config.json").read_text() == "new"
    with pytest.raises(KeyError), whole_folder(target, tmp_path / "half"):
        raise KeyError("a defect of ours")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"model: cannot be written \(No space left on device\)"), whole_folder(target):
        (tmp_path / "model.partial" / "config.json").write_text("half")
    assert (target / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
