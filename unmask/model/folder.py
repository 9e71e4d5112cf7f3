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
    BoundaryHead,
    Head,
    LabelHead,
    PairHead,
    RetroMAEHead,
    TokenHead,
    heads_for,
)
from unmask.model.initial_weights import draw_task_head, initialise, initialise_head
from unmask.model.layout_names import LAYOUTS, ClassifierPooling, FolderLayout
from unmask.model.stored_weights import check_kinds, has_weights, read_weights, stored_tensors

log = logging.getLogger("unmask")

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_ADAPTER = "adapter_config.json"
_WAY_OUT = "give the folder of a model, such as RUN/model"


def find_model(model: str | Path, *, way_out: str = _WAY_OUT) -> Path:
    """The folder of a model: it, that of a run, or a model on the hub (`unmask.core.hub`). Errors advise `way_out`."""
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
    return LAYOUTS[layout].theirs("head.bias")[0] in LAYOUTS[layout].canonical(stored_tensors(folder))


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


def pooling_of(content: Mapping[str, Any], folder: Path) -> ClassifierPooling:
    """How a fine-tuned model pools whole texts, as its config.json says it."""
    layout = next((layout for name, layout in LAYOUTS.items() if name == content.get("model_type")), None)
    return "first" if layout is None else layout.pooling_of(content, str(folder / CONFIG))


# ----------------------------------------
# Loading and saving


def _load(
    folder: Path,
    config: EncoderConfig,
    make_heads: Callable[[], Sequence[Head]],
    needed: Callable[[MaskedLM], Collection[str]] | None = None,
) -> tuple[MaskedLM, dict[str, Tensor], dict[str, list[str]]]:
    """A network with the weights of a folder, once it is sure that the files hold what config.json asks for.

    `needed` names those of its parameters that must be stored; None: all. The others are as they were made. Also
    returned are the folder's weights by canonical names, and the names under which parameters of ours stand there.
    """
    layout, where = LAYOUTS[config.layout], str(folder / WEIGHTS)
    stored = layout.canonical(stored_tensors(folder))
    layout.find({"encoder.tokens": torch.Size((config.vocab_size, config.hidden_size))}, stored, where=where)
    if config.num_layers > len(stored):  # else no more layers are made below than the file has tensors
        last = f"encoder.blocks.{config.num_layers - 1}.mlp.out.weight"
        layout.find({last: torch.Size((config.hidden_size, config.intermediate_size))}, {}, where=where)
    with torch.device("meta"):  # where tensors have shapes, and no numbers
        model = MaskedLM(config, make_heads())
    names_needed = None if needed is None else needed(model)
    parameters = model.named_parameters()
    shapes = {name: each.shape for name, each in parameters if names_needed is None or name in names_needed}
    names = layout.find(shapes, stored, where=where)
    check_kinds({theirs: stored[theirs] for each in names.values() for theirs in each}, where)

    model = MaskedLM(config, make_heads())
    weights = layout.canonical(read_weights(folder))
    model.load_state_dict(layout.from_transformers(weights, names, where=where), strict=False)
    return model, weights, names


def load_model(folder: Path, *, mask_id: int) -> MaskedLM:
    """Loads a model that unmask or transformers wrote.

    A folder of a bare encoder, such as a sentence encoder, gets a new head, and the log says so. A head for classes is
    loaded where it stands beside that for masked tokens.

    Args:
        folder: With config.json and model.safetensors.
        mask_id: The tokenizer's.
    """
    content, layout = read_config_file(folder)
    config, where = layout.read_config(content, mask_id=mask_id), folder / WEIGHTS

    # The classes of a head that reads as ours does and stands beside a head for masked tokens.
    label_names = None
    stored = layout.canonical(stored_tensors(folder))
    of_labels = ["label_head.classifier.weight", *(["label_head.dense.weight"] if config.parts.label_dense else [])]
    there = all(theirs in stored for name in (*of_labels, "head.bias") for theirs in layout.theirs(name))
    if there and layout.pooling_of(content, CONFIG) == "first":
        number = next(iter(stored[layout.theirs(of_labels[0])[0]].shape), 0)
        label_names = label_names_of(content, folder) or tuple(f"LABEL_{i}" for i in range(number))

    model, weights, names = _load(folder, config, lambda: heads_for(config, label_names=label_names))
    has_head, table = "head.bias" in names, model.encoder.tokens
    if not has_head:
        log.warning("%s: there is no masked-language-model head; a new, untrained one is made", where)
        initialise_head(model, seed=0)
    for name in layout.known:
        decoder = weights.get(name) if has_head and name.endswith("decoder.weight") else None
        if decoder is not None and (decoder.shape != table.shape or not torch.equal(decoder.to(torch.float32), table)):
            log.warning(
                "%s: %s is not the embedding, although config.json ties them; the embedding is taken, but other "
                "libraries may take it (unmask verify compares them)",
                where,
                name,
            )

    # What is not used is written back, or left out and named.
    used = {theirs for name, _ in model.named_parameters() for theirs in layout.theirs(name)}
    rest = {name: tensor for name, tensor in weights.items() if name not in used and name not in layout.known}
    model.kept_weights = {name: tensor for name, tensor in rest.items() if name.startswith(layout.unused)}
    if left_out := sorted(rest.keys() - model.kept_weights.keys()):
        names_of_some = ", ".join(name[:100] for name in left_out[:8])
        more = f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""
        log.warning("%s: left out, since a masked language model has no place for it: %s%s", where, names_of_some, more)
    return model


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
        names = [name for name, _ in model.named_parameters() if not name.startswith(left_out)]
        _write(model, names, content, folder, model.kept_weights)


