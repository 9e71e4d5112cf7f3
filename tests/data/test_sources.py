"""Sources of a corpus: files of every kind, folders and their parts, texts in memory, and pipes."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unmask
from tests.command_line import PATIENCE, room_for
from tests.conftest import SMALL, make_text
from tests.data.corpora import corpus_of, left_of, sides, texts_of, write_jsonl
from unmask.core.errors import CorpusError, SettingsError, WriteError
from unmask.data.corpus import Corpus
from unmask.data.data_folder import load_manifest
from unmask.data.documents import Documents
from unmask.data.settings import CorpusSettings
from unmask.data.sources import InMemory, find_sources, find_split, keep_stream, paths_or_texts, readable

SENTENCES = [f"This is sentence number {i} of the corpus." for i in range(300)]


def test_files_folders_and_patterns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hidden = (".venv/licence.txt", "b/._two.txt")  # files of programs, and of a file system
    logs = ("a.log", "a.log.1", "a.log-20260301.gz")
    rows = ("three.JSONL", "a.jsonl.1", "a.ndjson-20260301", "a.jsonl.2.gz")
    texts = ("b/two.txt", "a/one.txt.gz", "b/scan.pdf", "c.md", *(f"b/{name}" for name in (*logs, *rows)))
    for name in (*texts, *hidden):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith(".gz") else b"x")
    kinds = {source.path.name: source.kind for source in find_sources([tmp_path])}
    assert kinds == dict.fromkeys((*logs, "c.md", "one.txt.gz", "two.txt"), "text") | dict.fromkeys(rows, "jsonl")
    paths = [f"{tmp_path}/**/*.txt", tmp_path / "b" / "two.txt"]
    for path in paths:
        assert [source.path.name for source in find_sources([path])] == ["two.txt"]
    assert "two.txt" not in caplog.text
    assert len(find_sources(paths)) == 2
    assert "two.txt" in caplog.text, "it is read twice"


def test_links_to_folders_are_followed_and_each_folder_is_read_once(tmp_path: Path) -> None:
    corpus, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for folder in (corpus, elsewhere):
        folder.mkdir()
        (folder / f"{folder.name}.txt").write_text("x")
    (corpus / "test").mkdir()
    (corpus / "test" / "held.txt").write_text("x")
    links = {"wiki": elsewhere, "again": elsewhere, "up": corpus, "a": corpus / "test", ".hidden": elsewhere}
    for name, target in links.items():
        (corpus / name).symlink_to(target, target_is_directory=True)
    files = [source.path.relative_to(corpus).as_posix() for source in find_split([corpus], by_name=False).train]
    assert files == ["again/elsewhere.txt", "corpus.txt", "test/held.txt"], "a folder's own name before those of links"


def test_text_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be missing in silence: a folder is an error; a link, of which repositories have many, is announced."""
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text("x")
    list_folder = os.scandir

    def denied(path: str) -> Any:
        if Path(path).name in closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", denied)  # a superuser may read any folder
    closed = {".hidden", "lost+found"}
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes").symlink_to(tmp_path / "gone")  # no file of a readable kind
    assert len(find_sources([tmp_path])) == 2
    closed = {"b"}
    with pytest.raises(CorpusError, match=re.escape(str(tmp_path / "b"))):
        find_sources([tmp_path])
    closed = set[str]()
    (tmp_path / "b" / "more.txt").symlink_to(tmp_path / "gone")
    assert len(find_sources([tmp_path])) == 2
    assert "1 link to no file is left out" in caplog.text
    assert "more.txt" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("*.txt", r"\*\.txt"),
        ("scan.pdf", r"scan\.pdf: .* \.txt, .* \.gz"),
        ("empty", "empty"),
        ("t.parquet.gz", r"t\.parquet\.gz"),
        ("p.parquet", r"p\.parquet: .*git lfs pull"),
        ("dict", "dict: .*train.* test"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, message: str) -> None:
    for file in ("scan.pdf", "t.parquet.gz"):
        (tmp_path / file).write_text("x")
    (tmp_path / "p.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dict" / "test").mkdir(parents=True)
    (tmp_path / "dict" / "test" / "state.json").write_text("{}")
    (tmp_path / "dict" / "dataset_dict.json").write_text("{}")
    with pytest.raises(CorpusError, match=message):
        find_sources([tmp_path / name])


