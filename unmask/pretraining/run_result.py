"""What a finished run leaves: the model's folder, predictions, the summary and the report."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import torch

from unmask.files import read_object, whole_folder, write_atomically, writing
from unmask.folders.checksums import write_checksums
from unmask.folders.model_folder import save_model
from unmask.measuring.held_out import HeldOut, few_draws
from unmask.measuring.plateau import explain_plateau, on_plateau
from unmask.measuring.uncertainty import plain_interval
from unmask.pretraining.before_after import BeforeAfter
from unmask.pretraining.run_data import PreparedData
from unmask.pretraining.run_folder import START_ANEW, RunFolder
from unmask.pretraining.run_metrics import read_metrics
from unmask.pretraining.run_reporter import from_plain, predict_lines, to_plain
from unmask.pretraining.watch import Watch
from unmask.recipe.recipe import Recipe
from unmask.report.card import write_card
from unmask.report.page import write_report
from unmask.training.checkpoints import TrainState

NUM_LINES = 8  # of held-out text, predicted before training and after it


def look_before(folder: RunFolder, state: TrainState, watch: Watch) -> None:
    """Keeps what the untrained model, which is whole, makes of some lines."""
    write_atomically(folder.predictions, json.dumps({"before": _predicted(state, watch)}))


def write_result(
    folder: RunFolder, recipe: Recipe, data: PreparedData, state: TrainState, watch: Watch
) -> dict[str, Any]:
    """Evaluates on the large set, and writes the model, the predictions, the report and, last, the summary.

    Args:
        folder, recipe, data: Of the run.
        state: Its last, with a whole model.
        watch: Has the held-out text.

    Returns:
        The summary.

    Raises:
        WriteError: A file cannot be written; the checkpoints are there, and the run goes on from the last.
    """
    held_out = watch.held_out_set(recipe.evaluation.final_max_tokens)
    result = watch.measure(state.model, held_out, watch.objective_set(recipe.evaluation.final_max_tokens))
    watch.record(state, result, final=True)
    _write_model(folder, state, data)
    predictions = read_object(folder.predictions, START_ANEW)
    predictions["after"] = _predicted(state, watch)
    write_atomically(folder.predictions, json.dumps(predictions))
    summary = _summary(folder, data, state, result, watch.entropy_of(held_out))
    if recipe.start is not None:
        summary |= BeforeAfter(folder, watch).summary(state, result)
    stuck = None
    if summary["on_plateau"]:
        rate = recipe.training.learning_rate
        stuck = explain_plateau(result.loss, summary["unigram_entropy"], step=state.step, learning_rate=rate)
        watch.reporter.note(stuck)
    _write_pages(folder, recipe, data, summary, predictions, remark=stuck)
    write_atomically(folder.summary, json.dumps(summary, indent=1) + "\n")
    return summary


def _write_pages(
    folder: RunFolder,
    recipe: Recipe,
    data: PreparedData,
    summary: dict[str, Any],
    predictions: dict[str, Any],
    *,
    remark: str | None,
) -> None:
    """The report for who trained the model, and the card for whom it goes to."""
    write_report(
        folder.report,
        recipe=recipe.model_dump(),
        manifest=data.manifest,
        summary=summary,
        metrics=read_metrics(folder.metrics),
        before=from_plain(predictions["before"]),
        after=from_plain(predictions["after"]),
        remark=remark,
    )
    write_card(
        folder.model,
        recipe=recipe.model_dump(),
        manifest=data.manifest,
        summary=summary,
        mask_token=data.tokenizer.token(data.tokenizer.special.mask),
        remark=remark,
    )


def _predicted(state: TrainState, watch: Watch) -> list[list[dict[str, Any]]]:
    rows, masked = watch.held_out.batches[0]
    return to_plain(predict_lines(state.model, watch.data.tokenizer, rows, masked, most=NUM_LINES))


def _write_model(folder: RunFolder, state: TrainState, data: PreparedData) -> None:
    config = state.model.config
    with writing(folder.model), whole_folder(folder.model) as partial:
        save_model(state.model, partial)
        data.tokenizer.save(partial, max_length=config.max_position_embeddings, with_types=config.num_types > 1)
        write_checksums(partial)


def _summary(
    folder: RunFolder, data: PreparedData, state: TrainState, result: HeldOut, entropy: float
) -> dict[str, Any]:
    return {
        "model": str(folder.model),
        "num_parameters": state.model.num_parameters,
        "vocab_size": state.model.config.vocab_size,
        "steps": state.step,
        "tokens_seen": state.tokens_seen,
        "epochs": state.tokens_seen / data.manifest.train.tokens,
        "seconds": state.seconds,
        "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
        "validation_loss": result.loss,
        "validation_loss_stderr": result.loss_stderr,
        "validation_loss_interval": plain_interval(result.loss_interval),
        "validation_accuracy": result.accuracy,
        "validation_perplexity": result.perplexity,
        "predicted_tokens": result.predicted_tokens,
        "validation_documents": result.documents,
        "validation_unit": result.unit,
        "validation_warning": few_draws(result.documents, result.unit),
        "unigram_entropy": entropy,
        "on_plateau": on_plateau(result.loss, entropy),
        "bits_per_token_byte": result.bits_per_token_byte,
        "bits_per_token_byte_interval": plain_interval(result.bits_per_token_byte_interval),
        "objectives": {name: asdict(figures) for name, figures in result.objectives.items()},
        "best_step": None if state.best is None else state.best.step,
        "data_fingerprint": data.manifest.fingerprint,
        "near_duplicates": data.manifest.near_duplicates and data.manifest.near_duplicates.plain(),
        "torch": torch.__version__,
        "device": next(state.model.parameters()).device.type,
    }
