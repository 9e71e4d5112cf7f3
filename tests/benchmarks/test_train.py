"""Throughput: which steps count, who has a turn, and what the table says of it."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import train as script
import trained

from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def no_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "peak_flops", lambda *of: 1e12)


def a_turn(monkeypatch: pytest.MonkeyPatch, watch: Any, steps: list[float]) -> tuple[list[float], int]:
    """What a turn takes of steps that last so long, and how many it makes."""
    now, made = 100.0, 0  # seconds, steps
    monkeypatch.setattr(trained.time, "perf_counter", lambda: now)
    watch.begin()
    for step in steps:
        now, made = now + step, made + 1
        if watch.tick(10 * made):
            break
    return watch.taken(), made


def test_the_first_seconds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = trained.Stopwatch("cpu", 2.0)
    taken, made = a_turn(monkeypatch, watch, [0.9, 0.8, 0.7, *(0.5 for _ in range(20))])
    assert (taken, made) == (pytest.approx([0.5] * 4), 7)
    assert watch.tokens == [40, 50, 60, 70], "of the same steps"
    watch = trained.Stopwatch("cpu", 4.0, 2)
    assert a_turn(monkeypatch, watch, [9.0, 8.0, 7.0, 6.0]) == (pytest.approx([8.0, 7.0]), 3), "two at least"


def test_systems_train_on_the_same_rows(
    data_folder: Path,
    store: TokenStore,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps ask for more rows than an epoch of the small corpus has: ours has the whole of it in each."""
    work = trained.Work(str(data_folder), "1x64", 64, 64 * 2000)
    tokens: list[int] = []
    watch = types.SimpleNamespace(begin=lambda: None, tick=lambda read: tokens.append(read) or len(tokens) == 3)
    turn, facts = trained.ours(work)
    turn(watch)
    assert tokens == [int(store.column("lengths").sum())] * 3
    assert facts.keys() == {"multiplied", "head", "reach"}
    monkeypatch.setattr(trained, "EPOCH_STEPS", {"cpu": 2})
    epoch = RowStream(store, tokenizer, length=64, seed=0).batch(Cursor(), work.rows).rows.input_ids
    assert 0 < len(epoch) < work.rows, "the guard of this test"
    special = tokenizer.special
    rows, in_a_step = trained.trainer_rows(work, sorted({special.pad, special.cls, special.sep}))
    assert len(rows) == 2 * work.rows
    assert [row["input_ids"] for row in rows[: len(epoch)]] == epoch.tolist()
    text = sum(len(row["special_tokens_mask"]) - sum(row["special_tokens_mask"]) for row in rows)
    assert in_a_step == pytest.approx(text / 2, rel=0.01)


def fake(*turns: list[tuple[int, float]], **facts: Any) -> Any:
    """A process that answers with the tokens and seconds of the steps of turns, and then ends."""
    left = list(turns)

    class Fake(script.System):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.facts, self.seconds, self.tokens, self.memory, self.closed = facts, [], [], 0, False
            self.turn_seconds, self.lines = 4.0, []

        def ask(self, line: object) -> dict[str, Any]:
            self.lines.append(line)
            if not left:
                raise script.ChildEnded("no memory")
            tokens, seconds = zip(*left.pop(0), strict=True)
            return {"seconds": list(seconds), "tokens": list(tokens), "memory": 3 * 2**20}

        def close(self) -> None:
            self.closed = True

    return Fake()


FACTS = {"multiplied": 10**10, "head": 2 * 10**10, "reach": 10**8}  # 15.48e10 FLOP a token


def test_turns_and_ways() -> None:
    long = fake([(20, 9.0), (20, 9.0), (20, 9.0)], **FACTS)
    short = fake([(20, 4.0)], [(20, 4.0)], [(20, 4.0)])
    pairs = script.take_turns({"ours": long, "bert": short}, script.Work("data", "2x64", 8, 32), 3)
    assert pairs == [(1e12, 20 / 9.0)], "ours is full behind the first round"
    assert short.lines == ["4.0 1"] * 3, "three steps shared out over three rounds"

    def way(*trials: float) -> Any:
        return fake(*([(1, seconds)] for seconds in trials))

    far, near = [way(9.0), way(2.0)], [way(1.1, 0.8), way(1.0, 1.0)]
    assert script.fastest(far) is far[1]
    assert script.fastest(near) is near[0], "tried once more, since they are near each other"
    assert [each.closed for each in (*far, *near)] == [True, False, False, True]
    with pytest.raises(script.ChildEnded):
        script.fastest([way(), way(2.0)])
