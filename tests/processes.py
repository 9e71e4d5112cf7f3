"""Processes for tests: the command line, and functions that a group of processes runs, as `torchrun` starts them.

    process = Forked(command, "pretrain", text, "--out", folder)
    process.kill()
    results = in_processes(2, "tests.train.group_runs:trained", tmp_path, {"steps": 20})

The last one calls `trained(folder, steps=20)` in each process, and returns their results in order.

They are forked from a process that has already loaded the slow libraries, and are used like processes of
`subprocess`: a test may kill, stop and wait for them. Tests of how a process starts, or what it loads, start a new
one instead.
"""

from __future__ import annotations

import functools
import importlib
import json
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
import torch
import torch.distributed as dist

from tests.command_line import PATIENCE

LOADED = ["unmask.commands.cli", "unmask.commands.pretrain", "unmask.commands.finetune", __name__]


@functools.cache
def _origin() -> Any:
    """The process from which others are forked; it computes with one thread, and ends with this process."""
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

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired` if it still runs."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the process; returns its stdout and stderr."""
        self.wait(timeout)
        out, err = ((self._folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return out, err

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, signum: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signum)


def command(*arguments: str) -> None:
    """The command line."""
    from unmask.commands import cli

    sys.argv = ["unmask", *arguments]
    cli.main()


def _run(folder: Path, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Runs in the forked process."""
    for name, number in (("out", 1), ("err", 2)):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    function(*arguments)


def start(count: int, function: str, folder: Path, arguments: dict[str, Any]) -> list[Forked]:
    """Starts the processes; each writes what the function returns to `folder/NUMBER.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    (folder / "arguments.json").write_text(json.dumps(arguments))
    return [Forked(_member, function, folder, number, count) for number in range(count)]


def ended(processes: list[Forked]) -> list[tuple[int | None, str]]:
    """Exit code and stderr of each; those that do not end in time are killed."""
    try:
        errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]


def in_processes(count: int, function: str, folder: Path, arguments: dict[str, Any]) -> list[Any]:
    """The results of the function in each process, in order. A group of one runs in this process, which has
    everything loaded."""
    if count == 1:
        folder.mkdir(parents=True, exist_ok=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in forked processes
        try:
            return [json.loads(json.dumps(_named(function)(folder, **arguments)))]
        finally:
            torch.set_num_threads(threads)
    codes, errors = zip(*ended(start(count, function, folder, arguments)), strict=True)
    assert not any(codes), "\n\n".join(errors)
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(count)]


def _named(name: str) -> Callable[..., Any]:
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def _member(name: str, folder: Path, number: int, count: int) -> None:
    """Runs in one of the processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=count)
    arguments = json.loads((folder / "arguments.json").read_text())
    result = _named(name)(folder, **arguments)
    (folder / f"{number}.json").write_text(json.dumps(result))
    sys.stderr.flush()
    os._exit(0)  # threads of torch that outlive its groups may abort the interpreter at its end
