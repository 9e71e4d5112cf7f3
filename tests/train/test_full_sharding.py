"""Weights that are shared out over processes: what these do is what one process with whole weights does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule

import unmask
from tests.processes import in_processes
from tests.train.test_group import LENGTHS, PAIRS, PRETRAINED, Told, distance, masks_of
from unmask.commands.recipe import load_recipe
from unmask.core.errors import SettingsError
from unmask.model.encoder import MaskedLM
from unmask.train.checkpoints import list_checkpoints
from unmask.train.distributed import ALONE
from unmask.train.optimizer import FullSharding

FULL = "training.sharding=full"
THREE = "model.num_layers=3"
PARTS = [THREE, "training.micro_batch_tokens=64"]
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"settings": [THREE]},
    "parts": {
        # The processes have rows for unequal numbers of parts at the end of an epoch; views leave the blocks.
        "settings": [*PARTS, "training.optimizer.kind=adamw", "training.gradient_checkpointing=true",
                     "model.layout=roberta-prelayernorm", "training.batch_tokens=288",
                     "objectives.retromae.prediction_rate=0.7"],
    },
    "few rows": {"settings": ["training.batch_tokens=32"]},
    "adaptive": {"settings": ["masking.strategy=adaptive", "masking.refresh_steps=5"]},
    "pairs": {"settings": PAIRS},
    "lengths": {"settings": LENGTHS},
}  # fmt: skip
TROUBLES: dict[str, dict[str, Any]] = {
    name: {"settings": [*PARTS, "checkpoint.every_steps=2"], "trouble": [name, 5]}
    for name in ("forward", "backward", "infinite", "signal", "other")
}
# On a GPU, without compiled loops, weights of blocks are gathered in the type that they are computed with.
HALVES: dict[str, dict[str, Any]] = {
    name: {"settings": [THREE, "training.precision=bf16"], "trouble": [name, 0]} for name in ("operations", "half")
}


def shared_out(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {**run, "settings": [*run["settings"], FULL]} for name, run in runs.items()}


@pytest.fixture(scope="module")
def one(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """One process's runs, for which the setting changes nothing."""
    folder = tmp_path_factory.mktemp("one")
    runs = {**shared_out(RUNS), "whole": RUNS["plain"], "in parts": {"settings": PARTS}}
    return folder, in_processes(1, PRETRAINED, folder, {"data": str(data_folder), "runs": runs})[0]


@pytest.fixture(scope="module")
def two(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Told]]:
    """The same runs by two processes, those that one of them meets something in, and one that goes on."""
    folder = tmp_path_factory.mktemp("two")
    runs = shared_out(RUNS | TROUBLES | HALVES | {"forecast": RUNS["plain"]})
    runs["owners go on"] = {"settings": [*TROUBLES["signal"]["settings"]], "resume": True, "of": "signal"}
    return folder, in_processes(2, PRETRAINED, folder, {"data": str(data_folder), "runs": runs})


def test_one_process_has_all_of_it(one: tuple[Path, Told]) -> None:
    assert one[1]["plain"] == one[1]["whole"] | {"evaluations": one[1]["plain"]["evaluations"]}


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_with_half_the_weights_each_train_as_one(
    one: tuple[Path, Told], two: tuple[Path, list[Told]], name: str
) -> None:
    (folder_1, told_1), (folder_2, told_2) = one, two
    alone, first, second = told_1[name], told_2[0][name], told_2[1][name]
    assert masks_of([told_1], name) == masks_of(told_2, name)
    for figure in ("lengths", "rates"):
        assert alone[figure] == first[figure] == second[figure]
    assert len(alone["losses"]) == 20
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], abs=1e-6)
    assert first["weights"] == second["weights"]
    assert distance(folder_1 / f"{name}-0.safetensors", folder_2 / f"{name}-0.safetensors") < 1e-3
    assert alone["losses"][0] - min(alone["losses"]) > 0.1
    for figure in ("validation_loss", "validation_loss_stderr"):
        assert alone["evaluations"][0][figure] == pytest.approx(first["evaluations"][0][figure], abs=1e-6)


def test_processes_make_as_many_parts_each(two: tuple[Path, list[Told]]) -> None:
    """Of nine rows one has four and the other five, in parts of two rows."""
    for told in two[1]:
        assert told["parts"]["micro_batches"] == [3] * 20


