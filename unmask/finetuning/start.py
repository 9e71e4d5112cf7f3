"""What runs of fine-tuning begin with: an encoder of ours or of transformers, and a new head from each seed."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import SettingsError
from unmask.model.encoder import MaskedLM
from unmask.model.folder import LAYOUTS, load_model
from unmask.model.folder_layout import Pooling
from unmask.model.foreign_folder import ForeignPretrained, foreign_with_head, load_foreign, runs_in_transformers
from unmask.model.task_folder import TaskNetwork, with_task_head
from unmask.tasks.settings import FinetuneSettings
from unmask.tasks.task import Task
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


def pooling_for(pretrained: Pretrained, kind: type[Task], asked: Pooling | None) -> Pooling:
    """What whole texts are told from.

    Args:
        pretrained: The encoder.
        kind: The task.
        asked: What the settings say.

    Raises:
        SettingsError: The model's head, or the task, has no place for it.
    """
    if isinstance(pretrained, ForeignPretrained) or not kind.of_texts:
        if asked is not None:
            whose = "transformers' head pools in its own way" if kind.of_texts else "the task has no whole texts"
            raise SettingsError(f"finetune.pooling={asked}: {whose}; omit it")
        return "first"
    layout = pretrained.config.layout
    has_choice = LAYOUTS[layout].pooling_key is not None
    if asked == "mean" and not has_choice:
        raise SettingsError(f"finetune.pooling=mean: classifiers of the layout {layout} take the first token; omit it")
    return asked or ("mean" if has_choice else "first")


def begin(pretrained: Pretrained, task: Task, *, seed: int, settings: FinetuneSettings) -> TaskNetwork:
    """A network before its first step.

    Args:
        pretrained: The encoder; it stays as it is.
        task: What the head is for.
        seed: Of the head's weights, and of all where all are drawn.
        settings: Dropout and initial weights.

    Raises:
        ModelError, SettingsError: As `foreign_with_head`.
    """
    drawn = settings.initial_weights == "random"
    if isinstance(pretrained, ForeignPretrained):
        return foreign_with_head(pretrained, task.task_head, seed=seed, dropout=settings.dropout, trained=not drawn)
    return with_task_head(pretrained, task.task_head, seed=seed, dropout=settings.dropout, trained=not drawn)
