"""However the work is cut and shared out: the same tokens, each exactly once; the same files for any workers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import make_text
from tests.tokenizer.families import FAMILIES, SENTENCE, trained
from unmask.core.errors import CorpusError, DataError, SettingsError, TokenizerError
from unmask.core.files import LOCK
from unmask.core.results import Progress
from unmask.data import prepare as preparing
from unmask.data.data_folder import Manifest
from unmask.data.documents import TextPiece
from unmask.data.jobs import Job, cut_jobs, job_bytes, run_job
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore
from unmask.data.workers import Asked, WorkerPool
from unmask.tokenizer.settings import TokenizerSettings
from unmask.tokenizer.tokenizer import Tokenizer

SMALL = TokenizerSettings(vocab_size=200)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def pieces_of(texts: list[str], held: list[bool]) -> list[tuple[TextPiece, bool]]:
    """Every second text continues the document before it."""
    pieces, offset = [], 0
    for number, (text, side) in enumerate(zip(texts, held, strict=True)):
        offset = offset if number % 2 else 0
        pieces.append((TextPiece(number // 2, offset, text, last=number % 2 == 1), side))
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
    made = [run_job(job, tokenizer, tmp_path) for job in cut_jobs(pieces_of(texts, held), size_bytes)]
    parts = [part for part, _ in made]
    for split, side in (("train", False), ("validation", True)):
        alone = [tokenizer.encode_corpus([text])[0] for text, which in rows if which == side]
        alone = [encoded for encoded in alone if len(encoded.input_ids)]
        files = [part.shard.name for p in parts if (part := getattr(p, split)).shard is not None]
        assert bool(files) == bool(alone)
        if not files:
            continue
        store = TokenStore([tmp_path / name for name in files])
        found = [store.read(n, 0, int(store.lengths[n])) for n in range(len(store))]
        assert [ids.tolist() for ids, _ in found] == [encoded.input_ids.tolist() for encoded in alone]
        assert [starts.tolist() for _, starts in found] == [encoded.word_starts.tolist() for encoded in alone]
    assert sum(part.bytes for part in parts) == sum(len(text.encode()) for text in texts)
    for part, counts in made:
        assert counts.sum() == (part.train.shard.tokens if part.train.shard is not None else 0)


@pytest.mark.parametrize(("size_bytes", "several"), [(1500, 3), (6000, 2), (10**9, 2)])
def test_the_files_are_the_same_for_any_number_of_workers(
    corpus_file: Path, tmp_path: Path, size_bytes: int, several: int
) -> None:
    made = []
    for workers in (1, several):
        done: list[int] = []
        out = tmp_path / str(workers)
        prepare(
            [corpus_file], out, corpus=CorpusSettings(), tokenizer=SMALL, workers=workers, size_bytes=size_bytes,
            notify=lambda now, done=done: done.append(now.done if now.what == "tokenizing" else 0),
        )  # fmt: skip
        made.append(contents(out))
        assert done[-1] == max(done) > 50_000, "progress ends at all of the text"
    assert made[0] == made[1]
    num_shards = sum(name.startswith("train/") for name in made[0])
    assert {1500: num_shards > 30, 6000: 8 < num_shards < 30, 10**9: num_shards == 1}[size_bytes]
    assert {name.split("/")[0] for name in made[0]} == {"manifest.json", "tokenizer", "train", "validation"}


def plain(manifest: Manifest) -> Manifest:
    """Without what depends on how the corpus was cut into files."""
    splits = {name: dataclasses.replace(getattr(manifest, name), files=()) for name in ("train", "validation")}
    return dataclasses.replace(manifest, **splits)


@pytest.mark.parametrize("unit", ["block", "file"])
def test_the_ledger_does_not_depend_on_how_the_corpus_is_cut(tmp_path: Path, unit: str) -> None:
    """Documents of several pieces span jobs, and are held out in parts; each counts once in each split."""
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(make_text(1200, seed=s).replace("\n\n", "\n") for s in range(3)))
    corpus = CorpusSettings.model_validate({"documents": unit})
    ledgers = [
        prepare([path], tmp_path / str(size), corpus=corpus, tokenizer=SMALL, workers=1, size_bytes=size)
        for size in (1, 40_000, 10**9)
    ]
    assert plain(ledgers[0]) == plain(ledgers[1]) == plain(ledgers[2])
    assert [len(m.train.files) for m in ledgers] == sorted((len(m.train.files) for m in ledgers), reverse=True)
    assert ledgers[0].documents == ledgers[0].train.documents == (3 if unit == "block" else 1)
    assert 1 <= ledgers[0].validation.documents <= 3


def test_jobs_depend_on_the_sources_alone() -> None:
    assert job_bytes(0) == job_bytes(200 << 20) == 1 << 20
    assert job_bytes(1 << 30) == 4 << 20
    assert job_bytes(1 << 40) == 32 << 20
    pieces = [(TextPiece(n, 0, "é" * (n % 3 + 1)), False) for n in range(7)]
    sizes = [job.num_bytes.tolist() for job in cut_jobs(pieces, 8)]
    assert sizes == [[2, 4, 6], [2, 4, 6], [2]]


def test_a_job_is_known_by_its_content() -> None:
    (job,) = cut_jobs([(TextPiece(0, 0, "ab"), False), (TextPiece(1, 0, "c"), False)], 100)
    same = dataclasses.replace(job, number=5)
    assert job.content_hash == same.content_hash
    others = [
        [(TextPiece(0, 0, "a"), False), (TextPiece(1, 0, "bc"), False)],
        [(TextPiece(0, 0, "ab"), False), (TextPiece(2, 0, "c"), False)],
        [(TextPiece(0, 0, "ab"), False), (TextPiece(1, 9, "c"), False)],
        [(TextPiece(0, 0, "ab"), False), (TextPiece(1, 0, "c"), True)],
    ]
    hashes = {next(cut_jobs(pieces, 100)).content_hash for pieces in others}
    assert len(hashes | {job.content_hash}) == 5


def jobs_of(text: str = "the king sees") -> list[Job]:
    return list(cut_jobs([(TextPiece(n, 0, text), False) for n in range(6)], 1))


def pool_on(root: Path) -> WorkerPool:
    return WorkerPool(root, workers=2)


def run(pool: WorkerPool, jobs: Iterable[Job]) -> None:
    pool.run(Asked("x"), jobs, count=lambda n: None)


def test_an_error_in_a_worker_arrives(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="there is no tokenizer"), pool_on(tmp_path) as pool:
        run(pool, jobs_of())
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(tmp_path / "tokenizer", max_length=128)
    (tmp_path / "train").write_text("in the way")
    with (
        pytest.raises(DataError, match=r"cannot be written \(File exists\); make room and run the same command again"),
        pool_on(tmp_path) as pool,
    ):
        run(pool, jobs_of())
    broken = [dataclasses.replace(job, texts=[None]) for job in jobs_of()]
    with pytest.raises(RuntimeError, match="in a worker process:\nTraceback"), pool_on(tmp_path) as pool:
        run(pool, broken)  # a defect of ours keeps its traceback
    assert all(process.poll() is not None for process in pool._processes)


def test_an_error_of_the_reader_ends_the_workers(data_folder: Path, tmp_path: Path) -> None:
    def breaks() -> Iterator[Job]:
        yield from jobs_of()
        raise DataError("the file ends here")

    (tmp_path / "parts").mkdir()
    (tmp_path / "tokenizer").symlink_to(data_folder / "tokenizer")
    with pytest.raises(DataError, match="the file ends here"), pool_on(tmp_path) as pool:
        run(pool, breaks())
    assert len(pool._processes) == 2
    assert all(process.poll() is not None for process in pool._processes)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_a_worker_that_is_killed(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[WorkerPool] = []

    class Watched(WorkerPool):
        def __enter__(self) -> WorkerPool:
            pools.append(self)
            return super().__enter__()

    def kill(progress: Progress) -> None:
        if pools and progress.done > 20_000:
            for process in pools[0]._processes:
                process.kill()

    monkeypatch.setattr(preparing, "WorkerPool", Watched)
    options = {"corpus": CorpusSettings(), "tokenizer": SMALL, "workers": 2, "size_bytes": 2000}
    with pytest.raises(
        DataError,
        match="a worker process was killed by signal 9.*goes on from what is done: run it again, with fewer workers",
    ):
        prepare([corpus_file], tmp_path / "out", **options, notify=kill)  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "manifest.json").exists()
    notes: list[str] = []
    prepare([corpus_file], tmp_path / "out", **options, note=notes.append)  # type: ignore[arg-type]
    assert notes
    assert notes[0].startswith("going on: ")
    prepare([corpus_file], tmp_path / "whole", **options)  # type: ignore[arg-type]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_workers_that_wait_when_the_text_is_found_wanting_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "one.txt"
    text.write_bytes(b"\xff" * (2 << 20))  # enough for workers to be started at once
    pools: list[WorkerPool] = []

    class Watched(WorkerPool):
        def start(self) -> None:
            super().start()
            pools.append(self)

    monkeypatch.setattr(preparing, "WorkerPool", Watched)
    with pytest.raises(CorpusError):
        prepare([text], tmp_path / "out", corpus=CorpusSettings(), tokenizer=SMALL, workers=2)
    assert [process.poll() is not None for process in pools[0]._processes] == [True, True]
    with pool_on(tmp_path) as idle:
        idle.start()
    assert all(process.poll() == 0 for process in idle._processes)


def test_workers_start_without_what_they_do_not_need() -> None:
    code = "import sys, unmask.data.worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pyarrow" in loaded
    assert not {"torch", "pydantic", "pyarrow.parquet", "spacy", "unmask.data.corpus"} & set(loaded)


def test_a_number_of_workers_that_cannot_be(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="workers=0: there must be one at the least"):
        prepare([corpus_file], tmp_path, corpus=CorpusSettings(), tokenizer=SMALL, workers=0)
