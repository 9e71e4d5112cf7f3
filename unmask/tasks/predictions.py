"""What a fine-tuned model says of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassPrediction:
    """Of a text's class.

    Attributes:
        label: The likeliest class.
        probability: Its probability.
        probabilities: Of all classes.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class NumberPrediction:
    """Of a text's number."""

    value: float


@dataclass(frozen=True)
class TagsPrediction:
    """Of the tags of a sentence.

    Attributes:
        words: As they were given.
        tags: The likeliest tag of each; None for words without any token.
        probabilities: Of these tags.
    """

    words: tuple[str, ...]
    tags: tuple[str | None, ...]
    probabilities: tuple[float | None, ...]


@dataclass(frozen=True)
class AnswerPrediction:
    """Of the answer to a question.

    Attributes:
        id: The question's.
        answer: A stretch of the text; empty: the text holds no answer.
        begin: Its first character in the text; None where there is no answer.
        probability: Among all stretches of the text that were looked at, each once, and no answer, where the model may
            find that.
    """

    id: str
    answer: str
    begin: int | None
    probability: float


Prediction = ClassPrediction | NumberPrediction | TagsPrediction | AnswerPrediction
