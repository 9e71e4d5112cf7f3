"""Folders of fine-tuned models: a transformers folder with the head of a task and its labels.

What transformers' config.json has no word for stands under a key of its own, which transformers passes over. What a
task makes of its part of config.json is its own matter (`unmask.tasks`); here stand heads, weights and labels.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.folders.layout_names import Pooling
from unmask.folders.model_folder import CONFIG, LAYOUTS, WEIGHTS, label_content, make_checked, read_config_file
from unmask.folders.stored_weights import read_weights, stored_tensors
from unmask.hashing import mix_ints
from unmask.network.config import EncoderConfig
from unmask.network.encoder import MaskedLM
from unmask.network.heads import OF_TASKS, AnswerHead, LabelHead, TagHead
from unmask.network.initial_weights import draw_task_head, initialise
from unmask.network.transformers_network import TransformersConfig, TransformersTask

KEY = "unmask_task"
_NEW_HEAD = 5  # sets the head's draws apart from those of all weights
_POOLER = "bert.pooler.dense."

TaskNetwork = MaskedLM | TransformersTask
TaskConfig = EncoderConfig | TransformersConfig


@dataclass(frozen=True)
class TaskHead:
    """The head of a fine-tuned model, as its folder has it.

    Attributes:
        head: Its name in `unmask.network.heads`.
        architecture: What transformers' class is called after `For`.
        names: Of its outputs; empty where they have none.
        problem_type: What transformers calls the task of a head for whole texts; None: a head for tokens.
        pooling: What a whole text is told from; None: a head for tokens.
        own: What config.json says under our own key.
    """

    head: str
    architecture: str
    names: tuple[str, ...]
    problem_type: str | None
    pooling: Pooling | None
    own: Mapping[str, Any]

    def new(self, config: EncoderConfig) -> LabelHead | TagHead | AnswerHead:
        """The module, its weights not drawn yet."""
        return OF_TASKS[self.head](config, self.names)


def with_task_head(
    model: MaskedLM, head: TaskHead, *, seed: int, dropout: float | None = None, trained: bool = True
) -> MaskedLM:
    """A model with the same weights, or none of them, and a new head.

    The layer before BERT's classifier is the pooler of the folder, where it has one, whether or not the model had a
    use for it.

    Args:
        model: A masked language model.
        head: What it gets.
        seed: Of the weights that are drawn.
        dropout: Replaces the model's own, of the encoder and before the classifier.
        trained: Whether the model's weights are taken; otherwise all are drawn, and norms and biases begin at 1 and 0.
    """
    rates = {} if dropout is None else {"dropout": dropout, "classifier_dropout": dropout}
    config = model.config.model_copy(update=rates)
    new_head = head.new(config)
    new = MaskedLM(config, [new_head])
    if trained:
        known = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(tuple(OF_TASKS))}
        new.load_state_dict(known, strict=False)
    else:
        initialise(new, seed=seed)
    draw_task_head(new_head, config, torch.Generator().manual_seed(mix_ints(seed, _NEW_HEAD)))
    if not trained:
        return new
    dense = new_head.dense if isinstance(new_head, LabelHead) else None
    if dense is not None and (pooler := _pooler_of(model)):
        dense.load_state_dict(pooler)
    return new


def _pooler_of(model: MaskedLM) -> dict[str, Tensor]:
    """BERT's, by the kind of each weight; empty where there is none. RoBERTa's classifiers have their own layer."""
    head = model.find_head(LabelHead)
    if model.config.layout == "bert" and head is not None and head.dense is not None:
        return dict(head.dense.state_dict())
    return {
        kind: model.kept_weights[_POOLER + kind] for kind in ("weight", "bias") if _POOLER + kind in model.kept_weights
    }


def save_task_model(model: MaskedLM, head: TaskHead, folder: Path) -> None:
    """Writes a model that transformers' class for the task loads, with the same logits.

    The rest of the masked-language-model head is omitted: the encoder beneath it has changed.

    Args:
        model: With the task's head.
        head: That head.
        folder: Made where missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = LAYOUTS[model.config.layout]
    wanted = _names_of(model, head)
    ours = {name: p.detach().to("cpu", torch.float32) for name, p in model.named_parameters() if name in wanted}
    content = layout.write_config(model.config)
    stem = content["architectures"][0].removesuffix("ForMaskedLM")
    content["architectures"] = [f"{stem}For{head.architecture}"]
    if head.names:
        content |= label_content(head.names)
    if head.pooling is not None:
        content |= layout.pooling_content(head.pooling)
        content["problem_type"] = head.problem_type
    content[KEY] = dict(head.own)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(layout.names.to_transformers(ours), folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes files that only their owner may read


def load_task_model(folder: Path, head: TaskHead, *, mask_id: int) -> MaskedLM:
    """Loads a fine-tuned model of one of our layouts, whoever wrote it.

    Args:
        folder: With config.json and model.safetensors.
        head: As config.json has it.
        mask_id: The tokenizer's.

    Raises:
        ModelError: A file is missing or damaged, the layout is not supported, or it has another head than this.
    """
    content, layout = read_config_file(folder)
    config = layout.read_config(content, mask_id=mask_id)
    make_checked(
        config,
        lambda: [head.new(config)],
        layout.names.canonical(stored_tensors(folder)),
        where=folder / WEIGHTS,
        wanted=lambda model: _names_of(model, head),
    )
    model = MaskedLM(config, [head.new(config)])
    wanted = _names_of(model, head)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters() if name in wanted}
    weights = layout.names.canonical(read_weights(folder))
    found = layout.names.from_transformers(weights, shapes, where=str(folder / WEIGHTS))
    model.load_state_dict(found, strict=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in wanted:
                parameter.zero_()  # of a head that is not there, and not used
    return model.eval()


def _names_of(model: MaskedLM, head: TaskHead) -> set[str]:
    """The parameters that the task's model has in transformers."""
    shared = LAYOUTS[model.config.layout].names.shared
    beginnings = ("encoder.", f"{head.head}.")
    return {name for name, _ in model.named_parameters() if name.startswith(beginnings) or name in shared}


def pooling_of(content: Mapping[str, Any], folder: Path) -> Pooling:
    """What whole texts are told from in a fine-tuned model, as its config.json says it.

    Raises:
        ModelError: It is something that is not supported.
    """
    layout = next((layout for name, layout in LAYOUTS.items() if name == content.get("model_type")), None)
    return "first" if layout is None else layout.pooling_of(content, str(folder / CONFIG))


def label_numbers(names: Sequence[str]) -> dict[str, int]:
    """Numbers of labels by their names."""
    return {name: number for number, name in enumerate(names)}
