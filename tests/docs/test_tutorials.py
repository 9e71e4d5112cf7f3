"""Each tutorial runs from its first command to its last, on a small text and for two steps."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

import unmask
from tests.command_line import Main
from tests.contract.conftest import sets
from tests.core.conftest import put_in_cache

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
SNIPPET = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


EVALUATION = ("evaluation.times=1", "evaluation.max_tokens=2000", "evaluation.final_max_tokens=2000")
LESS = {  # of what a command does
    "pretrain": sets(("training.batch_tokens=512", *EVALUATION)),
    "compare": sets(("training.batch_tokens=512",)),
    "embedder": sets(("embedder.batch_size=8",)),
    "finetune": sets(("finetune.epochs=1",)),
    "evaluate": ["--max-tokens", "2000", "--pseudo-tokens", "20"],
}
SMALLER = {"--minutes": ("--steps", "2"), "--seeds": ("--seeds", "1"), "--vocab-size": ("--vocab-size", "300")}


def write_files(folder: Path, corpus: str) -> None:
    """Files of the kinds that the tutorials tell readers to bring."""
    lines = [line for line in corpus.splitlines() if line]
    tagged = "".join(f"{word}\t{'B-person' if word[0].isupper() else 'O'}\n" for word in lines[0].split())
    molecules = [f"{'C' * (n % 7 + 1)}{'NO'[n % 2]}c1ccccc1" for n in range(200)]
    for name, text in {
        "corpus.txt": corpus,
        "other-book.txt": corpus,
        "app.log": "".join(f"INFO auth[{n}]: {line}\n" for n, line in enumerate(lines[:200])),
        "molecules.smi": "\n".join(molecules),
        **dict.fromkeys(("entities.conll", "entities-dev.conll"), f"{tagged}\n" * 8),
        **dict.fromkeys(("reviews.csv", "reviews-dev.csv"), _csv("text,mood", lines[:200])),
        **dict.fromkeys(("logp.csv", "logp-dev.csv"), _csv("smiles,logP", molecules)),
    }.items():
        (folder / name).write_text(text, encoding="utf-8")


def _csv(head: str, texts: list[str]) -> str:
    return f"{head}\n" + "".join(f"{text},{len(text) % 2 if 'mood' in head else len(text) / 8}\n" for text in texts)


def smaller(command: list[str]) -> list[str]:
    words = iter(command)
    return [part for word in words for part in ((next(words), SMALLER[word])[1] if word in SMALLER else (word,))]


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(
    page: Path, corpus_file: Path, run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, corpus_file.read_text(encoding="utf-8"))
    put_in_cache(run.folder / "model", tmp_path / "cache", "answerdotai/ModernBERT-base")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    ran = 0
    for language, snippet in SNIPPET.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(snippet, page.stem, "exec"), {})
        for line in snippet.replace("\\\n", " ").splitlines():
            if not language and line.startswith("unmask "):
                _, *words = shlex.split(line)
                code, _, err = main(*smaller(words), *LESS.get(words[0], []))
                assert code == 0, f"{line}\n{err}"
                ran += 1
    assert ran >= 2
    shutil.rmtree(tmp_path / "runs")
