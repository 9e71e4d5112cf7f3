"""Pipes are copied to files, which are read as often as needed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import unmask
from tests.command_line import PATIENCE
from tests.conftest import make_text
from unmask.core.errors import CorpusError
from unmask.data.data_folder import load_manifest
from unmask.data.documents import Documents
from unmask.data.sources import keep_stream, readable

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


@contextmanager
def pipe(path: Path, content: bytes) -> Iterator[Path]:
    """A named pipe that a thread writes into, once."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    yield path
    writer.join(PATIENCE)


def test_a_pipe_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    with pipe(tmp_path / "a", b"text\n" * 100_000) as name:
        assert keep_stream(name, tmp_path / "pipes" / "1.txt", reuse=False).stat().st_size == 500_000
    with pipe(tmp_path / "b", b"") as name, pytest.raises(CorpusError, match="b: nothing"):
        keep_stream(name, tmp_path / "pipes" / "2.txt", reuse=True)
    assert [path.name for path in (tmp_path / "pipes").iterdir()] == ["1.txt"]
    with pipe(tmp_path / "c", b"") as name:  # a command that goes on, when nothing comes any more
        assert keep_stream(name, tmp_path / "pipes" / "1.txt", reuse=True).stat().st_size == 500_000


def test_a_file_that_is_read_more_than_once(tmp_path: Path) -> None:
    with pipe(tmp_path / "rows.jsonl", b'{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n') as name:
        with readable(name) as file:
            for _ in range(2):
                assert [(text.id, text.text) for text in Documents(file)] == [("a", "x"), ("b", "y")]
        assert not file.exists()
    with (
        pipe(tmp_path / "bad.jsonl", b'{"text": "x"}\n{"text": 1}\n') as name,
        pytest.raises(CorpusError, match=re.escape(f"{name}: column 'text' of row 2 is int")),
        readable(name) as file,
    ):
        list(Documents(file, "text"))
    with readable(tmp_path / "a.txt") as same:
        assert same == tmp_path / "a.txt"


@pytest.mark.slow
def test_a_corpus_of_pipes_as_a_shell_makes_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(150))
    (tmp_path / "b.txt").write_text(make_text(150, seed=1))
    command = shlex.join([sys.executable, "-m", "unmask", "prepare", "--vocab-size", "150", "--workers", "1"])
    shell = ["bash", "-c", f"{command} <(cat a.txt) <(cat b.txt) --out data"]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    manifest = load_manifest(tmp_path / "data")
    assert manifest.settings["sources"] == ["<(pipes/1.txt)", "<(pipes/2.txt)"]
    unmask.prepare([tmp_path / "a.txt", tmp_path / "b.txt"], out=tmp_path / "again", vocab_size=150, workers=1)
    again = load_manifest(tmp_path / "again")
    assert [file.sha256 for file in manifest.train.files] == [file.sha256 for file in again.train.files]
    with pipe(tmp_path / "one", b"") as one, pipe(tmp_path / "two", b"") as two:
        prepared = unmask.prepare([one, two], out=tmp_path / "data", resume=True, vocab_size=150)
        assert prepared.fingerprint == manifest.fingerprint
        assert [name.read_bytes() for name in (one, two)] == [b"", b""], "the data is complete, and no pipe is opened"
