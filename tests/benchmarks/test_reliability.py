"""A small part of `make fuzz` and `make torture`, always the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = (
    "corpus", "saved", "texts", "labelled", "pairs", "recipe", "model", "hostile", "task", "result", "finished",
    "checkpoint", "seed", "tokenizer", "data", "run", "lexicon",
)  # fmt: skip


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """A case of each target fails where its reader lets anything but an `UnmaskError` out."""
    fuzz = script("fuzz")
    outcomes = fuzz.run_batch([(target, number) for target in TARGETS for number in range(fuzz.WHOLE, 30)], tmp_path)
    assert len(outcomes) == 31 * len(TARGETS)
    assert [outcome for outcome in outcomes if outcome["outcome"] == "failed"] == []
    for target in TARGETS:
        found = {outcome["outcome"] for outcome in outcomes if outcome["target"] == target}
        assert "refused" in found, f"{target}: nothing was damaged enough"


def test_a_case_that_fails_is_found(tmp_path: Path) -> None:
    """Of any kind: an exception, a text of several lines, a signal, time."""
    fuzz = script("fuzz")
    fuzz.SECONDS = 1

    def outcome(read: Any) -> dict[str, Any]:
        chosen = type("Chosen", (), {"files": {"a.txt": b"some text"}, "read": staticmethod(read), "beside": None})
        found: dict[str, Any] = fuzz._one_case("x", chosen, 1, tmp_path / "1")
        return found

    def slow(*_: object) -> None:
        while True:
            pass

    def crash(*_: object) -> None:
        raise KeyError("oops")

    def refuse(*_: object) -> None:
        raise fuzz_error("no such thing")

    from unmask.core.errors import CorpusError as fuzz_error

    def too_long(*_: object) -> None:
        raise TimeoutError("too long")

    for signum in (fuzz.signal.SIGPROF, fuzz.signal.SIGALRM):  # the second comes where other work is done
        fuzz.signal.signal(signum, too_long)
    assert outcome(lambda *_: 1)["outcome"] == "read"
    assert outcome(refuse)["outcome"] == "refused"
    assert "KeyError: 'oops'" in outcome(crash)["error"]
    assert "TimeoutError" in outcome(slow)["error"]


def test_the_same_number_is_the_same_damage() -> None:
    fuzz = script("fuzz")
    made = [fuzz.damaged(b"some text with 12 words" * 9, fuzz.random.Random(f"corpus:{n}")) for n in range(200)]
    again = [fuzz.damaged(b"some text with 12 words" * 9, fuzz.random.Random(f"corpus:{n}")) for n in range(200)]
    assert made == again
    assert len(set(made)) > 150


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prepare", "lexicon"])
def test_killed_and_in_pairs(name: str, tmp_path: Path) -> None:
    cases = script("torture").torture(name, 4, tmp_path)
    assert sum(case["kills"] for case in cases) >= 4
    assert [case["wrong"] for case in cases if case["wrong"]] == []
