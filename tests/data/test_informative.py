from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.data.lexicon_helpers import Document, chunks_of, letter_ids
from unmask.data import lexicon as informative
from unmask.data.lexicon import RARE, WINDOW, informativeness_of
from unmask.tokenizer.tokenizer import Tokenizer


def found(tokenizer: Tokenizer, documents: list[Document], scratch: Path, **cut: int) -> np.ndarray:
    ids = [id_ for document in documents for word in document for id_ in word]
    frequencies = np.bincount(ids, minlength=tokenizer.vocab_size)
    chunks = chunks_of(documents, cut.get("chunk"))()
    return informativeness_of(chunks, tokenizer, frequencies, scratch=scratch, run_keys=cut.get("run_keys", 1 << 20))


def naive(tokenizer: Tokenizer, documents: list[Document], kinds: int) -> dict[int, float]:
    """The definition, pair by pair; -1 is every neighbour that is not among the most frequent."""
    words = [[(w, i) for w, word in enumerate(document) for i in word] for document in documents]
    usable = Counter(i for document in words for _, i in document if tokenizer.ordinary[i])
    frequent = sorted(usable, key=lambda i: (-usable[i], i))[:kinds]
    pairs: Counter[tuple[int, int]] = Counter()
    for document in words:
        for place, (word, i) in enumerate(document):
            for other_word, j in document[max(0, place - WINDOW) : place + WINDOW + 1]:
                if other_word != word and usable[i] and usable[j]:
                    pairs[i, j if j in frequent else -1] += 1
    total, left, right = sum(pairs.values()), Counter[int](), Counter[int]()
    for (i, j), count in pairs.items():
        left[i] += count
        right[j] += count
    values = {}
    for i in left:
        if usable[i] > RARE:
            mean = sum(n / left[i] * math.log(n * total / left[i] / right[j]) for (k, j), n in pairs.items() if k == i)
            values[i] = max(0.0, mean - (sum(k == i for k, _ in pairs) - 1) / (2 * left[i]))
    return values


def test_by_hand(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """x is always beside y, so each tells log 2 of the other, less the bias; with one neighbour there is none."""
    x, y, u, v = ((i,) for i in letter_ids(tokenizer, 4))
    values = found(tokenizer, [[x, y], [u, v]] * 50, tmp_path)
    # Each has one neighbour, which is a quarter of all.
    for (token,) in (x, y, u, v):
        assert values[token] == pytest.approx(math.log(4))


@pytest.mark.parametrize("kinds", [3, 1024])
def test_against_the_definition(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    monkeypatch.setattr(informative, "NEIGHBOURS", kinds)
    rng = np.random.default_rng(1)
    ids = np.array([*letter_ids(tokenizer, 12), tokenizer.special.unk])
    documents: list[Document] = []
    for _ in range(60):
        near = rng.integers(0, 3) * 4  # words of a document belong together
        drawn = np.where(rng.random(20) < 0.7, near + rng.integers(0, 4, 20), rng.integers(0, 13, 20))
        words = [(int(ids[i]),) for i in drawn]
        documents.append([*words, (int(ids[near]), int(ids[1]))])
    expected = naive(tokenizer, documents, kinds)
    assert len(expected) == 12
    assert sum(value > 0.02 for value in expected.values()) > 3
    values = found(tokenizer, documents, tmp_path)
    for token, value in expected.items():
        assert values[token] == pytest.approx(value, abs=1e-6)
    cut = found(tokenizer, documents, tmp_path, chunk=1, run_keys=10)
    assert np.allclose(cut, values, atol=1e-6)


def test_the_rare_get_the_median_and_nothing_gets_less_than_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    a, b, c, d = letter_ids(tokenizer, 4)
    values = found(tokenizer, [[(a,), (b,)]] * 40 + [[(c,), (a,)]] * RARE, tmp_path)
    known = [values[a], values[b]]
    assert values[c] == values[d] == pytest.approx(np.median(known))
    assert values.min() >= 0
    assert not found(tokenizer, [[(a,)]] * 40, tmp_path).any(), "no neighbours at all"
