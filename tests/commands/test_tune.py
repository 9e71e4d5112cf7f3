from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMALL
from unmask.commands import tune as module
from unmask.commands.recipe import load_recipe
from unmask.commands.tune import Dimension, read_dimension, usual_dimensions
from unmask.core.errors import DataError, DivergedError, RunError, SettingsError
from unmask.core.interruption import Interrupted

pytest.importorskip("optuna")
TINY = (*SMALL, "model.num_layers=1", "model.hidden_size=16")
RATES = "training.learning_rate=0.001..0.02"


def tune(data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"recipe": "tiny", "search": (RATES, "model.num_layers=1,2"), "trials": 3}
    return module.tune(**{**usual, "data": data, "out": out, "steps": 2, "settings": TINY, **changes}).to_dict()


def loss_by_rate(name: str, plan: Any, *, overrides: Any, folder: Path, **_: Any) -> dict[str, Any]:
    """A run whose loss is the learning rate's distance from 0.004."""
    rate = next(float(text.partition("=")[2]) for text in overrides if text.startswith("training.learning_rate"))
    (folder / "model").mkdir(parents=True)
    return {"loss": abs(rate - 0.004)}


@pytest.mark.usefixtures("drawn")
def test_a_search_on_real_runs(data_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = tune(data_folder, out)
    assert [trial["state"] for trial in result["trials"]] == ["COMPLETE"] * 3
    usual = load_recipe("tiny").training.learning_rate
    assert result["own"]["parameters"] == {"training.learning_rate": usual, "model.num_layers": 1}
    best = min(result["trials"], key=lambda trial: trial["loss"])
    assert (result["best"]["number"], result["best"]["loss"]) == (best["number"], best["loss"])
    assert json.loads((out / "result.json").read_text()) == result
    assert (out / "result.svg").read_text().startswith("<svg")
    for trial in result["trials"]:
        folder = out / "trials" / str(trial["number"])
        recipe = load_recipe(str(folder / "recipe.toml"), complete=False)
        made = {"training.learning_rate": recipe.training.learning_rate, "model.num_layers": recipe.model.num_layers}
        assert made == trial["parameters"]
        assert json.loads((folder / "evaluation.json").read_text())["loss"] == trial["loss"]
        assert (folder / "model").is_dir() == (trial == best), "only the best keeps its model"
    assert load_recipe(result["best"]["recipe"]).model.hidden_size == 16


def test_a_search_goes_on_and_makes_again_what_was_interrupted(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(*arguments: Any, **options: Any) -> Any:
        seen.append(options["overrides"])
        if len(seen) == 2:
            raise Interrupted(2, "stopped")
        if len(seen) == 4:
            raise DivergedError("not finite")
        return loss_by_rate(*arguments, **options)

    monkeypatch.setattr(module, "measured_run", run)
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        tune(data_folder, out, trials=4)
    result = tune(data_folder, out, trials=4)
    assert seen[2] == seen[1], "the interrupted trial has its numbers again"
    states = [trial["state"] for trial in result["trials"]]
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "PRUNED", "COMPLETE"]
    assert len(tune(data_folder, out, trials=4)["trials"]) == 5, "nothing is left to do"
    assert len(seen) == 5
    more = tune(data_folder, out, trials=12)
    assert len([trial for trial in more["trials"] if trial["state"] != "FAIL"]) == 12
    losses = [trial["loss"] for trial in more["trials"] if trial["loss"] is not None]
    assert more["best"]["loss"] == min(losses)
    assert more["best"]["loss"] < losses[0], "better than the recipe's own"
    with pytest.raises(RunError, match="search"):
        tune(data_folder, out, search=(RATES,))


def join(data: Path, out: Path) -> None:
    module.measured_run = loss_by_rate  # type: ignore[assignment]
    tune(data, out, trials=10)


def test_processes_share_a_search(data_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=join, args=(data_folder, out)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    trials = json.loads((out / "result.json").read_text())["trials"]
    assert 10 <= len(trials) <= 11
    assert sorted(trial["number"] for trial in trials) == list(range(len(trials)))


def test_dimensions() -> None:
    assert read_dimension("training.learning_rate=1e-3..0.02") == Dimension(
        "training.learning_rate", (0.001, 0.02), is_range=True
    )
    layers = read_dimension("model.num_layers = 2..6")
    assert read_dimension("masking.strategy=random,span") == Dimension("masking.strategy", ("random", "span"))
    assert layers.holds(3)
    assert not any(layers.holds(value) for value in (2.5, 7, True, "3", None))
    for text in ("learning_rate=1..2", "training.seed", "a.b=1", "a.b=1,1", "a.b=x..2", "a.b=true..2", "a.b=2..1"):
        with pytest.raises(SettingsError, match="search"):
            read_dimension(text)


def test_usual_dimensions() -> None:
    by_key = {dimension.key: dimension for dimension in usual_dimensions(load_recipe("tiny"))}
    assert set(by_key) == {"training.learning_rate", "training.batch_tokens", "model.num_layers", "masking.rate.start"}
    assert by_key["training.batch_tokens"] == Dimension("training.batch_tokens", (2048, 4096, 8192))
    constant = load_recipe("tiny", overrides=("masking.rate=0.2",))
    assert usual_dimensions(constant)[-1].key == "masking.rate"
    further = load_recipe("tiny", options={"start.checkpoint": "runs/mine/model"}, complete=False)
    assert {dimension.key for dimension in usual_dimensions(further)} == set(by_key) - {"model.num_layers"}


@pytest.mark.parametrize(
    ("search", "named"),
    [
        ((RATES, RATES), "training.learning_rate"),
        (("masking.rate=0.1,0.2", "masking.rate.start=0.1..0.3"), "masking.rate"),
        (("tokenizer.vocab_size=100..200",), "tokenizer.vocab_size"),
        (("masking.rate=0.1..1.5",), "masking.rate"),
        (("masking.strategy=random,entity",), "entities"),
    ],
)
def test_plans_that_cannot_be(data_folder: Path, tmp_path: Path, search: tuple[str, ...], named: str) -> None:
    with pytest.raises((SettingsError, DataError), match=named):
        tune(data_folder, tmp_path / "out", search=search)
    assert not (tmp_path / "out").exists()
