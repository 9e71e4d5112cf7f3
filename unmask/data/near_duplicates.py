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
import io
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from unmask.core import hashing
from unmask.core.compiled import compiled
from unmask.core.hashing import GOLDEN, mix
from unmask.data.documents import PIECE_CHARS, TextPiece
from unmask.data.survey import text_hash

# ----------------------------------------
# Texts to hashes of their words, and these to MinHash signatures, sketches and clusters.
#
# Arrays: C = characters of some texts in a line; N = texts; W = their words; K = hash functions; B = bands.

Ints = NDArray[np.int64]
Codes = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

SHINGLE = 5  # words that make a shingle
ALONE = 1 << 24  # added to a folded character that is a word by itself
DIGIT = ord("0")
_PRIME = 1099511628211  # of FNV-1a
_SPREAD = np.uint32(2654435769)  # odd; its product's upper bits depend on all bits

# For one number, compiled from the same source.
mix_hash = cast(Callable[[int], int], compiled(cast(Any, hashing.mix)))


@compiled
def hash_words(codes_C: Codes, ends_N: Ints, folded: Codes) -> tuple[Ints, Ints, Ints]:
    """Hashes of the normal forms of texts, and of their words.

    Args:
        codes_C: Code points.
        ends_N: Where each text ends.
        folded: By code point, what it counts as: 0 stands between words, `DIGIT` is a digit. Those beyond the table
            are themselves.

    Returns:
        Of normal forms [N], of words [W], and where each text's words end [N]. A text without words counts as one
        word, as it is.
    """
    num_texts, table = len(ends_N), len(folded)
    normal_N = np.empty(num_texts, dtype=np.int64)
    word_ends_N = np.empty(num_texts, dtype=np.int64)
    words_W = np.empty(len(codes_C) + num_texts, dtype=np.int64)
    num_words, begin = 0, 0
    for text in range(num_texts):
        normal, word, before, first_word = GOLDEN, 0, 0, num_words
        for place in range(begin, ends_N[text] + 1):  # the end ends a word, too
            code = np.int64(codes_C[place]) if place < ends_N[text] else 0
            fold = np.int64(folded[code]) if code < table else code
            if fold != 0 and fold < ALONE:
                if fold != DIGIT or before != DIGIT:  # a number counts as one digit
                    word = ((GOLDEN if word == 0 else word) ^ fold) * _PRIME
            else:
                if word != 0:
                    words_W[num_words] = mix_hash(word)
                    normal = (normal ^ words_W[num_words]) * GOLDEN
                    num_words += 1
                    word = 0
                if fold != 0:
                    words_W[num_words] = mix_hash(fold)
                    normal = (normal ^ words_W[num_words]) * GOLDEN
                    num_words += 1
            before = fold
        if num_words == first_word:
            for place in range(begin, ends_N[text]):
                normal = (normal ^ np.int64(codes_C[place])) * _PRIME
            words_W[num_words] = mix_hash(normal)
            num_words += 1
        normal_N[text] = mix_hash(normal ^ ((normal >> 32) & 0xFFFFFFFF))
        word_ends_N[text] = num_words
        begin = ends_N[text]
    return normal_N, words_W[:num_words].copy(), word_ends_N


@compiled
def shingle(words_W: Ints, first: int, width: int) -> int:
    """The hash of `width` words in their order."""
    value = width
    for place in range(first, first + width):
        value = (value ^ words_W[place]) * GOLDEN
        value ^= (value >> 29) & 0x7FFFFFFFF
    return mix_hash(value)


@compiled
def sketch(words_W: Ints, begins_N: Ints, ends_N: Ints, most: int) -> tuple[Ints, Ints]:
    """The `most` smallest shingles of each text in their order, one text behind another, and where each text's end.

    The shingles of a text with fewer words than one has are its words.
    """
    found = np.empty(int((ends_N - begins_N).sum()), dtype=np.int64)
    sketch_ends_N = np.empty(len(begins_N), dtype=np.int64)
    end = 0
    for text in range(len(begins_N)):
        begin, number = end, 0
        width = SHINGLE if ends_N[text] - begins_N[text] >= SHINGLE else 1
        for first in range(begins_N[text], ends_N[text] - width + 1):
            found[begin + number] = shingle(words_W, first, width)
            number += 1
        found[begin : begin + number].sort()
        for place in range(begin, begin + number):
            if end == begin or (found[place] != found[end - 1] and end - begin < most):
                found[end] = found[place]
                end += 1
        sketch_ends_N[text] = end
    return found[:end].copy(), sketch_ends_N


