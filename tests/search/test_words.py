from __future__ import annotations

import math
import random

import numpy as np
import pytest

from unmask.search.exact import Ranking, no_hits
from unmask.search.passages import words_of
from unmask.search.words import WordSearch, fused, some_of_lines, word_line

RNG = random.Random(0)
WORDS = [f"w{n}" for n in range(60)]
TEXTS = [" ".join(RNG.choices(WORDS, k=RNG.randint(0, 30))) for _ in range(200)]
QUERIES = [" ".join(RNG.choices(WORDS, k=RNG.randint(1, 5))) for _ in range(20)] + ["nothing", "w1 w1 W2", "?"]


def search(texts: list[str], size: int = 64, documents: list[int] | None = None) -> WordSearch:
    """A search over passages in blocks of `size`, each passage a document unless `documents` says otherwise."""
    lines = [word_line(texts[begin : begin + size]) for begin in range(0, len(texts), size)]
    return WordSearch(np.array(range(len(texts)) if documents is None else documents, dtype=np.int64), lambda: lines)


def weight(count: int, containing: int, words: int, *, total: int, mean: float) -> float:
    """Robertson's with Lucene's idf, written out; its constant factor does not change an order."""
    idf = math.log(1 + (total - containing + 0.5) / (containing + 0.5))
    return idf * count / (count + 1.2 * (1 - 0.75 + 0.75 * words / mean))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a_b 2nd, ÉTÉ!", ["it", "s", "a", "b", "2nd", "été"]),
        ("re\u0301sume\u0301", ["résumé"]),
        ("हिन्दी में लिखा", ["हिन्दी", "में", "लिखा"]),
        ("\u0301 東京 sea", ["東", "京", "sea"]),
        ("İstanbul ISTANBUL Donau\u00addampf", ["istanbul", "istanbul", "donaudampf"]),
        ("ภาษาไทย ดีๆ", ["ภ", "า", "ษ", "า", "ไ", "ท", "ย", "ดี", "ๆ"]),
        ("བོད་སྐད། ភាសាខ្មែរ", ["བོ", "ད", "སྐ", "ད", "ភា", "សា", "ខ្", "មែ", "រ"]),
    ],
)
def test_marks_continue_a_word(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_bm25_is_the_formula() -> None:
    documents = ["the cat sat", "The dog, the dog!", "a bird", "the cat sat"]
    ranking = search(documents).rank(["the cat"], 4)
    figures = {"total": 4, "mean": (3 + 4 + 2 + 3) / 4}
    both = weight(1, 3, 3, **figures) + weight(1, 2, 3, **figures)
    np.testing.assert_allclose(ranking.scores_QK, [[both, both, weight(2, 3, 4, **figures), -np.inf]])
    assert ranking.documents_QK.tolist() == [[0, 3, 1, -1]]


def test_documents_are_weighed_whole_and_their_best_passage_is_shown() -> None:
    """Three documents in five passages, the second removed: it counts nowhere."""
    texts = ["a cat", "cat cat cat sat", "a dog and a cat", "one bird", "a ship"]
    ranking = search(texts, 2, [0, 0, -1, 1, 1]).rank(["cat", "dog", "ship"], 2)
    figures = {"total": 2, "mean": (6 + 4) / 2}
    np.testing.assert_allclose(ranking.scores_QK[0], [weight(4, 1, 6, **figures), -np.inf])
    assert ranking.passages_QK.tolist() == [[1, -1], [-1, -1], [4, -1]]
    assert ranking.documents_QK.tolist() == [[0, -1], [-1, -1], [1, -1]]


def test_blocks_and_removed_documents_change_no_bit() -> None:
    there = np.array([RNG.random() < 0.6 for _ in TEXTS])
    rest = [text for text, stays in zip(TEXTS, there, strict=True) if stays]
    documents = np.where(there, np.cumsum(there) - 1, -1).tolist()
    expected = search(rest).rank(QUERIES, 10)
    for size in (1, 7, 1000):
        actual = search(TEXTS, size, documents).rank(QUERIES, 10)
        np.testing.assert_array_equal(actual.scores_QK, expected.scores_QK)
        np.testing.assert_array_equal(actual.documents_QK, expected.documents_QK)
    lines = [word_line(TEXTS[begin : begin + 50]) for begin in range(0, 200, 50)]
    np.testing.assert_array_equal(some_of_lines(lines, np.split(there, 4)), word_line(rest))


def ranked(documents: list[int], scores: list[float]) -> Ranking:
    ranking = no_hits(1, 4)
    for column, values in zip(ranking, (scores, documents, [10 * each for each in documents]), strict=True):
        column[0, : len(values)] = values
    return ranking


def test_two_rankings_as_one() -> None:
    """Documents 1 to 5; vectors rank four, and words two, since no others share a word."""
    vectors, words = ranked([1, 2, 3, 4], [0.9, 0.8, 0.6, 0.5]), ranked([5, 2], [6.0, 4.0])
    # Vectors of 5 have at most the last score: 0.9, 0.8, 0.6, 0.5, 0.5; words of 1, 3 and 4 are 0: 0, 4, 0, 0, 6.
    above = np.array([0.24, 0.14, -0.06, -0.16, -0.16]) / math.sqrt(0.1320 / 5)
    of_words = np.array([-2.0, 2.0, -2.0, -2.0, 4.0]) / math.sqrt(32 / 5)
    total = 0.25 * above + 0.75 * of_words
    by_scores = fused(vectors, words, 4, words_weight=0.75)
    assert by_scores.documents_QK.tolist() == [[5, 2, 1, 3]]
    np.testing.assert_allclose(by_scores.scores_QK, [total[[4, 1, 0, 2]]])
    assert by_scores.passages_QK.tolist() == [[50, 20, 10, 30]]
    nothing = fused(vectors, no_hits(1, 4), 4)
    assert nothing.documents_QK.tolist() == [[1, 2, 3, 4]]
