"""The lexicon of a corpus: its collocations, counted, ranked and spelled out, and how much each token tells."""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

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
from unmask.data.key_counter import RUN_KEYS, Counted, KeyCounter
from unmask.data.store import TokenChunk
from unmask.tokenizer.tokenizer import Tokenizer

# ----------------------------------------
# Tokens to words: what n-grams of words are made of, in whole arrays.
#
# A collocation is made of words: letters, numbers, ideographs. Inside of it may stand what joins words in writing
# (apostrophes and hyphens, where the tokenizer makes them words of their own, and white space, where that is a word);
# no other sign, no unknown token, and no end of a document. So `don ' t` and `mother - in - law` are collocations
# of BERT's tokenizer, and `, and` is none.

_JOINERS = frozenset("'’-\u2010\u2011")
_BROKEN = "\ufffd"  # of a character that several tokens make together


class Role(IntEnum):
    """What a word is to a collocation."""

    BARRIER = 0
    JOINER = 1
    WORD = 2


@dataclass(frozen=True)
class TokenWords:
    """The words of some documents that are not barriers, one behind another. W = number of words.

    Attributes:
        hashes: [W], int64: of the word's tokens.
        runs: [W], int64: words of the same number have nothing between them.
        whole: [W], bool: words proper; false for what joins.
        begins: [W], int64: the word's first token among those of the documents.
        lengths: [W], int64: number of its tokens.
        num_words: All words of the documents, barriers included.
    """

    hashes: NDArray[np.int64]
    runs: NDArray[np.int64]
    whole: NDArray[np.bool_]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    num_words: int

    def grams(self, most: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """The n-grams that begin at each word, for n = 1 to `most`.

        Yields:
            Hashes, and whether nothing stands between the words; [W - n + 1] each.
        """
        hashes, mixed = self.hashes, mix(self.hashes)
        yield hashes, np.ones(len(hashes), dtype=bool)
        for n in range(2, most + 1):
            hashes = longer(hashes[:-1], mixed[n - 1 :])
            yield hashes, self.runs[: len(hashes)] == self.runs[n - 1 :]


class WordReader:
    """Finds the words in arrays of tokens.

    Args:
        tokenizer: Whose tokens they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.roles: NDArray[np.int8] = np.full(tokenizer.vocab_size, Role.BARRIER, dtype=np.int8)
        for id_ in np.flatnonzero(tokenizer.ordinary):
            self.roles[id_] = role_of(tokenizer.text(int(id_)))
        self.ordinary = tokenizer.ordinary

    def read(
        self, input_ids: NDArray[np.integer[Any]], word_starts: NDArray[Any], lengths: NDArray[np.int64]
    ) -> TokenWords:
        """Finds the words of some documents, or pieces of documents, one behind another.

        Args:
            input_ids: [num_tokens].
            word_starts: [num_tokens].
            lengths: [num_documents]: how many of the tokens each has.
        """
        if not len(input_ids):
            none = np.zeros(0, dtype=np.int64)
            return TokenWords(none, none, np.zeros(0, dtype=bool), none, none, 0)
        ids = np.asarray(input_ids, dtype=np.int64)
        first = np.zeros(len(ids) + 1, dtype=bool)
        first[np.cumsum(lengths) - lengths] = True  # an empty document's begin is the next one's
        starts = word_starts.astype(bool) | first[:-1]
        begins = np.flatnonzero(starts)
        sizes = np.diff(np.append(begins, len(ids)))
        hashes = hashes_of_words(ids, begins)
        role = np.maximum.reduceat(self.roles[ids], begins)
        role[~np.logical_and.reduceat(self.ordinary[ids], begins)] = Role.BARRIER
        # A run of words ends before a document and at a barrier.
        kept = role != Role.BARRIER
        runs = np.cumsum(first[:-1][begins] | ~kept)[kept]
        return TokenWords(hashes[kept], runs, role[kept] == Role.WORD, begins[kept], sizes[kept], len(begins))


def hashes_of_words(input_ids: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hashes words by their tokens.

    Args:
        input_ids: [num_tokens], of which the first begins a word.
        begins: [num_words]: the first token of each.

    Returns:
        [num_words], int64.
    """
    if not len(begins):
        return np.zeros(0, dtype=np.int64)
    place = np.arange(len(input_ids)) - np.repeat(begins, np.diff(np.append(begins, len(input_ids))))
    return np.add.reduceat(token_in_word(input_ids, place), begins)


def role_of(text: str) -> Role:
    """What a word of this text is to a collocation."""
    if any(letter.isalnum() or letter == _BROKEN or unicodedata.category(letter)[0] == "M" for letter in text):
        return Role.WORD
    return Role.JOINER if all(letter.isspace() or letter in _JOINERS for letter in text) else Role.BARRIER


# ----------------------------------------
# A lexicon and its settings: collocations with their PMI, and how informative each token is, in one file.

MOST_WORDS = 5
LARGEST_SIZE = 800_000
_WORDS_PER_ENTRY = 256


class LexiconSettings(Settings):
    """Settings of a lexicon.

    Attributes:
        size: Most collocations; None is one for 256 words of the corpus, but not more than the paper's 800,000.
        min_count: Collocations stand in the corpus more often than this.
        max_words: Longest collocation.

    Source: Levine et al. 2021 (PMI-Masking), section 4: 2 to 5 words, more than 10 occurrences, 800,000 entries for
    16 GB of text.
    """

    size: Annotated[int, Field(ge=1)] | None = None
    min_count: Annotated[int, Field(ge=1)] = 10
    max_words: Annotated[int, Field(ge=2, le=MOST_WORDS)] = 5

    def size_for(self, num_words: int) -> int:
        """Most collocations for a corpus of so many words."""
        return self.size or min(LARGEST_SIZE, num_words // _WORDS_PER_ENTRY)


VERSION = 1
_FORMAT = "unmask lexicon"
_FACTS = "facts"


@dataclass(frozen=True)
class Lexicon:
    """Collocations, the strongest first; as a file, of safetensors. N = how many there are.

    Attributes:
        input_ids: [num_tokens], int32: their tokens, one collocation behind another.
        word_starts: [num_tokens], uint8: whether a word begins at the token.
        lengths: [N], int32: tokens of each.
        pmi: [N], float32, in nats.
        counts: [N], int64: how often each stands in the corpus.
        informativeness: [vocab_size], float32, in nats.
        facts: Where it comes from: `tokenizer_sha256`, `data_sha256`, `settings`, `num_words`, `candidates`.
    """

    input_ids: NDArray[np.int32]
    word_starts: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    pmi: NDArray[np.float32]
    counts: NDArray[np.int64]
    informativeness: NDArray[np.float32]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_words(self) -> NDArray[np.int64]:
        """[N]: words of each collocation."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.word_starts.astype(np.int64), np.cumsum(self.lengths) - self.lengths)

    def hashes(self) -> NDArray[np.int64]:
        """[N], int64: the hash of each collocation, as masking makes it of rows."""
        words = hashes_of_words(self.input_ids.astype(np.int64), np.flatnonzero(self.word_starts))
        num_words = self.num_words
        first = np.cumsum(num_words) - num_words
        found = words[first]
        for n in range(1, int(num_words.max(initial=1))):
            more = num_words > n
            found[more] = longer(found[more], mix(words[first[more] + n]))
        return found

    def ids_of(self, number: int) -> list[int]:
        """The tokens of a collocation."""
        end = int(self.lengths[: number + 1].sum())
        return self.input_ids[end - int(self.lengths[number]) : end].tolist()

    @property
    def fingerprint(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file's content, the same for the same lexicon."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        facts = {"format": _FORMAT, "version": VERSION, **self.facts}
        # One entry of metadata: safetensors writes several in any order.
        return safetensors.numpy.save(arrays, metadata={_FACTS: json.dumps(facts, sort_keys=True)})

    def save(self, path: Path) -> None:
        """Writes the file."""
        write_atomically(path, self.to_bytes())

    def check_tokenizer(self, tokenizer: Tokenizer, *, name: str) -> None:
        """Refuses another tokenizer than the one that it was made with.

        Raises:
            DataError: It is another.
        """
        if self.facts["tokenizer_sha256"] != tokenizer.fingerprint:
            raise DataError(
                f"{name}: the lexicon was made with another tokenizer than the one in use; make it anew with "
                "`unmask lexicon DATA --out F`, of data that this tokenizer has prepared"
            )


_ARRAYS = ("input_ids", "word_starts", "lengths", "pmi", "counts", "informativeness")


def load_lexicon(path: Path) -> Lexicon:
    """Reads a lexicon.

    Raises:
        DataError: There is none, or the file is something else, damaged, or of another version.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such lexicon; make it with `unmask lexicon DATA --out {typed(path)}`")
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
# N-grams of words that stand often in a corpus, counted exactly, level by level, and their PMI.
#
# An n-gram is no more frequent than either of its two (n-1)-grams. So a pass over the corpus for each n counts only
# those whose parts were frequent, and one more pass finds out what the frequent ones consist of. Memory holds what is
# frequent and some chunks of the corpus; all else lies in sorted runs on the disk.


def pmi_of(census: Census) -> list[NDArray[np.float64]]:
    """The pointwise mutual information of n words: how much likelier they stand together than their parts by chance.

        PMI(w1 ... wn) = min over all ways to cut w1 ... wn into parts  of  log( p(w1 ... wn) / product of p(part) )

    The minimum is what keeps `new york is` out: cut into `new york` and `is`, it is about what chance makes of these.

    Cut off the first l words as one part, and cut the rest in the best way or not at all: the best of all l is the best
    cut. Parts of a frequent n-gram are frequent, so all of them are in the levels below.

    Returns:
        For n = 1, 2, ...: [K], in nats, of every frequent n-gram; infinite for n = 1, where there is nothing to cut.

    Source: Levine et al. 2021 (PMI-Masking), section 4. p is a count divided by the number of words of the corpus, for
    any number of words.
    """
    logs = [np.log(level.counts) - math.log(max(census.num_words, 1)) for level in census.levels]
    best: list[NDArray[np.float64]] = []  # the largest sum of log p over all cuts, or of the whole
    found: list[NDArray[np.float64]] = []
    for n, log_p in enumerate(logs, start=1):
        # Numbers of the first and of the last 1, 2, ... n - 1 words of each n-gram, in their levels.
        prefixes: list[NDArray[np.int64]] = []
        suffixes: list[NDArray[np.int64]] = []
        head = tail = np.arange(len(log_p))
        for level in reversed(census.levels[1:n]):
            head, tail = level.prefix[head].astype(np.int64), level.suffix[tail].astype(np.int64)
            prefixes.insert(0, head)
            suffixes.insert(0, tail)
        cut = np.full(len(log_p), -math.inf)
        for length in range(1, n):
            first, rest = prefixes[length - 1], suffixes[n - length - 1]
            cut = np.maximum(cut, logs[length - 1][first] + best[n - length - 1][rest])
        found.append(log_p - cut)
        best.append(np.maximum(log_p, cut))
    return found


Corpus = Callable[[str], Iterator[tuple[NDArray[np.int64], TokenWords]]]
"""Goes through the corpus once, telling somebody for what: the tokens of each chunk, and its words."""


@dataclass(frozen=True)
class Level:
    """The frequent n-grams of one n. K = how many there are; those of n = 1 are words.

    Attributes:
        keys: [K], int64: their hashes, in increasing order.
        counts: [K], int64.
        words: [K, n], int32: numbers of their words in the first level.
        prefix: [K], int32: number of the first n - 1 words in the level below; empty for n = 1.
        suffix: [K], int32: number of the last n - 1 words.
    """

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    words: NDArray[np.int32]
    prefix: NDArray[np.int32]
    suffix: NDArray[np.int32]


@dataclass(frozen=True)
class Spellings:
    """The tokens of the frequent words, one word behind another.

    Attributes:
        input_ids: [num_tokens], int32.
        begins: [K + 1], int64.
        whole: [K], bool: words proper; false for what joins.
    """

    input_ids: NDArray[np.int32]
    begins: NDArray[np.int64]
    whole: NDArray[np.bool_]


@dataclass(frozen=True)
class Census:
    """What was counted.

    Attributes:
        num_words: Words of the corpus, all of them.
        levels: For n = 1, 2, ...
        spellings: Of the first level.
    """

    num_words: int
    levels: tuple[Level, ...]
    spellings: Spellings


def find(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Looks keys up in a sorted table. Returns: their numbers in it (any where they are not), and whether they are."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted


def take_census(corpus: Corpus, *, most_words: int, min_count: int, scratch: Path, run_keys: int = RUN_KEYS) -> Census:
    """Counts the n-grams of a corpus.

    Args:
        corpus: Gone through once for each n, and once more.
        most_words: Largest n.
        min_count: What is kept stands more often than this.
        scratch: Folder for temporary files.
        run_keys: Keys that are counted in memory at a time.
    """
    counted: list[Counted] = []
    num_words = 0
    for n in range(1, most_words + 1):
        with KeyCounter(scratch, run_keys=run_keys) as counter:
            for _, words in corpus("counting words" if n == 1 else f"counting {n} words in a row"):
                num_words += words.num_words if n == 1 else 0
                grams = list(words.grams(n))
                hashes, together = grams[-1]
                if n > 1 and len(hashes):  # those of which both (n-1)-grams are frequent
                    _, frequent = find(counted[-1].keys, grams[-2][0])
                    hashes = hashes[together & frequent[:-1] & frequent[1:]]
                counter.add(hashes)
            counted.append(counter.above(min_count))
        if not len(counted[-1].keys):
            break
    return _describe(corpus, counted, num_words)


def _describe(corpus: Corpus, counted: list[Counted], num_words: int) -> Census:
    """Finds out what the frequent n-grams consist of, wherever they are met first."""
    sizes = [len(level.keys) for level in counted]
    prefixes = [np.zeros(size, dtype=np.int32) for size in sizes]
    suffixes = [np.zeros(size, dtype=np.int32) for size in sizes]
    whole, spelled = np.zeros(sizes[0], dtype=bool), np.zeros(sizes[0], dtype=bool)
    none = np.zeros(0, dtype=np.int64)
    spellings: list[tuple[NDArray[Any], ...]] = [(none, none, none)]  # numbers of words, their lengths, their tokens
    for input_ids, words in corpus("reading the frequent ones"):
        below = none
        for n, (hashes, together) in enumerate(words.grams(len(counted)), start=1):
            place, frequent = find(counted[n - 1].keys, hashes)
            frequent &= together
            if n == 1:
                new = np.flatnonzero(frequent)
                new = new[~spelled[place[new]]]
                numbers, first = np.unique(place[new], return_index=True)
                at = new[first]
                spelled[numbers], whole[numbers] = True, words.whole[at]
                spellings.append((numbers, words.lengths[at], gather(input_ids, words.begins[at], words.lengths[at])))
            else:  # all places are in the level below, since parts of the frequent are
                prefixes[n - 1][place[frequent]] = below[:-1][frequent]
                suffixes[n - 1][place[frequent]] = below[1:][frequent]
            below = place
    levels: list[Level] = []
    for (keys, counts), prefix, suffix in zip(counted, prefixes, suffixes, strict=True):
        table = np.arange(len(keys), dtype=np.int32)[:, None]
        if levels:
            table = np.concatenate([levels[-1].words[prefix], levels[-1].words[suffix][:, -1:]], axis=1)
        levels.append(Level(keys, counts, table, prefix, suffix))
    numbers, lengths, tokens = (np.concatenate(column) for column in zip(*spellings, strict=True))
    order = np.argsort(numbers)
    begins = np.concatenate([[0], np.cumsum(lengths[order])])
    spelling = Spellings(gather(tokens, (np.cumsum(lengths) - lengths)[order], lengths[order]), begins, whole)
    return Census(num_words, tuple(levels), spelling)


def gather(
    values: NDArray[np.integer[Any]], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Some slices of an array, one behind another."""
    before = np.cumsum(lengths) - lengths
    return values[np.repeat(begins - before, lengths) + np.arange(lengths.sum())].astype(np.int32)


NEIGHBOURS = 1024
WINDOW = 5
RARE = 10


def informativeness_of(
    chunks: Iterable[TokenChunk],
    tokenizer: Tokenizer,
    frequencies: NDArray[np.int64],
    *,
    scratch: Path,
    run_keys: int = RUN_KEYS,
) -> NDArray[np.float32]:
    """How much each token of the vocabulary tells of its neighbours: the mean of their pointwise mutual information.

        informativeness(w) = sum over c of p(c | w) log( p(c | w) / p(c) )

    where c goes over what stands up to five tokens before or behind w, in other words than w's own. The word `Highness`
    tells much (`Royal` is near), `the` tells nothing.

    Args:
        chunks: The corpus, gone through once.
        tokenizer: Whose tokens they are.
        frequencies: [vocab_size]: how often each id stands in it.
        scratch: Folder for temporary files.
        run_keys: Keys that are counted in memory at a time.

    Returns:
        [vocab_size], in nats; at least 0.

    Source: Sadeq et al. 2022 (InforMask), section 3, where a token's relevance is the sum of its mutual information
    with the tokens that stay visible. Approximations here, so that counts stay few and no estimate rests on nothing:
    the 1,024 most frequent tokens are told apart as neighbours and all others are one; the bias of counts that are few,
    (number of different neighbours - 1) / (2 x neighbours) to first order (Miller 1955), is taken off; tokens that
    stand ten times or less get the median.
    """
    kinds = np.full(len(frequencies), NEIGHBOURS, dtype=np.int64)  # of neighbours; all rare ones are one
    frequent = np.argsort(-frequencies * tokenizer.ordinary, kind="stable")[:NEIGHBOURS]
    kinds[frequent] = np.arange(len(frequent))
    with KeyCounter(scratch, run_keys=run_keys) as counter:
        for chunk in chunks:
            for token, neighbour in _pairs(chunk, tokenizer.ordinary):
                counter.add(token * (NEIGHBOURS + 1) + kinds[neighbour])
                counter.add(neighbour * (NEIGHBOURS + 1) + kinds[token])
        return _from_counts(counter, frequencies * tokenizer.ordinary)


def _pairs(chunk: TokenChunk, ordinary: NDArray[np.bool_]) -> Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Tokens and those 1, 2, ... places behind them, in the same piece but not in the same word."""
    ids = chunk.input_ids.astype(np.int64)
    piece = np.repeat(np.arange(len(chunk.lengths)), chunk.lengths)
    word = np.cumsum(chunk.word_starts, dtype=np.int64)
    usable = ordinary[ids]
    for distance in range(1, min(WINDOW, len(ids) - 1) + 1):
        near, far = slice(None, -distance), slice(distance, None)
        pair = usable[near] & usable[far] & (piece[near] == piece[far]) & (word[near] != word[far])
        yield ids[near][pair], ids[far][pair]


def _from_counts(counter: KeyCounter, frequencies: NDArray[np.int64]) -> NDArray[np.float32]:
    """The estimate from counts of (token, kind of its neighbour)."""
    size = len(frequencies)
    by_kind = np.zeros(NEIGHBOURS + 1, dtype=np.int64)
    for keys, counts in counter.merged():
        by_kind += np.bincount(keys % (NEIGHBOURS + 1), counts, NEIGHBOURS + 1).astype(np.int64)
    total = by_kind.sum()
    by_token, different, logs = np.zeros(size), np.zeros(size), np.zeros(size)
    for keys, counts in counter.merged():
        token, kind = np.divmod(keys, NEIGHBOURS + 1)
        by_token += np.bincount(token, counts, size)
        different += np.bincount(token, minlength=size)
        logs += np.bincount(token, counts * np.log(counts / by_kind[kind]), size)
    known = (frequencies > RARE) & (by_token > 0)
    found = np.zeros(size)
    n = by_token[known]
    found[known] = logs[known] / n + np.log(total / n) - (different[known] - 1) / (2 * n)
    if known.any():
        found[~known] = np.median(found[known])
    return np.maximum(found, 0.0).astype(np.float32)


_ROUNDING = 1e-12  # of a sum of logarithms: words that stand together as often as chance has it are no collocation
CHUNK_TOKENS = 1 << 19

Chunks = Callable[[], Iterator[TokenChunk]]
"""Begins to go through the corpus."""


def build_lexicon(
    chunks: Chunks,
    tokenizer: Tokenizer,
    settings: LexiconSettings,
    *,
    frequencies: NDArray[np.int64],
    data_sha256: str,
    scratch: Path,
    notify: Notify = ignore,
    run_keys: int = RUN_KEYS,
) -> Lexicon:
    """Finds the collocations of a corpus. The same corpus gives the same lexicon, however it is cut into chunks.

    Args:
        chunks: The corpus, gone through `max_words` + 2 times.
        tokenizer: Whose tokens it has.
        settings: What a collocation is, and how many are kept.
        frequencies: [vocab_size]: how often each id stands in it.
        data_sha256: Its fingerprint.
        scratch: An existing folder for temporary files.
        notify: Called with the progress.
        run_keys: Keys that are counted in memory at a time.
    """
    reader, num_tokens = WordReader(tokenizer), int(frequencies.sum())

    def counting(what: str) -> Iterator[TokenChunk]:
        count = counted(notify, what, num_tokens)
        for chunk in chunks():
            yield chunk
            count(len(chunk.input_ids))

    def words(what: str) -> Iterator[tuple[NDArray[np.int64], TokenWords]]:
        for chunk in counting(what):
            ids = chunk.input_ids.astype(np.int64)
            yield ids, reader.read(ids, chunk.word_starts, chunk.lengths)

    census = take_census(
        words, most_words=settings.max_words, min_count=settings.min_count, scratch=scratch, run_keys=run_keys
    )
    informativeness = informativeness_of(
        counting("counting neighbours"), tokenizer, frequencies, scratch=scratch, run_keys=run_keys
    )
    facts = {
        "tokenizer_sha256": tokenizer.fingerprint,
        "data_sha256": data_sha256,
        "settings": settings.model_dump(),
        "num_words": census.num_words,
    }
    return _lexicon(census, settings, informativeness, facts)


def _lexicon(
    census: Census, settings: LexiconSettings, informativeness: NDArray[np.float32], facts: dict[str, object]
) -> Lexicon:
    """Ranks what was counted, over all lengths together, and keeps the strongest.

    The minimum over all cuts makes the PMI of long and short ones comparable: a longer one is no stronger than what its
    weakest cut says. What begins or ends with a sign that joins words is none, nor what chance makes more often.
    """
    spell, pmi = census.spellings, pmi_of(census)
    scores, counts, keys, words = [], [], [], []
    for level, score in list(zip(census.levels, pmi, strict=True))[1:]:
        good = spell.whole[level.words[:, 0]] & spell.whole[level.words[:, -1]] & (score > _ROUNDING)
        padded = np.full((int(good.sum()), settings.max_words), -1, dtype=np.int64)
        padded[:, : level.words.shape[1]] = level.words[good]
        scores.append(score[good])
        counts.append(level.counts[good])
        keys.append(level.keys[good])
        words.append(padded)
    score = np.concatenate([np.zeros(0), *scores])
    count = np.concatenate([np.zeros(0, dtype=np.int64), *counts])
    key = np.concatenate([np.zeros(0, dtype=np.int64), *keys])
    table = np.concatenate([np.zeros((0, settings.max_words), dtype=np.int64), *words])
    order = np.lexsort((key, -count, -score))[: settings.size_for(census.num_words)]
    table = table[order]
    each = table[table >= 0]  # the words of all collocations, one behind another
    sizes = np.diff(spell.begins)[each]
    starts = np.zeros(int(sizes.sum()), dtype=np.uint8)
    starts[np.cumsum(sizes) - sizes] = 1
    ends = np.cumsum(np.concatenate([[0], sizes]))[np.cumsum(np.concatenate([[0], (table >= 0).sum(1)]))]
    return Lexicon(
        input_ids=gather(spell.input_ids, spell.begins[each], sizes),
        word_starts=starts,
        lengths=np.diff(ends).astype(np.int32),
        pmi=score[order].astype(np.float32),
        counts=count[order],
        informativeness=informativeness,
        facts={**facts, "candidates": len(score)},
    )
