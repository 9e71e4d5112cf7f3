"""A small part of `make fuzz` and `make torture`, always the same."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fuzz
import fuzz_targets
import pytest
import torture

from tests.command_line import Main
from unmask.core.errors import CorpusError

CASES = 4  # of each target, besides the whole one


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """A case of each target fails if its reader raises anything but an `UnmaskError`. Without the child process, which
    would load all libraries again."""
    targets = fuzz_targets.targets(tmp_path / "work")
    outcomes = [
        fuzz.one_case(name, target, number, tmp_path / f"{name}{number}")
        for name, target in targets.items()
        for number in range(fuzz.WHOLE, CASES)
    ]
    assert len(targets) > 20
    assert [outcome for outcome in outcomes if outcome["outcome"] == "failed"] == []
    refused = {outcome["target"] for outcome in outcomes if outcome["outcome"] == "refused"}
    # Damage to an index is repaired where it is resumed. Files that hold paths or times differ between runs, so that
    # the same damage hits other bytes.
    varying = {"resumed_index", "result", "finished", "run", "rule"}
    assert set(targets) - refused <= varying, "nothing was damaged enough"


def test_a_case_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception, and time: of the processor, or in all."""
    monkeypatch.setattr(fuzz, "SECONDS", 1)

    def outcome(read: Any) -> dict[str, Any]:
        return fuzz.one_case("x", fuzz_targets.Target({"a.txt": b"some text"}, read), 1, tmp_path / "1")

    def fail(error: Exception) -> None:
        raise error

    def work(*_: object) -> None:
        while True:
            pass

    assert outcome(lambda *_: 1)["outcome"] == "read"
    assert outcome(lambda *_: fail(CorpusError("no such thing")))["outcome"] == "refused"
    assert "KeyError: 'oops'" in outcome(lambda *_: fail(KeyError("oops")))["error"]
    assert "TimeoutError" in outcome(work)["error"]
    monkeypatch.setattr(fuzz, "WAITS", 1)
    assert "TimeoutError" in outcome(lambda *_: time.sleep(60))["error"]


def test_a_case_that_ends_its_process_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those after it run in a new one."""

    def ended(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """Ends in the second case, before its outcome is printed."""
        cases, out = json.loads(command[command.index("--child") + 1]), io.StringIO()
        fuzz.run_cases(cases[:2], {"x": fuzz_targets.Target({"a.txt": b"some text"}, lambda *_: 1)}, out)
        return subprocess.CompletedProcess(command, -11, "".join(out.getvalue().splitlines(True)[:3]), "a fault")

    monkeypatch.setattr(fuzz.subprocess, "run", ended)
    outcomes = fuzz.run_batch([("x", number) for number in range(3)], tmp_path)
    assert [outcome["outcome"] for outcome in outcomes] == ["read", "failed", "read"]
    assert (outcomes[1]["number"], outcomes[1]["error"]) == (1, "ended with -11\na fault")


def test_the_same_number_is_the_same_damage() -> None:
    made, again = (
        [fuzz.damaged(b"some text with 12 words" * 9, fuzz.random.Random(f"corpus:{n}")) for n in range(200)]
        for _ in range(2)
    )
    assert made == again
    assert len(set(made)) > 150


# A command that takes 0.1 s and then writes its output, beside and renamed; the first argument selects its defect.
COMMAND = """
import os, signal, sys, time
defect, out, again = sys.argv[1], sys.argv[sys.argv.index("--out") + 1], "--overwrite" in sys.argv
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, lambda signum, _: os._exit(128 + signum))
if defect == "Traceback":
    print("Traceback (most recent call last):", file=sys.stderr, flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
time.sleep(0.1)
for path in (out, f"{out}.more") if defect == "left behind" else (out,):
    with open(f"{path}.partial", "w") as file:
        file.write("other text" if defect == "not the same" and again else "text")
    try:
        os.replace(f"{path}.partial", path)
    except FileNotFoundError:
        pass  # the other process of the pair was faster
sys.exit(defect == "exit 1" and again)
"""


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["none", "Traceback", "left behind", "not the same", "exit 1"])
def test_kills_show_a_defect(tmp_path: Path, defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own commands are killed in their own tests."""
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.setattr(torture, "UNMASK", [sys.executable, "-I", "-S", str(tmp_path / "command.py"), defect])
    command = torture.Command(["x"], "--overwrite", "out.txt", of_base=False)
    monkeypatch.setattr(torture, "commands", lambda work: {"x": command})
    work = tmp_path / "work"
    work.mkdir()
    kills = 5 if defect == "none" else 4  # the second case is a pair of processes
    early = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, early)  # inherited: they wait until the command has its handlers
    try:
        cases = torture.torture("x", kills, work)
        again = torture.torture("x", kills, work)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert sum(case["kills"] for case in cases) >= kills
    wrong = [case["wrong"] for case in cases if case["wrong"]]
    assert wrong == [] if defect == "none" else any(defect in each for each in wrong)
    assert again == cases, "no case is run again"


def test_its_commands_have_these_options(tmp_path: Path, main: Main) -> None:
    for command in torture.commands(tmp_path).values():
        words = [*command.options, "--out", tmp_path / command.out, *filter(None, [command.again]), "--help"]
        code, _, errors = main(*words)
        assert code == 0, errors
    assert main(*words, "--nonsense")[0] == 2, "the guard of this test"
