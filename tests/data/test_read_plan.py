"""Files are cut where documents begin: whatever is read in tasks is what is read in one piece."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.corpora import random_text, write_jsonl
from unmask.core.errors import CorpusError
from unmask.data.corpus import Corpus
from unmask.data.settings import CorpusSettings
from unmask.data.survey import PLACE_BITS

SIZE = 4000


def texts(number: int = 400) -> list[str]:
    rng = random.Random(number)
    return [f"{random_text(rng, rng.randint(1, 40))} é {n}" for n in range(number)]


def write(folder: Path, name: str) -> Path:
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
        ("rows.jsonl", True, {"holdout_groups": "column:group"}),
        ("rows.jsonl", True, {"holdout_groups": "near_duplicates", "cleaning": {"duplicates": "drop"}}),
        ("rows.parquet", True, {"holdout_from": "end", "holdout": 0.2}),
    ],
)
def test_a_corpus_is_the_same_in_tasks(tmp_path: Path, name: str, cut: bool, settings: dict[str, object]) -> None:
    path, corpus_settings = write(tmp_path, name), CorpusSettings.model_validate(settings)
    whole, parts = (Corpus([path], corpus_settings, task_bytes=size) for size in (None, SIZE))
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


def test_errors_in_the_middle_of_a_file_name_their_place(tmp_path: Path) -> None:
    """The byte of the file, also where reading begins in it; a row of lines is counted from there."""
    path = write(tmp_path, "lines.txt")
    content = bytearray(path.read_bytes())
    content[9000] = 0xFF
    path.write_bytes(content)
    for size in (SIZE, None):
        with pytest.raises(CorpusError, match=r"lines\.txt: byte 9000 \(0xff\) is not UTF-8"):
            list(Corpus([path], CorpusSettings(documents="line"), task_bytes=size).unsplit())
    rows = write(tmp_path, "rows.jsonl")
    strict = Corpus([rows], CorpusSettings(column="text"), task_bytes=SIZE)
    skipping = Corpus([rows], CorpusSettings(column="text", bad_input="skip"), task_bytes=SIZE)
    before, _, after = rows.read_bytes().rpartition(b'"text"')
    rows.write_bytes(before + b'"tixt"' + after)
    last = strict.tasks[-1].sources[0].stretch
    assert last is not None
    with pytest.raises(CorpusError, match=rf"rows\.jsonl: row \d+ behind byte {last.begin:,} has no column 'text'"):
        list(strict.unsplit())
    assert len(list(skipping.unsplit())) == len(texts()) - 1
    assert sum(skipping.skipped.values()) == 1
