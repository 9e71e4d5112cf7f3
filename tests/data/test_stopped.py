"""Stopped at any moment, a preparation goes on, ends at the same files, and leaves nothing over."""

from __future__ import annotations

import json
import os
import random
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
from unmask.core.results import Progress
from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.tokenizer.settings import TokenizerSettings

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


@pytest.mark.slow
def test_killed_many_times_the_files_are_the_same(text_file: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    num_tasks = len({name.split("-")[0] for name in whole if name.startswith("train/")})
    assert num_tasks > 30
    rng, out, seen = random.Random(2026), tmp_path / "out", []
    for number in range(8):
        process = start(text_file, out)
        if number >= 3:  # the first ones may be hit while they start, read or train the tokenizer
            wait_for_tasks(out, num_tasks * (number - 2) // 7, process)
        time.sleep(rng.uniform(0.0, 1.0) if number < 3 else rng.uniform(0.0, 0.02))
        kill(process)
        assert process.returncode == -signal.SIGKILL
        seen.append(num_done(out))
    assert seen == sorted(seen), "no finished task is lost"
    assert 0 < seen[3] < seen[-1] < num_tasks
    (out / "tokenizer" / "tokenizer.json").write_text("{}")  # trained again, it is the same
    last = start(text_file, out)
    output, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors
    assert output.startswith(f"going on: {seen[-1]:,} of {num_tasks:,} tasks were done before")
    assert contents(out) == whole


def test_a_kill_at_the_very_end_leaves_whole_data(text_file: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Between the manifest and the last of the tidying."""
    out = tmp_path / "out"
    process = start(text_file, out)
    wait_for_tasks(out, 5, process)
    kill(process)
    unfinished = (out / "unfinished.json").read_bytes()
    start(text_file, out).communicate(timeout=PATIENCE)
    (out / "parts").mkdir()
    (out / "parts" / "shards-00007.npz").write_text("{}")
    (out / "unfinished.json").write_bytes(unfinished)
    before = (out / "train" / "00000-00000.arrow").stat().st_mtime_ns
    start(text_file, out).communicate(timeout=PATIENCE)
    assert contents(out) == whole
    assert (out / "train" / "00000-00000.arrow").stat().st_mtime_ns == before, "nothing was made again"


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


def test_tasks_that_still_fit_are_kept(text_file: Path, data_folder: Path, tmp_path: Path) -> None:
    """With a given tokenizer, a file that is added leaves the tasks of the others as they are."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_bytes(text_file.read_bytes())
    out, tokenizer = tmp_path / "out", TokenizerSettings(path=str(data_folder / "tokenizer"))
    corpus = CorpusSettings(documents="block", splits="ignore")

    def run(folder: Path, **options: object) -> Manifest:
        options = {"corpus": corpus, "tokenizer": tokenizer, "workers": 1, **SIZES, **options}
        return prepare([tmp_path / "text"], folder, **options)  # type: ignore[arg-type]

    def stop(progress: Progress) -> None:
        if progress.what == "tokenizing" and progress.done > 60_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out, notify=stop)
    kept = (out / "train" / "00000-00000.arrow").stat().st_mtime_ns
    (out / "train" / "00001-00000.arrow").write_bytes(b"damaged")
    (tmp_path / "text" / "b.txt").write_text("And the cat follows the dog at sea.\n")
    run(out)
    assert (out / "train" / "00000-00000.arrow").stat().st_mtime_ns == kept
    run(tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
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


def test_standard_input_that_was_cut_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    text = make_text(300)
    out = tmp_path / "out"
    process = start("-", out)
    assert process.stdin is not None
    process.stdin.write(text[: len(text) // 2])
    process.stdin.flush()
    deadline = time.monotonic() + PATIENCE
    while not (out / "stdin.txt.partial").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kill(process)
    assert not (out / "stdin.txt").exists()
    _, errors = start("-", out).communicate("", timeout=PATIENCE)
    assert "standard input is empty" in errors
    again = start("-", out)
    _, errors = again.communicate(text, timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert (out / "stdin.txt").read_text() == text
    assert not list(out.glob("*.partial"))


def test_standard_input_that_was_read_whole_need_not_come_again(text_file: Path, tmp_path: Path) -> None:
    text, out = text_file.read_text(), tmp_path / "out"
    process = start("-", out)
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    wait_for_tasks(out, 5, process)
    kill(process)
    again = start("-", out)
    output, errors = again.communicate("", timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert output.startswith("going on: ")
    assert (out / "stdin.txt").read_text() == text
    assert load_manifest(out).bytes > 0.9 * len(text)


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


@pytest.mark.slow
def test_the_command_is_interrupted_and_run_again(text_file: Path, tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text(text_file.read_text() * 16)
    command = [sys.executable, "-m", "unmask", "prepare", str(source), "--vocab-size", "200", "--workers", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def begin(out: Path) -> subprocess.Popen[str]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*command, "--json", "--out", str(out)], **streams, text=True, env=environment)

    process = begin(tmp_path / "out")
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not (tmp_path / "out" / "train" / "00000-00001.arrow").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    results = []
    for name in ("out", "whole"):
        process = begin(tmp_path / name)
        output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        results.append({**json.loads(output), "out": None})
    assert results[0] == results[1]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
