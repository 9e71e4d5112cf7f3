"""Prepared text never changes, value for value, however it is prepared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import unmask

Golden = Callable[[str, Any], None]
ANNOTATED = {"annotate": ["entities", "pos", "dependencies", "chunks"]}


def columns_of(folder: Path) -> dict[str, dict[str, str]]:
    """A hash of every column's values, by part; independent of how they are divided into files."""
    found: dict[str, dict[str, str]] = {}
    for part in ("train", "validation"):
        tables = [pa.ipc.open_stream(path).read_all() for path in sorted((folder / part).glob("*.arrow"))]
        table = pa.concat_tables(tables).sort_by([("document", "ascending"), ("offset", "ascending")])
        found[part] = {
            name: hashlib.sha256(json.dumps(table[name].to_pylist()).encode()).hexdigest()
            for name in sorted(table.column_names)
        }
        found[part]["types"] = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    return found


def files_of(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in {".arrow", ".json"} and path.name != "manifest.json"
    }


def counts_of(prepared: unmask.Prepared) -> dict[str, Any]:
    figures = prepared.to_dict()
    return {
        name: figures[name]
        for name in ("documents", "bytes", "tokens", "skipped", "vocab_size", "train_tokens", "validation_tokens",
                     "unknown_tokens", "annotations", "labels")
    }  # fmt: skip


def tokenizer_of(folder: Path) -> str:
    """A hash of the tokenizer's content, independent of white space in its file."""
    content = json.loads((folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


KINDS = {"wordpiece": 1024, "bpe": 600, "char": None}
PYARROW = "26.0.1"  # another version may write the same columns as other bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_of_every_kind_and_its_tokens_stay(
    kind: str, samples: Path, tmp_path: Path, golden: Golden
) -> None:
    prepared = unmask.prepare(
        [samples / "corpus.txt"], out=tmp_path / "data", tokenizer_kind=kind, vocab_size=KINDS[kind], workers=1
    )
    golden(f"tokenizer: {kind}", tokenizer_of(tmp_path / "data"))
    golden(f"counts: {kind}", counts_of(prepared))
    golden(f"columns: {kind}", columns_of(tmp_path / "data"))


def test_a_unigram_tokenizer_loses_nothing(samples: Path, tmp_path: Path) -> None:
    """Its scores come from logarithms, which processors round differently."""
    prepared = unmask.prepare(
        [samples / "corpus.txt"], out=tmp_path / "data", tokenizer_kind="unigram", vocab_size=400, workers=1
    ).to_dict()
    assert (prepared["documents"], prepared["unknown_tokens"]) == (400, 0)


def test_the_packaged_text_is_prepared_as_it_was(shakespeare: Path, golden: Golden) -> None:
    golden("columns: shakespeare", columns_of(shakespeare))
    golden("tokenizer: shakespeare", tokenizer_of(shakespeare))
    manifest = json.loads((shakespeare / "manifest.json").read_text(encoding="utf-8"))
    frequencies = hashlib.sha256(json.dumps(manifest["token_frequencies"]).encode()).hexdigest()
    golden("frequencies: shakespeare", frequencies)
    golden(
        "manifest: shakespeare",
        {name: manifest[name] for name in ("documents", "bytes", "tokens", "skipped", "vocab_size")},
    )


def test_shards_are_the_same_files_for_any_number_of_workers(
    shakespeare: Path, packaged_text: Path, tmp_path: Path, golden: Golden
) -> None:
    unmask.prepare([packaged_text], out=tmp_path / "two", vocab_size=1024, workers=2)
    assert files_of(tmp_path / "two") == files_of(shakespeare)
    if pa.__version__ == PYARROW:
        golden("files: shakespeare", files_of(shakespeare))


def test_annotated_rows_are_prepared_as_they_were(data: Path, golden: Golden) -> None:
    golden("columns: annotated", columns_of(data))
    golden("tokenizer: annotated", tokenizer_of(data))


def test_groups_are_held_out_as_a_whole(samples: Path, tmp_path: Path, golden: Golden) -> None:
    settings = ["corpus.holdout_groups=patient", "corpus.holdout=0.2", "corpus.label=mood"]
    prepared = unmask.prepare(
        [samples / "annotated.jsonl"],
        out=tmp_path / "data",
        tokenizer=samples / "vocab.txt",
        settings=settings,
        workers=1,
    )
    golden("counts: groups", counts_of(prepared))
    golden("columns: groups", columns_of(tmp_path / "data"))
    rows = [json.loads(line) for line in (samples / "annotated.jsonl").read_text(encoding="utf-8").splitlines()]
    held_out = {
        row["document"]
        for path in (tmp_path / "data" / "validation").glob("*.arrow")
        for row in pa.ipc.open_stream(path).read_all().to_pylist()
    }
    patients = {rows[number]["patient"] for number in held_out}
    assert held_out == {number for number, row in enumerate(rows) if row["patient"] in patients}


def test_objects_are_prepared_as_files_are(data: Path, samples: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (samples / "annotated.jsonl").read_text(encoding="utf-8").splitlines()]
    unmask.prepare(rows, out=tmp_path / "data", tokenizer=samples / "vocab.txt", workers=1, **ANNOTATED)
    assert columns_of(tmp_path / "data") == columns_of(data)


def test_shards_open_in_datasets(data: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_file(str(sorted((data / "train").glob("*.arrow"))[0]))
    assert {"input_ids", "word_starts", "document", "offset", "num_bytes", "entities"} <= set(rows.column_names)
    assert len(rows[0]["input_ids"]) == len(rows[0]["word_starts"]) == len(rows[0]["entities"])
