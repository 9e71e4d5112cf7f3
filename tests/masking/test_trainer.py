"""transformers' own `Trainer` with our collator, on the CPU."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.masking.helpers import features_of, wrapped
from tests.processes import in_processes
from unmask import MaskingCollator, evaluation_loss, token_losses
from unmask.core.errors import DataError

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
datasets = pytest.importorskip("datasets")

# Python 3.12 and later warn wherever a process with threads forks, which data loaders do.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

Batch = dict[str, torch.Tensor]


def model_of(tokenizer: Any) -> Any:
    """A tiny model that records each batch it sees, and whether in training mode."""
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 64, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)

    class Noting(transformers.BertForMaskedLM):  # type: ignore[misc, name-defined]
        seen: list[tuple[bool, Batch]]

        def forward(
            self,
            input_ids: torch.Tensor | None = None,
            attention_mask: torch.Tensor | None = None,
            labels: torch.Tensor | None = None,
        ) -> Any:
            self.seen.append((self.training, {"input_ids": input_ids.clone(), "labels": labels.clone()}))
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)

    model = Noting(transformers.BertConfig(**sizes))
    model.seen = []
    return model


def train(
    out: Path, family: str, *, evaluate: Any = None, collator: Any = None, stream: Any = None,
    resume: str | None = None, **arguments: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Two epochs of three steps; returns the trainer and its model."""
    tokenizer = wrapped(family)
    model = model_of(tokenizer)
    collator = collator or MaskingCollator(tokenizer, strategy="whole_word", rate=0.3, seed=1)
    features = features_of(family, 24)
    columns = {name: [feature[name] for feature in features] for name in features[0]}
    options = {
        "num_train_epochs": 2, "per_device_train_batch_size": 8, "report_to": [], "use_cpu": True, "seed": 3,
        "disable_tqdm": True, "dataloader_pin_memory": False, "save_strategy": "no",
    }  # fmt: skip
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(output_dir=str(out), **options | arguments),
        train_dataset=(stream or (lambda rows: rows))(datasets.Dataset.from_dict(columns)),
        eval_dataset=evaluate if evaluate is None else evaluate(collator, features[:6]),
        data_collator=collator,
        callbacks=[collator.callback],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, model


def by_row(batches: list[Batch]) -> dict[tuple[int, ...], list[int]]:
    """The labels of each row, by its original ids."""
    actual = {}
    for batch in batches:
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            original = torch.where(labels != -100, labels, ids).tolist()
            end = max(n for n, id_ in enumerate(original) if id_) + 1
            actual[tuple(original[:end])] = labels.tolist()[:end]
    return actual


def masks_of_epoch(family: str, rows: Iterable[tuple[int, ...]], epoch: int) -> dict[tuple[int, ...], list[int]]:
    """The labels of each row, by the collator of `train` alone."""
    collator = MaskingCollator(wrapped(family), strategy="whole_word", rate=0.3, seed=1)
    collator.set_epoch(epoch)
    return by_row([collator([{"input_ids": list(row)} for row in rows])])


def labels_by_a_falling_rate(out: Path, **options: Any) -> list[torch.Tensor]:
    """Of the batches of a training."""
    rate = {"kind": "linear", "start": 0.9, "end": 0.1}
    collator = MaskingCollator(wrapped("wordpiece"), strategy="random", rate=rate)
    _, model = train(out, "wordpiece", collator=collator, **options)
    return [batch["labels"] for training, batch in model.seen if training]


def assert_masks_of_epochs(batches: list[Batch], family: str) -> None:
    """Of two epochs of three steps."""
    first, second = by_row(batches[:3]), by_row(batches[3:])
    for epoch, masks in enumerate((first, second)):
        assert len(masks) == 24
        assert masks == masks_of_epoch(family, masks, epoch)
    assert sum(first[row] != second[row] for row in first) > 18, "each epoch draws anew"


