"""Lexicons: words of tokens, collocations and informativeness by hand and against a count in plain Python, files."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models

from unmask.core.errors import DataError
from unmask.data import lexicon as lexicon_module
from unmask.data.lexicon import (
    RARE,
    WINDOW,
    Lexicon,
    LexiconSettings,
    Role,
    build_lexicon,
    informativeness_of,
    load_lexicon,
    role_of,
)
from unmask.data.store import TokenChunk
from unmask.tokenizer.tokenizer import Tokenizer

Document = list[tuple[int, ...]]  # words, each some tokens
Collocation = tuple[tuple[int, ...], ...]


def chunks_of(documents: list[Document], size: int | None = None) -> Callable[[], Iterator[TokenChunk]]:
    """Documents as a corpus, `size` of them per chunk."""

    def go() -> Iterator[TokenChunk]:
        step = size or max(len(documents), 1)
        for begin in range(0, len(documents), step):
            part = documents[begin : begin + step]
            ids = np.array([id_ for document in part for word in document for id_ in word], dtype=np.uint16)
            starts = np.array([k == 0 for document in part for word in document for k in range(len(word))], np.uint8)
            lengths = np.array([sum(map(len, document)) for document in part], dtype=np.int64)
            yield TokenChunk(ids, starts, lengths)

    return go


def frequencies_of(tokenizer: Tokenizer, documents: list[Document]) -> np.ndarray:
    ids = [id_ for document in documents for word in document for id_ in word]
    return np.bincount(np.array(ids, dtype=np.int64), minlength=tokenizer.vocab_size)


def letter_ids(tokenizer: Tokenizer, count: int) -> list[int]:
    """Ids of entries that are letters only."""
    return [int(i) for i in np.flatnonzero(tokenizer.ordinary) if tokenizer.text(int(i)).isalpha()][:count]


@pytest.mark.parametrize(
    ("role", "texts"),
    [
        (Role.WORD, ["king", "1984", "王", "\u0301", "\ufffd", "l'été"]),
        (Role.JOINER, ["'", "’", "-", " ", ""]),
        (Role.BARRIER, [",", "--,", "€", "—"]),
    ],
)
def test_what_a_word_is_to_a_collocation(role: Role, texts: list[str]) -> None:
    assert {role_of(text) for text in texts} == {role}


def build(
    tokenizer: Tokenizer,
    documents: list[Document],
    scratch: Path,
    *,
    chunk: int | None = None,
    run_keys: int = 1 << 20,
    **options: int | None,
) -> Lexicon:
    settings = LexiconSettings.model_validate({"size": 10_000, "min_count": 1} | options)
    chunks, frequencies = chunks_of(documents, chunk), frequencies_of(tokenizer, documents)
    with patch.object(lexicon_module, "RUN_KEYS", run_keys):
        return build_lexicon(chunks, tokenizer, settings, frequencies=frequencies, data_sha256="data", scratch=scratch)


def plain(lexicon: Lexicon) -> dict[Collocation, tuple[float, int]]:
    """Collocation to (PMI, count)."""
    scores = {}
    ends = np.cumsum(lexicon.lengths)
    for number, (begin, end) in enumerate(zip(ends - lexicon.lengths, ends, strict=True)):
        places = [*(begin + np.flatnonzero(lexicon.word_starts[begin:end])), end]
        words = tuple(tuple(lexicon.input_ids[a:b].tolist()) for a, b in itertools.pairwise(places))
        scores[words] = float(lexicon.pmi[number]), int(lexicon.counts[number])
    assert len(scores) == len(lexicon)
    return scores


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
    scored = {}
    for gram, count in counts.items():
        if len(gram) == 1 or count <= min_count or Role.JOINER in (role(gram[0]), role(gram[-1])):
            continue
        scores = []
        for cuts in range(1, len(gram)):
            for places in itertools.combinations(range(1, len(gram)), cuts):
                parts = [gram[i:j] for i, j in itertools.pairwise([0, *places, len(gram)])]
                scores.append(math.log(count / total) - sum(math.log(counts[part] / total) for part in parts))
        if min(scores) > 1e-12:
            scored[gram] = min(scores), count
    return scored


def test_pmi_by_hand(tokenizer: Tokenizer, tmp_path: Path) -> None:
    a, b, c = ((i,) for i in letter_ids(tokenizer, 3))
    documents: list[Document] = [[a, b, c]] * 3 + [[a, b], [c], [c]]
    # 13 words: a 4, b 4, c 5, ab 4, bc 3, abc 3. abc is weakest between ab and c.
    assert plain(build(tokenizer, documents, tmp_path)) == {
        (a, b): (pytest.approx(math.log(4 * 13 / (4 * 4))), 4),
        (b, c): (pytest.approx(math.log(3 * 13 / (4 * 5))), 3),
        (a, b, c): (pytest.approx(math.log(3 * 13 / (4 * 5))), 3),
    }
    assert plain(build(tokenizer, documents, tmp_path, min_count=3)).keys() == {(a, b)}, "more often than that"
    assert plain(build(tokenizer, documents, tmp_path, max_words=2)).keys() == {(a, b), (b, c)}
    strongest = build(tokenizer, documents, tmp_path, size=2)
    assert (len(strongest), next(iter(plain(strongest))), strongest.facts["candidates"]) == (2, (a, b), 3)


@settings(max_examples=40)
@given(data=st.data())
def test_any_corpus_cut_in_any_way(tokenizer: Tokenizer, tmp_path: Path, data: st.DataObject) -> None:
    """Tiny chunks, tiny runs and one pass equal each other and the definition, to the last bit of the file."""
    a, b, c = letter_ids(tokenizer, 3)
    stop = tokenizer.backend.token_to_id(".")
    words = st.sampled_from([(a,), (b,), (a, b), (b, a), (c,), (stop,), (tokenizer.special.unk, a)])
    documents = data.draw(st.lists(st.lists(words, max_size=14), max_size=12))
    options = {"min_count": data.draw(st.integers(1, 3)), "max_words": data.draw(st.integers(2, 5))}
    lexicon = build(tokenizer, documents, tmp_path, **options)
    assert plain(lexicon) == {
        gram: (pytest.approx(score, abs=1e-6), count)
        for gram, (score, count) in naive(tokenizer, documents, **options).items()
    }
    assert (np.diff(lexicon.pmi) <= 0).all()
    pieces = build(tokenizer, documents, tmp_path, chunk=1, run_keys=data.draw(st.integers(1, 9)), **options)
    assert pieces.to_bytes() == lexicon.to_bytes()
    assert not list(tmp_path.glob(".lexicon-*")), "nothing stays on the disk"


def test_what_joins_may_stand_within_but_not_at_the_ends(tmp_path: Path) -> None:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "don", "'", "t", "x"]
    small = Tokenizer(Backend(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")))
    don, mark, t, x = (5,), (6,), (7,), (8,)
    assert plain(build(small, [[don, mark, t], [x], [x]] * 4, tmp_path)).keys() == {(don, mark, t)}


def informativeness(tokenizer: Tokenizer, documents: list[Document], scratch: Path, **cut: int) -> np.ndarray:
    chunks, frequencies = chunks_of(documents, cut.get("chunk"))(), frequencies_of(tokenizer, documents)
    with patch.object(lexicon_module, "RUN_KEYS", cut.get("run_keys", 1 << 20)):
        return informativeness_of(chunks, tokenizer, frequencies, scratch=scratch)


def naive_informativeness(tokenizer: Tokenizer, documents: list[Document], kinds: int) -> dict[int, float]:
    """The definition, pair by pair; -1 stands for all neighbours that are not among the most frequent."""
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


def test_informativeness_by_hand(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Each of x, y, u, v has one neighbour, which is a quarter of all; the rare get the median of the others."""
    x, y, u, v = letter_ids(tokenizer, 4)
    values = informativeness(tokenizer, [[(x,), (y,)], [(u,), (v,)]] * 50, tmp_path)
    assert values[[x, y, u, v]] == pytest.approx(math.log(4))
    values = informativeness(tokenizer, [[(x,), (y,)]] * 40 + [[(u,), (x,)]] * RARE, tmp_path)
    assert values[u] == values[v] == pytest.approx(np.median(values[[x, y]]))
    assert values.min() >= 0
    assert not informativeness(tokenizer, [[(x,)]] * 40, tmp_path).any(), "no neighbours at all"


