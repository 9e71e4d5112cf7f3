"""What tells near-duplicates apart from other texts, in a few numbers a text.

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

import functools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.kernels import words as kernels
from unmask.hashing import GOLDEN, mix

Ints = NDArray[np.int64]

NUM_HASHES, NUM_BANDS = 128, 16
NUM_MINIMA = 256  # of a signature: those of the bands, and as many more
SKETCH = 1024
_FEW_CODES, _MANY_CODES = 0x3000, 0x32000  # behind the first come ideographs, behind the second hardly any letters
_NAMES_OF_WORDS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


@dataclass(frozen=True)
class Words:
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
        return kernels.hash_minima(self.words, begins, ends, factors, terms, NUM_BANDS, NUM_HASHES // NUM_BANDS)

    def sketches(self, chosen: Ints) -> list[Ints]:
        """Of each chosen text the 1,024 smallest hashes of its shingles, in their order: all, where it has fewer."""
        found, ends = kernels.sketch(self.words, self.begins[chosen], self.ends[chosen], SKETCH)
        begins = [0, *ends[:-1].tolist()]
        return [found[begin:end].copy() for begin, end in zip(begins, ends.tolist(), strict=True)]


def to_words(texts: Sequence[str]) -> Words:
    """Finds the words of texts.

    Args:
        texts: At least one.
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    folded = _folded(_MANY_CODES if len(codes) and codes.max() >= _FEW_CODES else _FEW_CODES)
    normal, words, word_ends = kernels.hash_words(codes, ends, folded)
    return Words(normal, words, np.concatenate([[0], word_ends[:-1]]), word_ends)


def similarity(one: Ints, other: Ints) -> float:
    """Jaccard similarity of two texts by their sketches: exact where both have fewer than 1,024 shingles.

    Else it is an estimate from the 1,024 smallest that they have together. At 0.8 its standard deviation is 0.0125.
    """
    return kernels.jaccard(one, other, SKETCH)


@functools.cache
def _folded(num_codes: int) -> NDArray[np.uint32]:
    """By code point, what a character counts as in normal forms; see `kernels.words.hash_words`."""
    return np.array([_fold(chr(code)) for code in range(num_codes)], dtype=np.uint32)


def _fold(character: str) -> int:
    category = unicodedata.category(character)
    if category == "Nd":
        return kernels.DIGIT
    if category[0] in "ZCP" or category in ("Sm", "Sc", "Sk"):
        return 0
    if category == "Lo" and unicodedata.name(character, "").startswith(_NAMES_OF_WORDS):
        return kernels.ALONE + ord(character)
    return ord(character.lower()[0])


@functools.cache
def _hash_functions() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    counters = np.arange(1, 2 * NUM_MINIMA + 1, dtype=np.int64) * np.int64(GOLDEN)
    numbers = (mix(counters) & 0xFFFFFFFF).astype(np.uint32)
    return numbers[:NUM_MINIMA] | np.uint32(1), numbers[NUM_MINIMA:]
