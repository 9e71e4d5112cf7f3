"""What is held out keeps groups together, whatever the order, near the configured share."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.corpora import changed, corpus_of, random_text, sides, write_jsonl
from tests.data.test_split_check import compared
from unmask.core.errors import CorpusError
from unmask.core.settings import validated
from unmask.data.corpus import Corpus
from unmask.data.groups import choose_groups
from unmask.data.settings import ColumnGroups, CorpusSettings, NearDuplicateGroups


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


@pytest.mark.parametrize("more", [{"holdout_groups": "column:"}, {"validation": ["b.txt"]}, {"holdout_from": "end"}])
def test_what_the_setting_cannot_be(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="holdout_groups"):
        validated(CorpusSettings, {"holdout_groups": "a", **more}, where="corpus")


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
    write_jsonl(path, [{"text": text, "patient": group} for text, group in rows])
    pairs = {(piece.group, side) for piece, side in by_patient(path, holdout=share).pieces()}
    assert len(pairs) == len({group for _, group in rows})
    assert {group for group, _ in pairs} == {group for _, group in rows}
    assert {side for _, side in pairs} == {True, False}


@pytest.mark.parametrize("number", [12, 60, 2000])
@pytest.mark.parametrize("seed", range(2))
def test_the_share_is_near_the_configured_one(number: int, seed: int) -> None:
    """Within half of it, wherever a few groups of a size that fits are there; and what is said is what is."""
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
    description = corpus.describe(corpus.decided())
    assert "1 of them too large to be held out" in description
    held = sum(len(text) for text, side in sides(corpus).items() if side) / sum(map(len, sides(corpus)))
    assert f"{held:.1%} of the text" in description
    assert 0.025 < held < 0.075
    rows = patients(50) + [{"text": f"no patient {n}", "patient": None} for n in range(3000)]
    corpus = by_patient(write_jsonl(tmp_path / "b.jsonl", rows))
    alone = [side for piece, side in corpus.pieces() if piece.group is None]
    assert abs(sum(alone) / len(alone) - 0.05) < 4 * (0.05 * 0.95 / len(alone)) ** 0.5
    assert "3,000 documents without a value" in corpus.describe(corpus.decided())


def test_errors_of_columns(tmp_path: Path) -> None:
    rows = patients(20)
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(CorpusError, match=r"a.jsonl: .*'person' for corpus.holdout_groups; .*text, patient"):
        by_patient(path, holdout_groups="person")
    for value, named in (("x", "'x'"), (None, "no row")):
        one = by_patient(write_jsonl(tmp_path / "b.jsonl", [{**row, "patient": value} for row in rows]))
        with pytest.raises(CorpusError, match=f"corpus.holdout_groups = 'patient'.*{named}"):
            next(one.pieces())
    odd = write_jsonl(tmp_path / "d.jsonl", [*rows, {"text": "t", "patient": ["x"]}])
    with pytest.raises(CorpusError, match=r"d.jsonl: row \d+ .*'patient'"):
        list(by_patient(odd).pieces())
    skipping = by_patient(odd, bad_input="skip")
    assert len(sides(skipping)) == len(rows)
    assert skipping.skipped == {"rows whose group cannot be read": 1}


def clustered(rng: random.Random) -> list[list[str]]:
    """Clusters of texts that are equal but for digits, or have a word changed."""
    clusters = []
    for _ in range(400):
        source = random_text(rng, rng.choice([4, 300]))  # with a word changed twice, 0.93 at the least
        if len(source.split()) == 4:
            clusters.append([f"{source} {rng.randrange(9999)}" for _ in range(rng.randint(1, 5))])
        else:
            clusters.append([source, *(changed(rng, source) for _ in range(rng.randint(0, 3)))])
    return clusters


def test_near_duplicates_are_never_on_both_sides(tmp_path: Path) -> None:
    """And without the setting they are."""
    rng = random.Random(0)
    clusters = clustered(rng)
    texts = [text for cluster in clusters for text in cluster]

    def write(*names: str) -> list[Path]:
        """All texts in a new order, shared out among files."""
        rng.shuffle(texts)
        paths = [tmp_path / name for name in names]
        for number, path in enumerate(paths):
            path.write_text("\n".join(texts[number :: len(paths)]) + "\n", encoding="utf-8")
        return paths

    (path,) = write("a.txt")
    assert compared(list(corpus_of(path, documents="line").pieces())).share > 0.3
    by_cluster = CorpusSettings.model_validate({"documents": "line", "holdout_groups": "near_duplicates"})
    corpus = Corpus([path], by_cluster)
    side_of = sides(corpus)
    assert all(len({side_of[text] for text in cluster}) == 1 for cluster in clusters)
    assert compared(list(corpus.pieces())).share == 0.0
    share = sum(len(text) for text in texts if side_of[text]) / sum(map(len, texts))
    assert 0.025 <= share <= 0.075
    assert f"clusters of near-duplicate documents, {share:.1%} of the text" in corpus.describe(corpus.decided())
    assert sides(Corpus(write("z.txt", "b.txt"), by_cluster)) == side_of


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("hash", {}),
        ("group", {"holdout_groups": "patient"}),
        ("cluster", {"holdout_groups": "near_duplicates"}),
        ("end", {"holdout_from": "end"}),
        ("file", {"validation": ["held.jsonl"]}),
    ],
)
def test_why_a_document_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, values: dict[str, object]
) -> None:
    """The answer is the side on which reading puts it."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "held.jsonl", [{"text": "held", "patient": "x"}])
    path = write_jsonl(tmp_path / "a.jsonl", [*patients(60), {"text": "of no patient", "patient": None}])
    corpus = corpus_of(path, column="text", holdout=0.2, **values)
    side_of = {piece.document: side for piece, side in corpus.pieces() if piece.last}
    for side in (True, False):
        numbers = [number for number, held in side_of.items() if held == side]
        answer = corpus.why(numbers[-1 if side else 0])
        assert answer.is_held_out == side
        assert answer.rule == (rule if side or rule != "file" else "nothing")
        assert answer.reason
    if rule == "group":
        assert corpus.why(len(side_of) - 1).rule == "hash", "it has no group"
    with pytest.raises(CorpusError, match="99999"):
        corpus.why(99999)
