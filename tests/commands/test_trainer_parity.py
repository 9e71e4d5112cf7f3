"""Fine-tuning is as good as transformers' Trainer is with the same settings, from the same folder.

Deterministic parts must be equal: the weights after an epoch. Random parts are compared over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import SequentialSampler

from tests.model.helpers import LAYOUTS, MakeModel
from tests.model.test_task_parity import auto_class
from unmask.commands.finetune_run import _ORDER, begin_training
from unmask.core.hashing import permutation
from unmask.model.encoder import MaskedLM
from unmask.model.folder import LAYOUTS as FOLDER_LAYOUTS
from unmask.model.folder import load_model, save_model, save_task_model, with_task_head
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, MultiLabel, Pairs
from unmask.tasks.inputs import Example
from unmask.tasks.tag import Tag
from unmask.tasks.task import FinetuneSettings, Task
from unmask.train.hardware import positions_on_cpu
from unmask.train.settings import LinearDecay

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("seqeval")
NO_LABEL = -100
INFOS = [
    Classify(("bored", "glad", "sad")),
    MultiLabel(("bored", "glad", "sad")),
    Pairs(("yes", "no", "maybe"), paired=True),
    Tag(("B-x", "I-x", "O")),
    AnswerTask(),
]
SIZE, RATE = 8, 1e-3


def their_model(folder: Path, info: Task) -> Any:
    """Transformers' class for the task, with what it takes from the folder."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    labels: dict[str, Any] = {"num_labels": len(info.names)} if info.names else {}
    if info.problem_type is not None:
        labels["problem_type"] = info.problem_type
    return auto_class(info).from_pretrained(folder, **labels)


def features(example: Example, info: Task) -> dict[str, Any]:
    """An example in `Trainer`'s form."""
    row: dict[str, Any] = {"input_ids": example.input_ids.tolist()}
    if example.type_ids is not None:
        row["token_type_ids"] = example.type_ids.tolist()
    targets = {name: column.tolist() for name, column in example.targets.items()}
    if info.kind == "tag":
        row["labels"] = [NO_LABEL] * len(example.input_ids)
        for place, tag in zip(example.places, targets["target"], strict=True):
            row["labels"][place] = tag
    elif info.kind == "answer":
        row["start_positions"], row["end_positions"] = targets["begin"][0], targets["end"][0]
    elif info.kind == "multi_label" and targets:
        row["labels"] = [float(targets["labels0"][0] >> number & 1) for number in range(len(info.names))]
    elif targets:
        row["labels"] = targets["target"][0]
    return row


def padded(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Rows as long as the longest, as transformers' collators make them."""
    length = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "labels": NO_LABEL, "token_type_ids": 0}
    batch: dict[str, Any] = {}
    for name, first in rows[0].items():
        column = [row[name] for row in rows]
        lists = isinstance(first, list) and len(first) == len(rows[0]["input_ids"])
        batch[name] = [each + [fill[name]] * (length - len(each)) for each in column] if lists else column
    batch["attention_mask"] = [[n < len(row["input_ids"]) for n in range(length)] for row in rows]
    tensors = {name: torch.tensor(column) for name, column in batch.items()}
    return {name: tensor if tensor.is_floating_point() else tensor.long() for name, tensor in tensors.items()}


