"""The same command on real text of every kind, with kinds of tokenizers that make sense for it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command_line import Main
from tests.conftest import SMALL

WORDS = ("wordpiece", "bpe", "unigram", "char")
LETTERS = ("char", "bpe", "unigram")  # a protein is one word: WordPiece gives up on words of more than 100 letters
CASES = [
    *(("hungarian", kind) for kind in WORDS),
    *(("proteins", kind) for kind in LETTERS),
    *(("sst2", kind) for kind in WORDS),
    ("stdin", "wordpiece"),  # one text, which comes in two ways
    *(("parquet", kind) for kind in ("unigram", "bpe", "char")),
]
LENGTH = {"hungarian": 600_000, "proteins": 200_000}  # long words cost the trainers of tokenizers much


def beginning(path: Path, length: int, end: str, folder: Path) -> str:
    """The beginning of a compressed file, up to where something ends, compressed again."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = file.read(length)
    with gzip.open(folder / path.name, "wt", encoding="utf-8") as file:
        file.write(text[: text.rindex(end) + 1])
    return str(folder / path.name)


def source(name: str, shared_data: Path, folder: Path) -> tuple[str, bytes | None]:
    """The path to name on the command line, and what comes on standard input."""
    if name == "hungarian":
        return beginning(shared_data / "hungarian" / "hungarian.txt.gz", LENGTH[name], "\n", folder), None
    if name == "proteins":
        return beginning(shared_data / "protein_ss" / "sequences.fasta.gz", LENGTH[name], "\n>", folder), None
    if name == "sst2":
        return str(next((shared_data / "sst2").glob("*train*.tsv"))), None
    text = (shared_data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    if name == "stdin":
        return "-", text.encode()
    pq.write_table(pa.table({"id": range(7000), "text": text.split("\n\n")[:7000]}), folder / "plays.parquet")
    return str(folder / "plays.parquet"), None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_same_command_for_every_text(name: str, kind: str, shared_data: Path, tmp_path: Path, main: Main) -> None:
    transformers = pytest.importorskip("transformers")
    path, piped = source(name, shared_data, tmp_path)
    command = ["pretrain", path, "--out", str(tmp_path / "run"), "--steps", "3", "--tokenizer-kind", kind, "--json"]
    for setting in SMALL:
        command += ["--set", setting]
    if piped is None:
        code, out, err = main(*command)
    else:
        process = [sys.executable, "-m", "unmask", *command]
        done = subprocess.run(process, input=piped, capture_output=True, check=False)
        code, out, err = done.returncode, done.stdout.decode(), done.stderr.decode()
    assert code == 0, err
    summary = json.loads(out)
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
