from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.train.helpers import MakeModel, new_state, save_checkpoint, settings_of, train, weights_of
from unmask.core.errors import RunError, SettingsError
from unmask.core.results import Progress
from unmask.data.rows import Cursor, RowStream
from unmask.masking.masker import Masker
from unmask.model.layers import run_block
from unmask.train.callbacks import (
    Callback,
    EvaluationTimes,
    MetricsFile,
    ShowProgress,
    StepReport,
    Tracker,
    read_metrics,
)
from unmask.train.checkpoints import Checkpoints, list_checkpoints, load_checkpoint
from unmask.train.distributed import ALONE
from unmask.train.objectives import PREDICT_MASKED
from unmask.train.settings import AdamWSettings, CheckpointSettings, Cosine, LinearDecay, WarmupStableDecay
from unmask.train.step import Measured, training_step
from unmask.train.trainer import Trainer

REPORT = StepReport(1, 0.0, 0, None, 0, 0, 1, 0.0, 32, 0.0)


def test_the_learning_rate_rises_stays_and_falls() -> None:
    schedule = WarmupStableDecay(kind="warmup_stable_decay", warmup=0.1, decay=0.4)
    scales = [schedule.at(p) for p in (0.0, 0.05, 0.1, 0.5, 0.6, 0.7, 1.0)]
    assert scales == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0])
    constant = WarmupStableDecay(kind="warmup_stable_decay", warmup=0.0, decay=0.0)
    assert constant.at(0.0) == constant.at(1.0) == 1.0


def test_other_schedules_of_the_learning_rate() -> None:
    places = (0.0, 0.1, 0.2, 0.6, 1.0)
    linear, cosine = LinearDecay(kind="linear", warmup=0.2), Cosine(kind="cosine", warmup=0.2)
    assert [linear.at(p) for p in places] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])
    assert [cosine.at(p) for p in places] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])
    assert cosine.at(0.4) == pytest.approx(0.5 + 0.5 * 2**-0.5)
    assert LinearDecay(kind="linear", warmup=1.0).at(0.99) == 0.99


def test_budgets() -> None:
    assert settings_of(steps=10).progress(4, 10**9, 1e9) == 0.4
    assert settings_of(steps=None, minutes=1).progress(10**9, 10**9, 30) == 0.5
    assert settings_of(steps=None, minutes=1).progress(0, 0, 90) == 1.0
    assert settings_of(steps=None, tokens=1000).progress(10**9, 250, 1e9) == 0.25


@pytest.mark.parametrize(
    ("budget", "cost", "times"),
    [
        ({"minutes": 10.0}, 1.0, [60, 120, 180, 240, 300, 360, 420, 480, 540, 600]),  # 10 of 600 seconds
        ({"minutes": 10.0}, 15.0, [135, 285, 435, 585]),  # each after nine times as long: 60 of 600
        ({"minutes": 10.0}, 90.0, []),  # not even one
        ({"steps": 600}, 90.0, [60, 120, 180, 240, 300, 360, 420, 480, 540, 600]),
    ],
)
def test_evaluations_take_a_tenth_of_the_minutes(budget: dict[str, Any], cost: float, times: list[int]) -> None:
    """A step takes a second; an evaluation before the first one shows what they cost."""
    settings = settings_of(**{"steps": None, **budget})
    trainer: Any = SimpleNamespace(settings=settings, group=ALONE, clock=lambda: now, evaluating=nullcontext)
    plan, now, evaluated, begin = EvaluationTimes(10), 0.0, [], cost
    with plan.timed(trainer):
        now += cost
    step = 0
    while (progress := settings.progress(step, 0, now - begin)) < 1.0:
        now, step = now + 1.0, step + 1
        progress = settings.progress(step, 0, now - begin)
        if plan.is_due(trainer, replace(REPORT, progress=progress)):
            evaluated.append(round(now - begin) if settings.steps is None else step)
            with plan.timed(trainer):
                now += cost
    assert evaluated == times


