"""Texts with invalid characters: half of a surrogate pair, as from bytes that were not UTF-8."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import unmask
from unmask.core.errors import CorpusError, SettingsError
from unmask.tasks.files import Columns, read_labelled
from unmask.tasks.kinds import task_named
from unmask.tasks.loaded_model import Model

BROKEN = "the king \udcff"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda model: model.fill(["[MASK]", f"[MASK] {BROKEN}"]), r"the text '[MASK] the king \udcff'"),
        (lambda model: model.fill("[MASK]", candidates=["sea", BROKEN]), r"candidates: 'the king \udcff'"),
        (lambda model: model.embed(["the king", BROKEN]), "text 1"),
        (lambda model: model.score(["the king", BROKEN]), r"sentence 2 ('the king \udcff')"),
    ],
)
def test_from_python(run: unmask.Run, call: Callable[[Model], object], name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        call(run.model)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("pairs", {"sentence1": "the king", "sentence2": BROKEN, "label": "yes"}),
        ("tag", {"tokens": ["the", "\udcff"], "tags": ["O", "O"]}),
        ("answer", {"question": BROKEN, "context": "the king", "answers": {"text": ["king"], "answer_start": [4]}}),
    ],
)
def test_labelled_files(tmp_path: Path, kind: str, row: dict[str, object]) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(CorpusError, match=r"train\.jsonl: row 1 holds U\+DCFF"):
        read_labelled(file, task_named(kind), Columns(), with_labels=True)
