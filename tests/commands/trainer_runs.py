"""Transformers' Trainer on the folder, the files and the settings that a fine-tuning of ours has."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.commands.finetune_files import read_files, settings_of
from unmask.commands.finetune_run import Runs, fit, load_pretrained, pooling_for
from unmask.core.results import Reporter
from unmask.tasks.classify import Classify
from unmask.tasks.inputs import Example
from unmask.tasks.predict import task_named
from unmask.tasks.task import Task
from unmask.tokenizer.loading import load_tokenizer

AUTO = {
    "classify": "AutoModelForSequenceClassification",
    "multi_label": "AutoModelForSequenceClassification",
    "pairs": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
}
NO_LABEL = -100
Sentence = list[tuple[str, str]]


def runs_of(folder: Path, task: str, train: Path, validation: Path, settings: Sequence[str]) -> Runs:
    """A fine-tuning of ours before its first run, as `unmask.finetune` makes it."""
    chosen = settings_of([f"finetune.{each}" for each in settings])
    kind, tokenizer = task_named(task), load_tokenizer(folder)
    pretrained = load_pretrained(folder, tokenizer, max_length=None)
    pooling = pooling_for(pretrained, kind, chosen.pooling)
    paths = {"train": train, "validation": validation}
    files, learned = read_files(kind, paths, chosen, lambda _: None, pooling=pooling)
    return Runs(pretrained, tokenizer, files, learned, chosen, Reporter())


def our_metric(runs: Runs, seed: int) -> float:
    """Of the last epoch, by the metric that tells the best model."""
    found = fit(runs.new_model(seed), runs.plan, seed=seed, reporter=Reporter()).history[-1]
    return found.metrics[runs.plan.metric] or 0.0


def their_metric(runs: Runs, folder: Path, seed: int, work: Path) -> float:
    """The same of `Trainer` with the same settings, from transformers' class for the task."""
    import transformers

    transformers.set_seed(seed)
    settings, examples = runs.settings, runs.plan.train
    steps = math.ceil(len(examples) / settings.batch_size) * settings.epochs
    trainer = transformers.Trainer(
        model=their_model(folder, runs.task),
        args=arguments(
            work,
            seed=seed,
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate_for(runs.pretrained.config.hidden_size),
            warmup_steps=math.ceil(settings.warmup * steps),
            weight_decay=settings.weight_decay,
        ),
        train_dataset=[features(example, runs.task) for example in examples],
        data_collator=lambda rows: padded(rows, runs.tokenizer.special.pad),
    )
    trainer.train()
    return _score(runs, trainer.model.eval())


def arguments(work: Path, **more: Any) -> Any:
    """What `Trainer` is told: its own defaults, without what it would write."""
    import transformers

    return transformers.TrainingArguments(
        str(work), use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, **more
    )


def their_model(folder: Path, info: Task) -> Any:
    """Transformers' class for the task, with what it takes from the folder."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    labels: dict[str, Any] = {"num_labels": len(info.names)} if info.names else {}
    if info.problem_type is not None:
        labels["problem_type"] = info.problem_type
    return getattr(transformers, AUTO[info.kind]).from_pretrained(folder, **labels)


def features(example: Example, info: Task) -> dict[str, Any]:
    """An example as `Trainer` is given it."""
    row: dict[str, Any] = {"input_ids": example.input_ids.tolist()}
    if example.type_ids is not None:
        row["token_type_ids"] = example.type_ids.tolist()
    targets = {name: column.tolist() for name, column in example.targets.items()}
    if info.kind == "tag":
        row["labels"] = [NO_LABEL] * len(example.input_ids)
        for place, tag in zip(example.places, targets["target"], strict=True):
            row["labels"][place] = tag
    elif info.kind == "answer":
        row["start_positions"], row["end_positions"] = targets["begin"][0], targets["end"][0]
    elif info.kind == "multi_label" and targets:
        row["labels"] = [float(targets["labels0"][0] >> number & 1) for number in range(len(info.names))]
    elif targets:
        row["labels"] = targets["target"][0]
    return row


def padded(rows: Sequence[dict[str, Any]], pad_id: int) -> dict[str, Tensor]:
    """Rows as long as the longest, as transformers' collators make them."""
    length = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": pad_id, "labels": NO_LABEL, "token_type_ids": 0}
    batch: dict[str, Any] = {}
    for name, first in rows[0].items():
        column = [row[name] for row in rows]
        lists = isinstance(first, list) and len(first) == len(rows[0]["input_ids"])
        batch[name] = [each + [fill[name]] * (length - len(each)) for each in column] if lists else column
    batch["attention_mask"] = [[n < len(row["input_ids"]) for n in range(length)] for row in rows]
    tensors = {name: torch.tensor(column) for name, column in batch.items()}
    return {name: tensor if tensor.is_floating_point() else tensor.long() for name, tensor in tensors.items()}


