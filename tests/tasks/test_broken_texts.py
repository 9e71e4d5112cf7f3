"""Texts that hold what is no character: half of a pair of surrogates, as of bytes that were not UTF-8."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import unmask
from tests.tasks.test_fine_tuned import MakeModel, tuned
from unmask.core.errors import CorpusError, SettingsError
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, Pairs
from unmask.tasks.files import read_labelled
from unmask.tasks.loaded_model import Model
from unmask.tasks.predict import task_named
from unmask.tasks.settings import Columns
from unmask.tasks.tag import Tag
from unmask.tasks.task import Task
from unmask.tokenizer.tokenizer import Tokenizer

BROKEN = "the king \udcff"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda model: model.fill(f"[MASK] {BROKEN}"), r"the text '[MASK] the king \udcff'"),
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
    ("info", "good", "broken"),
    [
        (Classify(("sea", "garden")), "the king", BROKEN),
        (Pairs(("yes", "no"), paired=True), ("the king", "the ship"), ("the king", BROKEN)),
        (Tag(("O", "NAME")), "the king", BROKEN),
        (Tag(("O", "NAME")), ["the", "king"], ["the", "\udcff"]),
        (AnswerTask(), ("Who?", "the king"), ("Who?", BROKEN)),
    ],
)
def test_predictions(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, info: Task, good: object, broken: object
) -> None:
    model = unmask.load(tuned(make_model, tokenizer, tmp_path / "tuned", info))
    assert len(model.predict([good])) == 1
    with pytest.raises(SettingsError) as caught:
        model.predict([good, broken])
    assert "input 2" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("classify", {"text": BROKEN, "label": "sea"}),
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


def test_a_nul_is_no_character_either(run: unmask.Run) -> None:
    with pytest.raises(SettingsError, match=r"text 0 holds U\+0000"):
        run.model.embed(["the\0king"])
