"""Several processes that train one model: results equal those of one process, and a failure of one ends all."""

from __future__ import annotations

import json
import shutil
import signal
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.command_line import PATIENCE
from tests.processes import ended, in_processes, start
from tests.train.group_runs import STEPS
from unmask.train.checkpoints import list_checkpoints
from unmask.train.distributed import TIMEOUT, Group, GroupError, join_group

PRETRAINED = "tests.train.group_runs:pretrained"
Told = dict[str, dict[str, Any]]
"""A process's record of each run."""

PAIRS = [
    "model.layout=bert", "masking.strategy=span", "objectives.span_boundary.weight=0.5",
    "objectives.pairs.kind=sentence_order", "objectives.retromae.weight=0.5",
]  # fmt: skip
LENGTHS = ["training.length_schedule.places=[0.0, 0.5]", "training.length_schedule.lengths=[16, 32]"]
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"settings": []},
    "epochs": {
        # Four batches an epoch, in parts of which the processes make unequal numbers.
        "settings": ["training.optimizer.kind=adamw", "training.sequence_length=128", "training.batch_tokens=8192",
                     "training.micro_batch_tokens=2048"], "samples": True,
    },
    "few rows": {"settings": ["training.batch_tokens=32"]},
    "adaptive": {"settings": ["masking.strategy=adaptive", "masking.refresh_steps=5"]},
    "pairs": {"settings": PAIRS},
}  # fmt: skip
TROUBLES = {
    name: {"settings": ["checkpoint.every_steps=2"], "trouble": [name, 5]}
    for name in ("memory", "infinite", "signal", "data", "other")
}


@pytest.fixture(scope="module")
def one(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """One process's runs, and their folder."""
    folder = tmp_path_factory.mktemp("one")
    return folder, in_processes(1, PRETRAINED, folder, {"data": str(data_folder), "runs": RUNS})[0]


@pytest.fixture(scope="module")
def two(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Told]]:
    """The same runs by two processes, and the runs in which one of them has trouble."""
    folder = tmp_path_factory.mktemp("two")
    clock = {"clock": {"settings": LENGTHS, "steps": None, "minutes": 0.03, "trouble": ["clock", 0]}}
    given = {"data": str(data_folder), "runs": RUNS | clock | TROUBLES}
    return folder, in_processes(2, PRETRAINED, folder, given)


def masks_of(results: list[Told], name: str) -> list[list[str]]:
    """Hashes of the masks of each step, in the order of its rows."""
    return [list(chain(*parts)) for parts in zip(*(each[name]["masks"] for each in results), strict=True)]


def distance(one: Path, other: Path) -> float:
    """The largest relative distance between the weights of two files."""
    a, b = load_file(one), load_file(other)
    return max(float((a[name] - b[name]).norm() / a[name].norm().clamp_min(1e-9)) for name in a)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one(one: tuple[Path, Told], two: tuple[Path, list[Told]], name: str) -> None:
    (folder_1, told_1), (folder_2, told_2) = one, two
    alone, first, second = told_1[name], told_2[0][name], told_2[1][name]
    assert masks_of([told_1], name) == masks_of(told_2, name)
    assert [any(map(any, each["masks"])) for each in (first, second)] == [name != "few rows", True]
    for figure in ("lengths", "rates"):
        assert alone[figure] == first[figure] == second[figure]
    assert len(alone["losses"]) == STEPS
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], abs=1e-6)
    assert first["weights"] == second["weights"]
    for number in (0, 1):
        assert distance(folder_1 / f"{name}-0.safetensors", folder_2 / f"{name}-{number}.safetensors") < 1e-4
    assert alone["losses"][0] - min(alone["losses"]) > 0.1
    for figure in ("validation_loss", "validation_loss_stderr"):
        assert alone["evaluations"][0][figure] == pytest.approx(first["evaluations"][0][figure], abs=1e-9)


def test_the_time_is_the_first_ones(two: tuple[Path, list[Told]]) -> None:
    """The other's clock runs thirty times as fast."""
    first, second = (each["clock"] for each in two[1])
    assert len(first["losses"]) > 5
    for figure in ("losses", "rates", "lengths", "weights"):
        assert first[figure] == second[figure]
    assert {16, 32} == set(first["lengths"])


def test_memory_that_one_lacks(one: tuple[Path, Told], two: tuple[Path, list[Told]]) -> None:
    """It takes smaller parts, the others do not; results change only by rounding."""
    first, second = (results["memory"] for results in two[1])
    assert first["micro_batches"] == [1] * STEPS
    assert second["micro_batches"] == [1] * 4 + [2] * (STEPS - 4)
    for results in (first, second):
        assert results["losses"] == pytest.approx(one[1]["plain"]["losses"], abs=1e-6)
    assert first["weights"] == second["weights"]


def test_a_gradient_that_is_infinite_in_one_ends_all(two: tuple[Path, list[Told]]) -> None:
    folder, (first, second) = two
    assert first["infinite"]["ended"][0] == "DivergedError"
    latest = folder / "infinite" / "checkpoints" / "step-00000004"
    assert f"the latest checkpoint is {latest}" in first["infinite"]["ended"][1]
    assert second["infinite"]["ended"][0] == "EndedElsewhereError"
    assert len(first["infinite"]["losses"]) == len(second["infinite"]["losses"]) == 4


