"""Shards: the same tokens and files however the work is divided or interrupted, and damage is noticed."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command_line import PATIENCE
from tests.conftest import make_text
from tests.data.corpora import SMALL, contents, prepare
from tests.processes import Forked
from tests.tokenizer.families import FAMILIES, SENTENCE, trained
from unmask.commands.prepare import prepare as prepare_verb
from unmask.core.errors import CorpusError, DataError, WriteError
from unmask.core.results import Progress
from unmask.data.data_folder import (
    EXAMPLE_CHARS,
    Manifest,
    cut_chunks,
    load_manifest,
    write_shards,
)
from unmask.data.documents import Document
from unmask.data.settings import CorpusSettings
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
@settings(max_examples=25)
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
    path.write_text("\n\n".join(make_text(n, seed=n).replace("\n\n", "\n") for n in (50, 1200, 60)))
    corpus = CorpusSettings.model_validate({"documents": unit})
    manifests = [
        prepare([path], tmp_path / str(size), corpus=corpus, tokenizer=SMALL, workers=1, size_bytes=size)
        for size in (1, 10**9)
    ]

    def plain(manifest: Manifest) -> Manifest:
        splits = {name: dataclasses.replace(getattr(manifest, name), files=()) for name in ("train", "validation")}
        return dataclasses.replace(manifest, **splits)

    assert plain(manifests[0]) == plain(manifests[1])
    assert len(manifests[0].train.files) > len(manifests[1].train.files)
    assert manifests[0].documents == manifests[0].train.documents == (3 if unit == "block" else 1)
    assert 1 <= manifests[0].validation.documents <= 3
    examples = manifests[0].examples
    assert len(examples) > 4, "several of a long text"
    assert all(text in path.read_text() and 200 < len(text) <= EXAMPLE_CHARS for text in examples)


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (lambda out: (out / "train").rename(out / "gone") and (out / "train").touch(), WriteError),
        (lambda out: [worker.kill() for worker in multiprocessing.active_children()], DataError),
    ],
    ids=["no folder to write to", "a kill"],
)
def test_one_error_ends_all_workers(
    corpus_file: Path, tmp_path: Path, stop: Callable[..., Any], error: type[Exception]
) -> None:
    out, seen = tmp_path / "out", set[Any]()

    def notify(progress: Progress) -> None:
        seen.update(multiprocessing.active_children())
        if progress.what == "tokenizing" and progress.done > 20_000 and not (out / "gone").exists():
            stop(out)

    with pytest.raises(error):
        prepare([corpus_file], out, corpus=CorpusSettings(), tokenizer=SMALL, size_bytes=2000, workers=2, notify=notify)
    assert len(seen) == 2
    assert not multiprocessing.active_children()
    assert not (out / "manifest.json").exists()


def test_a_damaged_manifest_is_found(data_folder: Path, manifest: Manifest, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(data_folder, root)
    file = root / "manifest.json"
    text = file.read_text()
    changed = text.replace(manifest.train.files[0].sha256, "0")
    counts = text.replace('"token_frequencies": [', '"token_frequencies": ["",')
    for damaged in (text[:-200].encode(), b"\xff\xfe\x80", changed.encode(), counts.encode()):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"manifest\.json"):
            load_manifest(root)
    with pytest.raises(DataError, match=r"manifest\.json; .*unmask prepare"):
        load_manifest(tmp_path)


def test_chunks_are_the_store_in_order(store: TokenStore) -> None:
    """For any size, as many whole pieces as fit; together they are the whole shard."""
    whole = store.gather(np.arange(len(store)))
    for size in (1, 50, 999, 10**9):
        chunks = list(store.chunks(size))
        for name in ("lengths", "input_ids", "word_starts"):
            column = np.concatenate([getattr(chunk, name) for chunk in chunks])
            assert np.array_equal(column, getattr(whole, name))
        for chunk in chunks:
            assert len(chunk.input_ids) == len(chunk.word_starts) == chunk.lengths.sum()
            assert len(chunk.input_ids) <= size or len(chunk.lengths) == 1
    assert len(list(store.chunks(1))) == len(store)


SIZES = {"size_bytes": 2500, "task_bytes": 6000}  # many small tasks of several shards each


def prepare_until(source: str, out: str, signum: int, after: int) -> None:
    """Runs in a process of its own, with two workers, and sends it a signal once some tasks are done. Processes that a
    shell puts into the background ignore interrupts, and so do their children, unless they set a handler."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def notify(_: Progress) -> None:
        if len(list((Path(out) / "parts").glob("shards-*.npz"))) >= after:
            print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
            os.kill(os.getpid(), signum)

    how = {"corpus": CorpusSettings(), "tokenizer": SMALL, "workers": 2, "resume": True, "notify": notify}
    prepare([source], Path(out), **how, **SIZES)


