"""The held-out texts of a corpus, remembered so that training texts can be compared with them.

Memory is bounded: 20,000 different texts at the most are remembered, chosen by a hash, with 8 KiB each at the most.
What was remembered of several parts of a corpus joins to what would be of all of it, so it can be gathered in pieces.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.text.documents import PIECE_CHARS, TextPiece
from unmask.text.near_duplicates import NUM_BANDS, Ints, to_words
from unmask.text.survey import text_hash

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
        self.sketches: dict[int, Ints] = {}
        self.bands: dict[int, Ints] = {}
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

    def table(self) -> Ints:
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
