"""Any model that can be measured: one of ours, or any masked language model that transformers reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unmask.network.encoder import MaskedLM
from unmask.network.transformers_network import TransformersMaskedLM
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.training.hardware import choose_device
from unmask.using.loaded_model import Model, load


@dataclass(frozen=True)
class Scorable:
    """A model that answers questions about hidden tokens, with its tokenizer.

    Attributes:
        folder: Where it was loaded from.
        network: The model.
        tokenizer: Its tokenizer.
    """

    folder: Path
    network: MaskedLM | TransformersMaskedLM
    tokenizer: Tokenizer


def as_scorable(model: Model | Scorable | str | Path, *, strict: bool = False) -> Scorable:
    """A model in the form in which models are measured; one that is loaded here is moved to the device that there is.

    Args:
        model: The model, or its folder, or its name on the hub.
        strict: Of a model that is loaded here: see `unmask.load`.

    Raises:
        ModelError: It has no head for masked tokens: it is fine-tuned, or a bare encoder; or as `load_scorable`.
        TokenizerError: As `load_scorable`.
    """
    if isinstance(model, Scorable):
        return model
    if isinstance(model, str | Path):
        loaded = load_scorable(model, strict=strict)
        loaded.network.to(choose_device())
        return loaded
    return Scorable(model.folder, model.predictor, model.tokenizer)


def load_scorable(folder: str | Path, *, strict: bool = False) -> Scorable:
    """Loads a model to be measured, in float32.

    Args:
        folder: Of a model, or of a run; or the name of a model on the hub.
        strict: See `unmask.load`.

    Raises:
        ModelError, TokenizerError: As `unmask.load`; or it holds no masked language model.
    """
    return as_scorable(load(folder, strict=strict))
