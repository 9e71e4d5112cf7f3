"""Folders without a head for masked tokens, fine-tuned or bare: what works, and errors for the rest."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import unmask
from tests.commands.checkpoints import released
from tests.commands.finetune_helpers import MakeModel
from tests.conftest import make_text
from unmask.commands.evaluate import evaluate, score
from unmask.core.errors import ModelError
from unmask.model.folder import save_task_model, with_task_head
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, Pairs, Regress
from unmask.tasks.loaded_model import Model, as_predictor
from unmask.tasks.tag import Tag
from unmask.tasks.task import Task
from unmask.tokenizer.tokenizer import Tokenizer

TEXTS = ["The king sees the ship at sea.", "The dog."]
TASKS = [
    (Classify(("sea", "garden")), TEXTS),
    (Regress(("stars",)), TEXTS),
    (Pairs(("yes", "no"), paired=True), [tuple(TEXTS)]),
    (Tag(("O", "NAME")), TEXTS),
    (AnswerTask(), [("The king.", TEXTS[0])]),
]


def tuned(make_model: MakeModel, tokenizer: Tokenizer, folder: Path, info: Task, layout: str = "modernbert") -> Path:
    base = make_model(layout=layout)
    save_task_model(with_task_head(base, info.task_head, seed=0).eval(), info.task_head, folder)
    tokenizer.save(folder, max_length=64, with_types=layout == "bert")
    released(base, tokenizer, folder.with_name("base"))
    return folder


@pytest.mark.parametrize(
    ("info", "inputs", "layout"),
    [*((*each, "modernbert") for each in TASKS), (*TASKS[2], "bert"), (*TASKS[3], "roberta")],
)
def test_it_predicts_and_embeds_without_a_warning(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, info: Task, inputs: list[object], layout: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = tuned(make_model, tokenizer, tmp_path / "tuned", info, layout)
    with caplog.at_level(logging.WARNING):
        model = unmask.load(folder)
        model.predict(inputs)
    assert not caplog.messages
    before = unmask.load(folder.with_name("base"))
    assert np.array_equal(model.embed(TEXTS), before.embed(TEXTS)), "the encoder is that of the folder"


def test_texts_that_are_cut_are_said(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A long sentence of words to tag is split, so no word is lost."""
    classes, tags = (
        unmask.load(tuned(make_model, tokenizer, tmp_path / TASKS[n][0].kind, TASKS[n][0])) for n in (0, 3)
    )
    with caplog.at_level(logging.WARNING, logger="unmask"):
        assert len(classes.predict(["word " * 5000, "The dog."])) == 2
        assert len(caplog.messages) == 1
        caplog.clear()
        assert len(tags.predict(["word " * 500])) == 1
    assert not caplog.messages


def test_what_it_cannot_do_any_more(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = unmask.load(tuned(make_model, tokenizer, tmp_path / "tuned", TASKS[0][0]))
    for use in (lambda: model.fill("The [MASK]."), lambda: model.score(TEXTS), lambda: as_predictor(model)):
        with pytest.raises(ModelError, match=r"tuned: .*classify"):
            use()
    before = unmask.load(tmp_path / "base")
    assert as_predictor(before).tokenizer is before.tokenizer


@pytest.mark.parametrize("layout", ["modernbert", "bert"])
def test_a_bare_encoder_embeds_and_predicts_no_tokens(
    make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path, layout: str
) -> None:
    whole = released(make_model(layout=layout), tokenizer, tmp_path / "whole")
    shutil.copytree(whole, tmp_path / "bare")
    weights = load_file(whole / "model.safetensors")
    head = ("head.", "decoder.", "cls.predictions.")
    encoder = {name: weight for name, weight in weights.items() if not name.startswith(head)}
    assert len(encoder) < len(weights)
    save_file(encoder, tmp_path / "bare" / "model.safetensors", metadata={"format": "pt"})
    bare = unmask.load(tmp_path / "bare")
    assert np.array_equal(bare.embed(TEXTS), unmask.load(whole).embed(TEXTS))
    (tmp_path / "text.txt").write_text(make_text(9))
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"sentence_good": TEXTS[0], "sentence_bad": TEXTS[1]}))
    lines: list[Callable[[Model], object]] = [
        lambda model: model.fill("The [MASK]."),
        lambda model: model.score(TEXTS),
        lambda model: evaluate(model, [tmp_path / "text.txt"], pseudo_tokens=0),
        lambda model: score(model, tmp_path / "pairs.jsonl"),
    ]
    for line in lines:
        with pytest.raises(ModelError, match="bare"):
            line(bare)
        line(unmask.load(whole))
