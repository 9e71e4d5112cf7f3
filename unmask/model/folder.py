"""Model folders: config.json and model.safetensors, as transformers reads and writes them, and where they lie."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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
from unmask.model.layout_names import (
    BERT,
    CAMEMBERT,
    MODERNBERT,
    ROBERTA,
    ROBERTA_PRELAYERNORM,
    XLM_ROBERTA,
    ClassifierPooling,
    FolderLayout,
)
from unmask.model.stored_weights import StoredTensor, check_kinds, has_weights, read_weights, stored_tensors
from unmask.model.transformers import TransformersConfig, TransformersTask

log = logging.getLogger("unmask")

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_CLASSIFIER = "cls.seq_relationship.weight"
# A layout is named as transformers names it in `model_type`.
LAYOUTS: dict[Layout, FolderLayout] = {
    "modernbert": MODERNBERT,
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "roberta-prelayernorm": ROBERTA_PRELAYERNORM,
}


def save_model(model: MaskedLM, folder: Path, *, with_head: bool = True) -> None:
    """Writes the model so that `AutoModelForMaskedLM.from_pretrained(folder)` gives the same logits.

    Args:
        model: Its weights are written in float32; the tied decoder is written once, as the embedding. Weights that
            were only kept (BERT's pooler) are written as they were. With a head for pairs the folder is one of
            `BertForPreTraining` too, with one for classes `AutoModelForSequenceClassification` loads it as well; the
            head for span boundaries and RetroMAE's decoder are left out, and the log says so.
        folder: Made where missing.
        with_head: Whether there is a head for masked tokens to be written; without, it is the folder of an encoder.

    Raises:
        WriteError: It cannot be written.
    """
    layout = LAYOUTS[model.config.layout]
    ours = {
        name: parameter.detach().to("cpu", torch.float32)
        for name, parameter in model.named_parameters()
        if not name.startswith((*(f"{head.name}." for head in ONLY_TRAINED), *([] if with_head else ["head."])))
    }
    if model.find_head(BoundaryHead) is not None:
        log.info("the head for span boundaries is not saved with the model, since transformers has no place for it")
    if model.find_head(RetroMAEHead) is not None:
        log.info("the decoder that rebuilds texts is not saved with the model, since it serves the training alone")
    weights = model.kept_weights | layout.names.to_transformers(ours)
    content = layout.write_config(model.config)
    if model.find_head(PairHead) is not None or _CLASSIFIER in model.kept_weights:
        content["architectures"] = [layout.pair_architecture]
    if model.label_names is not None:
        content |= label_content(model.label_names) | layout.pooling_content("first")
    with writing(folder, SafetensorError):
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

    Raises:
        ModelError: A file is missing or damaged, or the layout is not supported.
    """
    content, layout = read_config_file(folder)
    config = layout.read_config(content, mask_id=mask_id)
    stored = layout.names.canonical(stored_tensors(folder))
    names = _label_names(config, content, stored, folder)
    make_checked(config, lambda: heads_for(config, label_names=names), stored, where=folder / WEIGHTS)
    return build_from_weights(config, read_weights(folder), where=folder / WEIGHTS, label_names=names)


def make_checked(
    config: EncoderConfig,
    heads: Callable[[], Sequence[Head]],
    stored: Mapping[str, StoredTensor],
    *,
    where: Path,
    wanted: Callable[[MaskedLM], Collection[str]] | None = None,
) -> None:
    """Makes sure that files of weights hold the network that config.json asks for, before it is made.

    Args:
        config: Of the encoder.
        heads: Makes its heads.
        stored: What the files say of their tensors, by canonical names.
        where: The file, for errors.
        wanted: Names those of its parameters that must be stored; None: all.

    Raises:
        ModelError: A weight is missing, of another shape, or of no type that a network calculates with.
    """
    names = LAYOUTS[config.layout].names
    last = f"encoder.blocks.{config.num_layers - 1}.mlp.out.weight"
    size = torch.Size((config.vocab_size, config.hidden_size))
    names.find({"encoder.tokens": size}, stored, where=str(where))
    if config.num_layers > len(stored):  # else no more layers are made below than the file has tensors
        names.find({last: torch.Size((config.hidden_size, config.intermediate_size))}, {}, where=str(where))
    with torch.device("meta"):  # where tensors have shapes, and no numbers
        model = MaskedLM(config, heads())
    some = None if wanted is None else wanted(model)
    shapes = {name: weight.shape for name, weight in model.named_parameters() if some is None or name in some}
    found = names.find(shapes, stored, where=str(where))
    check_kinds({theirs: stored[theirs] for each in found.values() for theirs in each}, str(where))


def read_encoder_config(folder: Path, *, mask_id: int) -> EncoderConfig:
    """What config.json says of the encoder; no weight is read.

    Args:
        folder: Of a model.
        mask_id: The tokenizer's.

    Raises:
        ModelError: The file is missing or damaged, or the layout is not supported.
    """
    content, layout = read_config_file(folder)
    return layout.read_config(content, mask_id=mask_id)


def has_prediction_head(folder: Path, layout: Layout) -> bool:
    """Whether a folder holds a head for masked tokens; `load_model` makes one where it does not.

    Raises:
        ModelError: The weights are missing or damaged.
    """
    names = LAYOUTS[layout].names
    return not set(names.theirs("head.bias")).isdisjoint(names.canonical(stored_tensors(folder)))


def build_from_weights(
    config: EncoderConfig, weights: dict[str, torch.Tensor], *, where: Path, label_names: Sequence[str] | None = None
) -> MaskedLM:
    """A model with weights named as transformers names them.

    Args:
        config: Of the encoder.
        weights: Its weights, and those of its heads.
        where: The file, for errors and the log.
        label_names: Of the head for classes; None builds none.

    Raises:
        ModelError: A weight is missing or of another shape.
    """
    model = MaskedLM(config, heads_for(config, label_names=label_names))
    names = LAYOUTS[config.layout].names
    weights = names.canonical(weights)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    ours = names.from_transformers(weights, shapes, where=str(where))
    has_head = "head.bias" in ours
    for name in names.known:
        if has_head and name.endswith("decoder.weight") and not _is_same(weights.get(name), ours["encoder.tokens"]):
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


def _is_same(stored: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    """Whether a tensor that may be stored besides says nothing new."""
    return stored is None or (stored.shape == tensor.shape and torch.equal(stored.to(torch.float32), tensor))


def label_content(names: Sequence[str]) -> dict[str, Any]:
    """What config.json says of classes in the order of their numbers; transformers counts them by it."""
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def label_names_of(content: Mapping[str, Any], folder: Path) -> tuple[str, ...] | None:
    """The names of a head's outputs in the order of their numbers; None where there are none.

    Raises:
        ModelError: They cannot be read.
    """
    names = content.get("id2label")
    if names is None:
        return None
    try:
        return tuple(str(names[key]) for key in sorted(names, key=int)) if isinstance(names, dict) else _no_table()
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG}: id2label is no table of numbers to names") from error


def _no_table() -> NoReturn:
    raise TypeError


def _label_names(
    config: EncoderConfig, content: Mapping[str, Any], stored: Mapping[str, StoredTensor], folder: Path
) -> tuple[str, ...] | None:
    """The classes of a head that reads as ours does and stands beside a head for masked tokens; None: there is none."""
    layout = LAYOUTS[config.layout]
    wanted = ["label_head.classifier.weight", *(["label_head.dense.weight"] if config.parts.label_dense else [])]
    if any(name not in stored for ours in (*wanted, "head.bias") for name in layout.names.theirs(ours)):
        return None
    if layout.pooling_of(content, CONFIG) != "first":
        return None
    number = next(iter(stored[layout.names.theirs(wanted[0])[0]].shape), 0)
    return label_names_of(content, folder) or tuple(f"LABEL_{i}" for i in range(number))


def read_content(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ModelError: The file is missing, or no table in JSON.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise ModelError(f"{folder}: there is no {CONFIG}; give the folder of a model, such as RUN/model")
    try:
        content = load_json(file)
        if not isinstance(content, dict):
            raise ValueError(f"{shown(content)} is no table")
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not JSON ({error})") from error
    return content


def read_config_file(folder: Path) -> tuple[dict[str, Any], FolderLayout]:
    """The content of config.json, and the layout that it names.

    Raises:
        ModelError: The file is missing or no JSON, or the layout is not supported.
    """
    content = read_content(folder)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        supported = ", ".join(map(repr, LAYOUTS))
        raise ModelError(
            f"{folder / CONFIG}: model_type {shown(kind)} is not supported; supported are {supported} (fill, embed, "
            "evaluate, score and finetune also take what transformers runs)"
        )
    return content, LAYOUTS[kind]


# Where a model lies: from what users call a model to its folder.
_ADAPTER = "adapter_config.json"
_WAY_OUT = "give the folder of a model, such as RUN/model"


def find_model(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """The folder of a model.

    Args:
        model: It, the folder of a run, or the name of a model on the hub; see `unmask.core.hub`.
        way_out: What errors advise.

    Raises:
        ModelError: There is none.
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
    """The same, where configuration and weights must be there, in the files that our encoder reads.

    Raises:
        ModelError: There is no such folder, or it lacks a file.
    """
    path = find_model(model, way_out=way_out)
    if not (path / CONFIG).is_file():
        raise ModelError(f"{path}: there is no {CONFIG}; {way_out}")
    if not has_weights(path):
        raise ModelError(f"{path}: there is no {WEIGHTS}; {way_out}")
    return path


# ----------------------------------------
# Folders of fine-tuned models: a transformers folder with the head of a task and its labels.
#
# What transformers' config.json has no word for stands under a key of its own, which transformers passes over. What a
# task makes of its part of config.json is its own matter (`unmask.tasks`); here stand heads, weights and labels.

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
        pooling: What a whole text is told from; None: a head for tokens.
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


def pooling_of(content: Mapping[str, Any], folder: Path) -> ClassifierPooling:
    """What whole texts are told from in a fine-tuned model, as its config.json says it.

    Raises:
        ModelError: It is something that is not supported.
    """
    layout = next((layout for name, layout in LAYOUTS.items() if name == content.get("model_type")), None)
    return "first" if layout is None else layout.pooling_of(content, str(folder / CONFIG))


def label_numbers(names: Sequence[str]) -> dict[str, int]:
    """Numbers of labels by their names."""
    return {name: number for number, name in enumerate(names)}
