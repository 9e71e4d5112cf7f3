"""The command line as tests call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Main = Callable[..., tuple[int, str, str]]
"""The fixture `main`: runs the command line in this process, which is faster; returns exit code, stdout and stderr."""


PATIENCE = 600.0
"""Seconds that a process of a test may take; generous, since a busy machine is slow."""


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """Within this context, no file of this process grows beyond a size, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
