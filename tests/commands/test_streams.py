"""Standard streams that are closed, full, or a pipe that nobody reads: no traceback, and nothing but one line."""

from __future__ import annotations

import io
import json
import os
import select
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import PATIENCE, Main
from unmask.commands.cli.streams import Outlet, StandardStreams
from unmask.data.data_folder import load_manifest, verify_files

CLOSED = "unmask: standard output is closed, and results are printed there; "
FULL = "unmask: standard output cannot be written (No space left on device): "
UNKNOWN = "unmask: No such command 'nosuch'; see unmask --help"
# What a shell is told; exit code and beginning of stderr of a command that prints, and of one with a mistake.
STREAMS = {
    "": (0, "", 2, UNKNOWN),
    "<&-": (0, "", 2, UNKNOWN),
    ">&-": (2, CLOSED, 2, CLOSED),
    ">/dev/full": (2, FULL, 2, UNKNOWN),
    "2>/dev/full": (0, "", 2, ""),
    "2>&-": (0, "", 2, ""),
    ">/dev/full 2>&1": (2, "", 2, ""),
    "<&- >&- 2>&-": (2, "", 2, ""),
}  # fmt: skip


def shell(*arguments: object, streams: str, colours: bool = False) -> Callable[[], tuple[int, str]]:
    """Starts the command line in a shell; what is returned waits for its exit code and stderr.

    With `colours` bars are drawn as on a terminal.
    """
    command = shlex.join([sys.executable, "-m", "unmask", *map(str, arguments)])
    environment = {**os.environ, **({"FORCE_COLOR": "1"} if colours else {})}
    process = subprocess.Popen(
        ["bash", "-c", f"{command} {streams}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip

    def wait() -> tuple[int, str]:
        _, err = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in err
        assert "Exception ignored" not in err
        return process.returncode, err

    return wait


def nobody_reads(*arguments: object) -> Callable[[], tuple[int, str]]:
    """The same, with a pipe for stdout whose reader has gone before the command begins."""
    reading, writing = os.pipe()
    os.close(reading)
    os.set_inheritable(writing, True)
    command = [sys.executable, "-m", "unmask", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)

    def wait() -> tuple[int, str]:
        _, err = process.communicate(timeout=PATIENCE)
        return process.returncode, err

    return wait


def test_streams_that_cannot_be_used() -> None:
    prints = {streams: shell("--help", streams=streams) for streams in STREAMS}
    mistakes = {streams: shell("nosuch", streams=streams) for streams in STREAMS}
    for streams, (code, said, code_of_mistake, said_of_mistake) in STREAMS.items():
        for (found, err), expected, begin in (
            (prints[streams](), code, said),
            (mistakes[streams](), code_of_mistake, said_of_mistake),
        ):
            assert found == expected, (streams, err)
            assert err.startswith(begin), streams
            assert err.count("\n") == bool(begin), (streams, err)


def test_results_that_nobody_reads_end_a_command_quietly() -> None:
    for arguments in (("--help",), ("--version",)):
        assert nobody_reads(*arguments)() == (141, ""), arguments
    assert nobody_reads("nosuch")() == (2, f"{UNKNOWN}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_work_is_done_though_nothing_can_be_said(corpus_file: Path, data_folder: Path, tmp_path: Path) -> None:
    """With workers and bars; no file is opened in the place of a stream, where others would write into it."""
    arguments = ("prepare", corpus_file, "--vocab-size", 200, "--workers", 2)
    started = {
        "full": shell(*arguments, "--out", tmp_path / "full", streams=">/dev/full 2>/dev/full", colours=True),
        "closed": shell(*arguments, "--out", tmp_path / "closed", streams="<&- 2>&-", colours=True),
    }
    codes = {name: wait()[0] for name, wait in started.items()}
    assert codes == {"full": 2, "closed": 0}
    for name in codes:
        manifest = load_manifest(tmp_path / name)
        verify_files(tmp_path / name, manifest)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_run_is_finished_though_its_figures_cannot_be_printed(data_folder: Path, tmp_path: Path) -> None:
    small = ("--set", "model.num_layers=1", "--set", "model.hidden_size=32", "--set", "model.num_heads=2")
    run = ("pretrain", data_folder, "--out", tmp_path / "run", "--steps", 2, *small, "--json")
    code, err = shell(*run, streams="<&- >/dev/full", colours=True)()
    assert code == 2
    assert err.splitlines()[-1].endswith(FULL + "results were not printed, files are written")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 2


def test_standard_input_that_is_closed(main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    said = "- reads standard input, but that is closed; pipe a text into the command"
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = main("masks", "-", "--tokenizer", "x")
    assert (code, err) == (2, f"unmask: {said}\n")
    for command in ("prepare", "pretrain"):
        code, _, err = main(command, "-", "--out", tmp_path / command)
        assert (code, err) == (2, f"unmask: {said}\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Broken()))
    code, _, err = main("prepare", "-", "--out", tmp_path / "x")
    assert (code, err) == (2, "unmask: standard input cannot be read (Input/output error); pipe a text in\n")


def test_a_stream_that_does_not_wait_is_waited_for() -> None:
    """Other programs that share a terminal make it so; a write that finds no room is made again."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    raw = io.FileIO(writing, "wb")
    outlet = Outlet(raw)
    content = b"x" * 4096
    while select.select([], [writing], [], 0.0)[1]:
        os.write(writing, content)
    reader = threading.Timer(0.05, os.read, (reading, 1 << 20))
    reader.start()
    assert outlet.write(content) == len(content)
    assert outlet.failure is None
    reader.join()
    os.close(reading)
    assert outlet.write(content) == len(content)
    assert isinstance(outlet.failure, BrokenPipeError)
    raw.close()


def test_characters_that_a_stream_lacks_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "__stdout__", stream)
    StandardStreams()
    sys.stdout.write('"é 😀 \udcff"')
    sys.stdout.flush()
    assert raw.getvalue() == b'"\\u00e9 \\ud83d\\ude00 \\udcff"'
    assert json.loads(raw.getvalue()) == "é 😀 \udcff"