@compiled
def hash_minima(
    words_W: Ints, begins_N: Ints, ends_N: Ints, factors_K: Codes, terms_K: Codes, num_bands: int, rows: int
) -> tuple[Ints, Bytes]:
    """MinHash signatures: bands, each as a hash of its minima and its number, and a byte of each minimum.

    Args:
        words_W: Hashes of words.
        begins_N, ends_N: Where each text's words begin and end.
        factors_K, terms_K: The hash functions: `factor * shingle + term` modulo 2^32, factors odd.
        num_bands: How many bands there are.
        rows: Minima of a band; those behind the bands are in none.

    Returns:
        Bands [N, B], and bytes [N, K]: two that are not of the same minimum are equal in 1 of 256 cases.
    """
    num_texts, num_hashes = len(begins_N), len(factors_K)
    bands_NB = np.empty((num_texts, num_bands), dtype=np.int64)
    bytes_NK = np.empty((num_texts, num_hashes), dtype=np.uint8)
    least_K = np.empty(num_hashes, dtype=np.uint32)
    for text in range(num_texts):
        least_K[:] = 0xFFFFFFFF
        width = SHINGLE if ends_N[text] - begins_N[text] >= SHINGLE else 1
        for first in range(begins_N[text], ends_N[text] - width + 1):
            low = np.uint32(shingle(words_W, first, width) & 0xFFFFFFFF)
            for k in range(num_hashes):
                least_K[k] = min(least_K[k], np.uint32(factors_K[k] * low + terms_K[k]))
        for k in range(num_hashes):
            bytes_NK[text, k] = np.uint32(least_K[k] * _SPREAD) >> np.uint32(24)
        for band in range(num_bands):
            value = band
            for k in range(band * rows, (band + 1) * rows):
                value = mix_hash(value + GOLDEN) + np.int64(least_K[k])
            bands_NB[text, band] = mix_hash(value)
    return bands_NB, bytes_NK


@compiled
def set_bits(bits: Bytes, values: Ints) -> None:
    """Puts hashes into a set of bits, of a power of two of bytes; changed in place."""
    mask = len(bits) * 8 - 1
    for value in values:
        place = value & mask
        bits[place >> 3] |= np.uint8(1 << (place & 7))


@compiled
def find_likely(words_W: Ints, ends_N: Ints, bits: NDArray[np.uint8], share: float) -> NDArray[np.bool_]:
    """Which texts have at least this share of their shingles, counted as often as they stand there, among those known.

    Args:
        words_W: Hashes of words.
        ends_N: Where each text's words end.
        bits: A power of two of bytes: the bits of the known shingles' hashes are set.
        share: In [0, 1].
    """
    likely_N = np.zeros(len(ends_N), dtype=np.bool_)
    mask, begin = len(bits) * 8 - 1, 0
    for text in range(len(ends_N)):
        width = SHINGLE if ends_N[text] - begin >= SHINGLE else 1
        last = ends_N[text] - width + 1
        may_miss = (1.0 - share) * (last - begin)
        missed = 0
        for first in range(begin, last):
            place = shingle(words_W, first, width) & mask
            missed += 1 - ((bits[place >> 3] >> (place & 7)) & 1)
            if missed > may_miss:
                break
        likely_N[text] = missed <= may_miss
        begin = ends_N[text]
    return likely_N


@compiled
def jaccard(one: Ints, other: Ints, most: int) -> float:
    """Jaccard similarity of two sets, each given by its `most` smallest members in their order.

    Exact where neither has so many; else that of the `most` smallest members of their union.
    """
    a, b, union, both = 0, 0, 0, 0
    if len(one) < most and len(other) < most:
        most = len(one) + len(other)
    while union < most and (a < len(one) or b < len(other)):
        union += 1
        if b == len(other) or (a < len(one) and one[a] < other[b]):
            a += 1
        elif a == len(one) or other[b] < one[a]:
            b += 1
        else:
            both += 1
            a += 1
            b += 1
    return both / union


