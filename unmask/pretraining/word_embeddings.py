"""What an encoder on the disk makes of the words of another vocabulary: its input embeddings of their pieces."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer as Backend
from torch import Tensor

from unmask.errors import SettingsError
from unmask.tokens.tokenizer import Tokenizer
from unmask.training.scores import main_directions

# What BERT, RoBERTa and their kin, ModernBERT, and decoders call the table.
_NAMES = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "wte.weight")


def word_embeddings(folder: Path, tokenizer: Tokenizer) -> Tensor:
    """The mean of the encoder's input embeddings over the pieces of each ordinary token's text.

    Nothing is encoded: a token's context is not known here, and a table of the vocabulary is what masking takes.

    Args:
        folder: Of a transformers encoder (also of sentence-transformers), with tokenizer.json and model.safetensors.
        tokenizer: Whose vocabulary the table is for.

    Returns:
        [V, at most 32], float32: the main directions of the centred embeddings; 0 for what is no text.

    Raises:
        SettingsError: The folder holds no such encoder.
    """
    table = _table(folder)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.no_padding()  # which files of sentence encoders ask for
    backend.no_truncation()
    ids = [id_ for id_ in range(tokenizer.vocab_size) if tokenizer.ordinary[id_]]
    pieces = [each.ids for each in backend.encode_batch([tokenizer.text(id_) for id_ in ids], add_special_tokens=False)]
    found = torch.stack(
        [table[torch.tensor(own, dtype=torch.int64)].mean(0) if own else table.mean(0) for own in pieces]
    )
    result = torch.zeros(tokenizer.vocab_size, min(32, table.shape[1]))
    result[torch.tensor(ids)] = main_directions(found)
    return result


def _table(folder: Path) -> Tensor:
    where = f"masking.weights.encoder = {str(folder)!r}"
    for name in ("tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise SettingsError(f"{where} has no {name}; name the folder of an encoder that transformers has saved")
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            found = [name for name in file.keys() if name.endswith(_NAMES)]  # noqa: SIM118  (it is no mapping)
            if len(found) != 1:
                raise SettingsError(
                    f"{where} has {len(found)} tables of word embeddings ({', '.join(_NAMES)}), not one"
                )
            tensor: Tensor = file.get_tensor(found[0])
    except SafetensorError as error:
        raise SettingsError(f"{where}: model.safetensors cannot be read: {error}") from error
    return tensor.float()
