"""Search by words: what the blocks of an index hold of them, BM25 over documents, and two rankings made one.

    of a block, in a line of uint32:
    V Z | hashes of V words, ascending | where the list of each begins | Z times passage << 16 | count | words of each
                                                                                                          passage

Lists hold counts and nothing else. How many documents hold a word, how many there are and how long they are is added up
when a query comes, over the documents that are there: after some were added or removed, scores are those of an index
that was made anew, bit for bit. Words where passages overlap count once, so documents are weighed whole. There are no
stop words and no stems, which belong to a language; frequent words weigh little. A document that shares no word with a
query is not ranked.

Source: Robertson and Zaragoza 2009 (The probabilistic relevance framework), in the form of Lucene; Cormack,
Clarke and Büttcher 2009 (Reciprocal rank fusion).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.search.exact import Ranking, no_hits
from unmask.search.passages import words_of

Fusion = Literal["scores", "ranks"]
K1, B = 1.2, 0.75  # Lucene's own
WORDS_WEIGHT = 0.5
FUSED = 100  # documents of each ranking that are joined
_RANK = 60  # which is added to ranks
_MOST = 0xFFFF  # passages of a block, and times that a word counts in one


def word_line(texts: Sequence[str]) -> NDArray[np.uint32]:
    """The line of a block of passages, of which there are at most 65,536."""
    assert len(texts) <= _MOST + 1
    hash_of: dict[str, int] = {}
    hashes, places, lengths = [], [], []
    for passage, text in enumerate(texts):
        counts = Counter(words_of(text))
        lengths.append(counts.total())
        for word, count in counts.items():
            hashes.append(hash_of.get(word) or hash_of.setdefault(word, _hash(word)))
            places.append(passage << 16 | min(count, _MOST))
    return _line(np.array(hashes, np.uint64), np.array(places, np.uint32), np.array(lengths, np.uint32))


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _line(hashes_Z: NDArray[Any], places_Z: NDArray[Any], lengths_P: NDArray[Any]) -> NDArray[np.uint32]:
    order = np.lexsort((places_Z, hashes_Z))
    hashes, begins = np.unique(hashes_Z[order], return_index=True)
    counts, size = [len(hashes), len(places_Z)], [len(places_Z)]
    line = np.concatenate([counts, hashes.view(np.uint32), begins, size, places_Z[order], lengths_P])
    return line.astype("<u4")


def some_of_lines(lines: Iterable[NDArray[np.uint32]], masks: Iterable[NDArray[np.bool_]]) -> NDArray[np.uint32]:
    """Lines of blocks as one, with the passages of each for which its mask [P] is true."""
    hashes, places, lengths, first = [], [], [], 0
    for line, mask_P in zip(lines, masks, strict=True):
        block, numbers_P = _Words(line), first + np.cumsum(mask_P) - 1
        owners = block.lists >> 16
        stays = mask_P[owners]
        hashes.append(np.repeat(block.hashes, np.diff(block.begins))[stays])
        places.append((numbers_P[owners] << 16 | block.lists & _MOST)[stays])
        lengths.append(block.lengths[mask_P])
        first += int(mask_P.sum())
    return _line(*(np.concatenate(some) for some in (hashes, places, lengths)))


class _Words:
    """Such a line, not copied."""

    def __init__(self, line: NDArray[np.uint32]) -> None:
        num_words, size = int(line[0]), int(line[1])
        parts = np.split(np.asarray(line), np.cumsum([2, 2 * num_words, num_words + 1, size]))
        self.hashes, self.begins, self.lists, self.lengths = parts[1].view(np.uint64), *parts[2:]

    def list_of(self, hash_: np.uint64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The passages that hold a word, ascending, and how often each does."""
        place = int(np.searchsorted(self.hashes, hash_))
        is_there = place < len(self.hashes) and self.hashes[place] == hash_
        packed = self.lists[self.begins[place] : self.begins[place + is_there]].astype(np.int64)
        return packed >> 16, packed & _MOST


