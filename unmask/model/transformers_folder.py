"""Folders of models that transformers runs: read without code from the folder, given a task's head, and written.

The encoder's weights are read once; a network for a task is made anew from each seed, with a new head, also where the
folder had one of the same size. What transformers cannot read, and transformers where it is missing, is a ModelError.
"""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import ModelError, SettingsError, UnsupportedError, shown
from unmask.model.folder import CONFIG, KEY, WEIGHTS, TaskHead, label_content, read_config_file, read_content
from unmask.model.layout_names import LAYOUTS
from unmask.model.stored_weights import check_kinds, has_weights, stored_tensors
from unmask.model.transformers import (
    TransformersBare,
    TransformersConfig,
    TransformersMaskedLM,
    TransformersTask,
    drawn_from,
    longest_of,
    transformers_config,
    width_of,
)

_TABLES = re.compile(r"(_ids|index|tracked|mask|buckets?)$")  # integers, and no weights
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LINE = 300  # letters of what a library said
_POOLER = "pooler"  # a layer before heads, which models without such a head were not trained with


@dataclass(frozen=True)
class TransformersPretrained:
    """A pretrained encoder that transformers runs.

    Attributes:
        folder: Where it was loaded from.
        config: What its inputs look like.
        theirs: Its configuration in transformers; it stays as it is.
        weights: Of the encoder, without a head; float32.
    """

    folder: Path
    config: TransformersConfig
    theirs: Any
    weights: Mapping[str, Tensor]


@dataclass(frozen=True)
class TransformersModel:
    """A pretrained model that transformers runs.

    Attributes:
        masked: It, with the head that predicts tokens; None: the folder holds no such head.
        bare: The encoder in it, which shares its weights; None: it has a decoder, too, or is not told apart.
    """

    masked: TransformersMaskedLM | None
    bare: TransformersBare | None


def runs_in_transformers(folder: Path) -> bool:
    """Whether transformers runs a folder's model.

    It does where the layout is none of ours, where the model has a part that our encoder lacks, and where the weights
    are in other files. False of what is no model's folder at all: reading it is an error elsewhere.
    """
    try:
        kind = read_content(folder).get("model_type")
    except ModelError:
        return False
    if not isinstance(kind, str) or kind not in LAYOUTS:
        return isinstance(kind, str)
    if not has_weights(folder):
        return any((folder / name).is_file() for name in _OTHER_WEIGHTS)
    return unsupported(folder) is not None


def why_in_transformers(folder: Path) -> str:
    """Why our encoder does not run a folder's model for which `runs_in_transformers` holds, in words."""
    kind = _kind(folder)
    if kind not in LAYOUTS:
        return f"it is of type {shown(kind)}, which is none of our layouts ({', '.join(LAYOUTS)})"
    return unsupported(folder) or "its weights are in no file of safetensors"


def unsupported(folder: Path) -> str | None:
    """The part of a model of one of our layouts that our encoder lacks, in words; None: there is none, or the folder is
    broken."""
    try:
        content, layout = read_config_file(folder)
        layout.read_config({key: value for key, value in content.items() if "dropout" not in key}, mask_id=0)
    except UnsupportedError as error:
        return str(error)
    except ModelError:
        return None
    return None


def import_transformers(folder: Path, kind: str | None) -> Any:
    """The library, for a folder with a model of that `model_type`."""
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{folder}: this model, of type {shown(kind)}, runs in transformers, which is not installed: "
            "pip install 'unmask[transformers]'"
        ) from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # our errors say what is missing
    return transformers


def load_transformers(folder: Path, *, vocab_size: int, pad_id: int, max_length: int | None) -> TransformersPretrained:
    """Loads an encoder of a folder for which `runs_in_transformers` holds; other arguments as `transformers_config`."""
    transformers = import_transformers(folder, _kind(folder))
    model, missing = read_transformers(transformers.AutoModel, folder, what="encoder", vocab_size=vocab_size)
    if lacking := [name for name in missing if _POOLER not in name]:
        raise ModelError(f"{folder}: the weights lack {_few(lacking)}, which an encoder of this type has")
    config = transformers_config(model, folder, pad_id=pad_id, max_length=max_length)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in missing}
    return TransformersPretrained(folder, config, model.config, weights)


def load_transformers_model(folder: Path, *, vocab_size: int, pad_id: int) -> TransformersModel:
    """Loads a masked language model, or the encoder of one, in float32; `check_transformers` has passed."""
    transformers = import_transformers(folder, _kind(folder))
    model, missing = read_transformers(
        transformers.AutoModelForMaskedLM, folder, what="masked language model", vocab_size=vocab_size
    )
    inside = [name for name in missing if name.startswith(f"{model.base_model_prefix}.") and _POOLER not in name]
    if inside:
        raise ModelError(f"{folder}: the weights lack {_few(inside)}, which an encoder of this type has")
    size = int(model.config.vocab_size)
    config = TransformersConfig(width_of(model), longest_of(model), 1, pad_id, size)
    base = model.base_model
    has_encoder = base is not model and not getattr(model.config, "is_encoder_decoder", False)
    return TransformersModel(
        None if missing else TransformersMaskedLM(model, config).eval(),
        TransformersBare(base, config).eval() if has_encoder else None,
    )


def check_transformers(folder: Path) -> None:
    """Makes sure that transformers knows masked language models of a folder's type. No weight is read."""
    kind = _kind(folder)
    import_transformers(folder, kind)
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return
    own = "; the code that the folder brings is never run" if "auto_map" in read_content(folder) else ""
    raise ModelError(
        f"{folder}: a model of type {shown(kind)} is of none of our layouts ({', '.join(LAYOUTS)}), and transformers "
        f"has no masked language model of this type{own}; fill, embed, evaluate and score take those of either kind "
        "(finetune takes any encoder that transformers reads)"
    )