def _write(
    model: MaskedLM, names: Collection[str], content: Mapping[str, Any], folder: Path, more: Mapping[str, Tensor]
) -> None:
    ours = {
        name: weight.detach().to("cpu", torch.float32) for name, weight in model.named_parameters() if name in names
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    weights = {**more, **LAYOUTS[model.config.layout].to_transformers(ours)}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes files that only their owner may read


# ----------------------------------------
# Folders of fine-tuned models: a transformers folder with the head of a task and its labels.
#
# What transformers' config.json has no word for is under a key of our own, which transformers ignores. Its content is
# the task's own matter (`unmask.tasks`); here are heads, weights and labels.

KEY = "unmask_task"
_NEW_HEAD = 5  # sets the head's draws apart from those of all weights
_POOLER = "bert.pooler.dense."


@dataclass(frozen=True)
class TaskHead:
    """The head of a fine-tuned model, as its folder has it."""

    head: str  # its name in `unmask.model.heads`
    architecture: str  # what transformers' class is called after `For`
    names: tuple[str, ...]  # of its outputs; empty where they have none
    problem_type: str | None  # what transformers calls the task of a head for whole texts; None: a head for tokens
    pooling: ClassifierPooling | None  # of whole texts; None: a head for tokens
    own: Mapping[str, Any]  # what config.json says under our own key

    def new(self, config: EncoderConfig) -> LabelHead | TokenHead:
        """The module, its weights not drawn yet."""
        if self.head == LabelHead.name:
            return LabelHead(config, self.names)
        return TokenHead(self.head, config, self.names)

    def parameters_of(self, model: MaskedLM) -> set[str]:
        """The parameters that a model with this head has in transformers."""
        shared, beginnings = LAYOUTS[model.config.layout].shared, ("encoder.", f"{self.head}.")
        return {name for name, _ in model.named_parameters() if name.startswith(beginnings) or name in shared}


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
        known = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(OF_TASKS)}
        new.load_state_dict(known, strict=False)
    else:
        initialise(new, seed=seed)
    draw_task_head(new_head, config, torch.Generator().manual_seed(mix_ints(seed, _NEW_HEAD)))
    if trained and isinstance(new_head, LabelHead) and new_head.dense is not None:
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
    layout = LAYOUTS[model.config.layout]
    content = layout.write_config(model.config)
    content["architectures"] = [f"{layout.architecture.removesuffix('ForMaskedLM')}For{head.architecture}"]
    if head.names:
        content |= label_content(head.names)
    if head.pooling is not None:
        content |= layout.pooling_content(head.pooling)
        content["problem_type"] = head.problem_type
    content[KEY] = dict(head.own)
    _write(model, head.parameters_of(model), content, folder, {})


def load_task_model(folder: Path, head: TaskHead, *, mask_id: int) -> MaskedLM:
    """Loads a fine-tuned model of one of our layouts, of any make; `head` is as config.json has it."""
    content, layout = read_config_file(folder)
    config = layout.read_config(content, mask_id=mask_id)
    model, _, names = _load(folder, config, lambda: [head.new(config)], head.parameters_of)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in names:
                parameter.zero_()  # of a head that is not there, and not used
    return model.eval()