@pytest.mark.parametrize(("budget", "steps", "seconds"), [({"steps": 3}, 3, 3.0), ({"minutes": 10.0}, 6, 606.0)])
def test_evaluations_count_only_against_a_budget_in_minutes(
    make_model: MakeModel, stream: RowStream, masker: Masker, budget: dict[str, Any], steps: int, seconds: float
) -> None:
    """After each step, a second of other work and an evaluation of a hundred seconds."""
    now = 0.0

    class Evaluation(Callback):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            nonlocal now
            now += 1.0
            with trainer.evaluating():
                now += 100.0

    settings = settings_of(**{"steps": None, **budget})
    model = new_state(make_model, settings).model
    trainer = Trainer(model, stream, settings, masker=masker, callbacks=[Evaluation()])
    trainer.clock = lambda: now
    trainer.fit()
    assert (trainer.state.step, trainer.state.seconds) == (steps, seconds)


def test_a_step_without_a_target_has_no_loss(tmp_path: Path) -> None:
    """Units may be rare. The loss of such a step is 0, which no curve and no mean may show."""
    shown: list[Progress] = []
    sent: list[dict[str, float]] = []
    trainer: Any = SimpleNamespace(first_micro_tokens=None, state=SimpleNamespace(micro_tokens=None))
    reporter: Any = SimpleNamespace(notify=shown.append)
    metrics = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    callbacks = ShowProgress(reporter), metrics, Tracker(lambda figures, step: sent.append(figures), lambda: None)
    for step in range(1, 21):
        figures = SimpleNamespace(read=partial(Measured, 5.0 if step == 1 else 0.0, 1.0, {}))
        report = replace(REPORT, step=step, figures=figures, predicted_tokens=int(step == 1))
        for callback in callbacks:
            callback.on_figures(trainer, report)
            callback.on_step(trainer, report)
    assert [line["loss"] for line in read_metrics(metrics.path)] == [5.0, None]
    assert {str(progress.facts).split(", ")[1] for progress in shown} == {"loss 5.000"}
    assert len(sent) == 2
    assert not any("train/loss" in figures for figures in sent)


@pytest.mark.parametrize("budget", [{"tokens": 300}, {"steps": 3}, {"minutes": 0.01}])
def test_no_step_has_rate_0(make_model: MakeModel, stream: RowStream, masker: Masker, budget: dict[str, Any]) -> None:
    settings = settings_of(**{"steps": None, **budget}, schedule={"kind": "linear", "warmup": 0.1})
    clock = itertools.count(step=0.1)
    reports = list(train(new_state(make_model, settings), stream, masker, settings, clock=lambda: next(clock)))
    assert reports
    assert all(report.learning_rate > 0.0 for report in reports)


@pytest.mark.parametrize("compiles", ["loops", "blocks", None])
def test_the_step_that_compiles_costs_no_budget(
    make_model: MakeModel, stream: RowStream, masker: Masker, monkeypatch: pytest.MonkeyPatch, compiles: str | None
) -> None:
    """The budget is six seconds, the first step takes sixty."""
    monkeypatch.setattr("unmask.train.trainer.must_compile", lambda device: compiles == "loops")
    settings, clock = settings_of(steps=None, minutes=0.1), itertools.chain([0.0], itertools.count(60.0))
    state = new_state(make_model, settings)
    state.model.encoder.compiled_block = run_block if compiles == "blocks" else None
    reports = list(train(state, stream, masker, settings, clock=lambda: next(clock)))
    assert [report.seconds for report in reports][:3] == ([1.0, 3.0, 5.0] if compiles else [60.0])


@pytest.mark.parametrize(("minutes", "is_told"), [(1e-9, True), (60.0, False)])
def test_a_step_that_takes_longer_than_the_minutes_is_told(
    make_model: MakeModel,
    stream: RowStream,
    masker: Masker,
    caplog: pytest.LogCaptureFixture,
    minutes: float,
    is_told: bool,
) -> None:
    settings = settings_of(steps=None, minutes=minutes, micro_batch_tokens=32)
    list(islice(train(new_state(make_model, settings), stream, masker, settings), 1))
    assert ("longer than the minutes" in caplog.text) == is_told


def test_one_batch_is_overfitted(make_model: MakeModel, stream: RowStream, masker: Masker) -> None:
    """The whole step learns: the same masked batch goes from chance to almost no loss."""
    settings = settings_of(learning_rate=1e-2, weight_decay=0.0)
    state = new_state(make_model, settings)
    rows = next(stream.batches(Cursor(), 4)).rows
    masked = masker(rows)
    losses = [training_step(state, settings, rows, masked).read().loss for _ in range(250)]
    assert losses[0] > 4.5
    assert min(losses) < 0.01, "steps of a fixed length leave the minimum again now and then"


