"""Throughput in turns: which steps count, and which processes go on."""

from __future__ import annotations

import importlib
import io
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("trained")


@pytest.fixture
def timed() -> types.ModuleType:
    return importlib.import_module("timed")


@pytest.fixture
def peers() -> types.ModuleType:
    return importlib.import_module("peers")


def a_turn(
    timed: types.ModuleType, monkeypatch: pytest.MonkeyPatch, watch: Any, steps: list[float]
) -> tuple[list[float], int]:
    """What a turn takes of steps that last so long, and how many it makes."""
    now, made = 100.0, 0  # seconds, steps
    monkeypatch.setattr(timed.time, "perf_counter", lambda: now)
    watch.begin()
    for step in steps:
        now, made = now + step, made + 1
        if watch.tick(10 * made):
            break
    return watch.taken(), made


def test_the_first_seconds_do_not_count(timed: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [0.9, 0.8, 0.7, *(0.5 for _ in range(20))]
    watch = timed.Stopwatch("cpu", 2.0)
    taken, made = a_turn(timed, monkeypatch, watch, steps)
    assert taken == pytest.approx([0.5] * 4)
    assert made == 7
    assert watch.tokens == [40, 50, 60, 70], "of the same steps"


def test_of_long_steps_the_first_does_not_count_and_one_does(
    timed: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in (4.0, 0.0):
        watch = timed.Stopwatch("cpu", seconds)
        assert a_turn(timed, monkeypatch, watch, [9.0, 8.0, 7.0]) == (pytest.approx([8.0]), 2)
    watch = timed.Stopwatch("cpu", 4.0, 2)
    assert a_turn(timed, monkeypatch, watch, [9.0, 8.0, 7.0, 6.0]) == (pytest.approx([8.0, 7.0]), 3), "asked for two"


def test_a_gpus_turn_ends_when_it_has_nothing_to_do(timed: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def synchronize() -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(timed.torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(timed.time, "perf_counter", lambda: now)
    watch = timed.Stopwatch("cuda", 2.0)
    watch.begin()
    made, enough = 0, False
    while not enough:
        now, made = now + 0.5, made + 1
        enough = watch.tick(made)
    now += 50.0  # what the turn leaves is cleared away
    assert made == 9, "five that do not count, and four of half a second for the host"
    assert watch.taken() == pytest.approx([0.75] * 4), "from 103.5 to 106.5"
    assert watch.tokens == [6, 7, 8, 9]


def a_large_step(script: types.ModuleType, data_folder: Path) -> Any:
    """Work whose steps ask for more rows than an epoch of the small corpus has."""
    return script.Work(str(data_folder), "1x64", 64, 64 * 2000, "modernbert", "muon", "no", "cpu")


def test_ours_tells_the_tokens_of_the_rows_that_there_are(
    script: types.ModuleType, data_folder: Path, store: TokenStore
) -> None:
    found: list[int] = []

    class Watch:
        def begin(self) -> None: ...

        def tick(self, tokens: int) -> bool:
            found.append(tokens)
            return len(found) == 3

    turn, facts = script.ours(a_large_step(script, data_folder))
    turn(Watch())
    assert found == [int(store.lengths.sum())] * 3, "every step is an epoch"
    assert facts.keys() == {"multiplied", "head", "reach"}


def test_a_trainer_gets_whole_steps_of_a_short_text(
    peers: types.ModuleType,
    data_folder: Path,
    store: TokenStore,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "EPOCH_STEPS", {"cpu": 2})
    work = a_large_step(peers, data_folder)
    epoch = RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), work.rows)
    in_an_epoch = len(epoch.rows.input_ids)
    assert 0 < in_an_epoch < work.rows, "the guard of this test"
    special = tokenizer.special
    around = {special.pad, special.cls, special.sep}
    rows, tokens = peers._rows(work, types.SimpleNamespace(all_special_ids=sorted(around)))
    assert len(rows) == 2 * work.rows
    assert [row["input_ids"] for row in rows[:in_an_epoch]] == epoch.rows.input_ids.tolist()
    text = sum(len(row["special_tokens_mask"]) - sum(row["special_tokens_mask"]) for row in rows)
    assert tokens == pytest.approx(text / 2, rel=0.01)


def test_a_line_tells_how_long_a_turn_is(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    out, asked = io.StringIO(), []

    def watch(*given: object, warm_seconds: float) -> types.SimpleNamespace:
        asked.append((*given, warm_seconds))
        return types.SimpleNamespace(taken=lambda: [1.0], tokens=[7])

    monkeypatch.setattr(script, "own_output", lambda: out)
    monkeypatch.setattr(script, "Stopwatch", watch)
    monkeypatch.setattr(script, "ours", lambda work: (lambda watch: None, {"reach": 1}))
    monkeypatch.setattr(script.sys, "stdin", io.StringIO("begin\n4.0 2\n1.0 1\n"))
    script.serve("ours", "own", script.Work("data", "1x64", 64, 64, "modernbert", "muon", "no", "cpu"))
    assert asked == [("cpu", 4.0, 2, 2.0), ("cpu", 1.0, 1, 2.0)]
    ready, built, *answers = (json.loads(line) for line in out.getvalue().splitlines())
    assert (ready, built) == ({}, {"reach": 1})
    assert [(answer["seconds"], answer["tokens"]) for answer in answers] == [([1.0], [7])] * 2


class Way:
    """Stands for a process with one way to compute attention."""

    def __init__(self, script: types.ModuleType, *trials: float) -> None:
        self.trials, self.closed, self.ended = list(trials), False, script.ChildEnded

    def trial(self) -> float:
        if not self.trials:
            raise self.ended("no memory")
        return self.trials.pop(0)

    def close(self) -> None:
        self.closed = True


def test_the_fastest_way_to_compute_attention_goes_on() -> None:
    train = importlib.import_module("train")
    alone, far, near = [Way(train)], [Way(train, 9.0), Way(train, 2.0)], [Way(train, 1.1, 0.8), Way(train, 1.0, 1.0)]
    assert train._fastest(alone) == alone, "it is not tried"
    assert train._fastest(far) == far[1:]
    assert train._fastest(near) == near[:1], "tried once more, since they are near each other"
    assert [way.closed for way in (*far, *near)] == [True, False, False, True]
    with pytest.raises(train.ChildEnded):
        train._fastest([Way(train), Way(train, 2.0)])


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    train, turns = importlib.import_module("train"), importlib.import_module("turns")
    ends = "import sys; print('{}', flush=True); sys.stdin.readline()"
    serves = f"{ends}; print('{{}}', flush=True); sys.stdin.readline()"

    class System(turns.Child):  # type: ignore[misc, name-defined]
        def __init__(self, name: str, way: str, work: object) -> None:
            super().__init__([sys.executable, "-c", serves if name == "ours" else ends])

    monkeypatch.setattr(train, "System", System)
    monkeypatch.setattr(train, "ways", lambda name, work: ("own",))
    ready = train.start({"bert": ("bert", None), "ours": ("ours", None)})
    assert list(ready) == ["ours"]
    ready["ours"].close()
