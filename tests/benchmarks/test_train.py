"""Throughput: who has a turn, what counts, and what the table says of it."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    train = importlib.import_module("train")
    monkeypatch.setattr(train, "peak_flops", lambda *of: 1e12)
    return train


def fake(script: types.ModuleType, *turns: list[tuple[int, float]], **facts: Any) -> Any:
    """A process that answers with the tokens and seconds of the steps of turns, and then ends."""
    left = list(turns)

    class Fake(script.System):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.facts, self.seconds, self.tokens, self.memory, self.closed = facts, [], [], 0, False

        def ask(self, line: object) -> dict[str, Any]:
            if not left:
                raise script.ChildEnded("no memory")
            tokens, seconds = zip(*left.pop(0), strict=True)
            return {"seconds": list(seconds), "tokens": list(tokens), "memory": 3 * 2**20}

        def close(self) -> None:
            self.closed = True

    return Fake()


def work(script: types.ModuleType) -> Any:
    return script.Work("data", "2x64", 8, 34, "modernbert", "muon", "no", "cpu")


def test_the_table_of_a_cell(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"multiplied": 10**10, "head": 2 * 10**10, "reach": 10**8}
    systems = {
        "ours": fake(script, [(30, 2.0), (20, 2.0)], [(48, 4.0)], [(1000, 1.0)], **facts),
        "bert": fake(script, [(27, 9.0), (27, 9.0)], [(27, 9.0)], [(1000, 1.0)], attention="sdpa"),
        "bert-bf16": fake(script, [(27, 2.0)], attention="eager"),
    }
    monkeypatch.setattr(script, "start", lambda works: {name: systems[name] for name in works if name in systems})
    lines = script.measure(work(script), [*systems, "bert-best"], rounds=2, peak=3.7926e12)
    # 15, 10 and 12 tokens a second: 12.5 and 12 in the median of a turn, 12.25 in that of turns, each of 15.48e10 FLOP
    assert lines == [
        "| 2x64 | 8 | 32 | ours | 12* (10 to 15; 3) | 1.00* | 50% of 3.79 TFLOP/s* | 3 |",
        "| 2x64 | 8 | 32 | bert (sdpa) | 3* (3 to 3; 3) | 4.00* | - | 3 |",
        "| 2x64 | 8 | 32 | bert-bf16 | ended: no memory |  |  |  |",
        "| 2x64 | 8 | 32 | bert-best | ended: no memory |  |  |  |",
    ]
    assert [systems[name].closed for name in ("ours", "bert")] == [True, True]


def test_a_share_is_that_of_the_same_rounds_peak(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"multiplied": 10**10, "head": 2 * 10**10, "reach": 10**8}
    # 6 x (1e10 + 0.15 x 2e10) + 12 x 1e8 x 64 = 15.48e10 FLOP a token
    ours = fake(script, [(20, 2.0), (20, 2.0)], [(20, 4.0)], [(20, 8.0)], **facts)
    log, peaks = [], iter((3.096e12, 1.548e12, 1.548e12))  # the machine slows down with the second round

    def products(hidden: int, tokens: int, device: str) -> float:
        log.append(f"products of {hidden}, {tokens} on {device}")
        return next(peaks)

    asked = ours.ask
    monkeypatch.setattr(script, "peak_flops", products)
    monkeypatch.setattr(ours, "ask", lambda line: log.append("ours") or asked(line))
    monkeypatch.setattr(script, "start", lambda works: {"ours": ours})
    (line,) = script.measure(work(script), ["ours"], rounds=3, peak=None)
    assert line.endswith(" | 50% of 1.55 TFLOP/s* | 3 |"), "10, 5 and 2.5 tokens a second: a half, a half, a quarter"
    assert log == ["products of 64, 32 on cpu", "ours"] * 3


def test_products_have_turns_where_ours_has(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = {
        "bert": fake(script, [(20, 1.0)], [(20, 1.0)], attention="sdpa"),
        "ours": fake(script, [(20, 9.0), (20, 9.0), (20, 9.0)], multiplied=1, head=1, reach=1),
    }
    calls: list[str] = []
    monkeypatch.setattr(script, "peak_flops", lambda *of: calls.append("products") or 1e12)
    assert script.take_turns(dict(systems), work(script), 2) == [script.Pair(1e12, 20 / 9.0)]
    assert calls == ["products"], "ours is full behind the first round"


def test_products_alone_reach_something() -> None:
    train = importlib.import_module("train")
    assert train.products_turn(train.Work("data", "2x64", 8, 32, "modernbert", "muon", "no", "cpu")) > 0.0


def test_without_ours_nothing_is_compared(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "start", lambda works: {"bert": fake(script, [(32, 4.0)], attention="sdpa")})
    lines = script.measure(work(script), ["ours", "bert"], rounds=1, peak=1e12)
    assert lines[0] == "| 2x64 | 8 | 32 | bert (sdpa) | 8* (8 to 8; 1) | - | - | 3 |"


def test_what_ends_in_its_first_turn_is_told(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = {"bert": fake(script)}
    monkeypatch.setattr(script, "start", lambda works: dict(systems))
    lines = script.measure(work(script), ["bert"], rounds=2, peak=1e12)
    assert lines == ["| 2x64 | 8 | 32 | bert | ended: no memory |  |  |  |"]


def test_longer_steps_have_fewer_turns(script: types.ModuleType) -> None:
    def turns(*seconds: float) -> list[int]:
        process = fake(script)
        process.seconds = list(seconds)
        return [number for number in range(1, 5) if script._has_turn(process, number)]

    assert turns() == [1, 2, 3, 4]
    assert turns(2.0, 2.0) == [1, 2, 3, 4], "the first turn is full, and everyone has it"
    assert turns(3.0, 2.5, 2.5) == [1, 3, 4], "what the trials took is not taken again"
    assert turns(30.0, 30.0) == [1, 2, 3, 4], "two steps are not enough"
    assert turns(30.0, 30.0, 30.0) == [1]


def test_rounds_share_the_steps_of_a_slow_system(script: types.ModuleType) -> None:
    class Slow:
        """A process whose steps take a minute: a turn ends with as many as it must make."""

        turn_seconds = 4.0

        def __init__(self, trials: int) -> None:
            self.seconds, self.turns = [60.0] * trials, list[int]()

        def go(self, least_steps: int) -> None:
            self.turns.append(least_steps)
            self.seconds += [60.0] * least_steps

        def close(self) -> None: ...

    def turns(rounds: int, trials: int = 0) -> list[int]:
        process = Slow(trials)
        script.take_turns({"bert": process}, work(script), rounds)
        return process.turns

    assert (turns(1), turns(2), turns(3), turns(4)) == ([3], [2, 1], [1, 1, 1], [1, 1, 1])
    assert turns(2, trials=1) == [1, 1], "steps of trials count"
    assert turns(2, trials=4) == [1], "all have a turn in the first round"


def test_what_rests_on_few_steps_is_marked(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = {
        "ours": fake(script, [(20, 1.0)] * 5, multiplied=1, head=1, reach=1),
        "bert": fake(script, [(20, 2.0)] * 4, attention="sdpa"),
        "bert-best": fake(script, [(20, 2.0)] * 5, attention="sdpa"),
    }
    monkeypatch.setattr(script, "start", lambda works: dict(systems))
    lines = script.measure(work(script), list(systems), rounds=1, peak=None)
    assert lines == [
        "| 2x64 | 8 | 32 | ours | 20 (20 to 20; 5) | 1.00 | 0% of 1.00 TFLOP/s | 3 |",
        "| 2x64 | 8 | 32 | bert (sdpa) | 10* (10 to 10; 4) | 2.00* | - | 3 |",
        "| 2x64 | 8 | 32 | bert-best (sdpa) | 10 (10 to 10; 5) | 2.00 | - | 3 |",
    ]
    assert script._explained(lines) == [*lines, "", "`*`: of fewer than 5 steps."]
    assert script._explained(lines[::2]) == lines[::2]
    monkeypatch.setattr(script, "start", lambda works: {name: fake_of(script, name) for name in works})
    assert "| 2.00* |" in script.measure(work(script), ["ours", "bert"], rounds=1, peak=None)[1], "ours has few"


def fake_of(script: types.ModuleType, name: str) -> Any:
    """Ours with few steps, a peer with enough."""
    if name == "ours":
        return fake(script, [(20, 1.0)] * 4, multiplied=1, head=1, reach=1)
    return fake(script, [(20, 2.0)] * 5, attention="sdpa")


def test_a_turn_says_how_long_and_how_many_steps(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    process, lines = fake(script), []

    def ask(line: str) -> dict[str, Any]:
        lines.append(line)
        return {"seconds": [1.0], "tokens": [10], "memory": 1}

    monkeypatch.setattr(process, "ask", ask)
    process.go(2)
    process.trial()
    assert lines == ["4.0 2", "1.0 1"]


def test_a_trial_counts(script: types.ModuleType) -> None:
    process = fake(script, [(10, 0.5), (10, 0.7), (10, 0.6)], [(20, 4.0)])
    assert process.trial() == 0.6
    process.go()
    assert process.seconds == [0.5, 0.7, 0.6, 4.0]
    assert process.tokens == [10, 10, 10, 20]


def test_processes_build_side_by_side_and_are_tried_behind(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    class Told:
        def __init__(self, system: str, way: str, work: object) -> None:
            self.name, self.answers = f"{system} {way}", iter(({}, {"attention": way}))

        def tell(self, line: str) -> None:
            log.append(f"{line} {self.name}")

        def read(self) -> dict[str, str]:
            return next(self.answers)

        def trial(self) -> float:
            log.append(f"try {self.name}")
            return 1.0 if self.name.endswith("eager") else 2.0

        def close(self) -> None:
            log.append(f"close {self.name}")

    monkeypatch.setattr(script, "System", Told)
    names = ("ours", "bert-best", "modernbert-bf16")
    ready = script.start({name: (name, work(script)) for name in names})
    begun = ["ours own", "bert-best sdpa", "bert-best eager", "modernbert-bf16 sdpa", "modernbert-bf16 eager"]
    assert log[:5] == [f"begin {name}" for name in begun]
    tried = [f"{what} {name} {way}" for name in names[1:] for what, way in (("try", "sdpa"), ("try", "eager"))]
    assert [line for line in log if line.startswith("try")] == tried
    assert log[-1] == "close modernbert-bf16 sdpa"
    assert {name: process.facts for name, process in ready.items()} == {
        "ours": {"attention": "own"},
        "bert-best": {"attention": "eager"},
        "modernbert-bf16": {"attention": "eager"},
    }


def test_what_is_measured_at_each_length(script: types.ModuleType) -> None:
    assert script.systems_at(0, None) == ["ours", "bert", "bert-bf16", "bert-best", "modernbert-bf16"]
    assert script.systems_at(1, None) == ["ours", "bert", "bert-best", "modernbert-bf16"]
    assert script.systems_at(1, "ours,bert-bf16") == ["ours", "bert-bf16"]
