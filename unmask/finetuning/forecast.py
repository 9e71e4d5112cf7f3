"""What a fine-tuning would do, without doing it: some steps and some predictions are made, and nothing is written."""

from __future__ import annotations

import time
from typing import Any

from unmask.finetuning.fitting import begin_training
from unmask.finetuning.runs import Runs
from unmask.tasks.network import outputs_of
from unmask.training.hardware import peak_memory
from unmask.training.step_cost import step_cost

NUM_STEPS = 6
NUM_PREDICTED = 256  # inputs


def forecast(runs: Runs) -> dict[str, Any]:
    """Measures a few steps on the real model.

    Args:
        runs: Files and model, read.

    Returns:
        `task`, `labels`, `examples` (as in a summary), `learning_rate`, `num_parameters`, `seeds`, `steps` (of a seed,
        where it does not end early), `seconds` (of all seeds, likewise), `memory_bytes` (the most that the process
        held), `device`.

    Raises:
        UnmaskError: As the real training.
    """
    plan, settings = runs.plan, runs.settings
    model = runs.new_model(settings.seed)
    learning = begin_training(model, plan, seed=settings.seed)
    cost = step_cost(learning.steps, NUM_STEPS)
    begin = time.monotonic()
    examples = plan.validation.examples[:NUM_PREDICTED]
    outputs_of(model.eval(), plan.task, examples)
    evaluation = (time.monotonic() - begin) * len(plan.validation.examples) / len(examples)
    steps = settings.epochs * learning.batches
    evaluations = settings.epochs * min(settings.evaluations_per_epoch, learning.batches)
    return {
        "task": runs.info.kind,
        "labels": list(runs.info.names),
        "examples": runs.ledger,
        "learning_rate": settings.learning_rate_for(model.config.hidden_size),
        "num_parameters": model.num_encoder_parameters,
        "seeds": settings.seeds,
        "steps": steps,
        "seconds": settings.seeds * (steps * cost.seconds + evaluations * evaluation),
        "memory_bytes": peak_memory(model.encoder.device),
        "device": str(model.encoder.device),
    }