@compiled
def join_alike(parent_N: Ints, values_N: Codes, order_N: Ints, bytes_NK: Bytes, least: int, most: int) -> None:
    """Joins clusters of members that have equal values and are alike; each is known by its smallest member.

    Args:
        parent_N: A member of the same cluster, smaller unless it is the smallest; changed in place.
        values_N: What makes two members worth comparing.
        order_N: An order of the members in which equal values stand together.
        bytes_NK: Two are alike if at least `least` of their bytes agree.
        least: See above.
        most: How many before it in the order a member is compared with.
    """
    begin = 0
    for place in range(1, len(order_N)):
        if values_N[order_N[place]] != values_N[order_N[place - 1]]:
            begin = place
        for before in range(place - 1, max(begin, place - most) - 1, -1):
            one, other = root_of(parent_N, order_N[place]), root_of(parent_N, order_N[before])
            if one == other:
                continue
            same = 0
            for k in range(bytes_NK.shape[1]):
                same += bytes_NK[order_N[place], k] == bytes_NK[order_N[before], k]
            if same >= least:
                parent_N[max(one, other)] = min(one, other)


@compiled
def root_of(parent_N: Ints, member: int) -> int:
    """The smallest member of a cluster."""
    while parent_N[member] != member:
        parent_N[member] = parent_N[parent_N[member]]
        member = parent_N[member]
    return member


@compiled
def all_roots(parent_N: Ints) -> Ints:
    """The smallest member of each one's cluster."""
    roots_N = np.empty(len(parent_N), dtype=np.int64)
    for member in range(len(parent_N)):
        roots_N[member] = root_of(parent_N, member)
    return roots_N


