"""What is held out keeps groups together, whatever the order, near the share that is asked for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_split_check import changed, compared, random_text
from unmask.core.errors import CorpusError
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.groups import choose_groups
from unmask.data.near_duplicates import NearDuplicates
from unmask.data.settings import ColumnGroups, CorpusSettings, NearDuplicateGroups


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def by_patient(**more: object) -> CorpusSettings:
    return CorpusSettings.model_validate({"column": "text", "holdout_groups": "patient", **more})


def sides(corpus: Corpus) -> dict[str, bool]:
    """Side by text."""
    return {piece.text: held for piece, held in corpus.pieces()}


def patients(number: int, *, seed: int = 0, most: int = 20) -> list[dict[str, object]]:
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for patient in range(number):
        rows += [
            {"text": f"note {len(rows) + k} {random_text(rng, 12)}", "patient": f"p{patient}"}
            for k in range(rng.randint(1, most))
        ]
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("patient", ColumnGroups(column="patient")),
        ("column:near_duplicates", ColumnGroups(column="near_duplicates")),
        ("near_duplicates", NearDuplicateGroups()),
        (3, ColumnGroups(column=3)),
        ({"kind": "column", "column": "near_duplicates"}, ColumnGroups(column="near_duplicates")),
        (None, None),
    ],
)
def test_the_short_forms_of_the_setting(value: object, meant: object) -> None:
    corpus = CorpusSettings.model_validate({"holdout_groups": value})
    assert corpus.holdout_groups == meant
    assert CorpusSettings.model_validate(corpus.model_dump(mode="json")) == corpus


@pytest.mark.parametrize(
    ("more", "named"),
    [({}, "near_duplicates"), ({"validation": ["b.txt"]}, "validation"), ({"holdout_from": "end"}, "holdout_from")],
)
def test_what_the_setting_cannot_be(more: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        validated(CorpusSettings, {"holdout_groups": "a" if more else "column:", **more}, where="corpus")


@settings(max_examples=40, deadline=None)
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
    write_rows(path, [{"text": text, "patient": group} for text, group in rows])
    corpus = Corpus([path], by_patient(holdout=share))
    held: dict[str | None, set[bool]] = {}
    for piece, side in corpus.pieces():
        held.setdefault(piece.group, set()).add(side)
    assert all(len(found) == 1 for found in held.values())
    assert set.union(*held.values()) == {True, False}
    assert set(held) == {group for _, group in rows}


@pytest.mark.parametrize("number", [12, 60, 2000])
@pytest.mark.parametrize("seed", range(2))
def test_the_share_is_near_the_one_asked_for(number: int, seed: int) -> None:
    """Within half of it, wherever a few groups of a size that fits are there; and what is said is what is."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(-(2**63), 2**63 - 1, number)
    sizes = rng.integers(1, 1000, number)
    choice = choose_groups(keys, sizes, 0.1)
    held = np.isin(keys, choice.keys)
    assert choice.share == pytest.approx(sizes[held].sum() / sizes.sum())
    assert abs(choice.share - 0.1) < (0.05 if number > 12 else 0.1)
    assert 0 < held.sum() < number
    assert choice.largest == sizes.max() / sizes.sum()


def test_a_large_group_is_trained_on(tmp_path: Path) -> None:
    rows = patients(40) + [{"text": f"of the large one {n} " + "x " * 50, "patient": "large"} for n in range(1000)]
    corpus = Corpus([write_rows(tmp_path / "a.jsonl", rows)], by_patient())
    assert not any(held and piece.group == "large" for piece, held in corpus.pieces())
    told = corpus.describe(corpus.decided())
    assert "1 of them too large to be held out" in told
    assert corpus.decided().groups is not None
    held, total = 0, 0
    for piece, side in corpus.pieces():
        held, total = held + side * len(piece.text), total + len(piece.text)
    assert f"{held / total:.1%} of the text" in told
    assert 0.025 < held / total < 0.075


def test_rows_without_a_value_go_by_their_text(tmp_path: Path) -> None:
    rows = patients(50) + [{"text": f"nobody's {n}", "patient": None} for n in range(3000)]
    found = Corpus([write_rows(tmp_path / "a.jsonl", rows)], by_patient())
    alone = [held for piece, held in found.pieces() if piece.group is None]
    assert abs(sum(alone) / len(alone) - 0.05) < 4 * (0.05 * 0.95 / len(alone)) ** 0.5
    assert "3,000 documents without a value there go by their text" in found.describe(found.decided())


