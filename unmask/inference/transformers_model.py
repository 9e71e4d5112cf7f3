"""Masked language models of layouts that are not ours, run by transformers.

They take no rows that several texts share, and make logits at every position; so batches are small and padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.errors import ModelError, TokenizerError
from unmask.evaluation.questions import Answer, Question, chunk_of, judge, split_answers
from unmask.inference.scorable import Scorable
from unmask.model.foreign_folder import import_transformers
from unmask.model.foreign_shape import longest_of
from unmask.tokens.tokenizer import Tokenizer, as_tokenizer, load_tokenizer

MOST_POSITIONS = 4096
_LOGITS = 1 << 25  # of a batch, in float32
_OLDER_FORMS = ("vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")


class TransformersNetwork:
    """A model of `AutoModelForMaskedLM`."""

    def __init__(self, model: Any, *, pad_id: int) -> None:
        self.model = model.eval()
        self.pad_id = pad_id
        self.longest = longest_of(model)
        self.batch_positions = max(1, min(MOST_POSITIONS, _LOGITS // int(model.config.vocab_size)))

    @torch.no_grad()
    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions in one pass, a row each."""
        lengths = np.array([len(question.input_ids) for question in questions])
        input_ids = np.full((len(questions), int(lengths.max())), self.pad_id, dtype=np.int64)
        for row, question in zip(input_ids, questions, strict=True):
            row[: len(question.input_ids)] = question.input_ids
        attention_mask = (np.arange(input_ids.shape[1]) < lengths[:, None]).astype(np.int64)
        row_of = np.repeat(np.arange(len(questions)), [len(question.places) for question in questions])
        positions = row_of * input_ids.shape[1] + np.concatenate([question.places for question in questions])
        targets = np.concatenate([question.targets for question in questions])
        device = self.model.device
        ids, mask, at, right = (
            torch.from_numpy(array).to(device) for array in (input_ids, attention_mask, positions, targets)
        )
        logits_TV = self.model(input_ids=ids, attention_mask=mask).logits.flatten(0, 1)
        size = chunk_of(logits_TV.shape[1])
        parts = [
            judge(logits_TV.index_select(0, part), right_part)
            for part, right_part in zip(at.split(size), right.split(size), strict=True)
        ]
        losses, ranks = (np.concatenate(part) for part in zip(*parts, strict=True))
        return split_answers(questions, losses, ranks)


def load_with_transformers(folder: Path, kind: str | None) -> Scorable:
    """Loads a model that transformers knows, without running code from the folder.

    Args:
        folder: With a config.json.
        kind: Its `model_type`, for errors.

    Raises:
        ModelError: transformers is not installed, does not know the layout, or there is no masked-language-model head.
        TokenizerError: The tokenizer cannot be used.
    """
    transformers = import_transformers(folder, kind)
    try:
        model, report = transformers.AutoModelForMaskedLM.from_pretrained(
            folder, output_loading_info=True, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{folder}: no masked language model that transformers reads ({reason})") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{folder}: no masked language model: the weights lack {', '.join(missing[:4])}"
            f"{' and more' if len(missing) > 4 else ''}; a discriminator or a bare encoder predicts no tokens"
        )
    tokenizer = _tokenizer(folder, transformers)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, but the model only {model.config.vocab_size}"
        )
    return Scorable(folder, TransformersNetwork(model, pad_id=tokenizer.special.pad), tokenizer)


def _tokenizer(folder: Path, transformers: Any) -> Tokenizer:
    """The folder's tokenizer; where it is in one of the older forms, transformers makes a fast one of it."""
    is_fast = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    if is_fast or not any((folder / name).is_file() for name in _OLDER_FORMS):
        return load_tokenizer(folder)  # without any file, transformers would make up a tokenizer with no words
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
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
