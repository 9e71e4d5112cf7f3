"""Settings of preparation with each other: some rows of values that are drawn by chance are run whole.

What fails only together (dropping duplicates where a tokenizer is trained, once) is found by no test of one setting.
"""

from __future__ import annotations

import gzip
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.conftest import make_text
from unmask.commands.run_data import open_prepared

FACTORS: dict[str, tuple[Any, ...]] = {
    "source": ("txt", "jsonl", "gz", "iterator", "csv"),
    "kind": ("wordpiece", "bpe", "unigram", "char"),
    "duplicates": ("keep", "drop"),
    "unicode": (None, "NFKC"),
    "white_space": ("keep", "collapse"),
    "min_chars": (1, 30),
    "bad_input": ("error", "skip"),
    "held_out": ("hash", "end", "near_duplicates", "column", "files"),
    "label": (None, "mood"),
    "workers": (1, 2),
    "again": ("resume", "overwrite", "other_workers"),
}
TABLES = ("jsonl", "csv", "iterator")


def allowed(row: dict[str, Any]) -> bool:
    """Columns are those of tables; whoever may be missing in a row allows it."""
    needs_table = row.get("label") is not None or row.get("held_out") == "column"
    return not needs_table or row.get("source", "jsonl") in TABLES


def table() -> list[dict[str, Any]]:
    """Rows of values that are drawn one after the other."""
    rng = random.Random(2)
    rows: list[dict[str, Any]] = []
    for _ in range(14):
        row: dict[str, Any] = {}
        for name, values in FACTORS.items():
            row[name] = rng.choice([value for value in values if allowed({**row, name: value})])
        rows.append(row)
    return rows


def documents() -> list[dict[str, Any]]:
    rng = random.Random(3)
    texts = [" ".join(text.split()) for text in make_text(150).split("\n\n")]
    texts += [
        texts[5],
        texts[5],
        "ok",
        "ﬁne  old   words, and more of them than thirty letters",
        texts[7].replace(" ", "  "),
    ]
    rng.shuffle(texts)
    return [{"text": text, "mood": ("sea", "garden")[n % 2], "group": f"g{n % 9}"} for n, text in enumerate(texts)]


def expected(row: dict[str, Any]) -> int:
    """How many documents are left, told without the package."""
    seen: set[str] = set()
    count = 0
    for document in documents():
        text = document["text"]
        if row["unicode"] is not None:
            text = unicodedata.normalize(row["unicode"], text)
        if row["white_space"] == "collapse":
            text = " ".join(text.split())
        if len(text) < row["min_chars"] or (row["duplicates"] == "drop" and text in seen):
            continue
        seen.add(text)
        count += 1
    return count


def source(row: dict[str, Any], folder: Path) -> Any:
    rows = documents()
    if row["source"] == "iterator":
        return iter(rows)
    file = folder / {"gz": "a.txt.gz"}.get(row["source"], f"a.{row['source']}")
    if row["source"] == "jsonl":
        file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    elif row["source"] == "csv":
        cells = ['"{text}",{mood},{group}'.format(**each) for each in rows]
        file.write_text("\n".join(["text,mood,group", *cells]))
    else:
        text = "\n".join(each["text"] for each in rows).encode()
        file.write_bytes(gzip.compress(text) if row["source"] == "gz" else text)
    return file


def settings(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    cleaning = {
        name: row[name] for name in ("duplicates", "unicode", "white_space", "min_chars") if row[name] is not None
    }
    corpus: dict[str, Any] = {"cleaning": cleaning, "bad_input": row["bad_input"], "documents": "line"}
    if row["label"] is not None:
        corpus["label"] = row["label"]
    match row["held_out"]:
        case "end":
            corpus["holdout_from"] = "end"
        case "near_duplicates":
            corpus["holdout_groups"] = "near_duplicates"
        case "column":
            corpus["holdout_groups"] = "group"
        case "files":
            held = folder / "held.jsonl"
            held.write_text(
                "".join(
                    json.dumps({"text": f"Held out text {n}, of more than thirty letters.", "mood": "sea"}) + "\n"
                    for n in range(9)
                )
            )
            corpus["validation"] = [str(held)]
    return {"corpus": corpus}


@pytest.mark.slow
def test_settings_with_each_other(tmp_path: Path) -> None:
    for number, row in enumerate(table()):
        folder = tmp_path / str(number)
        folder.mkdir()
        options: dict[str, Any] = {
            "tokenizer_kind": row["kind"],
            "vocab_size": 300,
            "settings": settings(row, folder),
        }
        made = unmask.prepare(source(row, folder), out=folder / "data", workers=row["workers"], **options)
        held = 9 if row["held_out"] == "files" else 0
        assert made.documents == expected(row) + held, row
        data = open_prepared(folder / "data")
        assert data.train.num_tokens == made.train_tokens > 0, row
        assert data.validation.num_tokens == made.validation_tokens > 0, row
        workers = 3 - row["workers"] if row["again"] == "other_workers" else row["workers"]
        ways = {"resume": {"resume": True}}.get(row["again"], {"overwrite": True})
        again = unmask.prepare(source(row, folder), out=folder / "data", workers=workers, **ways, **options)
        assert again.to_dict() == made.to_dict(), row