class WordSearch:
    """Documents that are searched by BM25.

    Args:
        documents_P: int64, ascending: the document of each passage, numbered without a gap; -1: removed.
        lines: Gives the line of each block, in order, whenever it is called.
    """

    def __init__(self, documents_P: NDArray[np.int64], lines: Callable[[], Iterable[NDArray[np.uint32]]]) -> None:
        self._documents_P, self._lines = documents_P, lines

    @cached_property
    def _of_documents(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
        """Of each document the first passage, how many it has, and the words of all of them."""
        lengths_P = np.concatenate([np.zeros(0, np.uint32), *(_Words(line).lengths for line in self._lines())])
        there = np.flatnonzero(self._documents_P >= 0)
        _, begins, counts = np.unique(self._documents_P[there], return_index=True, return_counts=True)
        lengths_N = np.bincount(self._documents_P[there], lengths_P[there]).astype(np.float64)
        return there[begins], counts, lengths_N

    def rank(self, queries: Sequence[str], top_k: int) -> Ranking:
        """The documents that share most with each query, and of each the passage that shares most."""
        firsts_N, counts_N, lengths_N = self._of_documents
        norms_N = K1 * (1.0 - B + B * lengths_N / max(1e-9, lengths_N.sum() / max(1, len(lengths_N))))

        # The passages that hold each word: one pass over the blocks for all queries.
        counts_of = [Counter(words_of(query)) for query in queries]
        nowhere = np.zeros((2, 0), dtype=np.int64)
        lists: dict[str, list[NDArray[np.int64]]] = {word: [nowhere] for words in counts_of for word in words}
        hashes, first = {word: np.uint64(_hash(word)) for word in lists}, 0
        for line in self._lines():
            block = _Words(line)
            for word, hash_ in hashes.items():
                passages, counts = block.list_of(hash_)
                is_there = self._documents_P[first + passages] >= 0
                lists[word].append(np.stack([first + passages[is_there], counts[is_there]]))
            first += len(block.lengths)

        ranking = no_hits(len(queries), top_k)
        for query, words in enumerate(counts_of):
            scores_N, scores_P = np.zeros(len(lengths_N)), np.zeros(len(self._documents_P))
            for word, times in words.items():
                passages, counts = np.concatenate(lists[word], axis=1)
                if not len(passages):
                    continue
                # Passages of a document follow each other.
                documents = self._documents_P[passages]
                begins = np.flatnonzero(np.diff(documents, prepend=-1))
                holders, in_document = documents[begins], np.add.reduceat(counts, begins)
                idf = np.log1p((len(lengths_N) - len(holders) + 0.5) / (len(holders) + 0.5))
                scores_N[holders] += times * idf * in_document / (in_document + norms_N[holders])
                scores_P[passages] += times * idf * counts / (counts + K1)
            best = best_of(scores_N, top_k)
            ranking.scores_QK[query, : len(best)] = scores_N[best]
            ranking.documents_QK[query, : len(best)] = best
            for rank, (begin, count) in enumerate(zip(firsts_N[best], counts_N[best], strict=True)):
                ranking.passages_QK[query, rank] = begin + scores_P[begin : begin + count].argmax()
        return ranking


def best_of(scores_N: NDArray[np.float64], top_k: int) -> NDArray[np.int64]:
    """The documents with the highest scores above 0, the best first, equal ones in the order of their numbers."""
    shares = np.flatnonzero(scores_N > 0.0)
    if len(shares) > top_k:
        kth = np.partition(scores_N[shares], len(shares) - top_k)[len(shares) - top_k]
        shares = shares[scores_N[shares] >= kth]
    return shares[np.argsort(-scores_N[shares], kind="stable")][:top_k]


def fused(
    vectors: Ranking, words: Ranking, top_k: int, *, words_weight: float = WORDS_WEIGHT, kind: Fusion = "scores"
) -> Ranking:
    """Two rankings of the same queries as one, by weighted sums over the documents that stand in either.

    Args:
        words_weight: The weight of words, from 0 to 1; that of vectors is the rest.
        kind: `scores`: how many standard deviations a score lies above the mean of these documents; one that a ranking
            lacks has its last score there, or 0 where no more share a word. `ranks`: 1 / (60 + rank), or nothing.
    """
    ranking = no_hits(len(words.documents_QK), top_k)
    weights = np.array([[1.0 - words_weight], [words_weight]])
    for query in range(len(ranking.documents_QK)):
        rows = [[column[query] for column in each] for each in (vectors, words)]
        documents = np.unique(np.concatenate([ranked for _, ranked, _ in rows]))
        documents = documents[documents >= 0]
        points, passages = np.zeros((2, len(documents))), np.full((2, len(documents)), -1)
        for side, (scores, ranked, nearest) in enumerate(rows):
            count = np.count_nonzero(ranked >= 0)
            places = np.searchsorted(documents, ranked[:count])
            passages[side, places] = nearest[:count]
            if kind == "ranks":
                points[side, places] = 1.0 / (_RANK + 1.0 + np.arange(count))
            elif count:
                points[side] = scores[-1] if count == len(ranked) else 0.0
                points[side, places] = scores[:count]
                points[side] = (points[side] - points[side].mean()) / (points[side].std() or 1.0)
        points *= weights
        total = points.sum(axis=0)
        best = np.argsort(-total, kind="stable")[:top_k]
        # The passage is that of the ranking which says more for the document.
        chosen = passages[points.argmax(axis=0), np.arange(len(documents))]
        chosen = np.where(chosen < 0, passages.max(axis=0), chosen)
        for column, values in zip(ranking, (total, documents, chosen), strict=True):
            column[query, : len(best)] = values[best]
    return ranking
