"""What filling gives, and the two spellings of a word where a vocabulary marks the space before it.

In such vocabularies a word is spelled with this space, or without:

                      The king of [MASK] sees     [MASK] sees, ([MASK] sees
    byte-level BPE    ĠParis                      Paris
    Unigram           ▁Paris                      Paris, but ▁Paris where a text begins

Elsewhere (WordPiece, characters) there is one, which stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Generic, TypeVar

import numpy as np

from unmask.results import Readable, Sheet, Shown, legible
from unmask.tokenizer.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class WordSpellings(Generic[T]):
    """Something that words of both spellings have.

    Attributes:
        spaced: That of words which carry the space before them.
        bare: That of words which do not.
    """

    spaced: T
    bare: T

    def of(self, spaced: bool | np.bool_) -> T:
        """That of one of them."""
        return self.spaced if spaced else self.bare


def marks_spaces(tokenizer: Tokenizer) -> bool:
    """Whether tokens carry the space before a word, so that there are two spellings."""
    return tokenizer.word_starts.spelling.family in ("byte_level", "metaspace")


def begins_spaced(tokenizer: Tokenizer) -> bool:
    """Whether the first word of a text is spelled as if a space stood before it, where tokens mark spaces."""
    ids = map(int, np.flatnonzero(tokenizer.ordinary))
    words = (tokenizer.text(id_).strip() for id_ in ids if tokenizer.space_before(id_))
    if (word := next(filter(None, words), None)) is None:
        return False
    first = tokenizer.encode_corpus([word])[0].input_ids[:1].tolist()
    return any(tokenizer.space_before(id_) for id_ in first)


@dataclass(frozen=True)
class Candidate:
    """A token that may stand at a mask.

    Attributes:
        token, token_id: As the vocabulary has it.
        probability: At this mask.
        text: What it stands for, without the marks of its family.
    """

    token: str
    token_id: int
    probability: float
    text: str = ""


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


@dataclass(frozen=True, repr=False)
class Filled(Readable):
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

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        found: dict[str, Any] = {
            "masks": [{"candidates": [_plain(candidate) for candidate in mask]} for mask in self.masks],
            "fillings": [asdict(filling) for filling in self.fillings],
        }
        return found if self.words is None else found | {"words": [[asdict(w) for w in words] for words in self.words]}

    def shown(self) -> Iterator[Shown]:
        """A line a rank, a column a mask; and the likeliest choices for all masks together."""
        places: Sequence[Sequence[tuple[str, float]]]
        if self.words is None:
            places = [[(legible(each.text or each.token), each.probability) for each in mask] for mask in self.masks]
        else:
            places = [[(legible(each.text), each.probability) for each in words] for words in self.words]
        several = len(places) > 1
        heads = (head for n in range(1, len(places) + 1) for head in (f"mask {n}" if several else "mask", ">"))
        columns = [[(text, f"{share:.1%}") for text, share in place] for place in places]
        lines = zip_longest(*columns, fillvalue=("", ""))  # masks may have unequal numbers of candidates
        yield Sheet(
            ("", *heads), [(f"{rank}", *(c for cells in line for c in cells)) for rank, line in enumerate(lines, 1)]
        )
        if several and self.fillings:
            yield "\ntogether:"
            yield from (f"{filling.probability:7.2%}  {filling.text}" for filling in self.fillings)


def _plain(candidate: Candidate) -> dict[str, Any]:
    return {"token": candidate.token, "token_id": candidate.token_id, "probability": candidate.probability}
