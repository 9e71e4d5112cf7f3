"""The page of a run: all of it in one file, its figures those of the summary, text escaped."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import unmask
from tests.report.test_card import written
from unmask.core.results import HiddenToken, ShownText, parts_of
from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.near_duplicates import DuplicateExample, NearDuplicates
from unmask.report.pages import confusion_of, write_report
from unmask.report.plots import Curve, comparison_curves, plot


def test_the_page_is_self_contained_and_says_what_happened(run: unmask.Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    without_script, num_scripts = re.subn(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert (num_scripts, "<script" in without_script) == (1, False)
    assert not re.search(r"""(src|href)=["']?(?!["'#])""", without_script), "nothing is loaded from elsewhere"
    assert not re.search(r"url\((?!#)", page)
    plots = [json.loads(each) for each in re.findall(r"data-plot='(.*?)'", page)]
    assert [each["title"].partition(",")[0] for each in plots] == [
        "loss", "held-out tokens predicted right", "gradient norm over steps", "learning rate over steps",
        "tokens a second over steps",
    ]  # fmt: skip
    held = plots[1]["curves"][0]
    assert held["places"][-1] == run.summary["steps"]
    assert held["values"][-1] == pytest.approx(100 * run.summary["validation_accuracy"], rel=1e-4)
    low, high = run.summary["validation_loss_interval"]
    figures = (
        f"{run.summary['validation_loss']:.3f} ± {(high - low) / 2:.3f}",
        f"{run.summary['validation_accuracy']:.1%}",
    )
    text = re.sub(r"<[^>]*>", " ", page)
    for part in (*figures, "Curves", "Held-out text", "Data", "Settings", "corpus.txt", "learning_rate"):
        assert part in text, part


def page_of(run: unmask.Run, folder: Path, manifest: Manifest, lines: list[ShownText] | None = None) -> str:
    """The page of a run, with another manifest or other lines."""
    metrics = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    write_report(
        folder / "page.html",
        recipe={"masking": {"strategy": None, "rate": 0.3}, "training": {"steps": 7, "seed": 0}},
        usual={"masking": {"strategy": "random", "rate": 0.2}, "training": {"minutes": 10.0, "seed": 0}},
        manifest=manifest,
        summary=run.summary,
        metrics=[json.loads(line) for line in metrics],
        before=lines or [],
        after=lines or [],
    )
    return (folder / "page.html").read_text(encoding="utf-8")


def test_text_stands_as_it_was_written_and_is_escaped(run: unmask.Run, tmp_path: Path) -> None:
    guesses = [("<i>", 0.75), ("x", 0.25)]
    hidden = HiddenToken(begin=7, end=9, target=5, guesses=guesses, probability=0.1, right=False)
    shown = ShownText(text="<b>\n12:30 ", hidden=[hidden])
    assert list(parts_of(shown)) == [("<b>\n12:", None), ("30", hidden), (" ", None)]
    page = page_of(run, tmp_path, load_manifest(run.folder / "data"), [shown])
    html = page[page.index("<h2>Held-out text</h2>") : page.index("<h2>Data</h2>")]
    assert "<b>" not in html
    assert "<i>" not in html
    assert "&lt;b&gt;\n12:<span class=masked>30</span> </p>" in html
    assert "&lt;b&gt;\n12:<span class=missed" in html
    assert "&lt;i&gt;</span> </p>" in html


def test_long_curves_are_thinned_and_gaps_left_out() -> None:
    places, label = range(100_001), "</script>"
    shown = plot("loss", "step", Curve(label, places, [None, math.nan, *([1.23456789] * 99_999)]))
    (curve,) = shown["curves"]
    assert 4_000 <= len(curve["places"]) < 5_000
    assert (curve["places"][0] > 1, set(curve["values"])) == (True, {1.23457})
    assert plot("loss", "step", Curve("one dot", [1], [2.0])) == {}
    (curve,) = plot("loss", "step", Curve("measured again", [2, 1, 2], [3.0, 4.0, 2.0]))["curves"]
    assert (curve["places"], curve["values"]) == ([1, 2], [4.0, 2.0]), "the last counts"


def test_figures_of_callbacks_are_not_held_out_losses() -> None:
    figures = ({"probe": 0.5}, {"validation_loss": 3.0}, {"validation_loss": 2.0})
    lines = [{"kind": "evaluation", "step": step, **own} for step, own in enumerate(figures)]
    (curve,) = comparison_curves({"a": [lines]}, None)["curves"]
    assert (curve["places"], curve["values"]) == ([1, 2], [3.0, 2.0])


def test_an_example_of_near_duplicates_is_escaped(run: unmask.Run, manifest: Manifest, tmp_path: Path) -> None:
    example = DuplicateExample("normalised", "<took> 12 ms", "<took> 7 ms")
    near = NearDuplicates("documents", 1204, 1204, 0, 1168, 2, example)
    changed = replace(manifest, near_duplicates=near)
    page, card = page_of(run, tmp_path, changed), written(run, tmp_path, manifest=changed).text
    sentence = f"{near.summary[:1].upper()}{near.summary[1:]}."
    assert sentence in page
    assert "Held out: <q>&lt;took&gt; 12 ms</q>; training: <q>&lt;took&gt; 7 ms</q>." in page
    assert sentence in card
    assert "took" not in card, "a card is published: it quotes no text"


def test_confusions_by_hand() -> None:
    confusion = confusion_of("aaabb", "aabcb")
    assert confusion == {
        "names": ["a", "b", "c"],
        "rows": [
            {"name": "a", "counts": [2, 1, 0], "scores": [1.0, 2 / 3, 0.8]},
            {"name": "b", "counts": [0, 1, 1], "scores": [0.5, 0.5, 0.5]},
            {"name": "c", "counts": [0, 0, 0], "scores": [0.0, 0.0, 0.0]},
        ],
    }


def test_rare_classes_are_merged_apart_from_one_called_others() -> None:
    right = [*["others"] * 3, *(f"class {n // 2}" for n in range(80))]
    confusion = confusion_of(right, right)
    assert confusion is not None
    assert len(set(confusion["names"])) == len(confusion["names"]) == 24
    assert sum(sum(row["counts"]) for row in confusion["rows"]) == len(right)
    assert [len(row["scores"]) for row in confusion["rows"]] == [3] * 23 + [0], "of no single class"
