"""A loaded model, as users hold it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.inference.fill import Filled, fill_masks
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_model
from unmask.tasks.model import TaskModel, load_fine_tuned
from unmask.tasks.predictions import Prediction
from unmask.tokens.tokenizer import Tokenizer, load_tokenizer


class Model:
    """An encoder with its tokenizer.

    Attributes:
        folder: Where it was loaded from.
        network: The encoder with its head, in evaluation mode.
        tokenizer: Its tokenizer.
    """

    def __init__(self, folder: Path, network: MaskedLM, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self.network = network.eval()
        self.tokenizer = tokenizer

    def fill(self, text: str, *, top_k: int = 5) -> Filled:
        """Predicts what stands at every `[MASK]` of a text; see `unmask.inference.fill.fill_masks`."""
        return fill_masks(self.network, self.tokenizer, text, top_k=top_k)

    def predict(self, inputs: Sequence[Any]) -> list[Prediction]:
        """What a fine-tuned model says of each input; see `unmask.tasks.model.TaskModel.predict`.

        Raises:
            ModelError: The folder is not that of a fine-tuned model.
            SettingsError: An input does not fit the model's task.
        """
        return self._fine_tuned.predict(inputs)

    @cached_property
    def _fine_tuned(self) -> TaskModel:
        return load_fine_tuned(self.folder)


def load(folder: str | Path) -> Model:
    """Loads a model that unmask or transformers wrote.

    Args:
        folder: With config.json, model.safetensors and tokenizer.json, such as `RUN/model`; or a run's folder.

    Raises:
        ModelError: The folder is not there, lacks a file, or is of a layout that is not supported.
        TokenizerError: The tokenizer cannot be used.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ModelError(f"{path}: no such folder; give the folder of a model, such as RUN/model")
    if not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
        path = path / "model"  # the folder of a run
    tokenizer = load_tokenizer(path)
    network = load_model(path, mask_id=tokenizer.special.mask)
    if tokenizer.vocab_size > network.config.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, but the model only {network.config.vocab_size}"
        )
    return Model(path, network, tokenizer)
