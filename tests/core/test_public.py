"""What every public function checks and keeps, on a function of the test's own; and values in errors and settings."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.seeds import DEEP, DIGITS
from unmask.commands.recipe import load_recipe
from unmask.core.errors import (
    DataError,
    RunError,
    SettingsError,
    listed,
    parse_json,
    shortened,
    shown,
    without_secrets,
)
from unmask.core.files import read_object
from unmask.core.public import public


@public
def work(
    steps: int,
    rate: float = 0.1,
    *,
    name: str | None = None,
    out: str | Path = "out",
    fast: bool = False,
    mode: Literal["a", "b"] = "a",
) -> dict[str, Any]:
    """Says what it sees."""
    weight = torch.ones(2, 2, requires_grad=True)
    return {
        "steps": steps, "mode": mode, "dtype": torch.ones(1).dtype, "device": torch.ones(1).device.type,
        "product": (weight @ weight).dtype, "has_gradient": (weight @ weight).requires_grad,
        "is_inference": weight.is_inference(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"steps": "3"}, "steps .*'3'"),
        ({"steps": 1.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"steps": 1, "rate": "fast"}, "rate takes a number"),
        ({"steps": 1, "rate": float("inf")}, "finite"),
        ({"steps": 1, "rate": float("nan")}, "finite"),
        ({"steps": 1, "name": 7}, "name takes a text"),
        ({"steps": 1, "out": 7}, "out takes"),
        ({"steps": 1, "out": "a\0b"}, "NUL"),
        ({"steps": 1, "fast": "yes"}, "fast takes true or false"),
    ],
)
def test_an_argument_of_another_type_is_one_line(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        work(**arguments)


def test_numbers_of_numpy_and_all_that_is_not_plain_pass() -> None:
    assert work(np.int64(3), np.float32(0.5), out=Path("a"), mode=7)["mode"] == 7  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required"):
        work()  # type: ignore[call-arg]


def test_a_function_has_its_own_state_of_torch_and_leaves_the_callers() -> None:
    usual = work(1)
    assert usual["dtype"] == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
            assert work(1) == usual
            assert torch.ones(1).device.type == "meta"
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_inference_mode_enabled()
        assert torch.get_default_dtype() == torch.float64
        with torch.no_grad():
            assert work(1)["has_gradient"]
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_child_forked_after_use_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.np.ufunc import parallel

    monkeypatch.setattr(parallel, "_is_initialized", True)
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def child() -> None:
        try:
            work(1)
        except RunError as error:
            queue.put(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert "spawn" in queue.get()
    process.join()
    work(1)


@pytest.mark.parametrize(
    "cause",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 524288 bytes"),
        pa.ArrowMemoryError("malloc of size 1024 failed"),
    ],
)
def test_memory_is_memory_in_every_reader(cause: Exception) -> None:
    """Whatever error a reader makes of it: the file may be intact."""
    error = DataError("a.npy: damaged (some reason); make the index anew")
    error.__cause__ = cause
    assert str(error).startswith("a.npy: not enough memory")
    assert "anew" not in str(error)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://me:hunter2@bucket/a.txt", "s3://bucket/a.txt"),
        ("s3:/me:hunter2@bucket/a.txt: no", "s3:/bucket/a.txt: no"),
        (
            "https://host/a?sas=hunter2&versionId=7#access_token=hunter2",
            "https://host/a?sas=***&versionId=7#access_token=***",
        ),
        ("https://host/a.txt#0123abcd", "https://host/a.txt#0123abcd"),
        ("C:/me@home/a.txt, s3://bucket/a@b.txt", "C:/me@home/a.txt, s3://bucket/a@b.txt"),
        ("what? a=b", "what? a=b"),
    ],
)
def test_an_address_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert shown in repr(DataError(text))


@pytest.mark.parametrize(("text", "what"), [(DEEP, "nested too deep"), (f"[{DIGITS}]", "too many digits")])
def test_json_that_python_cannot_hold(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_json(text)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RunError, match=rf"a\.json.*{what}"):
        read_object(tmp_path / "a.json", "make it anew")


@pytest.mark.parametrize(("value", "what"), [(DEEP, "too deep"), (DIGITS, "too many digits")])
def test_toml_that_python_cannot_hold(tmp_path: Path, value: str, what: str) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(f"training.steps = {value}\n")
    with pytest.raises(SettingsError, match=rf"r\.toml.*{what}"):
        load_recipe(str(recipe))
    with pytest.raises(SettingsError, match=rf"training\.steps.*{what}"):
        load_recipe(overrides=(f"training.steps={value}",))


def test_errors_show_a_part_of_what_is_long() -> None:
    assert [shown(value) for value in ("a", [0, 4, "PER"], None, -1.5)] == ["'a'", "[0, 4, 'PER']", "None", "-1.5"]
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for value in ("x" * 10**6, ["x" * 100] * 1000, 10**6000, deep, {"a": deep}):
        assert len(shown(value)) < 500
    assert listed(["a", "b" * 100]) == f"a, {'b' * 30}...{'b' * 30}"
    assert listed(map(str, range(50)), 2) == "0, 1 and 48 more"
    assert listed([]) == "none"
    assert (shortened("ab", 2), shortened("abcdef", 4)) == ("ab", "ab...ef")
