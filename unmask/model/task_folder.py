"""Folders of fine-tuned models: a transformers folder with the head of a task and its labels.

    classify, pairs, regress    ...ForSequenceClassification
    tag                         ...ForTokenClassification
    answer                      ...ForQuestionAnswering

What transformers' config.json has no word for stands under a key of its own, which transformers passes over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import ModelError
from unmask.hashing import mix_ints
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM
from unmask.model.folder import (
    CONFIG,
    LAYOUTS,
    WEIGHTS,
    label_content,
    read_config_file,
    read_weights,
)
from unmask.model.folder_layout import Pooling
from unmask.model.initialise import draw_task_head, initialise

TaskKind = Literal["classify", "pairs", "regress", "tag", "answer"]
OF_TEXTS: tuple[TaskKind, ...] = ("classify", "pairs", "regress")
KEY = "unmask_task"
ARCHITECTURES: dict[TaskKind, str] = {
    "classify": "SequenceClassification",
    "pairs": "SequenceClassification",
    "regress": "SequenceClassification",
    "tag": "TokenClassification",
    "answer": "QuestionAnswering",
}
_HEADS = ("label_head.", "tag_head.", "answer_head.")
_NEW_HEAD = 5  # sets the head's draws apart from those of all weights
_POOLER = "bert.pooler.dense."
_OF_ANSWERS = ("may_be_missing", "stride", "longest_answer")


@dataclass(frozen=True)
class TaskInfo:
    """What a fine-tuned model does.

    Attributes:
        kind: Of the task.
        names: Classes or tags in the order of their numbers; for a regression the number's name; empty for answers.
        paired: Whether it is given two texts.
        may_be_missing: Whether it may find that a text has no answer.
        max_length: Longest input in tokens, special tokens included; None: the model's.
        pooling: What a text is told from, where the task is one of whole texts.
        stride: Tokens that neighbouring windows of a text share, where the task is to answer.
        longest_answer: Tokens of an answer at most.
        columns: Where the training file had what: `text`, `second`, `label`, each with a column's name.
    """

    kind: TaskKind
    names: tuple[str, ...] = ()
    paired: bool = False
    may_be_missing: bool = False
    max_length: int | None = None
    pooling: Pooling = "first"
    stride: int = 64
    longest_answer: int = 30
    columns: Mapping[str, str] = field(default_factory=dict)


def with_task_head(
    model: MaskedLM, info: TaskInfo, *, seed: int, dropout: float | None = None, trained: bool = True
) -> MaskedLM:
    """A model with the same weights, or none of them, and a new head.

    The layer before BERT's classifier is the pooler of the folder, where it has one, whether or not the model had a
    use for it.

    Args:
        model: A masked language model.
        info: What the head is for.
        seed: Of the weights that are drawn.
        dropout: Replaces the model's own, of the encoder and before the classifier.
        trained: Whether the model's weights are taken; otherwise all are drawn, and norms and biases begin at 1 and 0.
    """
    rates = {} if dropout is None else {"dropout": dropout, "classifier_dropout": dropout}
    config = model.config.model_copy(update=rates)
    new = _with_head(config, info)
    if trained:
        known = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(_HEADS)}
        new.load_state_dict(known, strict=False)
    else:
        initialise(new, seed=seed)
    generator = torch.Generator().manual_seed(mix_ints(seed, _NEW_HEAD))
    for head in (new.label_head, new.tag_head, new.answer_head):
        if head is not None:
            draw_task_head(head, config, generator)
    if not trained:
        return new
    dense = None if new.label_head is None else new.label_head.dense
    if dense is not None and (pooler := _pooler_of(model)):
        dense.load_state_dict(pooler)
    return new


def _pooler_of(model: MaskedLM) -> dict[str, Tensor]:
    """BERT's, by the kind of each weight; empty where there is none. RoBERTa's classifiers have their own layer."""
    if model.config.layout == "bert" and model.label_head is not None and model.label_head.dense is not None:
        return dict(model.label_head.dense.state_dict())
    return {
        kind: model.kept_weights[_POOLER + kind] for kind in ("weight", "bias") if _POOLER + kind in model.kept_weights
    }


def save_task_model(model: MaskedLM, info: TaskInfo, folder: Path) -> None:
    """Writes a model that transformers' class for the task loads, with the same logits.

    The rest of the masked-language-model head is left out: the encoder beneath it has changed.

    Args:
        model: With the task's head.
        info: What it does.
        folder: Made where missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = LAYOUTS[model.config.layout]
    wanted = _names_of(model)
    ours = {name: p.detach().to("cpu", torch.float32) for name, p in model.named_parameters() if name in wanted}
    content = layout.write_config(model.config)
    stem = content["architectures"][0].removesuffix("ForMaskedLM")
    content["architectures"] = [f"{stem}For{ARCHITECTURES[info.kind]}"]
    if info.names:
        content |= label_content(info.names)
    if info.kind in OF_TEXTS:
        content |= layout.pooling_content(info.pooling)
        content["problem_type"] = problem_type(info)
    content[KEY] = task_content(info)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(layout.names.to_transformers(ours), folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes files that only their owner may read


def problem_type(info: TaskInfo) -> str | None:
    """What transformers calls the task of a head for whole texts; None where the head is for tokens."""
    if info.kind in ("tag", "answer"):
        return None
    return "regression" if info.kind == "regress" else "single_label_classification"


def task_content(info: TaskInfo) -> dict[str, Any]:
    """What config.json says of the task under our own key."""
    content: dict[str, Any] = {"kind": info.kind, "paired": info.paired, "max_length": info.max_length}
    if info.kind == "answer":
        return content | {name: getattr(info, name) for name in _OF_ANSWERS}
    return content | {"columns": dict(info.columns)}


def load_task_model(folder: Path, *, mask_id: int) -> tuple[MaskedLM, TaskInfo]:
    """Loads a fine-tuned model that unmask or transformers wrote.

    Args:
        folder: With config.json and model.safetensors.
        mask_id: The tokenizer's.

    Raises:
        ModelError: A file is missing or damaged, the layout is not supported, or the model is not fine-tuned for a
            task, or has another head than unmask's.
    """
    content, layout = read_config_file(folder)
    info = read_info(content, folder)
    if info.kind in OF_TEXTS:
        info = replace(info, pooling=layout.pooling_of(content, str(folder / CONFIG)))
    model = _with_head(layout.read_config(content, mask_id=mask_id), info)
    wanted = _names_of(model)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters() if name in wanted}
    weights = layout.names.canonical(read_weights(folder))
    found = layout.names.from_transformers(weights, shapes, where=str(folder / WEIGHTS))
    model.load_state_dict(found, strict=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in wanted:
                parameter.zero_()  # of a head that is not there, and not used
    return model.eval(), info


def _with_head(config: EncoderConfig, info: TaskInfo) -> MaskedLM:
    return MaskedLM(
        config,
        label_names=info.names if info.kind in OF_TEXTS else None,
        num_tags=len(info.names) if info.kind == "tag" else None,
        answers=info.kind == "answer",
    )


def _names_of(model: MaskedLM) -> set[str]:
    """The parameters that the task's model has in transformers."""
    shared = LAYOUTS[model.config.layout].names.shared
    return {name for name, _ in model.named_parameters() if name.startswith(("encoder.", *_HEADS)) or name in shared}


def does_task(content: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a model that is fine-tuned for a task."""
    architecture = next(iter(content.get("architectures") or []), "")
    return isinstance(content.get(KEY), dict) or any(f"For{kind}" in architecture for kind in ARCHITECTURES.values())


def read_info(content: Mapping[str, Any], folder: Path) -> TaskInfo:
    """What a config.json says of the task, under our own key or by its architecture.

    Raises:
        ModelError: The model is not fine-tuned for a task, or its labels cannot be read.
    """
    architecture = next(iter(content.get("architectures") or []), "")
    own = content.get(KEY)
    names = _names(content, folder)
    if isinstance(own, dict):
        kind: TaskKind = own["kind"]
    elif architecture.endswith("ForTokenClassification"):
        kind = "tag"
    elif architecture.endswith(("ForQuestionAnswering", "ForQuestionAnsweringSimple")):
        kind, names = "answer", ()
    elif architecture.endswith("ForSequenceClassification"):
        if content.get("problem_type") == "multi_label_classification":
            raise ModelError(
                f"{folder}: this model gives a text any number of labels (multi_label_classification), and here a text "
                "has one; run it in transformers"
            )
        kind = "regress" if content.get("problem_type") == "regression" or len(names) == 1 else "classify"
    else:
        raise ModelError(
            f"{folder}: this model is not fine-tuned for a task (it is {architecture or 'a bare encoder'}); fine-tune "
            "it with unmask finetune, and give the folder that is written there"
        )
    own = own if isinstance(own, dict) else {}
    return TaskInfo(
        kind,
        names,
        paired=bool(own.get("paired", False)),
        max_length=own.get("max_length"),
        columns={str(name): str(column) for name, column in (own.get("columns") or {}).items()},
        **{name: own[name] for name in _OF_ANSWERS if name in own},
    )


def _names(content: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    names = content.get("id2label")
    if names is None:
        return () if (content.get(KEY) or {}).get("kind") == "answer" else ("LABEL_0", "LABEL_1")  # transformers' own
    try:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    except (AttributeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG}: id2label is no table of numbers to names") from error


def label_numbers(names: Sequence[str]) -> dict[str, int]:
    """Numbers of labels by their names."""
    return {name: number for number, name in enumerate(names)}
