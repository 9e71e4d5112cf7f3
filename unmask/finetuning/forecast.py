"""What a fine-tuning would do, without doing it: some steps and some predictions are made, and nothing is written."""

from __future__ import annotations

import time
from collections.abc import Iterator

from unmask.finetuning.fitting import begin_training
from unmask.finetuning.runs import Runs
from unmask.pretraining.dry_run import fact_lines, memory_fact
from unmask.results import Result, Shown, duration
from unmask.tasks.task_model import outputs_of
from unmask.training.hardware import peak_memory
from unmask.training.step_cost import step_cost

NUM_STEPS = 6
NUM_PREDICTED = 256  # inputs


class FinetuneForecast(Result):
    """What a fine-tuning would do.

    Attributes:
        task, labels: What is learned.
        examples: As in a summary.
        learning_rate, num_parameters, seeds: Of the training.
        steps: Of a seed, where it does not end early.
        seconds: Of all seeds, likewise.
        memory_bytes: The most that the process held; None where the system does not say.
        device: `cpu` or `cuda`.
    """

    def shown(self) -> Iterator[Shown]:
        """A fact a line."""
        labels = f", {len(self.labels)} labels" if self.labels else ""
        several = f" for each of {self.seeds} seeds" if self.seeds > 1 else ""
        counts = self.examples.items()
        yield from fact_lines(
            [
                *(
                    (name, f"{each['records']:,} examples, {each['inputs']:,} inputs, {each['truncated']:,} cut")
                    for name, each in counts
                ),
                ("model", f"{self.task}{labels}; {self.num_parameters:,} parameters without the head"),
                (
                    "training",
                    f"at most {self.steps:,} steps{several} at a learning rate of {self.learning_rate:.2g}, "
                    f"{duration(self.seconds)} in all on {self.device}",
                ),
                memory_fact(self.memory_bytes),
            ]
        )


def forecast(runs: Runs) -> FinetuneForecast:
    """Measures a few steps on the real model.

    Args:
        runs: Files and model, read.

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
    return FinetuneForecast(
        {
            "task": runs.task.kind,
            "labels": list(runs.task.names),
            "examples": runs.ledger,
            "learning_rate": settings.learning_rate_for(model.config.hidden_size),
            "num_parameters": model.num_encoder_parameters,
            "seeds": settings.seeds,
            "steps": steps,
            "seconds": settings.seeds * (steps * cost.seconds + evaluations * evaluation),
            "memory_bytes": peak_memory(model.encoder.device),
            "device": str(model.encoder.device),
        }
    )
