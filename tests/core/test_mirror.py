"""Outputs at addresses, in a file system of memory; tests/test_bucket.py has a real server."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unmask
from tests.command_line import Main
from tests.elsewhere import Elsewhere
from unmask.core import remote as mirror_module
from unmask.core.errors import RunError
from unmask.core.files import ClaimedFolder
from unmask.core.remote import Mirror, cache, staged, staged_file

ADDRESS = "elsewhere://bucket/runs/a"


def claim(root: Path) -> ClaimedFolder:
    ours = ("checkpoints", "a.txt", "summary.json")
    return ClaimedFolder(root=root, marker="recipe.toml", what="a run", ours=ours)


def there(server: Elsewhere) -> dict[str, bytes]:
    found = server.find("/bucket/runs/a", detail=False)
    return {name.removeprefix("/bucket/runs/a/"): server.cat_file(name) for name in found}


def checkpoint(root: Path, step: int) -> None:
    folder = root / "checkpoints" / f"step-{step}"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "state.json"):
        (folder / name).write_text(f"{name} {step}")


def mirrored(tmp_path: Path) -> Mirror:
    folder = tmp_path / "out" / "a"
    folder.mkdir(parents=True, exist_ok=True)
    return Mirror(ADDRESS, folder)


def test_what_says_that_others_are_whole_is_sent_last(server: Elsewhere, tmp_path: Path) -> None:
    mirror = mirrored(tmp_path)
    root = mirror.folder
    for name in ("recipe.toml", "summary.json", "a.txt", "metrics.jsonl", "data/train/0.arrow", "data/manifest.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for name in ("a.txt.partial", ".lock", ".lock.json", "checkpoints/partial/model.safetensors"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not whole")
    checkpoint(root, 1)
    (root / "checkpoints" / "step-2-optimizer-2-of-2.safetensors").write_text("a part of the next one")
    mirror.send()
    order = [name.removeprefix("/bucket/runs/a/") for name in server.sent]
    assert set(order) == set(there(server))
    ordinary = {"a.txt", "metrics.jsonl", "data/train/0.arrow", "checkpoints/step-1/model.safetensors"}
    assert set(order[:4]) == ordinary
    assert order[4:] == ["data/manifest.json", "checkpoints/step-1/state.json", "recipe.toml", "summary.json"]


def test_nothing_is_sent_twice_and_what_is_gone_is_removed(
    server: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = mirrored(tmp_path)
    (mirror.folder / "a.txt").write_text("some text")
    checkpoint(mirror.folder, 1)
    mirror.send()
    server.sent.clear()
    (mirror.folder / "a.txt").write_text("some text")  # the same, at another time
    (mirror.folder / "metrics.jsonl").write_text("{}\n")
    mirror.send()
    again = Mirror(ADDRESS, mirror.folder)
    assert again.is_as_left(again.there())
    again.send()
    assert server.sent == [], "what grows waits for something that others wait for"
    checkpoint(mirror.folder, 2)
    for name in ("state.json", "model.safetensors"):
        (mirror.folder / "checkpoints" / "step-1" / name).unlink()
    mirror.send()
    assert set(there(server)) == {
        "a.txt", "metrics.jsonl", "checkpoints/step-2/model.safetensors", "checkpoints/step-2/state.json",
    }  # fmt: skip
    checkpoint(mirror.folder, 3)

    def gone() -> None:
        (mirror.folder / "checkpoints" / "step-3" / "state.json").unlink(missing_ok=True)

    monkeypatch.setattr(Elsewhere, "before_put", staticmethod(gone))
    mirror.send()
    assert "checkpoints/step-3/state.json" not in there(server), "what goes while it is to be sent is not missed"
    (mirror.folder / "checkpoints" / "step-3" / "model.safetensors").unlink()
    (mirror.folder / "metrics.jsonl").write_text("{}\n{}\n")
    mirror.send(final=True)
    assert there(server)["metrics.jsonl"] == b"{}\n{}\n"
    assert len(there(server)) == 4


def test_work_goes_on_elsewhere_from_what_was_sent(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    with staged(ADDRESS, claim) as root:
        (root / "recipe.toml").write_text("begun")
        checkpoint(root, 1)
    assert ".lock.json" not in there(server)
    for resume in (True, False):
        if not resume:
            with pytest.raises(RunError, match=rf"{ADDRESS} already holds a run: go on with resume=True, replace it"):
                staged(ADDRESS, claim).__enter__()
            continue
        with staged(ADDRESS, claim, resume=True) as root:
            assert (root / "checkpoints" / "step-1" / "state.json").read_text() == "state.json 1"
            checkpoint(root, 2)
    here = cache()
    monkeypatch.setenv("UNMASK_CACHE", str(here / "of another machine"))
    server.fetched.clear()
    with staged(ADDRESS, claim, resume=True, wanted=lambda names: lambda name: "step-1" not in name) as root:
        assert sorted(path.name for path in (root / "checkpoints").iterdir()) == ["step-2"]
        checkpoint(root, 3)
    assert "checkpoints/step-1/state.json" in there(server), "what was not fetched is not removed"
    monkeypatch.setenv("UNMASK_CACHE", str(here))
    with staged(ADDRESS, claim, resume=True) as root:
        names = sorted(path.name for path in (root / "checkpoints").iterdir())
        assert names == ["step-1", "step-2", "step-3"], "the address counts, where somebody else has gone on"
    monkeypatch.setattr(mirror_module, "PAUSE", 60.0)
    with staged(ADDRESS, claim, resume=True) as root:
        shutil.rmtree(root / "checkpoints" / "step-1")
    assert not [name for name in there(server) if "step-1" in name], "what goes before the first look is removed there"
    with staged(ADDRESS, claim, overwrite=True) as root:
        assert not (root / "checkpoints").exists()
        assert list(there(server)) == [".lock.json"]
    assert there(server) == {}


def test_files_of_others_stay(server: Elsewhere) -> None:
    server.pipe("/bucket/runs/a/thesis.tex", b"mine")
    for options in ({}, {"overwrite": True}):
        with pytest.raises(RunError, match=rf"{ADDRESS} holds other files \(thesis\.tex\); give a new or empty folder"):
            staged(ADDRESS, claim, **options).__enter__()
    assert there(server) == {"thesis.tex": b"mine"}


def test_a_server_that_is_away_for_a_while(
    server: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mirror_module, "PAUSE", 0.001)
    come_back = threading.Event()
    failed = threading.Event()

    def away() -> None:
        if not come_back.is_set():
            failed.set()
            raise OSError("gone away")

    with staged(ADDRESS, claim) as root:
        monkeypatch.setattr(Elsewhere, "before_put", staticmethod(away))
        (root / "a.txt").write_text("some text")
        assert failed.wait(20)
        come_back.set()
    assert there(server) == {"a.txt": b"some text"}
    assert f"a.txt: it was not to be done (gone away); it is kept in {root}, and sent later" in caplog.text


def test_a_server_that_stays_away(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise OSError("gone away")

    def work() -> None:
        with staged(ADDRESS, claim) as root:
            monkeypatch.setattr(Elsewhere, "before_put", staticmethod(away))
            checkpoint(root, 1)

    with pytest.raises(RunError, match=r"step-1/model\.safetensors: it was not to be done in 7 tries \(gone away\)"):
        work()
    monkeypatch.setattr(Elsewhere, "before_put", staticmethod(lambda: None))
    with staged(ADDRESS, claim, resume=True) as root:
        assert (root / "checkpoints" / "step-1" / "state.json").is_file(), "nothing that was made is lost"
    assert set(there(server)) == {f"checkpoints/step-1/{name}" for name in ("model.safetensors", "state.json")}


def test_where_nothing_can_be_written(server: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found out before any work."""

    def closed(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(Elsewhere, "pipe_file", closed)
    with pytest.raises(RunError, match=rf"{ADDRESS}: cannot be written: PermissionError: Access Denied"):
        staged(ADDRESS, claim).__enter__()


def test_who_was_there(server: Elsewhere, caplog: pytest.LogCaptureFixture) -> None:
    server.pipe("/bucket/runs/a/.lock.json", json.dumps({"host": "elsewhere"}).encode())
    with staged(ADDRESS, claim) as root:
        with pytest.raises(RunError, match=rf"{ADDRESS}: another process \(\d+, since .*\) is writing here"):
            staged(ADDRESS, claim).__enter__()
        assert list(root.iterdir()) == []
    assert 'was killed, or has not ended yet ({"host": "elsewhere"})' in caplog.text


def test_a_file_at_an_address(server: Elsewhere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(path: Path) -> None:
        np.save(path, np.arange(3))

    def send(*, overwrite: bool = False) -> None:
        with staged_file("elsewhere://bucket/v.npy", overwrite=overwrite) as path:
            write(path)

    with staged_file(tmp_path / "v.npy", overwrite=False) as path:
        assert path == tmp_path / "v.npy"
    send()
    assert server.cat_file("/bucket/v.npy")[:6] == b"\x93NUMPY"
    with pytest.raises(RunError, match=r"elsewhere://bucket/v\.npy is already there; replace it with overwrite=True"):
        send()

    def away() -> None:
        raise OSError("gone away")

    monkeypatch.setattr(Elsewhere, "before_put", staticmethod(away))
    with pytest.raises(RunError, match=r"it is kept as .*v\.npy, since it was not to be sent in 7 tries \(gone away"):
        send(overwrite=True)


def test_what_is_not_written_to_addresses(main: Main) -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: unmask.export("model", out="s3://bucket/x"), "an export"),
        (lambda: unmask.lexicon("data", out="s3://bucket/x"), "a lexicon"),
        (lambda: unmask.compare(["tiny", "mini"], data="d", out="s3://bucket/x", minutes=1), "a comparison"),
    ]
    for call, what in calls:
        with pytest.raises(RunError, match=rf"s3://bucket/x: {what} is not written to an address; give a folder or a"):
            call()
    code, _, errors = main("prepare", "-", "--out", "nowhere://bucket/x")
    assert code == 2
    assert "addresses of this kind cannot be" in " ".join(errors.split())