@torch.no_grad()
def _score(runs: Runs, model: Any) -> float:
    info, held_out = runs.task, runs.plan.validation
    outputs = []
    for begin in range(0, len(held_out.examples), 64):
        part = held_out.examples[begin : begin + 64]
        found = model(**padded([features(example, Classify()) for example in part], runs.tokenizer.special.pad))
        for n, example in enumerate(part):
            places = torch.from_numpy(example.places)
            if info.kind == "answer":
                outputs.append(torch.stack([found.start_logits[n], found.end_logits[n]], -1)[places].numpy())
            else:
                outputs.append((found.logits[n][places] if info.kind == "tag" else found.logits[n : n + 1]).numpy())
    predictions = runs.task.decode(held_out.records, held_out.examples, outputs)
    return runs.task.measure(held_out.records, predictions)[runs.plan.metric] or 0.0


def not_below(ours: Sequence[float], theirs: Sequence[float], *, critical: float) -> bool:
    """Whether our mean is at most so many standard errors of the difference below theirs (Welch's t)."""
    error = math.sqrt(np.var(ours, ddof=1) / len(ours) + np.var(theirs, ddof=1) / len(theirs))
    return bool(np.mean(ours) - np.mean(theirs) >= -critical * error)


def sentences(path: Path) -> Iterator[Sentence]:
    """Words with their parts of speech, of a file in CoNLL-U."""
    sentence: Sentence = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            columns = line.rstrip("\n").split("\t")
            if columns[0].isdigit():
                sentence.append((columns[1].replace(" ", ""), columns[3]))
            elif columns == [""] and sentence:
                yield sentence
                sentence = []


def write_names(source: Sequence[Sentence], path: Path, number: int) -> Path:
    """Proper nouns and numerals as entities."""
    kinds = {"PROPN": "NAME", "NUM": "NUM"}
    blocks = []
    for sentence in [each for each in source if any(tag in kinds for _, tag in each)][:number]:
        before, lines = None, []
        for word, tag in sentence:
            kind = kinds.get(tag)
            prefix = "I" if kind == before else "B"
            lines.append(f"{word}\t{'O' if kind is None else f'{prefix}-{kind}'}")
            before = kind
        blocks.append("\n".join(lines))
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def write_pairs(source: Sequence[Sentence], path: Path, number: int) -> Path:
    """Both halves of a sentence: are they turned round?"""
    rng = random.Random(0)
    rows = []
    for sentence in [each for each in source if 10 <= len(each) <= 30][:number]:
        words = [word for word, _ in sentence]
        halves = [" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])]
        turned = rng.random() < 0.5
        first, second = reversed(halves) if turned else halves
        rows.append({"first": first, "second": second, "label": "turned" if turned else "straight"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_first_names(source: Sequence[Sentence], path: Path, number: int) -> Path:
    """Questions after a sentence's first proper noun."""
    paragraphs = []
    for sentence in [each for each in source if 8 <= len(each) <= 30]:
        tags = [tag for _, tag in sentence]
        if "PROPN" not in tags or len(paragraphs) == number:
            continue
        words = [word for word, _ in sentence]
        begin = tags.index("PROPN")
        answer = {"text": words[begin], "answer_start": len(" ".join([*words[:begin], ""]))}
        entry = {"id": f"q{len(paragraphs)}", "question": "Which name is first ?", "answers": [answer]}
        paragraphs.append({"context": " ".join(words), "qas": [entry]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def write_reviews(source: Path, path: Path, number: int) -> Path:
    """Sentences with a feeling, of a table without a header."""
    lines = [line.rsplit("\t", 1) for line in source.read_text(encoding="utf-8").splitlines()[:number]]
    rows = [{"text": text, "label": ["bad", "good"][int(label)]} for text, label in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
