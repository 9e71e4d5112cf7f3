"""Which size a budget of minutes gets: settings left open, the cost of a step, and the choice."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import unmask
from tests.command_line import Main
from unmask.commands import sizing
from unmask.commands.recipe import load_recipe, new_model, requested_recipe
from unmask.commands.recipe_files import AUTO, CONTINUING, DEFAULT, usual_recipe
from unmask.commands.run_data import PreparedData, open_prepared
from unmask.commands.sizing import Cost, Speed, TextFigures
from unmask.core.errors import RunError, SettingsError
from unmask.data.store import TokenChunk

TEXT = TextFigures(entropy=6.5, neighbours=sizing.NEIGHBOURS, token_bytes=3.3, tokens=2_000_000)


@pytest.fixture(scope="module")
def data(run: unmask.Run) -> PreparedData:
    return open_prepared(run.folder / "data")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ([], AUTO),
        (["training.minutes", "masking.strategy", "training.sequence_length"], AUTO),
        (["training.steps"], DEFAULT),
        (["training.minutes", "model.layout"], DEFAULT),
        (["training.minutes", "objectives.retromae.weight"], DEFAULT),
        (["training.minutes", "start.checkpoint"], CONTINUING),
    ],
)
def test_who_names_no_size_has_it_chosen(keys: list[str], name: str) -> None:
    assert usual_recipe(keys) == name


def test_only_minutes_are_a_budget_for_it() -> None:
    assert requested_recipe(minutes=3.0).sizing == "budget"
    assert requested_recipe(steps=3).sizing is None
    for settings in ({"training.steps": 9}, {"training": {"tokens": 900}}):
        with pytest.raises(RunError, match="minutes"):
            requested_recipe(minutes=3.0, settings=settings)
    with pytest.raises(SettingsError, match="sizing"):
        requested_recipe("auto", steps=3)


@pytest.mark.parametrize(
    "setting", ["model.num_layers=4", "training.batch_tokens=8192", "training.optimizer.kind=adamw"]
)
def test_what_is_chosen_cannot_be_set(tmp_path: Path, setting: str) -> None:
    """It would be ignored, even where it is the usual value. Settings that change no size can be set."""
    key = setting.partition("=")[0]
    with pytest.raises(SettingsError, match=key):
        requested_recipe("auto", minutes=3.0, settings=[setting])
    auto = requested_recipe("auto", minutes=3.0, settings=["model.dropout=0.1", "training.optimizer.momentum=0.9"])
    (tmp_path / "own.toml").write_text(auto.to_toml())
    assert requested_recipe(tmp_path / "own.toml") == auto
    larger = auto.model_copy(update={"model": auto.model.model_copy(update={"num_layers": 6})})
    (tmp_path / "own.toml").write_text(larger.to_toml())
    with pytest.raises(SettingsError, match="model.num_layers"):
        requested_recipe(tmp_path / "own.toml")


def test_the_size_of_a_step_of_long_rows_is_chosen_too(tmp_path: Path) -> None:
    auto = requested_recipe(minutes=3.0, settings={"training.sequence_length": 8192})
    assert (auto.sizing, auto.training.batch_tokens) == ("budget", 4 * 8192)
    (tmp_path / "own.toml").write_text(auto.to_toml())
    assert requested_recipe(tmp_path / "own.toml") == auto


def test_what_is_not_chosen_is_as_in_tiny() -> None:
    """So that training with steps differs from training with minutes only in its sizes."""
    auto, tiny = requested_recipe(minutes=3.0), requested_recipe("tiny", minutes=3.0)
    same = sizing.with_sizes(auto, sizing.sizes_of(tiny))
    assert same == tiny.model_copy(update={"description": same.description})


@pytest.mark.parametrize(("layers", "width"), sizing.SIZES[:4])
def test_parameters_are_counted_as_they_are(data: PreparedData, layers: int, width: int) -> None:
    recipe = sizing.with_sizes(requested_recipe(minutes=1.0), sizing.sizes(layers, width, 4096))
    model = new_model(recipe, data.tokenizer)
    matrices = sum(p.numel() for block in model.encoder.blocks for p in block.parameters() if p.ndim == 2)
    assert sizing.block_parameters(layers, width) == matrices
    entries = (data.tokenizer.vocab_size, data.tokenizer.vocab_size)
    cost = sizing.cost_of(layers, width, entries=entries, length=128, rate=0.35)
    assert cost.parameters == pytest.approx(model.num_parameters, rel=0.02)
    assert cost.operations > 6 * matrices


def test_two_steps_tell_the_speed() -> None:
    cost, speed = Cost(operations=2e7, parameters=4_000_000), Speed(2e-11, 1e-8)
    seconds = [speed.step_seconds(cost, positions) for positions in (1024, 4096)]
    assert seconds[1] == pytest.approx(2e7 * 4096 * 2e-11 + 0.04)
    assert tuple(Speed.through(cost, (1024, 4096), seconds)) == pytest.approx(tuple(speed))
    noisy = Speed.through(cost, (1024, 4096), (0.2, 0.1))
    assert noisy.step_seconds(cost, 4096) == pytest.approx(0.1), "and no step is free"
    assert noisy.of_operation > 0.0
    whole = Speed.through(cost, (512, 512), (0.1, 0.2))
    assert whole.step_seconds(cost, 512) == pytest.approx(0.2), "both are all of a short text"


def test_a_text_whose_neighbours_say_more_is_learned_faster() -> None:
    cycle, noise = np.arange(20_000) % 10, np.random.default_rng(0).integers(10, size=20_000)
    for ids, low, high in ((cycle, 0.0, 0.1), (noise, math.log(10), math.log(10) + 0.1)):
        chunk = TokenChunk(ids.astype(np.uint16), np.ones(len(ids), dtype=np.uint8), np.full(200, 100))
        store = SimpleNamespace(num_tokens=len(ids), chunks=lambda _, chunk=chunk: iter([chunk]))
        assert low <= sizing.entropy_between(store, np.bincount(ids)) <= high  # type: ignore[arg-type]
    novels, logs, unlearnable = (TEXT._replace(neighbours=share).loss(280_000, 1e6) for share in (0.65, 0.3, 1.0))
    assert logs < novels < unlearnable == TEXT.entropy


def test_of_a_text_of_a_few_words_no_more_is_expected_than_of_its_frequencies() -> None:
    chunk = TokenChunk(np.zeros(300, dtype=np.uint16), np.ones(300, dtype=np.uint8), np.full(2, 150))
    store = SimpleNamespace(num_tokens=300, chunks=lambda _: iter([chunk]))
    assert sizing.entropy_between(store, np.array([300])) is None  # type: ignore[arg-type]
    assert TEXT.bits(600.0) == TEXT.bits(TEXT.entropy)


def test_a_machine_is_measured_whatever_the_budget_and_the_rows(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a step takes longer than the budget, and a row is longer than the timed positions."""
    monkeypatch.setattr(sizing, "_TIMED_STEPS", 1)
    monkeypatch.setattr(sizing, "_TIMED_POSITIONS", 64)
    speed = sizing.measure_speed(requested_recipe(minutes=1e-6, settings={"training.sequence_length": 128}), data)
    assert speed.of_operation > 0.0


