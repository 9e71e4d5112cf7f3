from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.train.helpers import Small, save_checkpoint, settings_of, weights_of
from unmask.core.errors import RunError, SettingsError
from unmask.core.results import Progress
from unmask.data.rows import Cursor
from unmask.model.layers import run_block
from unmask.train.callbacks import (
    TRACKERS,
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
from unmask.train.settings import (
    AdamWSettings,
    CheckpointSettings,
    Cosine,
    LinearDecay,
    TrainingSettings,
    WarmupStableDecay,
)
from unmask.train.step import Measured, TrainState, training_step
from unmask.train.trainer import Trainer

REPORT = StepReport(1, 0.0, 0, None, 0, 0, 1, 0.0, 32, 0.0)


def trainer_of(small: Small, settings: TrainingSettings, *callbacks: Callback) -> Trainer:
    return Trainer(small.state(settings).model, small.stream, settings, masker=small.masker, callbacks=callbacks)


def test_schedules_of_the_learning_rate() -> None:
    schedule = WarmupStableDecay(kind="warmup_stable_decay", warmup=0.1, decay=0.4)
    scales = [schedule.at(p) for p in (0.0, 0.05, 0.1, 0.5, 0.6, 0.7, 1.0)]
    assert scales == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0])
    constant = WarmupStableDecay(kind="warmup_stable_decay", warmup=0.0, decay=0.0)
    assert constant.at(0.0) == constant.at(1.0) == 1.0
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
    small: Small, budget: dict[str, Any], steps: int, seconds: float
) -> None:
    """After each step, a second of other work and an evaluation of a hundred seconds."""
    now = 0.0

    class Evaluation(Callback):
        def on_step(self, trainer: Trainer, report: StepReport) -> None:
            nonlocal now
            now += 1.0
            with trainer.evaluating():
                now += 100.0

    trainer = trainer_of(small, settings_of(**{"steps": None, **budget}), Evaluation())
    trainer.clock = lambda: now
    trainer.fit()
    assert (trainer.state.step, trainer.state.seconds) == (steps, seconds)


def test_a_step_without_a_target_has_no_loss(tmp_path: Path) -> None:
    """Units may be rare. The loss of such a step is 0, which no curve and no mean may show."""
    shown: list[Progress] = []
    sent: list[dict[str, float]] = []
    reporter: Any = SimpleNamespace(notify=shown.append)
    metrics = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    callbacks = ShowProgress(reporter), metrics, Tracker(lambda figures, step: sent.append(figures), lambda: None)
    trainer: Any = SimpleNamespace(callbacks=callbacks)
    for step in range(1, 21):
        figures = SimpleNamespace(read=partial(Measured, 5.0 if step == 1 else 0.0, 1.0, {}))
        report = replace(REPORT, step=step, figures=figures, predicted_tokens=int(step == 1))
        for callback in callbacks:
            callback.on_figures(trainer, report)
            callback.on_step(trainer, report)
    assert [line["loss"] for line in read_metrics(metrics.path)] == [5.0, None]
    assert {str(progress.facts).split(", ")[1] for progress in shown} == {"loss 5.000"}
    assert [figures.get("train/loss") for figures in sent] == [5.0, None], "a tracker gets the same means"


def test_a_tracker_that_fails_ends_no_training(caplog: pytest.LogCaptureFixture) -> None:
    """Neither when it gets figures nor when it is closed; the log says so once."""
    tracker = Tracker(Mock(side_effect=ConnectionError("no network\nand more")), Mock(side_effect=ConnectionError))
    for step in (10, 20):
        figures = {"step": step, "loss": 5.0, "learning_rate": 0.1, "gradient_norm": 1.0, "sequence_length": 32}
        tracker.on_metrics(None, figures)
    tracker.on_evaluation(SimpleNamespace(state=SimpleNamespace(step=20)), {"validation_loss": 5.0})
    tracker.close()
    assert [record.message.count("no network)") for record in caplog.records] == [1]
    assert tracker._send.call_count == 1, "a service that is gone may answer only after minutes"


def test_a_resumed_run_continues_its_run_of_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow, trackio = Mock(), Mock()
    mlflow.search_runs.return_value = [SimpleNamespace(info=SimpleNamespace(run_id="its run"))]
    for name, module in (("mlflow", mlflow), ("trackio", trackio)):
        monkeypatch.setitem(sys.modules, name, module)
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        TRACKERS[name](tmp_path / name, {"fingerprint": "a"})
        (tmp_path / name / "checkpoints" / "step-00000001").mkdir()
        tracker = TRACKERS[name](tmp_path / name, {"fingerprint": "a"})
        tracker.on_evaluation(
            SimpleNamespace(state=SimpleNamespace(step=20)), {"label": {"accuracy": 0.5}, "lines": []}
        )
    begun, resumed = (call.kwargs for call in mlflow.start_run.call_args_list)
    assert (begun["run_id"], resumed["run_id"]) == (None, "its run")
    assert begun["tags"]["unmask"] in mlflow.search_runs.call_args.kwargs["filter_string"]
    begun, resumed = (call.kwargs for call in trackio.init.call_args_list)
    assert begun | {"resume": "allow"} == resumed
    mlflow.log_metrics.assert_called_with({"validation/label/accuracy": 0.5}, step=20)


