"""A fine-tuned model, as users hold it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.corpus.reading import check_characters
from unmask.errors import SettingsError
from unmask.model.find import find_model
from unmask.model.folder import read_config_file
from unmask.model.foreign_folder import is_fine_tuned as is_fine_tuned_in_transformers
from unmask.model.foreign_folder import load_foreign_task, runs_in_transformers
from unmask.model.task_folder import TaskInfo, does_task, load_task_model
from unmask.model.task_network import TaskNetwork
from unmask.tasks.encoding import InputEncoder, words_of
from unmask.tasks.network import Notify, outputs_of
from unmask.tasks.predictions import Prediction
from unmask.tasks.records import QuestionRecord, Record, TextRecord, WordsRecord, texts_of
from unmask.tasks.task import Task, task_of
from unmask.tokens.loading import load_tokenizer
from unmask.tokens.tokenizer import Tokenizer

log = logging.getLogger("unmask")


@dataclass(frozen=True)
class Predicted:
    """Predictions, one a record, and how many records were cut (their ends not seen) or shared out (nothing lost)."""

    predictions: list[Prediction]
    truncated: int
    split: int


class TaskModel:
    """A fine-tuned encoder with its tokenizer.

    Attributes:
        folder: Where it was loaded from.
        network: The encoder with the head of its task, in evaluation mode.
        tokenizer: Its tokenizer.
        info: What it does.
    """

    def __init__(self, folder: Path, network: TaskNetwork, tokenizer: Tokenizer, info: TaskInfo) -> None:
        self.folder = folder
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.info = info
        self.task: Task = task_of(info)
        self._encoder = InputEncoder(tokenizer, network.config, max_length=info.max_length)

    def predict(self, inputs: Sequence[Any]) -> list[Prediction]:
        """Predicts. The end of a text that is longer than the model is not seen, and the log says so.

        Args:
            inputs: Texts; for a model of pairs (text, text); for tags sentences, as texts or lists of words; for
                answers (question, text).

        Raises:
            SettingsError: An input is none of these, or holds what is no character.
        """
        records = [self._record(number, given) for number, given in enumerate(inputs, 1)]
        for record in records:
            for text in texts_of(record):
                check_characters(text, f"input {record.row}")
        found = self.predict_records(records)
        if found.truncated:
            longest = self._encoder.max_length
            log.warning(
                "texts longer than the model's %d tokens: %d; their ends are not seen", longest, found.truncated
            )
        return found.predictions

    def predict_records(self, records: Sequence[Record], *, notify: Notify | None = None) -> Predicted:
        """Predicts for records of the task's kind, as they are read from files.

        Args:
            records: Any number.
            notify: Told how many tokens are done, of how many.
        """
        encoded = self.task.encode(records, self._encoder, with_targets=False)
        outputs = outputs_of(self.network, self.task, encoded.examples, notify=notify)
        predictions = self.task.decode(records, encoded.examples, outputs)
        return Predicted(predictions, encoded.truncated, encoded.split)

    def _record(self, number: int, given: Any) -> Record:
        is_pair = isinstance(given, list | tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)
        if self.info.kind == "answer" and is_pair:
            return QuestionRecord(number, str(number), *given)
        if self.info.kind == "tag" and isinstance(given, str):
            return WordsRecord(number, words_of(given))
        if self.info.kind == "tag" and isinstance(given, list | tuple) and all(isinstance(word, str) for word in given):
            return WordsRecord(number, tuple(given))
        if self.info.kind in ("classify", "regress", "pairs"):
            if self.info.paired and is_pair:
                return TextRecord(number, *given)
            if not self.info.paired and isinstance(given, str):
                return TextRecord(number, given)
        wanted = {"answer": "(question, text)", "tag": "a text or a list of words"}
        what = wanted.get(self.info.kind, "(text, text)" if self.info.paired else "a text")
        raise SettingsError(f"input {number} is {type(given).__name__}, but this model takes {what}")


def load_fine_tuned(folder: str | Path) -> TaskModel:
    """Loads a fine-tuned model of unmask's or transformers'.

    Args:
        folder: With config.json, weights and tokenizer.json, or that of `unmask finetune`; or the name of a model on
            the hub.

    Raises:
        ModelError: The folder is not there, lacks a file, or is not that of a fine-tuned model; or it needs
            transformers, which is not installed.
        TokenizerError: The tokenizer cannot be used.
    """
    path = find_model(folder)
    return open_fine_tuned(path, load_tokenizer(path))


def open_fine_tuned(folder: Path, tokenizer: Tokenizer) -> TaskModel:
    """The same, with a tokenizer that is loaded already."""
    network: TaskNetwork
    if runs_in_transformers(folder):
        network, info = load_foreign_task(folder, vocab_size=tokenizer.vocab_size, pad_id=tokenizer.special.pad)
    else:
        network, info = load_task_model(folder, mask_id=tokenizer.special.mask)
    return TaskModel(folder, network, tokenizer, info)


def is_fine_tuned(folder: Path) -> bool:
    """Whether a folder's config.json says that its head is that of a task.

    Raises:
        ModelError: The file is missing or no JSON, or the layout is not supported.
    """
    if runs_in_transformers(folder):
        return is_fine_tuned_in_transformers(folder)
    return does_task(read_config_file(folder)[0])
