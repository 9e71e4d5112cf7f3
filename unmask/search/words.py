"""Search by words: the word counts that blocks of an index store, BM25 over documents, and fusing two rankings.

    a block, as one array of uint32:
    V Z | hashes of V words, ascending | begin of each word's list | Z times passage << 16 | count | words per passage

The lists hold nothing but counts. Document frequencies, the number of documents and their lengths are added up at each
query, over the documents that exist then. So after documents were added or removed, scores equal those of a rebuilt
index, bit for bit. Words in the overlap of passages count once, so scores are of whole documents. There are no stop
words and no stemming, which depend on the language; frequent words weigh little. A document that shares no word with a
query is not ranked.

Source: Robertson and Zaragoza 2009 (The probabilistic relevance framework), in the form of Lucene.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.search.exact import Ranking, no_hits
from unmask.search.passages import words_of

K1, B = 1.2, 0.75  # Lucene's defaults
WORDS_WEIGHT = 0.5
FUSED = 100  # documents of each ranking that are fused
_MOST = 0xFFFF  # highest passage number of a block, and highest count of a word in a passage


def word_line(texts: Sequence[str]) -> NDArray[np.uint32]:
    """The array of a block of at most 65,536 passages."""
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
    """Joins the arrays of blocks into one, keeping the passages of each block for which its mask [P] is true."""
    hashes, places, lengths, first = [], [], [], 0
    for line, mask_P in zip(lines, masks, strict=True):
        block, numbers_P = _Words(line), first + np.cumsum(mask_P) - 1
        owners = block.lists >> 16
        keep = mask_P[owners]
        hashes.append(np.repeat(block.hashes, np.diff(block.begins))[keep])
        places.append((numbers_P[owners] << 16 | block.lists & _MOST)[keep])
        lengths.append(block.lengths[mask_P])
        first += int(mask_P.sum())
    return _line(*(np.concatenate(parts) for parts in (hashes, places, lengths)))


class _Words:
    def __init__(self, line: NDArray[np.uint32]) -> None:
        num_words, size = int(line[0]), int(line[1])
        parts = np.split(np.asarray(line), np.cumsum([2, 2 * num_words, num_words + 1, size]))
        self.hashes, self.begins, self.lists, self.lengths = parts[1].view(np.uint64), *parts[2:]

    def list_of(self, hash_: np.uint64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The passages that hold a word, ascending, and its count in each."""
        place = int(np.searchsorted(self.hashes, hash_))
        is_there = place < len(self.hashes) and self.hashes[place] == hash_
        packed = self.lists[self.begins[place] : self.begins[place + is_there]].astype(np.int64)
        return packed >> 16, packed & _MOST


class WordSearch:
    """Search of documents by BM25.

    Args:
        documents_P: int64, ascending: the document of each passage, numbered without a gap; -1: removed.
        lines: Called for each pass over the index; returns the array of each block, in order.
    """

    def __init__(self, documents_P: NDArray[np.int64], lines: Callable[[], Iterable[NDArray[np.uint32]]]) -> None:
        self._documents_P, self._lines = documents_P, lines

    @cached_property
    def _of_documents(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
        """For each document, its first passage, number of passages and number of words."""
        lengths_P = np.concatenate([np.zeros(0, np.uint32), *(_Words(line).lengths for line in self._lines())])
        passages = np.flatnonzero(self._documents_P >= 0)
        _, begins, counts = np.unique(self._documents_P[passages], return_index=True, return_counts=True)
        lengths_N = np.bincount(self._documents_P[passages], lengths_P[passages]).astype(np.float64)
        return passages[begins], counts, lengths_N

    def rank(self, queries: Sequence[str], top_k: int) -> Ranking:
        """The documents with the highest BM25 scores for each query, and the best passage of each."""
        firsts_N, counts_N, lengths_N = self._of_documents
        norms_N = K1 * (1.0 - B + B * lengths_N / max(1e-9, lengths_N.sum() / max(1, len(lengths_N))))

        # Collect the passages that hold each word, in one pass over the blocks for all queries.
        counts_of = [Counter(words_of(query)) for query in queries]
        empty = np.zeros((2, 0), dtype=np.int64)
        lists: dict[str, list[NDArray[np.int64]]] = {word: [empty] for words in counts_of for word in words}
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
                # Sum counts over the passages of a document, which are consecutive.
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
    scored = np.flatnonzero(scores_N > 0.0)
    if len(scored) > top_k:
        kth = np.partition(scores_N[scored], len(scored) - top_k)[len(scored) - top_k]
        scored = scored[scores_N[scored] >= kth]
    return scored[np.argsort(-scores_N[scored], kind="stable")][:top_k]


def fused(vectors: Ranking, words: Ranking, top_k: int, *, words_weight: float = WORDS_WEIGHT) -> Ranking:
    """Fuses two rankings of the same queries by weighted sums over the documents in either.

    Scores are standardized over these documents (zero mean, unit variance); a document missing from a ranking gets its
    last score, or 0 if the ranking is not full.

    Args:
        words_weight: The weight of words, from 0 to 1; vectors have the rest.
    """
    ranking = no_hits(len(words.documents_QK), top_k)
    weights = np.array([[1.0 - words_weight], [words_weight]])
    for query in range(len(ranking.documents_QK)):
        rows = [[column[query] for column in source] for source in (vectors, words)]
        documents = np.unique(np.concatenate([ranked for _, ranked, _ in rows]))
        documents = documents[documents >= 0]
        points, passages = np.zeros((2, len(documents))), np.full((2, len(documents)), -1)
        for side, (scores, ranked, nearest) in enumerate(rows):
            count = np.count_nonzero(ranked >= 0)
            places = np.searchsorted(documents, ranked[:count])
            passages[side, places] = nearest[:count]
            if count:
                points[side] = scores[-1] if count == len(ranked) else 0.0
                points[side, places] = scores[:count]
                points[side] = (points[side] - points[side].mean()) / (points[side].std() or 1.0)
        points *= weights
        total = points.sum(axis=0)
        best = np.argsort(-total, kind="stable")[:top_k]
        # Take the passage from the ranking that gave the document more points.
        chosen = passages[points.argmax(axis=0), np.arange(len(documents))]
        chosen = np.where(chosen < 0, passages.max(axis=0), chosen)
        for column, values in zip(ranking, (total, documents, chosen), strict=True):
            column[query, : len(best)] = values[best]
    return ranking
