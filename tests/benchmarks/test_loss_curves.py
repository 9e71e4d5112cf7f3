"""What the table of held-out loss over time says of the goals."""

from __future__ import annotations

import importlib
import io
import json
import types
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("loss_curves")


def run(system: str, minutes: float, seconds: float, loss: float) -> dict[str, Any]:
    """An entry of the results, which looked better in between."""
    work = {"system": system, "minutes": minutes, "batch_tokens": 2048, "learning_rate": 5e-4, "recipe": "tiny"}
    points = [[seconds / 2, loss - 0.5, 0.3], [seconds, loss, 0.25]]
    return {"work": work, "date": "2026-01-02", "steps": 1234, "points": points}


PEERS = {"run_mlm": run("run_mlm", 30.0, 1800.0, 6.5), "tuned": run("tuned", 30.0, 1800.0, 6.0)}


def test_a_goal_is_told_beside_what_was_reached(script: types.ModuleType) -> None:
    results = {**PEERS, "ours-0.75": run("ours", 0.75, 45.2, 6.5), "ours-3": run("ours", 3.0, 180.3, 6.0)}
    assert script.verdict(results, "run_mlm") == (
        "`run_mlm` ends at 6.500 nats after 30.0 minutes; ours in at most 0.75: 1/40 of the time (the goal is 1/40)."
    )
    assert script.verdict(results, "tuned") == (
        "`tuned` ends at 6.000 nats after 30.0 minutes; ours in at most 3: 1/10 of the time (the goal is 1/10)."
    )


def test_every_seed_of_a_budget_must_get_there(script: types.ModuleType) -> None:
    seeds = {f"ours-0.75-seed{seed}": run("ours", 0.75, 45.0, loss) for seed, loss in enumerate((5.0, 6.01))}
    results = {**PEERS, **seeds, "ours-6": run("ours", 6.0, 360.0, 5.9)}
    assert "ours in at most 6: 1/5 of the time (the goal is 1/10)" in script.verdict(results, "tuned")
    del results["ours-6"]
    assert script.verdict(results, "tuned") == (
        "`tuned` ends at 6.000 nats after 30.0 minutes; no budget of ours ends there."
    )


def test_the_table_has_a_line_a_run_and_a_verdict_a_peer(script: types.ModuleType) -> None:
    ours = run("ours", 3.0, 180.0, 5.0)
    told = {**ours, "facts": {"batch_tokens": 4096}}
    lines = script.table({"ours-3": told, "ours-3-before": ours, "tuned": PEERS["tuned"]})
    assert lines[2:-1] == [
        "| tuned | 2026-01-02 | 30.0 | 1,234 | 2,048 | 0.0005 | 6.000 | 25.0% |",
        "| ours-3 | 2026-01-02 | 3.0 | 1,234 | 4,096 |  | 5.000 | 25.0% |",
        "| ours-3-before | 2026-01-02 | 3.0 | 1,234 | recipe `tiny` |  | 5.000 | 25.0% |",
        "",
    ]
    assert lines[-1].startswith("`tuned` ends at 6.000")


def test_ours_tells_the_positions_of_its_steps(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time_to_loss = importlib.import_module("time_to_loss")
    told: dict[str, Any] = {}

    class Turn:
        def __init__(self, *given: object) -> None: ...

        def begin(self, **facts: Any) -> None:
            told.update(facts)
            raise time_to_loss.Ended

    monkeypatch.setattr(time_to_loss, "Turn", Turn)
    small = ("model.num_layers=1", "model.hidden_size=64", "model.num_heads=1", "training.batch_tokens=256")
    with pytest.raises(time_to_loss.Ended):
        time_to_loss.ours(time_to_loss.Work(str(data_folder), "ours", 0.1, overrides=small), io.StringIO())
    assert told["batch_tokens"] == 256


def measured(entry: dict[str, Any], torch: str) -> dict[str, Any]:
    return {**entry, "processor": "A processor", "cores": 2, "versions": {"torch": torch, "numba": "0.1"}}


def test_machine_and_versions_are_those_of_the_entries(script: types.ModuleType) -> None:
    agree = {name: measured(entry, "2.0") for name, entry in PEERS.items()}
    assert script.made(agree) == ["Measured on A processor, 2 cores, torch 2.0, numba 0.1."]
    others = {**agree, "ours-3": measured(run("ours", 3.0, 180.0, 5.0), "2.1")}
    assert script.made(others) == [
        "- run_mlm, tuned: A processor, 2 cores, torch 2.0, numba 0.1.",
        "- ours-3: A processor, 2 cores, torch 2.1, numba 0.1.",
    ]


def test_what_entries_do_not_say_is_not_made_up(script: types.ModuleType) -> None:
    entry = run("ours", 3.0, 180.0, 5.0)
    assert script.made({"ours-3": {**entry, "processor": "A processor"}}) == [
        "Measured on A processor, cores not recorded, versions not recorded."
    ]
    del entry["date"]
    assert script.made({"ours-3": entry}) == [
        "Measured on processor not recorded, cores not recorded, versions not recorded."
    ]
    assert script.table({"ours-3": entry})[2].startswith("| ours-3 | not recorded | 3.0 | ")


def test_an_entry_says_when_and_how_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time_to_loss = importlib.import_module("time_to_loss")
    (tmp_path / "manifest.json").write_text('{"fingerprint": "a hash"}', encoding="utf-8")
    here = {"date": "2026-01-02", "processor": "A processor", "cores": 2, "versions": {"torch": "2.0"}}
    monkeypatch.setattr(time_to_loss, "circumstances", lambda: here)
    system = types.SimpleNamespace(facts={"parameters": 1}, seconds=45.0, steps=9, points=[(45.0, 5.0, 0.2)])
    results, work = tmp_path / "results.jsonl", time_to_loss.Work(str(tmp_path), "ours", 0.75)
    time_to_loss._write(results, "ours-0.75", work, system)
    entry = time_to_loss.loss_curves.load(results)["ours-0.75"]
    assert {key: entry[key] for key in here} == here
    monkeypatch.setattr(time_to_loss, "circumstances", lambda: {**here, "versions": {"torch": "2.1"}})
    monkeypatch.setattr(time_to_loss, "start", lambda work: pytest.fail("it is there already"))
    time_to_loss.run({"ours-0.75": work}, results)
    assert time_to_loss.loss_curves.load(results) == {"ours-0.75": entry}


def test_the_page_shows_what_the_entries_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time_to_loss = importlib.import_module("time_to_loss")
    (tmp_path / "manifest.json").write_text('{"fingerprint": "a hash"}', encoding="utf-8")
    page, results = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text("<!-- time-to-loss -->\n<!-- end time-to-loss -->\n", encoding="utf-8")
    entry = {**measured(PEERS["tuned"], "0.0.1"), "name": "tuned"}
    results.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    monkeypatch.setattr(time_to_loss, "measure", lambda data, asked: None)
    options = ["--results", str(results), "--table", str(page)]
    monkeypatch.setattr(time_to_loss.sys, "argv", ["time_to_loss.py", str(tmp_path), *options])
    time_to_loss.main()
    head, table = page.read_text(encoding="utf-8").split("| system | measured |")
    assert head.endswith("\n\nMeasured on A processor, 2 cores, torch 0.0.1, numba 0.1.\n\n")
    assert "| tuned | 2026-01-02 |" in table
