"""Near-duplicates: signatures of texts, and training texts that nearly repeat held-out text.

The normal form of a text is its words in NFC and lower case, each number as one digit, without white space, punctuation
and signs. Ideographs, kana and letters of scripts without spaces are words by themselves. Texts are also sets of
*shingles*, five words in a row (single words if there are fewer), compared by their Jaccard similarity: the size of the
intersection divided by that of the union. MinHash finds pairs that may be similar: the minima of 128 hash functions in
16 bands of 8. Two texts share a band with a probability of 0.06 at a similarity of 0.5, of 0.61 at 0.7, of 0.95 at 0.8
and of 0.9999 at 0.9.

    texts ──hash_texts──▶ normal forms, shingles ──▶ bands, and bytes of minima (clusters: groups.py)
                                                 └─▶ sketches: the smallest shingles, by which texts are compared
    survey of the corpus    -> HeldTexts of each task, joined
    shards                  -> LeakSearch, one per task: each training text against these -> leaks
    manifest                -> leaks of all tasks, joined in order -> NearDuplicates

Source: Broder 1997; bands after Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4; five words as
in Lee et al. 2022 (arXiv:2107.06499, appendix A); bytes of minima after Li and Koenig 2010 (b-bit minwise hashing).
Results are the same on every machine with the same version of Unicode, which is that of Python
(`unicodedata.unidata_version`): a newer one knows more characters as letters, digits or signs.

Shapes: C = characters of concatenated texts; N = texts; S = their shingles; K = hash functions; B = bands.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from unmask.core import hashing
from unmask.core.compiled import compiled
from unmask.core.hashing import GOLDEN, mix
from unmask.data.documents import PIECE_CHARS, Document
from unmask.data.survey import text_hash
from unmask.tokenizer.spans import UNSPACED

Ints = NDArray[np.int64]
Codes = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

SHINGLE = 5  # words that make a shingle
NUM_HASHES, NUM_BANDS = 128, 16
_MINIMA_A_BAND = NUM_HASHES // NUM_BANDS
NUM_MINIMA = 256  # of a signature: those of the bands, and 128 more
SKETCH = 1024
SIMILAR = 0.8
WORTH_A_WARNING = 0.01
_ALL_ALIKE = 0.5
_ALONE = 1 << 24  # added to a folded character that is a word by itself
_DIGIT = ord("0")
_PRIME = 1099511628211  # of FNV-1a
_SPREAD = np.uint32(2654435769)  # odd; the upper bits of a product depend on all bits
_FEW_CODES, _MANY_CODES = 0x3000, 0x32000  # ideographs follow the first, and hardly any letters the second

_NUMBERS = mix(np.arange(1, 2 * NUM_MINIMA + 1, dtype=np.int64) * np.int64(GOLDEN)).astype(np.uint32)
_FACTORS, _TERMS = _NUMBERS[:NUM_MINIMA] | np.uint32(1), _NUMBERS[NUM_MINIMA:]  # of the hash functions
# The same function, compiled for single numbers.
_mix = cast(Callable[[int], int], compiled(cast(Any, hashing.mix)))


@compiled
def _hash_texts(codes_C: Codes, ends_N: Ints, folded: Codes) -> tuple[Ints, Ints, Ints]:
    """Hashes of the normal forms of texts [N], hashes of their shingles [S], and where each text's shingles end [N]. A
    text without words counts as one word, unchanged.

    `folded` maps code points: 0 separates words, `_DIGIT` is a digit; code points beyond the table map to themselves.
    """
    num_texts, table = len(ends_N), len(folded)
    normal_N, shingle_ends_N = np.empty(num_texts, dtype=np.int64), np.empty(num_texts, dtype=np.int64)
    hashes_S = np.empty(len(codes_C) + num_texts, dtype=np.int64)  # of a text's words, then of its shingles
    word: Any
    begin: Any = 0
    end = 0
    for text in range(num_texts):
        normal: Any = GOLDEN
        word, before, first = 0, 0, end
        for place in range(begin, ends_N[text] + 1):  # the end of the text ends a word, too
            code: Any = np.int64(codes_C[place]) if place < ends_N[text] else 0
            fold: Any = np.int64(folded[code]) if code < table else code
            if fold != 0 and fold < _ALONE:
                if fold != _DIGIT or before != _DIGIT:  # a number counts as one digit
                    word = ((GOLDEN if word == 0 else word) ^ fold) * _PRIME
            else:
                if word != 0:
                    hashes_S[end] = _mix(word)
                    normal = (normal ^ hashes_S[end]) * GOLDEN
                    end += 1
                    word = 0
                if fold != 0:
                    hashes_S[end] = _mix(fold)
                    normal = (normal ^ hashes_S[end]) * GOLDEN
                    end += 1
            before = fold
        if end == first:  # no words: the characters as they are
            for place in range(begin, ends_N[text]):
                normal = (normal ^ np.int64(codes_C[place])) * _PRIME
            hashes_S[end] = _mix(normal)
            end += 1
        normal_N[text] = _mix(normal ^ ((normal >> 32) & 0xFFFFFFFF))
        # Hashes of shingles replace those of the words, of which there are at least as many.
        width = SHINGLE if end - first >= SHINGLE else 1
        end -= width - 1
        for place in range(first, end):  # reads only words at and after the place
            value: Any = width
            for word_place in range(place, place + width):
                value = (value ^ hashes_S[word_place]) * GOLDEN
                value ^= (value >> 29) & 0x7FFFFFFFF
            hashes_S[place] = _mix(value)
        shingle_ends_N[text] = end
        begin = ends_N[text]
    return normal_N, hashes_S[:end].copy(), shingle_ends_N


@compiled
def _hash_minima(
    shingles_S: Ints, begins_N: Ints, ends_N: Ints, factors_K: Codes, terms_K: Codes
) -> tuple[Ints, Bytes]:
    """MinHash signatures: bands [N, B], each a hash of its minima and its number, and a byte of each minimum [N, K]:
    bytes of different minima are equal in 1 of 256 cases.

    The hash functions are `factor * shingle + term` modulo 2^32, with odd factors.
    """
    num_texts, num_hashes = len(begins_N), len(factors_K)
    bands_NB = np.empty((num_texts, NUM_BANDS), dtype=np.int64)
    bytes_NK = np.empty((num_texts, num_hashes), dtype=np.uint8)
    least_K = np.empty(num_hashes, dtype=np.uint32)
    for text in range(num_texts):
        least_K[:] = 0xFFFFFFFF
        for place in range(begins_N[text], ends_N[text]):
            low = np.uint32(shingles_S[place] & 0xFFFFFFFF)
            for k in range(num_hashes):
                least_K[k] = min(least_K[k], np.uint32(factors_K[k] * low + terms_K[k]))
        for k in range(num_hashes):
            bytes_NK[text, k] = np.uint32(least_K[k] * _SPREAD) >> np.uint32(24)
        for band in range(NUM_BANDS):
            value: Any = band
            for k in range(band * _MINIMA_A_BAND, (band + 1) * _MINIMA_A_BAND):
                value = _mix(value + GOLDEN) + np.int64(least_K[k])
            bands_NB[text, band] = _mix(value)
    return bands_NB, bytes_NK


@compiled
def similarity(one: Ints, other: Ints) -> float:
    """Jaccard similarity of two texts, from their sketches: exact if both have fewer than 1,024 shingles, else
    estimated from the 1,024 smallest of their union, with a standard deviation of 0.0125 at 0.8."""
    a, b, union, both = 0, 0, 0, 0
    most = len(one) + len(other) if len(one) < SKETCH and len(other) < SKETCH else SKETCH
    while union < most and (a < len(one) or b < len(other)):
        union += 1
        if b == len(other) or (a < len(one) and one[a] < other[b]):
            a += 1
        elif a == len(one) or other[b] < one[a]:
            b += 1
        else:
            both, a, b = both + 1, a + 1, b + 1
    return both / union


@dataclass(frozen=True)
class HashedTexts:
    """Texts as normal forms and shingles; each text has at least one shingle."""

    normal: Ints  # [N]: hashes of the normal forms
    shingles: Ints  # [S]: hashes, text after text
    begins: Ints  # [N]: where each text's shingles begin
    ends: Ints  # [N]

    def signatures(self, chosen: Ints, num_hashes: int = NUM_MINIMA) -> tuple[Ints, Bytes]:
        """[M, 16], hashes of the bands of M chosen texts, and [M, num_hashes], a byte of each minimum. The share of 256
        bytes in which two texts agree estimates their Jaccard similarity (standard deviation 0.025 at 0.8)."""
        factors, terms = _FACTORS[:num_hashes], _TERMS[:num_hashes]
        return _hash_minima(self.shingles, self.begins[chosen], self.ends[chosen], factors, terms)

    def sketch(self, text: int) -> Ints:
        """The 1,024 smallest hashes of a text's shingles, sorted; all if it has fewer."""
        return np.unique(self.shingles[self.begins[text] : self.ends[text]])[:SKETCH]


