"""What a saved model needs: its weights, numbers as they are, and a tokenizer that fits."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from unmask.errors import ModelError
from unmask.files import writing
from unmask.model.encoder import MaskedLM
from unmask.model.foreign import ForeignTask
from unmask.model.foreign_folder import save_foreign_task
from unmask.model.task_folder import TaskInfo, save_task_model
from unmask.model.task_network import TaskNetwork
from unmask.tasks.encoding import InputEncoder
from unmask.tokens.tokenizer import Tokenizer


def unscale(model: TaskNetwork, *, mean: float, deviation: float) -> None:
    """Makes a head that tells standardised numbers tell the numbers themselves.

    Raises:
        ModelError: As `last_layer`.
    """
    weight, bias = last_layer(model)
    with torch.no_grad():
        weight.mul_(deviation)
        bias.mul_(deviation).add_(mean)


def last_layer(model: TaskNetwork) -> tuple[Tensor, Tensor]:
    """Weight and bias of the layer that tells a number.

    Raises:
        ModelError: A head of transformers has none that is known by its shape, or one without a bias.
    """
    if isinstance(model, MaskedLM):
        assert model.label_head is not None
        classifier = model.label_head.classifier
        assert classifier.bias is not None
        return classifier.weight, classifier.bias
    theirs = model.encoder.model
    of_encoder = f"{theirs.base_model_prefix}."
    found = [
        module
        for name, module in theirs.named_modules()
        if isinstance(module, torch.nn.Linear) and module.out_features == 1 and not name.startswith(of_encoder)
    ]
    if len(found) != 1 or found[0].bias is None:
        raise ModelError(
            f"the head of {type(theirs).__name__} has no single layer with a bias that tells the number, so it cannot "
            "hold the scale of the numbers; take another model for --task regress"
        )
    return found[0].weight, found[0].bias


def save_network(model: TaskNetwork, info: TaskInfo, folder: Path) -> None:
    """Writes a model that transformers' class for the task loads, with the same logits.

    Raises:
        WriteError: It cannot be written.
    """
    with writing(folder, SafetensorError):
        if isinstance(model, ForeignTask):
            save_foreign_task(model, info, folder)
        else:
            save_task_model(model, info, folder)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, encoder: InputEncoder) -> None:
    """Writes the tokenizer so that transformers gives the model the token types that it was trained with."""
    tokenizer.save(folder, max_length=encoder.max_length, with_types=encoder.with_types)
