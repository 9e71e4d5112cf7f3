"""Batches made in a thread, and a loop whose figures come late: what a GPU's training does, on a CPU."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.helpers import MakeModel, new_state, settings_of, train
from unmask.core.errors import DivergedError
from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.masking.masker import Masker
from unmask.masking.tables import Scores
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train import trainer as loop_module
from unmask.train.callbacks import Arrivals, StepReport
from unmask.train.checkpoints import TrainState
from unmask.train.optimizer import state_tensors
from unmask.train.step import Figures, Measured
from unmask.train.trackers import MetricsFile, read_metrics
from unmask.train.trainer import Batches, BatchRequest, MaskedBatch, with_empty_rows

PAD = 0


@pytest.fixture
def stream(store: TokenStore, tokenizer: Tokenizer) -> RowStream:
    return RowStream(store, tokenizer, length=32, seed=0)


@pytest.fixture
def masker(tokenizer: Tokenizer) -> Masker:
    return Masker.from_tokenizer(tokenizer, rate=0.2)


@pytest.fixture
def counted(masker: Masker, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The progress of everything that the masker was asked to mask."""
    seen: list[float] = []
    call = Masker.__call__

    def count(self: Masker, rows: Any, **named: Any) -> Any:
        seen.append(named["progress"])
        return call(self, rows, **named)

    monkeypatch.setattr(Masker, "__call__", count)
    return seen


def same(a: MaskedBatch, b: MaskedBatch) -> bool:
    return torch.equal(a.masked.input_ids, b.masked.input_ids) and torch.equal(a.masked.labels, b.masked.labels)


def in_time(stream: RowStream, masker: Masker) -> Batches:
    return Batches(stream, masker, pad_id=PAD, by_clock=False)


def behind(request: BatchRequest, batch: MaskedBatch, seconds: float = 0.0) -> BatchRequest | None:
    """Five batches, each at a progress of its own."""
    step = request.step + 1
    return None if step == 5 else BatchRequest(batch.cursor, 8, 32, step / 10, step, request.tokens + batch.num_tokens)


def test_what_comes_is_made_once_and_is_what_would_be_made_in_time(
    stream: RowStream, masker: Masker, counted: list[float]
) -> None:
    request: BatchRequest | None = BatchRequest(Cursor(), 8, 32, 0.0)
    found: list[tuple[BatchRequest, MaskedBatch]] = []
    with closing(Batches(stream, masker, pad_id=PAD, by_clock=False, ahead=3, following=behind)) as batches:
        while request is not None:
            found.append((request, batches.take(request)))
            request = behind(*found[-1])
    assert counted == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert all(same(batch, in_time(stream, masker).take(request)) for request, batch in found)
    assert not same(found[0][1], found[1][1])


def test_what_was_made_of_another_version_of_the_stream_is_made_anew(
    stream: RowStream, masker: Masker, counted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = BatchRequest(Cursor(), 8, 32, 0.0)
    with closing(Batches(stream, masker, pad_id=PAD, by_clock=False, ahead=3, following=behind)) as batches:
        taken = batches.take(first)
        wait(batches._queue)
        monkeypatch.setattr(stream, "version", 1, raising=False)
        second = behind(first, taken)
        assert second is not None
        batches.take(second)
        wait(batches._queue)
    assert counted == [0.0, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.4]


def test_as_many_are_made_ahead_as_are_asked_for(stream: RowStream, masker: Masker, counted: list[float]) -> None:
    with closing(Batches(stream, masker, pad_id=PAD, by_clock=False, ahead=3, following=behind)) as batches:
        batches.take(BatchRequest(Cursor(), 8, 32, 0.0))
        wait(list(batches._queue))
        assert counted == [0.0, 0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    "wanted",
    [
        BatchRequest(Cursor(), 8, 32, 0.2),
        BatchRequest(Cursor(row=3, lengths=((0, 32),)), 8, 32, 0.1),
        BatchRequest(Cursor(), 8, 24, 0.1),
        BatchRequest(Cursor(), 6, 32, 0.1),
        BatchRequest(Cursor(), 8, 32, 0.1, scores=Scores(7, {})),
    ],
)
def test_what_was_not_expected_is_made_anew(stream: RowStream, masker: Masker, wanted: BatchRequest) -> None:
    """And what was made behind that is dropped, which would be of another place."""
    expected = BatchRequest(Cursor(), 8, 32, 0.1)
    assert not expected.serves(wanted, by_clock=False)
    assert expected.serves(wanted, by_clock=True) == (wanted.progress != 0.1)

    def following(request: BatchRequest, batch: MaskedBatch, seconds: float) -> BatchRequest:
        return expected if request.length == 8 else replace(request, cursor=batch.cursor)

    with closing(Batches(stream, masker, pad_id=PAD, by_clock=False, ahead=3, following=following)) as batches:
        batches.take(BatchRequest(Cursor(), 8, 8, 0.1))
        found = batches.take(wanted)
        behind_it = replace(wanted, cursor=found.cursor)
        assert same(found, in_time(stream, masker).take(wanted))
        assert same(batches.take(behind_it), in_time(stream, masker).take(behind_it))


def test_an_error_in_the_thread_is_raised_where_the_batch_is_taken(stream: RowStream, masker: Masker) -> None:
    bad = BatchRequest(Cursor(), 8, 32, 2.0)
    following = lambda request, batch, seconds: bad  # noqa: E731
    with closing(Batches(stream, masker, pad_id=PAD, by_clock=False, ahead=2, following=following)) as batches:
        batches.take(BatchRequest(Cursor(), 8, 32, 0.0))
        with pytest.raises(Exception, match="progress is a number from 0 to 1, not 2.0"):
            batches.take(bad)


def test_empty_rows_have_no_targets(stream: RowStream, masker: Masker) -> None:
    rows = stream.batch(Cursor(), 5).rows
    filled = with_empty_rows(rows, 8, pad_id=0)
    assert filled.shape == (8, 32)
    assert with_empty_rows(rows, 5, pad_id=0) is rows
    assert with_empty_rows(rows, 1, pad_id=0) is rows, "a stream of examples makes as many rows as these need"
    plain, masked = masker(rows), masker(filled)
    assert torch.equal(masked.labels[:5], plain.labels)
    assert torch.equal(masked.input_ids[:5], plain.input_ids)
    assert (masked.labels[5:] == -100).all()
    assert (filled.segment_ids[5:] == -1).all()
    assert (filled.input_ids[5:] == 0).all()
    assert not filled.maskable[5:].any()


def weights_of(state: TrainState) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in state.model.parameters()])


