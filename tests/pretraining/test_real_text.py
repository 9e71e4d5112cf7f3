"""The same command on real text of every kind, with every kind of tokenizer that makes sense for it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import SMALL

WORDS = ("wordpiece", "bpe", "unigram", "char")
LETTERS = ("char", "bpe", "unigram")  # a protein is one word: WordPiece gives up on words of more than 100 letters
CASES = [
    *(("hungarian", kind) for kind in WORDS),
    *(("proteins", kind) for kind in LETTERS),
    *(("sst2", kind) for kind in WORDS),
    *(("stdin", kind) for kind in WORDS),
    *(("parquet", kind) for kind in WORDS),
]


def source(name: str, shared_data: Path, folder: Path) -> tuple[str, bytes | None]:
    """The path to name on the command line, and what comes on standard input."""
    hungarian = shared_data / "hungarian" / "hungarian.txt.gz"
    if name == "hungarian":
        return str(hungarian), None
    if name == "proteins":
        return str(shared_data / "protein_ss" / "sequences.fasta.gz"), None
    if name == "sst2":
        return str(next((shared_data / "sst2").glob("*train*.tsv"))), None
    text = (shared_data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    if name == "stdin":
        return "-", text.encode()
    pq.write_table(pa.table({"id": range(7000), "text": text.split("\n\n")[:7000]}), folder / "plays.parquet")
    return str(folder / "plays.parquet"), None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_same_command_for_every_text(name: str, kind: str, shared_data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path, piped = source(name, shared_data, tmp_path)
    command = [sys.executable, "-m", "unmask", "pretrain", path, "--out", str(tmp_path / "run"), "--steps", "3",
               "--tokenizer-kind", kind, "--json"]  # fmt: skip
    for setting in SMALL:
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, input=piped, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    summary = json.loads(done.stdout)
    assert summary["steps"] == 3
    manifest = json.loads((tmp_path / "run" / "data" / "manifest.json").read_text())
    assert manifest["tokens"] > 50_000
    unknown = manifest["train"]["unknown_tokens"] + manifest["validation"]["unknown_tokens"]
    assert unknown < 0.002 * manifest["tokens"]
    if name == "hungarian":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            assert manifest["bytes"] == pytest.approx(len(file.read().encode()), rel=0.02)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model")
    ids = tokenizer(f"a {tokenizer.mask_token} b", return_tensors="pt")
    assert model(**ids).logits.shape[-1] == summary["vocab_size"]
