"""How a corpus is read: documents, held-out text, and tasks, which begin where documents begin."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import make_text
from tests.data.corpora import corpus_of, cut_into, random_text, sides, write_jsonl
from unmask.core.errors import CorpusError
from unmask.core.files import CACHE
from unmask.data.corpus import Corpus
from unmask.data.settings import CorpusSettings
from unmask.data.sources import Source
from unmask.data.survey import PLACE_BITS, plan_reading


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
    assert corpus_of(write(tmp_path / "a.txt", text)).plan.unit == unit


def test_whole_documents_are_held_out_where_there_are_many(tmp_path: Path) -> None:
    corpus = corpus_of(write(tmp_path / "a.txt", make_text(2000)), holdout=0.1)
    assert corpus.plan.holdout_unit == "document"
    side_of = sides(corpus)
    assert abs(sum(side_of.values()) / len(side_of) - 0.1) < 4 * (0.1 * 0.9 / len(side_of)) ** 0.5
    assert all(side_of[piece.text] == held for piece, held in corpus.pieces()), "equal documents are on the same side"


def test_the_side_of_a_document_is_kept_when_the_corpus_grows(tmp_path: Path) -> None:
    text = make_text(300, seed=1)
    small = sides(corpus_of(write(tmp_path / "a.txt", text)))
    large = sides(corpus_of(write(tmp_path / "a.txt", f"{make_text(600, seed=2)}\n{text}")))
    assert small.items() <= large.items()


def test_parts_are_held_out_where_documents_are_few(tmp_path: Path) -> None:
    corpus = corpus_of(write(tmp_path / "a.txt", make_text(5000).replace("\n\n", "\n")), documents="file")
    assert corpus.plan.holdout_unit == "part"
    held = [side for _, side in corpus.pieces()]
    assert 0 < sum(held) < len(held) / 2


@pytest.mark.parametrize("seed", range(4))
def test_a_small_corpus_always_has_both_sides(tmp_path: Path, seed: int) -> None:
    path = write(tmp_path / "a.txt", make_text(4, seed=seed))
    assert set(sides(corpus_of(path, documents="block")).values()) == {True, False}


def test_too_little_text(tmp_path: Path) -> None:
    for text, settings in (("one short line", {}), ("abc", {"holdout_from": "end"})):
        with pytest.raises(CorpusError, match="too little text"):
            list(corpus_of(write(tmp_path / "a.txt", text), **settings).pieces())
    with pytest.raises(CorpusError, match="no files"):
        Corpus([], CorpusSettings())


def test_the_end_of_the_text_is_held_out_when_asked(tmp_path: Path) -> None:
    text = make_text(400).replace("\n\n", "\n")
    corpus = corpus_of(write(tmp_path / "a.txt", text), documents="file", holdout=0.1, holdout_from="end")
    for _ in range(2):  # a corpus can be read repeatedly
        marked = list(corpus.pieces())
        train, held = ("".join(piece.text for piece, is_held in marked if is_held is side) for side in (False, True))
        assert train + held == text.rstrip("\n")
        assert len(held) == round(0.1 * len(train + held))
        for piece, _ in marked:
            assert (train + held).encode()[piece.offset :].startswith(piece.text.encode())


SIZE = 4000


def texts(number: int = 400) -> list[str]:
    rng = random.Random(number)
    return [f"{random_text(rng, rng.randint(1, 40))} é {n}" for n in range(number)]


def written(folder: Path, name: str) -> Path:
    path, content = folder / name, texts()
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"text": content}), path, row_group_size=30)
    elif name.endswith(".jsonl"):
        write_jsonl(path, ({"text": text, "group": n // 3} for n, text in enumerate(content)))
    elif name.endswith(".fasta"):
        path.write_text("".join(f">{n}\n{'ACDE' * (n % 40 + 1)}\n{'GHIK' * 9}\n" for n in range(len(content))))
    elif name == "blocks.txt":
        path.write_text("\ufeff" + "\n \t\n".join(text.replace(" ", "\n") for text in content), encoding="utf-8")
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress("\n".join(content).encode()))
    else:
        path.write_bytes("\r\n".join(content).encode())
    return path


@pytest.mark.parametrize(
    ("name", "cut", "settings"),
    [
        ("lines.txt", True, {"documents": "line"}),
        ("blocks.txt", True, {"documents": "block"}),
        ("whole.txt", False, {"documents": "file"}),
        ("packed.txt.gz", False, {"documents": "line"}),
        ("rows.jsonl", True, {}),
        ("rows.parquet", True, {}),
        ("proteins.fasta", True, {}),
        ("rows.jsonl", True, {"holdout_groups": "group"}),
        ("rows.jsonl", True, {"cleaning": {"duplicates": "drop_near"}}),
        ("rows.parquet", True, {"holdout_from": "end", "holdout": 0.2}),
    ],
)
def test_a_corpus_is_the_same_in_tasks(tmp_path: Path, name: str, cut: bool, settings: dict[str, object]) -> None:
    path, corpus_settings = written(tmp_path, name), CorpusSettings.model_validate(settings)
    whole = Corpus([path], corpus_settings)
    with cut_into(task_bytes=SIZE):
        parts = Corpus([path], corpus_settings)
    assert len(whole.tasks) == 1
    assert (len(parts.tasks) > 3) == cut
    one, other = (
        [(piece.text, piece.offset, piece.last, held) for piece, held in corpus.pieces()] for corpus in (whole, parts)
    )
    assert one == other
    assert {held for *_, held in one} == {True, False}
    documents = [piece.document for piece, _ in parts.pieces()]
    assert documents == sorted(documents)
    for task in parts.tasks:
        places = {document - task.first_document for document in documents if document >> PLACE_BITS == task.number}
        assert places == set(range(len(places)))
    assert sum(task.num_bytes for task in parts.tasks) == pytest.approx(path.stat().st_size, rel=0.5)


def test_utf_16_that_is_named_is_not_cut_within_a_character(tmp_path: Path) -> None:
    """In UTF-16, U+4E0A contains the byte of a line end, 0x0A."""
    lines = ["上海" * 60 + str(n) for n in range(100)]
    (tmp_path / "a.txt").write_bytes("\n".join(lines).encode("utf-16-le"))
    with cut_into(task_bytes=1000):
        corpus = corpus_of(tmp_path / "a.txt", documents="line", encoding="utf-16-le")
    assert [piece.text for piece in corpus.unsplit()] == lines


def test_errors_in_the_middle_of_a_file_name_their_place(tmp_path: Path) -> None:
    """The byte in the file, also if reading starts within it; lines are counted from there."""
    path = written(tmp_path, "lines.txt")
    content = bytearray(path.read_bytes())
    content[9000] = 0xFF
    path.write_bytes(content)
    for size in (SIZE, None):
        with (
            cut_into(task_bytes=size),
            pytest.raises(CorpusError, match=r"lines\.txt: byte 9000 \(0xff\) is not UTF-8"),
        ):
            list(corpus_of(path, documents="line").unsplit())
    rows = written(tmp_path, "rows.jsonl")
    with cut_into(task_bytes=SIZE):
        strict = corpus_of(rows, column="text")
    before, _, after = rows.read_bytes().rpartition(b'"text"')
    rows.write_bytes(before + b'"tixt"' + after)
    last = strict.tasks[-1].sources[0].stretch
    with pytest.raises(CorpusError, match=rf"rows\.jsonl: row \d+ after byte {last.begin:,} has no column 'text'"):
        list(strict.unsplit())


@pytest.mark.parametrize(
    ("files", "settings", "within"),
    [
        ({"a.txt": make_text(150)}, {}, "blocks of files whose other blocks are"),
        (
            {"a.txt": make_text(150)},
            {"documents": "file"},
            "short documents, and parts of long ones whose other parts are",
        ),
        ({"a.txt": make_text(150)}, {"holdout_from": "end"}, "the end of a file whose beginning is"),
        ({"a.txt": make_text(9), "b.txt": make_text(9, seed=1)}, {"validation": ["b.txt"]}, None),
        ({f"{n}.txt": make_text(1, seed=n) for n in range(150)}, {"documents": "file"}, None),
        ({"a.jsonl": "".join(f'{{"text": "Row {n}."}}\n' for n in range(150))}, {}, None),
    ],
)
def test_it_is_said_that_the_rest_of_a_file_is_trained_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    settings: dict[str, object],
    within: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        write(Path(name), text)
    paths = [name for name in files if name not in str(settings)]
    corpus = Corpus(paths, CorpusSettings.model_validate(settings))
    assert corpus.held_within == (within and f"{within} trained on")


def test_fetched_files_are_the_same_text_on_any_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stamp(machine: str) -> str:
        monkeypatch.setenv(CACHE, str(tmp_path / machine))
        (tmp_path / machine / "key").mkdir(parents=True)
        file = write(tmp_path / machine / "key" / "a.txt", "A text.\n")
        os.utime(file, (0, 0))  # as fetched files have it
        [task] = plan_reading([Source(file, "text")], [], unit="line")
        return task.stamp

    assert stamp("one") == stamp("another")
