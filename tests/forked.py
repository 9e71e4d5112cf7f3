"""Processes that begin where imports end: forked from one that has loaded what takes each of them seconds to load.

    process = start_command("pretrain", text, "--out", folder)
    process.kill()

They are what a test may kill, stop and wait for, and are used like those of `subprocess`. Tests of what happens while a
process starts, or of what it loads, start one anew.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

LOADED = ["unmask.commands.cli", "unmask.commands.pretrain", "unmask.commands.finetune", "tests.processes"]


@functools.cache
def _origin() -> Any:
    """What processes are forked from, which computes with one thread; it ends with this process."""
    origin = multiprocessing.get_context("forkserver")
    origin.set_forkserver_preload(LOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
    return origin


class Forked:
    """A process that runs a function of a module, used like those of `subprocess`; its output is kept."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self._folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._process = _origin().Process(target=_run, args=(self._folder, function, arguments))
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode  # type: ignore[no-any-return]

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired` where it still runs."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for it; what it printed to stdout and to stderr."""
        self.wait(timeout)
        out, err = ((self._folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return out, err

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, signum: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signum)


def start_command(*arguments: object) -> Forked:
    """The command line."""
    return Forked(_command, *map(str, arguments))


def _command(*arguments: str) -> None:
    from unmask.commands import cli

    sys.argv = ["unmask", *arguments]
    cli.main()


def _run(folder: Path, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """In the process itself."""
    for name, number in (("out", 1), ("err", 2)):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    function(*arguments)
