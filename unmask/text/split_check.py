"""Near-duplicates between held-out and training text, found while the corpus goes by.

    a pass over the corpus ──▶ collect: fingerprints of what is held out
    another                ──▶ look:    each training text against these ──▶ NearDuplicates

Both passes are ones that preparation makes anyway, where it trains a tokenizer. Otherwise there is one only:

    a pass over the corpus ──▶ gather:  fingerprints of what is held out, and short ones of the training text
    another, where any fit ──▶ compare: the training texts whose short ones do ──▶ NearDuplicates

Memory is bounded: of held-out texts 20,000 different ones at the most are looked at, chosen by a hash, with 8 KiB each
at the most. A training text is remembered in 80 bytes, 4 million of them at the most; where there are more, all of them
are compared in the second pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.text.documents import PIECE_CHARS, TextPiece
from unmask.text.fingerprint_loops import find_likely, set_bits
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

MOST_TEXTS = 20_000
SHOWN_CHARS = 80
MOST_CANDIDATES = 100  # of a band, that are compared with one text
MOST_COMPARED = 400  # with one text; those that share the rarest bands come first
MOST_REMEMBERED = 4_000_000  # training texts
BATCH_CHARS = 1 << 20
BATCH_TEXTS = 1 << 14
KINDS: tuple[Kind, ...] = ("equal", "normalised", "similar")
_LIKELY = 0.5  # of the shingles of a text that is similar to a held-out one, so many are held out, unless some repeat
_BITS_A_SHINGLE = 16
_LEAST_BYTES, _MOST_BYTES = 1 << 13, 1 << 26
_SIEVE = 1 << 24
_ROW = np.dtype([("form", np.int64), ("hash", np.int64), ("bands", np.uint32, NUM_BANDS)])


class SplitCheck:
    """Looks at pieces that go by.

    Args:
        parts: Whether parts of documents are held out, so that each piece is compared and not the first alone.

    Attributes:
        is_collected: Whether a pass of `collect` came to its end.
    """

    def __init__(self, *, parts: bool) -> None:
        self.parts = parts
        self.is_collected = False
        self._held = _Held()
        self._training = _Training()
        self._index: _Index | None = None
        self._cut = False  # whether a held-out piece is not a whole document
        self._last_held = False

    def collect(self, pieces: Iterable[tuple[TextPiece, bool]]) -> Iterator[tuple[TextPiece, bool]]:
        """Hands pieces through and remembers the held-out ones; begins anew where an earlier pass was not ended."""
        if self.is_collected:
            yield from pieces
            return
        self._held, batch = _Held(), _Batch()
        for piece, held in pieces:
            if held and (self.parts or piece.offset == 0):
                self._cut |= piece.offset > 0 or not piece.last
                if batch.add(piece.text):
                    self._held.add(batch.take())
            yield piece, held
        if texts := batch.take():
            self._held.add(texts)
        self._held.cut()
        self.is_collected = True

    def gather(self, texts: Sequence[str], held: NDArray[np.bool_], offset: Ints) -> None:
        """Takes the next stretch of a pass, of which nothing is known yet.

        Args:
            texts: Of the pieces.
            held: [num_pieces]: whether each is held out.
            offset: [num_pieces]: byte of the document at which each begins.
        """
        continued = np.append(offset[1:] > 0, False)
        self._cut |= bool((held & ((offset > 0) | continued)).any()) or bool(self._last_held and offset[0] > 0)
        self._last_held = bool(held[-1])
        for batch in self._batches(texts, held, offset):
            self._held.add(batch)
        for batch in self._batches(texts, ~held, offset):
            self._training.add(batch)

    def gathered(self) -> NDArray[np.bool_] | None:
        """Which of the training texts must be compared, after a pass of `gather`; None: all of them."""
        self._held.cut()
        self.is_collected = True
        return self._training.candidates(self._held)

    def look(self, texts: Sequence[str], held: NDArray[np.bool_], offset: Ints) -> None:
        """Compares the next stretch of a pass with what is held out, which is known; arguments as of `gather`."""
        assert self.is_collected, "what is held out is known before"
        self._index = self._index or _Index(self._held)
        for batch in self._batches(texts, ~held, offset):
            self._index.look_for(batch)

    def compare(self, pieces: Iterable[tuple[TextPiece, bool]], wanted: NDArray[np.bool_] | None = None) -> None:
        """Goes through a further pass and compares the training texts.

        Args:
            pieces: The corpus; it is read no further than up to the last that is wanted.
            wanted: As `gathered` tells.
        """
        assert self.is_collected, "what is held out is known before"
        self._index, batch = _Index(self._held), _Batch()
        places = None if wanted is None else iter(np.flatnonzero(wanted).tolist())
        number, place = 0, None if places is None else next(places, None)
        for piece, held in pieces:
            if places is not None and place is None:
                break
            if held or not (self.parts or piece.offset == 0):
                continue
            if (places is None or number == place) and batch.add(piece.text):
                self._index.look_for(batch.take())
            if places is not None and number == place:
                place = next(places, None)
            number += 1
        if texts := batch.take():
            self._index.look_for(texts)

    def _batches(self, texts: Sequence[str], chosen: NDArray[np.bool_], offset: Ints) -> Iterator[list[str]]:
        batch = _Batch()
        for place in np.flatnonzero(chosen if self.parts else chosen & (offset == 0)).tolist():
            if batch.add(texts[place]):
                yield batch.take()
        if left := batch.take():
            yield left

    def result(self) -> NearDuplicates:
        """What came out, after a pass of `compare`."""
        assert self.is_collected, "all has gone by"
        index = self._index or _Index(self._held)
        return index.result("parts" if self.parts and self._cut else "documents")


class _Batch:
    """Texts until there are enough for the loops to be worth calling."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.num_chars = 0

    def add(self, text: str) -> bool:
        """Whether it is full now."""
        self.texts.append(text[:PIECE_CHARS])
        self.num_chars += len(text)
        return self.num_chars >= BATCH_CHARS or len(self.texts) >= BATCH_TEXTS

    def take(self) -> list[str]:
        texts, self.texts, self.num_chars = self.texts, [], 0
        return texts


@dataclass(slots=True)
class _HeldText:
    """A text that is held out, as often as it is, and what was found of it."""

    beginning: str
    normal: int
    number: int = 1
    equal: str | None = None


class _Held:
    """The held-out texts, each once; of many those with the smallest hashes, whatever their order."""

    def __init__(self) -> None:
        self.number = 0
        self.texts: dict[int, _HeldText] = {}  # by rank
        self.by_hash: dict[int, int] = {}  # rank by Python's hash, which is the same within a process
        self.sketches: dict[int, Ints] = {}  # by normal form
        self.bands: dict[int, Ints] = {}
        self._most_rank = 1 << 64

    def add(self, texts: list[str]) -> None:
        self.number += len(texts)
        new = []
        for text in texts:
            rank = text_hash(text)
            if rank in self.texts:
                self.texts[rank].number += 1
            elif rank <= self._most_rank:
                self.texts[rank] = _HeldText(text[:SHOWN_CHARS], 0)
                self.by_hash[hash(text)] = rank
                new.append((rank, text))
        if new:
            self._remember(new)
        if len(self.texts) > 2 * MOST_TEXTS:
            self.cut()

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

    def cut(self) -> None:
        """Leaves the texts of the smallest ranks."""
        if len(self.texts) <= MOST_TEXTS:
            return
        ranks = sorted(self.texts)[:MOST_TEXTS]
        self._most_rank = ranks[-1]
        self.texts = {rank: self.texts[rank] for rank in ranks}
        self.by_hash = {key: rank for key, rank in self.by_hash.items() if rank in self.texts}
        forms = {text.normal for text in self.texts.values()}
        self.sketches = {form: sketch for form, sketch in self.sketches.items() if form in forms}
        self.bands = {form: bands for form, bands in self.bands.items() if form in forms}

    def table(self) -> Ints:
        """[forms, 16]: the bands, in the order of the forms."""
        return np.array([self.bands[form] for form in sorted(self.bands)], dtype=np.int64).reshape(-1, NUM_BANDS)


class _Training:
    """Training texts in the order in which they came: normal form, Python's hash and bands of each."""

    def __init__(self) -> None:
        self.number = 0
        self._rows: list[NDArray[np.void]] = []

    def add(self, texts: list[str]) -> None:
        self.number += len(texts)
        if self.number > MOST_REMEMBERED:
            self._rows.clear()
            return
        words = to_words(texts)
        rows = np.empty(len(texts), dtype=_ROW)
        rows["form"] = words.normal
        rows["hash"] = np.fromiter(map(hash, texts), dtype=np.int64, count=len(texts))
        rows["bands"] = words.bands(np.arange(len(texts))) & 0xFFFFFFFF
        self._rows.append(rows)

    def candidates(self, held: _Held) -> NDArray[np.bool_] | None:
        """Those that may be near-duplicates of held-out texts, of equal ones the first; None: not known."""
        if self.number > MOST_REMEMBERED:
            return None
        wanted = np.zeros(self.number, dtype=np.bool_)
        if not self.number or not held.texts:
            return wanted
        rows = np.concatenate(self._rows)
        same = _is_in(rows["form"], np.array(list(held.bands), dtype=np.int64))
        equal = _is_in(rows["hash"], np.array(list(held.by_hash), dtype=np.int64))
        bands, known = rows["bands"], (held.table() & 0xFFFFFFFF).astype(np.uint32)
        seen = np.zeros(_SIEVE, dtype=np.bool_)  # most bands are known to nobody, which is told at once
        seen[known & (_SIEVE - 1)] = True
        similar = seen[bands & (_SIEVE - 1)].any(axis=1)
        places = np.flatnonzero(similar)
        similar[places] = _is_in(bands[places], known).any(axis=1)
        for key, mask in (("form", same), ("hash", equal), ("form", similar & ~same)):
            places = np.flatnonzero(mask)
            wanted[places[np.unique(rows[key][places], return_index=True)[1]]] = True
        return wanted


def _is_in(values: NDArray[np.generic], known: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which values are known; faster than numpy's where these are few."""
    known = np.unique(known)
    return known[np.searchsorted(known, values).clip(max=len(known) - 1)] == values


class _Index:
    """Held-out texts by their normal forms and bands, and what of the training text fits them."""

    def __init__(self, held: _Held) -> None:
        self.held = held
        self.forms = np.array(sorted(held.sketches), dtype=np.int64)
        bands = held.table().ravel()
        self._order = np.argsort(bands, kind="stable")  # of all bands of all forms
        self.bands, self._begins = np.unique(bands[self._order], return_index=True)
        self._ends = np.append(self._begins[1:], len(bands))
        self._buckets: dict[int, list[int]] = {}  # forms by number of the band, of those that were met
        self.bits = _bits(held.sketches.values())
        self.normalised: dict[int, str] = {}  # beginning of the training text by normal form
        self.similar: dict[int, str] = {}

    def look_for(self, texts: list[str]) -> None:
        """Compares some texts of the training text."""
        if not len(self.forms):
            return
        words = to_words(texts)
        place = np.searchsorted(self.forms, words.normal).clip(max=len(self.forms) - 1)
        same = self.forms[place] == words.normal
        for text in np.flatnonzero(same).tolist():
            if (rank := self.held.by_hash.get(hash(texts[text]))) is not None:
                found = self.held.texts[rank]
                found.equal = found.equal or texts[text][:SHOWN_CHARS]
            form = int(words.normal[text])
            if form not in self.normalised:
                self.normalised[form] = texts[text][:SHOWN_CHARS]
        likely = find_likely(words.words, words.ends, self.bits, _LIKELY)
        likely |= words.ends - words.begins > SKETCH  # of longer ones the sketches do not hold all shingles
        rows = np.flatnonzero(likely & ~same)
        rows = rows[np.unique(words.normal[rows], return_index=True)[1]]
        rows.sort()
        bands = words.bands(rows)
        number = np.searchsorted(self.bands, bands).clip(max=len(self.bands) - 1)
        shared = self.bands[number] == bands
        for row in np.flatnonzero(shared.any(axis=1)).tolist():
            text = int(rows[row])
            self._compare(words, text, number[row, shared[row]], texts[text])

    def _compare(self, words: HashedWords, text: int, bands: Ints, content: str) -> None:
        """Looks at the held-out texts that share a band and for which nothing was found so far, rare bands first."""
        met: set[int] = set()
        sketch: Ints | None = None
        for band in bands[np.argsort(self._ends[bands] - self._begins[bands], kind="stable")].tolist():
            for form in self._open(band):
                if form in met:
                    continue
                if len(met) == MOST_COMPARED:
                    return
                met.add(form)
                sketch = words.sketches(np.array([text]))[0] if sketch is None else sketch
                if similarity(sketch, self.held.sketches[form]) >= SIMILAR:
                    self.similar[form] = content[:SHOWN_CHARS]

    def _open(self, band: int) -> list[int]:
        """Some forms with a band for which nothing was found so far. The others leave, so each is met once."""
        bucket = self._buckets.get(band)
        if bucket is None:
            forms = self._order[self._begins[band] : self._ends[band]] // NUM_BANDS
            bucket = self._buckets[band] = self.forms[forms].tolist()
        place = 0
        while place < min(MOST_CANDIDATES, len(bucket)):
            if bucket[place] in self.normalised or bucket[place] in self.similar:
                bucket[place] = bucket[-1]
                bucket.pop()
            else:
                place += 1
        return bucket[:MOST_CANDIDATES]

    def result(self, unit: Literal["documents", "parts"]) -> NearDuplicates:
        """The figures, and the pair to show."""
        numbers: Counter[Kind] = Counter()
        examples: dict[Kind, DuplicateExample] = {}
        for _, text in sorted(self.held.texts.items()):
            found = {
                "equal": text.equal,
                "normalised": self.normalised.get(text.normal),
                "similar": self.similar.get(text.normal),
            }
            kind = next((kind for kind in KINDS if found[kind] is not None), None)
            if kind is not None:
                numbers[kind] += text.number
                examples.setdefault(kind, DuplicateExample(kind, text.beginning, found[kind] or ""))
        most = max(KINDS, key=lambda kind: numbers[kind])
        return NearDuplicates(
            unit,
            self.held.number,
            sum(text.number for text in self.held.texts.values()),
            equal=numbers["equal"],
            normalised=numbers["normalised"],
            similar=numbers["similar"],
            example=examples.get(most),
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
