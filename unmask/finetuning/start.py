"""What runs of fine-tuning begin with: an encoder of ours or of transformers, and a new head from each seed."""

from __future__ import annotations

from pathlib import Path

from unmask.finetuning.settings import FinetuneSettings
from unmask.model.encoder import MaskedLM
from unmask.model.folder import load_model
from unmask.model.foreign_folder import ForeignPretrained, foreign_with_head, load_foreign, runs_in_transformers
from unmask.model.initialise import initialise
from unmask.model.task_folder import TaskInfo, with_task_head
from unmask.model.task_network import TaskNetwork
from unmask.tokens.tokenizer import Tokenizer

Pretrained = MaskedLM | ForeignPretrained


def load_pretrained(folder: Path, tokenizer: Tokenizer, *, max_length: int | None) -> Pretrained:
    """Loads the encoder of a folder.

    Args:
        folder: Of a model.
        tokenizer: Its tokenizer.
        max_length: Longest input that the settings ask for.

    Raises:
        ModelError: The folder cannot be used.
    """
    special = tokenizer.special
    if runs_in_transformers(folder):
        return load_foreign(folder, vocab_size=tokenizer.vocab_size, pad_id=special.pad, max_length=max_length)
    return load_model(folder, mask_id=special.mask)


def begin(pretrained: Pretrained, info: TaskInfo, *, seed: int, settings: FinetuneSettings) -> TaskNetwork:
    """A network before its first step.

    Args:
        pretrained: The encoder; it stays as it is.
        info: What the head is for.
        seed: Of the head's weights, and of all where all are drawn.
        settings: Dropout and initial weights.

    Raises:
        ModelError, SettingsError: As `foreign_with_head`.
    """
    drawn = settings.initial_weights == "random"
    if isinstance(pretrained, ForeignPretrained):
        return foreign_with_head(pretrained, info, seed=seed, dropout=settings.dropout, trained=not drawn)
    model = with_task_head(pretrained, info, seed=seed, dropout=settings.dropout)
    if drawn:
        initialise(model, seed=seed)
    return model