def test_masks_are_those_of_the_epoch(tmp_path: Path) -> None:
    """Also where workers are started anew for each epoch; the next test has those that stay, and none."""
    trainer, model = train(tmp_path, "wordpiece", dataloader_num_workers=2)
    assert trainer.state.global_step == 6
    assert all(training for training, _ in model.seen)
    assert_masks_of_epochs([batch for _, batch in model.seen], "wordpiece")


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_has_fixed_masks_amid_epochs_that_change(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers stay for all epochs. Evaluation moves nothing in training."""
    with caplog.at_level(logging.WARNING, logger="unmask"):
        _, model = train(
            tmp_path,
            "bpe",
            evaluate=lambda collator, features: collator.fixed(features),
            eval_strategy="steps",
            eval_steps=2,
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
        )
    assert "unmask" not in {record.name for record in caplog.records}
    evaluated = [batch for training, batch in model.seen if not training]
    assert len(evaluated) == 3
    for batch in evaluated[1:]:
        assert torch.equal(batch["input_ids"], evaluated[0]["input_ids"])
        assert torch.equal(batch["labels"], evaluated[0]["labels"])
    assert (evaluated[0]["labels"] != -100).sum() > 10
    assert_masks_of_epochs([batch for training, batch in model.seen if training], "bpe")


def test_an_evaluation_whose_masks_would_move_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="unmask"):
        train(tmp_path, "wordpiece", evaluate=lambda _, features: features, eval_strategy="epoch")
    (said,) = [record.message for record in caplog.records if record.name == "unmask"]
    assert "eval_dataset=collator.fixed(eval_dataset)" in said


@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 2, "eval_steps": 1}, {"dataloader_num_workers": 2, "eval_steps": 2}],
    ids=["two batches a step", "workers"],
)
def test_an_evaluation_without_fixed_masks_moves_no_schedule(tmp_path: Path, options: dict[str, Any]) -> None:
    """Two data sets are evaluated every two batches: three batches, and one."""
    options = options | {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 2, "num_train_epochs": 1}
    alone = labels_by_a_falling_rate(tmp_path / "alone", **options)
    assert len(alone) == 6
    targets = [int((batch != -100).sum()) for batch in alone]
    assert sum(targets[:2]) > 1.5 * sum(targets[4:])
    options["eval_strategy"] = "steps"
    options["evaluate"] = lambda _, features: {"a": features, "b": features[:2]}
    evaluated = labels_by_a_falling_rate(tmp_path / "evaluated", **options)
    assert all(torch.equal(a, b) for a, b in zip(alone, evaluated, strict=True))


class Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
    """A stream of rows, each of which comes twice."""

    def __init__(self, rows: Any) -> None:
        self.rows = [*rows, *rows]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


class SizedStream(Stream):
    """A stream with a known length."""

    def __len__(self) -> int:
        return len(self.rows)


STREAMS = {"unknown length": Stream, "known length": SizedStream, "rows by number": list}


@pytest.mark.parametrize(
    ("name", "stop", "workers"), [("unknown length", 2, 1), ("known length", 5, 0), ("rows by number", 5, 1)]
)
def test_the_rate_of_a_resumed_training_goes_on(tmp_path: Path, name: str, stop: int, workers: int) -> None:
    """Also if rows are a stream, whose batches are made again to be skipped; rows by number are in their second epoch
    after step 5."""
    options = {
        "stream": STREAMS[name], "num_train_epochs": 1, "max_steps": 6, "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4, "dataloader_num_workers": workers,
    }  # fmt: skip
    whole = labels_by_a_falling_rate(tmp_path, save_strategy="steps", save_steps=stop, **options)
    assert len(whole) == 12
    rest = labels_by_a_falling_rate(tmp_path, resume=str(tmp_path / f"checkpoint-{stop}"), **options)
    assert len(rest) == 12 - 2 * stop
    assert all(torch.equal(one, two) for one, two in zip(whole[2 * stop :], rest, strict=True))


def test_workers_beyond_the_shards_of_a_stream_do_not_hurry_the_rate(tmp_path: Path) -> None:
    options = {"stream": lambda rows: rows.to_iterable_dataset(), "max_steps": 3}
    alone, two = (labels_by_a_falling_rate(tmp_path, dataloader_num_workers=n, **options) for n in (0, 2))
    assert all(torch.equal(*both) for both in zip(alone, two, strict=True))


def evaluated(tmp_path: Path, batch_size: int, **exact: Any) -> dict[str, float]:
    tokenizer = wrapped("wordpiece")
    collator = MaskingCollator(tokenizer, strategy="whole_word")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_eval_batch_size=batch_size, report_to=[], use_cpu=True, disable_tqdm=True
    )
    rows = [{"input_ids": row["input_ids"][: 4 + 5 * (n % 5)]} for n, row in enumerate(features_of("wordpiece", 24))]
    model = model_of(tokenizer).eval()
    with torch.no_grad():  # so that losses differ
        model.cls.predictions.decoder.weight.mul_(20)
    trainer = transformers.Trainer(model, arguments, data_collator=collator, eval_dataset=collator.fixed(rows), **exact)
    actual: dict[str, float] = trainer.evaluate()
    batches = [batch for _, batch in model.seen]
    total = count = 0.0
    for batch in batches:
        with torch.no_grad():
            logits = model(**batch, attention_mask=(batch["input_ids"] != tokenizer.pad_token_id).long()).logits
        chosen = batch["labels"] != -100
        picked = logits[chosen].log_softmax(-1).gather(1, batch["labels"][chosen][:, None])
        total, count = total - picked.sum().item(), count + chosen.sum().item()
    return actual | {"by_hand": total / count, "count": count}


def test_the_loss_of_an_evaluation_is_that_of_its_masks(tmp_path: Path) -> None:
    exact = {"compute_metrics": evaluation_loss, "preprocess_logits_for_metrics": token_losses}
    by_size = [evaluated(tmp_path, size, **exact) for size in (1, 24)]
    for actual in by_size:
        assert actual["eval_loss"] == pytest.approx(actual["by_hand"], rel=1e-5)
        assert actual["eval_predicted_tokens"] == actual["count"] == by_size[0]["count"]
        assert actual["eval_perplexity"] == pytest.approx(np.exp(actual["by_hand"]), rel=1e-4)
    whole = evaluated(tmp_path, 7, compute_metrics=evaluation_loss)
    assert whole["eval_loss"] == pytest.approx(whole["by_hand"], rel=1e-5), "of logits"


def test_evaluations_without_targets_or_with_logits_at_masks_alone() -> None:
    nothing = np.full((2, 3), -100)
    with pytest.raises(DataError, match="nothing to predict"):
        evaluation_loss(transformers.EvalPrediction(np.zeros((2, 3)), nothing))
    with pytest.raises(DataError, match=r"\(2, 5\) are neither losses nor logits"):
        evaluation_loss(transformers.EvalPrediction(np.zeros((2, 5)), nothing))
    with pytest.raises(DataError, match=r"\(4, 9\) do not match labels of shape \(2, 3\)"):
        token_losses((torch.zeros(4, 9),), torch.from_numpy(nothing))


def streamed(folder: Path) -> list[list[dict[str, Any]]]:
    """The batches that one of two processes makes, in each of three trainings on a stream."""
    rank = str(torch.distributed.get_rank())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")  # as launchers set them
    made: list[list[dict[str, Any]]] = []

    class Noting(MaskingCollator):
        def __call__(self, features: Any) -> Any:
            batch = super().__call__(features)
            made[-1].append({name: batch[name].tolist() for name in ("input_ids", "labels")})
            return batch

    falling = {"kind": "linear", "start": 0.9, "end": 0.1}
    for length, config, rate in ((48, {}, 0.3), (None, {"dispatch_batches": False}, 0.3), (48, {}, falling)):
        made.append([])
        collator = Noting(wrapped("wordpiece"), strategy="whole_word", rate=rate, seed=1, pad_to_length=length)
        train(
            folder, "wordpiece", collator=collator, stream=lambda rows: rows.to_iterable_dataset(num_shards=2),
            max_steps=3, per_device_train_batch_size=4, accelerator_config=config,
        )  # fmt: skip
    return made


@pytest.mark.slow
def test_a_stream_in_two_processes(tmp_path: Path) -> None:
    """The masks of each row are those of one process, whether one process reads for all or each reads its own rows."""
    padded, apart, falling = zip(*in_processes(2, "tests.masking.test_trainer:streamed", tmp_path, {}), strict=True)
    for by_process, reads in ((padded, [True, False]), (apart, [True, True])):
        assert [len(batches) > 0 for batches in by_process] == reads
        batches = [batch for batches in by_process for batch in batches]
        masks = by_row([{name: torch.tensor(column) for name, column in batch.items()} for batch in batches])
        assert len(masks) == 24
        assert masks == masks_of_epoch("wordpiece", masks, 0)
    counts = [int((torch.tensor(batch["labels"]) != -100).sum()) for batch in falling[0]]
    assert len(counts) == 6, "two batches a step"
    assert counts[3] > 0.4 * counts[0], "halfway, at a rate of 0.5"