def test_a_signal_to_one_saves_and_ends_all(two: tuple[Path, list[Told]]) -> None:
    folder, results = two
    for each in results:
        assert each["signal"]["ended"][0] == "Interrupted"
        assert len(each["signal"]["losses"]) == 5
    assert "stopped and saved at step 5" in results[0]["signal"]["ended"][1]
    saved = list_checkpoints(folder / "signal" / "checkpoints")[-1]
    assert sorted(path.name for path in saved.iterdir()) == [
        "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    assert not [path for path in saved.parent.iterdir() if not path.is_dir()]


def test_whatever_else_befalls_one_ends_all(two: tuple[Path, list[Told]]) -> None:
    first, second = (each["other"]["ended"] for each in two[1])
    assert second == ["ValueError", "something else"]
    assert first[0] == "GroupError"


def test_other_data_of_one_ends_all_before_anything(two: tuple[Path, list[Told]]) -> None:
    first, second = (each["data"] for each in two[1])
    assert first["ended"] == ["RunError", first["ended"][1]]
    assert "process 1 has another recipe, or other data," in first["ended"][1]
    assert second["ended"][0] == "EndedElsewhereError"
    assert first["losses"] == second["losses"] == first["evaluations"] == []


@pytest.mark.slow
def test_a_run_goes_on_with_other_numbers_of_processes(
    one: tuple[Path, Told], two: tuple[Path, list[Told]], data_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(two[0] / "signal", tmp_path / "signal")
    runs = {"signal": {"settings": ["checkpoint.every_steps=2"], "resume": True}}
    results = in_processes(1, PRETRAINED, tmp_path, {"data": str(data_folder), "runs": runs})
    for each in results:
        assert each["signal"]["losses"] == pytest.approx(one[1]["plain"]["losses"][5:], abs=1e-5)
    suffixes = {path.suffix for path in (tmp_path / "signal" / "checkpoints").rglob("*") if path.is_file()}
    assert suffixes == {".safetensors", ".json"}


@pytest.mark.slow
def test_who_dies_or_hangs_ends_the_others(data_folder: Path, tmp_path: Path) -> None:
    settings = ["checkpoint.every_steps=2"]
    runs = {"run": {"settings": settings, "trouble": ["hang", 5]}}
    processes = start(2, PRETRAINED, tmp_path, {"data": str(data_folder), "runs": runs, "answer": 2.0})
    assert processes[0].wait(timeout=PATIENCE) == 0, processes[0].communicate()[1]
    processes[1].send_signal(signal.SIGKILL)
    assert ended(processes)[1][0] == -signal.SIGKILL
    kind_of, text = json.loads((tmp_path / "0.json").read_text())["run"]["ended"]
    assert kind_of == "GroupError"
    assert text.startswith("process 0 of 2 (counted from 0) stops: ")
    assert "if another process has ended, its own message says why. Continue with --resume" in text
    assert "\n" not in text
    saved = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert saved[-1].name in ("step-00000002", "step-00000004")


@pytest.mark.slow
def test_a_signal_ends_a_process_that_waits_for_a_stopped_one(data_folder: Path, tmp_path: Path) -> None:
    """Python's handler is not called while torch waits in an update."""
    runs = {"run": {"settings": ["checkpoint.every_steps=2"], "trouble": ["hang", 5]}}
    processes = start(2, PRETRAINED, tmp_path, {"data": str(data_folder), "runs": runs, "stuck": 1.0})
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "run" / "checkpoints" / "step-00000004").is_dir() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)  # until the fifth step waits
    processes[0].send_signal(signal.SIGTERM)
    try:
        [(code, errors)] = ended(processes[:1])
    finally:
        processes[1].kill()
    assert code == 128 + signal.SIGTERM
    assert "ended by SIGTERM while other processes did not answer" in errors


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads have no names to be read here")
def test_no_thread_of_a_group_is_left_at_the_end(tmp_path: Path) -> None:
    """A thread that frees a tensor while Python ends aborts the process."""
    for each in in_processes(2, "tests.train.group_runs:left", tmp_path, {}):
        before, after = each["threads"]
        assert before > 0
        assert after == 0


def test_hosts_gather_in_a_group_of_gpus(tmp_path: Path) -> None:
    results = in_processes(2, "tests.train.group_runs:gathered_on_hosts", tmp_path, {})
    assert results == [[0, 1, 1]] * 2


def test_an_answer_at_the_end_of_a_slice_is_one() -> None:
    """torch reports that the time slice is over; when we look, the answer has come, or the other process's error."""

    class Work:
        def __init__(self, error: RuntimeError | None) -> None:
            self.error, self.waits = error, 0

        def is_completed(self) -> bool:
            return self.waits > 0

        def wait(self, timeout: Any = None) -> None:
            self.waits += 1
            if timeout is not None:
                raise RuntimeError("Operation timed out!")
            if self.error is not None:
                raise self.error

    group, work = Group(), Work(None)
    group.world_size = 2
    group._wait(lambda: work, TIMEOUT)
    assert work.waits == 2
    with pytest.raises(GroupError, match="closed by peer"):
        group._wait(lambda: Work(RuntimeError("Connection closed by peer")), TIMEOUT)


def test_tasks_of_slurm_do_not_train_alone_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "1")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(GroupError, match="MASTER_ADDR"):
        join_group()


@pytest.mark.parametrize(("num_gpus", "chosen"), [(4, [3]), (1, []), (2, None)])
def test_a_process_takes_the_gpu_of_its_number(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, chosen: list[int] | None
) -> None:
    """If it sees a single GPU, it takes that; torch's error about the fake launch comes after the choice."""
    for name, value in {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    taken: list[int] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    with pytest.raises(GroupError, match="no GPU" if chosen is None else "cannot be reached"):
        join_group()
    assert taken == (chosen or [])


def test_one_process_of_a_launcher_says_that_it_trains_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert join_group().world_size == 1
    assert "one of 4 SLURM tasks" in caplog.text
