"""Model folders: config.json and model.safetensors, as transformers reads and writes them.

Whatever is missing, damaged or not supported is a ModelError that names the file.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unmask.core.errors import ModelError, load_json, shown
from unmask.core.files import absence, writing
from unmask.core.hashing import mix_ints
from unmask.core.hub import MODEL, local_path
from unmask.model.config import EncoderConfig, Layout
from unmask.model.encoder import MaskedLM
from unmask.model.heads import (
    OF_TASKS,
    ONLY_TRAINED,
    AnswerHead,
    BoundaryHead,
    Head,
    LabelHead,
    PairHead,
    RetroMAEHead,
    TagHead,
    heads_for,
)
from unmask.model.initial_weights import draw_task_head, initialise, initialise_head
from unmask.model.layout_names import LAYOUTS, ClassifierPooling, FolderLayout
from unmask.model.stored_weights import StoredTensor, check_kinds, has_weights, read_weights, stored_tensors
from unmask.model.transformers import TransformersConfig, TransformersTask

log = logging.getLogger("unmask")

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_ADAPTER = "adapter_config.json"
_WAY_OUT = "give the folder of a model, such as RUN/model"


def find_model(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """The folder of a model.

    Args:
        model: It, the folder of a run, or the name of a model on the hub; see `unmask.core.hub`.
        way_out: What errors advise.
    """
    path = local_path(model, MODEL)
    if not os.path.isdir(path):
        raise ModelError(f"{path}: {absence(path, 'folder')}; {way_out}, or the name of a model on the hub")
    if not (path / CONFIG).is_file() and (path / "model" / CONFIG).is_file():
        path /= "model"
    if not (path / CONFIG).is_file() and (path / _ADAPTER).is_file():
        raise ModelError(
            f"{path}: this is an adapter of PEFT, without the model that it changes; merge it first "
            "(model.merge_and_unload().save_pretrained(FOLDER) in PEFT), and save the tokenizer beside it"
        )
    return path


def find_weights(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """As `find_model`; configuration and weights must be there, in the files that our encoder reads."""
    path = find_model(model, way_out=way_out)
    if not (path / CONFIG).is_file():
        raise ModelError(f"{path}: there is no {CONFIG}; {way_out}")
    if not has_weights(path):
        raise ModelError(f"{path}: there is no {WEIGHTS}; {way_out}")
    return path


def read_content(folder: Path) -> dict[str, Any]:
    """The content of config.json."""
    file = folder / CONFIG
    if not file.is_file():
        raise ModelError(f"{folder}: there is no {CONFIG}; {_WAY_OUT}")
    try:
        content = load_json(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not JSON ({shown(content)} is no table)")
    return content


def read_config_file(folder: Path) -> tuple[dict[str, Any], FolderLayout]:
    """The content of config.json, and the layout that it names."""
    content = read_content(folder)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        supported = ", ".join(map(repr, LAYOUTS))
        raise ModelError(
            f"{folder / CONFIG}: model_type {shown(kind)} is not supported; supported are {supported} (fill, embed, "
            "evaluate, score and finetune also take what transformers runs)"
        )
    return content, LAYOUTS[kind]


def read_encoder_config(folder: Path, *, mask_id: int) -> EncoderConfig:
    """The encoder's configuration; no weight is read. Arguments and errors as of `load_model`."""
    content, layout = read_config_file(folder)
    return layout.read_config(content, mask_id=mask_id)


def has_prediction_head(folder: Path, layout: Layout) -> bool:
    """Whether a folder holds a head for masked tokens; `load_model` makes one where it does not."""
    names = LAYOUTS[layout].names
    return not set(names.theirs("head.bias")).isdisjoint(names.canonical(stored_tensors(folder)))


def save_model(model: MaskedLM, folder: Path, *, with_head: bool = True) -> None:
    """Writes the model so that `AutoModelForMaskedLM.from_pretrained(folder)` gives the same logits.

    Args:
        model: Its weights are written in float32; the tied decoder is written once, as the embedding. Weights that
            were only kept (BERT's pooler) are written as they were. With a head for pairs the folder is one of
            `BertForPreTraining` too, with one for classes `AutoModelForSequenceClassification` loads it as well; the
            head for span boundaries and RetroMAE's decoder are left out, and the log says so.
        folder: Made where missing.
        with_head: False writes the folder of an encoder, without the head for masked tokens.
    """
    layout = LAYOUTS[model.config.layout]
    left_out = (*(f"{head.name}." for head in ONLY_TRAINED), *([] if with_head else ["head."]))
    ours = {name: weight for name, weight in _float_weights(model).items() if not name.startswith(left_out)}
    if model.find_head(BoundaryHead) is not None:
        log.info("the head for span boundaries is not saved with the model, since transformers has no place for it")
    if model.find_head(RetroMAEHead) is not None:
        log.info("the decoder that rebuilds texts is not saved with the model, since it serves the training alone")
    content = layout.write_config(model.config)
    if model.find_head(PairHead) is not None or "cls.seq_relationship.weight" in model.kept_weights:
        content["architectures"] = [layout.pair_architecture]
    if model.label_names is not None:
        content |= label_content(model.label_names) | layout.pooling_content("first")
    with writing(folder, SafetensorError):
        _write(folder, content, model.kept_weights | layout.names.to_transformers(ours))