Ints_of_near_duplicates = NDArray[np.int64]

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

    normal: Ints_of_near_duplicates
    words: Ints_of_near_duplicates
    begins: Ints_of_near_duplicates
    ends: Ints_of_near_duplicates

    def bands(self, chosen: Ints_of_near_duplicates) -> Ints_of_near_duplicates:
        """[M, 16]: hashes of the bands of M chosen texts."""
        return self._minima(chosen, NUM_HASHES)[0]

    def signatures(self, chosen: Ints_of_near_duplicates) -> tuple[Ints_of_near_duplicates, NDArray[np.uint8]]:
        """[M, 16], the bands, and [M, 256], a byte of each minimum: of two texts' bytes about as many agree as the
        Jaccard similarity says, with a standard deviation of 0.025 at 0.8."""
        return self._minima(chosen, NUM_MINIMA)

    def _minima(
        self, chosen: Ints_of_near_duplicates, num_hashes: int
    ) -> tuple[Ints_of_near_duplicates, NDArray[np.uint8]]:
        factors, terms = (numbers[:num_hashes] for numbers in _hash_functions())
        begins, ends = self.begins[chosen], self.ends[chosen]
        return hash_minima(self.words, begins, ends, factors, terms, NUM_BANDS, NUM_HASHES // NUM_BANDS)

    def sketches(self, chosen: Ints_of_near_duplicates) -> list[Ints_of_near_duplicates]:
        """Of each chosen text the 1,024 smallest hashes of its shingles, in their order: all, where it has fewer."""
        found, ends = sketch(self.words, self.begins[chosen], self.ends[chosen], SKETCH)
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
    normal, words, word_ends = hash_words(codes, ends, folded)
    return HashedWords(normal, words, np.concatenate([[0], word_ends[:-1]]), word_ends)


def similarity(one: Ints_of_near_duplicates, other: Ints_of_near_duplicates) -> float:
    """Jaccard similarity of two texts by their sketches: exact where both have fewer than 1,024 shingles.

    Else it is an estimate from the 1,024 smallest that they have together. At 0.8 its standard deviation is 0.0125.
    """
    return jaccard(one, other, SKETCH)


@functools.cache
def _folded(num_codes: int) -> NDArray[np.uint32]:
    """By code point, what a character counts as in normal forms; see `unmask.data.near_duplicates.hash_words`."""
    return np.array([_fold(chr(code)) for code in range(num_codes)], dtype=np.uint32)


def _fold(character: str) -> int:
    category = unicodedata.category(character)
    if category == "Nd":
        return DIGIT
    if category[0] in "ZCP" or category in ("Sm", "Sc", "Sk"):
        return 0
    if category == "Lo" and unicodedata.name(character, "").startswith(_NAMES_OF_WORDS):
        return ALONE + ord(character)
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


# ----------------------------------------
# The held-out texts of a corpus, remembered so that training texts can be compared with them.
#
# Memory is bounded: 20,000 different texts at the most are remembered, chosen by a hash, with 8 KiB each at the most.
# What was remembered of several parts of a corpus joins to what would be of all of it, so it can be gathered in pieces.

MOST_TEXTS = 20_000
SHOWN_CHARS = 80
BATCH_CHARS = 1 << 20
BATCH_TEXTS = 1 << 14


class TextBatch:
    """Texts until there are enough for loops over them to be worth calling."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._num_chars = 0

    def add(self, text: str) -> bool:
        """Takes the beginning of a text, as much as a piece may have; whether it is full now."""
        self._texts.append(text[:PIECE_CHARS])
        self._num_chars += len(text)
        return self._num_chars >= BATCH_CHARS or len(self._texts) >= BATCH_TEXTS

    def take(self) -> list[str]:
        """What is in it, which leaves it."""
        texts, self._texts, self._num_chars = self._texts, [], 0
        return texts


@dataclass(slots=True)
class HeldText:
    """A text that is held out.

    Attributes:
        beginning: Its first characters.
        normal: Hash of its normal form.
        number: How often it is held out.
    """

    beginning: str
    normal: int
    number: int = 1


class HeldTexts:
    """The held-out texts, each once; of many those with the smallest hashes, whatever their order.

    Args:
        parts: Whether parts of documents are held out, so that each piece counts and not the first alone.

    Attributes:
        number: How many there are.
        is_cut: Whether a piece among them is not a whole document.
        texts: By hash.
        sketches: By normal form, the smallest hashes of its shingles.
        bands: By normal form.
    """

    def __init__(self, *, parts: bool) -> None:
        self.parts = parts
        self.number = 0
        self.is_cut = False
        self.texts: dict[int, HeldText] = {}
        self.sketches: dict[int, Ints_of_near_duplicates] = {}
        self.bands: dict[int, Ints_of_near_duplicates] = {}
        self._most_rank = 1 << 64

    def collect(self, pieces: Iterable[tuple[TextPiece, bool]]) -> Iterator[tuple[TextPiece, bool]]:
        """Hands pieces through, each with whether it is held out, and remembers those that are."""
        batch = TextBatch()
        for piece, held in pieces:
            if held and (self.parts or piece.offset == 0):
                self.is_cut |= piece.offset > 0 or not piece.last
                if batch.add(piece.text):
                    self.add(batch.take())
            yield piece, held
        if texts := batch.take():
            self.add(texts)
        self._cut()

    def add(self, texts: list[str]) -> None:
        """Remembers some."""
        self.number += len(texts)
        new = []
        for text in texts:
            rank = text_hash(text)
            if rank in self.texts:
                self.texts[rank].number += 1
            elif rank <= self._most_rank:
                self.texts[rank] = HeldText(text[:SHOWN_CHARS], 0)
                new.append((rank, text))
        if new:
            self._remember(new)
        if len(self.texts) > 2 * MOST_TEXTS:
            self._cut()

    def _remember(self, new: list[tuple[int, str]]) -> None:
        words = to_words([text for _, text in new])
        forms = words.normal.tolist()
        for (rank, _), form in zip(new, forms, strict=True):
            self.texts[rank].normal = form
        firsts = {form: text for text, form in enumerate(forms) if form not in self.sketches}
        if firsts:
            chosen = np.array(list(firsts.values()), dtype=np.int64)
            self.sketches.update(zip(firsts, words.sketches(chosen), strict=True))
            self.bands.update(zip(firsts, map(np.copy, words.bands(chosen)), strict=True))

    def join(self, other: HeldTexts) -> None:
        """Takes what another has remembered, of text that comes later."""
        self.number += other.number
        self.is_cut |= other.is_cut
        for rank, text in other.texts.items():
            if rank in self.texts:
                self.texts[rank].number += text.number
            else:
                self.texts[rank] = HeldText(text.beginning, text.normal, text.number)
        self.sketches |= other.sketches
        self.bands |= other.bands
        self._most_rank = min(self._most_rank, other._most_rank)
        self._cut()

    def _cut(self) -> None:
        """Leaves the texts of the smallest ranks: none that some part has not remembered."""
        ranks = sorted(rank for rank in self.texts if rank <= self._most_rank)
        if len(ranks) > MOST_TEXTS:
            del ranks[MOST_TEXTS:]
            self._most_rank = ranks[-1]
        if len(ranks) == len(self.texts):
            return
        self.texts = {rank: self.texts[rank] for rank in ranks}
        forms = {text.normal for text in self.texts.values()}
        self.sketches = {form: sketch for form, sketch in self.sketches.items() if form in forms}
        self.bands = {form: bands for form, bands in self.bands.items() if form in forms}

    def arrays(self) -> dict[str, Any]:
        """All of it as arrays, in an order of their own: equal texts, whoever read them in which order, give equal
        ones."""
        ranks, forms = sorted(self.texts), sorted(self.bands)
        texts = [self.texts[rank] for rank in ranks]
        sketches = [self.sketches[form] for form in forms]
        facts = [self.parts, self.number, self.is_cut, self._most_rank, [text.beginning for text in texts]]
        return {
            "held": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
            "rank": np.array(ranks, dtype=np.uint64),
            "normal": np.array([text.normal for text in texts], dtype=np.int64),
            "number": np.array([text.number for text in texts], dtype=np.int64),
            "form": np.array(forms, dtype=np.int64),
            "bands": self.table(),
            "sketches": np.concatenate([np.zeros(0, dtype=np.int64), *sketches]),
            "sketch_ends": np.cumsum([len(sketch) for sketch in sketches], dtype=np.int64),
        }

    def table(self) -> Ints_of_near_duplicates:
        """[forms, 16]: the bands, in the order of the forms."""
        return np.array([self.bands[form] for form in sorted(self.bands)], dtype=np.int64).reshape(-1, NUM_BANDS)


def held_texts(arrays: Any) -> HeldTexts:
    """Reads what `HeldTexts.arrays` gave."""
    parts, number, is_cut, most_rank, beginnings = json.loads(bytes(arrays["held"]))
    found = HeldTexts(parts=parts)
    found.number, found.is_cut, found._most_rank = number, is_cut, most_rank
    columns = (arrays[name].tolist() for name in ("rank", "normal", "number"))
    for beginning, rank, normal, times in zip(beginnings, *columns, strict=True):
        found.texts[rank] = HeldText(beginning, normal, times)
    forms = arrays["form"].tolist()
    found.sketches = (
        dict(zip(forms, np.split(arrays["sketches"], arrays["sketch_ends"][:-1]), strict=True)) if forms else {}
    )
    found.bands = dict(zip(forms, arrays["bands"], strict=True))
    return found


def packed(arrays: dict[str, Any]) -> bytes:
    """Arrays as the bytes of a file of numpy's; equal arrays, equal bytes."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


# ----------------------------------------
# Near-duplicates between held-out and training text, found while the training text goes by.
#
#     a pass over the corpus ──▶ HeldTexts: what is held out, from each task, joined
#     another                ──▶ LeakSearch, one a task: each training text against these ──▶ FoundLeaks
#                                the leaks of all tasks, in their order ──▶ NearDuplicates
#
# A search knows nothing of other tasks, so what it finds does not depend on who reads which.

MOST_CANDIDATES = 100  # of a band, that are compared with one text
MOST_COMPARED = 400  # with one text; those that share the rarest bands come first
KINDS: tuple[Kind, ...] = ("equal", "normalised", "similar")
_LIKELY = 0.5  # of the shingles of a text that is similar to a held-out one, so many are held out, unless some repeat
_BITS_A_SHINGLE = 16
_LEAST_BYTES, _MOST_BYTES = 1 << 13, 1 << 26


class HeldIndex:
    """Held-out texts by their normal forms and bands.

    Args:
        held: All of them.
    """

    def __init__(self, held: HeldTexts) -> None:
        self.held = held
        self.forms = np.array(sorted(held.sketches), dtype=np.int64)
        bands = held.table().ravel()
        order = np.argsort(bands, kind="stable")  # of all bands of all forms
        self.bands, self.begins = np.unique(bands[order], return_index=True)
        self.ends = np.append(self.begins[1:], len(bands))
        self._form_of_band = order // NUM_BANDS

    @cached_property
    def bits(self) -> NDArray[np.uint8]:
        """All shingles, as `find_likely` takes them."""
        return _bits(self.held.sketches.values())

    def forms_with(self, band: int) -> list[int]:
        """The forms that have a band, by its number."""
        return self.forms[self._form_of_band[self.begins[band] : self.ends[band]]].tolist()


@dataclass
class FoundLeaks:
    """What of the held-out text was found in some training text, each with the beginning of the first that it was in.

    Attributes:
        equal: By hash of the held-out text.
        normalised: By normal form.
        similar: By normal form.
    """

    equal: dict[int, str] = field(default_factory=dict)
    normalised: dict[int, str] = field(default_factory=dict)
    similar: dict[int, str] = field(default_factory=dict)

    def join(self, later: FoundLeaks) -> None:
        """Takes what was found in text that comes later."""
        for mine, others in zip(vars(self).values(), vars(later).values(), strict=True):
            for key, text in others.items():
                mine.setdefault(key, text)

    def plain(self) -> list[list[list[Any]]]:
        """For JSON."""
        return [[[key, text] for key, text in kind.items()] for kind in vars(self).values()]


def found_leaks(content: Any) -> FoundLeaks:
    """Reads what `FoundLeaks.plain` gave."""
    return FoundLeaks(*({int(key): str(text) for key, text in kind} for kind in content))


class LeakSearch:
    """Compares training texts, as they go by, with what is held out.

    Args:
        index: Of what is held out.
        every: Whether each training text that is like a held-out one is wanted; else a held-out text for which one was
            found is not compared any more.

    Attributes:
        found: What came out.
    """

    def __init__(self, index: HeldIndex, *, every: bool = False) -> None:
        self.index, self.every = index, every
        self.found = FoundLeaks()
        self._buckets: dict[int, list[int]] = {}  # forms by number of the band, of those that were met

    def look(self, texts: Sequence[str], held: NDArray[np.bool_], offset: Ints_of_near_duplicates) -> NDArray[np.bool_]:
        """Compares the next stretch of text.

        Args:
            texts: Of the pieces.
            held: [num_pieces]: whether each is held out.
            offset: [num_pieces]: byte of the document at which each begins.

        Returns:
            [num_pieces]: which training texts are near-duplicates; all of them only where `every` was asked for.
        """
        leaks = np.zeros(len(texts), dtype=np.bool_)
        if not len(self.index.forms):
            return leaks
        chosen = np.flatnonzero(~held if self.index.held.parts else ~held & (offset == 0)).tolist()
        for places, batch in _batches(texts, chosen):
            leaks[places] = self._look_for(batch)
        return leaks

    def _look_for(self, texts: list[str]) -> NDArray[np.bool_]:
        index, words = self.index, to_words(texts)
        place = np.searchsorted(index.forms, words.normal).clip(max=len(index.forms) - 1)
        same = index.forms[place] == words.normal
        for text in np.flatnonzero(same).tolist():
            beginning = texts[text][:SHOWN_CHARS]
            if (rank := text_hash(texts[text])) in index.held.texts:
                self.found.equal.setdefault(rank, beginning)
            self.found.normalised.setdefault(int(words.normal[text]), beginning)
        likely = find_likely(words.words, words.ends, index.bits, _LIKELY)
        likely |= words.ends - words.begins > SKETCH  # of longer ones the sketches do not hold all shingles
        rows = np.flatnonzero(likely & ~same)
        rows = rows[np.unique(words.normal[rows], return_index=True)[1]]
        rows.sort()
        bands = words.bands(rows)
        number = np.searchsorted(index.bands, bands).clip(max=len(index.bands) - 1)
        shared = index.bands[number] == bands
        alike = []
        for row in np.flatnonzero(shared.any(axis=1)).tolist():
            text = int(rows[row])
            if self._compare(words, text, number[row, shared[row]], texts[text]):
                alike.append(int(words.normal[text]))
        return same | np.isin(words.normal, alike) if alike else same

    def _compare(self, words: HashedWords, text: int, bands: Ints_of_near_duplicates, content: str) -> bool:
        """Looks at the held-out texts that share a band, rare bands first; whether one of them is similar."""
        met: set[int] = set()
        sketch: Ints_of_near_duplicates | None = None
        alike = False
        sizes = self.index.ends[bands] - self.index.begins[bands]
        for band in bands[np.argsort(sizes, kind="stable")].tolist():
            for form in self._open(band):
                if form in met:
                    continue
                if len(met) == MOST_COMPARED:
                    return alike
                met.add(form)
                sketch = words.sketches(np.array([text]))[0] if sketch is None else sketch
                if similarity(sketch, self.index.held.sketches[form]) >= SIMILAR:
                    self.found.similar.setdefault(form, content[:SHOWN_CHARS])
                    alike = True
        return alike

    def _open(self, band: int) -> list[int]:
        """Some forms with a band, but for `every` those for which nothing was found. The others leave, so each is met
        once."""
        bucket = self._buckets.get(band)
        if bucket is None:
            bucket = self._buckets[band] = self.index.forms_with(band)
        place = 0
        while not self.every and place < min(MOST_CANDIDATES, len(bucket)):
            if bucket[place] in self.found.normalised or bucket[place] in self.found.similar:
                bucket[place] = bucket[-1]
                bucket.pop()
            else:
                place += 1
        return bucket[:MOST_CANDIDATES]


def _batches(texts: Sequence[str], chosen: list[int]) -> Iterator[tuple[list[int], list[str]]]:
    batch, places = TextBatch(), []
    for place in chosen:
        places.append(place)
        if batch.add(texts[place]):
            yield places, batch.take()
            places = []
    if places:
        yield places, batch.take()


def near_duplicates(held: HeldTexts, found: FoundLeaks, *, left_out: int = 0) -> NearDuplicates:
    """The figures, and a pair to show.

    Args:
        held: What is held out.
        found: What of it was found in the training text.
        left_out: Training texts that were left out for it.
    """
    numbers: Counter[Kind] = Counter()
    examples: dict[Kind, DuplicateExample] = {}
    for rank, text in sorted(held.texts.items()):
        kinds = {
            "equal": found.equal.get(rank),
            "normalised": found.normalised.get(text.normal),
            "similar": found.similar.get(text.normal),
        }
        kind = next((kind for kind in KINDS if kinds[kind] is not None), None)
        if kind is not None:
            numbers[kind] += text.number
            examples.setdefault(kind, DuplicateExample(kind, text.beginning, kinds[kind] or ""))
    most = max(KINDS, key=lambda kind: numbers[kind])
    return NearDuplicates(
        "parts" if held.parts and held.is_cut else "documents",
        held.number,
        sum(text.number for text in held.texts.values()),
        equal=numbers["equal"],
        normalised=numbers["normalised"],
        similar=numbers["similar"],
        example=examples.get(most),
        left_out=left_out,
    )


def _bits(sketches: Collection[Ints_of_near_duplicates]) -> NDArray[np.uint8]:
    """A set of shingles in a few bits each: what is in it is found, and one in 16 or so of what is not."""
    number = sum(map(len, sketches))
    num_bytes = _LEAST_BYTES
    while num_bytes * 8 < number * _BITS_A_SHINGLE and num_bytes < _MOST_BYTES:
        num_bytes *= 2
    bits = np.zeros(num_bytes, dtype=np.uint8)
    for sketch in sketches:
        set_bits(bits, sketch)
    return bits
