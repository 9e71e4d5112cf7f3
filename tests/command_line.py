"""The command line as tests call it."""

from __future__ import annotations

from collections.abc import Callable

Main = Callable[..., tuple[int, str, str]]
"""The fixture `main`: runs the command line in this process, which is faster; returns exit code, stdout and stderr."""


PATIENCE = 600.0
"""Seconds that a process of a test may take: where other work is done, much is slow."""
