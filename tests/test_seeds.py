"""Every input that once broke a reader now gives one clear error, or the right result."""

from __future__ import annotations

import random
import resource
import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests import seeds
from tests.command_line import PATIENCE
from tests.processes import Forked
from tests.seeds import SEEDS, Seed
from unmask.core.errors import CorpusError
from unmask.data.annotations import choose_origins
from unmask.data.corpus import Corpus
from unmask.data.reading import BadInput
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.sources import Source, find_sources
from unmask.data.tables import rows_of
from unmask.measure.questions import read_pairs
from unmask.tasks.files import Columns, read_labelled
from unmask.tasks.kinds import TASKS

MOST_BYTES = 200 << 20


def texts(path: Path, *, annotated: bool = False, **settings: object) -> list[str]:
    """All texts of a corpus of one file."""
    fields = None
    if annotated:
        annotation = AnnotationSettings(columns=("pos",), source="data")
        _, fields = choose_origins(annotation, find_sources([path]))
    corpus = Corpus([path], CorpusSettings.model_validate(settings), hold_out=False, fields=fields)
    return [piece.text for piece in corpus.unsplit()]


def read(seed: Seed, path: Path) -> int:
    """How much there is in it."""
    if seed.reader == "pairs":
        return len(read_pairs(path))
    if seed.reader in ("corpus", "corpus_pos"):
        return len(texts(path, annotated=seed.reader == "corpus_pos"))
    return len(read_labelled(path, TASKS[seed.reader], Columns(), with_labels=path.suffix != ".txt").records)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed.reader}-{seed.name}")
def test_one_clear_line_or_the_right_result(tmp_path: Path, seed: Seed) -> None:
    path = seed.write(tmp_path)
    tracemalloc.start()
    try:
        if seed.is_right:
            assert read(seed, path) == 3
            return
        with pytest.raises(CorpusError) as caught:
            read(seed, path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert path.name in text
    assert len(text) < 1000
    assert len(text.splitlines()) == 1


def test_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,note,note\nThe king.,a,b\n")
    assert texts(tmp_path / "t.csv") == ["The king."]
    table = pa.table([seeds.TEXTS, seeds.TEXTS], names=["text", "text"])
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(CorpusError, match=r"t\.arrow: .*'text'"):
        list(rows_of(Source(tmp_path / "t.arrow", "arrow"), BadInput(skip=False), only=["text"]))
    (tmp_path / "t.csv").write_text("text,text\nThe king.,a\n")
    with pytest.raises(CorpusError, match=r"t\.csv: .*'text'"):
        texts(tmp_path / "t.csv")


def read_flipped(folder: str, name: str) -> None:
    """Reads a file again and again, each time with another bit turned; prints how often it was read and refused."""
    path, counts, draw = Path(folder) / name, Counter[str](), random.Random(7)
    content = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for place in sorted(draw.sample(range(len(content)), 150)):
        path.unlink()  # a file that is mapped must not be written anew
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :])
        for only in (None, ["text", "doc.a", "tags", "kind"]):
            try:
                list(rows_of(Source(path, path.suffix.removeprefix(".")), BadInput(skip=False), only=only))
                counts["read"] += 1
            except CorpusError as error:
                counts["refused" if len(str(error).splitlines()) == 1 else "in several lines"] += 1
    print(counts["read"], counts["refused"], 300 - counts["in several lines"])


@pytest.mark.parametrize("name", ["t.arrow", "t.parquet"])
def test_a_flipped_bit_never_ends_the_process(tmp_path: Path, name: str) -> None:
    write = seeds.arrow_of if name.endswith("arrow") else seeds.parquet_of
    (tmp_path / name).write_bytes(write(seeds.small_table()))
    process = Forked(read_flipped, str(tmp_path), name)
    printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, f"{process.returncode}: {errors[-900:]}"
    was_read, refused, in_one_line = map(int, printed.split())
    assert min(was_read, refused) > 20
    assert in_one_line == 300


def test_pairs_read_in_pieces_are_numbered_by_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\n" * 50_000 + b"\n  ".join([seeds.PAIR.strip()] * 3) + b"\n")
    assert [pair.where for pair in read_pairs(path)] == [f"{path}: line {number}" for number in (50001, 50002, 50003)]
    path.write_bytes(b"[" + b",\n".join([seeds.PAIR.strip()] * 3) + b"] ")
    assert [pair.where for pair in read_pairs(path)] == [f"{path}: row {number}" for number in (1, 2, 3)]
    for content in (
        b"[" + seeds.PAIR * 2 + b"]",
        b"[" + seeds.PAIR + b"] 5",
        b"[" + seeds.PAIR,
        b"[" + seeds.PAIR[:-9],
        b"\xff" + seeds.PAIR,
    ):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=path.name):
            read_pairs(path)