def on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop and the step do as on a GPU."""
    for module in ("trainer", "step"):
        monkeypatch.setattr(f"unmask.train.{module}.works_on_its_own", lambda device: True)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 9},
        {"steps": None, "tokens": 1500},
        {"steps": 9, "length_schedule": {"places": [0.0, 0.5], "lengths": [16, 32]}},
    ],
)
def test_training_ahead_is_training(
    make_model: MakeModel,
    stream: RowStream,
    masker: Masker,
    monkeypatch: pytest.MonkeyPatch,
    counted: list[float],
    changes: dict[str, Any],
) -> None:
    """Bit for bit, and nothing is made twice or in vain."""
    settings = settings_of(**changes)
    plain = new_state(make_model, settings)
    losses = [report.loss for report in train(plain, stream, masker, settings)]
    in_time = list(counted)
    counted.clear()
    on_its_own(monkeypatch)
    ahead = new_state(make_model, settings)
    assert [report.loss for report in train(ahead, stream, masker, settings)] == losses
    assert torch.equal(weights_of(plain), weights_of(ahead))
    assert (plain.cursor, plain.step, plain.tokens_seen) == (ahead.cursor, ahead.step, ahead.tokens_seen)
    assert counted == in_time
    assert len(in_time) == len(losses) > 5


def test_by_the_clock_what_was_made_a_moment_ago_serves(
    make_model: MakeModel, stream: RowStream, masker: Masker, monkeypatch: pytest.MonkeyPatch, counted: list[float]
) -> None:
    on_its_own(monkeypatch)
    settings = settings_of(steps=None, minutes=0.5)
    ticks = iter(range(10_000))
    reports = list(train(new_state(make_model, settings), stream, masker, settings, clock=lambda: float(next(ticks))))
    more = loop_module.BATCHES_AHEAD
    assert len(reports) <= len(counted) <= len(reports) + more, "some may be made that nobody wants any more"


def test_the_next_batch_waits_for_new_scores(
    make_model: MakeModel, stream: RowStream, masker: Masker, monkeypatch: pytest.MonkeyPatch, counted: list[float]
) -> None:
    """A board that makes scores every third step: masks behind it are drawn by them, and none is made in vain."""
    from unmask.train.scores import ScoreBoard

    on_its_own(monkeypatch)
    settings = settings_of(steps=8)
    state = new_state(make_model, settings)
    vocab_size = len(state.model.encoder.tokens)
    state.board = ScoreBoard({"loss"}, vocab_size=vocab_size, every_steps=3, device=torch.device("cpu"))
    reports = list(train(state, stream, masker, settings))
    assert len(counted) == len(reports) == 8
    plain = new_state(make_model, settings)
    plain.board = ScoreBoard({"loss"}, vocab_size=vocab_size, every_steps=3, device=torch.device("cpu"))
    monkeypatch.setattr("unmask.train.trainer.works_on_its_own", lambda device: False)
    assert [each.loss for each in train(plain, stream, masker, settings)] == [each.loss for each in reports]


def test_a_loss_that_is_not_finite_is_found_some_steps_later(
    make_model: MakeModel, stream: RowStream, masker: Masker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What reads the figures before it saves learns of it in time."""
    on_its_own(monkeypatch)
    settings = settings_of(steps=20)
    state = new_state(make_model, settings)
    training = train(state, stream, masker, settings)
    next(training)
    with torch.no_grad():
        state.model.head.bias[7] = float("nan")
    report = next(training)
    metrics = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    metrics.on_step(None, report)  # type: ignore[arg-type]
    with pytest.raises(DivergedError, match="the loss of step 2 is nan"):
        metrics.sync()
    for _ in range(loop_module.STEPS_AHEAD - 1):
        next(training)
    with pytest.raises(DivergedError, match="the loss of step 2 is nan"):
        next(training)


