"""Near-duplicates: what tells them apart from other texts, in a few numbers a text, and what was found of them.

The normal form of a text is its words in lower case, each number as one digit, without white space, punctuation and
signs. Ideographs, kana and letters of scripts without spaces are words by themselves. Texts are also sets of
*shingles*, five words in a row (single words, where there are fewer), compared by their Jaccard similarity: what two
sets have in common, divided by what they have together. Pairs that may be similar are found by MinHash: the minima of
128 hash functions in 16 bands of 8; two texts share a band with a probability of 0.06 at a similarity of 0.5, of 0.61
at 0.7, of 0.95 at 0.8 and of 0.9999 at 0.9.

Source: Broder 1997; bands after Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4; five words as
in Lee et al. 2022 (arXiv:2107.06499, appendix A); bytes of minima after Li and Koenig 2010 (b-bit minwise hashing).
All of it is the same on every machine with the same edition of Unicode, which is that of the Python version
(`unicodedata.unidata_version`): a newer one knows more characters as letters, digits or signs.
"""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.hashing import GOLDEN, mix
from unmask.text import fingerprint_loops

Ints = NDArray[np.int64]

NUM_HASHES, NUM_BANDS = 128, 16
NUM_MINIMA = 256  # of a signature: those of the bands, and as many more
SKETCH = 1024
_FEW_CODES, _MANY_CODES = 0x3000, 0x32000  # behind the first come ideographs, behind the second hardly any letters
_NAMES_OF_WORDS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


@dataclass(frozen=True)
class HashedWords:
    """Some texts as words.

    Attributes:
        normal: [N], int64: hashes of the normal forms.
        words: [W], int64: hashes of the words, one text behind another.
        begins, ends: [N], int64: where each text's words begin and end; it has one at the least.
    """

    normal: Ints
    words: Ints
    begins: Ints
    ends: Ints

    def bands(self, chosen: Ints) -> Ints:
        """[M, 16]: hashes of the bands of M chosen texts."""
        return self._minima(chosen, NUM_HASHES)[0]

    def signatures(self, chosen: Ints) -> tuple[Ints, NDArray[np.uint8]]:
        """[M, 16], the bands, and [M, 256], a byte of each minimum: of two texts' bytes about as many agree as the
        Jaccard similarity says, with a standard deviation of 0.025 at 0.8."""
        return self._minima(chosen, NUM_MINIMA)

    def _minima(self, chosen: Ints, num_hashes: int) -> tuple[Ints, NDArray[np.uint8]]:
        factors, terms = (numbers[:num_hashes] for numbers in _hash_functions())
        begins, ends = self.begins[chosen], self.ends[chosen]
        return fingerprint_loops.hash_minima(
            self.words, begins, ends, factors, terms, NUM_BANDS, NUM_HASHES // NUM_BANDS
        )

    def sketches(self, chosen: Ints) -> list[Ints]:
        """Of each chosen text the 1,024 smallest hashes of its shingles, in their order: all, where it has fewer."""
        found, ends = fingerprint_loops.sketch(self.words, self.begins[chosen], self.ends[chosen], SKETCH)
        begins = [0, *ends[:-1].tolist()]
        return [found[begin:end].copy() for begin, end in zip(begins, ends.tolist(), strict=True)]


def to_words(texts: Sequence[str]) -> HashedWords:
    """Finds the words of texts.

    Args:
        texts: At least one.
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    folded = _folded(_MANY_CODES if len(codes) and codes.max() >= _FEW_CODES else _FEW_CODES)
    normal, words, word_ends = fingerprint_loops.hash_words(codes, ends, folded)
    return HashedWords(normal, words, np.concatenate([[0], word_ends[:-1]]), word_ends)


def similarity(one: Ints, other: Ints) -> float:
    """Jaccard similarity of two texts by their sketches: exact where both have fewer than 1,024 shingles.

    Else it is an estimate from the 1,024 smallest that they have together. At 0.8 its standard deviation is 0.0125.
    """
    return fingerprint_loops.jaccard(one, other, SKETCH)


@functools.cache
def _folded(num_codes: int) -> NDArray[np.uint32]:
    """By code point, what a character counts as in normal forms; see `unmask.text.fingerprint_loops.hash_words`."""
    return np.array([_fold(chr(code)) for code in range(num_codes)], dtype=np.uint32)


def _fold(character: str) -> int:
    category = unicodedata.category(character)
    if category == "Nd":
        return fingerprint_loops.DIGIT
    if category[0] in "ZCP" or category in ("Sm", "Sc", "Sk"):
        return 0
    if category == "Lo" and unicodedata.name(character, "").startswith(_NAMES_OF_WORDS):
        return fingerprint_loops.ALONE + ord(character)
    return ord(character.lower()[0])


@functools.cache
def _hash_functions() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    counters = np.arange(1, 2 * NUM_MINIMA + 1, dtype=np.int64) * np.int64(GOLDEN)
    numbers = (mix(counters) & 0xFFFFFFFF).astype(np.uint32)
    return numbers[:NUM_MINIMA] | np.uint32(1), numbers[NUM_MINIMA:]


Kind = Literal["equal", "normalised", "similar"]
SIMILAR = 0.8
WORTH_A_WARNING = 0.01


@dataclass(frozen=True)
class DuplicateExample:
    """A held-out text and one of the training text, by their beginnings.

    Attributes:
        kind: How they are alike.
        held_out: The held-out text.
        training: The other.
    """

    kind: Kind
    held_out: str
    training: str


class LeftOutPair(NamedTuple):
    """A document that was left out since it is a near-duplicate, and the earlier one that stays, by their beginnings.

    Attributes:
        left_out: The document.
        stays: The other.
    """

    left_out: str
    stays: str


@dataclass(frozen=True)
class NearDuplicates:
    """What of the held-out text stands in the training text as well, or nearly so; `unmask.text.split_check` finds it.

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
        left_out: Training texts that were left out since they nearly stand in the held-out text (`corpus.leaks`).
    """

    unit: Literal["documents", "parts"]
    held_out: int
    compared: int
    equal: int
    normalised: int
    similar: int
    example: DuplicateExample | None = None
    left_out: int = 0

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
        gone = f"; the {self.left_out:,} training {self.unit} were left out" if self.left_out else ""
        return f"{self.share:.1%} of {number} have a near-duplicate in the training text ({told}){gone}"

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
        if self.share < WORTH_A_WARNING or self.left_out:
            return line
        advice = "; --set corpus.leaks=drop leaves such training texts out"
        if way_out:
            advice += ", and --set corpus.holdout_groups=near_duplicates keeps such texts on one side"
        return f"warning: {line}{advice}"

    def plain(self) -> dict[str, Any]:
        """For JSON, with the share."""
        return {**dataclasses.asdict(self), "share": self.share}


def from_plain(content: Mapping[str, Any]) -> NearDuplicates:
    """Reads what `plain` gave."""
    values = {name: value for name, value in content.items() if name != "share"}
    example = values["example"]
    return NearDuplicates(**{**values, "example": None if example is None else DuplicateExample(**example)})
