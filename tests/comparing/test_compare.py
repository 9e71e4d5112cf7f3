from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMALL
from unmask.comparing import compare as comparing
from unmask.comparing import trials as module
from unmask.comparing.compare import Plan, compare
from unmask.comparing.trials import Protocol, TaskFiles, task_files
from unmask.errors import RunError, SettingsError

TINY = (*SMALL, "model.num_layers=1", "model.hidden_size=16")


def plan(data: Path, **changes: Any) -> Plan:
    own = {name: changes.pop(name) for name in ("recipes", "seeds") if name in changes}
    protocol = Protocol(**{"steps": 3, "settings": TINY, **changes})
    return Plan(**{"recipes": ("random", "span"), "data": (str(data),), "seeds": 2, "protocol": protocol, **own})


def test_a_comparison_goes_on_and_seeds_may_be_added(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.jsonl").write_text('{"sentence_good": "The cat sees.", "sentence_bad": "Cat the sees."}\n')
    asked = plan(data_folder, pairs=str(tmp_path / "p.jsonl"))
    out = tmp_path / "out"
    real, trained = module.pretrain, []

    def stops(*paths: Any, **options: Any) -> Any:
        trained.append((options["strategy"], options["seed"]))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return real(*paths, **options)

    monkeypatch.setattr(module, "pretrain", stops)
    with pytest.raises(KeyboardInterrupt):
        compare(asked, out)
    result = compare(asked, out)
    assert trained == [("random", 0), ("span", 0), ("span", 1), ("span", 1), ("random", 1)], "in turn, none twice"
    assert set(result["recipes"]) == {"random", "span"}
    assert set(result["by_figure"]) == {"loss", "bits_per_byte", "pairs_error"}
    runs = result["runs"]["span"]
    assert [run["seed"] for run in runs] == [0, 1]
    assert result["recipes"]["span"]["values"] == tuple(run["loss"] for run in runs)
    assert len({run["predicted_tokens"] for name in runs_by(result) for run in name}) == 1, "the same masks"
    [difference] = result["differences"]
    assert difference["mean"] == pytest.approx(result["recipes"]["random"]["mean"] - result["recipes"]["span"]["mean"])
    assert (out / "result.svg").read_text().startswith("<svg")
    assert json.loads((out / "result.json").read_text())["verdict"] == result["verdict"]
    compare(plan(data_folder, pairs=asked.protocol.pairs, seeds=3), out)
    assert trained[5:] == [("random", 2), ("span", 2)]


def runs_by(result: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return list(result["runs"].values())


def test_folders_of_something_else(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(RunError, match="is not empty and holds no comparison; give another --out"):
        compare(plan(data_folder), tmp_path / "mine")
    monkeypatch.setattr(comparing, "measured_run", lambda *_, **__: {"loss": 1.0, "bits_per_byte": None})
    assert compare(plan(data_folder), tmp_path / "out")["verdict"].startswith(
        "no difference shown in loss over 2 seeds"
    )
    with pytest.raises(RunError, match="holds a comparison of other recipes, data or budget"):
        compare(plan(data_folder, steps=4), tmp_path / "out")


def test_plans_that_cannot_be() -> None:
    here = Path()
    for changes, message in (
        ({"recipes": ("random",)}, "give two or more different recipes"),
        ({"recipes": ("random", "random")}, "give two or more different recipes"),
        ({"recipes": ("a/x.toml", "b/x.toml")}, "recipes are told apart by the names of their files; rename one"),
        ({"minutes": 1.0}, "give either minutes or steps for each run"),
        ({"steps": None}, "give either minutes or steps for each run"),
        ({"seeds": 0}, "seeds: a number from 1 on, not 0"),
    ):
        with pytest.raises(SettingsError, match=message):
            plan(here, **changes)


def test_models_are_compared_by_a_task_too(data_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "moods.tsv"
    file.write_text("".join(f"{text}\t{mood}\n" for text, mood in [("The cat sees.", "up"), ("No dog.", "down")] * 8))
    task = TaskFiles(kind="classify", train=str(file), validation=str(file))
    settings = (*TINY, "finetune.epochs=1", "finetune.metric=macro_f1")
    asked = plan(data_folder, seeds=1, task=task, settings=settings)
    result = compare(asked, tmp_path / "out")
    errors = result["by_figure"]["task_error"]["recipes"]
    for name, found in errors.items():
        assert result["runs"][name][0]["task_metric"] == "macro_f1"
        summary = json.loads((tmp_path / "out" / "runs" / f"{name}-0" / "finetuned" / "summary.json").read_text())
        assert found["mean"] == pytest.approx(1.0 - summary["metrics"]["macro_f1"])
        assert summary["seeds"][0]["seed"] == 0


def test_what_a_task_takes() -> None:
    assert task_files(None, None, None) is None
    assert task_files("tag", "a", "b") == TaskFiles(kind="tag", train="a", validation="b")
    with pytest.raises(SettingsError, match="all of --task, --train and --validation"):
        task_files("tag", "a", None)
    with pytest.raises(SettingsError, match=r"finetune.epochs=1: no task is given; name one with --task"):
        Protocol(steps=1, settings=("finetune.epochs=1",))
