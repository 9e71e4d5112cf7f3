"""Pipes are kept as files; what else stands in the place of a file is named."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import unmask
from tests.command_line import PATIENCE, Main
from tests.conftest import make_text
from unmask.commands import cli
from unmask.core.errors import CorpusError, ModelError
from unmask.data.data_folder import load_manifest
from unmask.data.documents import DocumentColumns, Documents
from unmask.data.sources import find_sources, is_stream, keep_stream, kept_source, names_to_keep, readable
from unmask.measure.questions import read_pairs
from unmask.tasks.files import read_labelled
from unmask.tasks.predict import TASKS
from unmask.tasks.settings import Columns

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


@contextmanager
def pipe(path: Path, content: bytes) -> Iterator[Path]:
    """A named pipe that somebody writes into, once."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    yield path
    writer.join(PATIENCE)


def odd_things(folder: Path) -> dict[Path, str]:
    """What may stand where a file is expected, and what is said of it."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "a.sock"))
    (folder / "link.txt").symlink_to(folder / "nowhere")
    (folder / "a.txt").write_text("text")
    os.mkfifo(folder / "pipe.txt")
    return {
        folder / "a.sock": "this is a socket, not a file",
        folder / "link.txt": "this link leads to no file",
        folder / "a.txt" / "b.txt": "no such file: a part of this path is no folder",
        folder / "no.txt": "no such file",
        folder / "pipe.txt": "this is a pipe, which can be read only once, not a file",
        folder / ("a" * 300): "",
        Path("/dev/null"): "this is a device, not a file",
        Path("/dev/zero"): "this is a device, not a file",
    }


def test_what_stands_in_the_place_of_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # sockets have short names
    for path, said in odd_things(Path()).items():
        for read in (find_sources, read_pairs, partial(read_labelled, task=TASKS["answer"], columns=Columns())):
            with pytest.raises(CorpusError, match=re.escape(f"{path}: {said}")):
                read([path] if read is find_sources else path)  # type: ignore[operator]
        with pytest.raises(ModelError, match=re.escape(f"{path}: ")) as caught:
            unmask.load(path)
        assert said[:10].replace("no such fi", "no such fo") in str(caught.value)


def test_arguments_of_commands_are_paths(main: Main, tmp_path: Path) -> None:
    for name in ("some words here", "a" * 300):
        code, _, err = main("prepare", name, "--out", tmp_path / "data")
        assert (code, err.startswith(f"unmask: {name}")) == (2, True), err
    code, _, err = main("masks", "x", "--tokenizer", "/dev/null")
    assert (code, err.splitlines()[-1].partition(";")[0]) == (2, "unmask: /dev/null: this is a device, not a file")
    code, _, err = main("pretrain", "--recipe", "/dev/null", "--out", tmp_path / "run")
    assert (code, err.partition(";")[0]) == (2, "unmask: /dev/null: this is a device, not a file")


def test_what_the_system_refuses_is_one_line(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise PermissionError(13, "Permission denied", "/closed/x")

    monkeypatch.setattr(cli, "read_stdin", refuse)
    code, _, err = main("fill", "model", "-")
    assert code == 2
    assert err == "unmask: /closed/x: Permission denied; mind its name, and the rights and room that there are\n"


def test_names_of_streams(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.v1.JSONL.gz")
    os.mkfifo(tmp_path / "other.pipe")
    names = ["-", tmp_path / "rows.v1.JSONL.gz", "a.txt", str(tmp_path / "other.pipe")]
    assert [is_stream(name) for name in names] == [True, True, False, True]
    kept = names_to_keep(names)
    assert kept == ["-", "<(pipes/1.jsonl.gz)", "a.txt", "<(pipes/2.txt)"]
    assert [kept_source(Path("data"), name) for name in kept] == [
        "data/stdin.txt", "data/pipes/1.jsonl.gz", "a.txt", "data/pipes/2.txt"
    ]  # fmt: skip


def test_a_pipe_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    with pipe(tmp_path / "a", b"text\n" * 100_000) as name:
        assert keep_stream(name, tmp_path / "kept" / "1.txt", kept=False).stat().st_size == 500_000
    with pipe(tmp_path / "b", b"") as name, pytest.raises(CorpusError, match="b: nothing came out of this pipe"):
        keep_stream(name, tmp_path / "kept" / "2.txt", kept=True)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["1.txt"]
    with pipe(tmp_path / "c", b"") as name:  # a command that goes on, when nothing comes any more
        assert keep_stream(name, tmp_path / "kept" / "1.txt", kept=True).stat().st_size == 500_000


def test_a_file_that_is_read_more_than_once(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"id": f"n{n}", "text": f"text {n}"}) + "\n" for n in range(3))
    with pipe(tmp_path / "rows.jsonl", rows.encode()) as name, readable(name) as file:
        texts = Documents(file)
        assert [(text.id, text.text) for text in texts] == [(f"n{n}", f"text {n}") for n in range(3)]
        assert len(list(texts)) == 3
        assert file.is_file()
    assert not file.exists()
    with readable(tmp_path / "a.txt") as same:
        assert same == tmp_path / "a.txt"
    with (
        pipe(tmp_path / "bad.jsonl", b'{"text": "x"}\n{"text": 1}\n') as name,
        pytest.raises(CorpusError, match=re.escape(f"{name}: column 'text' of row 2 is int")),
        readable(name) as file,
    ):
        list(Documents(file, DocumentColumns("text")))


@pytest.mark.slow
def test_a_corpus_of_pipes_as_a_shell_makes_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(150))
    (tmp_path / "b.txt").write_text(make_text(150, seed=1))
    command = shlex.join([sys.executable, "-m", "unmask", "prepare", "--vocab-size", "150", "--workers", "1"])
    done = subprocess.run(
        ["bash", "-c", f"{command} <(cat a.txt) <(cat b.txt) --out data"],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = load_manifest(tmp_path / "data")
    assert found.settings["sources"] == ["<(pipes/1.txt)", "<(pipes/2.txt)"]
    unmask.prepare([tmp_path / "a.txt", tmp_path / "b.txt"], out=tmp_path / "again", vocab_size=150, workers=1)
    again = load_manifest(tmp_path / "again")
    assert [file.sha256 for file in found.train.files] == [file.sha256 for file in again.train.files]
    with pipe(tmp_path / "one", b"") as one, pipe(tmp_path / "two", b"") as two:
        kept = unmask.prepare([one, two], out=tmp_path / "data", resume=True, vocab_size=150)
        assert kept.fingerprint == found.fingerprint
        assert [name.read_bytes() for name in (one, two)] == [b"", b""], "whole data is kept, and no pipe is opened"
