"""Masked language models of layouts that are not ours, run by transformers.

They take no rows that several texts share, and make logits at every position; so batches are small. Texts of a batch
are equally long: some models (FNet, those with convolutions) take no attention mask or let padding through it, and what
stands beside a text must not change what is said of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.errors import ModelError, TokenizerError
from unmask.evaluation.questions import Answer, Question, chunk_of, judge, split_answers
from unmask.inference.scorable import Scorable
from unmask.model.foreign_folder import import_transformers, read_foreign
from unmask.model.foreign_shape import longest_of
from unmask.tokens.loading import as_tokenizer, load_tokenizer
from unmask.tokens.tokenizer import Tokenizer

MOST_POSITIONS = 4096
_LOGITS = 1 << 25  # of a batch, in float32
_OLDER_FORMS = ("vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")


class TransformersNetwork:
    """A model of `AutoModelForMaskedLM`, in float32 whatever type its weights were stored in."""

    def __init__(self, model: Any) -> None:
        self.model = model.float().eval()
        self.longest = longest_of(model)
        self.batch_positions = max(1, min(MOST_POSITIONS, _LOGITS // int(model.config.vocab_size)))
        self._takes_mask = "attention_mask" in inspect.signature(model.forward).parameters

    def to(self, device: torch.device) -> None:
        """Moves it."""
        self.model.to(device)

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions, those that follow each other with the same length in one pass."""
        together = groupby(questions, key=lambda question: len(question.input_ids))
        return [answer for _, group in together for answer in self._answer(list(group))]

    @torch.no_grad()
    def _answer(self, questions: list[Question]) -> list[Answer]:
        """Answers questions of one length, a row each."""
        input_ids = np.stack([question.input_ids for question in questions])
        row_of = np.repeat(np.arange(len(questions)), [len(question.places) for question in questions])
        positions = row_of * input_ids.shape[1] + np.concatenate([question.places for question in questions])
        targets = np.concatenate([question.targets for question in questions])
        device = self.model.device
        ids, at, right = (torch.from_numpy(array).to(device) for array in (input_ids, positions, targets))
        mask = {"attention_mask": torch.ones_like(ids)} if self._takes_mask else {}
        logits_TV = self.model(input_ids=ids, **mask).logits.flatten(0, 1)
        size = chunk_of(logits_TV.shape[1])
        parts = [
            judge(logits_TV.index_select(0, part), right_part)
            for part, right_part in zip(at.split(size), right.split(size), strict=True)
        ]
        losses, ranks = (np.concatenate(part) for part in zip(*parts, strict=True))
        return split_answers(questions, losses, ranks)


def load_with_transformers(folder: Path, kind: str | None) -> Scorable:
    """Loads a model that transformers knows, in float32, without running code from the folder.

    Args:
        folder: With a config.json.
        kind: Its `model_type`, for errors.

    Raises:
        ModelError: transformers is not installed, does not know the layout, or there is no masked-language-model head.
        TokenizerError: The tokenizer cannot be used.
    """
    transformers = import_transformers(folder, kind)
    model, missing = read_foreign(transformers.AutoModelForMaskedLM, folder, what="masked language model")
    if missing:
        raise ModelError(
            f"{folder}: no masked language model: the weights lack {', '.join(missing[:4])}"
            f"{' and more' if len(missing) > 4 else ''}; a discriminator or a bare encoder predicts no tokens"
        )
    tokenizer = _tokenizer(folder, transformers)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, but the model only {model.config.vocab_size}"
        )
    return Scorable(folder, TransformersNetwork(model), tokenizer)


def _tokenizer(folder: Path, transformers: Any) -> Tokenizer:
    """The folder's tokenizer; where it is in one of the older forms, transformers makes a fast one of it."""
    is_fast = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    if is_fast or not any((folder / name).is_file() for name in _OLDER_FORMS):
        return load_tokenizer(folder)  # without any file, transformers would make up a tokenizer with no words
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TokenizerError(f"{folder}: no tokenizer that transformers reads ({reason})") from error
    try:
        found = as_tokenizer(theirs)
    except TokenizerError as error:
        raise TokenizerError(f"{folder}: {error}") from error
    if not found.ordinary.any():  # what transformers makes where it finds nothing
        raise TokenizerError(f"{folder}: no tokenizer that transformers reads (it has no vocabulary)")
    return found
