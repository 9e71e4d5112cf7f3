"""Files that cannot be written: one line says so, earlier content is kept, and the run can be resumed.

Damaged files of a run: one line says so, and the way out.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import Main
from tests.conftest import SMALL
from unmask.core.errors import CorpusError, RunError, WriteError
from unmask.core.files import read_object, typed, write_atomically, write_object


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


def test_errors_do_nothing_to_a_terminal(main: Main, tmp_path: Path) -> None:
    clear = "\x1b]2J\x9b2J\rgone\nnew"
    for error in (CorpusError(f"{clear}: no"), WriteError(28, "full", clear), WriteError(f"{clear}: no")):
        assert str(error).startswith("\\x1b]2J\\x9b2J gone new")
    code, _, err = main("prepare", f"{tmp_path}/{clear}.txt", "--out", tmp_path / "data")
    assert (code, err) == (2, f"unmask: {tmp_path}/\\x1b]2J\\x9b2J gone new.txt: no such file\n")
