"""What a saved model needs beside its weights: numbers as they are, and a tokenizer that fits."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from unmask.model.encoder import MaskedLM
from unmask.tasks.encoding import InputEncoder
from unmask.tokens.tokenizer import Tokenizer


def unscale(model: MaskedLM, *, mean: float, deviation: float) -> None:
    """Makes a head that tells standardised numbers tell the numbers themselves."""
    assert model.label_head is not None
    classifier = model.label_head.classifier
    assert classifier.bias is not None
    with torch.no_grad():
        classifier.weight.mul_(deviation)
        classifier.bias.mul_(deviation).add_(mean)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, encoder: InputEncoder) -> None:
    """Writes the tokenizer so that transformers gives the model the token types that it was trained with."""
    tokenizer.save(folder, max_length=encoder.max_length)
    if encoder.with_types:
        file = folder / "tokenizer_config.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        content["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
