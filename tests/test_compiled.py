"""Compiled loops beside the rest of a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("threads", [1, 2])
def test_loops_leave_the_number_of_torchs_threads_alone(threads: int) -> None:
    """In a process of its own: numba starts its threads once, and sets OpenMP's number when it does."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": "3"}
    code = (
        "import numba, torch; from unmask.compiled import use_threads_of_torch; use_threads_of_torch();"
        "print(torch.get_num_threads(), numba.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(threads), str(threads)]