def hash_texts(texts: Sequence[str]) -> HashedTexts:
    """The normal forms and shingles of at least one text."""
    texts = [text if text.isascii() else unicodedata.normalize("NFC", text) for text in texts]
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    folded = _folded(_MANY_CODES if len(codes) and codes.max() >= _FEW_CODES else _FEW_CODES)
    normal, shingles, shingle_ends = _hash_texts(codes, ends, folded)
    return HashedTexts(normal, shingles, np.concatenate([[0], shingle_ends[:-1]]), shingle_ends)


@functools.cache
def _folded(num_codes: int) -> Codes:
    """Maps code points to what they count as in normal forms; see `_hash_texts`."""
    folded = np.zeros(num_codes, dtype=np.uint32)
    for code in range(num_codes):
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Nd":
            folded[code] = _DIGIT
        elif category == "Lo" and UNSPACED.match(character):
            folded[code] = _ALONE + code
        elif category[0] not in "ZCP" and category not in ("Sm", "Sc", "Sk"):
            folded[code] = ord(character.lower()[0])
    return folded


# ----------------------------------------
# Held-out texts, stored so that training texts can be compared with them. A search does not depend on other tasks, so
# its leaks do not depend on the number of workers. Memory is bounded: at most 20,000 different texts are stored, chosen
# by a hash, with at most 8 KiB each.

