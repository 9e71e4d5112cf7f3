"""Holding out keeps groups together; near-duplicates across the split, against a brute force over all pairs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.corpora import changed, corpus_of, jaccard, random_text, sides, words_of, write_jsonl
from unmask.core.errors import CorpusError
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.documents import Document
from unmask.data.groups import choose_groups
from unmask.data.near_duplicates import (
    KINDS,
    SIMILAR,
    SKETCH,
    HeldTexts,
    LeakSearch,
    NearDuplicates,
    hash_texts,
    near_duplicates,
    similarity,
)
from unmask.data.settings import CorpusSettings


def by_patient(path: Path, **more: object) -> Corpus:
    return corpus_of(path, column="text", **{"holdout_groups": "patient", **more})


def patients(number: int) -> list[dict[str, object]]:
    rng = random.Random(0)
    rows: list[dict[str, object]] = []
    for patient in range(number):
        for _ in range(rng.randint(1, 20)):
            rows.append({"text": f"note {len(rows)} {random_text(rng, 12)}", "patient": f"p{patient}"})
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize("more", [{"holdout_groups": ""}, {"validation": ["b.txt"]}, {"holdout_from": "end"}])
def test_what_the_setting_cannot_be(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="holdout_groups"):
        validated(CorpusSettings, {"holdout_groups": "a", **more}, where="corpus")


@settings(max_examples=40)
@given(
    rows=st.lists(
        st.tuples(st.text("abc de", min_size=1, max_size=9).filter(str.strip), st.sampled_from("pqrstuvw")),
        min_size=2,
        max_size=60,
    ).filter(lambda rows: len({group for _, group in rows}) > 1),
    share=st.floats(0.01, 0.5),
)
def test_a_group_is_never_on_both_sides(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], share: float
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    write_jsonl(path, [{"text": text, "patient": group} for text, group in rows])
    pairs = {(piece.group, side) for piece, side in by_patient(path, holdout=share).pieces()}
    assert len(pairs) == len({group for _, group in rows})
    assert {group for group, _ in pairs} == {group for _, group in rows}
    assert {side for _, side in pairs} == {True, False}


@pytest.mark.parametrize("number", [12, 60, 2000])
@pytest.mark.parametrize("seed", range(2))
def test_the_share_is_near_the_configured_one(number: int, seed: int) -> None:
    """The share deviates by less than half of the setting if there are enough groups; the real share is returned."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(-(2**63), 2**63 - 1, number)
    sizes = rng.integers(1, 1000, number)
    choice = choose_groups(keys, sizes, 0.1)
    held = np.isin(keys, choice.keys)
    assert choice.share == pytest.approx(sizes[held].sum() / sizes.sum())
    assert abs(choice.share - 0.1) < (0.05 if number > 12 else 0.1)
    assert 0 < held.sum() < number


def test_large_groups_and_rows_without_a_group(tmp_path: Path) -> None:
    """A group that is too large is trained on; a row without a value goes by its text."""
    rows = patients(40) + [{"text": f"of the large one {n} " + "x " * 50, "patient": "large"} for n in range(1000)]
    corpus = by_patient(write_jsonl(tmp_path / "a.jsonl", rows))
    assert not any(held and piece.group == "large" for piece, held in corpus.pieces())
    held = sum(len(text) for text, side in sides(corpus).items() if side) / sum(map(len, sides(corpus)))
    assert f"{held:.1%} of the text" in corpus.describe(corpus.decided())
    assert 0.025 < held < 0.075
    rows = patients(50) + [{"text": f"no patient {n}", "patient": None} for n in range(3000)]
    corpus = by_patient(write_jsonl(tmp_path / "b.jsonl", rows))
    alone = [side for piece, side in corpus.pieces() if piece.group is None]
    assert abs(sum(alone) / len(alone) - 0.05) < 4 * (0.05 * 0.95 / len(alone)) ** 0.5
    rows = [{"text": f"note {n:03}", "patient": "abc"[n % 3] if n < 99 else None} for n in range(300)]
    groups = by_patient(write_jsonl(tmp_path / "c.jsonl", rows)).decided().groups
    assert groups
    assert groups.share == pytest.approx((33 + 0.05 * 201) / 300)


