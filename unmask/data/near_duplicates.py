"""Near-duplicates: signatures of texts, and training texts that nearly stand in the held-out text.

The normal form of a text is its words in lower case, each number as one digit, without white space, punctuation and
signs. Ideographs, kana and letters of scripts without spaces are words by themselves. Texts are also sets of
*shingles*, five words in a row (single words, where there are fewer), compared by their Jaccard similarity: the size of
the intersection divided by that of the union. Pairs that may be similar are found by MinHash: the minima of 128 hash
functions in 16 bands of 8; two texts share a band with a probability of 0.06 at a similarity of 0.5, of 0.61 at 0.7, of
0.95 at 0.8 and of 0.9999 at 0.9.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.hashing import GOLDEN, mix
from unmask.data.documents import PIECE_CHARS, Document
from unmask.data.near_duplicate_loops import (
    ALONE,
    DIGIT,
    Bytes,
    Ints,
    find_likely,
    hash_minima,
    hash_words,
    jaccard,
    set_bits,
    sketch,
)
from unmask.data.survey import text_hash

NUM_HASHES, NUM_BANDS = 128, 16
NUM_MINIMA = 256  # of a signature: those of the bands, and as many more
SKETCH = 1024
SIMILAR = 0.8
WORTH_A_WARNING = 0.01
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

    def signatures(self, chosen: Ints) -> tuple[Ints, Bytes]:
        """[M, 16], the bands, and [M, 256], a byte of each minimum: of two texts' bytes about as many agree as the
        Jaccard similarity says, with a standard deviation of 0.025 at 0.8."""
        return self._minima(chosen, NUM_MINIMA)

    def _minima(self, chosen: Ints, num_hashes: int) -> tuple[Ints, Bytes]:
        factors, terms = (numbers[:num_hashes] for numbers in _hash_functions())
        begins, ends = self.begins[chosen], self.ends[chosen]
        return hash_minima(self.words, begins, ends, factors, terms, NUM_BANDS, NUM_HASHES // NUM_BANDS)

    def sketches(self, chosen: Ints) -> list[Ints]:
        """Of each chosen text the 1,024 smallest hashes of its shingles, in their order: all, where it has fewer."""
        hashes, ends = sketch(self.words, self.begins[chosen], self.ends[chosen], SKETCH)
        begins = [0, *ends[:-1].tolist()]
        return [hashes[begin:end].copy() for begin, end in zip(begins, ends.tolist(), strict=True)]


def to_words(texts: Sequence[str]) -> HashedWords:
    """Finds the words of texts, of one at the least."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    folded = _folded(_MANY_CODES if len(codes) and codes.max() >= _FEW_CODES else _FEW_CODES)
    normal, words, word_ends = hash_words(codes, ends, folded)
    return HashedWords(normal, words, np.concatenate([[0], word_ends[:-1]]), word_ends)


def similarity(one: Ints, other: Ints) -> float:
    """Jaccard similarity of two texts by their sketches: exact where both have fewer than 1,024 shingles.

    Else it is an estimate from the 1,024 smallest that they have together. At 0.8 its standard deviation is 0.0125.
    """
    return jaccard(one, other, SKETCH)


@functools.cache
def _folded(num_codes: int) -> NDArray[np.uint32]:
    """By code point, what a character counts as in normal forms; see `hash_words`."""

    def fold(character: str) -> int:
        category = unicodedata.category(character)
        if category == "Nd":
            return DIGIT
        if category[0] in "ZCP" or category in ("Sm", "Sc", "Sk"):
            return 0
        if category == "Lo" and unicodedata.name(character, "").startswith(_NAMES_OF_WORDS):
            return ALONE + ord(character)
        return ord(character.lower()[0])

    return np.array([fold(chr(code)) for code in range(num_codes)], dtype=np.uint32)


@functools.cache
def _hash_functions() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    counters = np.arange(1, 2 * NUM_MINIMA + 1, dtype=np.int64) * np.int64(GOLDEN)
    numbers = (mix(counters) & 0xFFFFFFFF).astype(np.uint32)
    return numbers[:NUM_MINIMA] | np.uint32(1), numbers[NUM_MINIMA:]


# ----------------------------------------
# What is reported

SameAs = Literal["equal", "normalised", "similar"]
KINDS: tuple[SameAs, ...] = ("equal", "normalised", "similar")


