"""What of the held-out text nearly stands in the training text: in summary, report and card of a run."""

from __future__ import annotations

import dataclasses
import json
from html import escape
from pathlib import Path

import unmask
from tests.report.test_page import page_of
from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.near_duplicates import DuplicateExample, NearDuplicates
from unmask.report import cards as card

FOUND = NearDuplicates(
    "documents", 1204, 1204, 0, 1168, 2, DuplicateExample("normalised", "<took> 12 ms", "<took> 7 ms")
)


def test_a_run_tells_of_them(run: unmask.Run) -> None:
    root = Path(run.folder)
    found = load_manifest(root / "data").near_duplicates
    assert found is not None
    summary = json.loads((root / "summary.json").read_text(encoding="utf-8"))
    assert summary["near_duplicates"] == json.loads(json.dumps(found.plain()))
    assert escape(found.sentence) in (root / "report.html").read_text(encoding="utf-8")
    assert found.sentence in (root / "model" / "README.md").read_text(encoding="utf-8")


def test_figures_and_example(run: unmask.Run, manifest: Manifest, tmp_path: Path) -> None:
    told = dataclasses.replace(manifest, near_duplicates=FOUND)
    html = page_of(run, tmp_path, told)
    assert FOUND.sentence in html
    assert "Held out: <q>&lt;took&gt; 12 ms</q>; training: <q>&lt;took&gt; 7 ms</q>." in html
    assert FOUND.sentence in card._data_of_run(told)
    assert "took" not in card._data_of_run(told), "a card is published: it quotes no text"
    told.save(tmp_path)
    assert load_manifest(tmp_path) == told
    before = dataclasses.replace(manifest, near_duplicates=None)
    assert "near-duplicate" not in page_of(run, tmp_path, before) + card._data_of_run(before)