def transformers_with_head(
    pretrained: TransformersPretrained, head: TaskHead, *, seed: int, dropout: float | None, trained: bool = True
) -> TransformersTask:
    """A network with the same weights and a new head, as transformers draws it.

    Args:
        pretrained: The encoder.
        head: The new one.
        seed: Of the head's weights; of all, where they are not taken over.
        dropout: Replaces every rate of dropout that the model's configuration has; None: they stay.
        trained: Whether the encoder's weights are taken over; else they are drawn anew.
    """
    transformers = import_transformers(pretrained.folder, pretrained.theirs.model_type)
    config = _config_for(pretrained, head, dropout)
    auto = getattr(transformers, f"AutoModelFor{head.architecture}")
    with drawn_from(seed, torch.device("cpu")):
        try:
            model = auto.from_config(config, trust_remote_code=False)
        except Exception as error:
            raise ModelError(
                f"{pretrained.folder}: transformers has no head for {head.architecture} for models of type "
                f"{config.model_type!r} ({_reason(error)})"
            ) from error
    if trained:
        found = model.base_model.load_state_dict(pretrained.weights, strict=False)
        if lacking := [name for name in found.missing_keys if _POOLER not in name]:
            raise ModelError(f"{pretrained.folder}: the weights lack {_few(lacking)}, which {type(model).__name__} has")
    return TransformersTask(model.float(), pretrained.config)


def save_transformers_task(network: TransformersTask, head: TaskHead, folder: Path) -> None:
    """Writes a network that transformers' class for the task loads, with the same logits."""
    model = network.encoder.model
    setattr(model.config, KEY, dict(head.own))
    model.save_pretrained(folder)
    if (folder / WEIGHTS).is_file():  # safetensors makes files that only their owner may read
        shutil.copymode(folder / CONFIG, folder / WEIGHTS)


def load_transformers_task(
    folder: Path, head: TaskHead, *, vocab_size: int, pad_id: int, max_length: int | None
) -> TransformersTask:
    """Loads a fine-tuned network that unmask or transformers wrote; arguments as of `load_transformers`."""
    transformers = import_transformers(folder, _kind(folder))
    auto = getattr(transformers, f"AutoModelFor{head.architecture}")
    model, missing = read_transformers(auto, folder, what=f"model for {head.architecture}", vocab_size=vocab_size)
    if missing:
        raise ModelError(f"{folder}: the weights lack {_few(missing)}, which {type(model).__name__} has")
    return TransformersTask(model, transformers_config(model, folder, pad_id=pad_id, max_length=max_length)).eval()


def read_transformers(auto: Any, folder: Path, *, what: str, vocab_size: int) -> tuple[Any, list[str]]:
    """Reads a model of transformers. Code that a folder brings is neither run nor asked for.

    Args:
        auto: One of transformers' `AutoModel` classes.
        folder: With config.json and weights.
        what: The kind of model, for errors.
        vocab_size: The tokenizer's.

    Returns:
        The model in float32, and the names of weights that the folder lacks.
    """
    if has_weights(folder):
        weights = {name: tensor for name, tensor in stored_tensors(folder).items() if not _TABLES.search(name)}
        check_kinds(weights, str(folder))
    try:
        with drawn_from(0, torch.device("cpu")):  # missing weights are drawn, and leave torch's generator as it was
            model, report = auto.from_pretrained(
                folder, output_loading_info=True, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        why = "" if (lacking := unsupported(folder)) is None else f"{lacking}, and there is "
        raise ModelError(f"{folder}: {why}no {what} that transformers reads ({_reason(error)})") from error
    for name, weight in model.named_parameters():
        if not weight.sum().isfinite() and not weight.isfinite().all():
            raise ModelError(
                f"{folder}: {shown(name)} holds values that are not finite (NaN or infinity), so the model says "
                "nothing: its training has diverged, or the file is damaged; give another copy"
            )
    if vocab_size > model.config.vocab_size:
        raise ModelError(f"{folder}: the tokenizer has {vocab_size} ids, but the model only {model.config.vocab_size}")
    return model.float(), sorted(report["missing_keys"])


def _config_for(pretrained: TransformersPretrained, head: TaskHead, dropout: float | None) -> Any:
    config = copy.deepcopy(pretrained.theirs)
    config._name_or_path = ""  # else transformers 4 writes the folder into config.json
    setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", torch.float32)
    if head.names:
        content = label_content(head.names)
        config.id2label, config.label2id = dict(enumerate(head.names)), content["label2id"]
    else:
        config.num_labels = 2  # begin and end
    config.problem_type = head.problem_type
    if dropout is None:
        return config
    rates = [
        name
        for name, value in config.to_dict().items()
        if "dropout" in name and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if not rates:
        raise SettingsError(f"finetune.dropout: the config.json in {pretrained.folder} has no rate of dropout")
    for name in rates:
        setattr(config, name, dropout)
    return config


def _kind(folder: Path) -> str:
    return str(read_content(folder)["model_type"])


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    says_enough = isinstance(error, OSError | ValueError) and line  # others say nothing without their type
    return (line if says_enough else f"{type(error).__name__}: {line}")[:_LINE]


def _few(names: list[str]) -> str:
    return ", ".join(name[:100] for name in names[:4]) + (" and more" if len(names) > 4 else "")