@dataclass(frozen=True)
class DuplicateExample:
    """A held-out text and one of the training text, by their beginnings, and how they are alike."""

    kind: SameAs
    held_out: str
    training: str


class LeftOutPair(NamedTuple):
    """A near-duplicate that was left out, and the earlier document that stays, by their beginnings."""

    left_out: str
    stays: str


@dataclass(frozen=True)
class NearDuplicates:
    """How much of the held-out text stands in the training text as well, or nearly so.

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
        counts = ", ".join(f"{count:,} {words}" for count, words in kinds if count)
        gone = f"; the {self.left_out:,} training {self.unit} were left out" if self.left_out else ""
        return f"{self.share:.1%} of {number} have a near-duplicate in the training text ({counts}){gone}"

    @property
    def sentence(self) -> str:
        """The figures as a sentence."""
        return f"{self.summary[:1].upper()}{self.summary[1:]}."

    def describe(self, *, way_out: bool) -> str:
        """One line for the log; `way_out`: whether there is a setting that keeps them on one side."""
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
    example = values.pop("example")
    return NearDuplicates(**values, example=None if example is None else DuplicateExample(**example))


# ----------------------------------------
# The held-out texts, remembered so that training texts can be compared with them.
#
#     survey of the corpus    -> HeldTexts of each task, joined
#     shards                  -> LeakSearch, one a task: each training text against these -> FoundLeaks
#     manifest                -> leaks of all tasks, joined in their order -> NearDuplicates
#
# A search knows nothing of other tasks, so its leaks do not depend on the number of workers. Memory is bounded: 20,000
# different texts at the most are remembered, chosen by a hash, with 8 KiB each at the most.

MOST_TEXTS = 20_000
SHOWN_CHARS = 80
BATCH_CHARS = 1 << 20
BATCH_TEXTS = 1 << 14


def _batches(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[list[int], list[str]]]:
    """Numbered texts, until there are enough for loops over them to be worth calling; of long ones the beginnings."""
    numbers: list[int] = []
    batch: list[str] = []
    num_chars = 0
    for number, text in texts:
        numbers.append(number)
        batch.append(text[:PIECE_CHARS])
        num_chars += len(text)
        if num_chars >= BATCH_CHARS or len(batch) >= BATCH_TEXTS:
            yield numbers, batch
            numbers, batch, num_chars = [], [], 0
    if batch:
        yield numbers, batch


@dataclass(slots=True)
class HeldText:
    """A held-out text: its first characters, the hash of its normal form, and how often it is held out."""

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
        self.sketches: dict[int, Ints] = {}
        self.bands: dict[int, Ints] = {}
        self._most_rank = 1 << 64

    def collect(self, pieces: Iterable[tuple[Document, bool]]) -> Iterator[tuple[Document, bool]]:
        """Hands pieces through, each with whether it is held out, and remembers those that are."""
        batch: list[str] = []
        num_chars = 0
        for piece, held in pieces:
            if held and (self.parts or piece.offset == 0):
                self.is_cut |= piece.offset > 0 or not piece.last
                batch.append(piece.text[:PIECE_CHARS])
                num_chars += len(piece.text)
                if num_chars >= BATCH_CHARS or len(batch) >= BATCH_TEXTS:
                    self._add(batch)
                    batch, num_chars = [], 0
            yield piece, held
        self._add(batch)
        self._cut()

    def _add(self, texts: list[str]) -> None:
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
            words = to_words([text for _, text in new])
            forms = words.normal.tolist()
            for (rank, _), form in zip(new, forms, strict=True):
                self.texts[rank].normal = form
            firsts = {form: text for text, form in enumerate(forms) if form not in self.sketches}
            if firsts:
                chosen = np.array(list(firsts.values()), dtype=np.int64)
                self.sketches.update(zip(firsts, words.sketches(chosen), strict=True))
                self.bands.update(zip(firsts, map(np.copy, words.bands(chosen)), strict=True))
        if len(self.texts) > 2 * MOST_TEXTS:
            self._cut()

    def join(self, other: HeldTexts) -> None:
        """Takes the texts of another, which come later."""
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
        """Leaves the texts of the smallest ranks: none that another part of the corpus has not remembered."""
        ranks = sorted(rank for rank in self.texts if rank <= self._most_rank)
        if len(ranks) > MOST_TEXTS:
            del ranks[MOST_TEXTS:]
            self._most_rank = ranks[-1]
        if len(ranks) < len(self.texts):
            self.texts = {rank: self.texts[rank] for rank in ranks}
            forms = {text.normal for text in self.texts.values()}
            self.sketches = {form: sketch for form, sketch in self.sketches.items() if form in forms}
            self.bands = {form: bands for form, bands in self.bands.items() if form in forms}

    def arrays(self) -> dict[str, Any]:
        """All of it as arrays, which are equal for equal texts in whatever order they were read."""
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

    def table(self) -> Ints:
        """[forms, 16]: the bands, in the order of the forms."""
        return np.array([self.bands[form] for form in sorted(self.bands)], dtype=np.int64).reshape(-1, NUM_BANDS)


def held_texts(arrays: Any) -> HeldTexts:
    """Reads what `HeldTexts.arrays` gave."""
    parts, number, is_cut, most_rank, beginnings = json.loads(bytes(arrays["held"]))
    held = HeldTexts(parts=parts)
    held.number, held.is_cut, held._most_rank = number, is_cut, most_rank
    columns = (arrays[name].tolist() for name in ("rank", "normal", "number"))
    for beginning, rank, normal, times in zip(beginnings, *columns, strict=True):
        held.texts[rank] = HeldText(beginning, normal, times)
    if forms := arrays["form"].tolist():
        held.sketches = dict(zip(forms, np.split(arrays["sketches"], arrays["sketch_ends"][:-1]), strict=True))
        held.bands = dict(zip(forms, arrays["bands"], strict=True))
    return held


def packed(arrays: dict[str, Any]) -> bytes:
    """Arrays as the bytes of a file of numpy's; equal arrays, equal bytes."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