PARTS = {"train": SENTENCES[:200], "validation": SENTENCES[200:250], "test": SENTENCES[250:]}


def test_parts_of_a_dataset_are_kept_apart(tmp_path: Path) -> None:
    """As they are on the hub."""
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# The card\n" + "A line of the card.\n" * 500)
    (tmp_path / ".gitattributes").write_text("*.parquet filter=lfs\n")
    for part, texts in PARTS.items():
        pq.write_table(pa.table({"text": texts}), tmp_path / "data" / f"{part}-00000-of-00001.parquet")
    train, validation = (dict.fromkeys(PARTS[part], part != "train") for part in ("train", "validation"))
    assert sides(corpus_of(tmp_path)) == train | validation
    assert sorted(sides(corpus_of(tmp_path, splits="ignore"))) == sorted(SENTENCES)
    own = [f"A line {i} of my own." for i in range(40)]
    (tmp_path / "own.txt").write_text("\n".join(own))
    corpus = corpus_of(tmp_path, validation=[str(tmp_path / "own.txt")])
    assert sides(corpus) == train | dict.fromkeys(own, True), "files that are named have precedence"
    assert texts_of(tmp_path) == PARTS["validation"]
    with pytest.raises(SettingsError, match="corpus.holdout_groups"):
        corpus_of(tmp_path, holdout_groups="text")
    (tmp_path / "data" / "validation-00000-of-00001.parquet").unlink()
    assert texts_of(tmp_path) == [*PARTS["test"], *PARTS["train"], *own], "all of it, not the training split alone"


@pytest.mark.parametrize(
    ("files", "validation"),
    [
        ({"train/pos/1.txt": 9, "train/neg/dev-log.txt": 9, "test/pos/1.txt": 9}, set()),  # the folder decides
        ({"novels.train.txt": 90, "novels.valid.txt": 9, "novels.test.txt": 9}, {"novels.valid.txt"}),
        ({"en_train/a.txt": 9, "en_dev/a.txt": 9}, {"en_dev/a.txt"}),
        ({"train.txt": 9, "validation.txt": 9, "LICENSE.txt": 3}, {"validation.txt"}),
        # Not parts: only training, a few among many, names within words, two names in one.
        ({"train.txt": 9, "more.txt": 1}, None),
        ({"slow-train.txt": 9, "a-test-of-time.txt": 9, "others.txt": 99}, None),
        ({"trained.txt": 9, "testament.txt": 9, "devil.txt": 9}, None),
        ({"train-test.txt": 9, "b.txt": 9}, None),
        ({"README.md": 9, "guide.md": 9}, None),  # documents in Markdown, all of them
    ],
)
def test_parts_by_the_names_of_files(tmp_path: Path, files: dict[str, int], validation: set[str] | None) -> None:
    for name, size in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x" * size)
    train, held = ({str(s.path.relative_to(tmp_path)) for s in part} for part in find_split([tmp_path]))
    assert held == (validation or set())
    assert train == ({name for name in files if "train" in name} if validation is not None else set(files))


@pytest.mark.parametrize(
    ("names", "train", "validation"),
    [
        (["train", "validation_matched", "validation_mismatched", "test_matched"],
         {"train"}, {"validation_matched", "validation_mismatched"}),
        (["train_sft", "test_sft"], {"train_sft"}, set[str]()),
        (["train", "train_unlabelled", "validation", "validation_noisy"], {"train"}, {"validation"}),
    ],
)  # fmt: skip
def test_parts_of_a_saved_dataset_by_words_in_their_names(
    tmp_path: Path, names: list[str], train: set[str], validation: set[str]
) -> None:
    """As in file names, but a part of exactly that name comes first."""
    datasets = pytest.importorskip("datasets")
    parts = {name: datasets.Dataset.from_dict({"text": [f"A text of {name}."]}) for name in names}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    split = find_split([tmp_path / "saved"])
    assert [{source.path.parent.name for source in part} for part in split] == [train, validation]


