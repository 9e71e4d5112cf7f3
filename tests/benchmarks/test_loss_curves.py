"""What the table of held-out loss over time says of the goals."""

from __future__ import annotations

import importlib
import types
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
    lines = script.table({"ours-3": run("ours", 3.0, 180.0, 5.0), "tuned": PEERS["tuned"]})
    assert lines[2:-1] == [
        "| tuned | 2026-01-02 | 30.0 | 1,234 | 2,048 | 0.0005 | 6.000 | 25.0% |",
        "| ours-3 | 2026-01-02 | 3.0 | 1,234 | recipe `tiny` |  | 5.000 | 25.0% |",
        "",
    ]
    assert lines[-1].startswith("`tuned` ends at 6.000")
