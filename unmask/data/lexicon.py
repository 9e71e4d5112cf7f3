"""The lexicon of a corpus: its collocations, counted, ranked and spelled out, and the informativeness of each token."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import Field

from unmask.core.errors import DataError, parse_json
from unmask.core.files import typed, write_atomically
from unmask.core.hashing import longer, mix, token_in_word
from unmask.core.results import Notify, counted, ignore
from unmask.core.settings import Settings
from unmask.data.store import TokenChunk
from unmask.tokenizer.tokenizer import Tokenizer

Ints = NDArray[np.int64]
_NONE = np.zeros(0, dtype=np.int64)

# ----------------------------------------
# Exact counts of more 64-bit keys than fit into memory: sorted runs on the disk, merged range by range.

# Most keys in memory at a time; counting and merging take about 100 bytes a key.
RUN_KEYS = 1 << 21


class Counted(NamedTuple):
    keys: Ints
    counts: Ints


_NO_KEYS = Counted(_NONE, _NONE)


class KeyCounter:
    """Counts keys. It holds `RUN_KEYS` keys in memory and the others in files in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[Path] = []
        self._new: list[Ints] = []
        self._num_new, self._table = 0, _NO_KEYS

    def add(self, keys: Ints) -> None:
        self._new.append(keys)
        self._num_new += len(keys)
        if self._num_new >= RUN_KEYS:
            self._gather(RUN_KEYS)

    def _gather(self, spill_size: int) -> None:
        """Adds the new keys to the table, which moves to the disk once it has `spill_size` keys."""
        if self._num_new:
            new = Counted(*np.unique(np.concatenate(self._new), return_counts=True))
            self._table, self._new, self._num_new = _sum([self._table, new]), [], 0
        if len(self._table.keys) >= spill_size:
            self._runs.append(self._folder / f"{len(self._runs)}.npy")
            np.save(self._runs[-1], np.stack(self._table))
            self._table = _NO_KEYS

    def merged(self) -> Iterator[Counted]:
        """All keys and counts in increasing order of the keys, one range of keys at a time."""
        self._gather(1 if self._runs else RUN_KEYS)
        if not self._runs:
            yield self._table
            return
        runs = [Counted(*np.load(path, mmap_mode="r")) for path in self._runs]
        # Boundaries of ranges with about `RUN_KEYS` keys of all runs, from samples of each run.
        stride = max(1, RUN_KEYS // (4 * len(runs)))
        sample = np.sort(np.concatenate([run.keys[::stride] for run in runs]))
        inner = np.unique(sample[:: max(1, RUN_KEYS // stride)][1:])
        places = [np.concatenate([[0], np.searchsorted(run.keys, inner), [len(run.keys)]]) for run in runs]
        for part in range(len(inner) + 1):
            ranges = [slice(place[part], place[part + 1]) for place in places]
            yield _sum([Counted(run.keys[of], run.counts[of]) for run, of in zip(runs, ranges, strict=True)])
        del runs  # unmaps the files before they are removed

    def above(self, count: int) -> Counted:
        """The keys counted more than `count` times; they must fit into memory."""
        parts = [Counted(part.keys[part.counts > count], part.counts[part.counts > count]) for part in self.merged()]
        return Counted(*map(np.concatenate, zip(*parts, strict=True)))


_temporary = partial(tempfile.TemporaryDirectory, prefix=".lexicon-", ignore_cleanup_errors=True)


def _sum(parts: Sequence[Counted]) -> Counted:
    """Merges tables: sorts their keys and adds the counts of equal ones."""
    keys, counts = map(np.concatenate, zip(*parts, strict=True))
    if not len(keys):
        return _NO_KEYS
    order = np.argsort(keys, kind="stable")  # a merge of runs that are sorted already
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return Counted(keys[first], np.add.reduceat(counts[order], first))


# ----------------------------------------
# From tokens to words, the units of n-grams, in whole arrays.
#
# A collocation consists of words: letters, numbers, ideographs. It may contain signs that join words in writing:
# apostrophes and hyphens, if the tokenizer makes them words of their own, and white space, if that is a word. It
# contains no other sign, no unknown token, and no end of a document. So `don ' t` and `mother - in - law` are
# collocations of BERT's tokenizer, and `, and` is not.

_JOINERS = frozenset("'’-\u2010\u2011")
_BROKEN = "\ufffd"  # part of a character that spans several tokens


class Role(IntEnum):
    BARRIER, JOINER, WORD = range(3)


def role_of(text: str) -> Role:
    if any(letter.isalnum() or letter == _BROKEN or unicodedata.category(letter)[0] == "M" for letter in text):
        return Role.WORD
    return Role.JOINER if all(letter.isspace() or letter in _JOINERS for letter in text) else Role.BARRIER


@dataclass(frozen=True)
class TokenWords:
    """The words of some documents, without barriers, concatenated. W = number of words."""

    hashes: Ints  # [W], int64: of the word's tokens
    runs: Ints  # [W], int64: adjacent words with the same number have no barrier between them
    whole: NDArray[np.bool_]  # [W], bool: real words; false for joiners
    begins: Ints  # [W], int64: position of the word's first token in the documents
    lengths: Ints  # [W], int64: number of its tokens
    num_words: int  # all words of the documents, including barriers

    def grams(self, most: int) -> Iterator[tuple[Ints, NDArray[np.bool_]]]:
        """The n-grams that begin at each word, for n = 1 to `most`: hashes, and whether no barrier interrupts the
        words; [W - n + 1] each."""
        hashes, mixed = self.hashes, mix(self.hashes)
        yield hashes, np.ones(len(hashes), dtype=bool)
        for n in range(2, most + 1):
            hashes = longer(hashes[:-1], mixed[n - 1 :])
            yield hashes, self.runs[: len(hashes)] == self.runs[n - 1 :]


class WordReader:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.roles: NDArray[np.int8] = np.full(tokenizer.vocab_size, Role.BARRIER, dtype=np.int8)
        for id_ in np.flatnonzero(tokenizer.ordinary):
            self.roles[id_] = role_of(tokenizer.text(int(id_)))
        self.ordinary = tokenizer.ordinary

    def read(self, input_ids: NDArray[np.integer[Any]], word_starts: NDArray[Any], lengths: Ints) -> TokenWords:
        """The words of some documents, or pieces of them, concatenated: tokens and word starts are [num_tokens],
        lengths [num_documents]."""
        if not len(input_ids):
            return TokenWords(_NONE, _NONE, np.zeros(0, dtype=bool), _NONE, _NONE, 0)
        ids = np.asarray(input_ids, dtype=np.int64)
        first = np.zeros(len(ids) + 1, dtype=bool)
        first[np.cumsum(lengths) - lengths] = True  # an empty document begins where the next one does
        begins = np.flatnonzero(word_starts.astype(bool) | first[:-1])
        sizes = np.diff(np.append(begins, len(ids)))
        role = np.maximum.reduceat(self.roles[ids], begins)
        role[~np.logical_and.reduceat(self.ordinary[ids], begins)] = Role.BARRIER
        # A run of words ends before a document and at a barrier.
        inside = role != Role.BARRIER
        runs = np.cumsum(first[:-1][begins] | ~inside)
        hashes, whole = hashes_of_words(ids, begins), role == Role.WORD
        return TokenWords(hashes[inside], runs[inside], whole[inside], begins[inside], sizes[inside], len(begins))


def hashes_of_words(input_ids: Ints, begins: Ints) -> Ints:
    """Hashes words by their tokens [num_tokens], given the position where each begins [num_words], the first at 0."""
    if not len(begins):
        return _NONE
    place = np.arange(len(input_ids)) - np.repeat(begins, np.diff(np.append(begins, len(input_ids))))
    return np.add.reduceat(token_in_word(input_ids, place), begins)


# ----------------------------------------
# A lexicon and its settings: collocations with their PMI, and how informative each token is, in one file.

MOST_WORDS = 5
LARGEST_SIZE = 800_000
_WORDS_PER_ENTRY = 256


class LexiconSettings(Settings):
    """Settings of a lexicon.

    Attributes:
        size: Most collocations; None: one for every 256 words of the corpus, at most the paper's 800,000.
        min_count: Collocations occur more often than this in the corpus.
        max_words: Longest collocation.

    Source: Levine et al. 2021 (PMI-Masking), section 4: 2 to 5 words, more than 10 occurrences, 800,000 entries for 16
    GB of text.
    """

    size: Annotated[int, Field(ge=1)] | None = None
    min_count: Annotated[int, Field(ge=1)] = 10
    max_words: Annotated[int, Field(ge=2, le=MOST_WORDS)] = 5


VERSION = 1
_FORMAT = "unmask lexicon"
_FACTS = "facts"


@dataclass(frozen=True)
class Lexicon:
    """Collocations, the strongest first; the file format is safetensors. N = number of collocations."""

    input_ids: NDArray[np.int32]  # [num_tokens], int32: tokens of all collocations, concatenated
    word_starts: NDArray[np.uint8]  # [num_tokens], uint8: whether a word begins at the token
    lengths: NDArray[np.int32]  # [N], int32: tokens of each
    pmi: NDArray[np.float32]  # [N], float32, in nats
    counts: Ints  # [N], int64: occurrences in the corpus
    informativeness: NDArray[np.float32]  # [vocab_size], float32, in nats
    facts: dict[str, Any]  # `tokenizer_sha256`, `data_sha256`, `settings`, `num_words`, `candidates`

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_words(self) -> Ints:
        """[N]: words of each collocation."""
        if not len(self):
            return _NONE
        return np.add.reduceat(self.word_starts.astype(np.int64), np.cumsum(self.lengths) - self.lengths)

    def hashes(self) -> Ints:
        """[N], int64: the hash of each collocation, as masking computes it for rows."""
        words = hashes_of_words(self.input_ids.astype(np.int64), np.flatnonzero(self.word_starts))
        num_words = self.num_words
        first = np.cumsum(num_words) - num_words
        hashes = words[first]
        for n in range(1, int(num_words.max(initial=1))):
            more = num_words > n
            hashes[more] = longer(hashes[more], mix(words[first[more] + n]))
        return hashes

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file's content, the same for the same lexicon."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        facts = {"format": _FORMAT, "version": VERSION, **self.facts}
        # A single entry of metadata: safetensors writes several in random order.
        return safetensors.numpy.save(arrays, metadata={_FACTS: json.dumps(facts, sort_keys=True)})

    def save(self, path: Path) -> None:
        write_atomically(path, self.to_bytes())

    def check_tokenizer(self, tokenizer: Tokenizer, *, name: str) -> None:
        if self.facts["tokenizer_sha256"] != tokenizer.fingerprint:
            raise DataError(f"{name}: made with another tokenizer; remake it: unmask lexicon DATA --out F")


_ARRAYS = ("input_ids", "word_starts", "lengths", "pmi", "counts", "informativeness")


def load_lexicon(path: Path) -> Lexicon:
    """Reads a lexicon; raises a DataError if it is missing, damaged, of another kind or of another version."""
    if not path.is_file():
        raise DataError(f"{path}: no such lexicon; make it with `unmask lexicon DATA --out {typed(path)}`")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            facts = parse_json((file.metadata() or {})[_FACTS])
            if (facts.pop("format"), facts.pop("version")) != (_FORMAT, VERSION):
                raise KeyError("format")
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path}: not a lexicon, or a damaged one ({error}); make it with `unmask lexicon`") from error
    return Lexicon(**arrays, facts=facts)


# ----------------------------------------
# Frequent n-grams of words in a corpus, counted exactly, level by level, and their PMI.
#
# An n-gram is no more frequent than either of its two (n-1)-grams. So a pass over the corpus for each n counts only
# n-grams with frequent parts, and one more pass finds the words of the frequent ones. Memory holds the frequent n-grams
# and some chunks of the corpus; the rest is in sorted runs on the disk.

Words = Callable[[str], Iterator[tuple[Ints, TokenWords]]]
"""Passes over the corpus once, announced by a text: the tokens of each chunk, and its words."""


def find(keys: Ints, looked_up: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Row numbers of keys in a sorted table (arbitrary for missing keys), and whether each key is in it."""
    if not len(keys):
        return np.zeros(len(looked_up), dtype=np.int64), np.zeros(len(looked_up), dtype=bool)
    place = np.minimum(np.searchsorted(keys, looked_up), len(keys) - 1)
    return place, keys[place] == looked_up


@dataclass(frozen=True)
class FrequentGrams:
    """The frequent n-grams for n = 1 (words), 2, ..., and their parts. K = number of n-grams of one n."""

    levels: list[Counted]  # for each n, [K]: hashes and counts
    num_words: int  # of the corpus
    prefix: list[NDArray[np.int32]]  # for each n, [K]: number of the first n - 1 words in the level below
    suffix: list[NDArray[np.int32]]  # [K]: number of the last n - 1 words
    input_ids: NDArray[np.int32]  # [num_tokens], int32: tokens of the frequent words, concatenated
    begins: Ints  # [number of words + 1], int64: where each word's tokens begin
    whole: NDArray[np.bool_]  # [number of words], bool: real words; false for joiners


def _frequent_grams(words: Words, settings: LexiconSettings, scratch: Path) -> FrequentGrams:
    # 1. How often each occurs in the corpus
    levels: list[Counted] = []
    num_words = 0
    for n in range(1, settings.max_words + 1):
        with _temporary(dir=scratch) as folder:
            counter = KeyCounter(Path(folder))
            for _, chunk in words("counting words" if n == 1 else f"counting sequences of {n} words"):
                num_words += chunk.num_words if n == 1 else 0
                grams = list(chunk.grams(n))
                hashes, together = grams[-1]
                if n > 1 and len(hashes):  # only those whose (n-1)-grams are both frequent
                    _, frequent = find(levels[-1].keys, grams[-2][0])
                    hashes = hashes[together & frequent[:-1] & frequent[1:]]
                counter.add(hashes)
            levels.append(counter.above(settings.min_count))
        if not len(levels[-1].keys):
            break

    # 2. Their parts, from the first occurrence of each
    prefix, suffix = ([np.zeros(len(level.keys), dtype=np.int32) for level in levels] for _ in range(2))
    whole, spelled = (np.zeros(len(levels[0].keys), dtype=bool) for _ in range(2))
    spellings = [(_NONE, _NONE, _NONE.astype(np.int32))]  # numbers of words, their lengths, their tokens
    for input_ids, chunk in words("reading the frequent sequences"):
        below = _NONE
        for n, (hashes, together) in enumerate(chunk.grams(len(levels)), start=1):
            place, frequent = find(levels[n - 1].keys, hashes)
            frequent &= together
            if n == 1:
                new = np.flatnonzero(frequent)
                new = new[~spelled[place[new]]]
                numbers, first = np.unique(place[new], return_index=True)
                at = new[first]
                spelled[numbers], whole[numbers] = True, chunk.whole[at]
                spellings.append((numbers, chunk.lengths[at], gather(input_ids, chunk.begins[at], chunk.lengths[at])))
            else:  # all are in the level below: parts of frequent n-grams are frequent
                prefix[n - 1][place[frequent]] = below[:-1][frequent]
                suffix[n - 1][place[frequent]] = below[1:][frequent]
            below = place
    numbers, lengths, tokens = (np.concatenate(column) for column in zip(*spellings, strict=True))
    order = np.argsort(numbers)
    spelling = gather(tokens, (np.cumsum(lengths) - lengths)[order], lengths[order])
    begins = np.concatenate([[0], np.cumsum(lengths[order])])
    return FrequentGrams(levels, num_words, prefix, suffix, spelling, begins, whole)


def gather(values: NDArray[np.integer[Any]], begins: Ints, lengths: Ints) -> NDArray[np.int32]:
    before = np.cumsum(lengths) - lengths
    return values[np.repeat(begins - before, lengths) + np.arange(lengths.sum())].astype(np.int32)


def pmi_of(grams: FrequentGrams) -> list[NDArray[np.float64]]:
    """The pointwise mutual information of n words: how much likelier they are together than their parts are by chance.

        PMI(w1 ... wn) = min over all ways to cut w1 ... wn into parts  of  log( p(w1 ... wn) / product of p(part) )

    The minimum excludes `new york is`: cut into `new york` and `is`, it is about as frequent as chance makes it.

    The best cut is found recursively: cut off the first l words as one part, cut the rest in the best way or not at
    all, and take the best l. Parts of a frequent n-gram are frequent, so all are in the levels below. Returns, for n =
    1, 2, ..., [K] in nats for every frequent n-gram; infinite for n = 1, where there is nothing to cut.

    Source: Levine et al. 2021 (PMI-Masking), section 4. p is a count divided by the number of words of the corpus, for
    any number of words.
    """
    logs = [np.log(level.counts) - math.log(max(grams.num_words, 1)) for level in grams.levels]
    best: list[NDArray[np.float64]] = []  # the largest sum of log p over all cuts, or of the whole
    pmi: list[NDArray[np.float64]] = []
    for n, log_p in enumerate(logs, start=1):
        cut = np.full(len(log_p), -math.inf)
        heads: list[NDArray[Any]] = [np.arange(len(log_p))]  # numbers of the first n, n - 1, ... words
        tails = heads.copy()  # numbers of the last n, n - 1, ... words
        for level in range(n - 1, 0, -1):
            heads.insert(0, grams.prefix[level][heads[0]])
            tails.insert(0, grams.suffix[level][tails[0]])
        for length in range(1, n):
            first, rest = heads[length - 1], tails[n - length - 1]
            cut = np.maximum(cut, logs[length - 1][first] + best[n - length - 1][rest])
        pmi.append(log_p - cut)
        best.append(np.maximum(log_p, cut))
    return pmi


NEIGHBOURS = 1024
WINDOW = 5
RARE = 10


def informativeness_of(
    chunks: Iterable[TokenChunk], tokenizer: Tokenizer, frequencies: Ints, *, scratch: Path
) -> NDArray[np.float32]:
    """How much each token of the vocabulary says about its neighbours: the mean of their pointwise mutual information.

        informativeness(w) = sum over c of p(c | w) log( p(c | w) / p(c) )

    where c are the tokens up to five positions before or after w, in other words than w's own. The word `Highness` says
    much (`Royal` is near), `the` says nothing.

    `frequencies` [vocab_size] are the counts of ids in the corpus, over which this passes once. Returns [vocab_size],
    in nats; at least 0.

    Source: Sadeq et al. 2022 (InforMask), section 3, where a token's relevance is the sum of its mutual information
    with the tokens that stay visible. Approximations here keep counts few and estimates supported by data: the 1,024
    most frequent tokens are kinds of neighbours and all others are one kind; the bias of low counts, (number of
    different neighbours - 1) / (2 x neighbours) to first order (Miller 1955), is subtracted; tokens that occur ten
    times or less get the median.
    """
    ordinary = tokenizer.ordinary
    frequencies = frequencies * ordinary
    kinds = np.full(len(frequencies), NEIGHBOURS, dtype=np.int64)  # of neighbours; all rare tokens are one kind
    frequent = np.argsort(-frequencies, kind="stable")[:NEIGHBOURS]
    kinds[frequent] = np.arange(len(frequent))
    size, num_kinds = len(frequencies), NEIGHBOURS + 1
    by_kind, by_token = np.zeros(num_kinds, dtype=np.int64), np.zeros(size)
    different, logs = np.zeros(size), np.zeros(size)
    with _temporary(dir=scratch) as folder:
        counter = KeyCounter(Path(folder))
        for chunk in chunks:
            ids = chunk.input_ids.astype(np.int64)
            piece = np.repeat(np.arange(len(chunk.lengths)), chunk.lengths)
            word = np.cumsum(chunk.word_starts, dtype=np.int64)
            usable = ordinary[ids]
            for distance in range(1, min(WINDOW, len(ids) - 1) + 1):  # in the same piece, but not in the same word
                near, far = slice(None, -distance), slice(distance, None)
                pair = usable[near] & usable[far] & (piece[near] == piece[far]) & (word[near] != word[far])
                one, other = ids[near][pair], ids[far][pair]
                counter.add(one * num_kinds + kinds[other])
                counter.add(other * num_kinds + kinds[one])
        for keys, counts in counter.merged():
            by_kind += np.bincount(keys % num_kinds, counts, num_kinds).astype(np.int64)
        for keys, counts in counter.merged():
            token, kind = np.divmod(keys, num_kinds)
            by_token += np.bincount(token, counts, size)
            different += np.bincount(token, minlength=size)
            logs += np.bincount(token, counts * np.log(counts / by_kind[kind]), size)
    known = (frequencies > RARE) & (by_token > 0)
    informativeness = np.zeros(size)
    n = by_token[known]
    informativeness[known] = logs[known] / n + np.log(by_kind.sum() / n) - (different[known] - 1) / (2 * n)
    if known.any():
        informativeness[~known] = np.median(informativeness[known])
    return np.maximum(informativeness, 0.0).astype(np.float32)


_ROUNDING = 1e-12  # of sums of logarithms: words that occur together as often as by chance are no collocation


def build_lexicon(
    chunks: Callable[[], Iterator[TokenChunk]],
    tokenizer: Tokenizer,
    settings: LexiconSettings,
    *,
    frequencies: Ints,
    data_sha256: str,
    scratch: Path,
    notify: Notify = ignore,
) -> Lexicon:
    """Finds the collocations of a corpus. The same corpus gives the same lexicon, however it is cut into chunks.

    Args:
        chunks: Starts a pass over the corpus; called `max_words` + 2 times.
        frequencies: [vocab_size]: counts of each id in the corpus.
        scratch: An existing folder for temporary files.
    """
    reader, num_tokens = WordReader(tokenizer), int(frequencies.sum())

    def counting(what: str) -> Iterator[TokenChunk]:
        count = counted(notify, what, num_tokens)
        for chunk in chunks():
            yield chunk
            count(len(chunk.input_ids))

    def words(what: str) -> Iterator[tuple[Ints, TokenWords]]:
        for chunk in counting(what):
            ids = chunk.input_ids.astype(np.int64)
            yield ids, reader.read(ids, chunk.word_starts, chunk.lengths)

    grams = _frequent_grams(words, settings, scratch)
    levels, num_words = grams.levels, grams.num_words
    neighbours = counting("counting neighbours")
    informativeness = informativeness_of(neighbours, tokenizer, frequencies, scratch=scratch)
    # All lengths are ranked together: the minimum over all cuts makes their PMIs comparable, since a longer one is no
    # stronger than its weakest cut. Entries neither begin nor end with a joiner, and are more frequent than by chance.
    pmi = pmi_of(grams)
    scores, counts, keys = [np.zeros(0)], [_NONE], [_NONE]
    tables = [np.zeros((0, settings.max_words), dtype=np.int64)]  # numbers of each one's words, then -1
    table: NDArray[Any] = np.arange(len(levels[0].keys), dtype=np.int32)[:, None]
    for n, level in enumerate(levels[1:], start=1):
        table = np.concatenate([table[grams.prefix[n]], table[grams.suffix[n]][:, -1:]], axis=1)
        is_entry = grams.whole[table[:, 0]] & grams.whole[table[:, -1]] & (pmi[n] > _ROUNDING)
        scores.append(pmi[n][is_entry])
        counts.append(level.counts[is_entry])
        keys.append(level.keys[is_entry])
        tables.append(np.pad(table[is_entry], ((0, 0), (0, settings.max_words - n - 1)), constant_values=-1))
    score, count, key = np.concatenate(scores), np.concatenate(counts), np.concatenate(keys)
    size = settings.size or min(LARGEST_SIZE, num_words // _WORDS_PER_ENTRY)
    order = np.lexsort((key, -count, -score))[:size]
    table = np.concatenate(tables)[order]
    each = table[table >= 0]  # words of all collocations, concatenated
    sizes = np.diff(grams.begins)[each]
    starts = np.zeros(int(sizes.sum()), dtype=np.uint8)
    starts[np.cumsum(sizes) - sizes] = 1
    ends = np.cumsum(np.concatenate([[0], sizes]))[np.cumsum(np.concatenate([[0], (table >= 0).sum(1)]))]
    return Lexicon(
        input_ids=gather(grams.input_ids, grams.begins[each], sizes),
        word_starts=starts,
        lengths=np.diff(ends).astype(np.int32),
        pmi=score[order].astype(np.float32),
        counts=count[order],
        informativeness=informativeness,
        facts={
            "tokenizer_sha256": tokenizer.fingerprint,
            "data_sha256": data_sha256,
            "settings": settings.model_dump(),
            "num_words": num_words,
            "candidates": len(score),
        },
    )
