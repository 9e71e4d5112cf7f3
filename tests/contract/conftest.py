"""Shared by the contract tests: the command line, files to read, one prepared folder and one run.

These tests use only the public interface: names of `unmask.__all__`, commands, files, and the libraries
that read them. `golden.json` holds the recorded results; `RECORD=1 python -m pytest tests/contract` records them anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.contract.samples import write_samples

os.environ["HF_HUB_OFFLINE"] = "1"
GOLDEN = Path(__file__).with_name("golden.json")
SMALL = ("model.num_layers=1", "model.hidden_size=64", "model.num_heads=2", "training.sequence_length=64",
         "training.batch_tokens=512", "training.precision=float32", "evaluation.times=2")  # fmt: skip


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        lines = self.out.splitlines()
        assert len(lines) == 1, self.out
        return json.loads(lines[0])


Command = Callable[..., Done]


@pytest.fixture(scope="session")
def command() -> Command:
    """Runs `python -m unmask ...` in this process, where libraries are loaded already."""

    def run(*words: object) -> Done:
        out, err = io.StringIO(), io.StringIO()
        before, sys.argv = sys.argv, ["unmask", *map(str, words)]
        code: Any = 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                runpy.run_module("unmask", run_name="__main__")
        except SystemExit as left:
            code = left.code
        finally:
            sys.argv = before
        return Done(int(code or 0), out.getvalue(), err.getvalue())

    return run


def environment() -> dict[str, str]:
    """Environment of separate processes: this package, and one thread, so that sums have a fixed order."""
    return os.environ | {"PYTHONPATH": str(Path(unmask.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def process(*words: object, cwd: Path | None = None, text: str | None = None) -> Done:
    """Runs Python in a process of its own."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd, env=environment(), input=text, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def sets(settings: tuple[str, ...]) -> list[str]:
    """Settings as the command line takes them."""
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that tests read; none writes there."""
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder)
    return folder


@pytest.fixture(scope="session")
def data(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The annotated documents, prepared with the written vocabulary."""
    out = tmp_path_factory.mktemp("prepared") / "data"
    unmask.prepare(
        [samples / "annotated.jsonl"], out=out, tokenizer=samples / "vocab.txt", workers=1,
        annotate=["entities", "pos", "dependencies", "chunks"],
    )  # fmt: skip
    return out


@pytest.fixture(scope="session")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> unmask.Run:
    """A run of 60 steps with whole words."""
    out = tmp_path_factory.mktemp("runs") / "short"
    return unmask.pretrain(data, out=out, steps=60, strategy="whole_word", settings=SMALL)


@pytest.fixture(scope="session")
def golden() -> Iterator[Callable[..., None]]:
    """Compares with what was recorded: exactly, or numbers within a tolerance."""
    recording = bool(os.environ.get("RECORD"))
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}

    def check(name: str, value: Any, within: float | None = None) -> None:
        if recording:
            recorded[name] = value
        assert name in recorded, f"{name} was not recorded"
        expected = recorded[name] if within is None else pytest.approx(recorded[name], abs=within, rel=0)
        assert value == expected, name

    yield check
    if recording:
        lines = (f"{json.dumps(name)}: {json.dumps(recorded[name], sort_keys=True)}" for name in sorted(recorded))
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@pytest.fixture(scope="session")
def packaged_text() -> Path:
    """The packaged Tiny Shakespeare, which a run without paths reads, wherever it is stored."""
    found = sorted(Path(unmask.__file__).parent.rglob("tinyshakespeare*"))
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="session")
def shakespeare(packaged_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged text, prepared by one process."""
    out = tmp_path_factory.mktemp("shakespeare") / "data"
    unmask.prepare([packaged_text], out=out, vocab_size=1024, workers=1)
    return out


@pytest.fixture(scope="session")
def tuned(run: unmask.Run, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier."""
    out = tmp_path_factory.mktemp("tuned") / "classify"
    file = samples / "classify.jsonl"
    settings = ["finetune.epochs=1", "finetune.batch_size=16"]
    unmask.finetune(run.folder / "model", task="classify", train=file, validation=file, out=out, settings=settings)
    return out


@pytest.fixture(scope="session")
def index(run: unmask.Run, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of forty lines."""
    out = tmp_path_factory.mktemp("index") / "lines"
    unmask.Index.build(run.folder / "model", [samples / "lines.txt"], out=out)
    return out