# ----------------------------------------
# The search in the training text

MOST_CANDIDATES = 100  # of a band, that are compared with one text
MOST_COMPARED = 400  # with one text; those that share the rarest bands come first
_LIKELY = 0.5  # of the shingles of a text that is similar to a held-out one, so many are held out, unless some repeat
_BITS_A_SHINGLE = 16
_LEAST_BYTES, _MOST_BYTES = 1 << 13, 1 << 26


class HeldIndex:
    """Held-out texts by their normal forms and bands."""

    def __init__(self, held: HeldTexts) -> None:
        self.held = held
        self.forms = np.array(sorted(held.sketches), dtype=np.int64)
        bands = held.table().ravel()
        order = np.argsort(bands, kind="stable")  # of all bands of all forms
        self.bands, self.begins = np.unique(bands[order], return_index=True)
        self.ends = np.append(self.begins[1:], len(bands))
        self._form_of_band = order // NUM_BANDS

    @cached_property
    def bits(self) -> Bytes:
        """All shingles, as `find_likely` takes them: also one in 16 or so that is not among them counts as there."""
        number = sum(map(len, self.held.sketches.values()))
        num_bytes = _LEAST_BYTES
        while num_bytes * 8 < number * _BITS_A_SHINGLE and num_bytes < _MOST_BYTES:
            num_bytes *= 2
        bits = np.zeros(num_bytes, dtype=np.uint8)
        for hashes in self.held.sketches.values():
            set_bits(bits, hashes)
        return bits

    def forms_with(self, band: int) -> list[int]:
        """The forms that have a band, by its number."""
        return self.forms[self._form_of_band[self.begins[band] : self.ends[band]]].tolist()