MOST_TEXTS = 20_000
SHOWN_CHARS = 80
BATCH_CHARS = 1 << 20
BATCH_TEXTS = 1 << 14


@dataclass(slots=True)
class HeldText:
    """A held-out text: its first characters, its signature, and how many times it is held out."""

    beginning: str
    normal: int
    bands: Ints
    sketch: Ints
    number: int


class HeldTexts:
    """The distinct held-out texts by hash; of many, those with the smallest hashes, so the order of reading does not
    matter.

    With `parts`, parts of documents are held out, so every piece counts, not only the first.
    """

    def __init__(self, *, parts: bool = False) -> None:
        self.parts = parts
        self.number = 0  # of all held-out texts
        self.texts: dict[int, HeldText] = {}

    def collect(self, pieces: Iterable[tuple[Document, bool]]) -> Iterator[tuple[Document, bool]]:
        """Passes pieces through, each with whether it is held out, and stores those that are."""
        batch, num_chars = list[str](), 0
        for piece, held in pieces:
            if held and (self.parts or piece.offset == 0):
                batch.append(piece.text[:PIECE_CHARS])
                num_chars += len(piece.text)
                if num_chars >= BATCH_CHARS or len(batch) >= BATCH_TEXTS:
                    self._add(batch)
                    batch, num_chars = [], 0
            yield piece, held
        self._add(batch)
        self._keep_smallest()

    def _add(self, texts: list[str]) -> None:
        self.number += len(texts)
        keys = list(map(text_hash, texts))
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.texts}
        if new:
            hashed = hash_texts(list(new.values()))
            bands = hashed.signatures(np.arange(len(new)), NUM_HASHES)[0]
            for place, (key, text) in enumerate(new.items()):
                normal, sketch = int(hashed.normal[place]), hashed.sketch(place)
                self.texts[key] = HeldText(text[:SHOWN_CHARS], normal, bands[place].copy(), sketch, 0)
        for key in keys:
            self.texts[key].number += 1
        if len(self.texts) > 2 * MOST_TEXTS:
            self._keep_smallest()

    def join(self, arrays: Mapping[str, Any]) -> None:
        """Adds later held-out texts, in the form of `arrays`."""
        self.parts, number, beginnings = json.loads(bytes(arrays["held"]))
        self.number += number
        sketches = np.split(arrays["sketches"], arrays["sketch_ends"])[:-1]
        keys, normals, numbers = (arrays[name].tolist() for name in ("rank", "normal", "number"))
        for key, *text in zip(keys, beginnings, normals, arrays["bands"], sketches, numbers, strict=True):
            if key in self.texts:
                self.texts[key].number += text[-1]
            else:
                self.texts[key] = HeldText(*text)
        self._keep_smallest()

    def _keep_smallest(self) -> None:
        """Keeps the texts with the smallest hashes. Those of the whole corpus are among those of each part of it, so
        their numbers are complete."""
        self.texts = {key: self.texts[key] for key in sorted(self.texts)[:MOST_TEXTS]}

    def arrays(self) -> dict[str, Any]:
        """The content as arrays, equal for equal texts in whatever order they were read."""
        self._keep_smallest()
        keys = sorted(self.texts)
        texts = [self.texts[key] for key in keys]
        facts = [self.parts, self.number, [text.beginning for text in texts]]
        return {
            "held": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
            "rank": np.array(keys, dtype=np.uint64),
            "normal": np.array([text.normal for text in texts], dtype=np.int64),
            "number": np.array([text.number for text in texts], dtype=np.int64),
            "bands": np.array([text.bands for text in texts], dtype=np.int64).reshape(-1, NUM_BANDS),
            "sketches": np.concatenate([np.zeros(0, dtype=np.int64), *(text.sketch for text in texts)]),
            "sketch_ends": np.cumsum([len(text.sketch) for text in texts], dtype=np.int64),
        }