@pytest.mark.parametrize("budget", [{"tokens": 300}, {"steps": 3}, {"minutes": 0.01}])
def test_no_step_has_rate_0(small: Small, budget: dict[str, Any]) -> None:
    settings = settings_of(**{"steps": None, **budget}, schedule={"kind": "linear", "warmup": 0.1})
    reports = list(small.train(small.state(settings), settings, clock=itertools.count(step=0.1)))
    assert reports
    assert all(report.learning_rate > 0.0 for report in reports)


@pytest.mark.parametrize("compiles", ["loops", "blocks", None])
def test_the_step_that_compiles_costs_no_budget(
    small: Small, monkeypatch: pytest.MonkeyPatch, compiles: str | None
) -> None:
    """The budget is six seconds, the first step takes sixty."""
    monkeypatch.setattr("unmask.train.trainer.must_compile", lambda device: compiles == "loops")
    settings = settings_of(steps=None, minutes=0.1)
    state = small.state(settings)
    state.model.encoder.compiled_block = run_block if compiles == "blocks" else None
    reports = list(small.train(state, settings, clock=itertools.chain([0.0], itertools.count(60.0))))
    assert [report.seconds for report in reports][:3] == ([1.0, 3.0, 5.0] if compiles else [60.0])


def test_a_step_that_takes_longer_than_the_minutes_is_told(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    for minutes, is_told in ((60.0, False), (1e-9, True)):
        settings = settings_of(steps=None, minutes=minutes, micro_batch_tokens=32)
        next(small.train(small.state(settings), settings))
        assert ("longer than the minutes" in caplog.text) == is_told


def test_one_batch_is_overfitted(small: Small) -> None:
    """The whole step learns: the same masked batch goes from chance to almost no loss."""
    settings = settings_of(learning_rate=1e-2, weight_decay=0.0)
    state = small.state(settings)
    rows = next(small.stream.batches(Cursor(), 4)).rows
    masked = small.masker(rows)
    losses = [training_step(state, settings, rows, masked).read().loss]
    while losses[-1] >= 0.01 and len(losses) < 250:
        losses.append(training_step(state, settings, rows, masked).read().loss)
    assert losses[0] > 4.5
    assert losses[-1] < 0.01


def test_an_interrupted_step_leaves_nothing_behind(small: Small) -> None:
    """A notebook's cell is interrupted within a backward pass; the next one goes on."""

    def interrupt(gradient: torch.Tensor) -> None:
        handle.remove()
        raise KeyboardInterrupt

    whole, stopped = (trainer_of(small, settings_of()) for _ in range(2))
    whole.fit()
    handle = stopped.model.encoder.tokens.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    assert any(parameter.grad is not None for parameter in stopped.model.parameters())
    stopped.fit()
    assert stopped.error is None
    assert torch.equal(weights_of(stopped.state), weights_of(whole.state))


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "with dropout"])
def test_resuming_equals_never_having_stopped(small: Small, tmp_path: Path, optimizer: str) -> None:
    if dropout := optimizer == "with dropout":
        optimizer, small = "muon", replace(small, make_model=partial(small.make_model, layout="bert", dropout=0.2))
    settings = settings_of(steps=9, optimizer={"kind": optimizer})
    whole, _ = small.trained(settings)
    if dropout:
        other = small.state(settings)
        list(small.train(other, settings.model_copy(update={"seed": 1})))
        assert not torch.equal(weights_of(other), weights_of(whole)), "its seed is that of the training"
    first, second = small.state(settings), small.state(settings)
    list(islice(small.train(first, settings), 4))
    load_checkpoint(save_checkpoint(tmp_path, first, fingerprint="x", keep=2), second, fingerprint="x")
    list(small.train(second, settings))
    assert (second.step, second.cursor, second.tokens_seen) == (whole.step, whole.cursor, whole.tokens_seen)
    for (name, a), (_, b) in zip(whole.model.named_parameters(), second.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_checkpoints_are_whole_or_not_there(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = small.state(settings_of())
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


def test_a_damaged_checkpoint_is_found(small: Small, tmp_path: Path) -> None:
    """A bit that was turned in each file, at its beginning, middle and end; the error names the previous checkpoint."""
    state = small.state(settings_of())
    next(small.train(state, settings_of()))
    before = save_checkpoint(tmp_path, state, fingerprint="x", keep=2)
    state.step = 5
    folder = save_checkpoint(tmp_path, state, fingerprint="x", keep=2)
    load_checkpoint(folder, state, fingerprint="x")
    saved = weights_of(state)
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 4):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(RunError, match=rf"{folder.name}: .*step-00000001"):
                load_checkpoint(folder, state, fingerprint="x")
        file.write_bytes(whole)
    with pytest.raises(RunError, match="belongs to other data or another recipe"):
        load_checkpoint(folder, state, fingerprint="y")
    shutil.rmtree(before)
    content = json.loads((folder / "state.json").read_text())
    for damaged in ([], content | {"tokens_seen": 1}, content | {"cursor": {"epoch": 0}, "sha256": None}):
        (folder / "state.json").write_text(json.dumps(damaged))
        with pytest.raises(RunError, match="damaged checkpoint .* to start over, since there is no other one"):
            load_checkpoint(folder, state, fingerprint="x")
    assert torch.equal(weights_of(state), saved)
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


def test_what_would_be_ignored_or_fail_in_a_step(small: Small) -> None:
    """Without targets of a masker, each step would only decay the weights."""
    half, model = replace(PREDICT_MASKED, weight=0.5), small.make_model()
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("masker", {}, {"objective": PREDICT_MASKED}),
        ("masker", {}, {"objective": half}),
        ("masked_tokens, masked_tokens", {}, {"masker": small.masker, "objectives": [half]}),
        ("sequence_length is 64", {"sequence_length": 64}, {"masker": small.masker}),
    ]
    for named, changes, options in cases:
        with pytest.raises(SettingsError, match=named):
            Trainer(model, small.stream, settings_of(**changes), **options)