def begin_and_stop(source: Path, out: Path, signum: int, *, after: int) -> None:
    """Prepares text in another process until some tasks are done; its workers end with it."""
    process = Forked(prepare_until, str(source), str(out), signum, after)
    printed, errors = process.communicate(timeout=PATIENCE)
    workers = printed.split()
    assert len(workers) == 2, errors
    assert process.returncode == (-signum if signum == signal.SIGKILL else process.returncode) != 0
    assert errors.count("Traceback") == (signum == signal.SIGINT), "of the caller alone"
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_stops_leave_no_worker_and_the_files_are_the_same(tmp_path: Path) -> None:
    """An interrupt, and a kill of the process that goes on; a source that changes after these is read anew."""
    source, out, notes = tmp_path / "text.txt", tmp_path / "out", list[str]()
    source.write_text(make_text(1500, seed=3))
    make = partial(prepare, [str(source)], corpus=CorpusSettings(), tokenizer=SMALL, workers=1, **SIZES)
    begin_and_stop(source, out, signal.SIGINT, after=3)
    begin_and_stop(source, out, signal.SIGKILL, after=12)
    shutil.copytree(out, tmp_path / "changed")
    (out / "tokenizer" / "tokenizer.json").write_text("{}")  # trained again, it is the same
    make(out, resume=True, note=notes.append)
    make(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    assert contents(out) == whole
    num_tasks = len({name.split("-")[0] for name in whole if name.startswith("train/")})
    assert notes[0].startswith("resuming: ")
    assert notes[0].split()[3] == f"{num_tasks:,}"
    source.write_text(make_text(100, seed=4))
    make(tmp_path / "changed", resume=True, note=notes.append)
    make(tmp_path / "other")
    assert contents(tmp_path / "changed") == contents(tmp_path / "other")


def test_data_is_kept_or_replaced(corpus_file: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    for name in ("a.txt", "b.txt"):
        (texts / name).write_bytes(corpus_file.read_bytes())

    def run(vocab_size: int = 200, *, resume: bool = False, part: tuple[int, int] | None = None) -> Manifest:
        tokenizer = SMALL.model_copy(update={"vocab_size": vocab_size})
        paths = [f"{texts}/" if resume else texts]  # as a shell completes it
        return prepare(paths, out, corpus=CorpusSettings(), tokenizer=tokenizer, workers=1, resume=resume, part=part)

    shard = out / "train" / "00000-00000.arrow"
    first = run()
    made = shard.stat().st_mtime_ns
    assert run(resume=True) == first
    with pytest.raises(DataError, match=r"tokenizer\.vocab_size = 200.* 150"):
        run(vocab_size=150, resume=True)
    for folder in (out, tmp_path / "new"):
        with pytest.raises(DataError, match="overwrite"):
            prepare_verb(texts, out=folder, resume=True, overwrite=True)
    with pytest.raises(CorpusError):
        prepare(["none"], out, corpus=CorpusSettings(), tokenizer=SMALL)
    assert shard.stat().st_mtime_ns == made, "nothing is made again, or lost by a mistake"
    for name in ("c.txt", "b.txt"):  # one is new, one is changed
        (texts / name).write_text(make_text(100))
        with pytest.raises(DataError, match=name):
            run(resume=True)
        (texts / name).unlink()
    with pytest.raises(DataError, match=r"b\.txt.*prepare the text again"):
        run(resume=True)
    with pytest.raises(DataError, match=r"b\.txt.*another folder"):
        run(part=(1, 2))
    (texts / "a.txt").unlink()
    assert run(resume=True) == first, "which needs its text no more"
    (texts / "a.txt").write_text(make_text(100))
    assert run().documents == 100


def test_a_replacement_that_is_stopped_resumes(corpus_file: Path, tmp_path: Path) -> None:
    """Before and after the old data is gone."""
    text, out, seen = tmp_path / "text.txt", tmp_path / "out", list[str]()
    text.write_text(make_text(600, seed=3))
    make = partial(prepare, [text], corpus=CorpusSettings(), tokenizer=SMALL, workers=1, task_bytes=50_000)

    def stop(progress: Progress) -> None:
        if progress.done > 60_000 and progress.what not in seen:  # the first task is done
            seen.append(progress.what)
            raise KeyboardInterrupt

    prepare([corpus_file], out, corpus=CorpusSettings(), tokenizer=SMALL, workers=1)
    before = contents(out)
    with pytest.raises(KeyboardInterrupt):
        make(out, notify=stop)
    surveys = {path: path.stat().st_mtime_ns for path in (out / "parts").glob("survey-*")}
    assert surveys
    assert before.items() <= contents(out).items()
    with pytest.raises(KeyboardInterrupt):
        make(out, notify=stop)
    assert all(path.stat().st_mtime_ns == time for path, time in surveys.items())
    notes = list[str]()
    make(out, note=notes.append)
    assert any(note.startswith("resuming: ") for note in notes)
    make(tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_to_skip_bad_input_only_what_was_not_read_is_read(tmp_path: Path) -> None:
    source, out, checked = tmp_path / "a.txt", tmp_path / "out", 0
    # Longer than what is read at once, so that the plan does not see the end.
    source.write_bytes(b"".join(b"line %d%s\n" % (n, b" of the text" * 20) for n in range(6000)) + b"\xff\n")
    make = partial(prepare, [source], out, tokenizer=SMALL, workers=1, task_bytes=200_000)
    with pytest.raises(CorpusError, match="bad_input"):
        make(corpus=CorpusSettings(documents="line"))
    surveys = {path: path.stat().st_mtime_ns for path in (out / "parts").glob("survey-*")}
    assert len(surveys) > 3

    def check(progress: Progress) -> None:
        nonlocal checked
        if progress.what == "tokenizing":
            checked += all(path.stat().st_mtime_ns == time for path, time in surveys.items())

    manifest = make(corpus=CorpusSettings(documents="line", bad_input="skip"), notify=check)
    assert checked
    assert (manifest.documents, sum(manifest.skipped.values())) == (6000, 1)


@pytest.mark.parametrize(
    "name", ["notes.md", "train/mine.txt", "validation/0.arrow", "parts/mine.txt", "tokenizer/tokenizer.json"]
)
def test_other_files_are_not_touched(corpus_file: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    for out in (tmp_path, tmp_path / name):  # a folder with other files, and a file
        with pytest.raises(DataError, match=name.removesuffix("/tokenizer.json")):
            prepare([corpus_file], out, corpus=CorpusSettings(), tokenizer=SMALL)
    assert (tmp_path / name).read_text() == "mine"


def test_a_try_without_a_shard_goes_on(corpus_file: Path, tmp_path: Path) -> None:
    """As at an address, which keeps no empty folders."""
    for name in ("parts", "tokenizer"):
        (tmp_path / name).mkdir()
    prepare([corpus_file], tmp_path, corpus=CorpusSettings(), tokenizer=SMALL)


def test_text_that_the_tokenizer_loses_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    """WordPiece does not tokenize words of more than 100 letters: of `id` and 128 more letters, 2 are known."""
    source = tmp_path / "a.log"
    source.write_text("".join(f"id {number:0128x}\n" for number in range(300)))
    with pytest.raises(DataError, match=r"98\.5% of the letters .* corpus\.max_unknown=1"):
        prepare([source], tmp_path / "out", corpus=CorpusSettings(), tokenizer=SMALL, workers=1)
    notes = list[str]()
    allowed = CorpusSettings(max_unknown=1)
    manifest = prepare([source], tmp_path / "out", corpus=allowed, tokenizer=SMALL, workers=1, note=notes.append)
    assert notes == ["resuming: 1 of 1 tasks are already done"]
    assert (manifest.unknown.letters, manifest.unknown.unknown) == (300 * 130, 300 * 128)
    assert load_manifest(tmp_path / "out").unknown.share == manifest.unknown.share
