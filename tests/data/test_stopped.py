"""Stopped at any moment, a preparation goes on, ends at the same files, and leaves nothing over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command_line import PATIENCE
from tests.conftest import make_text
from tests.data.test_shards import SMALL, contents
from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.data.data_folder import Manifest
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings

# Many small tasks of several shards each; no guard of `__main__` is needed.
# What a shell starts in the background ignores interrupts, and so do its children, unless they say otherwise.
SCRIPT = """
import signal
import sys
from pathlib import Path
from unmask.data.settings import CorpusSettings
from unmask.data.prepare import prepare
from unmask.tokenizer.settings import TokenizerSettings
signal.signal(signal.SIGINT, signal.default_int_handler)
prepare(
    sys.argv[1:2], Path(sys.argv[2]), corpus=CorpusSettings(), tokenizer=TokenizerSettings(vocab_size=200),
    workers=2, resume=True, size_bytes=2500, task_bytes=6000, note=print,
)
"""
SIZES = {"size_bytes": 2500, "task_bytes": 6000}


def start(source: Path | str, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(source), str(out)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def num_done(out: Path) -> int:
    return len(list((out / "parts").glob("shards-*.npz")))


def wait_for_tasks(out: Path, least: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and num_done(out) < least:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(make_text(3000, seed=3))
    return path


@pytest.fixture(scope="module")
def whole(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What comes out undisturbed."""
    return undisturbed(text_file, tmp_path_factory.mktemp("whole") / "data")


def undisturbed(source: Path, out: Path) -> dict[str, bytes]:
    prepare([source], out, corpus=CorpusSettings(), tokenizer=SMALL, workers=1, **SIZES)
    return contents(out)


def test_after_a_kill_the_files_are_the_same(text_file: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    num_tasks = len({name.split("-")[0] for name in whole if name.startswith("train/")})
    out = tmp_path / "out"
    process = start(text_file, out)
    wait_for_tasks(out, num_tasks // 3, process)
    kill(process)
    assert process.returncode == -signal.SIGKILL
    (out / "tokenizer" / "tokenizer.json").write_text("{}")  # trained again, it is the same
    last = start(text_file, out)
    output, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors
    assert output.startswith("going on: ")
    assert output.split()[4] == f"{num_tasks:,}"
    assert contents(out) == whole


def test_a_source_that_changed_is_read_anew(text_file: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "text.txt", tmp_path / "out"
    source.write_bytes(text_file.read_bytes())
    process = start(source, out)
    wait_for_tasks(out, 10, process)
    kill(process)
    source.write_text(make_text(500, seed=4))
    output, _ = start(source, out).communicate(timeout=PATIENCE)
    assert "the settings or the files have changed since the last try" in output
    assert contents(out) == undisturbed(source, tmp_path / "whole")


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(text_file: Path, tmp_path: Path, signum: int) -> None:
    process = start(text_file, tmp_path / "out")
    wait_for_tasks(tmp_path / "out", 3, process)
    workers = children(process)
    assert len(workers) >= 2
    process.send_signal(signum)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-signum if signum != signal.SIGINT else process.returncode) != 0
    assert errors.count("Traceback") == (signum == signal.SIGINT), "of the caller alone"
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_resume_and_overwrite(corpus_file: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "a.txt", tmp_path / "out"
    source.write_bytes(corpus_file.read_bytes())
    notes: list[str] = []

    def run(vocab_size: int = 200, **options: bool) -> Manifest:
        tokenizer = SMALL.model_copy(update={"vocab_size": vocab_size})
        return prepare([source], out, corpus=CorpusSettings(), tokenizer=tokenizer, note=notes.append, **options)

    first = run(resume=True)
    made = (out / "train" / "00000-00000.arrow").stat().st_mtime_ns
    assert run(resume=True) == first
    assert notes == [f"{out} is complete already"]
    assert (out / "train" / "00000-00000.arrow").stat().st_mtime_ns == made
    with pytest.raises(DataError, match=r"tokenizer\.vocab_size = 200, but now it is 150"):
        run(vocab_size=150, resume=True)
    with pytest.raises(SettingsError, match="overwrite"):
        run(resume=True, overwrite=True)
    assert run(overwrite=True) == first
    assert (out / "train" / "00000-00000.arrow").stat().st_mtime_ns > made
    source.write_text(make_text(100))
    with pytest.raises(DataError, match=r"a\.txt"):
        run(resume=True)
    assert run(overwrite=True).documents == 100


def test_a_mistake_in_overwriting_loses_nothing(corpus_file: Path, tmp_path: Path) -> None:
    before = undisturbed(corpus_file, tmp_path / "out")
    with pytest.raises(CorpusError):
        prepare(["none"], tmp_path / "out", corpus=CorpusSettings(), tokenizer=SMALL, overwrite=True)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["notes.md", "train/mine.txt", "validation/0.arrow"])
def test_other_files_are_not_touched(corpus_file: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    (tmp_path / "tokenizer").mkdir()
    for out in (tmp_path, tmp_path / name):  # a folder with other files, and a file
        with pytest.raises(DataError, match=name):
            prepare([corpus_file], out, corpus=CorpusSettings(), tokenizer=SMALL)
    assert (tmp_path / name).read_text() == "mine"
