"""What is made of the runs of time_to_loss.py: the winner of a sweep, ratios of times, tables."""

from __future__ import annotations

import importlib
import math
import types
from collections.abc import Sequence
from typing import Any

import pytest


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("loss_curves")


def run(system: str, *points: tuple[float, float], seed: int = 0, **changes: Any) -> dict[str, Any]:
    """An entry of the results, with looks at (seconds, loss)."""
    work = {"system": system, "minutes": 3.0, "batch_tokens": 2048, "learning_rate": 2e-3, "seed": seed, "threads": 2}
    looks = [[seconds, loss, 0.25] for seconds, loss in points]
    return {"work": {**work, **changes}, "date": "2026-01-02", "steps": 1234, "tokens": 2_000_000, "points": looks}


def seeds(system: str, *losses: float) -> list[dict[str, Any]]:
    """A run a seed, 180 s long."""
    return [run(system, (60.0, 7.0), (180.0, loss), seed=seed) for seed, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("points", "loss", "seconds"),
    [
        (((60.0, 6.0), (120.0, 5.0), (180.0, 4.0)), 4.5, 150.0),  # in the middle between two looks
        (((60.0, 6.0), (120.0, 5.0), (180.0, 4.0)), 5.0, 120.0),
        (((60.0, 6.0), (120.0, 5.0), (180.0, 4.0)), 4.0, 180.0),
        (((60.0, 6.0), (120.0, 5.0), (180.0, 4.0)), 3.9, None),
        (((60.0, 6.0), (180.0, 4.0)), 6.5, 60.0),  # at most
        (((60.0, 4.4), (120.0, 5.0), (180.0, 4.0)), 4.5, 150.0),  # there before, but not for good
        (((60.0, 4.4), (120.0, 5.0)), 4.5, None),
    ],
)
def test_when_a_curve_is_at_a_loss_for_good(
    script: types.ModuleType, points: Sequence[tuple[float, float]], loss: float, seconds: float | None
) -> None:
    found = script.reached([[*point, 0.2] for point in points], loss)
    assert found == (seconds if seconds is None else pytest.approx(seconds))


def test_the_lowest_loss_wins_and_what_diverged_or_was_not_measured_does_not(script: types.ModuleType) -> None:
    losses = {"a": 5.5, "b": math.nan, "c": 5.2}
    assert script.ranked(["b", "d", "a", "c"], losses) == ["c", "a", "b", "d"]
    assert script.ranked(["b", "d", "a"], {}) == ["b", "d", "a"]


def test_the_lead_is_the_peers_time_over_the_mean_of_ours(script: types.ModuleType) -> None:
    ours = [
        run("ours", (45.0, 5.5), (90.0, 4.5), (180.0, 4.0), seed=0),  # at 5.0 after 67.5 s
        run("ours", (45.0, 6.0), (135.0, 4.0), (180.0, 3.9), seed=1),  # after 90 s
    ]
    peer = seeds("modernbert-muon", 4.9, 5.1)
    assert script.times_to(ours, peer) == [pytest.approx(67.5), pytest.approx(90.0)]
    assert script.ratio([67.5, 90.0], peer) == pytest.approx(180.0 / 78.75)
    told = script.verdict({"ours": ours, "modernbert-muon": peer}, "modernbert-muon")
    # the differences 0.9 and 1.2 have a standard error of 0.15, and t has a 97.5 % quantile of 12.706 here
    assert told == (
        "`modernbert-muon` ends at 5.000 nats after 180 s; ours is there after 79 s (68, 90): 1/2.3 of the time. "
        "At the end the peer's loss less ours, by seed, is +1.050 ± 1.906."
    )
    ours[1]["points"][-1][1] = 5.2
    assert script.verdict({"ours": ours, "modernbert-muon": peer}, "modernbert-muon").endswith(
        "; 1 of 2 runs of ours come there."
    )


