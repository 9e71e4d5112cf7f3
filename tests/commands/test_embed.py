from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unmask
from tests.command_line import Main, room_for
from unmask.commands import embed as embed_file
from unmask.commands.embed import nearest, places_of, vector_file
from unmask.core.errors import CorpusError, UnmaskError

TEXTS = ["the king sees the queen at sea", "the dog", "the cat follows the dog in the garden", "the ship"]


def test_lines_to_npy(run: unmask.Run, tmp_path: Path) -> None:
    """Rows are lines, empty ones included."""
    lines, out = tmp_path / "lines.txt", tmp_path / "new" / "vectors.npy"
    lines.write_text("\n".join([TEXTS[0], "", *TEXTS[1:], ""]) + "\n")
    result = unmask.embed(run.folder / "model", lines, out=out)
    assert (result.texts, result.dimension, result.pooling, result.skipped) == (6, 64, "mean", {})
    assert result.tokens == sum(len(run.model.tokenizer.encode_prompt(text)) - 2 for text in TEXTS)
    expected = run.model.embed([TEXTS[0], "", *TEXTS[1:], ""])
    np.testing.assert_allclose(np.load(out, mmap_mode="r"), expected, atol=1e-5)
    unmask.embed(
        run.folder / "model", lines, out=out, overwrite=True, pooling="first", normalize=True, precision="bf16"
    )
    np.testing.assert_allclose(np.linalg.norm(np.load(out), axis=1), 1.0, atol=1e-5)
    assert [path.name for path in out.parent.iterdir()] == ["vectors.npy"]


@pytest.mark.parametrize("use", [unmask.embed, unmask.Index.build])
def test_a_loaded_model_stays_where_it_is(
    run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[..., object]
) -> None:
    model = unmask.load(run.folder)
    monkeypatch.setattr(type(model), "to", lambda *device: pytest.fail("it was moved"))
    use(model, TEXTS, out=tmp_path / "out.npy")


