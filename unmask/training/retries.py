"""When a step fails and may be made again: memory that runs out, and blocks that cannot be compiled.

The loop makes the step anew, with half as many rows at once or without compiling. It is the whole step and not only the
call that failed, since backward passes are compiled as well, some of them when they are needed; and a block that is
computed again there (gradient checkpointing) must be what it was in the forward pass. Where nothing fails it costs
nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from unmask.errors import MemoryFullError, SettingsError
from unmask.network.compiling import uncompile_model
from unmask.network.encoder import MaskedLM
from unmask.network.trainable import Trainable
from unmask.rows.rows import Rows
from unmask.training.hardware import reason_of, says_out_of_memory
from unmask.training.optimizer import FailedElsewhereError
from unmask.training.settings import TrainingSettings

# Where errors of compiling are defined. By name: Triton is not installed everywhere, and torch moves them about.
_COMPILERS = ("torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx", "triton")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why a step failed, in words: the exception itself holds what the step had computed, and must not be kept.

    Attributes:
        reason: What was said.
        of_memory: Whether memory ran out; else something cannot be compiled.
    """

    reason: str
    of_memory: bool


def recoverable(error: Exception, model: Trainable, settings: TrainingSettings) -> Failure:
    """What failed, where the step may be made again.

    Args:
        error: Raised by the step, here or in another process; raised again where nothing helps.
        model: Whose blocks may be compiled.
        settings: Say whether compiling was asked for.

    Raises:
        SettingsError: Compiling fails, and `training.compile_blocks` is 'yes'.
    """
    if isinstance(error, FailedElsewhereError) and error.failure in (OF_COMPILING, OF_MEMORY):
        return Failure("in another process", of_memory=error.failure == OF_MEMORY)
    if _is_of_memory(error):
        return Failure(reason_of(error), of_memory=True)
    if not isinstance(model, MaskedLM) or model.encoder.compiled_block is None or not failed_to_compile(error):
        raise error
    cause = getattr(error, "inner_exception", error)
    reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
    if settings.compile_blocks == "yes":
        raise SettingsError(
            f"training.compile_blocks = 'yes' cannot be done: {reason}; take 'no' to train without"
        ) from error
    return Failure(reason, of_memory=False)


OF_COMPILING, OF_MEMORY, FOR_GOOD = 1, 2, 3  # the worse, the higher: of several processes' failures, the worst counts


def kind_of_failure(error: Exception) -> int:
    """How a step failed, as a number, for other processes."""
    if isinstance(error, FailedElsewhereError):
        return error.failure
    if _is_of_memory(error):
        return OF_MEMORY
    return OF_COMPILING if failed_to_compile(error) else FOR_GOOD


def _is_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | RuntimeError) and says_out_of_memory(error)


def rows_at_once(rows: Rows, micro_tokens: int | None) -> int:
    """Rows of a step that are computed together.

    Args:
        rows: Of the step.
        micro_tokens: Positions that are computed at once at most, as known so far; None: all.
    """
    num_rows, length = rows.shape
    return num_rows if micro_tokens is None else max(1, min(num_rows, micro_tokens // length))


def fewer_rows(micro_rows: int, length: int, reason: str) -> int:
    """Half as many rows at once, after memory ran out.

    Raises:
        MemoryFullError: Not even one row fits.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if micro_rows == 1:
        raise MemoryFullError(
            f"one row of {length} positions does not fit into memory ({reason}); take a smaller model or "
            "shorter inputs (training.sequence_length, finetune.max_length); while pretraining, "
            "training.gradient_checkpointing=true saves memory, too"
        )
    log.info("out of memory (%s): trying %d rows at once", reason, (micro_rows + 1) // 2)
    return (micro_rows + 1) // 2


def in_smaller_parts(micro_tokens: int | None) -> str:
    """What is told of a training whose steps have become smaller parts, by the positions of one."""
    return (
        f"memory ran out: steps are made in parts of {micro_tokens:,} positions from now on (the same result, more "
        "slowly)"
    )


def without_compiling(model: Trainable, reason: str) -> None:
    """Has the model run uncompiled from now on, and says so."""
    assert isinstance(model, MaskedLM), "nothing else is compiled"
    uncompile_model(model)
    log.warning("blocks cannot be compiled (%s): training goes on without, more slowly", reason)


def failed_to_compile(error: Exception) -> bool:
    """Whether an error is one of torch.compile or of what it calls; where memory ran out in them it is not."""
    if says_out_of_memory(error):
        return False
    modules = [kind.__module__ for kind in type(error).__mro__]
    return any(module == name or module.startswith(f"{name}.") for module in modules for name in _COMPILERS)
