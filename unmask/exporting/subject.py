"""The model that is checked or exported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unmask.errors import ModelError
from unmask.exporting.probes import Probe, make_probe
from unmask.hub.names import HubName, hub_name
from unmask.inference.model import Model, load
from unmask.model.find import find_weights
from unmask.model.folder import CONFIG, LAYOUTS, WEIGHTS
from unmask.model.folder_layout import FolderLayout
from unmask.tasks.known import does_task
from unmask.tokens.loading import load_tokenizer
from unmask.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Subject:
    """A model folder; its parts are read when they are first asked for, so that one broken part hides no other.

    Attributes:
        folder: With config.json, weights and tokenizer.
        hub: The name by which the hub has it; None for a folder that was given as such.
    """

    folder: Path
    hub: HubName | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        try:
            content = json.loads((self.folder / CONFIG).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(f"{self.folder / CONFIG}: not JSON ({error})") from error
        return dict(content)

    @cached_property
    def layout(self) -> FolderLayout:
        """The model's layout."""
        kind = self.config.get("model_type")
        if kind not in LAYOUTS:
            raise ModelError(f"{self.folder / CONFIG}: model_type {kind!r} is not supported")
        return LAYOUTS[kind]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return load_tokenizer(self.folder)

    @cached_property
    def model(self) -> Model:
        """The loaded model, on the CPU, in float32."""
        model = load(self.folder)
        model.hub = self.hub
        model.network.to("cpu", torch.float32).encoder.compute_dtype = torch.float32
        return model

    @cached_property
    def raw_weights(self) -> dict[str, Tensor]:
        """The stored weights, under the names that they have in the file."""
        file = self.folder / WEIGHTS
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: damaged ({error})") from error

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The stored weights under canonical names."""
        return self.layout.names.canonical(self.raw_weights)

    @cached_property
    def has_head(self) -> bool:
        """Whether the folder holds a masked-language-model head; folders of bare encoders do not."""
        return self.layout.names.theirs("head.bias")[0] in self.weights

    @property
    def does_task(self) -> bool:
        """Whether the model is fine-tuned for a task; of a config.json that cannot be read other checks tell."""
        try:
            return does_task(self.config)
        except ModelError:
            return False

    @cached_property
    def probe(self) -> Probe:
        """What it is compared on."""
        return make_probe(self.model.network.config, self.model.tokenizer)

    @torch.no_grad()
    def run(self, input_ids_BS: Tensor, **rows: Tensor) -> Tensor:
        """What our network says [B, S, vocabulary], or the hidden states where the folder holds no head."""
        network = self.model.network
        hidden_BSD = network.encoder(input_ids_BS, **rows)
        return network.head(hidden_BSD, network.encoder.tokens) if self.has_head else hidden_BSD

    @property
    def tells_types(self) -> bool:
        """Whether config.json says that the model tells token types apart; BERT's do where it says nothing."""
        usual = 2 if self.config.get("model_type") == "bert" else 1
        return int(self.config.get("type_vocab_size") or usual) > 1

    @property
    def num_types(self) -> int:
        """Token types that the layout tells apart."""
        return self.model.network.config.num_types


def open_subject(folder: str | Path) -> Subject:
    """Finds the model.

    Args:
        folder: Of the model, or of a run; or the name of a model on the hub.

    Raises:
        ModelError: There is none.
    """
    return Subject(find_weights(folder), hub_name(folder))