def test_errors_of_columns(tmp_path: Path) -> None:
    rows = patients(20)
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(CorpusError, match=r"a.jsonl: .*'person' for corpus.holdout_groups; .*text, patient"):
        by_patient(path, holdout_groups="person")
    for value, named in (("x", "'x'"), (None, "no row")):
        one = by_patient(write_jsonl(tmp_path / "b.jsonl", [{**row, "patient": value} for row in rows]))
        with pytest.raises(CorpusError, match=f"corpus.holdout_groups = 'patient'.*{named}"):
            next(one.pieces())
    for value in (["x"], "\ud83d"):
        odd = write_jsonl(tmp_path / "d.jsonl", [*rows, {"text": "t", "patient": value}])
        with pytest.raises(CorpusError, match=r"d.jsonl: row \d+ .*'patient'"):
            list(by_patient(odd).pieces())
        skipping = by_patient(odd, bad_input="skip")
        assert len(sides(skipping)) == len(rows)
        assert skipping.skipped == {"rows whose group cannot be read": 1}


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("the hash", {}),
        ("its group", {"holdout_groups": "patient"}),
        ("the last", {"holdout_from": "end"}),
        ("it is in a held-out file", {"validation": ["held.jsonl"]}),
    ],
)
def test_why_a_document_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, values: dict[str, object]
) -> None:
    """The answer is the side to which reading assigns it."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "held.jsonl", [{"text": "held", "patient": "x"}])
    path = write_jsonl(tmp_path / "a.jsonl", [*patients(60), {"text": "of no patient", "patient": None}])
    corpus = corpus_of(path, column="text", holdout=0.2, **values)
    side_of = {piece.document: side for piece, side in corpus.pieces() if piece.last}
    for side in (True, False):
        numbers = [number for number, held in side_of.items() if held == side]
        reason = "only separate files" if values.keys() == {"validation"} and not side else rule
        answer = corpus.why(numbers[-1 if side else 0])
        assert answer.startswith(f"{'held out' if side else 'trained on'}: {reason}")
    if rule == "its group":
        assert ": the hash" in corpus.why(len(side_of) - 1), "it has no group"
    with pytest.raises(CorpusError, match="99999"):
        corpus.why(99999)


def pieces_of(held: Iterable[str], training: Iterable[str]) -> list[tuple[Document, bool]]:
    sides = [(text, True) for text in held] + [(text, False) for text in training]
    return [(Document(number, 0, text), side) for number, (text, side) in enumerate(sides)]


def compared(
    pieces: list[tuple[Document, bool]], *, size: int = 10**6, tasks: int = 1, every: bool = False
) -> NearDuplicates:
    """The result for a corpus that is read in several tasks, a few pieces at a time."""
    reads = [pieces[len(pieces) * task // tasks : len(pieces) * (task + 1) // tasks] for task in range(tasks)]
    held, leaks, left_out = HeldTexts(), {kind: dict[str, str]() for kind in KINDS}, 0
    for read in reads:
        some = HeldTexts()
        assert list(some.collect(read)) == read
        held.join(some.arrays())
    search = LeakSearch(held, every=every)
    for read in reads:
        search.begin()
        for begin in range(0, len(read), size):
            now = read[begin : begin + size]
            sides, offset = np.array([side for _, side in now]), np.array([piece.offset for piece, _ in now])
            left_out += int(search.look([piece.text for piece, _ in now], sides, offset).sum())
        for kind, texts in json.loads(json.dumps(search.leaks)).items():
            leaks[kind] = texts | leaks[kind]
    return near_duplicates(held, leaks, left_out=left_out if every else 0)


def test_the_kinds_of_near_duplicates() -> None:
    long = "the quick brown fox jumps over the lazy dog while nine other foxes look on and laugh at it all day long"
    held = ["One text.", "User 12 logged IN", long, "nobody else says this", "?!", "...", "One text."]
    training = ["One text.", "user 5, logged in", long + " again", "something else", "?!", "User 12 logged out"]
    pieces = pieces_of(held, training)
    result = compared(pieces)
    assert compared(pieces, size=7) == compared(pieces, tasks=3) == result
    assert (result.held_out, result.compared, result.share) == (7, 7, 5 / 7)
    assert (result.equal, result.normalised, result.similar) == (3, 1, 1)  # `...` is not `?!`, though both lack words
    assert result.example.kind == "equal"
    assert result.example.held_out == result.example.training


@pytest.mark.parametrize("num_words", [2, 6, 40, 900, 5000])
def test_similarity_is_jaccard(num_words: int) -> None:
    """Exact while both sketches hold all shingles; beyond that, within five standard deviations."""
    rng = random.Random(num_words)
    one = random_text(rng, num_words)
    for share in (0.0, 0.01, 0.04, 0.3):
        other = changed(rng, one, min(num_words, round(num_words * share) + 1))
        words, exact = hash_texts([one, other]), jaccard(one, other)
        within = 1e-12 if num_words < SKETCH else 5 * (exact * (1 - exact) / SKETCH) ** 0.5
        assert similarity(words.sketch(0), words.sketch(1)) == pytest.approx(exact, abs=within, rel=0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Der Straße entlang", "der STRAßE: entlang!", True),
        ("naïve “quotes” — and dashes", "naïve quotes and dashes", True),
        ("५ किताबें", "१२३ किताबें", True),  # digits and vowel signs of Devanagari
        ("किताब", "कताब", False),
        ("あなたは３回", "あなたは12回", True),
        ("我们去北京", "我们去上海", False),
        ("a-b", "ab", False),
        ("no 1", "no", False),
        ("x\u00a0y", "x y", True),
        ("tiếng Việt が", "tie\u0302\u0301ng Vie\u0323\u0302t か\u3099", True),
        ("😀 yes", "😂 yes", False),
        ("\U00050000", "\U00050001", False),
    ],
)
def test_normal_forms(one: str, other: str, same: bool) -> None:
    normal = hash_texts([one, other, one]).normal
    assert (normal[0] == normal[1]) == same
    assert normal[0] == normal[2]


def test_leaks_are_those_of_a_brute_force() -> None:
    """Over all pairs: texts that are equal, but for numbers and signs, or similar; about 1 in 20 is missed at the very
    border of similarity."""

    def repeat(texts: list[str], others: list[str]) -> int:
        """How many of the texts are like one of the others."""
        return sum(
            any(words_of(text) == words_of(other) or jaccard(text, other) >= SIMILAR for other in others)
            for text in texts
        )

    rng, sizes = random.Random(6), [3, 8, 30, 60, 120, 400]
    training, held = ([random_text(rng, rng.choice(sizes)) for _ in range(number)] for number in (150, 50))
    sources = rng.sample(training, 75)
    held += [changed(rng, source, rng.randint(1, max(1, len(source.split()) // 40))) for source in sources]
    training = [*training, *(text.upper() for text in held[:5]), *training[:20]]
    pieces = pieces_of(held, training)
    result = compared(pieces, every=True)
    assert min(result.left_out, result.similar) > 25
    assert abs(result.left_out - repeat(training, held)) <= 2
    assert abs(result.equal + result.normalised + result.similar - repeat(held, training)) <= 2
    assert compared(pieces, every=True, tasks=4) == result
    assert compared(pieces).share == result.share, "left out or not"
    assert f"; the {result.left_out:,} training documents" in result.summary
