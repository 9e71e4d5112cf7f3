"""Stopped at any moment, a preparation goes on, ends at the same files, and leaves nothing over."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import PATIENCE
from tests.conftest import make_text
from tests.data.corpora import SMALL, contents
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
from unmask.tokenizer.trainers import TokenizerSettings
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


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def start_tasks(source: Path, out: Path, number: int) -> subprocess.Popen[str]:
    """A process in the middle of its work: some tasks are done."""
    process = start(source, out)
    wait_until(lambda: process.poll() is not None or len(list((out / "parts").glob("shards-*.npz"))) >= number)
    return process


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(make_text(3000, seed=3))
    return path


def undisturbed(source: Path, out: Path) -> dict[str, bytes]:
    prepare([source], out, corpus=CorpusSettings(), tokenizer=SMALL, workers=1, **SIZES)
    return contents(out)


def test_after_a_kill_the_files_are_the_same(text_file: Path, tmp_path: Path) -> None:
    """And a source that has changed meanwhile is read anew."""
    source, out = tmp_path / "text.txt", tmp_path / "out"
    source.write_bytes(text_file.read_bytes())
    whole = undisturbed(source, tmp_path / "whole")
    num_tasks = len({name.split("-")[0] for name in whole if name.startswith("train/")})
    process = start_tasks(source, out, num_tasks // 3)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    shutil.copytree(out, tmp_path / "changed")
    (out / "tokenizer" / "tokenizer.json").write_text("{}")  # trained again, it is the same
    output, errors = start(source, out).communicate(timeout=PATIENCE)
    assert output.startswith("going on: "), errors
    assert output.split()[4] == f"{num_tasks:,}"
    assert contents(out) == whole
    source.write_text(make_text(500, seed=4))
    output, _ = start(source, tmp_path / "changed").communicate(timeout=PATIENCE)
    assert "the settings or the files have changed since the last try" in output
    assert contents(tmp_path / "changed") == undisturbed(source, tmp_path / "other")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(text_file: Path, tmp_path: Path, signum: int) -> None:
    process = start_tasks(text_file, tmp_path / "out", 3)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) >= 2
    process.send_signal(signum)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-signum if signum != signal.SIGINT else process.returncode) != 0
    assert errors.count("Traceback") == (signum == signal.SIGINT), "of the caller alone"
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers))


def test_resume_and_overwrite(corpus_file: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "a.txt", tmp_path / "out"
    source.write_bytes(corpus_file.read_bytes())
    notes: list[str] = []

    def run(vocab_size: int = 200, **options: bool) -> Manifest:
        tokenizer = SMALL.model_copy(update={"vocab_size": vocab_size})
        return prepare([source], out, corpus=CorpusSettings(), tokenizer=tokenizer, note=notes.append, **options)

    shard = out / "train" / "00000-00000.arrow"
    first = run(resume=True)
    made = shard.stat().st_mtime_ns
    assert run(resume=True) == first
    assert notes == [f"{out} is complete already"]
    assert shard.stat().st_mtime_ns == made
    with pytest.raises(DataError, match=r"tokenizer\.vocab_size = 200.* 150"):
        run(vocab_size=150, resume=True)
    with pytest.raises(SettingsError, match="overwrite"):
        run(resume=True, overwrite=True)
    with pytest.raises(CorpusError):
        prepare(["none"], out, corpus=CorpusSettings(), tokenizer=SMALL, overwrite=True)
    assert shard.stat().st_mtime_ns == made, "a mistake in overwriting loses nothing"
    assert run(overwrite=True) == first
    assert shard.stat().st_mtime_ns > made
    source.write_text(make_text(100))
    with pytest.raises(DataError, match=r"a\.txt"):
        run(resume=True)
    assert run(overwrite=True).documents == 100


@pytest.mark.parametrize("name", ["notes.md", "train/mine.txt", "validation/0.arrow"])
def test_other_files_are_not_touched(corpus_file: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    (tmp_path / "tokenizer").mkdir()
    for out in (tmp_path, tmp_path / name):  # a folder with other files, and a file
        with pytest.raises(DataError, match=name):
            prepare([corpus_file], out, corpus=CorpusSettings(), tokenizer=SMALL)
    assert (tmp_path / name).read_text() == "mine"
