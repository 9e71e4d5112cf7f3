"""What of the held-out text stands in the training text as well, or nearly so. `split_check` finds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["equal", "normalised", "similar"]
SIMILAR = 0.8
WORTH_A_WARNING = 0.01


@dataclass(frozen=True)
class Example:
    """A held-out text and one of the training text, by their beginnings.

    Attributes:
        kind: How they are alike.
        held_out: The held-out text.
        training: The other.
    """

    kind: Kind
    held_out: str
    training: str


@dataclass(frozen=True)
class NearDuplicates:
    """What of the held-out text stands in the training text as well, or nearly so.

    Attributes:
        unit: What is compared: whole `documents` (of long ones the first 262,144 characters), or `parts` of
            documents, where these are held out: part by part, so a passage that begins elsewhere in its part is found
            only if most of both parts is in it.
        held_out: How many of them are held out.
        compared: How many of these were looked at; the others are left to chance.
        equal: Those that are equal to a training text.
        normalised: Those that are not, but are equal but for case, numbers, white space, punctuation and signs.
        similar: Further ones whose five-word sequences have a Jaccard similarity of 0.8 at the least with those of a
            training text. About 1 in 20 of these at the very border is missed, 1 in 10,000 from 0.9 on.
        example: Of the most frequent kind; None where there is none.
    """

    unit: Literal["documents", "parts"]
    held_out: int
    compared: int
    equal: int
    normalised: int
    similar: int
    example: Example | None = None

    @property
    def share(self) -> float:
        """Share of the compared texts, in [0, 1]."""
        return (self.equal + self.normalised + self.similar) / max(self.compared, 1)

    @property
    def summary(self) -> str:
        """The figures in words."""
        if not self.compared:
            return f"no held-out {self.unit} were compared with the training text, since there are none"
        number = f"{self.compared:,} held-out {self.unit}"
        if self.compared < self.held_out:
            number = f"{self.compared:,} of the {self.held_out:,} held-out {self.unit}, chosen by a hash,"
        if not self.share:
            return f"none of {number} has a near-duplicate in the training text"
        kinds = (
            (self.equal, "equal"),
            (self.normalised, "equal but for numbers, case, white space or punctuation"),
            (self.similar, f"with a Jaccard similarity of {SIMILAR} or more"),
        )
        told = ", ".join(f"{count:,} {words}" for count, words in kinds if count)
        return f"{self.share:.1%} of {number} have a near-duplicate in the training text ({told})"

    @property
    def sentence(self) -> str:
        """The figures as a sentence."""
        return f"{self.summary[:1].upper()}{self.summary[1:]}."

    def describe(self, *, way_out: bool) -> str:
        """One line for the log.

        Args:
            way_out: Whether there is a setting that keeps them on one side.
        """
        line = self.summary
        if self.example is not None:
            line += f"; e.g. held out: {self.example.held_out!r}, training: {self.example.training!r}"
        if self.share < WORTH_A_WARNING:
            return line
        advice = "; --set corpus.holdout_groups=near_duplicates keeps such texts on one side" if way_out else ""
        return f"warning: {line}{advice}"

    def plain(self) -> dict[str, Any]:
        """For JSON, with the share."""
        return {**dataclasses.asdict(self), "share": self.share}


def from_plain(content: Mapping[str, Any]) -> NearDuplicates:
    """Reads what `plain` gave."""
    values = {name: value for name, value in content.items() if name != "share"}
    example = values["example"]
    return NearDuplicates(**{**values, "example": None if example is None else Example(**example)})
