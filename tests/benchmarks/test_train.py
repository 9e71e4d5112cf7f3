"""Throughput: which steps count, on which rows, and which attention is used."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import train
import trained

from unmask.data.rows import Cursor, RowStream
from unmask.data.store import TokenStore
from unmask.tokenizer.tokenizer import Tokenizer


def a_turn(monkeypatch: pytest.MonkeyPatch, watch: Any, steps: list[float]) -> tuple[list[float], int]:
    """Runs a turn whose steps take these seconds; returns the seconds that count, and the number of steps made."""
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
    data_folder: Path, store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
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


def test_a_peer_trains_for_a_turn(data_folder: Path) -> None:
    tokens: list[int] = []
    watch = types.SimpleNamespace(begin=tokens.clear, tick=lambda read: tokens.append(read) or len(tokens) == 3)
    turn = trained.transformers_of("modernbert-bf16", trained.Work(str(data_folder), "1x64", 64, 512), "sdpa")
    for _ in range(2):
        turn(watch)
        assert len(tokens) == 3
    assert 0 < tokens[0] == tokens[1] < 512


class Candidate:
    """A process whose trials take these seconds."""

    is_open = True

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)

    def trial(self) -> float:
        return next(self._seconds)

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize("is_close", [False, True])
def test_the_faster_attention_is_used(is_close: bool) -> None:
    """A second trial decides between close ones."""
    fast, slow = (Candidate(1.1, 0.9), Candidate(1.0, 1.1)) if is_close else (Candidate(1.0), Candidate(2.0))
    assert train.fastest([slow, fast]) is fast  # type: ignore[list-item, comparison-overlap]
    assert (fast.is_open, slow.is_open) == (True, False)
