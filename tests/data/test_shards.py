"""However the work is cut and shared out: the same tokens, each exactly once; the same files for any workers."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import make_text
from tests.data.corpora import SMALL, contents
from tests.tokenizer.families import FAMILIES, SENTENCE, trained
from unmask.core.errors import DataError
from unmask.core.results import Progress
from unmask.data.data_folder import Manifest
from unmask.data.documents import Document
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.data.shards import cut_chunks, write_shards
from unmask.data.store import TokenStore


def pieces_of(texts: list[str], held: list[bool]) -> list[tuple[Document, bool]]:
    """Every second text continues the document before it."""
    pieces, offset = [], 0
    for number, (text, side) in enumerate(zip(texts, held, strict=True)):
        offset = offset if number % 2 else 0
        pieces.append((Document(number // 2, offset, text, last=number % 2 == 1), side))
        offset += len(text.encode())
    return pieces


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text(alphabet=SENTENCE + "áβ\u0301👍\u200b", min_size=1), st.booleans()), min_size=1),
    st.integers(1, 60),
)
def test_every_token_arrives_exactly_once(
    family: str, tmp_path: Path, rows: list[tuple[str, bool]], size_bytes: int
) -> None:
    tokenizer = trained(family)
    texts, held = [text for text, _ in rows], [side for _, side in rows]
    made = [write_shards(chunk, tokenizer, tmp_path) for chunk in cut_chunks(pieces_of(texts, held), size_bytes)]
    for split, side in (("train", False), ("validation", True)):
        alone = [tokenizer.encode_corpus([text])[0] for text, which in rows if which == side]
        alone = [encoded for encoded in alone if len(encoded.input_ids)]
        files = [file.name for counts in made for file in getattr(counts, split).files]
        assert bool(files) == bool(alone)
        if not files:
            continue
        store = TokenStore([tmp_path / name for name in files])
        stored = [store.gather(np.array([n])) for n in range(len(store))]
        assert [text.input_ids.tolist() for text in stored] == [encoded.input_ids.tolist() for encoded in alone]
        assert [text.word_starts.tolist() for text in stored] == [encoded.word_starts.tolist() for encoded in alone]
    assert sum(counts.bytes for counts in made) == sum(len(text.encode()) for text in texts)
    for counts in made:
        assert counts.frequencies.sum() == sum(file.tokens for file in counts.train.files)


@pytest.mark.parametrize("unit", ["block", "file"])
def test_counts_do_not_depend_on_how_the_corpus_is_cut(tmp_path: Path, unit: str) -> None:
    """Documents of several pieces span chunks, and are held out in parts; each counts once in each split."""
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(make_text(1200, seed=s).replace("\n\n", "\n") for s in range(3)))
    corpus = CorpusSettings.model_validate({"documents": unit})
    manifests = [
        prepare([path], tmp_path / str(size), corpus=corpus, tokenizer=SMALL, workers=1, size_bytes=size)
        for size in (1, 40_000, 10**9)
    ]

    def plain(manifest: Manifest) -> Manifest:
        splits = {name: dataclasses.replace(getattr(manifest, name), files=()) for name in ("train", "validation")}
        return dataclasses.replace(manifest, **splits)

    assert plain(manifests[0]) == plain(manifests[1]) == plain(manifests[2])
    assert [len(m.train.files) for m in manifests] == sorted((len(m.train.files) for m in manifests), reverse=True)
    assert manifests[0].documents == manifests[0].train.documents == (3 if unit == "block" else 1)
    assert 1 <= manifests[0].validation.documents <= 3


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (lambda out: (out / "train").rename(out / "gone") and (out / "train").touch(), DataError),
        (lambda out: [worker.kill() for worker in multiprocessing.active_children()], DataError),
        (lambda out: 1 / 0, ZeroDivisionError),
    ],
    ids=["a full disk", "a kill", "a defect of the caller"],
)
def test_one_error_ends_all_workers(
    corpus_file: Path, tmp_path: Path, stop: Callable[..., Any], error: type[Exception]
) -> None:
    out, seen = tmp_path / "out", set[Any]()
    make = partial(prepare, [corpus_file], corpus=CorpusSettings(), tokenizer=SMALL, workers=2, size_bytes=2000)

    def notify(progress: Progress) -> None:
        seen.update(multiprocessing.active_children())
        if progress.what == "tokenizing" and progress.done > 20_000 and not (out / "gone").exists():
            stop(out)

    with pytest.raises(error):
        make(out, notify=notify)
    assert len(seen) == 2
    assert not multiprocessing.active_children()
    assert not (out / "manifest.json").exists()
    if (out / "gone").exists():
        (out / "train").unlink()
        (out / "gone").rename(out / "train")
    make(out)
    make(tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
