"""Model folders: config.json and model.safetensors, as transformers reads and writes them, and where they lie."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from unmask.errors import ModelError
from unmask.files import absence, writing
from unmask.folders.bert import BERT, CAMEMBERT, ROBERTA, ROBERTA_PRELAYERNORM, XLM_ROBERTA
from unmask.folders.layout_names import FolderLayout
from unmask.folders.modernbert import MODERNBERT
from unmask.folders.stored_weights import StoredTensor, check_kinds, has_weights, read_weights, stored_tensors
from unmask.hub import MODEL, local_path
from unmask.network.config import EncoderConfig
from unmask.network.encoder import MaskedLM
from unmask.network.heads import ONLY_TRAINED, BoundaryHead, Head, PairHead, heads_for
from unmask.network.initial_weights import initialise_head
from unmask.network.layouts import Layout
from unmask.network.retromae import RetroMAEHead
from unmask.values import load_json, shown

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
        model: It, the folder of a run, or the name of a model on the hub; see `unmask.hub`.
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
