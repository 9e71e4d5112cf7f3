"""Embedders of several processes: the wrong answers of a step are those of all, so that they do what one does."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.commands.embedder_runs import told_of
from tests.commands.test_embedder import FAST, base, corpus
from tests.processes import in_processes
from tests.train.test_group import distance
from unmask.train.checkpoints import list_checkpoints

__all__ = ["base", "corpus"]  # fixtures
EMBEDDED = "tests.commands.embedder_runs:embedded"
Told = dict[str, dict[str, Any]]
"""What a process tells of each run."""

STEPS = 20
PARTS = FAST | {
    "embedder.micro_batch_tokens": 64,
    "embedder.hard_negatives.after": 0.5,
    "embedder.dimensions": [16],
    "embedder.patience": 9,
    "embedder.learning_rate": 1e-3,
}
LARGE = FAST | {"embedder.batch_size": 32}
SPARSE = FAST | {f"embedder.sparse.{name}_weight": 1e-3 for name in ("first", "second")}
SPARSE |= {"embedder.temperature": 1.0}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"settings": FAST},
    "parts": {"settings": PARTS},  # in rows one at a time, of which the processes have unequal numbers
    "large": {"settings": LARGE},
    "few rows": {"settings": FAST | {"embedder.batch_size": 3}},
    "sparse": {"settings": SPARSE | {"embedder.micro_batch_tokens": 128}},
}


def runs(base: Path, corpus: Path, asked: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Arguments of the processes."""
    return {"base": str(base), "corpus": str(corpus), "runs": {n: {"steps": STEPS} | of for n, of in asked.items()}}


@pytest.fixture(scope="module")
def one(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """One process's runs, and their folder."""
    folder = tmp_path_factory.mktemp("one")
    return folder, in_processes(1, EMBEDDED, folder, runs(base, corpus, RUNS))[0]


@pytest.fixture(scope="module")
def two(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Told]]:
    """The same runs by two processes, and one in which the second is told to stop."""
    folder = tmp_path_factory.mktemp("two")
    stopped = {"settings": LARGE | {"embedder.checkpoint.every_steps": 2}, "stop_at": 5}
    given = runs(base, corpus, RUNS | {"signal": stopped})
    return folder, in_processes(2, EMBEDDED, folder, given)


def check(one: tuple[Path, Told], folder: Path, told: list[Told], name: str) -> None:
    """Several processes did what one does."""
    alone, *all_of_it = (each[name] for each in (one[1], *told))
    assert [list(chain(*rows)) for rows in zip(*(each["rows"] for each in all_of_it), strict=True)] == alone["rows"]
    assert len(alone["losses"]) == STEPS
    assert alone["losses"][0] != pytest.approx(alone["losses"][-1], abs=1e-2)
    for each in all_of_it:
        assert each["losses"] == pytest.approx(alone["losses"], abs=2e-6)
        assert each["mlm"] == pytest.approx(alone["mlm"], abs=2e-6)
        assert each["pairs"] == alone["pairs"]
        assert each["weights"] == all_of_it[0]["weights"]
        assert each["evaluations"] == all_of_it[0]["evaluations"]
    for number in range(len(told)):
        assert distance(one[0] / f"{name}-0.safetensors", folder / f"{name}-{number}.safetensors") < 1e-3
    for line, wanted in zip(all_of_it[0]["evaluations"], alone["evaluations"], strict=True):
        assert line["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert told_of(folder, name)[-1]["step"] == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one(one: tuple[Path, Told], two: tuple[Path, list[Told]], name: str) -> None:
    folder, told = two
    check(one, folder, told, name)
    first, second = (each[name] for each in told)
    assert first["summary"] == second["summary"]
    if name == "parts":
        assert max(first["micro_batches"]) > 1
        assert any(a != b for a, b in zip(first["micro_batches"], second["micro_batches"], strict=True))
        assert (folder / name / "negatives.safetensors").is_file()
    assert any(not rows for rows in first["rows"]) == (name == "few rows")


@pytest.mark.slow
def test_a_signal_to_one_ends_all_and_any_number_goes_on(
    one: tuple[Path, Told], two: tuple[Path, list[Told]], base: Path, corpus: Path, tmp_path: Path
) -> None:
    for each in two[1]:
        assert each["signal"]["ended"][0] == "Interrupted"
        assert len(each["signal"]["losses"]) == 5
    assert "stopped and saved at step 5" in two[1][0]["signal"]["ended"][1]
    shutil.copytree(two[0] / "signal", tmp_path / "signal")
    assert list_checkpoints(tmp_path / "signal" / "checkpoints")[-1].name == "step-00000005"
    settings = LARGE | {"embedder.checkpoint.every_steps": 2}
    asked = {"signal": {"settings": settings, "resume": True}}
    told = in_processes(1, EMBEDDED, tmp_path, runs(base, corpus, asked))
    for each in told:
        assert each["signal"]["losses"] == pytest.approx(one[1]["large"]["losses"][5:], abs=5e-6)
        assert [line["step"] for line in each["signal"]["evaluations"]] == [0, 5, 10, 15, 20]
        assert each["signal"]["summary"] == told[0]["signal"]["summary"]