def test_the_first_writes_the_whole_model(one: tuple[Path, Told], two: tuple[Path, list[Told]]) -> None:
    folder_1, folder_2 = one[0] / "plain", two[0] / "plain"
    weights = load_file(two[0] / "plain-0.safetensors")
    written = load_file(folder_2 / "model" / "model.safetensors")
    assert torch.equal(written["model.embeddings.tok_embeddings.weight"], weights["encoder.tokens"])
    assert distance(folder_1 / "model" / "model.safetensors", folder_2 / "model" / "model.safetensors") < 1e-3
    losses = [json.loads((folder / "summary.json").read_text())["validation_loss"] for folder in (folder_1, folder_2)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert unmask.load(folder_2 / "model").embed(["a cat"]).shape == (1, 32)
    assert (folder_2 / "report.html").is_file()


def test_it_is_the_same_to_gather_weights_in_half_precision(two: tuple[Path, list[Told]]) -> None:
    first = two[1][0]
    assert first["half"]["losses"] == first["operations"]["losses"] != first["plain"]["losses"]
    assert first["half"]["weights"] == first["operations"]["weights"]
    assert first["half"]["gathered"] == ["torch.bfloat16", *first["operations"]["gathered"]]


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_memory_that_one_lacks_in_the_midst_of_a_model(
    one: tuple[Path, Told], two: tuple[Path, list[Told]], name: str
) -> None:
    """The other has nobody to wait for in vain, and all take smaller parts."""
    for told in two[1]:
        assert told[name]["ended"] is None
        assert told[name]["micro_batches"] == [2] * 4 + [4] * 16
        assert told[name]["losses"] == pytest.approx(one[1]["in parts"]["losses"], abs=1e-6)
    assert two[1][0][name]["weights"] == two[1][1][name]["weights"]


def test_what_befalls_one_befalls_all(two: tuple[Path, list[Told]]) -> None:
    folder, (first, second) = two
    assert first["infinite"]["ended"][0] == "DivergedError"
    assert "the gradient of step 5 has the norm" in first["infinite"]["ended"][1]
    assert (
        f"the latest checkpoint is {folder / 'infinite' / 'checkpoints' / 'step-0000000'}"
        in first["infinite"]["ended"][1]
    )
    assert second["infinite"]["ended"][0] == "EndedElsewhereError"
    assert second["other"]["ended"] == ["ValueError", "something else"]
    assert first["other"]["ended"][0] == "FailedElsewhereError"
    for told in (first, second):
        assert told["signal"]["ended"][0] == "Interrupted"
        assert len(told["signal"]["losses"]) == 5


def test_a_run_goes_on_with_whole_weights(one: tuple[Path, Told], two: tuple[Path, list[Told]]) -> None:
    for told in two[1]:
        assert told["owners go on"]["losses"] == pytest.approx(one[1]["in parts"]["losses"][5:], abs=1e-5)
    files = [path for path in (two[0] / "signal" / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    kept = json.loads((list_checkpoints(two[0] / "signal" / "checkpoints")[-1] / "state.json").read_text())
    assert kept["step"] == 20


def test_a_dry_run_measures_each_process(two: tuple[Path, list[Told]]) -> None:
    first, second = (told["forecast"] for told in two[1])
    assert first["processes"] == 2
    assert first["memory_bytes"] == second["memory_bytes"] > 0
    assert first["disk_bytes"] > 4 * 4 * first["num_parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "count", "sharding"), [("full", 1, "full"), ("full", 3, "full"), ("owners", 2, "full")]
)
def test_a_run_goes_on_however_weights_are_shared_out(
    one: tuple[Path, Told], data_folder: Path, tmp_path: Path, saved: str, count: int, sharding: str
) -> None:
    signal = TROUBLES["signal"]
    given = {"data": str(data_folder)}
    begun = {"signal": {**signal, "settings": [*signal["settings"], f"training.sharding={saved}"]}}
    in_processes(2, PRETRAINED, tmp_path, {**given, "runs": begun})
    last = list_checkpoints(tmp_path / "signal" / "checkpoints")[-1]
    tensors = {name: t for path in last.glob("optimizer-*-of-2.safetensors") for name, t in load_file(path).items()}
    assert {name: t.shape for name, t in tensors.items() if name == "adamw.exp_avg.encoder.tokens"} == {
        "adamw.exp_avg.encoder.tokens": load_file(last / "model.safetensors")["encoder.tokens"].shape
    }
    goes_on = {"signal": {"settings": [*signal["settings"], f"training.sharding={sharding}"], "resume": True}}
    for told in in_processes(count, PRETRAINED, tmp_path, {**given, "runs": goes_on}):
        assert told["signal"]["losses"] == pytest.approx(one[1]["in parts"]["losses"][5:], abs=1e-5)


def test_an_older_torch_is_said(make_model: Callable[..., MaskedLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FSDPModule, "reset_iter_state")
    said = r"training.sharding = 'full' needs torch 2.13 or newer; this is .*\. Take 'owners'"
    with pytest.raises(SettingsError, match=said):
        FullSharding(make_model(), {}, ALONE)


def test_what_does_not_combine_is_said() -> None:
    with pytest.raises(SettingsError, match="sharding = 'full' does not combine with compile_blocks = 'yes'"):
        load_recipe(options={"training.steps": 1}, overrides=(FULL, "training.compile_blocks=yes"))
