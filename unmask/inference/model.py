"""A loaded model, as users hold it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.errors import ModelError
from unmask.evaluation.own_network import OwnNetwork
from unmask.evaluation.pseudo import checked_form, pseudo_log_likelihoods
from unmask.inference.fill import Filled, fill_masks
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_model
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

    def score(self, sentences: Sequence[str], *, form: str = "plain") -> NDArray[np.float64]:
        """Pseudo-log-likelihoods of sentences [num_sentences], in nats; see `unmask.evaluation.pseudo`.

        Raises:
            SettingsError: A sentence is empty or longer than the model, or the form is none.
        """
        network, known = OwnNetwork(self.network), checked_form(form)
        return pseudo_log_likelihoods(network, self.tokenizer, sentences, form=known).totals


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
