"""Heads of tasks: transformers' classes load them with our logits, in every layout; and we load transformers'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.helpers import LAYOUTS, MakeModel, some_ids, with_biases
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_task_model, read_config_file, save_task_model, with_task_head
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, MultiLabel, Pairs, Regress
from unmask.tasks.inputs import Example
from unmask.tasks.kinds import task_of
from unmask.tasks.loaded_model import does_task
from unmask.tasks.tag import Tag
from unmask.tasks.task import Task, outputs_of

transformers = pytest.importorskip("transformers")
INFOS = [
    Classify(("bored", "glad", "sad")),
    Pairs(("no", "yes"), paired=True),
    Regress(("score",)),
    Tag(("B-x", "I-x", "O")),
    AnswerTask(may_be_missing=True, max_length=32),
    MultiLabel(("bored", "glad", "sad")),
]
AUTO = {"tag": "AutoModelForTokenClassification", "answer": "AutoModelForQuestionAnswering"}  # others: of sequences
IDS = some_ids(4, 20, below=60)


def auto_class(info: Task) -> Any:
    return getattr(transformers, AUTO.get(info.kind, "AutoModelForSequenceClassification"))


def model_for(make_model: MakeModel, layout: str, info: Task) -> MaskedLM:
    """Weights large enough for differences to show."""
    model = with_task_head(make_model(layout=layout), info.task_head, seed=1).eval()
    with_biases(model, 0.3, ("label_head", "tag_head", "answer_head"))
    return model


def loaded(folder: Path) -> tuple[MaskedLM, Task]:
    """What `open_fine_tuned` does, without a tokenizer."""
    task = task_of(read_config_file(folder)[0], folder)
    return load_task_model(folder, task.task_head, mask_id=4), task


@torch.no_grad()
def our_logits(model: MaskedLM, info: Task) -> torch.Tensor:
    hidden = model.encoder(IDS)
    if info.of_texts:
        return model.outputs(info.head, hidden[:, 0])
    return model.outputs(info.head, hidden.flatten(0, 1)).view(4, 20, -1)


@torch.no_grad()
def their_logits(model: torch.nn.Module, info: Task) -> torch.Tensor:
    out = model.eval()(IDS, attention_mask=torch.ones_like(IDS))
    return torch.stack([out.start_logits, out.end_logits], -1) if info.kind == "answer" else out.logits


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.kind)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_loads_what_the_other_saves(make_model: MakeModel, tmp_path: Path, layout: str, info: Task) -> None:
    """In a folder of transformers, without our own key, the architecture and the labels determine the task."""
    ours = model_for(make_model, layout, info)
    save_task_model(ours, info.task_head, tmp_path / "ours")
    theirs, loading = auto_class(info).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    expected = our_logits(ours, info)
    assert expected.std() > 0.05
    torch.testing.assert_close(their_logits(theirs, info), expected, rtol=1e-4, atol=1e-5)
    assert theirs.config.architectures == [type(theirs).__name__]
    if info.names:
        assert theirs.config.id2label == dict(enumerate(info.names))
        assert theirs.config.num_labels == len(info.names)
    types = {"classify": "single_label", "multi_label": "multi_label", "regress": "regression"}
    assert types.get(info.kind, "") in str(theirs.config.problem_type)
    del theirs.config.unmask_task
    theirs.save_pretrained(tmp_path / "theirs")
    again, actual = loaded(tmp_path / "theirs")
    assert (actual.kind, actual.names) == ("classify" if info.kind == "pairs" else info.kind, info.names)
    torch.testing.assert_close(our_logits(again, info), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("info", INFOS[:3], ids=lambda info: info.kind)
def test_transformers_pools_by_the_mean_as_we_do(make_model: MakeModel, tmp_path: Path, info: Task) -> None:
    """For texts that share rows in unmask and are padded in transformers."""
    ours = model_for(make_model, "modernbert", info)
    by_mean = replace(info, pooling="mean")
    save_task_model(ours, by_mean.task_head, tmp_path)
    again, actual = loaded(tmp_path)
    assert actual == by_mean
    lengths = (5, 20, 11)
    examples = [
        Example(n, IDS[n, :length].numpy(), None, np.arange(length), np.arange(1)) for n, length in enumerate(lengths)
    ]
    outputs = np.concatenate(outputs_of(again.eval(), actual, examples))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert theirs.config.classifier_pooling == "mean"
    attended = (torch.arange(20) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        expected = theirs(IDS[:3], attention_mask=attended).logits
    torch.testing.assert_close(torch.from_numpy(outputs), expected, rtol=1e-4, atol=1e-5)
    assert (expected - our_logits(ours, info)[:3]).abs().max() > 1e-2, "the first token says something else"


@pytest.mark.parametrize(
    ("auto", "changes", "kind"),
    [
        ("SequenceClassification", {}, "pairs"),
        ("SequenceClassification", {"problem_type": "multi_label_classification"}, "multi_label"),
        ("SequenceClassification", {"problem_type": "multi_label_classification", "num_labels": 1}, "multi_label"),
        ("SequenceClassification", {"problem_type": "regression", "num_labels": 1}, "regress"),
        ("TokenClassification", {"num_labels": 5}, "tag"),
        ("MaskedLM", {}, None),
    ],
)
def test_what_transformers_trains_on_for_another_task(
    make_model: MakeModel, tmp_path: Path, auto: str, changes: dict[str, Any], kind: str | None
) -> None:
    """It keeps our own key in config.json, which no longer counts."""
    info = Pairs(("no", "yes"), paired=True, max_length=32)
    save_task_model(model_for(make_model, "modernbert", info), info.task_head, tmp_path / "pairs")
    cls = getattr(transformers, f"AutoModelFor{auto}")
    cls.from_pretrained(tmp_path / "pairs", ignore_mismatched_sizes=True, **changes).save_pretrained(tmp_path / "new")
    content = read_config_file(tmp_path / "new")[0]
    assert content["unmask_task"]["kind"] == "pairs"
    assert does_task(content) == (kind is not None)
    if kind is not None:
        task = task_of(content, tmp_path / "new")
        assert (task.kind, len(task.names)) == (kind, changes.get("num_labels", 2))
        assert (task.paired, task.max_length) == ((True, 32) if kind == "pairs" else (False, None))
