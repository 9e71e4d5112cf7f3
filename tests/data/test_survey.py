from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import make_text
from unmask.core.errors import CorpusError
from unmask.data.corpus import Corpus
from unmask.data.settings import CorpusSettings
from unmask.data.survey import CorpusPlan


def plan_corpus(paths: list[Path], settings: CorpusSettings) -> CorpusPlan:
    return Corpus(paths, settings).plan


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("".join(f"first line {i}\nsecond line\n\n" for i in range(3000)), "block"),
        ("".join(f"a line of text, number {i}\n" for i in range(3000)), "line"),
        ("\n\nleading and trailing empty lines\nare no separators\n\n" + "x " * 4000, "block"),
        ("only one line " * 1000, "file"),
    ],
)
def test_the_unit_is_chosen_from_the_text(tmp_path: Path, text: str, unit: str) -> None:
    plan = plan_corpus([write(tmp_path / "a.txt", text)], CorpusSettings())
    assert plan.unit == unit
    assert plan.reason in plan.describe()


def test_whole_documents_are_held_out_where_there_are_many(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", make_text(2000))
    corpus = Corpus([path], CorpusSettings(holdout=0.1))
    assert corpus.plan.holdout_unit == "document"
    marked = list(corpus.pieces())
    texts = {p.text: held for p, held in marked}
    share = sum(texts.values()) / len(texts)
    assert abs(share - 0.1) < 4 * (0.1 * 0.9 / len(texts)) ** 0.5
    assert all(texts[p.text] == held for p, held in marked), "equal documents are on the same side"


def test_the_side_of_a_document_is_kept_when_the_corpus_grows(tmp_path: Path) -> None:
    small, large = make_text(300, seed=1), make_text(600, seed=2) + "\n" + make_text(300, seed=1)
    sides = []
    for text in (small, large):
        path = write(tmp_path / "a.txt", text)
        sides.append({p.text: held for p, held in Corpus([path], CorpusSettings()).pieces()})
    assert set(sides[0]) <= set(sides[1])
    assert all(sides[1][text] == held for text, held in sides[0].items())


def test_parts_are_held_out_where_documents_are_few(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", make_text(5000).replace("\n\n", "\n"))
    corpus = Corpus([path], CorpusSettings(documents="file"))
    assert corpus.plan.holdout_unit == "part"
    assert "since documents are few" in corpus.plan.describe()
    sides = [held for _, held in corpus.pieces()]
    assert 0 < sum(sides) < len(sides) / 2


@pytest.mark.parametrize("seed", range(8))
def test_a_small_corpus_always_has_both_sides(tmp_path: Path, seed: int) -> None:
    path = write(tmp_path / "a.txt", make_text(4, seed=seed))
    sides = {held for _, held in Corpus([path], CorpusSettings(documents="block")).pieces()}
    assert sides == {True, False}


def test_too_little_text(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="there is no text in it"):
        plan_corpus([write(tmp_path / "a.txt", "\n  \n")], CorpusSettings())
    with pytest.raises(CorpusError, match="too little text to hold a part out"):
        plan_corpus([write(tmp_path / "b.txt", "one short line")], CorpusSettings())
    with pytest.raises(CorpusError, match="no files"):
        plan_corpus([], CorpusSettings())


def test_the_end_of_the_text_is_held_out_when_asked(tmp_path: Path) -> None:
    text = make_text(400).replace("\n\n", "\n")
    path = write(tmp_path / "a.txt", text)
    corpus = Corpus([path], CorpusSettings(documents="file", holdout=0.1, holdout_from="end"))
    assert "held out: the end of the text, 10.0%" in corpus.plan.describe()
    for _ in range(2):  # a corpus is gone through as often as somebody needs
        marked = list(corpus.pieces())
        train, held = ("".join(p.text for p, side in marked if side is wanted) for wanted in (False, True))
        assert train + held == text.rstrip("\n")
        assert len(train) == len(train + held) - round(0.1 * len(train + held))
        for piece, _ in marked:
            assert (train + held).encode()[piece.offset :].startswith(piece.text.encode())
    with pytest.raises(CorpusError, match="too little text to hold its end out"):
        list(Corpus([write(tmp_path / "b.txt", "abc")], CorpusSettings(holdout_from="end")).pieces())
