"""Collocations by hand, and against a count in plain Python."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.lexicon_helpers import Document, chunks_of, id_of, letter_ids
from unmask.data.lexicon import Lexicon, LexiconSettings, Role, build_lexicon, role_of
from unmask.tokenizer.tokenizer import Tokenizer

Collocation = tuple[tuple[int, ...], ...]


def build(
    tokenizer: Tokenizer,
    documents: list[Document],
    scratch: Path,
    *,
    chunk: int | None = None,
    run_keys: int = 1 << 20,
    **options: int | None,
) -> Lexicon:
    ids = [id_ for document in documents for word in document for id_ in word]
    return build_lexicon(
        chunks_of(documents, chunk),
        tokenizer,
        LexiconSettings.model_validate({"size": 10_000, "min_count": 1} | options),
        frequencies=np.bincount(np.array(ids, dtype=np.int64), minlength=tokenizer.vocab_size),
        data_sha256="data",
        scratch=scratch,
        run_keys=run_keys,
    )


def plain(lexicon: Lexicon) -> dict[Collocation, tuple[float, int]]:
    """Collocation to (PMI, count)."""
    found = {}
    for number in range(len(lexicon)):
        begin = int(lexicon.lengths[:number].sum())
        end = begin + int(lexicon.lengths[number])
        words: list[list[int]] = []
        for id_, start in zip(lexicon.input_ids[begin:end].tolist(), lexicon.word_starts[begin:end], strict=True):
            if start:
                words.append([])
            words[-1].append(id_)
        found[tuple(map(tuple, words))] = float(lexicon.pmi[number]), int(lexicon.counts[number])
    assert len(found) == len(lexicon)
    return found


def naive(
    tokenizer: Tokenizer, documents: list[Document], *, min_count: int = 1, max_words: int = 5
) -> dict[Collocation, tuple[float, int]]:
    """The definition, word by word: counts, all ways to cut, the minimum."""

    def role(word: tuple[int, ...]) -> Role:
        if not all(tokenizer.ordinary[i] for i in word):
            return Role.BARRIER
        return max(role_of(tokenizer.text(i)) for i in word)

    counts: Counter[Collocation] = Counter()
    for document in documents:
        for begin, end in itertools.combinations(range(len(document) + 1), 2):
            if end - begin <= max_words and all(role(word) for word in document[begin:end]):
                counts[tuple(document[begin:end])] += 1
    total = sum(map(len, documents))
    found = {}
    for gram, count in counts.items():
        if len(gram) == 1 or count <= min_count or Role.JOINER in (role(gram[0]), role(gram[-1])):
            continue
        scores = []
        for cuts in range(1, len(gram)):
            for places in itertools.combinations(range(1, len(gram)), cuts):
                parts = [gram[i:j] for i, j in itertools.pairwise([0, *places, len(gram)])]
                scores.append(math.log(count / total) - sum(math.log(counts[part] / total) for part in parts))
        if min(scores) > 1e-12:
            found[gram] = min(scores), count
    return found


def test_pmi_by_hand(tokenizer: Tokenizer, tmp_path: Path) -> None:
    a, b, c = ((i,) for i in letter_ids(tokenizer, 3))
    documents: list[Document] = [[a, b, c]] * 3 + [[a, b], [c], [c]]
    found = plain(build(tokenizer, documents, tmp_path))
    # 13 words: a 4, b 4, c 5, ab 4, bc 3, abc 3. abc is weakest between ab and c.
    assert found == {
        (a, b): (pytest.approx(math.log(4 * 13 / (4 * 4))), 4),
        (b, c): (pytest.approx(math.log(3 * 13 / (4 * 5))), 3),
        (a, b, c): (pytest.approx(math.log(3 * 13 / (4 * 5))), 3),
    }
    assert plain(build(tokenizer, documents, tmp_path, min_count=3)).keys() == {(a, b)}, "more often than that"
    assert plain(build(tokenizer, documents, tmp_path, max_words=2)).keys() == {(a, b), (b, c)}
    strongest = build(tokenizer, documents, tmp_path, size=2)
    assert list(plain(strongest)) == [(a, b), *(g for g in plain(strongest) if g != (a, b))]
    assert strongest.facts["candidates"] == 3


def test_never_across_documents_signs_and_unknown_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    a, b = ((i,) for i in letter_ids(tokenizer, 2))
    comma, unknown = (id_of(tokenizer, ","),) if tokenizer.backend.token_to_id(",") else None, (tokenizer.special.unk,)
    stop = (id_of(tokenizer, "."),)
    for between in filter(None, (comma, unknown, stop)):
        assert not len(build(tokenizer, [[a, between, b]] * 9, tmp_path))  # type: ignore[list-item]
    assert not len(build(tokenizer, [[a], [b]] * 9, tmp_path))
    assert len(build(tokenizer, [[a, b], [a, b], [a], [b]] * 9, tmp_path)) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_corpus_cut_in_any_way(tokenizer: Tokenizer, tmp_path: Path, data: st.DataObject) -> None:
    """Tiny chunks, tiny runs and one pass equal each other and the definition, to the last bit of the file."""
    a, b, c = letter_ids(tokenizer, 3)
    words = st.sampled_from([(a,), (b,), (a, b), (b, a), (c,), (id_of(tokenizer, "."),), (tokenizer.special.unk, a)])
    documents = data.draw(st.lists(st.lists(words, max_size=14), max_size=12))
    min_count, max_words = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 5))
    options = {"min_count": min_count, "max_words": max_words}
    lexicon = build(tokenizer, documents, tmp_path, **options)
    assert plain(lexicon) == {
        gram: (pytest.approx(score, abs=1e-6), count)
        for gram, (score, count) in naive(tokenizer, documents, **options).items()
    }
    assert (np.diff(lexicon.pmi) <= 0).all()
    pieces = build(tokenizer, documents, tmp_path, chunk=1, run_keys=data.draw(st.integers(1, 9)), **options)
    assert pieces.to_bytes() == lexicon.to_bytes()


def test_what_joins_may_stand_within_but_not_at_the_ends(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "don", "'", "t", "x"]
    small = Tokenizer(Backend(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")))
    don, mark, t, x = (5,), (6,), (7,), (8,)
    found = plain(build(small, [[don, mark, t], [x], [x]] * 4, tmp_path))
    assert found.keys() == {(don, mark, t)}


def test_the_size_follows_the_corpus() -> None:
    settings = LexiconSettings()
    assert [settings.size_for(n) for n in (0, 2_105_710, 10**10)] == [0, 8225, 800_000]
    assert LexiconSettings(size=5).size_for(10**10) == 5
