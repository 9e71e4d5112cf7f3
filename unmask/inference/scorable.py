"""Any model that can be measured: one of ours, or any masked language model that transformers reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import ModelError
from unmask.evaluation.own_network import OwnNetwork
from unmask.evaluation.questions import Network
from unmask.inference.model import Model, load
from unmask.model.find import find_model
from unmask.model.folder import CONFIG, LAYOUTS, WEIGHTS
from unmask.model.foreign_folder import unsupported
from unmask.tokens.tokenizer import Tokenizer
from unmask.training.hardware import choose_device


@dataclass(frozen=True)
class Scorable:
    """A model that answers questions about hidden tokens, with its tokenizer.

    Attributes:
        folder: Where it was loaded from.
        network: The model.
        tokenizer: Its tokenizer.
    """

    folder: Path
    network: Network
    tokenizer: Tokenizer


def as_scorable(model: Model | Scorable | str | Path) -> Scorable:
    """A model in the form in which models are measured; one that is loaded here is moved to the device that there is.

    Raises:
        ModelError: It has no head for masked tokens: it is fine-tuned, or a bare encoder; or as `load_scorable`.
        TokenizerError: As `load_scorable`.
    """
    if isinstance(model, Scorable):
        return model
    if isinstance(model, str | Path):
        loaded = load_scorable(model)
        loaded.network.to(choose_device())
        return loaded
    model.check_head()
    return Scorable(model.folder, OwnNetwork(model.network), model.tokenizer)


def load_scorable(folder: str | Path) -> Scorable:
    """Loads a model to be measured.

    Layouts of ours run in our encoder. Others (DistilBERT, ELECTRA's generator, ALBERT, DeBERTa, ...) run in
    transformers, as do models of our layouts with parts that our encoder lacks, and folders whose weights are not in
    one model.safetensors.

    Args:
        folder: Of a model, or of a run; or the name of a model on the hub.

    Raises:
        ModelError: The folder is not there, lacks a file, or holds no masked language model; or it needs transformers,
            which is not installed.
        TokenizerError: The tokenizer cannot be used, for instance because it has no mask token.
    """
    path = find_model(folder)
    if (path / CONFIG).is_file():
        kind = _kind(path)
        if kind not in LAYOUTS or not (path / WEIGHTS).is_file() or unsupported(path) is not None:
            from unmask.inference.transformers_model import load_with_transformers

            return load_with_transformers(path, kind)
    return as_scorable(load(path))


def _kind(folder: Path) -> str | None:
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG}: not JSON ({error})") from error
    return content.get("model_type") if isinstance(content, dict) else None