def test_errors_of_columns(tmp_path: Path) -> None:
    rows = patients(20)
    path = write_rows(tmp_path / "a.jsonl", rows)
    with pytest.raises(CorpusError, match=r"a.jsonl: .*'person' for corpus.holdout_groups; .*text, patient"):
        Corpus([path], by_patient(holdout_groups="person"))
    for value, named in (("x", "'x'"), (None, "no row has a value")):
        one = Corpus([write_rows(tmp_path / "b.jsonl", [{**row, "patient": value} for row in rows])], by_patient())
        with pytest.raises(CorpusError, match=f"corpus.holdout_groups = 'patient'.*{named}"):
            next(one.pieces())
    odd = write_rows(tmp_path / "d.jsonl", [*rows, {"text": "t", "patient": ["x"]}])
    with pytest.raises(CorpusError, match=r"d.jsonl: row \d+ has list.*'patient'"):
        list(Corpus([odd], by_patient()).pieces())
    passing = Corpus([odd], by_patient(bad_input="skip"))
    assert len(sides(passing)) == len(rows)
    assert passing.skipped == {"rows whose group cannot be read": 1}


def clustered(rng: random.Random) -> list[list[str]]:
    """Clusters of texts that are equal but for digits, or have a word changed."""
    clusters = []
    for _ in range(400):
        source = random_text(rng, rng.choice([4, 300]))  # with a word changed twice, 0.93 at the least
        if len(source.split()) == 4:
            clusters.append([f"{source} {rng.randrange(9999)}" for _ in range(rng.randint(1, 5))])
        else:
            clusters.append([source, *(changed(rng, source, 1) for _ in range(rng.randint(0, 3)))])
    return clusters


def looked_at(corpus: Corpus) -> NearDuplicates:
    return compared(list(corpus.pieces()), parts=corpus.plan.holdout_unit == "part")


def test_near_duplicates_are_never_on_both_sides(tmp_path: Path) -> None:
    """And without the setting they are."""
    rng = random.Random(0)
    clusters = clustered(rng)
    texts = [text for cluster in clusters for text in cluster]
    rng.shuffle(texts)
    path = tmp_path / "a.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    plain = Corpus([path], CorpusSettings(documents="line"))
    assert looked_at(plain).share > 0.3
    asked = CorpusSettings.model_validate({"documents": "line", "holdout_groups": "near_duplicates"})
    corpus = Corpus([path], asked)
    found = sides(corpus)
    assert all(len({found[text] for text in cluster}) == 1 for cluster in clusters)
    assert looked_at(corpus).share == 0.0
    assert corpus.decided().groups is not None
    share = sum(len(text) for text in texts if found[text]) / sum(map(len, texts))
    assert corpus.decided().groups.share == pytest.approx(share)
    assert 0.025 <= share <= 0.075
    assert f"clusters of near-duplicate documents, {share:.1%} of the text" in corpus.describe(corpus.decided())
    rng.shuffle(texts)
    files = [tmp_path / name for name in ("z.txt", "b.txt")]
    for number, file in enumerate(files):
        file.write_text("\n".join(texts[number::2]) + "\n", encoding="utf-8")
    assert sides(Corpus(files, asked)) == found


def test_why_a_document_is_held_out(tmp_path: Path) -> None:
    """For each rule the answer is the side on which reading puts it."""
    path = write_rows(tmp_path / "a.jsonl", [*patients(60), {"text": "of nobody", "patient": None}])
    (tmp_path / "held.jsonl").write_text('{"text": "held", "patient": "x"}\n')
    rules: dict[str, dict[str, object]] = {
        "hash": {},
        "group": {"holdout_groups": "patient"},
        "cluster": {"holdout_groups": "near_duplicates"},
        "end": {"holdout_from": "end"},
        "file": {"validation": [str(tmp_path / "held.jsonl")]},
    }
    for rule, values in rules.items():
        corpus = Corpus([path], CorpusSettings.model_validate({"column": "text", "holdout": 0.2, **values}))
        held = {piece.document: side for piece, side in corpus.pieces() if piece.last}
        chosen = {
            True: [n for n, side in held.items() if side][-1],
            False: next(n for n, side in held.items() if not side),
        }
        for side, number in chosen.items():
            answer = corpus.why(number)
            assert answer.is_held_out == side
            assert answer.rule == (rule if side or rule != "file" else "nothing")
            assert answer.reason
    assert Corpus([path], by_patient()).why(len(held) - 2).rule == "hash", "it has no group"
    with pytest.raises(CorpusError, match="there is no document 99999"):
        Corpus([path], by_patient()).why(99999)
