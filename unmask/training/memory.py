"""Where memory runs out: the step is made again in parts half as large, until they fit."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from unmask.errors import MemoryFullError
from unmask.packing.rows import Rows
from unmask.training.hardware import reason_of, says_out_of_memory
from unmask.training.optimizer import Optimizer
from unmask.training.step import StepResult

log = logging.getLogger(__name__)


def step_that_fits(
    attempt: Callable[..., StepResult], rows: Rows, optimizer: Optimizer, *, micro_tokens: int | None
) -> tuple[StepResult, int | None]:
    """Makes a step; where memory runs out in it, again with half as many rows at once.

    Args:
        attempt: Makes the step with at most `micro_rows` rows at once.
        rows: Of the step.
        optimizer: Whose gradient is forgotten before another try.
        micro_tokens: Positions that are computed at once at most, as known so far.

    Returns:
        What the step measured, and the positions that fit: unchanged where memory sufficed.

    Raises:
        MemoryFullError: Not even one row fits.
    """
    num_rows, length = rows.shape
    micro_rows = num_rows if micro_tokens is None else max(1, min(num_rows, micro_tokens // length))
    while True:
        try:
            return attempt(micro_rows=micro_rows), micro_tokens
        except (MemoryError, RuntimeError) as error:
            if not says_out_of_memory(error):
                raise
            reason = reason_of(error)
        # Only here, since the exception held what the failed step had computed.
        optimizer.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if micro_rows == 1:
            raise MemoryFullError(
                f"one row of {length} positions does not fit into memory ({reason}); take a smaller model or "
                "shorter inputs (training.sequence_length, finetune.max_length); while pretraining, "
                "training.gradient_checkpointing=true saves memory, too"
            )
        micro_rows = (micro_rows + 1) // 2
        micro_tokens = micro_rows * length
        log.info("out of memory (%s): trying %d rows at once", reason, micro_rows)