@pytest.mark.parametrize("kinds", [3, 1024])
def test_informativeness_against_its_definition(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    monkeypatch.setattr(lexicon_module, "NEIGHBOURS", kinds)
    rng = np.random.default_rng(1)
    ids = np.array([*letter_ids(tokenizer, 12), tokenizer.special.unk])
    documents: list[Document] = []
    for _ in range(60):
        near = rng.integers(0, 3) * 4  # words of a document belong together
        drawn = np.where(rng.random(20) < 0.7, near + rng.integers(0, 4, 20), rng.integers(0, 13, 20))
        documents.append([*((int(ids[i]),) for i in drawn), (int(ids[near]), int(ids[1]))])
    expected = naive_informativeness(tokenizer, documents, kinds)
    assert len(expected) == 12
    assert sum(value > 0.02 for value in expected.values()) > 3
    values = informativeness(tokenizer, documents, tmp_path)
    assert {token: values[token] for token in expected} == pytest.approx(expected, abs=1e-6)
    cut = informativeness(tokenizer, documents, tmp_path, chunk=1, run_keys=10)
    assert np.allclose(cut, values, atol=1e-6)


@pytest.fixture
def lexicon(tokenizer: Tokenizer, tmp_path: Path) -> Lexicon:
    a, b, c, d, e = letter_ids(tokenizer, 5)
    words = [(a, b), (c,), (d, e, a), (b,), (e,)]
    return build(tokenizer, [words, words[:2], words[1:4], [(c,)], [(a,)] * 5] * 3, tmp_path)


def test_a_file_holds_all_of_it(lexicon: Lexicon, tmp_path: Path) -> None:
    lexicon.save(tmp_path / "file")
    again = load_lexicon(tmp_path / "file")
    assert again.to_bytes() == lexicon.to_bytes() == (tmp_path / "file").read_bytes()
    assert again.facts["settings"] == {"size": 10_000, "min_count": 1, "max_words": 5}
    assert again.fingerprint == lexicon.fingerprint
    assert not list(tmp_path.glob("*.partial"))


def test_files_that_are_no_lexicon(lexicon: Lexicon, tmp_path: Path) -> None:
    file, content = tmp_path / "file", lexicon.to_bytes()
    with pytest.raises(DataError, match=r"file: .*unmask lexicon DATA --out .*file"):
        load_lexicon(file)
    kinds: list[dict[str, object]] = [{}, {"format": "x", "version": 1}, {"format": "unmask lexicon", "version": 99}]
    others = [safetensors.numpy.save({"x": np.zeros(2)}, metadata={"facts": json.dumps(kind)}) for kind in kinds]
    for damaged in (b"", b"text", content[:-9], content[:50], *others):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="file"):
            load_lexicon(file)
