"""Compiled loops beside the rest of a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unmask
from unmask.core import compiled as loops


def printed(code: str, *, root: Path | None = None, **variables: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", code]
    environment = os.environ | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=root).stdout


def test_loops_leave_the_number_of_torchs_threads_alone() -> None:
    """Numba starts its threads once, and sets OpenMP's number when it does."""
    code = (
        "import numba, torch; from unmask.core.compiled import use_threads_of_torch; use_threads_of_torch();"
        "print(torch.get_num_threads(), numba.get_num_threads())"
    )
    assert printed(code, OMP_NUM_THREADS="2", NUMBA_NUM_THREADS="3").split() == ["2", "2"]


def test_the_quota_of_a_container_counts_as_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest quota of the process's group and of those around it."""
    own, group = tmp_path / "own", tmp_path / "groups" / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("1:cpu:/elsewhere\n0::/a/b\n")
    assert loops.cpu_quota(tmp_path / "groups", own) is None
    limits = ("max 100000", "150000 100000", "400000 100000")
    for folder, limit in zip((group, group.parent, group.parent.parent), limits, strict=True):
        (folder / "cpu.max").write_text(f"{limit}\n")
    assert loops.cpu_quota(tmp_path / "groups", own) == 1.5
    own.write_text("0::/not/seen/from/inside\n")
    assert loops.cpu_quota(tmp_path / "groups", own) == 4.0
    assert loops.cpu_quota(tmp_path / "groups", tmp_path / "none") is None

    limited: list[int] = []
    monkeypatch.setattr(loops, "cpu_quota", lambda: None)
    available = loops.cores()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", limited.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    loops.keep_to_quota()
    monkeypatch.setattr(loops, "cpu_quota", lambda: 0.5)
    assert loops.cores() == 1 <= available
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    loops.keep_to_quota()
    assert not limited, "without a quota, or if the number is set"
    monkeypatch.delenv("OMP_NUM_THREADS")
    loops.keep_to_quota()
    assert limited == [1]


@pytest.mark.slow
def test_the_process_that_compiles_a_loop_gets_the_bits_of_those_after_it(tmp_path: Path) -> None:
    """A process that compiles a loop runs different machine code than numba caches; see `unmask.core.compiled`."""
    code = (
        "import hashlib, numpy as np; from unmask.model.loops import STRETCHES, norm_backward;"
        "draw = np.random.default_rng(0).standard_normal; numbers = lambda *shape: draw(shape).astype(np.float32);"
        "result, sums = numbers(50, 256), np.zeros((2, STRETCHES, 256), dtype=np.float32);"
        "inputs = numbers(50, 256), numbers(0, 0), numbers(50, 256), numbers(256), np.abs(numbers(50, 2));"
        "norm_backward(*inputs, result, sums);"
        "print(hashlib.sha256(result.tobytes() + sums.tobytes()).hexdigest())"
    )
    first = printed(code, NUMBA_CACHE_DIR=str(tmp_path))
    cached = {path: path.read_bytes() for path in tmp_path.rglob("*.nbc")}
    assert len(cached) == 1, "the first process compiled"
    assert printed(code, NUMBA_CACHE_DIR=str(tmp_path)) == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.nbc")} == cached, "and the second did not"


@pytest.mark.slow
def test_another_environment_finds_what_was_compiled(tmp_path: Path) -> None:
    """And compiles again if a function that loops use has changed."""
    other = tmp_path / "other"
    shutil.copytree(Path(unmask.__file__).parent, other / "unmask", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import numpy as np; from unmask.masking.draw_loops import sums;"
        "print(__import__('unmask').__file__, sums(np.array([0, 0, 2]), np.array([1, 2, 4])))"
    )

    def compiled(root: Path) -> set[Path]:
        out = printed(code, root=root, NUMBA_CACHE_DIR=str(tmp_path / "loops"), PYTHONPATH=str(root))
        assert out.split(maxsplit=1) == [str(root / "unmask/__init__.py"), "[3 0 4]\n"]
        return set(tmp_path.rglob("*.nbc"))

    here = Path(unmask.__file__).parents[1]
    first = compiled(here)
    assert first
    assert compiled(other) == first
    with (other / "unmask/core/hashing.py").open("a") as file:
        file.write("# changed\n")
    assert len(compiled(other)) == 2 * len(first)


@pytest.mark.parametrize(
    ("variables", "expected"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_threads_do_not_count_for_long_while_they_wait(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the environment sets how they wait. The variable must be set before torch is imported."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    code = "import unmask, os, sys; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    assert printed(code, **variables).split() == ["False", expected]
