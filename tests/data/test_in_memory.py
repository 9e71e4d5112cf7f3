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
from unmask.core.errors import CorpusError
from unmask.data.corpus import Corpus
from unmask.data.settings import CorpusSettings
from unmask.data.sources import InMemory, paths_or_texts

TEXTS = [" ".join(text.split()) for text in make_text(60).split("\n\n")]
ROWS = [{"body": text, "mood": n % 2} for n, text in enumerate(TEXTS)]


def read(given: Any, folder: Path, **settings: Any) -> tuple[list[str], list[str]]:
    """The training texts and the held-out ones."""
    corpus = Corpus([InMemory(given).keep(folder / "given")], CorpusSettings(**settings))
    found = list(corpus.pieces())
    return [p.text for p, held in found if not held], [p.text for p, held in found if held]


def of_datasets(make: Callable[[Any], Any]) -> Any:
    datasets = pytest.importorskip("datasets")
    features = {"body": datasets.Value("string"), "mood": datasets.ClassLabel(names=["bad", "good"])}
    return make(datasets.Dataset.from_list(ROWS, features=datasets.Features(features)))


@pytest.mark.parametrize(
    "given",
    [
        lambda: TEXTS,
        lambda: iter(TEXTS),
        lambda: ({"text": text} for text in TEXTS),
        lambda: np.array(TEXTS),
        lambda: pa.Table.from_pylist(ROWS),
        lambda: pytest.importorskip("pandas").DataFrame(ROWS),
        lambda: pytest.importorskip("pandas").Series(TEXTS),
        lambda: of_datasets(lambda dataset: dataset),
        lambda: of_datasets(lambda dataset: dataset.to_iterable_dataset()),
    ],
)  # fmt: skip
def test_the_documents_are_those_of_a_file(given: Callable[[], Any], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    expected = list(Corpus([tmp_path / "texts.txt"], CorpusSettings(documents="line")).pieces())
    train, held = read(given(), tmp_path)
    assert sorted(train) == sorted(p.text for p, is_held in expected if not is_held)
    assert sorted(held) == sorted(p.text for p, is_held in expected if is_held)
    assert held
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given", "texts.txt"]


@pytest.mark.parametrize("kind", ["dict", "saved", "streamed"])
def test_parts_are_what_their_names_say(kind: str, tmp_path: Path) -> None:
    parts: Any = {"train": TEXTS[:40], "validation": TEXTS[40:50], "test": TEXTS[50:]}
    if kind != "dict":
        datasets = pytest.importorskip("datasets")
        made = {name: datasets.Dataset.from_dict({"text": texts}) for name, texts in parts.items()}
        parts = (
            datasets.DatasetDict(made)
            if kind == "saved"
            else datasets.IterableDatasetDict({name: part.to_iterable_dataset() for name, part in made.items()})
        )
    assert read(parts, tmp_path) == (TEXTS[:40], TEXTS[40:50])


def test_paths_and_texts_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").write_text("x")
    assert paths_or_texts(None) is None
    for paths in (
        ["corpus.txt"],
        ["-"],
        ["a b", "Some text."],
        ["my file.txt"],
        [Path("x"), "Some text."],
        ("no.csv",),
    ):
        assert paths_or_texts(paths) == list(paths)
    assert paths_or_texts("corpus.txt") == ["corpus.txt"]
    for texts in (["Some words."], ["word", "two words", "See README.md"], ["x" * 300], ["What is this?", "[a] b"]):
        (given,) = paths_or_texts(texts) or []
        assert isinstance(given, InMemory)
        assert given.content == texts


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["word", "another"], "'word'"),
        ([], "empty"),
        ("x" * 300, "give texts as a list"),
        (iter([]), "no text"),
        (5, "int"),
        (["A text.", 5], "text 2 .* int"),
        ({"text": TEXTS}, "no train among 'text'"),
        ({"train": "words"}, "'train' holds str"),
        (pa.table({"text": pa.array([], pa.string())}), "no rows"),
        ([*TEXTS, None], "row 61 has no text in column 'text'"),
        ([*TEXTS, "half a \ud800 character"], r"row 61 has U\+D800 in column 'text', which is no character"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_an_error(given: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=expected):
        unmask.prepare(given, out=tmp_path / "data", vocab_size=200)


def test_a_run_keeps_them_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a stop, without being given them again."""
    run = unmask.pretrain(iter(TEXTS), out=tmp_path / "b", steps=3, vocab_size=150, settings=SMALL)
    (run.folder / "summary.json").unlink()
    with caplog.at_level("INFO", logger="unmask"):
        again = unmask.pretrain(["Other texts."], out=tmp_path / "b", resume=True)
    assert "goes on with the texts that it began with" in caplog.text
    assert again.validation_loss == run.validation_loss
    data = unmask.prepare((text for text in TEXTS), out=tmp_path / "data", vocab_size=150)
    assert (data.documents, data.train_tokens > 0) == (60, True)
    assert unmask.prepare(TEXTS, out=tmp_path / "data", vocab_size=150, overwrite=True).fingerprint == data.fingerprint