def test_the_loss_is_the_naive_one(make_model: MakeModel, stream: RowStream, masker: Masker) -> None:
    """Logits at predicted positions only, summed and divided: equal to the loss over all logits."""
    settings = settings_of()
    state = new_state(make_model, settings)
    rows = next(stream.batches(Cursor(), 4)).rows
    masked = masker(rows)
    with torch.no_grad():
        logits = state.model(
            masked.input_ids,
            positions_N=torch.arange(masked.input_ids.numel()),
            segment_ids_BS=rows.segment_ids,
            position_ids_BS=rows.position_ids,
        )
    naive = torch.nn.functional.cross_entropy(logits, masked.labels.flatten(), ignore_index=-100)
    result = training_step(state, settings, rows, masked, learning_rate_scale=0.0)
    assert result.read().loss == pytest.approx(float(naive), rel=1e-5)
    assert result.predicted_tokens == int((masked.labels != -100).sum())


def test_an_interrupted_step_leaves_nothing_behind(make_model: MakeModel, stream: RowStream, masker: Masker) -> None:
    """A notebook's cell is interrupted within a backward pass; the next one goes on."""

    def interrupt(gradient: torch.Tensor) -> None:
        handle.remove()
        raise KeyboardInterrupt

    whole, stopped = (
        Trainer(new_state(make_model, settings_of()).model, stream, settings_of(), masker=masker) for _ in range(2)
    )
    whole.fit()
    handle = stopped.model.encoder.tokens.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    assert any(parameter.grad is not None for parameter in stopped.model.parameters())
    stopped.fit()
    assert stopped.error is None
    assert torch.equal(weights_of(stopped.state), weights_of(whole.state))


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "with dropout"])
def test_resuming_equals_never_having_stopped(
    make_model: MakeModel, stream: RowStream, masker: Masker, tmp_path: Path, optimizer: str
) -> None:
    if dropout := optimizer == "with dropout":
        optimizer, make_model = "muon", partial(make_model, layout="bert", dropout=0.2)
    settings = settings_of(steps=9, optimizer={"kind": optimizer})
    whole = new_state(make_model, settings)
    for _ in train(whole, stream, masker, settings):
        pass
    if dropout:
        other = new_state(make_model, settings)
        list(train(other, stream, masker, settings.model_copy(update={"seed": 1})))
        assert not torch.equal(weights_of(other), weights_of(whole)), "its seed is that of the training"
    for stop in (1, 4, 8):
        first = new_state(make_model, settings)
        for _ in islice(train(first, stream, masker, settings), stop):
            pass
        folder = save_checkpoint(tmp_path, first, fingerprint="x", keep=2)
        second = new_state(make_model, settings)
        load_checkpoint(folder, second, fingerprint="x")
        for _ in train(second, stream, masker, settings):
            pass
        assert (second.step, second.cursor, second.tokens_seen) == (whole.step, whole.cursor, whole.tokens_seen)
        for (name, a), (_, b) in zip(whole.model.named_parameters(), second.model.named_parameters(), strict=True):
            assert torch.equal(a, b), f"{name} differs when stopped at step {stop}"


def test_checkpoints_are_whole_or_not_there(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = new_state(make_model, settings_of())
    for state.step in (1, 2, 3):
        save_checkpoint(tmp_path, state, fingerprint="x", keep=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unmask.train.checkpoints.save_file", full_disk)
    state.step = 4
    with pytest.raises(RunError, match="cannot be written .*No space left on device"):
        save_checkpoint(tmp_path, state, fingerprint="x", keep=1)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-00000002", "step-00000003"]
    monkeypatch.undo()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.core.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, state, fingerprint="x", keep=1)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]


def test_checkpoints_that_do_not_fit(make_model: MakeModel, tmp_path: Path) -> None:
    state = new_state(make_model, settings_of())
    folder = save_checkpoint(tmp_path, state, fingerprint="x", keep=2)
    with pytest.raises(RunError, match="belongs to other data or another recipe"):
        load_checkpoint(folder, state, fingerprint="y")
    content = json.loads((folder / "state.json").read_bytes()) | {"cursor": {"epoch": 0}, "sha256": None}
    for damaged in (b"[]", json.dumps(content).encode()):
        (folder / "state.json").write_bytes(damaged)
        with pytest.raises(RunError, match="damaged checkpoint .* to start over, since there is no other one"):
            load_checkpoint(folder, state, fingerprint="x")


