"""Tables of docs/explanation/benchmarks.md: which lines are replaced, and which stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tables

from tests.benchmarks.conftest import BENCHMARKS

ROOT = BENCHMARKS.parent
PAGE = "before\n<!-- speed -->\nold\n<!-- end speed -->\nbetween\n<!-- speed-gpu -->\nkept\n<!-- end speed-gpu -->\n"


def test_a_table_replaces_what_stands_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"date": "2026-11-30", "processor": "A processor", "cores": 2, "versions": {"torch": "2.13"}}
    monkeypatch.setattr(tables, "circumstances", lambda: here)
    monkeypatch.setattr(tables.sys, "executable", "/somewhere/bin/python")
    monkeypatch.setattr(tables.sys, "argv", ["benchmarks/speed.py", "/home/me/novels.txt", "--rounds", "2"])
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    for lines in (["| first |"], ["| \\1 | backslashes as they are |", "| --- |"]):
        tables.write_table(page, "speed", lines)
    assert page.read_text(encoding="utf-8") == PAGE.replace(
        "old",
        "```\npython benchmarks/speed.py novels.txt --rounds 2\n```\n\n2026-11-30, A processor, 2 cores, torch 2.13."
        "\n\n| \\1 | backslashes as they are |\n| --- |",
    )


def test_tables_of_the_page_stand_apart() -> None:
    text = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
    marks = re.findall(r"<!-- (end )?([\w-]+) -->", text)
    names = [name for _, name in marks[::2]]
    assert marks == [mark for name in names for mark in (("", name), ("end ", name))], "none within another"
    assert len(set(names)) == len(names) > 10
