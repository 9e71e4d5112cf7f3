"""What is written of a trained embedder: its model, card, report and summary."""

from __future__ import annotations

import json
from typing import Any

from unmask.embedding.embedder_folder import EmbedderFolder
from unmask.embedding.embedder_request import EmbedderRequest
from unmask.embedding.embedder_run import EmbedderRun, without_temperature
from unmask.files import whole_folder, write_atomically, writing
from unmask.folders.checksums import write_checksums
from unmask.folders.model_folder import save_model
from unmask.folders.sentence_files import write_sentence_files, write_sparse_files
from unmask.pretraining.run_metrics import read_metrics
from unmask.report.embedder_page import write_embedder_card, write_embedder_report


def write_embedder(folder: EmbedderFolder, run: EmbedderRun, request: EmbedderRequest) -> dict[str, Any]:
    """Writes the model and, last, the summary, which is returned.

    Args:
        folder: Of the training.
        run: Over; its model has no temperature of its own any more.
        request: What was asked for.

    Raises:
        WriteError: A file cannot be written; the checkpoints are there, and the training goes on from the last.
    """
    beginning, settings = request.beginning, request.fitted
    temperature, state = run.temperature, run.state
    model, history = without_temperature(state.model), run.history
    config = model.config
    with writing(folder.model), whole_folder(folder.model) as partial:
        save_model(model, partial, with_head=beginning.has_head)
        length = config.max_position_embeddings
        beginning.tokenizer.save(partial, max_length=length, with_types=config.num_types > 1)
        write_files = write_sentence_files if settings.sparse is None else write_sparse_files
        write_files(partial, max_length=length, width=run.width)
        write_checksums(partial)
    best = [line for line in history if state.best is not None and line["step"] == state.best.step]
    last = best[-1] if best and settings.patience is not None else history[-1] if history else None
    names = ("kinds", "mlm_loss")
    after = None if last is None else {name: last[name] for name in names}
    summary: dict[str, Any] = {
        "model": str(folder.model),
        "num_parameters": model.num_parameters,
        "dimension": run.width,
        "sparse": settings.sparse is not None,
        "dimensions": list(settings.dimensions_for(config.hidden_size)),
        "max_length": config.max_position_embeddings,
        "steps": state.step,
        "tokens_seen": state.tokens_seen,
        "seconds": state.seconds,
        "tokens_per_second": state.tokens_seen / max(state.seconds, 1e-9),
        "pairs_seen": run.stream.pairs_before(state.cursor),
        "temperature": temperature,
        "before": {name: history[0][name] for name in names} if history else None,
        "after": after,
        "recall_at_10": None if after is None else {kind: f["recall_at_10"] for kind, f in after["kinds"].items()},
        "nonzero": _nonzero(history[0] if history else None, after),
        "best_step": None if state.best is None else state.best.step,
        "data": run.data.facts,
        "device": model.encoder.device.type,
    }
    files = [path.name for path in (*request.files, *([] if request.pairs is None else [request.pairs]))]
    plain = settings.model_dump(mode="json", exclude={"card"})
    write_embedder_card(
        folder.model,
        summary=summary,
        settings=plain,
        card=settings.card,
        files=files or ["texts in memory"],
        origin=beginning.origin,
    )
    write_embedder_report(folder.report, summary=summary, settings=plain, metrics=read_metrics(folder.metrics))
    write_atomically(folder.summary, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def _nonzero(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, float] | None:
    """Numbers of a held-out text's vector that are not 0, on average over all texts; None where vectors are dense."""
    if before is None or after is None or any(f["nonzero"] is None for f in after["kinds"].values()):
        return None
    found = {}
    for name, measured in (("before", before), ("after", after)):
        kinds = measured["kinds"].values()
        found[name] = sum(f["nonzero"] * f["pairs"] for f in kinds) / sum(f["pairs"] for f in kinds)
    return found