# ----------------------------------------
# The search in the training text

MOST_CANDIDATES = 100  # held-out texts of a band that are compared with one text
MOST_COMPARED = 400  # held-out texts compared with one text, those of its rarest bands first
_LIKELY = 0.5  # share of a similar text's shingles that are held out, at least, unless some repeat
_PLACES_A_SHINGLE = 8
_LEAST_PLACES, _MOST_PLACES = 1 << 16, 1 << 26

SameAs = Literal["equal", "normalised", "similar"]
KINDS: tuple[SameAs, ...] = ("equal", "normalised", "similar")
# Held-out texts in the training text, each with the beginning of the first training text that matched: equal ones by
# hash, others by normal form.
Leaks = dict[SameAs, dict[str, str]]


class LeakSearch:
    """Compares training texts with the held-out ones as they pass, and collects `leaks`.

    With `every`, it reports each training text that is like a held-out one. Otherwise, a held-out text is compared only
    until it has a match.
    """

    def __init__(self, held: HeldTexts, *, every: bool = False) -> None:
        self.held, self.every = held, every
        of_form = {text.normal: text for text in held.texts.values()}
        texts = [of_form[form] for form in sorted(of_form)]
        self.forms = np.array([text.normal for text in texts], dtype=np.int64)  # [F], sorted
        self.sketches = [text.sketch for text in texts]
        bands = np.array([text.bands for text in texts], dtype=np.int64).ravel()
        # The bands of all forms, sorted: `form_of[begins[b] : ends[b]]` are the forms with band b.
        order = np.argsort(bands, kind="stable")
        self.bands, self.begins = np.unique(bands[order], return_index=True)
        self.ends = np.append(self.begins[1:], len(bands))
        self.form_of = order // NUM_BANDS
        # Whether a shingle with these last bits is in a sketch; about one in 8 is marked wrongly.
        num_places, number = _LEAST_PLACES, sum(map(len, self.sketches))
        while num_places < number * _PLACES_A_SHINGLE and num_places < _MOST_PLACES:
            num_places *= 2
        self.known = np.zeros(num_places, dtype=np.bool_)
        for sketch in self.sketches:
            self.known[sketch & (num_places - 1)] = True
        self.begin()

    def begin(self) -> None:
        """Clears the leaks, so that those of the next task do not depend on others."""
        self.leaks: Leaks = {kind: {} for kind in KINDS}
        self._is_open = np.ones(len(self.forms), dtype=np.bool_)  # whether a form is still compared

    def look(self, texts: Sequence[str], held: NDArray[np.bool_], offset: Ints) -> NDArray[np.bool_]:
        """Which texts of the next pieces [N] are training texts that nearly repeat held-out text; complete only with
        `every`."""
        leaking = np.zeros(len(texts), dtype=np.bool_)
        if not len(self.forms):
            return leaking

        def note(kind: SameAs, form: int, text: str) -> None:
            self.leaks[kind].setdefault(str(self.forms[form]), text[:SHOWN_CHARS])
            self._is_open[form] = self.every

        chosen = np.flatnonzero(~held if self.held.parts else ~held & (offset == 0))
        batch = np.cumsum([len(texts[place]) for place in chosen.tolist()]) // BATCH_CHARS
        for places in filter(len, np.split(chosen, np.flatnonzero(np.diff(batch)) + 1)):
            compared = [texts[place][:PIECE_CHARS] for place in places.tolist()]
            hashed = hash_texts(compared)
            # 1. Texts equal to a held-out text, or equal except for numbers, case and signs
            form = np.searchsorted(self.forms, hashed.normal).clip(max=len(self.forms) - 1)
            same = self.forms[form] == hashed.normal
            for row in np.flatnonzero(same).tolist():
                if (key := text_hash(compared[row])) in self.held.texts:
                    self.leaks["equal"].setdefault(str(key), compared[row][:SHOWN_CHARS])
                note("normalised", int(form[row]), compared[row])
            # 2. Of the others, those with many shingles of held-out texts; each normal form once
            is_known = self.known[hashed.shingles & (len(self.known) - 1)]
            num_shingles = hashed.ends - hashed.begins
            likely = np.add.reduceat(is_known, hashed.begins, dtype=np.int64) >= _LIKELY * num_shingles
            likely |= num_shingles > SKETCH  # sketches of longer texts lack some shingles
            rows = np.flatnonzero(likely & ~same)
            rows = np.sort(rows[np.unique(hashed.normal[rows], return_index=True)[1]])
            # 3. Of these, those that share a band with a held-out text are compared with it, rare bands first
            bands = hashed.signatures(rows, NUM_HASHES)[0]
            number = np.searchsorted(self.bands, bands).clip(max=len(self.bands) - 1)
            shared = self.bands[number] == bands
            alike = []
            for place in np.flatnonzero(shared.any(axis=1)).tolist():
                row, common = int(rows[place]), number[place, shared[place]]
                rare_first = common[np.argsort(self.ends[common] - self.begins[common], kind="stable")]
                candidates: dict[int, None] = {}
                for band in rare_first.tolist():
                    forms = self.form_of[self.begins[band] : self.ends[band]]
                    candidates |= dict.fromkeys(forms[self._is_open[forms]][:MOST_CANDIDATES].tolist())
                sketch = hashed.sketch(row)
                for candidate in list(candidates)[:MOST_COMPARED]:
                    if similarity(sketch, self.sketches[candidate]) >= SIMILAR:
                        note("similar", candidate, compared[row])
                        alike.append(int(hashed.normal[row]))
            leaking[places] = same | np.isin(hashed.normal, alike)
        return leaking


