"""Words of a text: search by shared words, which a model should beat, and snippets of what was found.

Words are runs of letters and digits in lower case, ideographs and kana one by one. BM25, and TF-IDF with cosines, see
whole documents. There are no stop words and no stems, which belong to a language; frequent words weigh little in
either. A document that shares no word with a query is not found.

Source: Robertson and Zaragoza 2009 (The probabilistic relevance framework), in the form of Lucene, which bm25s has as
`lucene` (Lù 2024, BM25S); Salton and Buckley 1988 (Term-weighting approaches) for TF-IDF, with logarithms of counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.core.errors import SettingsError

SNIPPET_CHARS = 200
# Ideographs and kana are words one by one: no space separates them.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_NEEDS: dict[str, tuple[str, str]] = {"bm25": ("bm25s", "bm25s"), "tfidf": ("sklearn", "scikit-learn")}
_K1, _B = 1.2, 0.75  # Lucene's own


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, by which queries and documents are compared."""
    return WORD.findall(text.lower())


def check_lexical(names: Sequence[str]) -> tuple[str, ...]:
    """The baselines of these names, each once. Raises `SettingsError` where there is none of this name, or its package
    is not installed."""
    for name in names:
        if name not in _NEEDS:
            raise SettingsError(f"baselines {name}: there are {', '.join(_NEEDS)}, and none", options=("baselines",))
        module, package = _NEEDS[name]
        if find_spec(module) is None:
            raise SettingsError(
                f"{name} takes {package}, which is not installed: pip install 'unmask[search]', or go without",
                options=("baselines",),
            )
    return tuple(dict.fromkeys(names))


def rank_lexically(kind: str, documents: Sequence[str], queries: Sequence[str], top_k: int) -> NDArray[np.int64]:
    """The documents [queries, top_k] that share most with each query, the best first; -1 where no more do.

    Documents that share equally much come in the order of their numbers.
    """
    ranking = np.full((len(queries), top_k), -1, dtype=np.int64)
    for query, scores_N in enumerate(lexical_scores(kind, documents, queries)):
        shares = np.flatnonzero(scores_N > 0.0)
        if len(shares) > top_k:
            kth = np.partition(scores_N[shares], len(shares) - top_k)[len(shares) - top_k]
            shares = shares[scores_N[shares] >= kth]
        best = shares[np.argsort(-scores_N[shares], kind="stable")][:top_k]
        ranking[query, : len(best)] = best
    return ranking


def lexical_scores(kind: str, documents: Sequence[str], queries: Sequence[str]) -> Iterator[NDArray[np.float64]]:
    """Scores [documents] of each query, one after the other."""
    words = [words_of(text) for text in documents]
    if not any(words):
        yield from np.zeros((len(queries), len(documents)))
    elif kind == "bm25":
        import bm25s

        index = bm25s.BM25(method="lucene", k1=_K1, b=_B)
        index.index(words, show_progress=False)
        for query in queries:
            query_words = words_of(query)
            yield index.get_scores(query_words) if query_words else np.zeros(len(documents))
    else:
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(analyzer=words_of, sublinear_tf=True)
        of_documents = vectorizer.fit_transform(documents).T.tocsr()
        for query_1V in vectorizer.transform(queries):
            yield (query_1V @ of_documents).toarray()[0]


# ----------------------------------------
# The place in a passage that shares most with a query: the stretch, in whole words, that holds most letters of the
# query's words: each word counts once, and long words, which are mostly rare, count more. Without a word in common it
# is the beginning.


class Snippet(NamedTuple):
    """A stretch of a passage, on one line."""

    text: str  # each run of white space as one space
    marks: tuple[tuple[int, int], ...]  # begin and end of each word of the query in it, sorted


def find_snippet(passage: str, query: str, size: int = SNIPPET_CHARS) -> Snippet:
    """The first stretch of a passage that shares most with a query: `size` characters at most, or one longer word."""
    text = " ".join(passage.split())
    query_words = set(words_of(query))
    shared = [(m.start(), m.end(), m[0].lower()) for m in WORD.finditer(text) if m[0].lower() in query_words]
    # The best stretch from one shared word to another, and then as much around it on either side.
    inside: Counter[str] = Counter()
    best, stretch = -1, (0, 0)
    first = weight = 0
    for begin, end, word in shared:
        weight += len(word) * (inside[word] == 0)
        inside[word] += 1
        while end - shared[first][0] > size and shared[first][0] < begin:
            leaving = shared[first][2]
            inside[leaving] -= 1
            weight -= len(leaving) * (inside[leaving] == 0)
            first += 1
        if weight > best:
            best, stretch = weight, (shared[first][0], end)
    room = max(0, size - (stretch[1] - stretch[0])) // 2
    begin = max(0, min(stretch[0] - room, len(text) - size))
    end = min(len(text), begin + size)
    # Leave out the halves of words at both ends, where there is a space near.
    if begin > 0 and not text[begin - 1].isspace() and (space := text.find(" ", begin, begin + size // 4)) >= 0:
        begin = space + 1
    if end < len(text) and not text[end].isspace() and (space := text.rfind(" ", end - size // 4, end)) > begin:
        end = space
    before, after = "… " if begin > 0 else "", " …" if end < len(text) else ""
    shift = len(before) - begin
    marks = tuple((b + shift, e + shift) for b, e, _ in shared if begin <= b and e <= end)
    return Snippet(before + text[begin:end] + after, marks)