def test_a_short_text_is_timed_by_the_rows_that_it_has(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of more rows than an epoch has is all of the text, whatever its nominal size."""
    timed: list[list[int]] = []
    monkeypatch.setattr(sizing.Speed, "through", lambda cost, positions, seconds: timed.append(positions))
    monkeypatch.setattr(sizing, "timed_steps", lambda *_: [(1.0, 1)] * 2)
    for few in (128, 1 << 20):
        monkeypatch.setattr(sizing, "_TIMED_POSITIONS", few)
        sizing.measure_speed(requested_recipe(minutes=1.0), data)
    assert timed[0] == [128, 512]
    assert timed[1] == [timed[1][0]] * 2
    assert 1.0 < timed[1][0] / data.manifest.train.tokens < 1.2


def test_more_time_or_a_faster_machine_never_means_less(data: PreparedData) -> None:
    recipe, slow = requested_recipe(minutes=1.0), Speed(1e-11, 1e-8)
    best = [
        min(
            sizing.choices(recipe, data, Speed(slow[0] / factor, slow[1] / factor), TEXT, minutes), key=lambda c: c.loss
        )
        for factor, minutes in ((1, 0.05), (1, 1), (1, 10), (20, 10), (20, 100), (1000, 100))
    ]
    for before, after in itertools.pairwise(best):
        assert before.loss > after.loss
        assert before.hidden_size <= after.hidden_size
        assert before.batch_tokens <= after.batch_tokens
    assert best[0][:2] == sizing.SIZES[0]
    assert best[-1].hidden_size >= 512
    assert {choice.batch_tokens % recipe.training.sequence_length for choice in best} == {0}


def test_processes_share_the_positions_of_a_step_but_not_its_update(data: PreparedData) -> None:
    recipe, of_positions, of_update = requested_recipe(minutes=1.0), Speed(1e-11, 0.0), Speed(0.0, 1e-8)

    def made(speed: Speed, minutes: float, processes: int) -> list[sizing.Choice]:
        return list(sizing.choices(recipe, data, speed, TEXT, minutes, processes))

    assert made(of_positions, 1.0, 8) == made(of_positions, 8.0, 1)
    assert made(of_update, 1.0, 8) == made(of_update, 1.0, 1)
    assert made(of_update, 1.0, 1) != made(of_update, 8.0, 1)


def test_a_run_has_what_was_chosen_and_is_resumed_with_it(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = sizing.sizes(2, 64, 512)
    monkeypatch.setattr(sizing, "fit_to_budget", lambda *_, **__: (chosen, ["as a test says"]))
    out = tmp_path / "run"
    run = unmask.pretrain(corpus_file, out=out, minutes=0.02, vocab_size=200)
    recipe = load_recipe(str(out / "recipe.toml"))
    assert sizing.sizes_of(recipe) == chosen
    assert recipe.sizing is None
    monkeypatch.setattr(sizing, "fit_to_budget", lambda *_, **__: pytest.fail("it was chosen before"))
    again = unmask.pretrain(corpus_file, out=out, minutes=0.02, vocab_size=200, resume=True)
    assert again.summary == run.summary
    with pytest.raises(RunError, match=r"model\.hidden_size"):
        unmask.pretrain(corpus_file, out=out, recipe="tiny", minutes=0.02, vocab_size=200, resume=True)


def test_this_machine_is_measured_and_said(corpus_file: Path, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a dry run, which does the same but trains less."""
    monkeypatch.setattr(sizing, "_TIMED_STEPS", 1)
    monkeypatch.setattr(sizing, "_TIMED_POSITIONS", 128)
    code, out, _ = main(
        "pretrain", corpus_file, "--out", "nowhere", "--minutes", 0.05, "--dry-run", "--vocab-size", 200
    )
    assert code == 0
    assert "bits per byte of hidden tokens" in out
    assert "with 9 s instead" in out, "and what three times as long would bring"
