"""Where blocks or the loss cannot be compiled: the step is made again without, and so are all behind it.

The whole step and not only the call that failed, since backward passes are compiled as well, some of them when they are
needed; and a block that is computed again there (gradient checkpointing) must be what it was in the forward pass. Where
nothing fails it costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from unmask.errors import SettingsError
from unmask.model.encoder import MaskedLM
from unmask.model.learner import Learner
from unmask.training.hardware import says_out_of_memory
from unmask.training.optimizer import Optimizer
from unmask.training.settings import TrainingSettings

# Where errors of compiling are defined. By name: Triton is not installed everywhere, and torch moves them about.
_COMPILERS = ("torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx", "triton")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


def step_that_compiles(
    attempt: Callable[[], Result], model: Learner, optimizer: Optimizer, settings: TrainingSettings
) -> Result:
    """Makes a step; where torch.compile fails in it, again without, and says so once.

    Args:
        attempt: Makes the step.
        model: Stays uncompiled where compiling fails.
        optimizer: Whose gradient is forgotten before another try.
        settings: Say whether compiling was asked for.

    Raises:
        SettingsError: Compiling fails, and `training.compile_blocks` is 'yes'.
    """
    try:
        return attempt()
    except Exception as error:
        if not isinstance(model, MaskedLM) or model.encoder.compiled_block is None or not failed_to_compile(error):
            raise
        cause = getattr(error, "inner_exception", error)
        reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
        if settings.compile_blocks == "yes":
            raise SettingsError(
                f"training.compile_blocks = 'yes' cannot be done: {reason}; take 'no' to train without"
            ) from error
    # Only here, since the exception held what the failed step had computed.
    optimizer.clear()
    model.encoder.compiled_block = model.head.compiled_losses = None
    log.warning("blocks cannot be compiled (%s): training goes on without, more slowly", reason)
    return attempt()


def failed_to_compile(error: Exception) -> bool:
    """Whether an error is one of torch.compile or of what it calls; where memory ran out in them it is not."""
    if says_out_of_memory(error):
        return False
    modules = [kind.__module__ for kind in type(error).__mro__]
    return any(module == name or module.startswith(f"{name}.") for module in modules for name in _COMPILERS)