def test_a_bit_that_was_turned_is_found(
    make_model: MakeModel, stream: RowStream, masker: Masker, tmp_path: Path
) -> None:
    """In each file, at its beginning, middle and end; the error names the previous checkpoint."""
    state = new_state(make_model, settings_of())
    next(train(state, stream, masker, settings_of()))
    save_checkpoint(tmp_path, state, fingerprint="x", keep=2)
    state.step = 5
    folder = save_checkpoint(tmp_path, state, fingerprint="x", keep=2)
    load_checkpoint(folder, state, fingerprint="x")
    saved = [p.detach().clone() for p in state.model.parameters()]
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 4):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(RunError, match="damaged checkpoint .* remove this folder to resume from step-00000001"):
                load_checkpoint(folder, state, fingerprint="x")
        file.write_bytes(whole)
    content = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(content | {"tokens_seen": 1}))
    with pytest.raises(RunError, match="state.json: its content does not match its checksum"):
        load_checkpoint(folder, state, fingerprint="x")
    assert all(torch.equal(a, b) for a, b in zip(saved, state.model.parameters(), strict=True))
    assert state.tokens_seen > 1


def test_settings_that_make_no_sense() -> None:
    for change, message in (
        ({"steps": None}, "steps, tokens and minutes"),
        ({"batch_tokens": 16}, "batch_tokens"),
        ({"micro_batch_tokens": 16}, "micro_batch_tokens"),
        ({"length_schedule": {"places": [0.0, 0.5], "lengths": [16]}}, "length"),
        ({"length_schedule": {"places": [0.2], "lengths": [16]}}, "places"),
        ({"length_schedule": {"places": [0.0], "lengths": [64]}}, "sequence_length"),
        ({"length_schedule": {"places": [0.0], "lengths": [16]}}, "sequence_length"),
        ({"schedule": {"kind": "warmup_stable_decay", "warmup": 0.7, "decay": 0.7}}, "warmup"),
    ):
        with pytest.raises(ValueError, match=message):
            settings_of(**change)
    assert settings_of(optimizer=AdamWSettings(kind="adamw")).length_at(0.5) == 32


def test_a_masked_model_needs_a_masker(make_model: MakeModel, stream: RowStream) -> None:
    """Without targets, each step would only decay the weights."""
    model = make_model()
    for objective in (PREDICT_MASKED, replace(PREDICT_MASKED, weight=0.5)):
        with pytest.raises(SettingsError, match="masker"):
            Trainer(model, stream, settings_of(), objective=objective)


def test_what_would_be_ignored_or_fail_in_a_step(make_model: MakeModel, stream: RowStream, masker: Masker) -> None:
    model = make_model()
    with pytest.raises(SettingsError, match="masked_tokens, masked_tokens"):
        Trainer(model, stream, settings_of(), masker=masker, objectives=[replace(PREDICT_MASKED, weight=0.5)])
    with pytest.raises(SettingsError, match="sequence_length is 64"):
        Trainer(model, stream, settings_of(sequence_length=64), masker=masker)


def test_callbacks_are_called_and_may_stop_a_training(
    make_model: MakeModel, stream: RowStream, masker: Masker, tmp_path: Path
) -> None:
    calls: list[str] = []

    class Noting(Callback):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            calls.append(f"step {report.step}")
            if report.step == 2:
                trainer.evaluated({"loss": report.loss})
                trainer.request_save()
            if report.step == 3:
                trainer.request_stop()

        def on_evaluation(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
            calls.append(f"evaluation {list(figures)}")

        def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
            calls.append(folder.name)

        def on_end(self, trainer: Trainer) -> None:
            calls.append(f"end {trainer.error}")

    saving = Checkpoints(tmp_path, CheckpointSettings(), fingerprint="x")
    model = new_state(make_model, settings_of()).model
    Trainer(model, stream, settings_of(), masker=masker, callbacks=[Noting(), saving]).fit()
    assert [call for call in calls if not call.startswith("step-")] == [
        "step 1", "step 2", "evaluation ['loss']", "step 3", "end None",
    ]  # fmt: skip
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]
