"""Tables of docs/explanation/benchmarks.md; tests of whole scripts see them written."""

from __future__ import annotations

import re

from tests.benchmarks.conftest import BENCHMARKS

ROOT = BENCHMARKS.parent


def test_every_table_of_the_page_is_made_by_a_script() -> None:
    text = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
    marks = re.findall(r"<!-- (end )?([\w-]+) -->", text)
    names = [name for _, name in marks[::2]]
    assert marks == [mark for name in names for mark in (("", name), ("end ", name))], "none within another"
    assert len(set(names)) == len(names)
    by_gpu = {"gpu-check", "gpu-profile", "gpu-train", "training-gpu", "training-gpu-adamw", "training-gpu-short"}
    by_scripts = {"masking", "training", "prepare", "inference", "time-to-loss", "characters", "search", "dial"}
    assert set(names) == by_scripts | by_gpu | {"training-large"}