def _float_weights(model: MaskedLM) -> dict[str, Tensor]:
    return {name: weight.detach().to("cpu", torch.float32) for name, weight in model.named_parameters()}


def _write(folder: Path, content: Mapping[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes files that only their owner may read


def load_model(folder: Path, *, mask_id: int) -> MaskedLM:
    """Loads a model that unmask or transformers wrote.

    A folder of a bare encoder, such as a sentence encoder, gets a new head, and the log says so. A head for classes is
    loaded where it stands beside that for masked tokens.

    Args:
        folder: With config.json and model.safetensors.
        mask_id: The tokenizer's.
    """
    content, layout = read_config_file(folder)
    config, where, names = layout.read_config(content, mask_id=mask_id), folder / WEIGHTS, layout.names
    stored = names.canonical(stored_tensors(folder))
    label_names = _label_names(config, content, stored, folder)
    make_checked(config, lambda: heads_for(config, label_names=label_names), stored, where=where)

    model = MaskedLM(config, heads_for(config, label_names=label_names))
    weights = names.canonical(read_weights(folder))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    ours = names.from_transformers(weights, shapes, where=str(where))
    has_head, table = "head.bias" in ours, ours["encoder.tokens"]
    for name in names.known:
        decoder = weights.get(name) if has_head and name.endswith("decoder.weight") else None
        if decoder is not None and (decoder.shape != table.shape or not torch.equal(decoder.to(torch.float32), table)):
            log.warning(
                "%s: %s is not the embedding, although config.json ties them; the embedding is taken, but other "
                "libraries may take it (unmask verify compares them)",
                where,
                name,
            )
    if not has_head:
        log.warning("%s: there is no masked-language-model head; a new, untrained one is made", where)
        initialise_head(model, seed=0)
    model.load_state_dict(ours, strict=has_head)
    used = {theirs for name in shapes for theirs in names.theirs(name)}
    model.kept_weights = names.kept_weights(weights, used, where=str(where))
    return model


def make_checked(
    config: EncoderConfig,
    heads: Callable[[], Sequence[Head]],
    stored: Mapping[str, StoredTensor],
    *,
    where: Path,
    needed: Callable[[MaskedLM], Collection[str]] | None = None,
) -> None:
    """Makes sure that files of weights hold the network that config.json asks for, before it is made.

    Args:
        config: Of the encoder.
        heads: Makes its heads.
        stored: The files' tensors, by canonical names.
        where: The file, for errors.
        needed: Those of its parameters that must be stored; None: all.
    """
    names = LAYOUTS[config.layout].names
    names.find({"encoder.tokens": torch.Size((config.vocab_size, config.hidden_size))}, stored, where=str(where))
    if config.num_layers > len(stored):  # else no more layers are made below than the file has tensors
        last = f"encoder.blocks.{config.num_layers - 1}.mlp.out.weight"
        names.find({last: torch.Size((config.hidden_size, config.intermediate_size))}, {}, where=str(where))
    with torch.device("meta"):  # where tensors have shapes, and no numbers
        model = MaskedLM(config, heads())
    some = None if needed is None else needed(model)
    shapes = {name: weight.shape for name, weight in model.named_parameters() if some is None or name in some}
    found = names.find(shapes, stored, where=str(where))
    check_kinds({theirs: stored[theirs] for each in found.values() for theirs in each}, str(where))


def label_content(names: Sequence[str]) -> dict[str, Any]:
    """Classes in the order of their numbers, for config.json; transformers counts them by it."""
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def label_names_of(content: Mapping[str, Any], folder: Path) -> tuple[str, ...] | None:
    """The names of a head's outputs in the order of their numbers; None where there are none."""
    names = content.get("id2label")
    if names is None:
        return None
    try:
        return tuple(str(names[key]) for key in sorted(dict(names), key=int))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG}: id2label is no table of numbers to names") from error


def _label_names(
    config: EncoderConfig, content: Mapping[str, Any], stored: Mapping[str, StoredTensor], folder: Path
) -> tuple[str, ...] | None:
    """The classes of a head that reads as ours does and stands beside a head for masked tokens; None: there is none."""
    layout = LAYOUTS[config.layout]
    needed = ["label_head.classifier.weight", *(["label_head.dense.weight"] if config.parts.label_dense else [])]
    if any(name not in stored for ours in (*needed, "head.bias") for name in layout.names.theirs(ours)):
        return None
    if layout.pooling_of(content, CONFIG) != "first":
        return None
    number = next(iter(stored[layout.names.theirs(needed[0])[0]].shape), 0)
    return label_names_of(content, folder) or tuple(f"LABEL_{i}" for i in range(number))


# ----------------------------------------
# Folders of fine-tuned models: a transformers folder with the head of a task and its labels.
#
# What transformers' config.json has no word for is under a key of our own, which transformers ignores. Its content is
# the task's own matter (`unmask.tasks`); here are heads, weights and labels.

KEY = "unmask_task"
_NEW_HEAD = 5  # sets the head's draws apart from those of all weights
_POOLER = "bert.pooler.dense."

TaskNetwork = MaskedLM | TransformersTask
TaskConfig = EncoderConfig | TransformersConfig


@dataclass(frozen=True)
class TaskHead:
    """The head of a fine-tuned model, as its folder has it.

    Attributes:
        head: Its name in `unmask.model.heads`.
        architecture: What transformers' class is called after `For`.
        names: Of its outputs; empty where they have none.
        problem_type: What transformers calls the task of a head for whole texts; None: a head for tokens.
        pooling: Of whole texts; None: a head for tokens.
        own: What config.json says under our own key.
    """

    head: str
    architecture: str
    names: tuple[str, ...]
    problem_type: str | None
    pooling: ClassifierPooling | None
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
        head: The new one.
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
    if not trained or not isinstance(new_head, LabelHead) or new_head.dense is None:
        return new
    # RoBERTa's classifiers have a layer of their own, so only BERT's takes that of a head for classes.
    old_head = model.find_head(LabelHead)
    if config.layout == "bert" and old_head is not None and old_head.dense is not None:
        new_head.dense.load_state_dict(old_head.dense.state_dict())
    elif f"{_POOLER}weight" in model.kept_weights:
        new_head.dense.load_state_dict({kind: model.kept_weights[_POOLER + kind] for kind in ("weight", "bias")})
    return new


def save_task_model(model: MaskedLM, head: TaskHead, folder: Path) -> None:
    """Writes a model with a task's head that transformers' class for the task loads, with the same logits.

    The rest of the masked-language-model head is omitted: the encoder beneath it has changed.
    """
    layout, needed = LAYOUTS[model.config.layout], _task_weights(model, head)
    content = layout.write_config(model.config)
    stem = content["architectures"][0].removesuffix("ForMaskedLM")
    content["architectures"] = [f"{stem}For{head.architecture}"]
    if head.names:
        content |= label_content(head.names)
    if head.pooling is not None:
        content |= layout.pooling_content(head.pooling)
        content["problem_type"] = head.problem_type
    content[KEY] = dict(head.own)
    ours = {name: weight for name, weight in _float_weights(model).items() if name in needed}
    _write(folder, content, layout.names.to_transformers(ours))


def load_task_model(folder: Path, head: TaskHead, *, mask_id: int) -> MaskedLM:
    """Loads a fine-tuned model of one of our layouts, of any make; `head` is as config.json has it."""
    content, layout = read_config_file(folder)
    config, where, names = layout.read_config(content, mask_id=mask_id), folder / WEIGHTS, layout.names
    stored = names.canonical(stored_tensors(folder))
    make_checked(
        config, lambda: [head.new(config)], stored, where=where, needed=lambda model: _task_weights(model, head)
    )
    model = MaskedLM(config, [head.new(config)])
    needed = _task_weights(model, head)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters() if name in needed}
    ours = names.from_transformers(names.canonical(read_weights(folder)), shapes, where=str(where))
    model.load_state_dict(ours, strict=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in needed:
                parameter.zero_()  # of a head that is not there, and not used
    return model.eval()


def _task_weights(model: MaskedLM, head: TaskHead) -> set[str]:
    """The parameters that the task's model has in transformers."""
    shared = LAYOUTS[model.config.layout].names.shared
    beginnings = ("encoder.", f"{head.head}.")
    return {name for name, _ in model.named_parameters() if name.startswith(beginnings) or name in shared}


def pooling_of(content: Mapping[str, Any], folder: Path) -> ClassifierPooling:
    """How a fine-tuned model pools whole texts, as its config.json says it."""
    layout = next((layout for name, layout in LAYOUTS.items() if name == content.get("model_type")), None)
    return "first" if layout is None else layout.pooling_of(content, str(folder / CONFIG))


def label_numbers(names: Sequence[str]) -> dict[str, int]:
    """Numbers of labels by their names."""
    return {name: number for number, name in enumerate(names)}
