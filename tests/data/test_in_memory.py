"""Texts in memory: whatever they come as, the documents are those of the same texts in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import unmask
from tests.conftest import SMALL, make_text
from tests.data.corpora import sides
from unmask.core.errors import CorpusError
from unmask.data.corpus import Corpus
from unmask.data.settings import CorpusSettings
from unmask.data.sources import InMemory, paths_or_texts

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
        lambda: pytest.importorskip("pandas").Series(TEXTS),
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
    assert paths_or_texts(None) is None
    paths: Any
    for paths in (["corpus.txt"], ["-"], ["a b", "Some text."], ["my file.txt"], [Path("x"), "Some text."], ("a.csv",)):
        assert paths_or_texts(paths) == list(paths)
    assert paths_or_texts("corpus.txt") == ["corpus.txt"]
    for texts in (["Some words."], ["word", "two words", "See README.md"], ["x" * 300], ["What is this?", "[a] b"]):
        (source,) = paths_or_texts(texts) or []
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
        ([*TEXTS, None], "row 61 .*'text'"),
        ([*TEXTS, "half a \ud800 character"], r"row 61 has U\+D800"),
    ],
)
def test_what_is_no_text_is_an_error(content: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=expected):
        unmask.prepare(content, out=tmp_path / "data", vocab_size=200)


def test_a_run_keeps_them_and_goes_on(tmp_path: Path) -> None:
    """After a stop, with the texts that it began with."""
    run = unmask.pretrain(iter(TEXTS), out=tmp_path / "b", steps=3, vocab_size=150, settings=SMALL)
    (run.folder / "summary.json").unlink()
    again = unmask.pretrain(["Other texts."], out=tmp_path / "b", resume=True)
    assert again.validation_loss == run.validation_loss