@dataclass
class FoundLeaks:
    """Held-out texts that were found in a training text, each with the beginning of the first that it was in.

    Attributes:
        equal: By hash of the held-out text.
        normalised: By normal form.
        similar: By normal form.
    """

    equal: dict[int, str] = field(default_factory=dict)
    normalised: dict[int, str] = field(default_factory=dict)
    similar: dict[int, str] = field(default_factory=dict)

    def join(self, later: FoundLeaks) -> None:
        """Takes the leaks of text that comes later."""
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
        every: Whether each training text that is like a held-out one is reported; else a held-out text for which one
            was found is not compared any more.

    Attributes:
        found: The leaks.
    """

    def __init__(self, index: HeldIndex, *, every: bool = False) -> None:
        self.index, self.every = index, every
        self.found = FoundLeaks()
        self._buckets: dict[int, list[int]] = {}  # forms by number of the band, of those that were met

    def look(self, texts: Sequence[str], held: NDArray[np.bool_], offset: Ints) -> NDArray[np.bool_]:
        """Compares the next texts.

        Args:
            texts: Of the pieces.
            held: [num_pieces]: whether each is held out.
            offset: [num_pieces]: byte of the document at which each begins.

        Returns:
            [num_pieces]: which training texts are near-duplicates; all of them only with `every`.
        """
        leaks = np.zeros(len(texts), dtype=np.bool_)
        if len(self.index.forms):
            chosen = np.flatnonzero(~held if self.index.held.parts else ~held & (offset == 0)).tolist()
            for places, batch in _batches((place, texts[place]) for place in chosen):
                leaks[places] = self._look_for(batch)
        return leaks

    def _look_for(self, texts: list[str]) -> NDArray[np.bool_]:
        index, words = self.index, to_words(texts)
        # 1. equal to a held-out text, or equal but for numbers, case and signs
        place = np.searchsorted(index.forms, words.normal).clip(max=len(index.forms) - 1)
        same = index.forms[place] == words.normal
        for text in np.flatnonzero(same).tolist():
            beginning = texts[text][:SHOWN_CHARS]
            if (rank := text_hash(texts[text])) in index.held.texts:
                self.found.equal.setdefault(rank, beginning)
            self.found.normalised.setdefault(int(words.normal[text]), beginning)
        # 2. of the others those that may be similar, by a set of bits; each normal form once
        likely = find_likely(words.words, words.ends, index.bits, _LIKELY)
        likely |= words.ends - words.begins > SKETCH  # of longer ones the sketches do not hold all shingles
        rows = np.flatnonzero(likely & ~same)
        rows = rows[np.unique(words.normal[rows], return_index=True)[1]]
        rows.sort()
        # 3. of these those that share a band with a held-out text are compared with it
        bands = words.bands(rows)
        number = np.searchsorted(index.bands, bands).clip(max=len(index.bands) - 1)
        shared = index.bands[number] == bands
        alike = []
        for row in np.flatnonzero(shared.any(axis=1)).tolist():
            text = int(rows[row])
            if self._compare(words, text, number[row, shared[row]], texts[text]):
                alike.append(int(words.normal[text]))
        return same | np.isin(words.normal, alike) if alike else same

    def _compare(self, words: HashedWords, text: int, bands: Ints, content: str) -> bool:
        """Looks at the held-out texts that share a band, rare bands first; whether one of them is similar."""
        met: set[int] = set()
        own: Ints | None = None
        alike = False
        sizes = self.index.ends[bands] - self.index.begins[bands]
        for band in bands[np.argsort(sizes, kind="stable")].tolist():
            for form in self._open(band):
                if form in met:
                    continue
                if len(met) == MOST_COMPARED:
                    return alike
                met.add(form)
                own = words.sketches(np.array([text]))[0] if own is None else own
                if similarity(own, self.index.held.sketches[form]) >= SIMILAR:
                    self.found.similar.setdefault(form, content[:SHOWN_CHARS])
                    alike = True
        return alike

    def _open(self, band: int) -> list[int]:
        """Some forms with a band; without `every`, those for which a training text was found leave for good."""
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


def near_duplicates(held: HeldTexts, found: FoundLeaks, *, left_out: int = 0) -> NearDuplicates:
    """The figures, and a pair to show.

    Args:
        held: The held-out texts.
        found: Those that were found in the training text.
        left_out: Training texts that were left out for it.
    """
    numbers: Counter[SameAs] = Counter()
    examples: dict[SameAs, DuplicateExample] = {}
    for rank, text in sorted(held.texts.items()):
        leaks = (found.equal.get(rank), found.normalised.get(text.normal), found.similar.get(text.normal))
        kind, leak = next(
            ((kind, leak) for kind, leak in zip(KINDS, leaks, strict=True) if leak is not None), (None, "")
        )
        if kind is not None:
            numbers[kind] += text.number
            examples.setdefault(kind, DuplicateExample(kind, text.beginning, leak))
    return NearDuplicates(
        "parts" if held.parts and held.is_cut else "documents",
        held.number,
        sum(text.number for text in held.texts.values()),
        **{kind: numbers[kind] for kind in KINDS},
        example=examples.get(max(KINDS, key=lambda kind: numbers[kind])),
        left_out=left_out,
    )