@pytest.mark.parametrize(("kind", "loops"), [("muon", False), ("muon", True), ("adamw", True)])
def test_a_step_that_diverges_changes_nothing(
    make_model: MakeModel, stream: RowStream, masker: Masker, monkeypatch: pytest.MonkeyPatch, kind: str, loops: bool
) -> None:
    """Weights, moments and counts are what they were, bit for bit, before the host knows of it."""
    on_its_own(monkeypatch)
    monkeypatch.setattr("unmask.train.optimizer.serves", lambda tensor: loops)
    settings = settings_of(steps=4, optimizer={"kind": kind})
    state = new_state(make_model, settings)
    training = train(state, stream, masker, settings)
    for _ in range(3):
        next(training)

    def content() -> dict[str, torch.Tensor]:
        tensors = {**dict(state.model.named_parameters()), **state_tensors(state.optimizer, state.model)}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    before = content()
    broken = state.model.get_parameter("encoder.blocks.0.mlp_norm.weight")
    broken.register_hook(lambda gradient: gradient * float("nan"))
    next(training)
    after = content()
    assert any(name.startswith("momentum") for name in before) == (kind == "muon")
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(DivergedError, match="the gradient of step 4 has the norm nan"):
        next(training)


class Late(Figures):
    """Figures that come when they are told to."""

    here = False

    @property
    def arrived(self) -> bool:
        return self.here


def late_report(step: int, loss: float) -> StepReport:
    figures = Late(step, {"masked_tokens": 10}, torch.tensor([loss, 1.0], dtype=torch.float64))
    return StepReport(step, 0.5, 0, figures, 10, 100, 1e-3, 32, 1, float(step))


def test_reports_are_handed_on_in_order_when_their_figures_are_there() -> None:
    arrivals, reports = Arrivals(), [late_report(step, 3.0) for step in range(1, 5)]
    assert arrivals.add(reports[0]) == []
    assert arrivals.add(reports[1]) == []
    reports[1].figures.here = True  # type: ignore[attr-defined]
    assert arrivals.add(reports[2]) == []
    reports[0].figures.here = True  # type: ignore[attr-defined]
    assert arrivals.add(reports[3]) == reports[:2]
    assert arrivals.rest() == reports[2:]
    assert arrivals.rest() == []


def test_metrics_wait_for_nobody_until_they_must(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    reports = [late_report(step, float(step)) for step in range(1, 14)]
    for report in reports[:11]:
        metrics.on_step(None, report)  # type: ignore[arg-type]
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    for report in reports:
        report.figures.here = True  # type: ignore[attr-defined]
    metrics.on_step(None, reports[11])  # type: ignore[arg-type]
    reports[12].figures.here = False  # type: ignore[attr-defined]
    metrics.on_step(None, reports[12])  # type: ignore[arg-type]
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [10]
    metrics.sync()
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert (first["step"], first["loss"]) == (10, 5.5)
    assert (second["step"], second["loss"]) == (13, 12.0)


def test_known_figures() -> None:
    measured = Measured(3.0, 1.5)
    figures = Figures.known(measured)
    assert figures.arrived
    assert figures.read() is measured


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, float("nan"), 2.0], r"the loss of step 4 is 1.0 \(masked_tokens\), nan \(next_sentence\)"),
        ([1.0, 1.0, float("inf")], "the gradient of step 4 has the norm inf"),
    ],
)
def test_figures_that_are_not_finite(values: list[float], text: str) -> None:
    figures = Figures(4, {"masked_tokens": 3, "next_sentence": 2}, torch.tensor(values, dtype=torch.float64))
    with pytest.raises(DivergedError, match=text):
        figures.read()