def test_sequences_have_their_names_as_ids(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text(">P1 of a mouse\nMKV\nLAT\n>empty\n>P2\nAAA\n>\nMKV\n")
    documents = Documents(tmp_path / "a.fasta")
    assert [(each.text, each.id) for each in documents] == [("MKVLAT", "P1"), ("AAA", "P2"), ("MKV", 4)]
    assert list(documents.skipped.values()) == [1]
    (tmp_path / "b.fasta").write_text(">P3\nMKV\n")
    assert [each.id for each in Documents(f"{tmp_path}/*.fasta", id_column="")] == [1, 3, 4, 1], "numbers in the files"
    (tmp_path / "a.faa").write_text("; made by hand\n>x\nMK\nV\n;no letters\nLAT\n; AAA\n>y\nAAA\n")
    documents = Documents(tmp_path / "a.faa")
    assert [each.text for each in documents] == ["MKVLAT", "AAA"]
    assert documents.num_bytes == (tmp_path / "a.faa").stat().st_size
    (tmp_path / "b.fasta").write_text("MKV\n>x\nLAT\n")
    with pytest.raises(CorpusError, match="b.fasta: .*>name"):
        texts_of(tmp_path / "b.fasta")


@pytest.mark.parametrize(
    ("name", "content", "where", "reason"),
    [
        ("a.jsonl", '{"text": "x"}\n{"txt": "y"}\n', "row 2 .*txt", "rows without text"),
        ("a.jsonl", '{"text": "x"}\n{"text": 3}\n', "'text' of row 2 is int", "rows without text"),
        ("a.csv", 'text,label\nx,1\n"y"z,1\n', "line 3", "rows that are not CSV"),
        ("a.jsonl", '{"text": "x"}\n{"text": "a\\ud83d"}\n', r"row 2 has U\+D83D", "lines that are not UTF-8 text"),
        ("a.csv", "text,label\nx,1\ny,z,1\n", "line 3", "rows with too many cells"),
    ],
)
def test_bad_rows_are_errors_or_counted(tmp_path: Path, name: str, content: str, where: str, reason: str) -> None:
    good = '{{"text": "fine {}"}}' if name == "a.jsonl" else "fine {},0"
    (tmp_path / name).write_text(content + "".join(good.format(i) + "\n" for i in range(150)))
    with pytest.raises(CorpusError, match=f"{name}: .*{where}"):
        texts_of(tmp_path / name)
    texts, skipped = left_of(tmp_path / name)
    assert (len(texts), skipped) == (151, {reason: 1})


def test_rows_without_text_are_left_out_and_counted(tmp_path: Path) -> None:
    """As null, NaN, empty and blank, in every kind of table; empty lines of plain text are not texts."""
    pandas = pytest.importorskip("pandas")
    texts = [SENTENCES[0], None, float("nan"), "", " ", SENTENCES[1]]
    frame = pandas.DataFrame({"text": texts, "mood": range(6)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "a.txt").write_text("\n".join(text for text in texts if isinstance(text, str)))
    for name in ("a.csv", "a.parquet", "a.jsonl", "a.txt"):
        corpus = corpus_of(tmp_path / name, documents="line")
        assert [piece.text for piece, _ in corpus.pieces()] == SENTENCES[:2]
        assert corpus.skipped == ({} if name == "a.txt" else {"rows without text": 4})
        rows = Documents(tmp_path / name, unit="line")
        assert [(row.id, row.text) for row in rows] == [(1, SENTENCES[0]), (4 if name == "a.txt" else 6, SENTENCES[1])]


def test_tables_without_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Spark and dask write them beside others."""
    (tmp_path / "train-0.csv").write_text("id,text\n")
    (tmp_path / "train-1.jsonl").touch()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "train-2.parquet")
    with pytest.raises(CorpusError, match=r"train-0\.csv.*no rows"):
        texts_of(tmp_path)
    pq.write_table(pa.table({"text": SENTENCES[:3]}), tmp_path / "train-3.parquet")
    write_jsonl(tmp_path / "validation.jsonl", [{"text": SENTENCES[3]}])
    assert sides(corpus_of(tmp_path)) == {**dict.fromkeys(SENTENCES[:3], False), SENTENCES[3]: True}
    assert any("train-2.parquet" in message and "no rows" in message for message in caplog.messages)


def test_cleaning_and_its_counts(tmp_path: Path) -> None:
    lines = [*SENTENCES, SENTENCES[3], "<p>One line</p>"]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    assert texts_of(tmp_path / "a.txt", documents="line") == lines, "nothing is cleaned by default"
    corpus = corpus_of(tmp_path / "a.txt", documents="line", cleaning={"duplicates": "drop"})
    for _ in range(2):  # a second pass counts anew
        assert [piece.text.strip() for piece, _ in corpus.pieces()] == [*SENTENCES, lines[-1]]
        assert corpus.skipped == {"duplicates": 1}


def test_a_file_of_html_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<!DOCTYPE html>\n<script>\nlet a\n\nlet b\n</script>\n<p>One.</p>\n\nTwo.\n")
    assert len(texts_of(tmp_path / "a.html")) == 1
    assert len(texts_of(tmp_path / "a.html", documents="block")) == 3
    (tmp_path / "LICENSE.txt").write_text("Use it.\n\nFreely.\n")
    assert len(texts_of(tmp_path)) == 2
    (tmp_path / "LICENSE.txt").rename(tmp_path / "article.xml")
    assert "tags" in corpus_of(tmp_path).plan.describe()


def test_validation_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES))
    (tmp_path / "held.txt").write_text("Held out one.\nHeld out two.\n" + SENTENCES[5])
    settings = {"validation": [str(tmp_path / "held.txt")], "documents": "line"}
    pieces = list(corpus_of(tmp_path, **settings).pieces())  # the folder has the held-out file, too
    assert [piece.text for piece, held in pieces if not held] == SENTENCES
    assert [piece.text for piece, held in pieces if held] == ["Held out one.", "Held out two.", SENTENCES[5]]
    first = 1 << 32  # a task of their own
    assert [piece.document for piece, _ in pieces] == [*range(300), first, first + 1, first + 2]
    with pytest.raises(CorpusError, match=r"corpus.validation"):
        corpus_of(tmp_path / "held.txt", **settings)


TEXTS = [" ".join(text.split()) for text in make_text(60).split("\n\n")]
ROWS = [{"body": text, "mood": n % 2} for n, text in enumerate(TEXTS)]


def read(content: Any, folder: Path) -> dict[str, bool]:
    return sides(Corpus([InMemory(content).keep(folder / "texts")], CorpusSettings()))


def of_datasets() -> Any:
    datasets = pytest.importorskip("datasets")
    features = {"body": datasets.Value("string"), "mood": datasets.ClassLabel(names=["bad", "good"])}
    return datasets.Dataset.from_list(ROWS, features=datasets.Features(features))


@pytest.mark.parametrize(
    "content",
    [
        lambda: TEXTS,
        lambda: iter(TEXTS),
        lambda: ({"text": text} for text in TEXTS),
        lambda: np.array(TEXTS),
        lambda: pa.Table.from_pylist(ROWS),
        lambda: pytest.importorskip("pandas").DataFrame(ROWS),
        lambda: (pandas := pytest.importorskip("pandas")).Series([*TEXTS, pandas.NA], dtype="string"),
        of_datasets,
        lambda: of_datasets().to_iterable_dataset(),
    ],
)
def test_the_documents_are_those_of_a_file(content: Callable[[], Any], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    expected = sides(Corpus([tmp_path / "texts.txt"], CorpusSettings(documents="line")))
    assert read(content(), tmp_path) == expected
    assert set(expected.values()) == {True, False}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts", "texts.txt"]


@pytest.mark.parametrize("kind", ["dict", "saved", "streamed"])
def test_parts_are_what_their_names_say(kind: str, tmp_path: Path) -> None:
    parts: Any = {"train": TEXTS[:40], "validation": TEXTS[40:50], "test": TEXTS[50:]}
    if kind != "dict":
        datasets = pytest.importorskip("datasets")
        parts = datasets.DatasetDict(
            {name: datasets.Dataset.from_dict({"text": texts}) for name, texts in parts.items()}
        )
    if kind == "streamed":
        parts = datasets.IterableDatasetDict({name: part.to_iterable_dataset() for name, part in parts.items()})
    assert read(parts, tmp_path) == dict.fromkeys(TEXTS[:40], False) | dict.fromkeys(TEXTS[40:50], True)


def test_paths_and_texts_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").write_text("x")
    assert paths_or_texts(None) == []
    paths: Any
    for paths in (["corpus.txt"], ["-"], ["a b", "Some text."], ["my file.txt"], [Path("x"), "Some text."], ("a.csv",)):
        assert paths_or_texts(paths) == list(paths)
    assert paths_or_texts("corpus.txt") == ["corpus.txt"]
    for texts in (["Some words."], ["word", "two words", "See README.md"], ["x" * 300], ["What is this?", "[a] b"]):
        (source,) = paths_or_texts(texts)
        assert isinstance(source, InMemory)
        assert source.content == texts


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (["word", "another"], "'word'"),
        ([], "empty"),
        ("x" * 300, "as a list"),
        (iter([]), "no text"),
        (5, "int"),
        (["A text.", 5], "text 2 .* int"),
        ({"text": TEXTS}, "no train among 'text'"),
        ({"train": "words"}, "'train' holds str"),
        (pa.table({"text": pa.array([], pa.string())}), "no rows"),
        (
            pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"]),
            "several columns of the table are called 'text'",
        ),
        (pa.table({"text": ["a"], "of": pa.array([{}])}), "type 'of'"),
        ([*TEXTS, "half a \ud800 character"], r"row 61 has U\+D800"),
    ],
)
def test_what_is_no_text_is_an_error(content: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=expected):
        unmask.prepare(content, out=tmp_path / "data", vocab_size=200)


def test_a_run_keeps_them_and_goes_on(tmp_path: Path) -> None:
    """Resumes after a stop, with the texts that it began with."""
    run = unmask.pretrain(iter(TEXTS), out=tmp_path / "b", steps=3, vocab_size=150, settings=SMALL)
    (run.folder / "summary.json").unlink()
    again = unmask.pretrain(["Other texts."], out=tmp_path / "b", resume=True)
    assert again.validation_loss == run.validation_loss
    assert unmask.pretrain("-", out=tmp_path / "b", resume=True).validation_loss == run.validation_loss


def test_an_output_below_its_text_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(make_text(40))
    unmask.prepare([tmp_path], out=tmp_path / "runs" / "a", vocab_size=150, workers=1)
    (tmp_path / "runs" / "a" / "report.html").write_text("As a run has it.")
    assert [source.path.name for source in find_sources([tmp_path])] == ["a.py"]


@contextmanager
def pipe(path: Path, content: bytes) -> Iterator[Path]:
    """A named pipe that a thread writes into, once."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no named pipes")
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    yield path
    writer.join(PATIENCE)


def test_a_pipe_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    with pipe(tmp_path / "a", b"text\n" * 100_000) as name:
        assert keep_stream(name, tmp_path / "pipes" / "1.txt", reuse=False).stat().st_size == 500_000
    with pipe(tmp_path / "b", b"") as name, pytest.raises(CorpusError, match="b: this pipe"):
        keep_stream(name, tmp_path / "pipes" / "2.txt", reuse=True)
    assert [path.name for path in (tmp_path / "pipes").iterdir()] == ["1.txt"]
    with pipe(tmp_path / "c", b"") as name:  # a resumed command, which gets no more input
        assert keep_stream(name, tmp_path / "pipes" / "1.txt", reuse=True).stat().st_size == 500_000


def test_a_file_has_the_time_of_its_content(tmp_path: Path) -> None:
    """So that a preparation of the same text resumes."""
    streams, objects = [], []
    for number, word in enumerate(("text", "text", "test")):
        with pipe(tmp_path / str(number), word.encode() * 9) as name:
            file = keep_stream(name, tmp_path / "pipes" / "1.txt", reuse=True)
        streams.append(file.stat().st_mtime_ns)
        folder = InMemory({"train": [word] * 9}).keep(tmp_path / "texts")
        objects.append((folder / "train" / "rows.jsonl").stat().st_mtime_ns)
    for times in (streams, objects):
        assert times[0] == times[1] != times[2]


def test_a_full_disk_is_not_the_fault_of_the_pipe(tmp_path: Path) -> None:
    with pipe(tmp_path / "a", b"text\n" * 10_000) as name, room_for(4096), pytest.raises(WriteError, match=r"1\.txt"):
        keep_stream(name, tmp_path / "pipes" / "1.txt", reuse=False)
    assert list((tmp_path / "pipes").iterdir()) == []


def test_a_file_that_is_read_more_than_once(tmp_path: Path) -> None:
    with pipe(tmp_path / "rows.jsonl", b'{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n') as name:
        with readable(name) as file:
            for _ in range(2):
                assert [(text.id, text.text) for text in Documents(file)] == [("a", "x"), ("b", "y")]
        assert not file.exists()
    with (
        pipe(tmp_path / "bad.jsonl", b'{"text": "x"}\n{"text": 1}\n') as name,
        pytest.raises(CorpusError, match=re.escape(f"{name}: column 'text' of row 2 is int")),
        readable(name) as file,
    ):
        list(Documents(file, "text"))
    with readable(tmp_path / "a.txt") as same:
        assert same == tmp_path / "a.txt"


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="shells make pipes in /dev/fd")
def test_a_corpus_of_pipes_as_a_shell_makes_them(tmp_path: Path) -> None:
    """Without names, as of `<(cat a.txt) <(cat b.txt)`."""
    files, pipes = [tmp_path / "a.txt", tmp_path / "b.txt"], list[str]()
    for seed, file in enumerate(files):
        file.write_text(make_text(60, seed=seed))
        end, begin = os.pipe()
        pipes.append(f"/dev/fd/{end}")
        with open(begin, "wb") as into:  # as much as a pipe holds
            into.write(file.read_bytes())
    unmask.prepare(pipes, out=tmp_path / "data", vocab_size=150, workers=1)
    manifest = load_manifest(tmp_path / "data")
    assert manifest.settings["sources"] == ["<(pipes/1.txt)", "<(pipes/2.txt)"]
    unmask.prepare(files, out=tmp_path / "again", vocab_size=150, workers=1)
    again = load_manifest(tmp_path / "again")
    assert [file.sha256 for file in manifest.train.files] == [file.sha256 for file in again.train.files]
    with pipe(tmp_path / "one", b"") as one, pipe(tmp_path / "two", b"") as two:
        prepared = unmask.prepare([one, two], out=tmp_path / "data", resume=True, vocab_size=150)
        assert prepared.fingerprint == manifest.fingerprint
        assert [name.read_bytes() for name in (one, two)] == [b"", b""], "the data is complete, and no pipe is opened"