# ----------------------------------------
# What is reported


@dataclass(frozen=True)
class DuplicateExample:
    kind: SameAs
    held_out: str
    training: str


@dataclass(frozen=True)
class NearDuplicates:
    """How much of the held-out text has equals or near-duplicates in the training text.

    Whole documents are compared (the first 262,144 characters of long ones) or, if parts of documents are held out,
    parts: a passage that begins elsewhere in its part counts only if it is most of both parts.
    """

    unit: Literal["documents", "parts"]
    held_out: int  # how many of them are held out
    compared: int  # how many of these were compared; a hash chose them
    equal: int  # to a training text
    normalised: int  # equal except for case, numbers, white space, punctuation and signs
    # Further ones whose five-word sequences have a Jaccard similarity of at least 0.8 with those of a training text.
    # About 1 in 20 is missed at 0.8, 1 in 10,000 at 0.9 and above.
    similar: int
    example: DuplicateExample | None = None  # of the most frequent kind
    left_out: int = 0  # training texts dropped as near-duplicates (`corpus.leaks`)

    @property
    def share(self) -> float:
        """Share of the compared texts, in [0, 1]."""
        return (self.equal + self.normalised + self.similar) / max(self.compared, 1)

    @property
    def summary(self) -> str:
        unit = "texts" if self.unit == "parts" else self.unit  # of short documents, the only part is all of them
        if not self.compared:
            return f"there are no held-out {unit} to compare with the training text"
        chosen = f" of the {self.held_out:,}" if self.compared < self.held_out else ""
        number = f"{self.compared:,}{chosen} held-out {unit}{', sampled by a hash,' if chosen else ''}"
        if not self.share:
            return f"none of {number} has a near-duplicate in the training text"
        kinds = (
            (self.equal, "equal"),
            (self.normalised, "equal except for numbers, case, white space or punctuation"),
            (self.similar, f"with a Jaccard similarity of {SIMILAR} or more"),
        )
        counts = ", ".join(f"{count:,} {words}" for count, words in kinds if count)
        dropped = f"; the {self.left_out:,} training {unit} were dropped" if self.left_out else ""
        return f"{self.share:.1%} of {number} have a near-duplicate in the training text ({counts}){dropped}"

    @property
    def spoil_figures(self) -> bool:
        """Whether so many held-out texts are in the training text, too, that it deserves a warning."""
        return self.share >= WORTH_A_WARNING and not self.left_out

    def describe(self) -> str:
        line = self.summary
        if self.example is not None:
            line += f"; e.g. held out: {self.example.held_out!r}, training: {self.example.training!r}"
        if not self.spoil_figures:
            return line
        if self.share > _ALL_ALIKE:  # as in logs: almost nothing would remain
            return f"{line}; nearly all texts are alike, so figures show how well such texts are known, not new ones"
        return f"{line}; to drop such training texts, set corpus.leaks=drop"

    def plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "share": self.share}


def near_duplicates(held: HeldTexts, leaks: Leaks, *, left_out: int = 0) -> NearDuplicates:
    numbers: Counter[SameAs] = Counter()
    examples: dict[SameAs, DuplicateExample] = {}
    for key, text in sorted(held.texts.items()):
        for kind in KINDS:
            leak = leaks[kind].get(str(key if kind == "equal" else text.normal))
            if leak is not None:
                numbers[kind] += text.number
                examples.setdefault(kind, DuplicateExample(kind, text.beginning, leak))
                break
    return NearDuplicates(
        "parts" if held.parts else "documents",
        held.number,
        sum(text.number for text in held.texts.values()),
        **{kind: numbers[kind] for kind in KINDS},
        example=examples.get(max(KINDS, key=lambda kind: numbers[kind])),
        left_out=left_out,
    )
