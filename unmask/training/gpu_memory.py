"""What a step takes of a GPU's memory, by calculation, and how many positions therefore go at once.

It counts what the code keeps for the backward pass, tensor by tensor, without what compiling saves of it, so it is more
than what is met; memory that runs out nevertheless makes the parts of a step smaller (`unmask.training.retries`).
Nothing of it has been measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.network.config import EncoderConfig
from unmask.network.encoder import MaskedLM
from unmask.training.settings import MuonSettings, TrainingSettings

USED = 0.9  # of a GPU's memory; the rest is torch's own, and lost between tensors
SEGMENT = 128  # positions of one, where texts are short
_HALF, _FLOAT = 2, 4  # bytes
_LEAST = 1024  # positions


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step takes at its fullest moment.

    Attributes:
        weights: With their gradients and their copies in bf16.
        optimizer: Momentum of Muon, both moments of AdamW.
        blocks: What the layers keep.
        head: Predictions: the last layers, logits and their gradients.
        attention: What its backward pass works with.
    """

    weights: int
    optimizer: int
    blocks: int
    head: int
    attention: int

    @property
    def total(self) -> int:
        """All of it. Logits are gone when the backward pass of attention begins."""
        return self.weights + self.optimizer + self.blocks + max(self.head, self.attention)


def step_memory(
    model: MaskedLM,
    settings: TrainingSettings,
    *,
    positions: int,
    rate: float,
    segment: int = SEGMENT,
    processes: int = 1,
) -> StepMemory:
    """What a step in bf16 takes with variable-length attention.

    Args:
        model: On any device; its weights are not looked at.
        settings: Which optimizer, and whether activations are kept.
        positions: That are computed at once.
        rate: Share of them that is predicted.
        segment: Positions of a segment on average.
        processes: That share weights out; 1 where each has them all.
    """
    config = model.config
    matrices = sum(p.numel() for block in model.encoder.blocks for p in block.parameters() if p.ndim == 2)
    weights = (2 * _FLOAT + _HALF) * model.num_parameters
    if (
        processes > 1
    ):  # rows and their gradients, what is done to matrices, and what is gathered: the root and two blocks
        in_blocks = sum(parameter.numel() for parameter in model.encoder.blocks.parameters())
        root, block = model.num_parameters - in_blocks, in_blocks // config.num_layers
        rows = (2 * model.num_parameters + matrices) // processes
        weights = _FLOAT * (rows + 2 * root) + 2 * (2 * _HALF + _FLOAT) * block
    rest = model.num_parameters - matrices
    moments = matrices + 2 * rest if isinstance(settings.optimizer, MuonSettings) else 2 * (matrices + rest)
    of_layer = _kept_by_a_layer(config) * positions
    kept = config.num_layers * of_layer
    if settings.gradient_checkpointing:  # what enters each layer, and one layer's own
        kept = 2 * config.hidden_size * _HALF * positions * config.num_layers + of_layer
    predicted = rate * positions
    return StepMemory(
        weights=weights,
        optimizer=_FLOAT * moments // processes,
        blocks=int(kept),
        head=int(predicted * (_HALF * 2 * config.vocab_size + (_FLOAT + 4 * _HALF) * config.hidden_size)),
        attention=int(_FLOAT * config.hidden_size * (positions + 128 * positions / segment)),
    )


def _kept_by_a_layer(config: EncoderConfig) -> int:
    """Bytes of a position: what enters both norms and leaves them, queries, keys and values before and behind the
    rotation, what attention gives, and the MLP's inner values before and behind the activation."""
    inner = (3 if config.parts.gated else 2) * config.intermediate_size
    rotated = 2 if config.parts.rotary else 0
    return _HALF * ((4 + 3 + rotated + 1) * config.hidden_size + inner)


def fitting_positions(
    model: MaskedLM,
    settings: TrainingSettings,
    *,
    memory: int,
    rate: float,
    segment: int = SEGMENT,
    processes: int = 1,
) -> int | None:
    """Positions that go at once: the whole step, or the half, a quarter, ... of it.

    Args:
        model, settings, rate, segment, processes: As for `step_memory`.
        memory: Bytes of the GPU.

    Returns:
        None where not even a few rows fit.
    """
    positions = settings.batch_tokens

    def takes() -> int:
        found = step_memory(model, settings, positions=positions, rate=rate, segment=segment, processes=processes)
        return found.total

    while takes() > USED * memory:
        positions //= 2
        if positions < max(_LEAST, settings.sequence_length):
            return None
    return positions


def first_micro_tokens(
    model: object, settings: TrainingSettings, device: torch.device, *, rate: float, processes: int = 1
) -> int | None:
    """Positions that a training begins to compute at once; None: all of a step.

    Weights are shared out over the processes, or each has them all and counts as one.

    On CPUs that is what the settings say. A GPU that takes what it is told tells too late that it was too much, so
    there it is also what fits by calculation.
    """
    asked = settings.micro_batch_tokens
    if asked is not None or device.type != "cuda" or not isinstance(model, MaskedLM):
        return asked
    memory = torch.cuda.get_device_properties(device).total_memory
    fits = fitting_positions(model, settings, memory=memory, rate=rate, processes=processes)
    return None if fits == settings.batch_tokens else fits or settings.sequence_length
