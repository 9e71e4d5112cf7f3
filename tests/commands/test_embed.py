from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unmask
from tests.command_line import Main
from unmask.commands import embed as embed_file

TEXTS = ["the king sees the queen at sea", "the dog", "the cat follows the dog in the garden", "the ship"]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*TEXTS, ""]) + "\n")
    return path


def test_lines_to_npy(main: Main, run: unmask.Run, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    code, printed, err = main("embed", run.folder / "model", lines, "--out", out, "--json")
    assert code == 0, err
    result = json.loads(printed)
    assert (result["texts"], result["dimension"], result["long_texts"]) == (4, 64, 0)
    assert (result["pooling"], result["normalize"]) == ("mean", False)
    assert "a text's vector is the mean of its tokens" in err
    assert result["skipped"] == {"texts without a letter or sign": 1}
    assert result["tokens"] == sum(len(run.model.tokenizer.encode_prompt(text)) - 2 for text in TEXTS)
    assert "passed over: 1 texts without a letter or sign" in err
    assert "a text is a line" in err
    found = np.load(out)
    assert (found.dtype, found.shape) == (np.float32, (4, 64))
    np.testing.assert_allclose(found, run.model.embed(TEXTS), atol=1e-5)
    assert np.load(out, mmap_mode="r").shape == (4, 64)
    code, _, err = main("embed", run.folder / "model", lines, "--out", out)
    assert (code, str(out) in err, "--overwrite" in err) == (2, True, True)
    options = ("--overwrite", "--normalize", "--pooling", "first", "--precision", "bf16")
    code, _, err = main("embed", run.folder / "model", lines, "--out", out, *options)
    assert (code, "a text's vector is the hidden state of its first token" in err) == (0, True)
    np.testing.assert_allclose(np.linalg.norm(np.load(out), axis=1), 1.0, atol=1e-5)
    options = ("--overwrite", "--no-normalize", "--json")
    assert json.loads(main("embed", run.folder / "model", lines, "--out", out, *options)[1])["normalize"] is False
    assert not list(tmp_path.glob("*.partial"))


def test_tables_to_parquet_in_parts(
    main: Main,
    run: unmask.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("key,body\n" + "".join(f"t{n},{text}\n" for n, text in enumerate(TEXTS)))
    monkeypatch.setattr(embed_file, "PART_TEXTS", 3)
    out = tmp_path / "vectors.parquet"
    arguments = ("embed", run.folder, table, "--out", out)
    code, printed, err = main(*arguments, "--id-column", "key", "--json")
    assert code == 0, err
    assert "its text in column 'body', its id column 'key'" in err
    assert (json.loads(printed)["column"], json.loads(printed)["id_column"]) == ("body", "key")
    found = pq.read_table(out)
    assert found.column("id").to_pylist() == ["t0", "t1", "t2", "t3"]
    assert found.schema.field("embedding").type == pa.list_(pa.float32(), 64)
    assert pq.ParquetFile(out).num_row_groups == 2
    np.testing.assert_allclose(np.array(found.column("embedding").to_pylist()), run.model.embed(TEXTS), atol=1e-5)
    assert main(*arguments, "--overwrite")[0] == 0
    assert pq.read_table(out).column("id").to_pylist() == [1, 2, 3, 4], "without ids, the numbers of rows"


@pytest.mark.parametrize(
    ("name", "content", "where", "ids"),
    [
        ("a.txt", "the dog\n\n \nthe cat\n", "line 2", [1, 4]),
        ("a.csv", "id,text\n7,the dog\n8,the king\n9,\n10,the cat\n", "row 3", ["7", "8", "10"]),
    ],
)
def test_a_text_after_an_empty_one_needs_ids(
    main: Main, run: unmask.Run, tmp_path: Path, name: str, content: str, where: str, ids: list[str | int]
) -> None:
    """Rows of .npy would be those of other lines; Parquet says which they are."""
    (tmp_path / name).write_text(content)
    out = tmp_path / "vectors.npy"
    code, printed, err = main("embed", run.folder, tmp_path / name, "--out", out)
    assert (code, printed) == (2, "")
    assert f"{name}: {where}" in " ".join(err.split())
    assert ".parquet" in err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert main("embed", run.folder, tmp_path / name, "--out", out.with_suffix(".parquet"))[0] == 0
    assert pq.read_table(out.with_suffix(".parquet")).column("id").to_pylist() == ids


def test_other_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text(">x\nMK\nLV\n>y\nGG\n")
    (tmp_path / "a.conllu").write_text("# newdoc\n1\tAnna\t_\tPROPN\t_\t_\t0\troot\t_\t_\n\n")
    assert [(text.id, text.text) for text in embed_file.read_file(tmp_path / "a.fasta")] == [(1, "MKLV"), (2, "GG")]
    assert [(text.id, text.text) for text in embed_file.read_file(tmp_path / "a.conllu")] == [(1, "Anna")]


@pytest.mark.parametrize(
    ("file", "content", "options", "message"),
    [
        ("a.txt", "\n \n", (), "a.txt: there is no text in it"),
        ("a.txt", "the king " * 60, (), "text 1"),
        ("a.csv", "text,mood\nx,y\n", ("--column", "body"), "'body'"),
        ("a.csv", "text,mood\nx,y\n", ("--id-column", "key"), "'key'"),
        ("a.csv", "1,2\n3,4\n", (), "corpus.column"),
        ("a.jsonl", '{"id": 1, "text": "x"}\n{"id": "b", "text": "y"}\n', (), "'b'"),
        ("a.txt", "x", ("--out", "no/v.npy"), "no"),
    ],
)  # fmt: skip
def test_mistakes_leave_nothing_behind(
    main: Main,
    run: unmask.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    content: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(content)
    out = () if "--out" in options else ("--out", "vectors.parquet")
    code, printed, err = main("embed", run.folder, file, *out, *options)
    assert (code, printed) == (2, "")
    assert message in " ".join(err.split())
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_a_dataset_that_was_saved(main: Main, run: unmask.Run, tmp_path: Path) -> None:
    """All of its files, as a file with the same rows."""
    rows = [{"text": f"The cat sees {n} dogs at sea.", "id": f"row {n}"} for n in range(5)]
    dataset = pytest.importorskip("datasets").Dataset.from_list(rows)
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    dataset.to_json(tmp_path / "rows.jsonl")
    for name in ("saved", "rows.jsonl"):
        code, _, err = main("embed", run.folder, tmp_path / name, "--out", tmp_path / f"{name}.parquet")
        assert code == 0, err
    found, expected = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("saved", "rows.jsonl"))
    assert found.equals(expected)
    assert found["id"].to_pylist() == [row["id"] for row in rows]