def test_tables_to_parquet_in_parts(run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, out = tmp_path / "texts.csv", tmp_path / "vectors.parquet"
    table.write_text("key,body\n" + "".join(f"t{n},{text}\n" for n, text in enumerate(TEXTS)))
    monkeypatch.setattr(embed_file, "PART_TEXTS", 3)
    result = unmask.embed(run.folder, table, out=out, id_column="key")
    assert (result.column, result.id_column) == ("body", "key")
    vectors = pq.read_table(out)
    assert vectors.column("id").to_pylist() == ["t0", "t1", "t2", "t3"]
    assert vectors.schema.field("embedding").type == pa.list_(pa.float32(), 64)
    assert pq.ParquetFile(out).num_row_groups == 2
    np.testing.assert_allclose(np.array(vectors.column("embedding").to_pylist()), run.model.embed(TEXTS), atol=1e-5)
    unmask.embed(run.folder, table, out=out, overwrite=True)
    assert pq.read_table(out).column("id").to_pylist() == [1, 2, 3, 4], "without ids, the numbers of rows"


def test_numbers_of_several_files_are_no_ids(run: unmask.Run, tmp_path: Path) -> None:
    for name, content in (("a.txt", "the dog\n"), ("b.txt", "the cat\n"), ("a.csv", "id,text\n7,the dog\n"),
                          ("b.csv", "id,text\n8,the cat\n")):  # fmt: skip
        (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=r"a\.txt.*b\.txt"):
        unmask.embed(run.folder, f"{tmp_path}/*.txt", out=tmp_path / "lines.parquet")
    unmask.embed(run.folder, f"{tmp_path}/*.txt", out=tmp_path / "lines.npy")
    assert len(np.load(tmp_path / "lines.npy")) == 2, "in the order of the files"
    unmask.embed(run.folder, f"{tmp_path}/*.csv", out=tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").column("id").to_pylist() == ["7", "8"]


def test_parquet_skips_empty_lines(run: unmask.Run, tmp_path: Path) -> None:
    """Its ids are line numbers."""
    (tmp_path / "a.txt").write_text("the dog\n\n \nthe cat\n")
    result = unmask.embed(run.folder, tmp_path / "a.txt", out=tmp_path / "vectors.parquet")
    assert result.skipped == {"texts without a letter or other visible character": 2}
    assert pq.read_table(tmp_path / "vectors.parquet").column("id").to_pylist() == [1, 4]
    (tmp_path / "a.smi").write_text("on\tfirst\nso\n")
    unmask.embed(run.folder, tmp_path / "a.smi", out=tmp_path / "molecules.parquet")
    unmask.embed(run.folder, tmp_path / "a.smi", out=tmp_path / "numbered.parquet", id_column="")
    assert pq.read_table(tmp_path / "molecules.parquet").column("id").to_pylist() == ["first", "2"]
    assert pq.read_table(tmp_path / "numbered.parquet").column("id").to_pylist() == [1, 2]


def test_a_row_without_text_keeps_its_place(run: unmask.Run, tmp_path: Path) -> None:
    """Its vector is that of an empty text."""
    (tmp_path / "a.csv").write_text("id,text\n7,the dog\n8,the king\n9,\n10,the cat\n")
    notes: list[str] = []
    for name in ("vectors.npy", "vectors.parquet"):
        result = unmask.embed(run.folder, tmp_path / "a.csv", out=tmp_path / name, note=notes.append)
        assert (result.texts, result.skipped) == (4, {})
        assert notes[-1].startswith("1 of 4 texts are empty")
    vectors = np.load(tmp_path / "vectors.npy")
    np.testing.assert_allclose(vectors, run.model.embed(["the dog", "the king", "", "the cat"]), atol=1e-5)
    assert pq.read_table(tmp_path / "vectors.parquet").column("id").to_pylist() == ["7", "8", "9", "10"]


@pytest.mark.parametrize(("last", "named"), [("null", "row 3"), ('"b"', "'b'")])
def test_ids_are_read_before_any_text_is_embedded(
    run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, named: str
) -> None:
    """So a bad one at the end of a large file costs no hours."""
    table = tmp_path / "a.jsonl"
    table.write_text("".join(f'{{"id": {id_}, "text": "the dog"}}\n' for id_ in ("1", "2", last)))
    monkeypatch.setattr(embed_file, "PART_TEXTS", 1)
    monkeypatch.setattr(embed_file, "embed_texts", lambda *_, **__: pytest.fail("a text was embedded"))
    with pytest.raises(CorpusError, match=rf"a\.jsonl.*{named}"):
        unmask.embed(run.folder, table, out=tmp_path / "v.parquet")
    assert list(tmp_path.iterdir()) == [table]


@pytest.mark.parametrize(
    ("file", "content", "options", "message"),
    [
        ("a.csv", "text,mood\nx,y\n", {"id_column": "key"}, "'key'"),
        ("a.csv", "id,text\n1,x\n", {"id_column": "id", "out": "vectors.npy"}, "vectors.npy"),
        ("a.csv", "1,2\n3,4\n", {}, "column"),
        ("a.txt", "\n \n", {"out": "a.txt/v.npy"}, "a.txt"),
    ],
)
def test_mistakes_leave_nothing_behind(
    run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str,
    options: dict[str, str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(content)
    with pytest.raises(UnmaskError, match=message):
        unmask.embed(run.folder, file, **{"out": "vectors.parquet"} | options)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(("name", "num_bytes"), [("v.npy", 100), ("v.npy", 4096), ("v.parquet", 4096)])
def test_a_full_disk_leaves_nothing(run: unmask.Run, tmp_path: Path, main: Main, name: str, num_bytes: int) -> None:
    """The error names the file, and does not propose options that this command lacks."""
    file = tmp_path / "a.txt"
    file.write_text("the cat\n" * 500)
    with room_for(num_bytes):
        code, _, err = main("embed", run.folder / "model", file, "--out", tmp_path / name)
    assert code == 2
    assert f"{name}: cannot be written (File too large)" in err
    assert "--resume" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def vectors(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)


@pytest.mark.parametrize(("ids", "message"), [([2**63 - 1, 2**63], "64 bits"), (["a", "b\ud800"], "ud800")])
def test_ids_that_cannot_be_stored(tmp_path: Path, ids: list[str | int], message: str) -> None:
    with pytest.raises(CorpusError, match=message), vector_file(tmp_path / "v.parquet", 8) as add:
        add(ids, vectors(2))
    assert list(tmp_path.iterdir()) == []
    with vector_file(tmp_path / "v.parquet", 8) as add:
        add(ids[:1], vectors(1))
    assert pq.read_table(tmp_path / "v.parquet").column("id").to_pylist() == ids[:1]


def test_a_map_has_texts_places_and_the_nearest_texts(run: unmask.Run, tmp_path: Path) -> None:
    out = tmp_path / "map.parquet"
    unmask.embed(run.folder, TEXTS, out=out, map=True)
    table = pq.read_table(out)
    assert table.column("text").to_pylist() == TEXTS
    assert np.isfinite(table.column("x").to_numpy() + table.column("y").to_numpy()).all()
    made = np.array(table.column("embedding").to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(made, run.model.embed(TEXTS), atol=1e-5)
    unit = made / np.linalg.norm(made, axis=1, keepdims=True)
    for row, near in enumerate(table.column("neighbors").to_pylist()):
        others = [other for other in np.argsort(-unit @ unit[row]) if other != row]
        assert near["ids"] == others
        np.testing.assert_allclose(near["distances"], 1 - unit[others] @ unit[row], atol=1e-5)
    with pytest.raises(UnmaskError, match="v.npy"):
        unmask.embed(run.folder, TEXTS, out=tmp_path / "v.npy", map=True)
    assert list(tmp_path.iterdir()) == [out]


def test_places_without_umap_are_the_main_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_file, "find_spec", lambda name: None)
    made = vectors(40) * np.array([5, 3, 1, 1, 1, 1, 1, 1], dtype=np.float32)
    rows, distances = nearest(made, 15)
    assert (np.diff(distances, axis=1) >= 0).all()
    assert not (rows == np.arange(40)[:, None]).any()
    places, how = places_of(made, rows, distances)
    singular = np.linalg.svd(made - made.mean(0), compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(places, axis=0), singular[:2], rtol=1e-4)
    assert "main directions" in how
