"""What the model makes of some held-out lines, before training and after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from unmask.evaluation.held_out import HeldOutSet
from unmask.model.encoder import MaskedLM
from unmask.model.loss import predicted_positions
from unmask.tokens.tokenizer import Tokenizer

NUM_LINES = 8
LONGEST_LINE = 48  # tokens


@dataclass(frozen=True)
class PredictedToken:
    """A token of a line.

    Attributes:
        token: What the text says, without the mark of a continuation.
        starts_word: Whether a word begins here.
        predicted: What the model says, where the token was hidden; None elsewhere.
        probability: That the model gives to the right token, where it was hidden.
    """

    token: str
    starts_word: bool = True
    predicted: str | None = None
    probability: float | None = None


Line = list[PredictedToken]


@torch.no_grad()
def predict_lines(model: MaskedLM, tokenizer: Tokenizer, held_out: HeldOutSet) -> list[Line]:
    """Predictions for the first few segments of the validation rows, under their fixed masks.

    Args:
        model: Any state of the model; it is in evaluation mode meanwhile.
        tokenizer: Its tokenizer.
        held_out: The rows and masks.

    Returns:
        At most `NUM_LINES` lines, each without its special tokens and cut at `LONGEST_LINE` tokens.
    """
    device = model.encoder.tokens.device
    rows, masked = held_out.batches[0]
    positions = predicted_positions(masked.labels)
    was_training = model.training
    logits = model.eval()(
        masked.input_ids.to(device),
        positions_N=positions.to(device),
        segment_ids_BS=rows.segment_ids.to(device),
        position_ids_BS=rows.position_ids.to(device),
    ).cpu()
    model.train(was_training)
    probability = torch.softmax(logits.float(), -1)
    targets = masked.labels.flatten()[positions]
    right = probability.gather(1, targets[:, None])[:, 0].tolist()
    found = dict(zip(positions.tolist(), zip(probability.argmax(-1).tolist(), right, strict=True), strict=True))

    lines: list[Line] = []
    ids, segments = rows.input_ids.flatten().tolist(), rows.segment_ids.flatten().tolist()
    starts = rows.word_starts.flatten().tolist()
    length = rows.shape[1]
    line: Line = []
    for place, (token_id, segment) in enumerate(zip(ids, segments, strict=True)):
        if place % length == 0 or segment != segments[place - 1]:
            _keep(lines, line)
            line = []
        if len(lines) == NUM_LINES:
            return lines
        if segment >= 0 and token_id not in (tokenizer.special.cls, tokenizer.special.sep):
            predicted, chance = found.get(place, (None, None))
            guess = None if predicted is None else tokenizer.text(predicted)
            line.append(PredictedToken(tokenizer.text(token_id), starts[place], guess, chance))
    _keep(lines, line)
    return lines


def _keep(lines: list[Line], line: Line) -> None:
    """Keeps a line in which something is predicted."""
    short = line[:LONGEST_LINE]
    if any(token.predicted is not None for token in short):
        lines.append(short)


def to_plain(lines: list[Line]) -> list[list[dict[str, Any]]]:
    """The lines as JSON takes them."""
    return [[asdict(token) for token in line] for line in lines]


def from_plain(lines: list[list[dict[str, Any]]]) -> list[Line]:
    """The inverse of `to_plain`."""
    return [[PredictedToken(**token) for token in line] for line in lines]
