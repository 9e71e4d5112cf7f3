"""What filling gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A token that may stand at a mask."""

    token: str
    token_id: int
    probability: float


@dataclass(frozen=True)
class Word:
    """A word of one or several tokens that may stand at a mask.

    Attributes:
        text: The word.
        tokens, token_ids: Its pieces.
        probability: Of its pieces in turn, each given the ones before it (chain rule), with as many masks in place.
        score: The mean of the pieces' log-probabilities, by which words of unequal numbers of pieces are compared.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    probability: float
    score: float


@dataclass(frozen=True)
class Filling:
    """One choice for all masks of a text.

    Attributes:
        tokens: A token for each mask, in order; where words were asked for, a word.
        text: The text with them in place, and all else in it as it was given.
        probability: Of the choice, each mask filled in turn given those that were filled before it (chain rule).
    """

    tokens: tuple[str, ...]
    text: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """The result for a text.

    Attributes:
        masks: For each mask in order its candidates, the likeliest first, each mask looked at alone: what
            transformers' fill-mask pipeline gives. Where candidates were given, those of them that are one token.
        fillings: The likeliest choices for all masks together; empty where none were asked for.
        words: For each mask words of one or several tokens, the best first; None where single tokens were asked for, as
            by candidates that are one token each, spelled as at this text's masks.
    """

    masks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...]
    words: tuple[tuple[Word, ...], ...] | None = None
