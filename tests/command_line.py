"""The command line as tests call it: in a process of its own, or in this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

Main = Callable[..., tuple[int, str, str]]
"""The fixture `main`: runs the command line in this process, which is faster; returns exit code, stdout and stderr."""


PATIENCE = 600.0
"""Seconds that a process of a test may take: where other work is done, much is slow."""


def call(*arguments: object, code: int = 0) -> tuple[str, str]:
    """Runs the command line in a process of its own; returns stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "unmask", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr
