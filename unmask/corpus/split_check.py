"""Near-duplicates between held-out and training text, found while the corpus goes by.

    a pass over the corpus ──▶ collect: fingerprints of what is held out
    another                ──▶ compare: each training text against these ──▶ NearDuplicates

Both passes are ones that preparation makes anyway, where it trains a tokenizer; otherwise the second is one more.
Memory is bounded: of held-out texts 20,000 different ones at the most are looked at, chosen by a hash, with 8 KiB each
at the most; of training texts a megabyte is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.documents import PIECE_CHARS, TextPiece
from unmask.corpus.fingerprints import SKETCH, Ints, Words, similarity, to_words
from unmask.corpus.kernels.words import find_likely
from unmask.corpus.near_duplicates import SIMILAR, Example, Kind, NearDuplicates
from unmask.corpus.survey import text_hash

MOST_TEXTS = 20_000
SHOWN_CHARS = 80
MOST_CANDIDATES = 100  # of a band, that are compared with one text
BATCH_CHARS = 1 << 20
BATCH_TEXTS = 1 << 14
KINDS: tuple[Kind, ...] = ("equal", "normalised", "similar")
_LIKELY = 0.5  # of the shingles of a text that is similar to a held-out one, so many are held out, unless some repeat
_BITS_A_SHINGLE = 16
_LEAST_BYTES, _MOST_BYTES = 1 << 13, 1 << 26


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
        self._index: _Index | None = None
        self._cut = False  # whether a held-out piece is not a whole document

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

    def compare(self, pieces: Iterable[tuple[TextPiece, bool]]) -> Iterator[tuple[TextPiece, bool]]:
        """Hands the pieces of a further pass through and compares those of the training text."""
        assert self.is_collected, "what is held out is known before"
        self._index, batch = _Index(self._held), _Batch()
        for piece, held in pieces:
            if not held and (self.parts or piece.offset == 0) and batch.add(piece.text):
                self._index.look_for(batch.take())
            yield piece, held
        if texts := batch.take():
            self._index.look_for(texts)

    def result(self) -> NearDuplicates:
        """What came out, after a pass of `compare`."""
        assert self._index is not None, "the training text has gone by"
        return self._index.result("parts" if self.parts and self._cut else "documents")


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


class _Index:
    """Held-out texts by their normal forms and bands, and what of the training text fits them."""

    def __init__(self, held: _Held) -> None:
        self.held = held
        self.forms = np.array(sorted(held.sketches), dtype=np.int64)
        self.buckets: dict[int, list[int]] = {}
        for form in self.forms.tolist():
            for band in held.bands[form].tolist():
                self.buckets.setdefault(band, []).append(form)
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
        for text, bands in zip(rows.tolist(), words.bands(rows).tolist(), strict=True):
            self._compare(words, text, bands, texts[text])

    def _compare(self, words: Words, text: int, bands: list[int], content: str) -> None:
        """Looks at the held-out texts that share a band and for which nothing was found so far."""
        met: set[int] = set()
        sketch: Ints | None = None
        for band in bands:
            if not (bucket := self.buckets.get(band)):
                continue
            bucket[:] = (form for form in bucket if form not in self.normalised and form not in self.similar)
            for form in bucket[:MOST_CANDIDATES]:
                if form in met:
                    continue
                met.add(form)
                sketch = words.sketches(np.array([text]))[0] if sketch is None else sketch
                if similarity(sketch, self.held.sketches[form]) >= SIMILAR:
                    self.similar[form] = content[:SHOWN_CHARS]

    def result(self, unit: Literal["documents", "parts"]) -> NearDuplicates:
        """The figures, and the pair to show."""
        numbers: Counter[Kind] = Counter()
        examples: dict[Kind, Example] = {}
        for _, text in sorted(self.held.texts.items()):
            found = {
                "equal": text.equal,
                "normalised": self.normalised.get(text.normal),
                "similar": self.similar.get(text.normal),
            }
            kind = next((kind for kind in KINDS if found[kind] is not None), None)
            if kind is not None:
                numbers[kind] += text.number
                examples.setdefault(kind, Example(kind, text.beginning, found[kind] or ""))
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
        place = sketch & (num_bytes * 8 - 1)
        np.bitwise_or.at(bits, place >> 3, np.left_shift(1, place & 7).astype(np.uint8))
    return bits
