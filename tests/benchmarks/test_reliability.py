"""A small part of `make fuzz` and `make torture`, always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fuzz
import pytest
import torture
from fuzz_targets import Target

from unmask.core.errors import CorpusError

TARGETS = (
    "corpus", "saved", "labelled", "pairs", "recipe", "model", "hostile", "task", "result", "finished",
    "checkpoint", "seed", "tokenizer", "data", "run", "lexicon", "index", "resumed_index", "beir", "positives", "texts",
    "vocabulary", "sentence", "rule", "compared", "searched", "parts", "finished_embedder",
)  # fmt: skip


@pytest.mark.slow
def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """A case of each target fails if its reader raises anything but an `UnmaskError`."""
    outcomes = fuzz.run_batch([(target, number) for target in TARGETS for number in range(fuzz.WHOLE, 30)], tmp_path)
    assert len(outcomes) == 31 * len(TARGETS)
    assert [outcome for outcome in outcomes if outcome["outcome"] == "failed"] == []
    for target in TARGETS:
        reached = {outcome["outcome"] for outcome in outcomes if outcome["target"] == target}
        # What is damaged of an index is made anew where it is resumed, so it may be read in every case.
        assert "refused" in reached or target == "resumed_index", f"{target}: nothing was damaged enough"


def test_a_case_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any kind: an exception, a signal, time."""
    monkeypatch.setattr(fuzz, "SECONDS", 1)

    def outcome(read: Any) -> dict[str, Any]:
        chosen = Target({"a.txt": b"some text"}, read)
        return dict(fuzz._one_case("x", chosen, 1, tmp_path / "1"))

    def slow(*_: object) -> None:
        while True:
            pass

    def fail(error: Exception) -> None:
        raise error

    def too_long(*_: object) -> None:
        raise TimeoutError("too long")

    for signum in (fuzz.signal.SIGPROF, fuzz.signal.SIGALRM):  # the second comes where other work is done
        fuzz.signal.signal(signum, too_long)
    assert outcome(lambda *_: 1)["outcome"] == "read"
    assert outcome(lambda *_: fail(CorpusError("no such thing")))["outcome"] == "refused"
    assert "KeyError: 'oops'" in outcome(lambda *_: fail(KeyError("oops")))["error"]
    assert "TimeoutError" in outcome(slow)["error"]


def test_the_same_number_is_the_same_damage() -> None:
    made, again = (
        [fuzz.damaged(b"some text with 12 words" * 9, fuzz.random.Random(f"corpus:{n}")) for n in range(200)]
        for _ in range(2)
    )
    assert made == again
    assert len(set(made)) > 150


@pytest.mark.slow
def test_killed_and_in_pairs(tmp_path: Path) -> None:
    """Preparations that are killed are those of tests/data/test_data_folder.py."""
    cases = torture.torture("lexicon", 4, tmp_path)
    assert sum(case["kills"] for case in cases) >= 4
    assert [case["wrong"] for case in cases if case["wrong"]] == []
