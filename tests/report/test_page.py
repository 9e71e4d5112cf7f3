from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import unmask
from unmask.data.data_folder import Manifest, load_manifest
from unmask.report.pages import write_report


class Reader(HTMLParser):
    """Collects text, and anything that would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href") and not str(value).startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_self_contained_and_says_what_happened(run: unmask.Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(page)
    text = " ".join(reader.text)
    assert [value for value in reader.loaded if not value.startswith("#")] == []
    assert "script" not in reader.tags
    assert not re.search(r"url\((?!#)", page)
    assert reader.tags.count("svg") == 4
    assert f"{run.summary['validation_loss']:.3f}" in text
    assert f"{run.summary['validation_accuracy']:.1%}" in text
    low, high = run.summary["validation_loss_interval"]
    documents = run.summary["validation_documents"]
    assert f"{run.summary['validation_loss']:.3f} ± {(high - low) / 2:.3f}" in text
    assert f"held-out loss, nats per token (± 95 %, over {documents} documents)" in text
    for part in ("Curves", "Held-out lines", "Data", "Settings", "corpus.txt", "learning_rate", "Left out: nothing"):
        assert part in text, part
    assert page.count("class=line>") >= 5
    assert page.count('class=right title="') > 0


def page_of(run: unmask.Run, folder: Path, manifest: Manifest, lines: Sequence[Sequence[dict[str, Any]]] = ()) -> str:
    """The page of a run, with another ledger or other lines."""
    metrics = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    write_report(
        folder / "page.html",
        recipe={"masking": {"strategy": None}},
        manifest=manifest,
        summary=run.summary,
        metrics=[json.loads(line) for line in metrics],
        before=lines,
        after=lines,
    )
    return (folder / "page.html").read_text(encoding="utf-8")


def test_text_is_escaped(run: unmask.Run, tmp_path: Path) -> None:
    tokens = [("<b>", True, None, None), ("&", True, "<i>", 0.5), ("x", False, None, None)]
    line = [dict(zip(("token", "space_before", "predicted", "probability"), token, strict=True)) for token in tokens]
    page = page_of(run, tmp_path, load_manifest(run.folder / "data"), [line])
    html = page[page.index("<h2>Held-out lines</h2>") : page.index("<h2>Data</h2>")]
    assert "<b>" not in html
    assert "<i>" not in html
    assert "&lt;i&gt;</span>x" in html, "no space within a word"
