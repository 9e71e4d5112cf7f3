"""The model that is checked or exported, and the inputs on which its forms are compared.

The inputs are of the model's own vocabulary, and the same ones every time.

Shape suffixes: B = texts, S = positions, D = hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.folders.layout_names import FolderLayout
from unmask.folders.model_folder import CONFIG, LAYOUTS, find_weights, read_content
from unmask.folders.sentence_files import sparse_file
from unmask.folders.stored_weights import read_weights
from unmask.hub import HubName, hub_name
from unmask.network.config import EncoderConfig
from unmask.tasks.known import does_task
from unmask.tasks.task_model import TaskModel, open_fine_tuned
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.training.contrast import TextTargets
from unmask.training.splade import splade_vectors
from unmask.using.loaded_model import Model, load
from unmask.values import shown

LONGEST = 192  # positions: more than the usual local window of 128 reaches
MASK_EVERY = 6  # positions: a sixth is hidden, as in training


@dataclass(frozen=True)
class Probe:
    """Three texts of different lengths, one behind another and each alone.

    Attributes:
        texts: Ids of each text, int64 [S].
    """

    texts: tuple[Tensor, ...]

    @property
    def packed(self) -> dict[str, Tensor]:
        """All texts in one row, as the encoder's arguments."""
        numbers = [torch.full_like(ids, number) for number, ids in enumerate(self.texts)]
        places = [torch.arange(len(ids)) for ids in self.texts]
        return {
            "input_ids_BS": torch.cat(self.texts)[None],
            "segment_ids_BS": torch.cat(numbers)[None],
            "position_ids_BS": torch.cat(places)[None],
        }

    def padded(self, pad_id: int) -> dict[str, Tensor]:
        """A row for each text, filled up to the longest: `input_ids`, `attention_mask`, `token_type_ids`.

        The types alternate in the second half of each text, so that a model which has types is seen to use them.
        """
        length = max(len(ids) for ids in self.texts)
        rows = {name: torch.zeros(len(self.texts), length, dtype=torch.int64) for name in _INPUTS}
        rows["input_ids"] += pad_id
        for row, ids in enumerate(self.texts):
            rows["input_ids"][row, : len(ids)] = ids
            rows["attention_mask"][row, : len(ids)] = 1
            rows["token_type_ids"][row, len(ids) // 2 : len(ids)] = 1
        return rows


_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def make_probe(config: EncoderConfig, tokenizer: Tokenizer) -> Probe:
    """Texts of random tokens, of 1/2, 1/3 and the rest of the longest row that is looked at; a sixth of them is masked.

    The masks matter. Without them a trained model stands outside of what it knows, and its attention may be so sharp
    that rounding in float32 alone changes logits by hundredths (measured on a model of ten minutes' training: 0.05
    between transformers and us without masks, 0.00005 with them). A difference would then say nothing.

    Args:
        config: Says how long inputs may be, and which ids there are.
        tokenizer: Says which ids text consists of.
    """
    length = min(config.max_position_embeddings, LONGEST)
    lengths = (length // 2, length // 3, length - length // 2 - length // 3)
    ids = np.flatnonzero(tokenizer.ordinary)
    ids = ids[ids < config.vocab_size]
    drawn = torch.randint(len(ids), (length,), generator=torch.Generator().manual_seed(0))
    tokens = torch.from_numpy(ids)[drawn]
    tokens[MASK_EVERY // 2 :: MASK_EVERY] = tokenizer.special.mask
    return Probe(tokens.split(lengths))


@dataclass(frozen=True)
class CheckedModel:
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
        return read_content(self.folder)

    @cached_property
    def layout(self) -> FolderLayout:
        """The model's layout."""
        kind = self.config.get("model_type")
        if not isinstance(kind, str) or kind not in LAYOUTS:
            raise ModelError(f"{self.folder / CONFIG}: model_type {shown(kind)} is not supported")
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
    def fine_tuned(self) -> TaskModel:
        """The model with the head of its task, in float32."""
        return open_fine_tuned(self.folder, self.tokenizer)

    @cached_property
    def raw_weights(self) -> dict[str, Tensor]:
        """The stored weights, under the names that they have in the file."""
        return read_weights(self.folder)

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

    @property
    def is_sparse(self) -> bool:
        """Whether the folder makes sparse vectors; of a modules.json that cannot be read other checks tell."""
        try:
            return sparse_file(self.folder) is not None
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

    @torch.no_grad()
    def sparse_vectors(self) -> Tensor:
        """Sparse vectors of the probe's texts, packed, as the training of them makes them: [B, vocabulary]."""
        network, lengths = self.model.network, tuple(map(len, self.probe.texts))
        hidden_TD = network.encoder(**self.probe.packed)[0]
        places_T, none = torch.arange(len(hidden_TD)), torch.zeros(0, dtype=torch.int64)
        texts = TextTargets(places_T, none, none, none, none, none, num_pairs=0, lengths=lengths)
        return splade_vectors(network, hidden_TD, texts)

    @property
    def tells_types(self) -> bool:
        """Whether config.json says that the model tells token types apart; BERT's do where it says nothing."""
        said = self.config.get("type_vocab_size") or (2 if self.config.get("model_type") == "bert" else 1)
        return isinstance(said, int) and said > 1

    @property
    def num_types(self) -> int:
        """Token types that the layout tells apart."""
        return self.model.network.config.num_types


def open_checked_model(folder: str | Path) -> CheckedModel:
    """Finds the model.

    Args:
        folder: Of the model, or of a run; or the name of a model on the hub.

    Raises:
        ModelError: There is none, or it is neither of one of our layouts nor fine-tuned.
    """
    subject = CheckedModel(find_weights(folder), hub_name(folder))
    try:
        kind = subject.config.get("model_type")
    except ModelError:  # of what cannot be read checks tell
        return subject
    if isinstance(kind, str) and kind not in LAYOUTS and not subject.does_task:
        raise ModelError(
            f"{subject.folder}: the layout {shown(kind)} is none of ours ({', '.join(LAYOUTS)}), so there is no "
            "network to compare it with, nor to export; transformers runs it here (fill, embed, evaluate, score, "
            "finetune), and optimum exports it"
        )
    return subject
