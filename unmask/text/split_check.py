"""Near-duplicates between held-out and training text, found while the training text goes by.

    a pass over the corpus ──▶ HeldTexts: what is held out, from each task, joined
    another                ──▶ LeakSearch, one a task: each training text against these ──▶ FoundLeaks
                               the leaks of all tasks, in their order ──▶ NearDuplicates

A search knows nothing of other tasks, so what it finds does not depend on who reads which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.text.fingerprint_loops import find_likely, set_bits
from unmask.text.held_texts import SHOWN_CHARS, HeldTexts, TextBatch
from unmask.text.near_duplicates import (
    NUM_BANDS,
    SIMILAR,
    SKETCH,
    DuplicateExample,
    HashedWords,
    Ints,
    Kind,
    NearDuplicates,
    similarity,
    to_words,
)
from unmask.text.survey import text_hash

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

    def look(self, texts: Sequence[str], held: NDArray[np.bool_], offset: Ints) -> NDArray[np.bool_]:
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

    def _compare(self, words: HashedWords, text: int, bands: Ints, content: str) -> bool:
        """Looks at the held-out texts that share a band, rare bands first; whether one of them is similar."""
        met: set[int] = set()
        sketch: Ints | None = None
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


def _bits(sketches: Collection[Ints]) -> NDArray[np.uint8]:
    """A set of shingles in a few bits each: what is in it is found, and one in 16 or so of what is not."""
    number = sum(map(len, sketches))
    num_bytes = _LEAST_BYTES
    while num_bytes * 8 < number * _BITS_A_SHINGLE and num_bytes < _MOST_BYTES:
        num_bytes *= 2
    bits = np.zeros(num_bytes, dtype=np.uint8)
    for sketch in sketches:
        set_bits(bits, sketch)
    return bits
