"""What babylm.py trains on, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import babylm as script

import unmask


def test_every_subset_and_the_mean_over_them() -> None:
    def entry(a: float, ties: int) -> script.Entry:
        subsets = {"a": {"accuracy": a, "pairs": 1000, "ties": ties}, "b": {"accuracy": 0.3, "pairs": 10, "ties": 0}}
        return {"scores": {"BLiMP": {"mean": (a + 0.3) / 2, "ties": ties, "subsets": subsets}}}

    # Half the width for two values is 12.706 times half of their difference: Student's t with one degree of freedom.
    assert script.table([entry(0.5, 3), entry(0.7, 4)])[2:] == [
        "| BLiMP | **mean of 2** | 1,010 | 45.0 ± 63.5 | 3.5 |",
        "| BLiMP | a | 1,000 | 60.0 ± 127.1 | 3.5 |",
        "| BLiMP | b | 10 | 30.0 | 0 |",
    ]


def test_a_finished_run_is_scored(run: unmask.Run, tmp_path: Path, run_script: Any) -> None:
    lines = [("The cat sees.", "Cat sees the."), ("The cat.", "The cat.")]
    pairs, results, page = tmp_path / "hypernym.jsonl", tmp_path / "results.jsonl", tmp_path / "page.md"
    pairs.write_text("".join(json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n" for good, bad in lines))
    page.write_text("<!-- babylm -->\n<!-- end babylm -->\n")
    run_script(script, "--model", run.folder, "--supplement", pairs, "--results", results, "--table", page)
    [entry] = map(json.loads, results.read_text().splitlines())
    figures = entry["scores"]["BLiMP supplement"]
    assert figures["ties"] == 1
    assert figures["mean"] == figures["subsets"]["hypernym"]["accuracy"] in (0.25, 0.75)
    assert f"| hypernym | 2 | {100 * figures['mean']:.1f} | 1 |" in page.read_text()
