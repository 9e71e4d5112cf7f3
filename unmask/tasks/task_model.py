"""A fine-tuned model, as users hold it, and examples through its network.

Shape suffixes: T = positions of all rows in a line, D = hidden size, N = places, C = outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.folders.checksums import files_checked
from unmask.folders.model_folder import find_model, read_config_file, read_content
from unmask.folders.task_folder import TaskNetwork, load_task_model
from unmask.folders.transformers_folder import load_transformers_task, runs_in_transformers
from unmask.progress import Notify, counted, ignore
from unmask.results import Readable, Shown
from unmask.runner import run
from unmask.tasks.examples import Example, InputEncoder, types_of
from unmask.tasks.known import does_task, task_of
from unmask.tasks.task import Record, Task
from unmask.text.reading import check_characters
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

log = logging.getLogger("unmask")


@torch.no_grad()
def outputs_of(
    model: TaskNetwork, task: Task, examples: Sequence[Example], *, notify: Notify = ignore
) -> list[NDArray[np.float32]]:
    """What the network says at the places of each example.

    Args:
        model: In evaluation mode, with the task's head.
        task: The task.
        examples: Inputs.
        notify: Told after every batch how many tokens are done.

    Returns:
        For each example [N, C]; N is 1 where the task pools.
    """
    assert not model.training
    outputs: list[NDArray[np.float32]] = [np.zeros((0, 0), dtype=np.float32)] * len(examples)
    asked = [number for number, example in enumerate(examples) if len(example.places)]
    some = [examples[number] for number in asked]
    places = [example.places for example in some]
    count = counted(notify, "predicting", sum(map(len, some)))
    for rows, hidden_TD in run(model, [example.input_ids for example in some], types=types_of(some)):
        sizes = [len(places[number]) for number in rows.numbers]
        places_N = rows.places(places).to(hidden_TD.device)
        logits_NC = task.logits(model, hidden_TD.index_select(0, places_N), sizes)
        cuts = np.cumsum(sizes if len(logits_NC) == sum(sizes) else np.ones_like(sizes))[:-1]
        for number, output in zip(rows.numbers, np.split(logits_NC.float().cpu().numpy(), cuts), strict=True):
            outputs[asked[number]] = output
        count(int(rows.lengths.sum()))
    return outputs


@dataclass(frozen=True)
class Predicted:
    """Predictions, one a record, and how many records were cut (their ends not seen) or shared out (nothing lost)."""

    predictions: list[Any]
    truncated: int
    split: int


class TaskModel(Readable):
    """A fine-tuned encoder with its tokenizer.

    Attributes:
        folder: Where it was loaded from.
        network: The encoder with the head of its task, in evaluation mode.
        tokenizer: Its tokenizer.
        task: What it does.
    """

    def __init__(self, folder: Path, network: TaskNetwork, tokenizer: Tokenizer, task: Task) -> None:
        self.folder = folder
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.task = task
        self._encoder = InputEncoder(tokenizer, network.config, max_length=task.max_length)

    def to_dict(self) -> dict[str, Any]:
        """What it does."""
        return {"folder": str(self.folder), "task": self.task.kind, "labels": list(self.task.names)}

    def shown(self) -> Iterator[Shown]:
        """A line."""
        names = self.task.names
        labels = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
        yield f"fine-tuned: {self.task.kind}{labels}, for {self.task.takes}; {self.folder}"

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """Predicts. The end of a text that is longer than the model is not seen, and the log says so.

        Args:
            inputs: Texts; for a model of pairs (text, text); for tags sentences, as texts or lists of words; for
                answers (question, text).

        Raises:
            SettingsError: An input is none of these, or holds what is no character.
        """
        records = [self._record(number, given) for number, given in enumerate(inputs, 1)]
        for record in records:
            for text in record.texts:
                check_characters(text, f"input {record.row}")
        found = self.predict_records(records)
        if found.truncated:
            longest = self._encoder.max_length
            log.warning(
                "texts longer than the model's %d tokens: %d; their ends are not seen", longest, found.truncated
            )
        return found.predictions

    def predict_records(self, records: Sequence[Record], *, notify: Notify = ignore) -> Predicted:
        """Predicts for records of the task's kind, as they are read from files.

        Args:
            records: Any number.
            notify: Told how many tokens are done.
        """
        encoded = self.task.encode(records, self._encoder, with_targets=False)
        outputs = outputs_of(self.network, self.task, encoded.examples, notify=notify)
        predictions = self.task.decode(records, encoded.examples, outputs)
        return Predicted(predictions, encoded.truncated, encoded.split)

    def _record(self, number: int, given: Any) -> Record:
        if (record := self.task.record(number, given)) is None:
            raise SettingsError(f"input {number} is {type(given).__name__}, but this model takes {self.task.takes}")
        return record


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
    with files_checked(path):
        return open_fine_tuned(path, load_tokenizer(path))


def open_fine_tuned(folder: Path, tokenizer: Tokenizer) -> TaskModel:
    """The same, with a tokenizer that is loaded already."""
    in_transformers = runs_in_transformers(folder)
    content = read_content(folder) if in_transformers else read_config_file(folder)[0]
    task = task_of(content, folder, pools_itself=in_transformers)
    special = tokenizer.special
    network: TaskNetwork
    if in_transformers:
        sizes = {"vocab_size": tokenizer.vocab_size, "pad_id": special.pad, "max_length": task.max_length}
        network = load_transformers_task(folder, task.task_head, **sizes)  # type: ignore[arg-type]
    else:
        network = load_task_model(folder, task.task_head, mask_id=special.mask)
    return TaskModel(folder, network, tokenizer, task)


def is_fine_tuned(folder: Path) -> bool:
    """Whether a folder's config.json says that its head is that of a task.

    Raises:
        ModelError: The file is missing or no JSON, or the layout is not supported.
    """
    return does_task(read_content(folder) if runs_in_transformers(folder) else read_config_file(folder)[0])