def some_examples(info: Task, number: int, layout: str) -> list[Example]:
    """Random examples; those of answers have equal lengths, since transformers lets answers begin in the padding."""
    random = np.random.default_rng(0)
    made = []
    for n in range(number):
        length = 12 if info.kind == "answer" else int(random.integers(5, 20))
        places = np.arange(1, length) if info.kind == "tag" else np.zeros(1, dtype=np.int64)
        if info.kind == "answer":
            begin, end = np.sort(random.integers(1, length, 2))
            targets = {"begin": np.array([begin]), "end": np.array([end])}
        elif info.kind == "multi_label":
            targets = {"labels0": random.integers(0, 8, 1)}
        else:
            targets = {"target": random.integers(0, 3, len(places))}
        ids = random.integers(5, 60, length)
        types = (np.arange(length) > length // 2).astype(np.int64) if info.paired and layout == "bert" else None
        made.append(Example(n, ids, types, places, places, targets))
    return made


def both(make_model: MakeModel, layout: str, info: Task, folder: Path) -> tuple[MaskedLM, Any]:
    ours = with_task_head(make_model(layout=layout), info.task_head, seed=0)
    save_task_model(ours, info.task_head, folder)
    return ours, their_model(folder, info)


def pooled(info: Task, layout: str) -> Task:
    """Pairs are classified from the mean of all tokens in layouts that pool so."""
    return replace(info, pooling="mean") if info.paired and layout == "modernbert" else info


def our_names(model: MaskedLM, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under transformers' names, without those that no output depends on, whose gradients are rounding errors:
    biases of keys, and what is added to all tokens of a text in which an answer is searched."""
    rounding = ["key.bias"]
    if hasattr(model, "answer_head"):
        rounding += ["qa_outputs.bias", "classifier.bias", f"{model.config.num_layers - 1}.output.LayerNorm.bias"]
    actual = FOLDER_LAYOUTS[model.config.layout].to_transformers(tensors)
    return {name: tensor for name, tensor in actual.items() if not name.endswith(tuple(rounding))}


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.kind)
@pytest.mark.parametrize("layout", ["modernbert", "bert"])
def test_the_same_weights_after_an_epoch(make_model: MakeModel, tmp_path: Path, layout: str, info: Task) -> None:
    """Clipping, AdamW and which weights decay are Trainer's; it gets our order, and our rate half a step late."""
    info = pooled(info, layout)
    ours, theirs = both(make_model, layout, info, tmp_path)
    examples = some_examples(info, 4 * SIZE, layout)
    settings = FinetuneSettings(
        epochs=1, batch_size=SIZE, learning_rate=RATE, weight_decay=0.1, warmup=0.25, precision="float32"
    )
    before = {name: parameter.detach().clone() for name, parameter in ours.named_parameters()}
    trainer = begin_training(ours, info, examples, settings, seed=3)
    steps = list(trainer.steps())
    assert trainer.state.micro_tokens == positions_on_cpu(ours.config)
    assert len(steps) == 4

    class InOurOrder(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            rate = LinearDecay(kind="linear", warmup=0.25)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda step: rate.at((step + 0.5) / num_training_steps)
            )
            return self.lr_scheduler

    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        num_train_epochs=1, per_device_train_batch_size=SIZE, learning_rate=RATE, weight_decay=0.1,
    )  # fmt: skip
    order = permutation(len(examples), _ORDER, 3, 0)
    InOurOrder(
        model=theirs,
        args=arguments,
        train_dataset=[features(examples[number], info) for number in order],
        data_collator=padded,
    ).train()
    after = our_names(ours, {n: p.detach() for n, p in ours.named_parameters()})
    moved = our_names(ours, {n: (p.detach() - before[n]).abs() for n, p in ours.named_parameters()})
    by_name = dict(theirs.named_parameters())
    compared = [name for name in after if name in by_name]
    assert len(compared) > 10
    for name in compared:
        apart = (after[name] - by_name[name].detach()).abs()
        assert apart.mean() < 0.002 * RATE, name  # Adam makes whole steps of gradients that are rounding
        assert moved[name].mean() > 0.1 * RATE or "embeddings" in name, name


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.kind)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_new_heads_are_drawn_as_transformers_draws_them(
    make_model: MakeModel, tmp_path: Path, layout: str, info: Task
) -> None:
    """New weights have the same standard deviation over 5 seeds; all other weights are the folder's in both."""
    model = make_model(layout=layout, hidden_size=128, initializer_range=0.02)
    save_model(model, tmp_path)
    actual: list[dict[str, list[torch.Tensor]]] = [{}, {}]
    for seed in range(5):
        torch.manual_seed(seed)
        theirs = dict(their_model(tmp_path, info).named_parameters())
        ours = with_task_head(model, info.task_head, seed=seed)
        drawn = our_names(ours, {n: p.detach() for n, p in ours.named_parameters() if n.endswith(("weight", "bias"))})
        for name in drawn.keys() & theirs.keys():
            if name.startswith(("classifier", "qa_outputs", "bert.pooler")):
                for remaining, weights in zip(actual, (drawn, theirs), strict=True):
                    remaining.setdefault(name, []).append(weights[name].detach().flatten())
            else:
                assert torch.equal(drawn[name], theirs[name]), name
    assert actual[0]
    for name, ours_ in actual[0].items():
        mine, other = torch.cat(ours_), torch.cat(actual[1][name])
        tolerance = 5.0 * (1.0 / mine.numel()) ** 0.5  # of two standard deviations, each with an error of 1 / sqrt(2 n)
        assert mine.std().item() == pytest.approx(other.std().item(), rel=tolerance), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_dropped_before_the_classifier(make_model: MakeModel, tmp_path: Path, layout: str) -> None:
    """The rate is that of transformers' class; kept values are scaled up; without a seed nothing is dropped."""
    model = make_model(layout=layout, hidden_size=64, dropout=0.2, classifier_dropout=0.3)
    save_model(model, tmp_path)
    info = Tag(tuple(map(str, range(64))))
    for folder_rate, expected in ((0.3, 0.3), (None, 0.0 if layout == "modernbert" else 0.2)):
        if folder_rate is None:
            text = (tmp_path / "config.json").read_text()
            (tmp_path / "config.json").write_text(text.replace('"classifier_dropout": 0.3,', ""))
        theirs = their_model(tmp_path, info)
        dropouts = [each.p for name, each in theirs.named_modules() if name in ("drop", "dropout")]
        assert dropouts == [expected]
        assert load_model(tmp_path, mask_id=4).config.classifier_dropout == expected
    ours = with_task_head(model, info.task_head, seed=0)
    with torch.no_grad():
        ours.tag_head.weight.copy_(torch.eye(64))
    hidden = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    whole = ours.eval().outputs("tag_head", hidden, dropout_seed=1)
    ours.train()
    assert torch.equal(ours.outputs("tag_head", hidden), whole)
    actual = ours.outputs("tag_head", hidden, dropout_seed=1)
    remaining = actual != 0.0
    torch.testing.assert_close(actual[remaining], whole[remaining] / 0.7)
    share = 1.0 - remaining.float().mean().item()
    assert share == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / actual.numel()) ** 0.5)
    assert torch.equal(actual, ours.outputs("tag_head", hidden, dropout_seed=1))
    assert not torch.equal(actual, ours.outputs("tag_head", hidden, dropout_seed=2))