def test_callbacks_are_called_and_may_stop_a_training(small: Small, tmp_path: Path) -> None:
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
    trainer_of(small, settings_of(), Noting(), saving).fit()
    assert [call for call in calls if not call.startswith("step-")] == [
        "step 1", "step 2", "evaluation ['loss']", "step 3", "end None",
    ]  # fmt: skip
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]


def small_memory(state: TrainState, most_rows: int, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Any]) -> None:
    """Lets the model fail where more rows come at once."""
    forward = state.model.encoder.forward

    def limited(ids: torch.Tensor, **rest: Any) -> torch.Tensor:
        if len(ids) > most_rows:
            raise error()
        return forward(ids, **rest)

    monkeypatch.setattr(state.model.encoder, "forward", limited)


def no_memory() -> RuntimeError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def no_memory_on_cpu() -> RuntimeError:
    return RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


@pytest.mark.parametrize("error", [no_memory, no_memory_on_cpu, MemoryError])
def test_where_memory_runs_out_the_step_is_made_in_halves(
    small: Small, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    """Eight rows do not fit, nor four; two do, and the weights are those of a run with parts of two rows."""
    settings = settings_of(steps=4)
    first = small.state(settings)
    small_memory(first, 2, monkeypatch, error)
    assert [report.micro_batches for report in small.train(first, settings)] == [4] * 4
    assert first.micro_tokens == 64
    second, reports = small.trained(settings_of(steps=4, micro_batch_tokens=64))
    assert [report.micro_batches for report in reports] == [4] * 4
    assert torch.equal(weights_of(first), weights_of(second))


def test_softmaxes_over_a_part_of_the_vocabulary_do_not_depend_on_the_parts_of_a_step(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step draws one sample for all its parts; without that, losses would differ by per cents."""
    monkeypatch.setattr("unmask.model.fused.NUM_SAMPLED", 20)
    losses = []
    for parts in (None, 64):
        settings = settings_of(steps=3, micro_batch_tokens=parts)
        state = small.state(settings)
        state.model.head.frequent_K = torch.arange(20)
        losses.append([report.loss for report in small.train(state, settings)])
        assert len(state.model.head.sample.ids_C) < state.model.config.vocab_size
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_a_resumed_run_may_have_larger_parts(small: Small, tmp_path: Path) -> None:
    few, many = (settings_of(steps=4, micro_batch_tokens=tokens) for tokens in (32, 128))
    first, second = small.state(few), small.state(many)
    assert [report.micro_batches for report in islice(small.train(first, few), 2)] == [8, 8]
    load_checkpoint(save_checkpoint(tmp_path, first, fingerprint="x", keep=1), second, fingerprint="x")
    assert [report.micro_batches for report in small.train(second, many)] == [2, 2]


def test_what_was_found_out_about_memory_is_in_the_checkpoint(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = settings_of(steps=6)
    whole, first, second = (small.state(settings) for _ in range(3))
    for state, steps in ((whole, 6), (first, 3)):
        small_memory(state, 3, monkeypatch, no_memory)
        list(islice(small.train(state, settings), steps))
    load_checkpoint(save_checkpoint(tmp_path, first, fingerprint="x", keep=1), second, fingerprint="x")
    assert second.micro_tokens == first.micro_tokens == 64
    list(small.train(second, settings))
    assert torch.equal(weights_of(whole), weights_of(second))
