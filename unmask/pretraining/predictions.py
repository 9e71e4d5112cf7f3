"""What the model makes of some held-out lines, before training and after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from unmask.masking.engine import MaskedRows
from unmask.model.encoder import MaskedLM
from unmask.model.loss import predicted_positions
from unmask.packing.rows import Rows
from unmask.results import legible
from unmask.tokens.tokenizer import Tokenizer
from unmask.using.runner import evaluating, hidden_states, logits_at

LONGEST_LINE = 48  # tokens


@dataclass(frozen=True)
class PredictedToken:
    """A token of a line.

    Attributes:
        token: What the text says, without marks.
        space_before: Whether a space stands before it.
        predicted: What the model says, where the token was hidden; None elsewhere.
        probability: That the model gives to the right token, where it was hidden.
    """

    token: str
    space_before: bool = True
    predicted: str | None = None
    probability: float | None = None


Line = list[PredictedToken]


def predict_lines(
    model: MaskedLM, tokenizer: Tokenizer, rows: Rows, masked: MaskedRows, *, most: int | None = None
) -> list[Line]:
    """Predictions for the segments of some rows, a line each.

    Args:
        model: Any state of the model; it is in evaluation mode meanwhile.
        tokenizer: Its tokenizer.
        rows: The text.
        masked: What is hidden of it.
        most: How many lines at most.

    Returns:
        The lines in which something is hidden, each without its special tokens and cut at `LONGEST_LINE` tokens.
    """
    positions = predicted_positions(masked.labels)
    with evaluating(model):
        hidden_TD = hidden_states(model, masked.input_ids, rows.segment_ids, rows.position_ids)
        logits = torch.cat([part.cpu() for part in logits_at(model, hidden_TD, positions)])
    probability = torch.softmax(logits, -1)
    targets = masked.labels.flatten()[positions]
    right = probability.gather(1, targets[:, None])[:, 0].tolist()
    found = dict(zip(positions.tolist(), zip(probability.argmax(-1).tolist(), right, strict=True), strict=True))

    lines: list[Line] = []
    ids, segments = rows.input_ids.flatten().tolist(), rows.segment_ids.flatten().tolist()
    length = rows.shape[1]
    line: Line = []
    for place, (token_id, segment) in enumerate(zip(ids, segments, strict=True)):
        if place % length == 0 or segment != segments[place - 1]:
            _keep(lines, line)
            line = []
        if len(lines) == most:
            return lines
        if segment >= 0 and token_id not in tokenizer.special.around:
            predicted, chance = found.get(place, (None, None))
            guess = None if predicted is None else legible(tokenizer.text(predicted))
            text = tokenizer.text(token_id)
            visible = text if predicted is None and text == " " else legible(text)
            line.append(PredictedToken(visible, tokenizer.space_before(token_id), guess, chance))
    _keep(lines, line)
    return lines


def _keep(lines: list[Line], line: Line) -> None:
    """Keeps a line in which something is predicted."""
    short = line[:LONGEST_LINE]
    if any(token.predicted is not None for token in short):
        lines.append(short)


def plain_line(line: Line) -> str:
    """A line as text, with what is predicted in brackets."""
    return "".join(
        f"{' ' if token.space_before else ''}{token.token if token.predicted is None else f'[{token.predicted}]'}"
        for token in line
    ).strip()


def to_plain(lines: list[Line]) -> list[list[dict[str, Any]]]:
    """The lines as JSON takes them."""
    return [[asdict(token) for token in line] for line in lines]


def from_plain(lines: list[list[dict[str, Any]]]) -> list[Line]:
    """The inverse of `to_plain`."""
    return [[PredictedToken(**token) for token in line] for line in lines]
