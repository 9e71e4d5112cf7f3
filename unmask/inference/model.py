"""A loaded model, as users hold it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from unmask.errors import ModelError, SettingsError
from unmask.evaluation.own_network import OwnNetwork
from unmask.evaluation.pseudo import checked_form, pseudo_log_likelihoods
from unmask.inference.embed import EmbedSettings, LongTexts, Pooling, embed_texts
from unmask.inference.fill import FillSettings, Joint, fill_texts
from unmask.inference.filled import Filled
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_model
from unmask.model.foreign_folder import is_fine_tuned, runs_in_transformers
from unmask.tasks.model import TaskModel, load_fine_tuned
from unmask.tasks.predictions import Prediction
from unmask.tokens.tokenizer import Tokenizer, load_tokenizer
from unmask.training.hardware import choose_dtype

Precision = Literal["float32", "bf16", "auto"]


class Model:
    """An encoder with its tokenizer.

    Args:
        network: None: a fine-tuned model that transformers runs, which predicts and does nothing else.

    Attributes:
        folder: Where it was loaded from.
        tokenizer: Its tokenizer.
    """

    def __init__(self, folder: Path, network: MaskedLM | None, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self._network = None if network is None else network.eval()
        self.tokenizer = tokenizer

    @property
    def network(self) -> MaskedLM:
        """The encoder with its head, in evaluation mode.

        Raises:
            ModelError: transformers runs the model.
        """
        if self._network is None:
            raise ModelError(
                f"{self.folder}: a fine-tuned model that transformers runs; here it predicts, and does nothing else"
            )
        return self._network

    @overload
    def fill(
        self,
        text: str,
        *,
        top_k: int = 5,
        joint: Joint = "beam",
        candidates: Sequence[str] | None = None,
        max_pieces: int = 1,
    ) -> Filled: ...

    @overload
    def fill(
        self,
        text: list[str] | tuple[str, ...],
        *,
        top_k: int = 5,
        joint: Joint = "beam",
        candidates: Sequence[str] | None = None,
        max_pieces: int = 1,
    ) -> list[Filled]: ...

    def fill(
        self,
        text: str | list[str] | tuple[str, ...],
        *,
        top_k: int = 5,
        joint: Joint = "beam",
        candidates: Sequence[str] | None = None,
        max_pieces: int = 1,
    ) -> Filled | list[Filled]:
        """Predicts what stands at every `[MASK]` of a text, or of each text of a list, which is much faster.

        Args:
            text: With one or several masks, spelled as by the tokenizer; of any length.
            top_k, joint, candidates, max_pieces: See `unmask.inference.fill.FillSettings`.

        Raises:
            SettingsError: As `unmask.inference.fill.fill_texts`.
        """
        settings = FillSettings(top_k=top_k, joint=joint, candidates=candidates, max_pieces=max_pieces)
        if isinstance(text, str):
            return fill_texts(self.network, self.tokenizer, [text], settings)[0]
        return fill_texts(self.network, self.tokenizer, text, settings)

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling = "mean",
        normalize: bool = False,
        long_texts: LongTexts = "error",
    ) -> NDArray[np.float32]:
        """Embeddings [texts, hidden_size], by default what sentence-transformers makes of the same folder.

        Args:
            texts: Any number of them.
            pooling, normalize, long_texts: See `unmask.inference.embed.EmbedSettings`.

        Raises:
            SettingsError: Something is no text, or longer than the model where that is an error.
        """
        settings = EmbedSettings(pooling, normalize, long_texts)
        return embed_texts(self.network, self.tokenizer, texts, settings).vectors

    def score(self, sentences: Sequence[str], *, form: str = "plain") -> NDArray[np.float64]:
        """Pseudo-log-likelihoods of sentences [num_sentences], in nats; see `unmask.evaluation.pseudo`.

        Raises:
            SettingsError: A sentence is empty or longer than the model, or the form is none.
        """
        network, known = OwnNetwork(self.network), checked_form(form)
        return pseudo_log_likelihoods(network, self.tokenizer, sentences, form=known).totals

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


def load(folder: str | Path, *, precision: Precision = "float32") -> Model:
    """Loads a model that unmask or transformers wrote.

    Args:
        folder: With config.json, model.safetensors and tokenizer.json, such as `RUN/model`; or a run's folder. Of
            models of other layouts than ours only fine-tuned ones are loaded, to predict with.
        precision: Of the activations: `float32` gives what transformers gives; `bf16` is several times faster where the
            hardware multiplies it fast, and right to two or three digits; `auto` is bf16 there and float32 elsewhere.

    Raises:
        ModelError: The folder is not there, lacks a file, or is of a layout that is not supported.
        SettingsError: The precision is unknown.
        TokenizerError: The tokenizer cannot be used.
    """
    if precision not in get_args(Precision):
        raise SettingsError(f"precision is {' or '.join(map(repr, get_args(Precision)))}, not {precision!r}")
    path = Path(folder)
    if not path.is_dir():
        raise ModelError(f"{path}: no such folder; give the folder of a model, such as RUN/model")
    if not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
        path = path / "model"  # the folder of a run
    tokenizer = load_tokenizer(path)
    if runs_in_transformers(path) and is_fine_tuned(path):
        return Model(path, None, tokenizer)
    network = load_model(path, mask_id=tokenizer.special.mask)
    if tokenizer.vocab_size > network.config.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, but the model only {network.config.vocab_size}"
        )
    network.encoder.compute_dtype = choose_dtype(precision, network.encoder.tokens.device)
    return Model(path, network, tokenizer)
