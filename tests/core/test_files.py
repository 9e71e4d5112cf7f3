"""Files that cannot be written or are damaged; folders that a command claims: when it refuses, what it removes, how it
reports a change; and whole folders."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import Main
from tests.conftest import SMALL
from unmask.core.errors import CorpusError, DataError, RunError, UnmaskError, WriteError
from unmask.core.files import (
    LOCK,
    ClaimedFolder,
    locked,
    output_file,
    read_object,
    typed,
    whole_folder,
    write_atomically,
    write_object,
)


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on the disk is full for files of this name, also while they are written under a temporary name."""
    real_open, real_text = Path.open, Path.write_text

    def check(path: Path, mode: str) -> None:
        if path.name.removesuffix(".partial") == name and mode[0] in "wax":
            raise OSError(28, "No space left on device")

    def open_(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        check(self, mode)
        return real_open(self, mode, *arguments, **options)

    def write_text(self: Path, *arguments: Any, **options: Any) -> int:
        check(self, "w")
        return real_text(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_)
    monkeypatch.setattr(Path, "write_text", write_text)


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    write_atomically(file, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"a\.txt: .*No space left on device") as caught:
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert isinstance(caught.value, RunError)
    assert isinstance(caught.value, OSError), "callers that know a better way out catch it as one"
    assert caught.value.errno == 28
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(WriteError("a text")) == "a text"


@pytest.mark.parametrize("name", ["recipe.toml", "tokenizer.json", "metrics.jsonl", "report.html"])
def test_a_run_goes_on_when_there_is_room_again(corpus_file: Path, tmp_path: Path, main: Main, name: str) -> None:
    out = tmp_path / "run"
    settings = [part for setting in SMALL for part in ("--set", setting)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        fill_disk(monkeypatch, name)
        code, _, err = main("pretrain", corpus_file, "--out", out, "--steps", 2, "--vocab-size", 200, *settings)
    assert code == 2, err
    assert "No space left on device" in err.splitlines()[-1]
    run = unmask.pretrain([corpus_file], out=out, steps=2, vocab_size=200, settings=SMALL, resume=True)
    assert run.summary["steps"] == 2


def test_a_state_that_has_changed_is_not_read(tmp_path: Path) -> None:
    file, content = tmp_path / "a.json", {"loss": 0.1, "by_rate": {0.5: (1, None)}}
    write_object(file, content)
    assert read_object(file, "", is_sealed=True) == {"loss": 0.1, "by_rate": {"0.5": [1, None]}}
    for old, new in (("0.1", "0.2"), ("loss", "lost"), ("sha256", "sha257")):
        write_object(file, content)
        file.write_text(file.read_text().replace(old, new))
        with pytest.raises(RunError, match=r"a\.json: damaged .*make it anew"):
            read_object(file, "make it anew", is_sealed=True)


def test_paths_as_they_are_typed() -> None:
    assert [typed(path) for path in ("a/b.txt", "my runs/a", Path("-x"), "it's", "$(x)")] == [
        "a/b.txt", "'my runs/a'", "./-x", "'it'\"'\"'s'", "'$(x)'"
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as on_windows:
        on_windows.setattr(os, "name", "nt")
        shown = [typed(path) for path in ("C:\\a\\b.txt", "C:\\my runs\\a")]
    assert shown == ["C:\\a\\b.txt", '"C:\\my runs\\a"']


def test_errors_do_nothing_to_a_terminal(main: Main, tmp_path: Path) -> None:
    clear = "\x1b]2J\x9b2J\rgone\nnew"
    for error in (CorpusError(f"{clear}: no"), WriteError(28, "full", clear), WriteError(f"{clear}: no")):
        assert str(error).startswith("\\x1b]2J\\x9b2J gone new")
    code, _, err = main("prepare", f"{tmp_path}/{clear}.txt", "--out", tmp_path / "data")
    assert (code, err) == (2, f"unmask: {tmp_path}/\\x1b]2J\\x9b2J gone new.txt: no such file\n")


def folder(root: Path, **options: object) -> ClaimedFolder:
    return ClaimedFolder(**{"root": root, "marker": "run.json", "what": "a run", **options})  # type: ignore[arg-type]


def test_what_was_overwritten_is_back_if_the_new_work_is_refused(tmp_path: Path) -> None:
    out = folder(tmp_path / "out", ours=("run.json", "data", "model"), is_shared=True)

    def held() -> dict[str, str]:
        return {path.name: path.read_text() for path in out.root.rglob("*") if path.is_file() and path.name[0] != "."}

    (out.root / "data").mkdir(parents=True)
    (out.root / "data" / "old").write_text("old")
    (out.root / "notes.txt").write_text("a user's")
    out.claim("old")
    before = held()
    with out.entered(overwrite=True):
        assert held() == before, "put aside"
        assert {path.name for path in out.root.glob("[!.]*")} == {"notes.txt"}
        out.claim("new")
        (out.root / "model").write_text("new")
        out.clear(out.ours)  # it was refused
    assert held() == before
    with out.entered(overwrite=True):
        shutil.copytree(out.root, tmp_path / "killed")  # before it has claimed the folder
        assert not (out.root / "model").exists()
        out.claim("new")
    assert held() == {"run.json": "new", "notes.txt": "a user's"}
    killed = replace(out, root=tmp_path / "killed")
    with pytest.raises(RunError, match="already holds a run"), killed.entered():
        pass
    out = killed
    assert held() == before


def test_a_folder_that_is_claimed_is_written_only_when_asked(tmp_path: Path) -> None:
    run = folder(tmp_path / "out")
    run.check()
    run.root.mkdir()
    assert not run.is_claimed
    run.claim("{}")
    assert run.is_claimed
    with pytest.raises(RunError, match="out already holds a run") as caught:
        run.check()
    assert caught.value.options == ("resume", "overwrite", "out")
    run.check(resume=True)
    run.check(overwrite=True)
    with pytest.raises(RunError, match="exclude each other"):
        run.check(resume=True, overwrite=True)
    with pytest.raises(RunError, match=r"text\.txt is an input inside .*out"):
        run.check(overwrite=True, inputs=[tmp_path / "out" / "text.txt"])
    run.check(resume=True, inputs=[tmp_path / "out" / "text.txt"])
    with pytest.raises(DataError, match="already holds data"):
        folder(tmp_path / "out", what="data", options=("overwrite",), error=DataError).check()


def test_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    for name in (LOCK, "model.partial", "left.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(RunError, match=r"left\.json, mine\.txt"):
        folder(tmp_path).check(overwrite=True)
    with pytest.raises(RunError, match=r"left\.json, mine\.txt"):
        folder(tmp_path, ours=("left.json",)).check()
    for options in ({"early": ("left.json",)}, {"theirs": ("left.json",)}):
        with pytest.raises(RunError, match=r"\(mine\.txt\)"):
            folder(tmp_path, **options).check()
    with pytest.raises(RunError, match=r"\(mine\.txt\)"):
        folder(tmp_path, ours=("left.json",)).check(overwrite=True)
    with pytest.raises(RunError, match=r"mine\.txt"):
        folder(tmp_path, marker=None, ours=("left.json",), is_shared=False).check()
    with pytest.raises(RunError, match=r"mine\.txt is a file"):
        folder(tmp_path / "mine.txt").check()
    with pytest.raises(RunError, match=r"mine\.txt is a file"), folder(tmp_path / "mine.txt").held():
        pass
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
    with pytest.raises(RunError, match="Permission denied"):
        run.clear(["a.json"])
    assert run.is_claimed


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
    with pytest.raises(WriteError, match=r"model: .*No space left on device"), whole_folder(target):
        (tmp_path / "model.partial" / "config.json").write_text("half")
    assert (target / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


HOLDS = """
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unmask.core.files import ClaimedFolder, locked
with ExitStack() as held:
    for name in sys.argv[1:]:
        root = Path(name)
        kind = locked(root) if root.suffix else ClaimedFolder(root=root, marker="x", what="a run").held()
        held.enter_context(kind)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_writes_at_a_time(corpus_file: Path, data_folder: Path, model_folder: Path, tmp_path: Path) -> None:
    """Every command that writes names the process that holds the lock; once that is killed, the command runs."""
    names = ("run", "data", "vectors.parquet", "lexicon.safetensors")
    command = [sys.executable, "-c", HOLDS, *(str(tmp_path / name) for name in names)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        verbs: tuple[tuple[str, Callable[..., object]], ...] = (
            ("run", lambda out: unmask.pretrain(data_folder, out=out, steps=1, settings=SMALL, resume=True)),
            ("data", lambda out: unmask.prepare(corpus_file, out=out, vocab_size=200, overwrite=True)),
            ("vectors.parquet", lambda out: unmask.embed(model_folder, corpus_file, out=out, long_texts="truncate")),
            ("lexicon.safetensors", lambda out: unmask.lexicon(data_folder, out=out)),
        )
        since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
        for name, verb in verbs:
            message = rf"{name}: another process \({other.pid}, {since}\) is writing here"
            with pytest.raises(UnmaskError, match=message):
                verb(tmp_path / name)
        other.kill()
        other.wait()
    for name, verb in verbs[1:]:
        verb(tmp_path / name)
        assert (tmp_path / name).exists()


def test_a_file_is_checked_again_once_no_other_process_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "v.npy"
    with output_file(out, overwrite=False), pytest.raises(RunError, match="another thread"):
        output_file(out, overwrite=True).__enter__()

    @contextmanager
    def after_another(out: Path) -> Iterator[None]:
        out.write_text("theirs")
        yield

    monkeypatch.setattr("unmask.core.files.locked", after_another)
    with pytest.raises(RunError, match="already exists"), output_file(out, overwrite=False):
        pass
    with output_file(out, overwrite=True):
        assert out.read_text() == "theirs"


def test_a_lock_lies_beside_its_file_and_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever TMPDIR is, and whatever link another user has planted there."""
    out, victim = tmp_path / "vectors.npy", tmp_path / "victim.txt"
    victim.write_text("precious")
    with locked(out):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
        with pytest.raises(RunError, match="another thread of this process"), locked(out):
            pass
    (tmp_path / ".vectors.npy.lock.json.partial").symlink_to(victim)
    with locked(out):
        assert (tmp_path / ".vectors.npy.lock.json").is_file()
    (tmp_path / ".vectors.npy.lock").symlink_to(victim)
    with pytest.raises(WriteError, match="cannot be written"), locked(out):
        pass
    (tmp_path / ".vectors.npy.lock").unlink()
    write_atomically(out, b"new")
    assert victim.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"vectors.npy", "victim.txt"}, "nothing is left beside it"