def test_the_table_has_a_line_a_system_the_weakest_first(script: types.ModuleType) -> None:
    runs = {
        "modernbert-muon": seeds("modernbert-muon", 5.0, 5.0, 5.3),
        "ours": seeds("ours", 4.5, 4.6, 4.7),
        "modernbert-adamw": seeds("modernbert-adamw", 5.5, 5.6, 5.7),
    }
    lines = script.table(runs)
    assert "mean of 3 ± half of its 95 % t interval" in lines[0]
    # t is 4.303 with two degrees of freedom; the standard errors are 0.1 / sqrt(3) and 0.1
    common = "| 2,048 | 0.002 | 1,234 | 2,000,000 |"
    # ours falls from 7 to its last loss within 120 s: 127.2, 130 and 133 s, and 151.2, 155 and 159.1 s
    assert lines[2] == f"| modernbert-adamw {common} 5.600 ± 0.248 | 25.0% | 130 s: 1/1.4 of the time |"
    assert lines[3] == f"| modernbert-muon {common} 5.100 ± 0.430 | 25.0% | 155 s: 1/1.2 of the time |"
    assert lines[4] == f"| ours {common} 4.600 ± 0.248 | 25.0% |  |"
    assert lines[5] == ""
    assert [line.split("`")[1] for line in lines[6:]] == ["modernbert-muon", "modernbert-adamw"]


def test_a_peer_that_ours_does_not_reach_is_told(script: types.ModuleType) -> None:
    lines = script.table({"modernbert-adamw": seeds("modernbert-adamw", 4.0, 4.1), "ours": seeds("ours", 4.5, 4.6)})
    assert lines[3].endswith("| not within the budget |")
    assert lines[-1].endswith("; 0 of 2 runs of ours come there.")


def test_what_is_taken_away_is_compared_by_seed_with_what_it_is_taken_from(script: types.ModuleType) -> None:
    runs = {
        "ours": seeds("ours", 4.0, 4.2),
        "no-muon": seeds("no-muon", 4.5, 4.9),  # 0.5 and 0.7 more
        "paragraphs": seeds("paragraphs", 5.0, 5.0),
        "no-packing": seeds("no-packing", 5.5, 5.7),  # 0.5 and 0.7 more than paragraphs
    }
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.ablations(runs)[2:]]
    assert [line[-1] for line in lines] == ["", "+0.600 ± 1.271", "", "+0.600 ± 1.271"]
    assert lines[1][0] == "AdamW instead of Muon"
    assert lines[2][0] == "everything; paragraphs as documents"


def measured(entry: dict[str, Any], torch: str) -> dict[str, Any]:
    return {**entry, "processor": "A processor", "cores": 2, "versions": {"torch": torch, "numba": "0.1"}}


def test_machine_and_versions_are_those_of_the_entries(script: types.ModuleType) -> None:
    entries = [measured(run("ours", (180.0, 5.0), seed=seed), "2.0") for seed in (0, 1)]
    entries.append(measured(run("no-muon", (180.0, 5.0)), "2.0"))
    here = "2026-01-02, A processor, 2 cores, torch 2.0, numba 0.1, threads a system 2."
    assert script.made(entries) == [here]
    other = measured(run("modernbert-muon", (180.0, 5.0), threads=1), "2.1")
    assert script.made([*entries, other]) == [
        f"- ours, no-muon: {here}",
        "- modernbert-muon: 2026-01-02, A processor, 2 cores, torch 2.1, numba 0.1, threads a system 1.",
    ]


def test_what_entries_do_not_say_is_not_made_up(script: types.ModuleType) -> None:
    entry = {**run("ours", (180.0, 5.0)), "processor": "A processor"}
    assert script.made([entry]) == [
        "2026-01-02, A processor, cores not recorded, versions not recorded, threads a system 2."
    ]
    del entry["date"], entry["processor"]
    assert script.made([entry])[0].startswith("not recorded, processor not recorded, cores not recorded, ")
