"""Model folders: config.json and model.safetensors, as transformers reads and writes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from unmask.errors import ModelError
from unmask.model import modernbert
from unmask.model.config import EncoderConfig
from unmask.model.encoder import MaskedLM

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_model(model: MaskedLM, folder: Path) -> None:
    """Writes the model so that `AutoModelForMaskedLM.from_pretrained(folder)` gives the same logits.

    Args:
        model: Its weights are written in float32; the tied decoder is written once, as the embedding.
        folder: Made where missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        modernbert.to_transformers_name(name): parameter.detach().to("cpu", torch.float32).contiguous()
        for name, parameter in model.named_parameters()
    }
    content = json.dumps(modernbert.write_config(model.config), indent=2)
    (folder / CONFIG).write_text(content + "\n", encoding="utf-8")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors makes files that only their owner may read


def load_model(folder: Path, *, mask_id: int) -> MaskedLM:
    """Loads a model that unmask or transformers wrote.

    Args:
        folder: With config.json and model.safetensors.
        mask_id: The tokenizer's.

    Raises:
        ModelError: A file is missing or damaged, or the layout is not supported.
    """
    config = modernbert.read_config(_read_config_file(folder), mask_id=mask_id)
    file = folder / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder}: there is no {WEIGHTS}")
    try:
        weights = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: damaged ({error})") from error
    return build_from_weights(config, weights, where=file)


def build_from_weights(config: EncoderConfig, weights: dict[str, torch.Tensor], *, where: Path) -> MaskedLM:
    """A model with weights named as transformers names them.

    Raises:
        ModelError: A weight is missing or of another shape.
    """
    model = MaskedLM(config)
    ours = modernbert.from_transformers(weights, [name for name, _ in model.named_parameters()])
    for name, parameter in model.named_parameters():
        if ours[name].shape != parameter.shape:
            raise ModelError(
                f"{where}: {modernbert.to_transformers_name(name)} has the shape {tuple(ours[name].shape)}, but "
                f"config.json says {tuple(parameter.shape)}"
            )
    model.load_state_dict({name: tensor.to(torch.float32) for name, tensor in ours.items()})
    return model


def _read_config_file(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if not file.is_file():
        raise ModelError(f"{folder}: there is no {CONFIG}; give the folder of a model, such as RUN/model")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{file}: not JSON ({error})") from error
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind != "modernbert":
        raise ModelError(f"{file}: model_type {kind!r} is not supported; supported is 'modernbert'")
    return dict(content)
