"""Tables of docs/explanation/benchmarks.md: which lines are replaced, and which stay."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
import tables

from tests.benchmarks.conftest import BENCHMARKS

ROOT = BENCHMARKS.parent
PAGE = "before\n<!-- speed -->\nold\n<!-- end speed -->\nbetween\n<!-- speed-gpu -->\nkept\n<!-- end speed-gpu -->\n"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.setattr(tables, "processor", lambda: "A processor with AMX")
    monkeypatch.setattr(tables, "version", lambda package: f"of {package}")
    monkeypatch.setattr(tables.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(tables.sys, "executable", "/somewhere/bin/python")
    monkeypatch.setattr(tables.sys, "argv", ["benchmarks/speed.py", "/home/me/novels.txt", "--rounds", "2"])
    return tables


def test_a_table_replaces_what_stands_between_its_marks(script: types.ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    for lines in (["| first |"], ["| \\1 | backslashes as they are |", "| --- |"]):
        script.write_table(page, "speed", lines)
    expected = (
        r"before\n<!-- speed -->\n```\npython benchmarks/speed\.py novels\.txt --rounds 2\n```\n\n\d{4}-\d\d-\d\d, "
        r"A processor with AMX, 2 cores, torch of torch, transformers of transformers, numba of numba\.\n\n"
        r"\| \\1 \| backslashes as they are \|\n\| --- \|\n<!-- end speed -->\nbetween\n<!-- speed-gpu -->\nkept\n"
        r"<!-- end speed-gpu -->\n"
    )
    assert re.fullmatch(expected, page.read_text(encoding="utf-8"))


def test_every_table_of_the_page_is_made_by_a_script() -> None:
    text = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
    marks = re.findall(r"<!-- (end )?([\w-]+) -->", text)
    names = [name for _, name in marks[::2]]
    assert marks == [mark for name in names for mark in (("", name), ("end ", name))], "none within another"
    assert len(set(names)) == len(names)
    by_gpu = {"gpu-check", "gpu-profile", "gpu-train", "training-gpu", "training-gpu-adamw", "training-gpu-short"}
    by_scripts = {
        "masking",
        "training",
        "prepare",
        "inference",
        "time-to-loss",
        "characters",
        "search",
        "dial",
        "choices",
    }
    assert set(names) == by_scripts | by_gpu | {"training-large"}
